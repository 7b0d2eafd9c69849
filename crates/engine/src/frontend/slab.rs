//! Numbered places that are used again, without allocation once there are enough.

/// Numbered list of values in progress. A number that was given back becomes invalid, and stays so
/// when its place is used again.
#[derive(Debug)]
pub struct Slab<T> {
    places: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub fn new() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }

    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub fn insert(&mut self, value: T) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push((0, None));
            (self.places.len() - 1) as u32
        });
        let place = &mut self.places[index as usize];
        place.1 = Some(value);
        u64::from(place.0) << 32 | u64::from(index)
    }

    pub fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let place = self.places.get_mut(number as u32 as usize)?;
        if u64::from(place.0) == number >> 32 { place.1.as_mut() } else { None }
    }

    pub fn get(&self, number: u64) -> Option<&T> {
        let place = self.places.get(number as u32 as usize)?;
        if u64::from(place.0) == number >> 32 { place.1.as_ref() } else { None }
    }

    /// The number that is in use at a place.
    pub fn number_at(&self, index: u32) -> Option<u64> {
        let (generation, value) = self.places.get(index as usize)?;
        value.as_ref().map(|_| u64::from(*generation) << 32 | u64::from(index))
    }

    pub fn remove(&mut self, number: u64) -> Option<T> {
        self.get_mut(number)?;
        let place = &mut self.places[number as u32 as usize];
        place.0 = place.0.wrapping_add(1);
        self.free.push(number as u32);
        place.1.take()
    }

    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.places.iter().filter_map(|(_, value)| value.as_ref())
    }

    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.places.iter_mut().filter_map(|(_, value)| value.as_mut())
    }

    /// One more than the highest place.
    pub fn places(&self) -> u32 {
        self.places.len() as u32
    }

    pub fn keys(&self) -> impl Iterator<Item = u64> + '_ {
        let used = self.places.iter().enumerate().filter(|(_, (_, value))| value.is_some());
        used.map(|(index, (generation, _))| u64::from(*generation) << 32 | index as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_valid_once() {
        let mut slab = Slab::new();
        let (a, b) = (slab.insert('a'), slab.insert('b'));
        assert_eq!(slab.remove(a), Some('a'));
        let c = slab.insert('c');
        assert_eq!((a as u32, slab.get(a), slab.get(c)), (c as u32, None, Some(&'c')));
        assert_eq!((slab.remove(a), slab.remove(b), slab.len()), (None, Some('b'), 1));
        assert_eq!(slab.keys().collect::<Vec<_>>(), [c]);
    }
}
