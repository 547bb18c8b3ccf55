//! The tunables of a host: one file each, with everything that Pinfold knows about it.
//!
//! A tunable is a setting of the kernel, of `resctrl` or of the machine's cgroup that a plan may
//! set. Its row ([`Tunable`]) has its key and values, its file in the kernel, its limits, and the
//! words of other tools for it. The command line, the format of plans, the checks, the output
//! formats, `apply`, the simulated kernel and `doctor` loop over [`TUNABLES`]; only a tunable that
//! apply cannot set by writing its file has code elsewhere.

mod access;
pub mod cpu_quota;
pub mod cpu_weight;
mod format_answer;
pub mod governor;
pub mod halt_poll_ns;
pub mod huge_pages;
pub mod irq;
pub mod khugepaged;
pub mod ksm;
pub mod llc_balancing;
pub mod max_khz;
pub mod min_khz;
pub mod new_irqs;
pub mod numa_balancing;
pub mod offline;
pub mod partition;
pub mod policy;
pub mod required;
pub mod resctrl;
pub mod rt_throttle;
pub mod smt;
pub mod stat_interval;
pub mod thp;
pub mod timer_migration;
pub mod wake_up_us;
pub mod watchdog_cpus;
pub mod workqueues;
pub mod writeback;

use std::collections::{BTreeMap, HashSet};
use std::fmt;

pub use format_answer::{FormatAnswer, Scope};

pub use crate::tuning::types::{CpuQuota, HugePagePool, ResourceShare};
pub use crate::tuning::value::{Invalid, Value, Values};

use crate::text::pus_text;
use crate::{CpuSet, Finding, Plan, Policy, PuId, Topology, Tuning};

/// All tunables, in the order in which they are set and written.
///
/// ```
/// use pinfold_model::tunables::TUNABLES;
///
/// let keys: Vec<&str> = TUNABLES.iter().map(|tunable| tunable.key).collect();
/// assert!(keys.contains(&"cpu-quota"));
/// ```
pub static TUNABLES: [&Tunable; 27] = [
    &policy::TUNABLE,
    &irq::TUNABLE,
    &new_irqs::TUNABLE,
    &workqueues::TUNABLE,
    &writeback::TUNABLE,
    &watchdog_cpus::TUNABLE,
    &timer_migration::TUNABLE,
    &stat_interval::TUNABLE,
    &numa_balancing::TUNABLE,
    &llc_balancing::TUNABLE,
    &thp::TUNABLE,
    &khugepaged::TUNABLE,
    &ksm::TUNABLE,
    &halt_poll_ns::TUNABLE,
    &wake_up_us::TUNABLE,
    &rt_throttle::TUNABLE,
    &governor::TUNABLE,
    // The kernel refuses a minimum frequency above the maximum.
    &max_khz::TUNABLE,
    &min_khz::TUNABLE,
    &huge_pages::TUNABLE,
    &resctrl::TUNABLE,
    &cpu_weight::TUNABLE,
    &cpu_quota::TUNABLE,
    &partition::TUNABLE,
    &smt::TUNABLE,
    &offline::TUNABLE,
    &required::TUNABLE,
];

/// A tunable.
#[derive(Debug)]
pub struct Tunable {
    /// Its key on the command line: `--tunable KEY=VALUE`.
    pub key: &'static str,
    /// What follows the key after a colon: `ROLE`, `DEVICE`; empty for most.
    pub of: &'static str,
    /// Its field below `tuning` in the JSON format of a plan; empty if it is in another part of the
    /// plan.
    pub field: &'static str,
    /// The subject of messages.
    pub name: &'static str,
    /// What its value means, without full stop.
    pub meaning: &'static str,
    /// The reason for its steps.
    pub reason: &'static str,
    /// Its values.
    pub values: Values,
    /// Its file in the kernel; `None` for properties of threads, groups or interrupts, which have
    /// no file with a fixed name.
    pub kernel: Option<KernelFile>,
    /// The row of `doctor` that reports whether a host has it.
    pub doctor: &'static str,
    /// A value, for messages and tests.
    pub example: &'static str,
    /// A value that no kernel accepts together with the rest of the tuning.
    pub fault: fn(&Value, &Tuning) -> Option<String>,
    /// What a host lacks, or would refuse.
    pub wrong: fn(&Setting, &Plan, &Topology) -> Vec<Finding>,
    /// Why `tune --try` cannot set it for a few seconds and revert it, as a sentence without full
    /// stop.
    pub trial_refusal: fn(&Value) -> Option<&'static str>,
    /// Its answer in single output formats, by their names. All others give their answer for a
    /// setting of the host.
    pub said: &'static [(&'static str, FormatRule)],
}

