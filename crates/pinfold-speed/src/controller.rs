//! Virtual nodes at work: their methods get their turns, their speeds can be changed and seen.

mod calibration;

use pinfold_host::{Clock, HostMut, with_causes};
use pinfold_model::{Attach, CpuSet, Method, NodeId, PuId, Speed, Variant};

use crate::emulation::{CoreAccount, Emulation};
use crate::renewal::Renewal;
use crate::vnode_cgroup::VnodeCgroup;
use crate::{HelperSpawner, SpeedError, frequency, methods, profiles};

/// The live error is reported over at least this time.
const WINDOW_NS: u64 = 1_000_000_000;
/// Less run time than this in a window tells nothing of the speed.
const LEAST_RUN_NS: u64 = 2_000_000;

/// A row of a speed profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProfileRow {
    /// From so many nanoseconds after the start on
    pub at_ns: u64,
    /// all cores have this speed.
    pub speed: Speed,
    /// Line of the file that says so.
    pub line: usize,
}

/// A virtual node as the planner placed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its cores' CPUs, ascending, each with its speed.
    pub cores: Vec<(PuId, Speed)>,
    /// The node that its memory is bound to.
    pub memory_node: Option<NodeId>,
    /// How it is slowed.
    pub method: Method,
    /// As published or corrected.
    pub variant: Variant,
    /// Length of one turn; `None` is the method's usual.
    pub period_ns: Option<u64>,
    /// Speeds to be played.
    pub profile: Vec<ProfileRow>,
    /// What exists already and becomes the vnode.
    pub attach: Option<Attach>,
    /// The load that [`Method::Inject`] replays: from so many nanoseconds after the start on, the
    /// millionths of each core's time that are taken, the cores in the order of `cores`.
    pub load: Vec<(u64, Vec<u32>)>,
    /// Whether [`Method::Gov`] and [`Method::Freq`] measure at the start what each frequency that
    /// the hardware advertises really gives.
    pub calibrate: bool,
}

impl Node {
    /// A vnode of new groups with these cores, slowed by the corrected form of a method.
    #[must_use]
    pub fn new(name: &str, method: Method, cores: Vec<(PuId, Speed)>) -> Self {
        Self {
            name: name.to_owned(),
            cores,
            memory_node: None,
            method,
            variant: Variant::Corrected,
            period_ns: None,
            profile: Vec::new(),
            attach: None,
            load: Vec::new(),
            calibrate: false,
        }
    }

    /// Its CPUs.
    #[must_use]
    pub fn pus(&self) -> CpuSet {
        self.cores.iter().map(|(pu, _)| *pu).collect()
    }

    /// Length of one turn.
    #[must_use]
    pub fn period(&self) -> u64 {
        self.period_ns.unwrap_or(methods::info(self.method).usual_period_ns)
    }

    /// It with one speed on all cores.
    pub(crate) fn at(&self, speed: Speed) -> Node {
        let cores = self.cores.iter().map(|(pu, _)| (*pu, speed)).collect();
        Node { cores, ..self.clone() }
    }
}

/// How a core does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreStatus {
    /// Its CPU.
    pub pu: PuId,
    /// The speed that was asked.
    pub asked: Speed,
    /// The speed that it had in the last second, in millionths, by the method's own account;
    /// `None` if the vnode hardly ran there or has had this speed for less than a second, or the
    /// method keeps none.
    pub got_millionths: Option<u32>,
}

/// How a vnode does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// Its name.
    pub name: String,
    /// Its method.
    pub method: Method,
    /// Its cores.
    pub cores: Vec<CoreStatus>,
    /// What the method says of itself.
    pub notes: Vec<String>,
}

struct Running<'h> {
    node: Node,
    entries: Vec<String>,
    emulation: Box<dyn Emulation + 'h>,
    // None for a group of another program: no process of ours enters it again and again.
    renewal: Option<Renewal>,
    started_ns: u64,
    next_ns: u64,
    played: usize,
    // Why its profile ended before its last row.
    refused: Option<String>,
    // When, and what the accounts were.
    last: (u64, Vec<CoreAccount>),
    // What they were one window before; nothing until one is over since the last change.
    before: Vec<CoreAccount>,
}

/// All vnodes of a platform at work.
pub struct VnodeController<'h> {
    host: &'h dyn HostMut,
    clock: &'h dyn Clock,
    outside: &'h dyn HelperSpawner,
    // All CPUs whose costs were measured together.
    together: CpuSet,
    running: Vec<Running<'h>>,
}

impl<'h> VnodeController<'h> {
    /// Starts every vnode's method in its groups, which must be there.
    ///
    /// # Errors
    /// [`SpeedError`] of the first that cannot start; the others have ended again.
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
                methods::Ground { host, clock, outside, node: &node, enclosure: &enclosure };
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

    /// Gives all methods that are due their turn. Returns when to be called next.
    ///
    /// # Errors
    /// [`SpeedError`] of the first that failed; all others had their turn.
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

    /// Sets the speeds that the profiles have now, of all vnodes together: those of one frequency
    /// domain change at once. Where that cannot be, as after a speed that somebody set meanwhile,
    /// they stay as they are, and the profiles end.
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
    /// [`SpeedError::NoVnode`], [`SpeedError::OutOfReach`]: nothing is changed then.
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
        // From now on somebody else decides.
        one.node.profile.truncate(one.played);
        Ok(())
    }

    /// How all do.
    ///
    /// # Errors
    /// [`SpeedError::Host`] if an account cannot be read.
    pub fn status(&self) -> Result<Vec<NodeStatus>, SpeedError> {
        self.running.iter().map(Running::status).collect()
    }

    /// Ends all.
    ///
    /// # Errors
    /// [`SpeedError`] of the first that failed; all were tried.
    pub fn stop(&mut self) -> Result<(), SpeedError> {
        let mut failed = None;
        for one in &mut self.running {
            // Its groups can be removed when no witness is in them.
            one.renewal = None;
            failed = failed.or(one.emulation.stop().err());
        }
        failed.map_or(Ok(()), Err)
    }
}

impl Running<'_> {
    /// Speeds are others from now on: what was before tells nothing of them.
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

    /// The row of the profile that begins now, if one does; of several the last.
    fn due(&mut self, now_ns: u64) -> Option<ProfileRow> {
        let since = now_ns.saturating_sub(self.started_ns);
        let past = self.node.profile.iter().take_while(|row| row.at_ns <= since).count();
        let row = *self.node.profile.get(past.checked_sub(1)?)?;
        (std::mem::replace(&mut self.played, past) < past).then_some(row)
    }

    /// A speed that it cannot have is reported and ends the profile, not the platform.
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
        let core = |(pu, asked): &(PuId, Speed)| {
            let of = |accounts: &[CoreAccount]| accounts.iter().find(|one| one.pu == *pu).copied();
            let got = of(&self.before).zip(of(&now)).and_then(|(then, now)| got(then, now));
            CoreStatus { pu: *pu, asked: *asked, got_millionths: got }
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
