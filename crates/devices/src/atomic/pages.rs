//! Whether the pages of a file lie on the device in one piece, as far as its extents tell. Pure.
//!
//! Guarantees
//! - A page counts as whole only if one extent holds all of it, in one state, at a place on the
//!   device that is a multiple of the page. Only then is a write of the page one request.
//! - A page of which no part was ever written counts for nothing: no part of it can be lost.
//! - Memory does not grow with the file or with the number of its extents.
//!
//! Extents that touch on the device are not taken for one: the kernel maps a write extent by
//! extent, and begins a request for each.

/// State of an extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    Written,
    /// Reserved and never written: it reads as zeroes.
    Unwritten,
    /// In memory only. Its place on the device is not chosen yet.
    Unplaced,
}

/// A part of a file that lies in one piece on the device. All in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    pub logical: u64,
    /// Place on the device, from its beginning on.
    pub physical: u64,
    pub length: u64,
    pub state: State,
}

impl Extent {
    fn end(self) -> u64 {
        self.logical.saturating_add(self.length)
    }
}

/// Numbers of pages of a file.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Pages {
    /// Pages that have a place on the device, wholly or in part.
    pub placed: u64,
    /// Pages in several pieces, or in one piece that is not aligned.
    pub cut: u64,
    /// Pages that are partly written, and partly a hole or reserved.
    pub mixed: u64,
}

/// A page of which only a part has been seen.
#[derive(Clone, Copy, Debug)]
struct Begun {
    number: u64,
    bytes: u64,
    state: State,
    pieces: u32,
    is_mixed: bool,
}

/// Goes over the extents of one file in the order of the file.
#[derive(Clone, Debug)]
pub struct PageWalk {
    page: u64,
    /// Whole pages of the file. A rest behind them is no page.
    pages: u64,
    begun: Option<Begun>,
    found: Pages,
}

impl PageWalk {
    /// `page`: size of a page in bytes, not zero. `bytes`: size of the file.
    #[must_use]
    pub fn new(page: u64, bytes: u64) -> Self {
        let page = page.max(1);
        Self { page, pages: bytes / page, begun: None, found: Pages::default() }
    }

    /// Takes the next extent. What it shares with the extents before it counts once.
    pub fn add(&mut self, extent: Extent) {
        let (mut at, end) = (extent.logical, extent.end().min(self.pages.saturating_mul(self.page)));
        while at < end {
            let number = at / self.page;
            let page_end = (number + 1) * self.page;
            if self.begun.is_some_and(|begun| begun.number != number) {
                self.close();
            }
            if at.is_multiple_of(self.page) && end >= page_end && self.begun.is_none() {
                let whole = (end - at) / self.page;
                self.whole(extent, at, whole);
                at += whole * self.page;
            } else {
                let part = end.min(page_end) - at;
                self.part(number, part, extent.state);
                at += part;
            }
        }
    }

    /// Counts pages that the extent holds as a whole.
    fn whole(&mut self, extent: Extent, at: u64, pages: u64) {
        if extent.state == State::Unplaced {
            return;
        }
        self.found.placed += pages;
        let place = extent.physical.saturating_add(at - extent.logical);
        if !place.is_multiple_of(self.page) {
            self.found.cut += pages;
        }
    }

    fn part(&mut self, number: u64, bytes: u64, state: State) {
        let begun = self.begun.get_or_insert(Begun { number, bytes: 0, state, pieces: 0, is_mixed: false });
        begun.bytes += bytes;
        begun.pieces += 1;
        begun.is_mixed |= begun.state != state;
    }

    fn close(&mut self) {
        let Some(begun) = self.begun.take() else { return };
        let is_mixed = begun.is_mixed || begun.bytes < self.page;
        if begun.state == State::Unplaced && !is_mixed {
            return;
        }
        self.found.placed += 1;
        // A part that holds the whole page is counted by `whole`, so these are several pieces.
        if is_mixed {
            self.found.mixed += 1;
        } else {
            self.found.cut += 1;
        }
    }

