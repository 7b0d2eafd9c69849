//! Repeatable chance: every component draws from its own stream, so that one more draw here changes
//! no draw elsewhere.

/// SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// A stream of its own for `name`; does not move this one.
    #[must_use]
    pub fn stream(&self, name: &str) -> Self {
        let mut state = self.state ^ 0x6a09_e667_f3bc_c909;
        for byte in name.bytes() {
            state = mix(state ^ u64::from(byte));
        }
        Self { state }
    }

    #[allow(clippy::should_implement_trait, reason = "it never ends, so it is no iterator")]
    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// 0 to `n` - 1.
    ///
    /// # Panics
    /// When `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// `from` to `to`, both included.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    pub fn permille(&mut self, permille: u64) -> bool {
        self.below(1000) < permille
    }

    pub fn coin(&mut self) -> bool {
        self.next() & 1 == 1
    }

    /// One of them; `None` of none.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        if of.is_empty() { None } else { of.get(self.below(of.len() as u64) as usize) }
    }

    /// Mostly near `mean`, at times many times it, never 0: the sum of it over many draws is about
    /// `mean` each.
    pub fn around(&mut self, mean: u64) -> u64 {
        // Geometric over 16 steps: an exponential distribution in integers.
        let mut value = 1 + self.below(mean.max(1));
        while self.below(3) == 0 && value < mean.saturating_mul(16) {
            value += self.below(mean.max(1));
        }
        value
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