/// The parts that most tunables share.
const HOST_SETTING: Tunable = Tunable {
    key: "",
    of: "",
    field: "",
    name: "",
    meaning: "",
    reason: "requested by the plan",
    values: Values::Name("a value"),
    kernel: None,
    doctor: "tunables",
    example: "",
    fault: |_, _| None,
    wrong: |_, _, _| Vec::new(),
    trial_refusal: |_| None,
    said: &[],
};

/// The file of a tunable.
#[derive(Clone, Copy, Debug)]
pub struct KernelFile {
    /// Where it is.
    pub place: Place,
    /// How the kernel shows the value.
    pub shape: Shape,
    /// Its content on a host that has just booted; empty for a mask, which then has all CPUs.
    pub usual: &'static str,
}

/// Where the file of a tunable is.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// One file of the host, by its path.
    Host(&'static str),
    /// A sysctl, by its name.
    Sysctl(&'static str),
    /// One file for each CPU, below the CPU's folder in sysfs.
    Cpu(&'static str),
    /// A node's pool of huge pages of one size.
    Pool,
}

/// How the kernel shows the value of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// As it was written.
    Text,
    /// A hexadecimal mask of CPUs.
    Mask,
    /// A list of CPUs, as `0-3,8`.
    List,
    /// One of several words, as `always [madvise] never`.
    Choice,
    /// A number that the kernel may round or not reach.
    Rounded,
    /// A number.
    Integer,
}

impl KernelFile {
    /// Its path; of several, that of a CPU or of the pools of node 0.
    pub fn path(&self, pu: PuId) -> String {
        match self.place {
            Place::Host(path) => path.to_owned(),
            Place::Sysctl(name) => format!("/proc/sys/{}", name.replace('.', "/")),
            Place::Cpu(name) => format!("/sys/devices/system/cpu/cpu{pu}/{name}"),
            Place::Pool => "/sys/devices/system/node/node0/hugepages".to_owned(),
        }
    }

    /// A shell pattern for all its files.
    pub fn pattern(&self) -> String {
        match self.place {
            Place::Host(_) | Place::Sysctl(_) => self.path(PuId(0)),
            Place::Cpu(name) => format!("/sys/devices/system/cpu/cpu*/{name}"),
            Place::Pool => format!(
                "/sys/devices/system/node/node*/hugepages/hugepages-*kB/{}",
                huge_pages::FILE
            ),
        }
    }

    /// True for the path of one of its files.
    pub fn is_at(&self, path: &str) -> bool {
        match self.place {
            Place::Host(_) | Place::Sysctl(_) => self.path(PuId(0)) == path,
            Place::Cpu(_) | Place::Pool => path.rsplit('/').next() == Some(self.file_name()),
        }
    }

    /// The last part of its path.
    pub fn file_name(&self) -> &'static str {
        let (path, separator) = match self.place {
            Place::Host(path) | Place::Cpu(path) => (path, '/'),
            Place::Sysctl(name) => (name, '.'),
            Place::Pool => (huge_pages::FILE, '/'),
        };
        path.rsplit(separator).next().unwrap_or(path)
    }
}

impl Tunable {
    /// The tunable with a key: the part before `=`, without the role or device.
    pub fn by_key(key: &str) -> Option<&'static Self> {
        TUNABLES.into_iter().find(|one| one.key == key)
    }

    /// Its key as messages and help show it: `irq:DEVICE`.
    #[must_use]
    pub fn title(&self) -> String {
        let colon = if self.of.is_empty() { "" } else { ":" };
        format!("{}{colon}{}", self.key, self.of)
    }

    /// Its files with the bytes that the kernel takes for a value, in the order of writing; `pus`
    /// are the plan's CPUs.
    pub fn files(&self, value: &Value, pus: &CpuSet) -> Vec<(String, String)> {
        let Some(kernel) = self.kernel else { return Vec::new() };
        let raw = match kernel.shape {
            Shape::List => value.to_string(),
            Shape::Text | Shape::Mask | Shape::Choice | Shape::Rounded | Shape::Integer => {
                self.values.raw(value)
            }
        };
        let each = |pus: &CpuSet| pus.iter().map(|pu| (kernel.path(pu), raw.clone())).collect();
        match (kernel.place, value) {
            (_, Value::Pool(pool)) => vec![(pool.path(), raw)],
            // These CPUs are the value.
            (Place::Cpu(_), Value::Cpus(own)) => each(own),
            (Place::Cpu(_), _) => each(pus),
            _ => vec![(kernel.path(PuId(0)), raw)],
        }
    }
}

