//! Runs the methods of all virtual nodes, changes their speeds and reports their status.

mod calibration;
mod other_tasks;

use pinfold_host::{Clock, HostMut, with_causes};
use pinfold_model::{CpuSet, Method, PuId, Speed};

use crate::emulation::{CoreAccount, Emulation};
use crate::node::{Node, ProfileRow};
use crate::recalibration::Renewal;
use crate::record::{self, Ticks};
use crate::vnode_cgroup::VnodeCgroup;
use crate::{HelperSpawner, SpeedError, frequency, methods, profiles};

/// Minimum time over which the current speed is measured.
const WINDOW_NS: u64 = 1_000_000_000;
/// Minimum run time in a window for a measurement of the speed.
const LEAST_RUN_NS: u64 = 2_000_000;

/// Status of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreStatus {
    /// Its CPU.
    pub pu: PuId,
    /// The requested speed.
    pub asked: Speed,
    /// The speed in the last second per CPU time of the vnode, in millionths, by the method's
    /// statistics. `None` if the vnode hardly ran there, has had this speed for less than a second,
    /// the method has no statistics, or its own cost is not known.
    pub achieved_millionths: Option<u32>,
    /// The same by wall clock: the work of the last second divided by that of the time in which the
    /// core was not idle, with the time that other tasks had. `None` also if the method does not
    /// know the CPU time of the vnode.
    pub wall_millionths: Option<u32>,
    /// False if the method's own cost is not known, so that the speed is not measured.
    pub cost_known: bool,
    /// True if the method has statistics and the vnode hardly ran there in the last second.
    pub is_idle: bool,
}

/// Status of a vnode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// Its name.
    pub name: String,
    /// What was attached to it while it was active, if this is the status of that.
    pub attached: Option<String>,
    /// Its method.
    pub method: Method,
    /// Its cores.
    pub cores: Vec<CoreStatus>,
    /// Notes of the method, in words.
    pub notes: Vec<String>,
}

/// The accounts of a method, and the busy time of all CPUs.
struct Observation {
    at_ns: u64,
    accounts: Vec<CoreAccount>,
    ticks: Ticks,
}

impl Observation {
    fn make(host: &dyn HostMut, of: &dyn Emulation, at_ns: u64) -> Result<Self, SpeedError> {
        // Without the kernel's statistics, only the speed by wall clock is missing.
        let ticks = record::ticks(host).unwrap_or_default();
        Ok(Self { at_ns, accounts: of.observe()?, ticks })
    }

    fn of(&self, pu: PuId) -> Option<CoreAccount> {
        self.accounts.iter().find(|one| one.pu == pu).copied()
    }
}

struct Running<'h> {
    node: Node,
    entries: Vec<String>,
    emulation: Box<dyn Emulation + 'h>,
    // What was attached to a vnode that was already active; such a part has no other groups.
    attached: Option<String>,
    // None for a group of another program, in which no process of Pinfold runs repeatedly.
    recalibration: Option<Renewal>,
    started_ns: u64,
    next_ns: u64,
    played: usize,
    // Why its profile ended before its last row.
    refused: Option<String>,
    last: Observation,
    // The one a window earlier; `None` until a window has passed since the last change.
    before: Option<Observation>,
}

/// All running vnodes of a platform.
pub struct VnodeController<'h> {
    host: &'h dyn HostMut,
    clock: &'h dyn Clock,
    spawner: &'h dyn HelperSpawner,
    // All CPUs whose overhead was measured together.
    together: CpuSet,
    running: Vec<Running<'h>>,
}

impl<'h> VnodeController<'h> {
    /// Starts every vnode's method in its groups, which must exist.
    ///
    /// # Errors
    /// [`SpeedError`] of the first vnode that cannot start; the others are stopped again.
    pub fn start(
        host: &'h dyn HostMut,
        clock: &'h dyn Clock,
        spawner: &'h dyn HelperSpawner,
        nodes: Vec<(Node, VnodeCgroup)>,
    ) -> Result<Self, SpeedError> {
        let all: Vec<&Node> = nodes.iter().map(|(node, _)| node).collect();
        frequency::agree(host, &all)?;
        let mut started = Vec::new();
        for (node, cgroup) in nodes {
            let context =
                methods::MethodContext { host, clock, spawner, node: &node, cgroup: &cgroup };
            let emulation = methods::start(&context)?;
            started.push((node, cgroup, emulation));
        }
        let together = calibration::calibrate(spawner, clock, &mut started)?;
        let mut running: Vec<Running<'h>> = Vec::new();
        for (node, cgroup, mut emulation) in started {
            emulation.set(&node.cores)?;
            let now = clock.now_ns();
            let last = Observation::make(host, emulation.as_ref(), now)?;
            running.push(Running {
                node,
                entries: cgroup.entries(),
                attached: None,
                recalibration: (!cgroup.is_attached).then(|| Renewal::new(now)),
                emulation,
                started_ns: now,
                next_ns: now,
                played: 0,
                refused: None,
                last,
                before: None,
            });
        }
        let looked = running.iter().map(|one| (&one.node, one.emulation.as_ref()));
        profiles::check(host, &looked.collect::<Vec<_>>())?;
        Ok(Self { host, clock, spawner, together, running })
    }

