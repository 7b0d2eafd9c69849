//! Where services run that are tied to one another: with one another, or apart.
//!
//! [`decide`] looks at all services of a tied set together. Every node computes the same answer
//! from the same state. A set of services that are with one another is a *group*, and has one seat.
//!
//! Guarantees
//! - No two services that are to be apart have one seat, and all seats of a group are its node
//!   ([`Ask::with`], [`Ask::apart`]). A service has a seat only on one of its own nodes
//!   ([`Ask::nodes`]). If that cannot be, a service has no seat.
//! - A group leaves the node where it runs only if an operator wants it elsewhere, if more services
//!   run for it, or if it prefers another node that is free ([`Ask::want`]).
//! - The answer, carried out, is the next answer, or comes to that in as many rounds as there are
//!   groups.
//! - It takes at most a number of steps that grows with the square of the number of services, times
//!   the number of nodes. The choice is not always the best one: to find that is hard (it is the
//!   colouring of a graph). For services that are all apart from one another it is.
//!
//! In this order:
//! 1. Groups keep their places: first those that must not move, then those that an operator moved
//!    last, then those that run, then by name.
//! 2. Each group without a place takes a free one. If there is none, others make room if they have
//!    somewhere to go.
//! 3. Groups that prefer another node go there if it is free.

use mainstay_types::{NodeId, reach};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Most services that may be tied to one another.
pub const TIED_MAX: usize = 32;

/// A service, and what is known of where it could run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ask {
    pub name: String,
    /// The node of its primary.
    pub at: Option<NodeId>,
    /// Whether the service is being started there or runs.
    pub runs: bool,
    /// Nodes on which it can run, best first.
    pub nodes: Vec<NodeId>,
    /// The node that it would have without the others.
    pub want: Option<NodeId>,
    /// The node that an operator wants it on.
    pub wish: Option<NodeId>,
    /// Number of the last move that an operator asked for.
    pub moved: u64,
    /// The service is not to be moved.
    pub fixed: bool,
    /// The service is to run. If not, it only shows those that are with it where it is.
    pub wanted: bool,
    /// The service that it is with, by its place in the list.
    pub with: Option<usize>,
    /// Services that it is apart from, by their places in the list.
    pub apart: BTreeSet<usize>,
}

#[derive(Debug)]
struct Group {
    /// Members that are to run.
    members: Vec<usize>,
    /// Nodes that it could have, best first, each with the number of members that cannot run there.
    nodes: Vec<(NodeId, usize)>,
    keeps: Option<NodeId>,
    want: Option<NodeId>,
    /// The place was wished for by an operator, or must not change.
    firm: bool,
    apart: BTreeSet<usize>,
}

impl Group {
    fn lack(&self, node: NodeId) -> Option<usize> {
        self.nodes.iter().find(|(other, _)| *other == node).map(|(_, lack)| *lack)
    }
}

/// The service at the end of the chain of those that `ask` is with.
fn root(asks: &[Ask], ask: usize) -> usize {
    let mut at = ask;
    // A cycle is refused before it gets here.
    for _ in 0..asks.len() {
        match asks[at].with.filter(|with| *with < asks.len()) {
            Some(with) => at = with,
            None => break,
        }
    }
    at
}

fn group_of(asks: &[Ask], top: usize, members: Vec<usize>, apart: BTreeSet<usize>) -> Group {
    let head = &asks[top];
    let places: Vec<NodeId> = match head.wanted {
        true => head.nodes.clone(),
        // A stopped service moves nothing, and shows the others where it is.
        false => head.at.into_iter().collect(),
    };
    let lacking = |node: NodeId| members.iter().filter(|of| !asks[**of].nodes.contains(&node)).count();
    let mut nodes: Vec<(NodeId, usize)> = places.into_iter().map(|node| (node, lacking(node))).collect();
    nodes.retain(|(_, lack)| *lack < members.len());
    let is_there = |node: &NodeId| nodes.iter().any(|(other, _)| other == node);
    let fixed = members.iter().chain([&top]).any(|of| asks[*of].fixed);
    let wish = [top].iter().chain(&members).find_map(|of| asks[*of].wish).filter(is_there);
    let fewest = nodes.iter().map(|(_, lack)| *lack).min().unwrap_or(0);
    let at = head.at.filter(|at| nodes.iter().any(|(node, lack)| node == at && (*lack == fewest || fixed)));
    let keeps = if fixed { at } else { wish.or(at) };
    let want = head.want.filter(is_there);
    nodes.sort_by_key(|(node, lack)| (*lack, Some(*node) != want));
    Group { members, nodes, keeps, want, firm: fixed || wish.is_some(), apart }
}

