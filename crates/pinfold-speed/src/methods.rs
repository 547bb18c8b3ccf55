//! The methods: what each does, needs and cannot do.

mod hogs;
mod stall;

use pinfold_host::{Clock, Host, HostMut, Stall, paths, process};
use pinfold_model::{CpuSet, Method, Speed};

use crate::emulation::Emulation;
use crate::enclosure::Enclosure;
use crate::hierarchies::Hierarchies;
use crate::nodes::Node;
use crate::{Outside, SpeedError};

/// The hierarchies besides cpuset in which a vnode has a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Groups {
    /// With cpu.
    pub cpu: bool,
    /// With the freezer.
    pub freezer: bool,
    /// With `perf_event`.
    pub perf: bool,
}

/// What is to be known of a method before it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MethodInfo {
    /// Which.
    pub method: Method,
    /// What it does, in a line.
    pub summary: &'static str,
    /// Where it comes from.
    pub source: &'static str,
    /// What the host must have.
    pub needs: &'static str,
    /// What it cannot do.
    pub limits: &'static str,
    /// Where it has groups.
    pub groups: Groups,
    /// Length of a turn in nanoseconds: usual, shortest, longest.
    pub period_ns: (u64, u64, u64),
    /// True if it runs threads of its own on the vnode's cores.
    pub burns: bool,
}

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const S: u64 = 1_000_000_000;

/// All methods, the preferred first.
pub const METHODS: &[MethodInfo] = &[
    MethodInfo {
        method: Method::Stall,
        summary: "spins in a timer interrupt of the vnode's own tasks",
        source: "Pinfold",
        needs: "Linux 5.17, root (CAP_BPF, CAP_PERFMON), cgroup version 2 mounted",
        limits: "interrupts of others wait for up to one stall on these cores; other BPF tracing \
                 programs are not called while one spins; speeds just below 100% only as far as \
                 an interrupt costs less than is to be taken",
        groups: Groups { cpu: false, freezer: false, perf: true },
        period_ns: (200 * US, 50 * US, MS),
        burns: false,
    },
    MethodInfo {
        method: Method::Hogs,
        summary: "a real-time burner on each core, all cores in step",
        source: "CPU-Hogs, Buchert 2011; spin and sleep ratio of Distem",
        needs: "real-time rights (root)",
        limits: "slows whatever runs on the core, not only the vnode; not below 5% while the \
                 kernel's real-time throttle is on; not on the last housekeeping PU unless asked",
        groups: Groups { cpu: false, freezer: false, perf: false },
        period_ns: (500 * US, 100 * US, S),
        burns: true,
    },
];

/// What is to be known of a method.
#[must_use]
pub fn info(method: Method) -> &'static MethodInfo {
    let found = METHODS.iter().find(|info| info.method == method);
    found.unwrap_or(&METHODS[0])
}

/// What a host can do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Why `stall` cannot work; `None` if it can.
    pub no_stall: Option<String>,
    /// True with the rights of root.
    pub is_root: bool,
    /// The hierarchies.
    pub hierarchies: Hierarchies,
    /// True if the host's frequencies can be set.
    pub has_cpufreq: bool,
}

impl Facts {
    /// Tries what cannot be read: whether the kernel takes the program of `stall`.
    ///
    /// # Errors
    /// [`SpeedError::Host`] if the mount table cannot be read.
    pub fn find(host: &dyn Host) -> Result<Self, SpeedError> {
        let hierarchies = Hierarchies::find(host)?;
        let no_stall = match &hierarchies.perf {
            None => Some("cgroup version 2 is not mounted".to_owned()),
            Some(place) => {
                Stall::open(host, &place.root, &CpuSet::new(), MS).err().map(|error| told(&error))
            }
        };
        let has_cpufreq =
            host.list(&paths::cpufreq_dir()).is_ok_and(|policies| !policies.is_empty());
        Ok(Self { no_stall, is_root: process::is_root(), hierarchies, has_cpufreq })
    }
}

/// An error with its causes.
fn told(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

/// Why a method cannot work on a host; `None` if it can.
#[must_use]
pub fn refusal(method: Method, facts: &Facts) -> Option<String> {
    if !facts.is_root {
        return Some("it needs the rights of root".to_owned());
    }
    let lacks = |there: bool, what: &str| (!there).then(|| what.to_owned());
    match method {
        Method::Stall => facts.no_stall.clone(),
        Method::Hogs | Method::Lim | Method::Inject => None,
        Method::Fracas | Method::Quota => {
            lacks(facts.hierarchies.cpu.is_some(), "there is no cgroup hierarchy with cpu")
        }
        Method::Gov => lacks(
            facts.hierarchies.freezer.is_some(),
            "there is no cgroup hierarchy with a freezer",
        ),
        Method::Freq => lacks(facts.has_cpufreq, "the kernel has no cpufreq driver for these CPUs"),
    }
}

/// The best method that a host can do.
#[must_use]
pub fn best(facts: &Facts) -> Option<Method> {
    METHODS.iter().map(|info| info.method).find(|method| refusal(*method, facts).is_none())
}

/// What a method starts with.
#[derive(Clone, Copy)]
pub(crate) struct Ground<'h, 'n> {
    pub(crate) host: &'h dyn HostMut,
    pub(crate) clock: &'h dyn Clock,
    pub(crate) outside: &'h dyn Outside,
    pub(crate) node: &'n Node,
    pub(crate) enclosure: &'n Enclosure,
}

impl Ground<'_, '_> {
    fn unavailable(&self, why: &str) -> SpeedError {
        SpeedError::Unavailable {
            vnode: self.node.name.clone(),
            method: self.node.method,
            why: why.to_owned(),
            hint: "`pinfold emulate methods` tells which can".to_owned(),
        }
    }
}

/// Starts the method of a vnode, at full speed.
pub(crate) fn start<'h>(ground: &Ground<'h, '_>) -> Result<Box<dyn Emulation + 'h>, SpeedError> {
    match ground.node.method {
        Method::Stall => Ok(Box::new(stall::start(ground)?)),
        Method::Hogs => Ok(Box::new(hogs::start(ground)?)),
        Method::Fracas
        | Method::Quota
        | Method::Gov
        | Method::Freq
        | Method::Lim
        | Method::Inject => Err(ground.unavailable("it is not there yet")),
    }
}

/// Millionths of the time that are to be taken.
fn steal_of(speed: Speed) -> u64 {
    u64::from(Speed::FULL.millionths() - speed.millionths())
}

/// `5.1 µs`.
fn in_us(ns: u64) -> String {
    format!("{}.{} µs", ns / US, ns % US / 100)
}
