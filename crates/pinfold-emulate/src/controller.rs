//! Runs the methods of all virtual nodes, changes their speeds and reports their status.

mod calibration;

use pinfold_host::{Clock, HostMut, with_causes};
use pinfold_model::{CpuSet, Method, PuId, Speed};

use crate::emulation::{CoreAccount, Emulation};
use crate::node::{Node, ProfileRow};
use crate::renewal::Renewal;
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
    /// The speed in the last second in millionths, by the method's statistics. `None` if the vnode
    /// hardly ran there, has had this speed for less than a second, or the method has no
    /// statistics.
    pub got_millionths: Option<u32>,
    /// False if the method's own cost is not known: the achieved speed is then lower than
    /// `got_millionths`.
    pub cost_known: bool,
    /// True if the method has statistics and the vnode hardly ran there in the last second.
    pub is_idle: bool,
}

/// Status of a vnode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// Its name.
    pub name: String,
    /// Its method.
    pub method: Method,
    /// Its cores.
    pub cores: Vec<CoreStatus>,
    /// Notes of the method, in words.
    pub notes: Vec<String>,
}

struct Running<'h> {
    node: Node,
    entries: Vec<String>,
    emulation: Box<dyn Emulation + 'h>,
    // None for a group of another program, in which no process of Pinfold runs repeatedly.
    renewal: Option<Renewal>,
    started_ns: u64,
    next_ns: u64,
    played: usize,
    // Why its profile ended before its last row.
    refused: Option<String>,
    // Time of the last accounts, and the accounts.
    last: (u64, Vec<CoreAccount>),
    // The accounts one window earlier; empty until a window has passed since the last change.
    before: Vec<CoreAccount>,
}