/// The seats of a set of groups while they are being decided.
struct Seats<'a> {
    groups: &'a [Group],
    at: Vec<Option<NodeId>>,
    /// Steps taken, for the test that bounds them.
    steps: usize,
}

impl Seats<'_> {
    /// Groups that have `node` and are apart from `group`.
    fn rivals(&self, group: usize, node: NodeId) -> Vec<usize> {
        self.groups[group].apart.iter().copied().filter(|other| self.at[*other] == Some(node)).collect()
    }

    fn is_free(&mut self, group: usize, node: NodeId) -> bool {
        self.steps += 1;
        self.rivals(group, node).is_empty()
    }

    /// Finds a place for a group: a free one, or one that others give up because they have another.
    fn place(&mut self, group: usize, asked: &mut BTreeSet<usize>) -> bool {
        let nodes: Vec<NodeId> = self.groups[group].nodes.iter().map(|(node, _)| *node).collect();
        if let Some(free) = nodes.iter().copied().find(|node| self.is_free(group, *node)) {
            self.at[group] = Some(free);
            return true;
        }
        for node in nodes {
            let rivals = self.rivals(group, node);
            if rivals.iter().any(|rival| self.groups[*rival].firm || asked.contains(rival)) {
                continue;
            }
            let before = self.at.clone();
            self.at[group] = Some(node);
            rivals.iter().for_each(|rival| self.at[*rival] = None);
            asked.extend(&rivals);
            if rivals.iter().all(|rival| self.place(*rival, asked)) {
                reach!("control: a service makes room for another one");
                return true;
            }
            self.at = before;
        }
        false
    }
}

/// The seat of each service, in the order of `asks`; see the top of this file.
#[must_use]
pub fn decide(asks: &[Ask]) -> Vec<Option<NodeId>> {
    decide_counted(asks).0
}

