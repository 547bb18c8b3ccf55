//! Distributes the threads of a vnode among the groups of its cores.
//!
//! A new thread is in the group of its creator, so one group would fill up. The balancer checks the
//! groups every few milliseconds, less often if they have not changed for a while, and makes the
//! fewest moves that equalise the numbers of runnable threads. At the end all threads are moved
//! back to the first group. Between two checks, new threads of a burst share one core. With a
//! single core, the only work is to move threads that other programs put into the parent group, so
//! checks are rare.
//!
//! Checks cost CPU time on a CPU that the supervisor may share with a vnode. If they are expensive,
//! with many threads or on a slow host, they become less frequent, so that they take at most a
//! fiftieth of a CPU.

use pinfold_host::{Clock, HostMut, paths, proc_stat};
use pinfold_model::Tid;

use crate::SpeedError;
use crate::cleanup::{list_tasks, numbers};
use crate::units::MS;
use crate::vnode_cgroup::{Part, VnodeCgroup};

/// Default interval of checks while threads come and go.
pub(super) const LOOK_NS: u64 = 5 * MS;
/// After this number of intervals the threads' states are read even if the lists are unchanged.
const RECHECK_INTERVALS: u64 = 4;
/// If the lists are unchanged for this number of intervals, they are read only every `RECHECK_INTERVALS`
/// intervals.
const LONG_CALM_LOOKS: u64 = 20;
/// A check may take at most one `PARTS`-th of the time until the next.
const PARTS: u64 = 50;

/// Threads, each with whether it is runnable.
type RunnableThreads = Vec<(Tid, bool)>;

pub(super) struct ThreadBalancer {
    // The group that contains threads not yet distributed.
    home: Option<String>,
    thread_groups: Vec<ThreadGroup>,
    look_ns: u64,
    // The lists, the time since which they are unchanged, and the time of the last check of states.
    seen: Vec<String>,
    same_since_ns: u64,
    looked_ns: u64,
    pub(super) moved: u64,
}

struct ThreadGroup {
    members: String,
    entries: Vec<String>,
}

impl ThreadBalancer {
    pub(super) fn new(cgroup: &VnodeCgroup, look_ns: u64) -> Self {
        let deck = |part: &Part| {
            let cpuset_unified =
                cgroup.cpuset.as_ref().is_some_and(|group| is_unified(cgroup, group));
            let cpuset = part.cpuset.as_ref().map(|group| members(group, cpuset_unified));
            let cpu = members(&part.cpu, part.unified);
            // The cpuset first, then the CPU controller.
            let mut entries: Vec<String> = cpuset.into_iter().filter(|path| *path != cpu).collect();
            entries.push(cpu.clone());
            ThreadGroup { members: cpu, entries }
        };
        let decks: Vec<ThreadGroup> = cgroup.parts.iter().map(deck).collect();
        let home = cgroup.cpu.as_ref().map(|group| members(group, is_unified(cgroup, group)));
        let home = home.filter(|home| decks.iter().all(|deck| deck.members != *home));
        // With a single core, threads are only created outside of its group if the vnode's group
        // belongs to another program.
        let is_lone = decks.len() <= 1 && !cgroup.is_attached;
        let look_ns = if is_lone { look_ns.saturating_mul(LONG_CALM_LOOKS) } else { look_ns };
        Self {
            home,
            thread_groups: decks,
            look_ns,
            seen: Vec::new(),
            same_since_ns: 0,
            looked_ns: 0,
            moved: 0,
        }
    }

    /// Checks, and moves threads if needed. Returns the time of the next check.
    pub(super) fn look(
        &mut self,
        host: &dyn HostMut,
        clock: &dyn Clock,
        now_ns: u64,
    ) -> Result<u64, SpeedError> {
        if self.home.is_none() && self.thread_groups.len() <= 1 {
            return Ok(u64::MAX);
        }
        let from_ns = clock.spent_ns();
        let next_ns = self.rebalance_if_due(host, now_ns)?;
        let spent_ns = clock.spent_ns().saturating_sub(from_ns);
        Ok(next_ns.max(now_ns.saturating_add(spent_ns.saturating_mul(PARTS))))
    }

    fn rebalance_if_due(&mut self, host: &dyn HostMut, now_ns: u64) -> Result<u64, SpeedError> {
        let files = self.home.iter().chain(self.thread_groups.iter().map(|deck| &deck.members));
        let lists: Vec<String> =
            files.map(|path| host.read_text(path)).collect::<Result<_, _>>()?;
        let is_same = lists == self.seen;
        if !is_same {
            self.same_since_ns = now_ns;
        }
        let calm_ns = self.look_ns.saturating_mul(RECHECK_INTERVALS);
        let long_calm_ns = self.look_ns.saturating_mul(LONG_CALM_LOOKS);
        let is_calm = now_ns.saturating_sub(self.same_since_ns) >= long_calm_ns;
        let next_ns = now_ns.saturating_add(if is_calm { calm_ns } else { self.look_ns });
        if is_same && now_ns.saturating_sub(self.looked_ns) < calm_ns {
            return Ok(next_ns);
        }
        self.looked_ns = now_ns;
        let mut hands: Vec<Vec<Tid>> = lists.iter().map(|list| numbers(list)).collect();
        self.seen = lists;
        let home = if self.home.is_some() { hands.remove(0) } else { Vec::new() };
        // With at most one thread per group there is nothing to equalise.
        if home.is_empty() && hands.iter().all(|hand| hand.len() <= 1) {
            return Ok(next_ns);
        }
        let home = count_wanting(host, home)?;
        let hands = hands
            .into_iter()
            .map(|tids| count_wanting(host, tids))
            .collect::<Result<Vec<_>, _>>()?;
        for (tid, to) in balance_threads(&home, &hands) {
            if let Some(deck) = self.thread_groups.get(to) {
                deck.take(host, tid)?;
                self.moved += 1;
            }
        }
        Ok(next_ns)
    }

