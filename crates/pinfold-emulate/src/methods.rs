//! The methods: which of them a host supports, and their start.

mod burner;
mod code;
mod described;
mod fracas;
mod freq;
mod freq_calibration;
mod gov;
mod hogs;
mod inject;
mod lim;
mod perf_sample_rate;
mod preparation;
mod quota;
mod rt_throttle;
mod stall;
mod table;
mod thread_balancer;

pub use described::{cautions, describe_effects};
use pinfold_host::{Clock, Host, HostMut, paths, process};
use pinfold_model::{Method, Speed};
pub(crate) use preparation::steps;
pub use table::{METHODS, MethodInfo, info};

use crate::emulation::Emulation;
use crate::hierarchies::{Hierarchies, MountedHierarchy};
use crate::node::Node;
use crate::units::MS;
use crate::vnode_cgroup::VnodeCgroup;
use crate::{HelperSpawner, SpeedError};

/// Timeout of the supervisor's heartbeat, after which no more time is taken.
const HEARTBEAT_TIMEOUT_NS: u64 = 90 * MS;
/// Interval of the heartbeat.
const HEARTBEAT_NS: u64 = 40 * MS;

/// What a host supports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Why `stall` is not available; `None` if it is.
    pub no_stall: Option<String>,
    /// Why real-time threads are not available; `None` if they are.
    pub no_real_time: Option<String>,
    /// True if running as root.
    pub is_root: bool,
    /// The cgroup hierarchies.
    pub hierarchies: Hierarchies,
    /// True if the kernel has cpufreq.
    pub has_cpufreq: bool,
    /// Why frequencies cannot be set; `None` if they can, or if there is no cpufreq.
    pub no_userspace: Option<String>,
}

impl Facts {
    /// Determines what the host supports. What cannot be read is tried: loading the program of
    /// `stall` with a timer that is not started, and making a thread of this process real-time.
    ///
    /// # Errors
    /// [`SpeedError::Host`] if the mount table cannot be read.
    pub fn find(host: &dyn HostMut) -> Result<Self, SpeedError> {
        let hierarchies = Hierarchies::find(host)?;
        let policies = host.list(&paths::cpufreq_dir()).unwrap_or_default();
        Ok(Self {
            no_stall: stall::refusal(host, &hierarchies)?,
            no_real_time: burner::refusal(host)?,
            is_root: process::is_root(),
            hierarchies,
            has_cpufreq: !policies.is_empty(),
            no_userspace: no_userspace(host, &policies),
        })
    }
}

/// Why no cpufreq policy has the governor `userspace`; `None` if one has it, or without policies.
fn no_userspace(host: &dyn Host, policies: &[String]) -> Option<String> {
    let known: Vec<String> = policies
        .iter()
        .map(|policy: &String| {
            let path = paths::cpufreq_policy_file(policy, "scaling_available_governors");
            host.read_text(&path).unwrap_or_default()
        })
        .collect();
    let first = known.first()?;
    (!known.iter().any(|known| known.split_ascii_whitespace().any(|word| word == "userspace")))
        .then(|| {
            format!(
                "cpufreq has only the governors {}, not userspace: load cpufreq_userspace; on \
                 Intel boot with intel_pstate=passive",
                first.split_ascii_whitespace().collect::<Vec<_>>().join(", ")
            )
        })
}

/// Why a method is not available on a host; `None` if it is.
pub fn refusal(method: Method, facts: &Facts) -> Option<String> {
    if !facts.is_root {
        return Some("it needs root".to_owned());
    }
    (code::code(method).refuse)(facts)
}

/// Why a hierarchy is not available; `None` if it is.
fn refuse_hierarchy(place: Option<&MountedHierarchy>, what: &str) -> Option<String> {
    place.is_none().then(|| format!("there is no cgroup hierarchy with {what}"))
}

/// Why groups of a method that distributes CPU time are not available.
fn refuse_cpu_groups(facts: &Facts) -> Option<String> {
    let hierarchies = &facts.hierarchies;
    refuse_hierarchy(hierarchies.cpu.as_ref(), "cpu")
        .or_else(|| refuse_hierarchy(hierarchies.cpuset.as_ref(), "cpuset"))
}

/// Why tasks cannot be frozen.
fn refuse_freezer(facts: &Facts) -> Option<String> {
    refuse_hierarchy(facts.hierarchies.freezer.as_ref(), "a freezer")
}

/// The preferred method that a host supports. [`Method::Inject`] is never selected, because it
/// needs a recorded load.
pub fn best(facts: &Facts) -> Option<Method> {
    let all = METHODS.iter().map(|info| info.method).filter(|method| !method.replays_load());
    all.into_iter().find(|method| refusal(*method, facts).is_none())
}