fn decide_counted(asks: &[Ask]) -> (Vec<Option<NodeId>>, usize) {
    let roots: Vec<usize> = (0..asks.len()).map(|ask| root(asks, ask)).collect();
    let mut trees: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (ask, top) in roots.iter().enumerate().filter(|(ask, _)| asks[*ask].wanted) {
        trees.entry(*top).or_default().push(ask);
    }
    let precedence = |(top, members): &(usize, Vec<usize>)| {
        let all = || members.iter().chain([top]).map(|of| &asks[*of]);
        let fixed = all().any(|ask| ask.fixed);
        let moved = all().map(|ask| ask.moved).max();
        (!fixed, Reverse(moved), !all().any(|ask| ask.runs), asks[*top].name.clone())
    };
    let mut trees: Vec<(usize, Vec<usize>)> = trees.into_iter().collect();
    trees.sort_by_key(precedence);
    let place_of: BTreeMap<usize, usize> = trees
        .iter()
        .enumerate()
        .flat_map(|(group, (_, members))| members.iter().map(move |of| (*of, group)))
        .collect();
    let mut apart: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); trees.len()];
    for (ask, other) in
        asks.iter().enumerate().flat_map(|(n, ask)| ask.apart.iter().map(move |other| (n, *other)))
    {
        // A constraint in one file binds both services.
        if let (Some(one), Some(two)) = (place_of.get(&ask), place_of.get(&other))
            && one != two
        {
            apart[*one].insert(*two);
            apart[*two].insert(*one);
        }
    }
    let groups: Vec<Group> = trees
        .into_iter()
        .zip(apart)
        .map(|((top, members), apart)| group_of(asks, top, members, apart))
        .collect();
    let mut seats = Seats { groups: &groups, at: vec![None; groups.len()], steps: 0 };
    for (n, group) in groups.iter().enumerate() {
        if let Some(node) = group.keeps
            && seats.is_free(n, node)
        {
            seats.at[n] = Some(node);
        }
    }
    for n in 0..groups.len() {
        if seats.at[n].is_none() {
            seats.place(n, &mut BTreeSet::from([n]));
        }
    }
    for (n, group) in groups.iter().enumerate() {
        let Some((want, now)) = group.want.zip(seats.at[n]).filter(|_| !group.firm) else { continue };
        if want != now && group.lack(want) <= group.lack(now) && seats.is_free(n, want) {
            reach!("control: a tied service goes to a node that it prefers");
            seats.at[n] = Some(want);
        }
    }
    let mut answer = vec![None; asks.len()];
    for (n, group) in groups.iter().enumerate() {
        for of in &group.members {
            answer[*of] = seats.at[n].filter(|node| asks[*of].nodes.contains(node));
        }
    }
    (answer, seats.steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    const N1: NodeId = NodeId(1);
    const N2: NodeId = NodeId(2);
    const N3: NodeId = NodeId(3);

    fn ask(name: &str, at: Option<NodeId>, nodes: &[NodeId]) -> Ask {
        let want = at.filter(|at| nodes.contains(at)).or(nodes.first().copied());
        Ask {
            name: name.into(),
            at,
            runs: at.is_some(),
            nodes: nodes.to_vec(),
            want,
            wanted: true,
            ..Ask::default()
        }
    }

    fn apart(mut ask: Ask, others: &[usize]) -> Ask {
        ask.apart = others.iter().copied().collect();
        ask
    }

    #[test]
    fn services_that_are_apart_get_different_nodes_and_the_one_that_runs_stays() {
        let asks = [ask("a", None, &[N1, N2]), apart(ask("b", Some(N1), &[N1, N2]), &[0])];
        assert_eq!(decide(&asks), [Some(N2), Some(N1)]);
        // Both are there: the one that runs stays, and the first by name if both do.
        let asks = [ask("a", Some(N1), &[N1, N2]), apart(ask("b", Some(N1), &[N1, N2]), &[0])];
        assert_eq!(decide(&asks), [Some(N1), Some(N2)]);
        let mut asks = asks;
        asks[0].runs = false;
        assert_eq!(decide(&asks), [Some(N2), Some(N1)]);
        // There is one node for both.
        let asks = [ask("a", Some(N1), &[N1]), apart(ask("b", Some(N1), &[N1]), &[0])];
        assert_eq!(decide(&asks), [Some(N1), None]);
    }

    #[test]
    fn a_service_makes_room_for_one_that_has_nowhere_else_to_go() {
        let asks = [ask("a", Some(N1), &[N1, N2]), apart(ask("b", None, &[N1]), &[0])];
        assert_eq!(decide(&asks), [Some(N2), Some(N1)]);
        // Over several services.
        let asks = [
            ask("a", Some(N1), &[N1, N2]),
            apart(ask("b", Some(N2), &[N2, N3]), &[0]),
            apart(ask("c", None, &[N1]), &[0, 1]),
        ];
        assert_eq!(decide(&asks), [Some(N2), Some(N3), Some(N1)]);
        // Not for one that could go elsewhere, and not if an operator wants it there.
        let asks = [ask("a", Some(N1), &[N1, N2]), apart(ask("b", None, &[N1, N3]), &[0])];
        assert_eq!(decide(&asks), [Some(N1), Some(N3)]);
        let mut asks = [ask("a", Some(N1), &[N1, N2]), apart(ask("b", None, &[N1]), &[0])];
        asks[0].wish = Some(N1);
        assert_eq!(decide(&asks), [Some(N1), None]);
    }

    #[test]
    fn a_service_is_where_the_one_is_that_it_is_with() {
        let with = |mut ask: Ask| {
            ask.with = Some(0);
            ask
        };
        let asks = [ask("db", Some(N2), &[N1, N2]), with(ask("app", Some(N1), &[N1, N2]))];
        assert_eq!(decide(&asks), [Some(N2), Some(N2)]);
        // Together they go to where both can run.
        let asks = [ask("db", Some(N2), &[N2, N1]), with(ask("app", Some(N1), &[N1]))];
        assert_eq!(decide(&asks), [Some(N1), Some(N1)]);
        let asks = [ask("db", Some(N2), &[N2]), with(ask("app", Some(N1), &[N1]))];
        assert_eq!(decide(&asks), [Some(N2), None]);
        // A stopped one stays where it is.
        let mut asks = [ask("db", Some(N2), &[N2, N1]), with(ask("app", Some(N1), &[N1]))];
        asks[0].wanted = false;
        assert_eq!(decide(&asks), [None, None]);
    }

    #[test]
    fn an_operators_wish_displaces_others_and_stays_after_it_is_fulfilled() {
        let mut asks = [ask("a", Some(N1), &[N1, N2]), apart(ask("b", Some(N2), &[N1, N2]), &[0])];
        asks[1].wish = Some(N1);
        asks[1].moved = 7;
        assert_eq!(decide(&asks), [Some(N2), Some(N1)]);
        // The one has got there, and the other has not left yet.
        asks[1] = Ask { wish: None, at: Some(N1), want: Some(N1), ..asks[1].clone() };
        assert_eq!(decide(&asks), [Some(N2), Some(N1)]);
    }

    #[test]
    fn a_preference_waits_until_its_node_is_free() {
        let mut asks = [ask("a", Some(N2), &[N1, N2]), apart(ask("b", Some(N1), &[N1, N2]), &[0])];
        asks[0].want = Some(N1);
        assert_eq!(decide(&asks), [Some(N2), Some(N1)]);
        asks[1].nodes = vec![N3];
        assert_eq!(decide(&asks), [Some(N1), Some(N3)]);
    }

    /// A source of numbers for the sets below: a test of the gate has the same ones in every run.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, end: usize) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((self.0 >> 33) as usize) % end
        }
    }

    fn random(numbers: &mut Numbers) -> Vec<Ask> {
        let (count, nodes) = (1 + numbers.below(7), 1 + numbers.below(4) as u32);
        let mut asks: Vec<Ask> = Vec::new();
        for n in 0..count {
            let mut can: Vec<NodeId> = (1..=nodes).map(NodeId).filter(|_| numbers.below(4) > 0).collect();
            if numbers.below(2) == 0 {
                can.reverse();
            }
            let at = Some(NodeId(1 + numbers.below(nodes as usize) as u32)).filter(|_| numbers.below(4) > 0);
            let mut one = ask(&format!("s{n}"), at, &can);
            one.runs = at.is_some_and(|at| can.contains(&at)) && numbers.below(3) > 0;
            one.wanted = numbers.below(6) > 0;
            if numbers.below(4) == 0 {
                one.want = can.first().copied();
            }
            one.with = (n > 0 && numbers.below(4) == 0).then(|| numbers.below(n));
            // An order is one for the whole group.
            if one.with.is_none() && numbers.below(8) == 0 && !can.is_empty() {
                one.wish = Some(can[numbers.below(can.len())]);
                one.moved = 1 + numbers.below(9) as u64;
            }
            asks.push(one);
        }
        for n in 0..count {
            let other = numbers.below(count);
            if numbers.below(2) == 0 && root(&asks, n) != root(&asks, other) {
                asks[n].apart.insert(other);
            }
        }
        asks
    }

    fn check(asks: &[Ask], seats: &[Option<NodeId>]) {
        for (n, (one, seat)) in asks.iter().zip(seats).enumerate() {
            let Some(seat) = *seat else { continue };
            assert!(one.wanted && one.nodes.contains(&seat), "{}: {asks:?} {seats:?}", one.name);
            for other in &one.apart {
                assert_ne!(seats[*other], Some(seat), "{} apart: {asks:?} {seats:?}", one.name);
            }
            let top = root(asks, n);
            let lead = if asks[top].wanted { seats[top] } else { asks[top].at };
            assert!(lead.is_none_or(|lead| lead == seat), "{} with: {asks:?} {seats:?}", one.name);
        }
    }

    /// Whether a group is where all its members can run and nothing draws it elsewhere.
    fn is_content(asks: &[Ask]) -> bool {
        let seats: Vec<Option<NodeId>> = asks.iter().map(|one| one.at.filter(|_| one.wanted)).collect();
        let settled = asks.iter().enumerate().all(|(n, one)| {
            let top = root(asks, n);
            let placed = one.at.is_some_and(|at| one.nodes.contains(&at)) && one.want == one.at;
            !one.wanted || placed && one.wish.is_none() && asks[top].at == one.at
        });
        let apart =
            |n: usize, other: usize| !asks[other].wanted || seats[n].is_none() || seats[n] != seats[other];
        settled && asks.iter().enumerate().all(|(n, one)| one.apart.iter().all(|other| apart(n, *other)))
    }

    #[test]
    fn constraints_hold_nothing_moves_without_gain_and_it_settles() {
        let mut numbers = Numbers(35);
        let (mut content, mut moved) = (0, 0);
        for _ in 0..20_000 {
            let mut asks = random(&mut numbers);
            let (seats, steps) = decide_counted(&asks);
            check(&asks, &seats);
            let bound = 4 * (asks.len() + 1) * (asks.len() + 1) * 5;
            assert!(steps <= bound, "{steps} steps, {bound} allowed: {asks:?}");
            if is_content(&asks) {
                content += 1;
                let there: Vec<Option<NodeId>> =
                    asks.iter().map(|one| one.at.filter(|_| one.wanted)).collect();
                assert_eq!(seats, there, "moved without gain: {asks:?}");
            }
            // Carry it out, again and again: it has to come to rest.
            let mut last = seats;
            for round in 0.. {
                let wished = asks.iter().any(|one| one.wish.is_some());
                for (one, seat) in asks.iter_mut().zip(&last) {
                    if let Some(seat) = *seat {
                        moved += usize::from(one.at != Some(seat));
                        one.wish = one.wish.filter(|wish| *wish != seat);
                        one.at = Some(seat);
                        one.runs = true;
                    }
                }
                let next = decide(&asks);
                check(&asks, &next);
                let seated = |seats: &[Option<NodeId>]| seats.iter().flatten().count();
                assert!(wished || seated(&next) >= seated(&last), "fewer run: {asks:?} {last:?} {next:?}");
                if next == last {
                    break;
                }
                last = next;
                assert!(round <= asks.len(), "it does not settle: {asks:?}");
            }
        }
        assert!(content > 200 && moved > 2000, "{content} {moved}");
    }
}