    /// The numbers, when all extents have been given.
    #[must_use]
    pub fn finish(mut self) -> Pages {
        self.close();
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KIB: u64 = 1024;

    fn walk(page: u64, bytes: u64, extents: &[(u64, u64, u64, State)]) -> (u64, u64, u64) {
        let mut walk = PageWalk::new(page, bytes);
        for &(logical, physical, length, state) in extents {
            let (logical, physical, length) = (logical * KIB, physical * KIB, length * KIB);
            walk.add(Extent { logical, physical, length, state });
        }
        let Pages { placed, cut, mixed } = walk.finish();
        (placed, cut, mixed)
    }

    use State::{Unplaced, Unwritten, Written};

    #[test]
    fn a_page_is_whole_in_one_aligned_extent_only() {
        let page = 16 * KIB;
        assert_eq!(walk(page, 64 * KIB, &[(0, 1024, 64, Written)]), (4, 0, 0));
        assert_eq!(walk(page, 64 * KIB, &[(0, 1028, 64, Written)]), (4, 4, 0), "it is not aligned");
        // The second page is in two pieces that touch.
        let touching = [(0, 1024, 28, Written), (28, 1052, 36, Written)];
        assert_eq!(walk(page, 64 * KIB, &touching), (4, 1, 0));
        let apart = [(0, 1024, 16, Written), (16, 4096, 16, Written)];
        assert_eq!(walk(page, 32 * KIB, &apart), (2, 0, 0), "each page is whole");
    }

    #[test]
    fn a_page_with_a_hole_or_in_two_states_is_mixed() {
        let page = 16 * KIB;
        assert_eq!(walk(page, 32 * KIB, &[(0, 1024, 4, Written)]), (1, 0, 1));
        assert_eq!(walk(page, 32 * KIB, &[(4, 1028, 12, Written)]), (1, 0, 1));
        assert_eq!(walk(page, 16 * KIB, &[(0, 1024, 8, Written), (8, 1032, 8, Unwritten)]), (1, 0, 1));
        assert_eq!(walk(page, 16 * KIB, &[(0, 0, 8, Unplaced), (8, 1032, 8, Written)]), (1, 0, 1));
        assert_eq!(walk(page, 64 * KIB, &[(0, 0, 64, Unplaced)]), (0, 0, 0), "it has no place yet");
        assert_eq!(walk(page, 64 * KIB, &[(16, 1024, 16, Unwritten)]), (1, 0, 0), "others are holes");
    }

    #[test]
    fn what_lies_behind_the_last_whole_page_is_no_page() {
        assert_eq!(walk(16 * KIB, 20 * KIB, &[(0, 1024, 16, Written), (16, 4, 4, Written)]), (1, 0, 0));
        assert_eq!(walk(16 * KIB, 4 * KIB, &[(0, 4, 4, Written)]), (0, 0, 0));
        assert_eq!(
            walk(16 * KIB, 16 * KIB, &[(0, 1024, 64, Unwritten)]),
            (1, 0, 0),
            "reserved behind its end"
        );
    }

    #[test]
    fn lies_of_the_kernel_do_not_end_the_walk() {
        let mut walk = PageWalk::new(4096, u64::MAX);
        walk.add(Extent { logical: u64::MAX - 1, physical: u64::MAX, length: u64::MAX, state: Written });
        walk.add(Extent { logical: 0, physical: 0, length: 0, state: Written });
        assert!(walk.finish().placed < u64::MAX);
        assert_eq!(PageWalk::new(0, 10).finish(), Pages::default());
    }

    /// Extents as a file has them: gaps, lengths, places and states, in blocks.
    fn extents() -> impl Strategy<Value = Vec<(u64, u64, u64, State)>> {
        let state = prop_oneof![4 => Just(Written), 2 => Just(Unwritten), 1 => Just(Unplaced)];
        let gap = prop_oneof![3 => Just(0u64), 1 => 1..9u64];
        proptest::collection::vec((gap, 1..12u64, 0..40u64, state), 0..20)
    }

    proptest! {
        /// The walk agrees with a list of all blocks.
        #[test]
        fn the_walk_agrees_with_a_list_of_blocks(
            shape in extents(),
            per_page in prop_oneof![Just(1u64), Just(2), Just(4), Just(16)],
            cut_off in 0..20u64,
        ) {
            let mut blocks: Vec<Option<(usize, u64, State)>> = Vec::new();
            let mut given = Vec::new();
            for (number, (gap, length, place, state)) in shape.iter().enumerate() {
                blocks.resize(blocks.len() + usize::try_from(*gap).unwrap(), None);
                given.push((blocks.len() as u64, *place, *length, *state));
                blocks.extend((0..*length).map(|at| Some((number, place + at, *state))));
            }
            blocks.truncate(blocks.len().saturating_sub(usize::try_from(cut_off).unwrap()));
            let mut walk = PageWalk::new(per_page * 4096, blocks.len() as u64 * 4096);
            for (logical, physical, length, state) in given {
                let [logical, physical, length] = [logical, physical, length].map(|blocks| blocks * 4096);
                walk.add(Extent { logical, physical, length, state });
            }
            let mut wanted = Pages::default();
            for page in blocks.chunks_exact(usize::try_from(per_page).unwrap()) {
                if page.iter().all(|block| block.is_none_or(|(_, _, state)| state == Unplaced))
                    && page.iter().all(|block| block.is_some() == page[0].is_some())
                {
                    continue;
                }
                wanted.placed += 1;
                let state = |block: &Option<(usize, u64, State)>| block.map(|(_, _, state)| state);
                if page.iter().any(|block| state(block) != state(&page[0])) {
                    wanted.mixed += 1;
                } else if page.iter().any(|block| block.map(|of| of.0) != page[0].map(|of| of.0))
                    || page[0].is_some_and(|(_, place, _)| !place.is_multiple_of(per_page))
                {
                    wanted.cut += 1;
                }
            }
            prop_assert_eq!(walk.finish(), wanted);
        }
    }
}