    /// Slows one more group at the speed of a running vnode. A method that slows whole CPUs has
    /// nothing to do for it.
    ///
    /// # Errors
    /// [`SpeedError`] if the method cannot start in the group.
    pub fn add(&mut self, name: &str, what: &str, cgroup: &VnodeCgroup) -> Result<(), SpeedError> {
        let of = self.running.iter().find(|one| one.node.name == name);
        let Some(of) = of.filter(|of| match of.node.method {
            Method::Stall | Method::Gov | Method::Lim => true,
            Method::Hogs | Method::Freq | Method::Inject | Method::Quota | Method::Fracas => false,
        }) else {
            return Ok(());
        };
        let (host, clock, spawner, node) = (self.host, self.clock, self.spawner, of.node.clone());
        let context = methods::MethodContext { host, clock, spawner, node: &node, cgroup };
        let mut emulation = methods::start(&context)?;
        emulation.set_costs(&of.emulation.costs())?;
        emulation.set(&node.cores)?;
        let now = clock.now_ns();
        let last = Observation::make(host, emulation.as_ref(), now)?;
        let (started_ns, played) = (of.started_ns, of.played);
        self.running.push(Running {
            node,
            entries: cgroup.entries(),
            attached: Some(what.to_owned()),
            recalibration: None,
            emulation,
            started_ns,
            next_ns: now,
            played,
            refused: None,
            last,
            before: None,
        });
        Ok(())
    }

    /// Forgets what was added in these groups, which have ended.
    pub fn remove(&mut self, cgroup: &VnodeCgroup) {
        let entries = cgroup.entries();
        self.running.retain(|one| one.attached.is_none() || one.entries != entries);
    }

