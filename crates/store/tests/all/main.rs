//! All tests of the crate from outside, in one program: each program costs a build and a link.

mod before_copy;
mod clients;
mod copy;
mod decay;
mod fill;
mod grow;
mod holes;
mod in_flight;
mod inspect;
mod kept;
mod lab;
mod model;
mod passes;
mod recovery;
mod rollback;
mod scrub;
mod snapshots;
mod sums;
mod versions;
mod whole;