    /// Moves all threads back to the first group, where undo expects them.
    pub(super) fn gather(&self, host: &dyn HostMut) -> Result<(), SpeedError> {
        let Some((first, others)) = self.thread_groups.split_first() else { return Ok(()) };
        for deck in others {
            let tids = match list_tasks(host, &deck.members) {
                Err(error) if error.is_gone() => continue,
                answer => answer?,
            };
            for tid in tids {
                first.take(host, tid)?;
            }
        }
        Ok(())
    }
}

fn is_unified(cgroup: &VnodeCgroup, group: &String) -> bool {
    cgroup.unified.contains(group)
}

fn count_wanting(host: &dyn HostMut, tids: Vec<Tid>) -> Result<RunnableThreads, SpeedError> {
    let mut hand = RunnableThreads::new();
    for tid in tids {
        hand.extend(proc_stat::read(host, tid)?.map(|stat| (tid, stat.state == 'R')));
    }
    Ok(hand)
}

fn members(group: &str, unified: bool) -> String {
    if unified { paths::cgroup_threads(group) } else { paths::cgroup_tasks(group) }
}

impl ThreadGroup {
    fn take(&self, host: &dyn HostMut, tid: Tid) -> Result<(), SpeedError> {
        for entry in &self.entries {
            match host.write(entry, tid.to_string().as_bytes()) {
                Err(error) if error.is_gone() && host.exists(entry) => return Ok(()),
                answer => answer?,
            }
        }
        Ok(())
    }
}

/// The moves: undistributed threads go to the group with the fewest, then threads go from the
/// fullest to the emptiest group until the numbers of runnable threads differ by at most one.
fn balance_threads(home: &[(Tid, bool)], hands: &[RunnableThreads]) -> Vec<(Tid, usize)> {
    // Number of runnable threads, and number of threads.
    let mut counts: Vec<(usize, usize)> = hands
        .iter()
        .map(|hand| (hand.iter().filter(|(_, wants)| *wants).count(), hand.len()))
        .collect();
    let mut moves = Vec::new();
    for (tid, wants) in home {
        let least = counts.iter_mut().enumerate().min_by_key(|(_, count)| **count);
        let Some((to, count)) = least else { return moves };
        *count = (count.0 + usize::from(*wants), count.1 + 1);
        moves.push((*tid, to));
    }
    let mut movable: Vec<Vec<Tid>> = hands
        .iter()
        .map(|hand| hand.iter().filter(|(_, wants)| *wants).map(|(tid, _)| *tid).collect())
        .collect();
    loop {
        let wanting = |(at, count): (usize, &(usize, usize))| (count.0, at);
        let most = counts.iter().enumerate().map(wanting).max();
        let least = counts.iter().enumerate().map(wanting).min();
        let (Some((most, from)), Some((least, to))) = (most, least) else { return moves };
        // The youngest thread is moved, because it has the least data in the caches there.
        let Some(tid) = movable.get_mut(from).filter(|_| most - least > 1).and_then(Vec::pop)
        else {
            return moves;
        };
        counts[from].0 -= 1;
        counts[to].0 += 1;
        moves.push((tid, to));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_few_moves_as_make_it_even() {
        // Five threads created in the first group.
        check(&[], &[build_hand(10, 5, 0), build_hand(20, 0, 0)], &[(14, 1), (13, 1)]);
        // A difference of one is accepted.
        check(&[], &[build_hand(10, 3, 0), build_hand(20, 2, 0)], &[]);
        // Sleeping threads do not count and are not moved.
        check(&[], &[build_hand(10, 1, 9), build_hand(20, 1, 0)], &[]);
        check(&[], &[build_hand(10, 2, 9), build_hand(20, 0, 1)], &[(11, 1)]);
        // New threads go to the group with the fewest.
        let home = [(Tid(1), true), (Tid(2), true), (Tid(3), false)];
        check(&home, &[build_hand(10, 1, 0), build_hand(20, 0, 0)], &[(1, 1), (2, 0), (3, 1)]);
        // Three cores.
        check(
            &[],
            &[build_hand(10, 6, 0), build_hand(20, 0, 0), build_hand(30, 0, 0)],
            &[(15, 1), (14, 2), (13, 1), (12, 2)],
        );
        check(&home, &[], &[]);
    }

    fn build_hand(first: u32, wanting: u32, asleep: u32) -> RunnableThreads {
        (first..first + wanting + asleep).map(|tid| (Tid(tid), tid < first + wanting)).collect()
    }

    fn check(home: &[(Tid, bool)], hands: &[RunnableThreads], expected: &[(u32, usize)]) {
        let expected: Vec<_> = expected.iter().map(|(tid, to)| (Tid(*tid), *to)).collect();
        assert_eq!(balance_threads(home, hands), expected, "{home:?} {hands:?}");
    }
}
