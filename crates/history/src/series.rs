//! The work of an interval as a series of points.

use crate::minute::{Minute, Work};
use crate::waits::{Waits, waits};
use mainstay_types::ResourceId;
use std::collections::BTreeMap;

/// Work of a part of the interval.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Point {
    /// Sum of the records that ended in this part.
    pub minute: Minute,
    /// By resource. Each record is divided by its own means, so a point of several is as exact as
    /// its records are.
    pub waits: BTreeMap<ResourceId, Waits>,
}

impl Point {
    fn add(&mut self, other: &Self) {
        self.minute.add(&other.minute);
        for (resource, waits) in &other.waits {
            let sum = self.waits.entry(*resource).or_default();
            for (class, us) in waits {
                let of_class = sum.entry(*class).or_default();
                *of_class = of_class.saturating_add(*us);
            }
        }
    }

    fn cells(&self) -> usize {
        1 + self.minute.resources.len()
    }
}

/// Points of an interval, each of one step. If they have more cells (a cell is a replica in a
/// point) than allowed, the step is doubled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Series {
    from_ms: u64,
    to_ms: u64,
    step_ms: u64,
    cells_max: usize,
    /// By their number in the interval.
    points: BTreeMap<u64, Point>,
    cells: usize,
}

impl Series {
    /// Begins after `from_ms` and ends with `to_ms`. A step of 0 is the whole interval.
    #[must_use]
    pub fn new(from_ms: u64, to_ms: u64, step_ms: u64, cells_max: usize) -> Self {
        let length = to_ms.saturating_sub(from_ms).max(1);
        let step_ms = if step_ms == 0 { length } else { step_ms.min(length) };
        Self { from_ms, to_ms, step_ms, cells_max: cells_max.max(1), points: BTreeMap::new(), cells: 0 }
    }

    /// The step in use.
    #[must_use]
    pub fn step_ms(&self) -> u64 {
        self.step_ms
    }

    /// Adds a record, in any order, if it ends in the interval. Only replicas count that are
    /// `wanted`.
    pub fn add(&mut self, mut minute: Minute, wanted: impl Fn(&Work) -> bool) {
        if minute.end_ms <= self.from_ms || minute.end_ms > self.to_ms {
            return;
        }
        minute.resources.retain(|_, work| wanted(work));
        let waits = minute.resources.iter().map(|(resource, work)| (*resource, waits(work))).collect();
        let number = (minute.end_ms - 1 - self.from_ms) / self.step_ms;
        let before = self.points.get(&number).map_or(0, Point::cells);
        let point = self.points.entry(number).or_default();
        point.add(&Point { minute, waits });
        self.cells = self.cells + point.cells() - before;
        while self.cells > self.cells_max && self.points.len() > 1 {
            self.double_the_step();
        }
    }

    fn double_the_step(&mut self) {
        self.step_ms = self.step_ms.saturating_mul(2);
        for (number, point) in std::mem::take(&mut self.points) {
            self.points.entry(number / 2).or_default().add(&point);
        }
        self.cells = self.points.values().map(Point::cells).sum();
    }

    /// The points that have records, each with the time at which it begins.
    pub fn points(&self) -> impl Iterator<Item = (u64, &Point)> {
        let begin = |number: u64| self.from_ms.saturating_add(number.saturating_mul(self.step_ms));
        self.points.iter().map(move |(number, point)| (begin(*number), point))
    }
}
