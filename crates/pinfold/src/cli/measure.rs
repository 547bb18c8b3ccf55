//! Arguments of `pinfold measure` and `pinfold compare`.

use clap::{Args, Parser};
use pinfold_model::Tid;
use pinfold_run::measure::{ObservationTarget, ProbeOptions};
use pinfold_vm::VmSelector;

use super::exits::ExitObservationArgs;
use super::sockets::ManySockets;

/// Where and how a probe runs; shared by `measure` and the probe of `compare`.
#[derive(Clone, Debug, Args)]
pub struct ProbeArgs {
    /// Run on these CPUs of the host or the guest [default: all that this process may use]
    #[arg(long, value_name = "CPUS")]
    pub cpus: Option<String>,
    /// Run on the CPUs of this NUMA node
    #[arg(long, value_name = "NODE", conflicts_with = "cpus")]
    pub node: Option<u32>,
    /// Use this scheduling policy: other, fifo:N [default: other, or that of the plan]
    #[arg(long, value_name = "POLICY")]
    pub policy: Option<String>,
    /// Measure for this many seconds in each block
    #[arg(long, value_name = "N", default_value_t = 2.0)]
    pub seconds: f64,
    /// Set the time between two wake-ups, or the length of one spin-and-sleep cycle, such as 500us
    #[arg(long, value_name = "TIME")]
    pub period: Option<String>,
    /// Spin for this percentage of the period (spin-gap) [default: 50]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=100))]
    pub duty: Option<u8>,
    /// Keep all CPUs out of idle states (cpu_dma_latency 0), as cyclictest does by default
    #[arg(long)]
    pub keep_awake: bool,
    /// Read this file or device (`io`) [default: a file in the cache directory; in the demo guest
    /// its disk]
    #[arg(long, value_name = "PATH")]
    pub file: Option<String>,
    /// Pass these arguments to the benchmark; `pinfold measure PROBE -- --help` lists them
    #[arg(last = true, value_name = "INSTRUMENT-OPTIONS")]
    pub more: Vec<String>,
}

impl From<ProbeArgs> for ProbeOptions {
    fn from(arguments: ProbeArgs) -> Self {
        let ProbeArgs { cpus, node, policy, seconds, period, duty, keep_awake, file, more } =
            arguments;
        Self { cpus, node, policy, seconds, period, duty, keep_awake, file, more }
    }
}

