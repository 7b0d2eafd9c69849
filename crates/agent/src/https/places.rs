//! Places of connections, and how long each may be silent (R18).
//!
//! Guarantees
//! - Connections that have proven nothing have few places, in all and for each source. However many
//!   a source opens, others find a place.
//! - A connection that has proven nothing ends [`PROVE_WITHIN`] after its beginning, whatever it
//!   sends meanwhile. One that has ends when it takes or sends nothing for [`IDLE_MAX`].

use super::{IDLE_MAX, PROVE_WITHIN};
use crate::threads::lock;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Connections in all, and of one source.
const PLACES: usize = 256;
const PLACES_OF_SOURCE: usize = 64;
/// Connections that have proven nothing, in all and of one source.
const UNPROVEN: usize = 64;
const UNPROVEN_OF_SOURCE: usize = 16;
/// Bits of an address of IPv6 that one network has.
const NETWORK_BITS: u32 = 64;

/// The part of an address by which senders are told apart: in IPv6 the network, because each host
/// has many addresses.
pub(super) fn source_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = address.to_bits() >> (128 - NETWORK_BITS) << (128 - NETWORK_BITS);
            IpAddr::V6(Ipv6Addr::from_bits(network))
        }
        address => address,
    }
}

#[derive(Clone, Copy, Default)]
struct Taken {
    all: usize,
    unproven: usize,
}

/// Connections by source.
#[derive(Clone, Default)]
pub(super) struct Places(Arc<Mutex<BTreeMap<IpAddr, Taken>>>);

impl Places {
    /// Takes a place for a connection; `None` if there is none.
    pub(super) fn take(&self, from: IpAddr, now: Instant) -> Option<Place> {
        let source = source_of(from);
        let mut taken = lock(&self.0);
        let sum = |count: fn(&Taken) -> usize| taken.values().map(count).sum::<usize>();
        if sum(|taken| taken.all) >= PLACES || sum(|taken| taken.unproven) >= UNPROVEN {
            return None;
        }
        let of_source = taken.get(&source).copied().unwrap_or_default();
        if of_source.all >= PLACES_OF_SOURCE || of_source.unproven >= UNPROVEN_OF_SOURCE {
            return None;
        }
        taken.insert(source, Taken { all: of_source.all + 1, unproven: of_source.unproven + 1 });
        let used = Mutex::new(Used { is_proven: false, open: 0, since: now });
        Some(Place { places: self.clone(), source, used })
    }

    fn change(&self, source: IpAddr, change: impl FnOnce(&mut Taken)) {
        let mut taken = lock(&self.0);
        if let Some(of_source) = taken.get_mut(&source) {
            change(of_source);
        }
        taken.retain(|_, taken| taken.all > 0);
    }
}

struct Used {
    is_proven: bool,
    /// Requests that are being answered.
    open: usize,
    /// Beginning of the connection, or of its silence once it has proven itself.
    since: Instant,
}

/// The place of one connection, until it is dropped.
pub(super) struct Place {
    places: Places,
    source: IpAddr,
    used: Mutex<Used>,
}

impl Place {
    /// When the connection ends if nothing happens until then.
    pub(super) fn deadline(&self) -> Instant {
        let used = lock(&self.used);
        match (used.is_proven, used.open) {
            (false, _) => used.since + PROVE_WITHIN,
            (true, 0) => used.since + IDLE_MAX,
            (true, _) => Instant::now() + IDLE_MAX,
        }
    }

    /// The sender of a request on this connection has proven itself. Returns a guard for the time
    /// of the answer.
    pub(super) fn proven(self: &Arc<Self>) -> Answering {
        let mut used = lock(&self.used);
        if !used.is_proven {
            used.is_proven = true;
            self.places.change(self.source, |taken| taken.unproven -= 1);
        }
        used.open += 1;
        Answering(self.clone())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let was_proven = lock(&self.used).is_proven;
        self.places.change(self.source, |taken| {
            taken.all -= 1;
            taken.unproven -= usize::from(!was_proven);
        });
    }
}

/// A request that is being answered.
pub(super) struct Answering(Arc<Place>);

impl Drop for Answering {
    fn drop(&mut self) {
        let mut used = lock(&self.0.used);
        used.open -= 1;
        used.since = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(last: u16) -> IpAddr {
        let [high, low] = last.to_be_bytes();
        IpAddr::from([10, 0, high, low])
    }

    #[test]
    fn connections_without_a_token_take_their_own_places_only() {
        let (places, now) = (Places::default(), Instant::now());
        let mut held: Vec<Place> = (0..100).filter_map(|_| places.take(host(1), now)).collect();
        assert_eq!(held.len(), UNPROVEN_OF_SOURCE);
        held.extend((2..300).filter_map(|last| places.take(host(last), now)));
        assert_eq!(held.len(), UNPROVEN);
        // One that proves itself makes room for another one.
        let proven: Vec<Arc<Place>> = held.drain(..20).map(Arc::new).collect();
        proven.iter().for_each(|place| drop(place.proven()));
        held.extend((300..400).filter_map(|last| places.take(host(last), now)));
        assert_eq!(held.len() + proven.len(), UNPROVEN + 20);
        drop((held, proven));
        assert!(lock(&places.0).is_empty());
    }

    #[test]
    fn a_source_with_good_tokens_leaves_places_for_others() {
        let (places, now) = (Places::default(), Instant::now());
        let take = |from: IpAddr| {
            let place = Arc::new(places.take(from, now)?);
            drop(place.proven());
            Some(place)
        };
        let of_one: Vec<_> = (0..100).filter_map(|_| take(host(1))).collect();
        assert_eq!(of_one.len(), PLACES_OF_SOURCE);
        let others: Vec<_> = (2..900).filter_map(|last| take(host(last))).collect();
        assert_eq!(of_one.len() + others.len(), PLACES);
    }

    #[test]
    fn a_connection_has_a_limited_time_to_prove_itself_and_to_be_silent() {
        let (places, now) = (Places::default(), Instant::now());
        let place = Arc::new(places.take(host(1), now).unwrap());
        assert_eq!(place.deadline(), now + PROVE_WITHIN);
        let first = place.proven();
        let second = place.proven();
        drop(first);
        assert!(place.deadline() > Instant::now() + IDLE_MAX / 2, "an answer may take long");
        drop(second);
        assert!(place.deadline() <= Instant::now() + IDLE_MAX);
    }

    #[test]
    fn a_network_of_ipv6_is_one_source() {
        let read = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(source_of(read("2001:db8:1:2:3:4:5:6")), read("2001:db8:1:2::"));
        assert_eq!(source_of(read("::ffff:10.0.0.1")), read("10.0.0.1"));
    }
}