/// The answer in the row of a tunable.
#[derive(Clone, Copy, Debug)]
pub enum FormatRule {
    /// One line for a text with a single section; `{}` stands for the value.
    Line(&'static str),
    /// Lines for a section or file, and the difference from the tunable, if any.
    Lines(&'static str, &'static [&'static str], &'static str),
    /// It is written elsewhere in the text.
    Elsewhere,
    /// The format cannot express it, with the reason; the reason is empty for a setting of the
    /// host.
    Nothing(&'static str),
    /// It depends on more than the value.
    By(fn(&Setting, &Scope<'_>) -> FormatAnswer),
}

impl FormatRule {
    /// The answer for a value.
    #[must_use]
    pub fn answer(self, setting: &Setting, scope: &Scope<'_>) -> FormatAnswer {
        match self {
            Self::Line(line) => FormatAnswer::line(line.replace("{}", &setting.value.to_string())),
            Self::Lines(place, lines, but) => FormatAnswer::lines(
                place,
                lines.iter().map(|line| line.replace("{}", &setting.value.to_string())).collect(),
            )
            .with_difference(but),
            Self::Elsewhere => FormatAnswer::Elsewhere,
            Self::Nothing(why) => FormatAnswer::nothing(why),
            Self::By(answer) => answer(setting, scope),
        }
    }
}

/// One tunable with its value in a plan. Its text form is the argument of `--tunable` that sets it.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The tunable.
    pub tunable: &'static Tunable,
    /// The role, with the vnode's name if the vnodes differ, or the device; empty for most.
    pub of: String,
    /// The value.
    pub value: Value,
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let colon = if self.of.is_empty() { "" } else { ":" };
        write!(f, "{}{colon}{}={}", self.tunable.key, self.of, self.value)
    }
}

/// All tunables that the plan sets.
pub fn settings(plan: &Plan) -> Vec<Setting> {
    let mut all = policies(plan);
    all.extend(plan.irqs.iter().map(|irq| Setting {
        tunable: &irq::TUNABLE,
        of: irq.device.replace(' ', ":"),
        value: Value::Cpus(irq.pus.clone()),
    }));
    let plain = |(tunable, value): (&'static Tunable, &Value)| Setting {
        tunable,
        of: String::new(),
        value: value.clone(),
    };
    all.extend(plan.tuning.iter().map(plain));
    if plan.tuning.required {
        all.push(plain((&required::TUNABLE, &Value::Word("yes"))));
    }
    all
}

/// Work of the host on CPUs that the plan isolates.
fn on_exclusive(setting: &Setting, plan: &Plan, _: &Topology) -> Vec<Finding> {
    let Value::Cpus(cpus) = &setting.value else { return Vec::new() };
    let shared = cpus.intersection(&plan.exclusive);
    if shared.is_empty() {
        return Vec::new();
    }
    let text = format!(
        "{setting} contradicts the isolation: {} {} exclusive",
        pus_text(&shared),
        if shared.len() == 1 { "is" } else { "are" }
    );
    let hint = "give it the value housekeeping";
    vec![Finding::warning(setting.tunable.key, text).with_hint(hint)]
}

/// The policies, one per kind of role if all threads of the kind have the same.
fn policies(plan: &Plan) -> Vec<Setting> {
    // The policy of each kind; `None` if its threads differ.
    let mut kinds: BTreeMap<&str, Option<Policy>> = BTreeMap::new();
    for (_, thread) in plan.threads() {
        let common = kinds.entry(thread.role.kind().name).or_insert(thread.policy);
        *common = common.filter(|policy| thread.policy == Some(*policy));
    }
    let mut all: Vec<Setting> = Vec::new();
    let mut seen: HashSet<(String, Policy)> = HashSet::new();
    for (vnode, thread) in plan.threads() {
        let Some(policy) = thread.policy else { continue };
        let own = thread.role.kind().name;
        let of = match kinds.get(own) {
            Some(Some(_)) => own.to_owned(),
            Some(None) | None => plan.role_name(vnode, &thread.role),
        };
        if seen.insert((of.clone(), policy)) {
            all.push(Setting { tunable: &policy::TUNABLE, of, value: Value::Policy(policy) });
        }
    }
    all
}

/// What is wrong with the plan's tunables on this host. Findings of severity `problem` mean that
/// the plan must not be applied.
pub fn validate_tunables(plan: &Plan, topology: &Topology) -> Vec<Finding> {
    let mut findings = Vec::new();
    for setting in settings(plan) {
        let own = (setting.tunable.wrong)(&setting, plan, topology).into_iter();
        for finding in own.chain(everywhere(&setting, topology)) {
            if !findings.contains(&finding) {
                findings.push(finding);
            }
        }
    }
    findings
}

/// Interrupts or kernel work that may run on all CPUs, which is the kernel's default.
fn everywhere(setting: &Setting, topology: &Topology) -> Option<Finding> {
    let Value::Cpus(pus) = &setting.value else { return None };
    let is_all = setting.tunable.values.is_of_host() && topology.online().is_subset(pus);
    is_all.then(|| {
        let text = format!("{setting} names every CPU of this host, so nothing is moved");
        Finding::warning(setting.tunable.key, text).with_hint(
            "housekeeping stands for the CPUs that a plan leaves to the host: all of them unless it \
             is made with --isolate host",
        )
    })
}