/// What a method needs to start.
#[derive(Clone, Copy)]
pub(crate) struct MethodContext<'h, 'n> {
    pub(crate) host: &'h dyn HostMut,
    pub(crate) clock: &'h dyn Clock,
    pub(crate) spawner: &'h dyn HelperSpawner,
    pub(crate) node: &'n Node,
    pub(crate) cgroup: &'n VnodeCgroup,
}

impl MethodContext<'_, '_> {
    pub(crate) fn unavailable(&self, why: &str) -> SpeedError {
        SpeedError::Unavailable {
            vnode: self.node.name.clone(),
            method: self.node.method,
            why: why.to_owned(),
            hint: "`pinfold emulate methods` shows which can".to_owned(),
        }
    }
}

/// Checks that a vnode's period is within the limits of its method.
///
/// # Errors
/// [`SpeedError::Period`].
pub fn check_period(node: &Node) -> Result<(), SpeedError> {
    let bounds = node.method.periods_ns();
    if bounds.contains(&node.period()) {
        return Ok(());
    }
    Err(SpeedError::Period {
        vnode: node.name.clone(),
        method: node.method,
        period_ns: node.period(),
        bounds_ns: bounds,
    })
}

/// Starts the method of a vnode, at full speed.
pub(crate) fn start<'h>(
    context: &MethodContext<'h, '_>,
) -> Result<Box<dyn Emulation + 'h>, SpeedError> {
    check_period(context.node)?;
    (code::code(context.node.method).start)(context)
}

/// Share of the time to take, in millionths.
fn steal_of(speed: Speed) -> u64 {
    u64::from(Speed::FULL.millionths() - speed.millionths())
}

#[cfg(test)]
mod tests {
    use pinfold_model::CpuSet;
    use pinfold_sim::{CgroupVersion, SimHost};

    use super::*;

    #[test]
    fn every_method_stands_in_the_table_once_in_the_order_of_preference() {
        let listed: Vec<Method> = METHODS.iter().map(|info| info.method).collect();
        assert_eq!(listed, Method::ALL);
        for info in METHODS {
            let usual = info.usual_period_ns;
            assert!(info.method.periods_ns().contains(&usual), "{}", info.method);
        }
    }

    #[test]
    fn without_bpf_the_next_best_is_taken_and_a_load_is_never() {
        let hierarchies = Hierarchies {
            cpuset: place(),
            cpu: place(),
            freezer: place(),
            perf: place(),
            ..Hierarchies::default()
        };
        let facts = Facts { is_root: true, hierarchies, ..Facts::default() };
        assert_eq!(best(&facts), Some(Method::Stall));
        let facts = Facts { no_stall: Some("no BPF".to_owned()), ..facts };
        assert_eq!(best(&facts), Some(Method::Hogs));
        assert_eq!(refusal(Method::Stall, &facts).as_deref(), Some("no BPF"));
        assert_eq!(refusal(Method::Quota, &facts), None);
        let facts = Facts { no_real_time: Some("no rights".to_owned()), ..facts };
        assert_eq!(best(&facts), Some(Method::Fracas));
        assert_eq!(refusal(Method::Inject, &facts).as_deref(), Some("no rights"));
        let freq = "the kernel has no cpufreq driver for these CPUs";
        assert_eq!(refusal(Method::Freq, &facts).as_deref(), Some(freq));
        let facts = Facts { is_root: false, ..facts };
        assert_eq!(best(&facts), None);
        let facts = Facts { is_root: true, hierarchies: Hierarchies::default(), ..facts };
        for method in [Method::Fracas, Method::Quota, Method::Gov, Method::Lim] {
            assert!(refusal(method, &facts).is_some(), "{method}");
        }
    }

    fn place() -> Option<MountedHierarchy> {
        Some(crate::hierarchies::MountedHierarchy::default())
    }

    #[test]
    fn frequencies_that_cannot_be_set_are_none() {
        let domains = [CpuSet::first_n(2)];
        let host =
            SimHost::builder(CgroupVersion::V2, 2).cpufreq(&domains, &[1_000, 2_000]).build();
        let policies = host.list(&paths::cpufreq_dir()).unwrap();
        assert_eq!(no_userspace(&host, &policies), None);
        assert_eq!(no_userspace(&host, &[]), None);
        let path = paths::cpufreq_policy_file(&policies[0], "scaling_available_governors");
        host.set_file(&path, "performance powersave\n");
        let why = no_userspace(&host, &policies).unwrap();
        assert!(why.contains("only the governors performance, powersave, not userspace"), "{why}");
        let hierarchies = Hierarchies { freezer: place(), ..Hierarchies::default() };
        let facts = Facts {
            is_root: true,
            hierarchies,
            has_cpufreq: true,
            no_userspace: Some(why.clone()),
            ..Facts::default()
        };
        for method in [Method::Gov, Method::Freq] {
            assert_eq!(refusal(method, &facts), Some(why.clone()), "{method}");
        }
        assert_eq!(refusal(Method::Lim, &facts), None);
    }
}