    /// Runs all methods that are due. Returns the time of the next call.
    ///
    /// # Errors
    /// [`SpeedError`] of the first method that failed; the others ran.
    pub fn turn(&mut self, now_ns: u64) -> Result<u64, SpeedError> {
        let mut next = u64::MAX;
        let mut failed = self.play(now_ns).err();
        for one in &mut self.running {
            match one.turn(self.host, now_ns) {
                Ok(at) => next = next.min(at),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed = failed.or(self.renew(now_ns).err());
        failed.map_or(Ok(next), Err)
    }

    /// Applies the profile rows that are due, for all vnodes together, because the speeds of one
    /// frequency domain change at the same time. If the speeds contradict each other, for example
    /// after a manual change, they stay as they are, and the profiles end.
    fn play(&mut self, now_ns: u64) -> Result<(), SpeedError> {
        let due: Vec<Option<ProfileRow>> =
            self.running.iter_mut().map(|one| one.due(now_ns)).collect();
        if due.iter().all(Option::is_none) {
            return Ok(());
        }
        let wanted = self.running.iter().zip(&due);
        let wanted: Vec<Node> = wanted
            .map(|(one, row)| row.map_or(one.node.clone(), |row| one.node.at(row.speed)))
            .collect();
        let agreed = frequency::agree(self.host, &wanted.iter().collect::<Vec<_>>());
        let unwanted = agreed.err().map(|error| with_causes(&error));
        let mut failed = None;
        for ((one, row), wanted) in self.running.iter_mut().zip(due).zip(wanted) {
            let Some(row) = row else { continue };
            let played = match &unwanted {
                Some(why) => {
                    one.refuse(row, why);
                    Ok(())
                }
                None => one.play(row, wanted.cores, self.host, now_ns),
            };
            failed = failed.or(played.err());
        }
        failed.map_or(Ok(()), Err)
    }

    /// Changes the speed of a vnode, on all cores or one.
    ///
    /// # Errors
    /// [`SpeedError::NoVnode`] or [`SpeedError::OutOfReach`]; nothing is changed then.
    pub fn set(&mut self, name: &str, speed: Speed, only: Option<PuId>) -> Result<(), SpeedError> {
        let known: Vec<&str> = self.running.iter().map(|one| one.node.name.as_str()).collect();
        let known = known.join(", ");
        let one = self
            .running
            .iter()
            .find(|one| one.node.name == name)
            .ok_or_else(|| SpeedError::NoVnode { name: name.to_owned(), known })?;
        let mut cores = one.node.cores.clone();
        for (pu, at) in &mut cores {
            if only.is_none_or(|only| only == *pu) {
                *at = speed;
            }
        }
        let wanted = Node { cores, ..one.node.clone() };
        let others = self.running.iter().filter(|one| one.node.name != name);
        let all: Vec<&Node> = others.map(|one| &one.node).chain([&wanted]).collect();
        frequency::agree(self.host, &all)?;
        for one in self.running.iter_mut().filter(|one| one.node.name == name) {
            one.emulation.set(&wanted.cores)?;
            one.node.cores.clone_from(&wanted.cores);
            one.begin(self.host, self.clock.now_ns())?;
            // From now on the caller controls the speed.
            if let Some(row) = one.node.profile.get(one.played).copied() {
                one.refuse(row, "its speed was set by a command");
            }
        }
        Ok(())
    }

    /// Status of all vnodes.
    ///
    /// # Errors
    /// [`SpeedError::Host`] if statistics cannot be read.
    pub fn status(&self) -> Result<Vec<NodeStatus>, SpeedError> {
        self.running.iter().map(|one| one.status(self.host, self.clock.now_ns())).collect()
    }

    /// Stops all methods.
    ///
    /// # Errors
    /// [`SpeedError`] of the first that failed; all are tried.
    pub fn stop(&mut self) -> Result<(), SpeedError> {
        let mut failed = None;
        for one in &mut self.running {
            // Its groups can only be removed when no reference run is in them.
            one.recalibration = None;
            failed = failed.or(one.emulation.stop().err());
        }
        failed.map_or(Ok(()), Err)
    }
}

impl Running<'_> {
    /// Restarts the measurement after a change of speeds.
    fn begin(&mut self, host: &dyn HostMut, now_ns: u64) -> Result<(), SpeedError> {
        self.last = Observation::make(host, self.emulation.as_ref(), now_ns)?;
        self.before = None;
        self.recalibration.iter_mut().for_each(Renewal::interrupt);
        Ok(())
    }

    fn turn(&mut self, host: &dyn HostMut, now_ns: u64) -> Result<u64, SpeedError> {
        if now_ns >= self.next_ns {
            self.next_ns = self.emulation.tick(now_ns)?;
        }
        if now_ns.saturating_sub(self.last.at_ns) >= WINDOW_NS {
            let now = Observation::make(host, self.emulation.as_ref(), now_ns)?;
            self.before = Some(std::mem::replace(&mut self.last, now));
        }
        let row = self.node.profile.get(self.played);
        let due = row.map_or(u64::MAX, |row| self.started_ns.saturating_add(row.at_ns));
        Ok(self.next_ns.min(due))
    }

    /// The profile row that starts now, if any; the last of several.
    fn due(&mut self, now_ns: u64) -> Option<ProfileRow> {
        let since = now_ns.saturating_sub(self.started_ns);
        let past = self.node.profile.iter().take_while(|row| row.at_ns <= since).count();
        let row = *self.node.profile.get(past.checked_sub(1)?)?;
        (std::mem::replace(&mut self.played, past) < past).then_some(row)
    }

    /// A speed that is out of reach is reported and ends the profile, not the platform.
    fn play(
        &mut self,
        row: ProfileRow,
        cores: Vec<(PuId, Speed)>,
        host: &dyn HostMut,
        now_ns: u64,
    ) -> Result<(), SpeedError> {
        match self.emulation.set(&cores) {
            Ok(()) => {
                self.node.cores = cores;
                self.begin(host, now_ns)
            }
            Err(error @ SpeedError::OutOfReach { .. }) => {
                self.refuse(row, &with_causes(&error));
                Ok(())
            }
            Err(error) => Err(error.in_row(&self.node.profile_file, row.line)),
        }
    }

    fn refuse(&mut self, row: ProfileRow, why: &str) {
        let line = row.line;
        self.refused = Some(format!("its profile ended before line {line}: {why}"));
        self.node.profile.truncate(self.played);
    }

    fn status(&self, host: &dyn HostMut, now_ns: u64) -> Result<NodeStatus, SpeedError> {
        let now = Observation::make(host, self.emulation.as_ref(), now_ns)?;
        let uncalibrated = self.emulation.uncalibrated_cpus();
        let mut notes: Vec<String> =
            self.emulation.notes().into_iter().chain(self.refused.clone()).collect();
        let mut cores = Vec::with_capacity(self.node.cores.len());
        for (pu, asked) in &self.node.cores {
            let cost_known = !uncalibrated.contains(*pu);
            let mut core = CoreStatus {
                pu: *pu,
                asked: *asked,
                achieved_millionths: None,
                wall_millionths: None,
                cost_known,
                is_idle: false,
            };
            if let Some(before) = &self.before
                && let Some((earlier, later)) = before.of(*pu).zip(now.of(*pu))
            {
                let span_ns = now.at_ns.saturating_sub(before.at_ns);
                let busy = before.ticks.get(pu).zip(now.ticks.get(pu));
                let busy = busy.map(|(then, now)| record::share(*then, *now));
                let others_ns = busy.and_then(|busy| other_tasks_ns(earlier, later, busy, span_ns));
                let got = measured_speed(earlier, later, 0);
                core.is_idle = got.is_none();
                core.achieved_millionths = got.filter(|_| cost_known);
                core.wall_millionths = others_ns
                    .filter(|_| cost_known)
                    .and_then(|ns| self::measured_speed(earlier, later, ns));
                if others_ns.is_none_or(|ns| ns > span_ns / 20) {
                    notes.extend(other_tasks::describe(host, *pu, &self.entries));
                }
            }
            cores.push(core);
        }
        let (name, attached) = (self.node.name.clone(), self.attached.clone());
        Ok(NodeStatus { name, attached, method: self.node.method, cores, notes })
    }
}

/// The time that other tasks had on a core in a window (ns); `None` if the method does not know
/// the CPU time of the vnode.
fn other_tasks_ns(
    then: CoreAccount,
    now: CoreAccount,
    busy_millionths: u32,
    span_ns: u64,
) -> Option<u64> {
    let ran_ns = now.ran_ns?.checked_sub(then.ran_ns?)?;
    let busy_ns = u128::from(span_ns) * u128::from(busy_millionths) / 1_000_000;
    let others_ns = u64::try_from(busy_ns).ok()?.saturating_sub(ran_ns);
    // The kernel counts the busy time in ticks.
    Some(if others_ns < span_ns / 50 { 0 } else { others_ns })
}

/// The speed between two accounts, in millionths, with this time of other tasks.
fn measured_speed(then: CoreAccount, now: CoreAccount, others_ns: u64) -> Option<u32> {
    let wanted = now.wanted_ns.checked_sub(then.wanted_ns)?;
    let taken = now.taken_ns.saturating_sub(then.taken_ns).min(wanted);
    if wanted < LEAST_RUN_NS {
        return None;
    }
    let span = u128::from(wanted) + u128::from(others_ns);
    u32::try_from(u128::from(wanted - taken) * 1_000_000 / span).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_speed_by_wall_clock_includes_the_time_of_other_tasks() {
        // A stall is CPU time of the vnode: alone, and next to three busy loops.
        check(account(1_000_000_000, 600_000_000, 1_000_000_000), 1_000_000, (400_000, 400_000));
        check(account(250_000_000, 150_000_000, 250_000_000), 1_000_000, (400_000, 100_000));
        // It slept most of the time, and no other task ran.
        check(account(100_000_000, 60_000_000, 100_000_000), 105_000, (400_000, 400_000));
        // A quota takes time in which the core is idle.
        check(account(1_000_000_000, 600_000_000, 400_000_000), 400_000, (400_000, 400_000));
    }

    fn check(now: CoreAccount, busy: u32, expected: (u32, u32)) {
        let before = account(0, 0, 0);
        let others_ns = other_tasks_ns(before, now, busy, 1_000_000_000).unwrap();
        let speeds = (
            measured_speed(before, now, 0).unwrap(),
            measured_speed(before, now, others_ns).unwrap(),
        );
        assert_eq!(speeds, expected, "{now:?} {busy}");
    }

    fn account(wanted_ns: u64, taken_ns: u64, ran_ns: u64) -> CoreAccount {
        CoreAccount { pu: PuId(1), wanted_ns, taken_ns, ran_ns: Some(ran_ns) }
    }
}
