//! `inject`: replays a recorded load with real-time burners, after KRASH.
//!
//! A table contains the share to take of each core over time. The burners are those of `hogs` with
//! a period of 10 ms, the resolution of the kernel's load accounting. The vnode gets the rest of a
//! core, times its speed. The last row stays active after the end of the recording.

use std::collections::BTreeMap;

use pinfold_host::Clock;
use pinfold_model::text::count_noun;
use pinfold_model::{PuId, Speed};

use super::burner::{self, BurnSchedule, Burning};
use super::{HEARTBEAT_NS, MethodContext, rt_throttle};
use crate::SpeedError;
use crate::emulation::{CoreAccount, Emulation};
use crate::record::Load;

pub(super) struct Inject<'h> {
    clock: &'h dyn Clock,
    started_ns: u64,
    load: Load,
    // In the order of the table's columns.
    burners: Vec<(PuId, Burning)>,
    speeds: BTreeMap<PuId, Speed>,
    // Share of the time that real-time threads cannot get, in millionths.
    floor: u32,
}

pub(super) fn start<'h>(context: &MethodContext<'h, '_>) -> Result<Inject<'h>, SpeedError> {
    let node = context.node;
    if node.load.is_empty() {
        return Err(context.unavailable("there is no recorded load to replay"));
    }
    if let Some((_, row)) = node.load.iter().find(|(_, row)| row.len() < node.cores.len()) {
        let (columns, cores) = (row.len(), node.cores.len());
        let why = format!(
            "the load was recorded on {}, but the vnode has {cores}",
            count_noun(columns, "core")
        );
        return Err(context.unavailable(&why));
    }
    let floor = rt_throttle::millionths(context.host, &node.pus())?;
    let mut inject = Inject {
        clock: context.clock,
        started_ns: context.clock.now_ns(),
        load: node.load.clone(),
        burners: Vec::new(),
        speeds: BTreeMap::new(),
        floor,
    };
    for (pu, _) in &node.cores {
        inject
            .burners
            .push((*pu, Burning::start(context, *pu, BurnSchedule::in_phase(node.period()))?));
    }
    inject.started_ns = context.clock.now_ns();
    Ok(inject)
}

/// The row that is active at this time after the start, and the time of the next row.
fn row(load: &Load, since_ns: u64) -> (Option<&[u32]>, Option<u64>) {
    let past = load.iter().take_while(|(at, _)| *at <= since_ns).count();
    let next = load.get(past).map(|(at, _)| *at);
    let now = past.checked_sub(1).and_then(|at| load.get(at)).map(|(_, row)| row.as_slice());
    (now, next)
}

/// Share of the time to take, in millionths: the load, plus the part of the rest that exceeds the
/// speed.
fn steal(load: u32, speed: Speed) -> u64 {
    let left = 1_000_000_u64.saturating_sub(u64::from(load));
    1_000_000 - left * u64::from(speed.millionths()) / 1_000_000
}

impl Inject<'_> {
    /// Applies the row that is due. Returns the time of the next one.
    fn play(&self) -> Option<u64> {
        let since = self.clock.now_ns().saturating_sub(self.started_ns);
        let (row, next) = row(&self.load, since);
        let most = 1_000_000_u64.saturating_sub(self.floor.into());
        for (column, (pu, burner)) in self.burners.iter().enumerate() {
            let load = row.and_then(|row| row.get(column)).copied().unwrap_or(0);
            let speed = self.speeds.get(pu).copied().unwrap_or(Speed::FULL);
            burner.set_steal(steal(load, speed).min(most));
            burner.extend_deadline();
        }
        next.map(|next| self.started_ns.saturating_add(next))
    }
}

impl Emulation for Inject<'_> {
    fn set(&mut self, speeds: &[(PuId, Speed)]) -> Result<(), SpeedError> {
        self.speeds = speeds.iter().copied().collect();
        self.play();
        Ok(())
    }

    fn tick(&mut self, now_ns: u64) -> Result<u64, SpeedError> {
        let next = self.play().unwrap_or(u64::MAX);
        Ok(next.min(now_ns.saturating_add(HEARTBEAT_NS)))
    }

    fn observe(&self) -> Result<Vec<CoreAccount>, SpeedError> {
        let wanted_ns = self.clock.now_ns().saturating_sub(self.started_ns);
        let account = |(pu, burner): &(PuId, Burning)| CoreAccount {
            pu: *pu,
            wanted_ns,
            taken_ns: burner.burned_time().0,
            ran_ns: None,
        };
        let mut accounts: Vec<CoreAccount> = self.burners.iter().map(account).collect();
        accounts.sort_by_key(|account| account.pu);
        Ok(accounts)
    }

    fn notes(&self) -> Vec<String> {
        let since = self.clock.now_ns().saturating_sub(self.started_ns);
        let last = self.load.last().map_or(0, |(at, _)| *at);
        let mut notes = vec![match row(&self.load, since).1 {
            Some(_) => {
                format!("{} s of {} s replayed", since / crate::units::S, last / crate::units::S)
            }
            None => "the last row of the load holds".to_owned(),
        }];
        if self.floor > 0 {
            let (kept, most) = (self.floor, 1_000_000_u32.saturating_sub(self.floor));
            let (kept, most) = (rt_throttle::describe(kept), rt_throttle::describe(most));
            notes.push(format!(
                "the kernel reserves {kept} of the time: a load above {most} becomes {most}"
            ));
        }
        notes.extend(self.burners.iter().filter_map(|(pu, burner)| burner.note(*pu)));
        notes
    }

    fn stop(&mut self) -> Result<(), SpeedError> {
        burner::stop(self.burners.iter_mut().map(|(_, burner)| burner));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_holds_until_the_next() {
        let load: Load = vec![(10, vec![1]), (20, vec![2])];
        assert_eq!(row(&load, 0), (None, Some(10)));
        assert_eq!(row(&load, 10), (Some(&[1][..]), Some(20)));
        assert_eq!(row(&load, 25), (Some(&[2][..]), None));
    }

    #[test]
    fn speed_is_of_what_the_load_leaves() {
        let half = Speed::from_millionths(500_000).unwrap();
        assert_eq!(steal(0, Speed::FULL), 0);
        assert_eq!(steal(300_000, Speed::FULL), 300_000);
        assert_eq!(steal(300_000, half), 650_000);
        assert_eq!(steal(1_000_000, half), 1_000_000);
    }
}