/// `pinfold measure`.
#[derive(Debug, Args)]
pub struct MeasureArgs {
    /// Run this probe; --list lists them
    #[arg(value_name = "PROBE", required_unless_present = "list")]
    pub probe: Option<String>,
    /// List the probes: what they measure, unit, family, reference tools
    #[arg(long)]
    pub list: bool,
    /// Where and how.
    #[command(flatten)]
    pub how: ProbeArgs,
    /// Run on the CPUs and under the policy that this plan gives to a role of its vnode
    #[arg(long, value_name = "FILE", conflicts_with_all = ["cpus", "node", "guest"])]
    pub plan: Option<String>,
    /// Use this vnode of the plan; without --plan, of `pinfold emulate up`
    #[arg(long, value_name = "NAME", conflicts_with_all = ["node", "guest"])]
    pub vnode: Option<String>,
    /// Use this role of the plan, such as vcpu, vcpu(1), emulator [default: its vCPUs, or its
    /// tasks]
    #[arg(long, value_name = "ROLE", requires = "plan")]
    pub role: Option<String>,
    /// Run in a guest: `demo`, or the socket of a guest that runs `pinload agent`
    #[arg(long, value_name = "demo|SOCKET", conflicts_with = "node")]
    pub guest: Option<String>,
    /// What sched, counters, locks, exits and gaps observe from outside.
    #[command(flatten)]
    pub observed: ObservedArgs,
    /// Count only these (counters), such as cycles,instructions; a PMU counts a few at a time
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub quantities: Vec<String>,
    /// Also show the call sites of the waits (locks)
    #[arg(long)]
    pub sites: bool,
    /// Show gaps from this length on (gaps) [default: 200us]
    #[arg(long, value_name = "TIME")]
    pub over: Option<String>,
    /// Write the gaps to this new file, for --from (gaps)
    #[arg(long, value_name = "FILE")]
    pub record: Option<String>,
    /// Show the gaps of this file of --record, with --over the longer ones (gaps)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["record", "save"])]
    pub from: Option<String>,
    /// How exits are observed.
    #[command(flatten)]
    pub exits: ExitObservationArgs,
    /// Run N blocks, each in a new process [default: 1, with --against 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub blocks: Option<u32>,
    /// Also run this reference tool in the same blocks; --list shows which
    #[arg(long, value_name = "TOOL", conflicts_with_all = ["guest", "save"])]
    pub against: Option<String>,
    /// Seed the random order [default: from the clock, and printed]
    #[arg(long)]
    pub seed: Option<u64>,
    /// Write all results with raw samples to this file, for `pinfold compare`
    #[arg(long, value_name = "FILE")]
    pub save: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// What is observed from outside; gaps takes several, the others one machine.
#[derive(Debug, Args)]
pub struct ObservedArgs {
    /// The control sockets of machines.
    #[command(flatten)]
    pub sockets: ManySockets,
    /// Observe a libvirt domain, by name, UUID or ID; may be repeated (gaps)
    #[arg(long, value_name = "DOMAIN")]
    pub libvirt: Vec<String>,
    /// Observe a QEMU process by its PID (roles are read from thread names); may be repeated (gaps)
    #[arg(long, value_name = "PID")]
    pub pid: Vec<u32>,
    /// Observe all running machines of this host (gaps)
    #[arg(long)]
    pub all: bool,
    /// Observe this process with its threads (not exits); may be repeated
    #[arg(long = "process", value_name = "PID")]
    pub processes: Vec<u32>,
    /// Observe the tasks of this cgroup, by its path or as a systemd unit (not exits); may be
    /// repeated
    #[arg(long = "group", value_name = "CGROUP|UNIT")]
    pub groups: Vec<String>,
}

impl ObservedArgs {
    /// All that is to be observed.
    pub fn targets(&self) -> Vec<ObservationTarget> {
        let sockets = self.sockets.0.iter();
        sockets
            .map(|(hypervisor, path)| VmSelector::Socket(*hypervisor, path.clone()))
            .chain(self.libvirt.iter().cloned().map(VmSelector::Libvirt))
            .chain(self.pid.iter().map(|pid| VmSelector::Pid(Tid(*pid))))
            .map(ObservationTarget::Machine)
            .chain(self.all.then_some(ObservationTarget::AllMachines))
            .chain(self.processes.iter().copied().map(ObservationTarget::Process))
            .chain(self.groups.iter().cloned().map(ObservationTarget::Group))
            .collect()
    }
}

impl MeasureArgs {
    /// True with an option that only probes have which observe threads from outside.
    pub fn observes(&self) -> bool {
        let of_gaps = self.over.is_some() || self.record.is_some() || self.from.is_some();
        let of_exits = self.exits.given_options().iter().any(|(is_given, _)| *is_given);
        self.sites || !self.quantities.is_empty() || of_exits || of_gaps
    }
}

/// `pinfold compare`.
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// Compare two files written by `pinfold measure --save`; the ratio is the first over the second
    #[arg(value_name = "FILE", num_args = 0..=2, conflicts_with_all = ["plans", "guest", "native"])]
    pub files: Vec<String>,
    /// Compare this plan; give it twice. Without --guest the probe runs in place of the plan's
    /// vCPUs or tasks; with it a guest is started under the plan, which is reverted afterwards
    #[arg(long = "plan", value_name = "FILE")]
    pub plans: Vec<String>,
    /// Run in a guest: `demo`, or the socket of one that runs `pinload agent`
    #[arg(long, value_name = "demo|SOCKET")]
    pub guest: Option<String>,
    /// Compare the guest with this machine itself; not for chase and bandwidth, because their
    /// sizes depend on the caches that each side sees
    #[arg(long, requires = "guest", conflicts_with = "plans")]
    pub native: bool,
    /// Run N blocks, each with both sides in random order
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub blocks: u32,
    /// Seed the random order [default: from the clock, and printed]
    #[arg(long)]
    pub seed: Option<u64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Run this probe with its options, such as wakeup --seconds 1 --policy fifo:80
    #[arg(last = true, value_name = "PROBE")]
    pub probe: Vec<String>,
}

/// The probe of `compare`, after `--`.
#[derive(Debug, Parser)]
#[command(name = "pinfold compare … --", no_binary_name = true)]
pub struct ProbeLine {
    /// Run this probe; `pinfold measure --list` lists them
    #[arg(value_name = "PROBE")]
    pub probe: String,
    /// Where and how.
    #[command(flatten)]
    pub how: ProbeArgs,
}