/// All running vnodes of a platform.
pub struct VnodeController<'h> {
    host: &'h dyn HostMut,
    clock: &'h dyn Clock,
    outside: &'h dyn HelperSpawner,
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
        outside: &'h dyn HelperSpawner,
        nodes: Vec<(Node, VnodeCgroup)>,
    ) -> Result<Self, SpeedError> {
        let all: Vec<&Node> = nodes.iter().map(|(node, _)| node).collect();
        frequency::agree(host, &all)?;
        let mut started = Vec::new();
        for (node, enclosure) in nodes {
            let ground =
                methods::MethodContext { host, clock, outside, node: &node, enclosure: &enclosure };
            let emulation = methods::start(&ground)?;
            started.push((node, enclosure, emulation));
        }
        let together = calibration::calibrate((outside, clock), &mut started)?;
        let mut running: Vec<Running<'h>> = Vec::new();
        for (node, enclosure, mut emulation) in started {
            emulation.set(&node.cores)?;
            let now = clock.now_ns();
            let accounts = emulation.observe()?;
            running.push(Running {
                node,
                entries: enclosure.entries(),
                renewal: (!enclosure.is_attached).then(|| Renewal::new(now)),
                emulation,
                started_ns: now,
                next_ns: now,
                played: 0,
                refused: None,
                last: (now, accounts),
                before: Vec::new(),
            });
        }
        let looked = running.iter().map(|one| (&one.node, one.emulation.as_ref()));
        profiles::check(host, &looked.collect::<Vec<_>>())?;
        Ok(Self { host, clock, outside, together, running })
    }

    /// Runs all methods that are due. Returns the time of the next call.
    ///
    /// # Errors
    /// [`SpeedError`] of the first method that failed; the others ran.
    pub fn turn(&mut self, now_ns: u64) -> Result<u64, SpeedError> {
        let mut next = u64::MAX;
        let mut failed = self.play(now_ns).err();
        for one in &mut self.running {
            match one.turn(now_ns) {
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
                None => one.play((row, wanted.cores), now_ns),
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
        let missing = || SpeedError::NoVnode { name: name.to_owned(), known };
        let one = self.running.iter().find(|one| one.node.name == name).ok_or_else(missing)?;
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
        let Some(one) = self.running.iter_mut().find(|one| one.node.name == name) else {
            return Ok(());
        };
        one.emulation.set(&wanted.cores)?;
        one.node.cores = wanted.cores;
        one.begin(self.clock.now_ns())?;
        // From now on the caller controls the speed.
        one.node.profile.truncate(one.played);
        Ok(())
    }

    /// Status of all vnodes.
    ///
    /// # Errors
    /// [`SpeedError::Host`] if statistics cannot be read.
    pub fn status(&self) -> Result<Vec<NodeStatus>, SpeedError> {
        self.running.iter().map(Running::status).collect()
    }

    /// Stops all methods.
    ///
    /// # Errors
    /// [`SpeedError`] of the first that failed; all are tried.
    pub fn stop(&mut self) -> Result<(), SpeedError> {
        let mut failed = None;
        for one in &mut self.running {
            // Its groups can only be removed when no reference run is in them.
            one.renewal = None;
            failed = failed.or(one.emulation.stop().err());
        }
        failed.map_or(Ok(()), Err)
    }
}

impl Running<'_> {
    /// Restarts the measurement after a change of speeds.
    fn begin(&mut self, now_ns: u64) -> Result<(), SpeedError> {
        self.last = (now_ns, self.emulation.observe()?);
        self.before.clear();
        self.renewal.iter_mut().for_each(Renewal::interrupt);
        Ok(())
    }

    fn turn(&mut self, now_ns: u64) -> Result<u64, SpeedError> {
        if now_ns >= self.next_ns {
            self.next_ns = self.emulation.turn(now_ns)?;
        }
        if now_ns.saturating_sub(self.last.0) >= WINDOW_NS {
            let accounts = self.emulation.observe()?;
            (_, self.before) = std::mem::replace(&mut self.last, (now_ns, accounts));
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
        (row, cores): (ProfileRow, Vec<(PuId, Speed)>),
        now_ns: u64,
    ) -> Result<(), SpeedError> {
        match self.emulation.set(&cores) {
            Ok(()) => {
                self.node.cores = cores;
                self.begin(now_ns)
            }
            Err(error @ SpeedError::OutOfReach { .. }) => {
                self.refuse(row, &with_causes(&error));
                Ok(())
            }
            Err(error) => Err(error.in_row(row.line)),
        }
    }

    fn refuse(&mut self, row: ProfileRow, why: &str) {
        let line = row.line;
        self.refused = Some(format!("its profile ended before line {line}: {why}"));
        self.node.profile.truncate(self.played);
    }

    fn status(&self) -> Result<NodeStatus, SpeedError> {
        let now = self.emulation.observe()?;
        let uncalibrated = self.emulation.uncalibrated();
        let core = |(pu, asked): &(PuId, Speed)| {
            let of = |accounts: &[CoreAccount]| accounts.iter().find(|one| one.pu == *pu).copied();
            let accounts = of(&self.before).zip(of(&now));
            let got = accounts.and_then(|(then, now)| got(then, now));
            let is_idle = accounts.is_some() && got.is_none();
            let cost_known = !uncalibrated.contains(*pu);
            CoreStatus { pu: *pu, asked: *asked, got_millionths: got, cost_known, is_idle }
        };
        Ok(NodeStatus {
            name: self.node.name.clone(),
            method: self.node.method,
            cores: self.node.cores.iter().map(core).collect(),
            notes: self.emulation.notes().into_iter().chain(self.refused.clone()).collect(),
        })
    }
}

fn got(then: CoreAccount, now: CoreAccount) -> Option<u32> {
    let wanted = now.wanted_ns.checked_sub(then.wanted_ns)?;
    let taken = now.taken_ns.saturating_sub(then.taken_ns).min(wanted);
    if wanted < LEAST_RUN_NS {
        return None;
    }
    u32::try_from(u128::from(wanted - taken) * 1_000_000 / u128::from(wanted)).ok()
}
