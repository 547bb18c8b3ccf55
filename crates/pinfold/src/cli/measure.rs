//! What may be typed after `pinfold measure` and `pinfold compare`.

use clap::{Args, Parser};
use pinfold_run::measure::ProbeOptions;

use super::VmArgs;
use super::exits::ExitsHow;

/// Where and how a probe is taken; shared by `measure` and the last words of `compare`.
#[derive(Clone, Debug, Args)]
pub struct ProbeArgs {
    /// On these PUs (OS indexes), or a guest's CPUs [default: all that this process may use]
    #[arg(long, value_name = "PUS")]
    pub cpus: Option<String>,
    /// On the PUs of this NUMA node
    #[arg(long, value_name = "NODE", conflicts_with = "cpus")]
    pub node: Option<u32>,
    /// Under this policy: other, fifo:N [default: other, or as the plan has it]
    #[arg(long, value_name = "POLICY")]
    pub policy: Option<String>,
    /// For so long, in each block
    #[arg(long, value_name = "N", default_value_t = 2.0)]
    pub seconds: f64,
    /// Time between two wake-ups, or of spinning and sleeping, such as 500us
    #[arg(long, value_name = "TIME")]
    pub period: Option<String>,
    /// Spin for so many percent of its period (spin-gap) [default: 50]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=100))]
    pub duty: Option<u8>,
    /// Keep all CPUs awake meanwhile (cpu_dma_latency 0), as cyclictest does of itself
    #[arg(long)]
    pub keep_awake: bool,
    /// What `io` reads [default: a file of its own in the cache directory; in the demo guest its disk]
    #[arg(long, value_name = "PATH")]
    pub file: Option<String>,
    /// Arguments for the benchmark itself; `pinfold measure PROBE -- --help` lists them
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
    /// Name of the probe; --list shows them
    #[arg(value_name = "PROBE", required_unless_present = "list")]
    pub probe: Option<String>,
    /// List the probes: what, unit, family, anchors
    #[arg(long)]
    pub list: bool,
    /// Where and how.
    #[command(flatten)]
    pub how: ProbeArgs,
    /// In the place that this plan gives to a role of its vnode: PUs and policy
    #[arg(long, value_name = "FILE", conflicts_with_all = ["cpus", "node", "guest"])]
    pub plan: Option<String>,
    /// The vnode of the plan; without --plan, a vnode of `pinfold emulate up`
    #[arg(long, value_name = "NAME", conflicts_with_all = ["node", "guest"])]
    pub vnode: Option<String>,
    /// The role of the plan, such as vcpu, vcpu(1), emulator [default: its vCPUs, or its tasks]
    #[arg(long, value_name = "ROLE", requires = "plan")]
    pub role: Option<String>,
    /// In a guest: `demo`, or the socket of a guest that runs `pinload agent`
    #[arg(long, value_name = "demo|SOCKET", conflicts_with = "node")]
    pub guest: Option<String>,
    /// The machine that sched, counters, locks and exits look at from outside
    #[command(flatten)]
    pub machine: VmArgs,
    /// A process that they look at instead (exits: no), with its threads; may be given several times
    #[arg(long = "process", value_name = "PID", conflicts_with = "VmArgs")]
    pub processes: Vec<u32>,
    /// Count these alone (counters), such as cycles,instructions; a PMU has room for a few
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub quantities: Vec<String>,
    /// With the call sites of the waits (locks)
    #[arg(long)]
    pub sites: bool,
    /// How exits are looked at.
    #[command(flatten)]
    pub exits: ExitsHow,
    /// So often, each with a start of its own [default: 1, with --against 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub blocks: Option<u32>,
    /// Beside this instrument of others, in the same blocks; --list shows which
    #[arg(long, value_name = "TOOL", conflicts_with_all = ["guest", "save"])]
    pub against: Option<String>,
    /// Seed of the random order [default: from the clock, and printed]
    #[arg(long)]
    pub seed: Option<u64>,
    /// Write everything, with the raw samples, for `pinfold compare`
    #[arg(long, value_name = "FILE")]
    pub save: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `pinfold compare`.
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// Two files made by `pinfold measure --save`; the ratio is the first over the second
    #[arg(value_name = "FILE", num_args = 0..=2, conflicts_with_all = ["plans", "guest", "native"])]
    pub files: Vec<String>,
    /// A plan; give it twice. Without --guest the probe takes the place of the plan's vCPUs or
    /// tasks, with it a guest is started under the plan, and the plan undone after it
    #[arg(long = "plan", value_name = "FILE")]
    pub plans: Vec<String>,
    /// A guest: `demo`, or the socket of one that runs `pinload agent`
    #[arg(long, value_name = "demo|SOCKET")]
    pub guest: Option<String>,
    /// The guest against this machine itself; chase and bandwidth cannot be paired so, because
    /// their sizes follow the caches that each side sees
    #[arg(long, requires = "guest", conflicts_with = "plans")]
    pub native: bool,
    /// Blocks: each measures both sides, in random order
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub blocks: u32,
    /// Seed of the random order [default: from the clock, and printed]
    #[arg(long)]
    pub seed: Option<u64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// The probe with its options: wakeup --seconds 1 --policy fifo:80
    #[arg(last = true, value_name = "PROBE")]
    pub probe: Vec<String>,
}

/// The last words of `compare`.
#[derive(Debug, Parser)]
#[command(name = "pinfold compare … --", no_binary_name = true)]
pub struct ProbeLine {
    /// Name of the probe; `pinfold measure --list` shows them
    #[arg(value_name = "PROBE")]
    pub probe: String,
    /// Where and how.
    #[command(flatten)]
    pub how: ProbeArgs,
}
