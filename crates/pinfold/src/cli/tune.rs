//! The arguments of `pinfold tune`.

use clap::{Args, ValueEnum};

use super::{Goal, StoreArg, VmArgs};

/// Which numbers of `tune --figure` are better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Better {
    /// Lower numbers, such as times
    #[default]
    Lower,
    /// Higher numbers, such as rates
    Higher,
}

/// `pinfold tune`.
#[derive(Debug, Args)]
pub struct TuneArgs {
    /// Tune the demo guest: a Debian kernel with the benchmark program as its init
    #[arg(long, conflicts_with = "command")]
    pub demo: bool,
    /// The running machine that is tuned in place.
    #[command(flatten)]
    pub vm: VmArgs,
    /// Compare placements of a running machine by the number that COMMAND prints, once in each
    /// window. It is split at blanks outside quotes, no shell reads it [default: the longest
    /// wait of a vCPU for a CPU]
    #[arg(long, value_name = "COMMAND", requires = "VmArgs")]
    pub figure: Option<String>,
    /// Choose which numbers of --figure are better
    #[arg(long, value_name = "WHICH", value_enum, default_value_t, requires = "figure")]
    pub better: Better,
    /// Drop a placement of a running machine as soon as a vCPU waits for a CPU for more of a window
    /// than under the present placement, by this share of it
    #[arg(long, value_name = "PERCENT", default_value = "25%", requires = "VmArgs")]
    pub max_harm: String,
    /// Give the demo guest N vCPUs
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub vcpus: u32,
    /// Optimize for this goal
    #[arg(long, default_value = "latency", conflicts_with = "VmArgs")]
    pub goal: Goal,
    /// Reject placements whose longest gap exceeds this, such as 1ms
    #[arg(long, value_name = "TIME", conflicts_with = "VmArgs")]
    pub max_gap: Option<String>,
    /// Stop after this time, such as 330s or 10m [default: 10m; for a running machine 3m]
    #[arg(long, value_name = "TIME")]
    pub budget: Option<String>,
    /// Try these strategies, separated by commas [default: all; with --demo, six of them; not any
    /// with --try]
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub strategies: Vec<String>,
    /// Try a setting on the present placement of a running machine: KEY=VALUE, as --tunable takes it
    /// (docs/tunables.md), or a profile for each of its tunables; may be repeated. Without
    /// --strategies only settings are tried
    #[arg(long = "try", value_name = "SETTING", requires = "VmArgs")]
    pub tries: Vec<String>,
    /// Measure every placement in every block. By default, if there are more than three,
    /// placements that cannot win are dropped early, and at most three are confirmed
    #[arg(long, conflicts_with = "VmArgs")]
    pub full: bool,
    /// Exclude these CPUs from all placements
    #[arg(long, value_name = "CPUS", default_value = "", hide_default_value = true)]
    pub avoid: String,
    /// Plan as if the host had no other owners of CPUs; `pinfold claims` shows them
    #[arg(long, env = "PINFOLD_IGNORE_CLAIMS", hide_env_values = true)]
    pub ignore_claims: bool,
    #[command(flatten)]
    pub store: StoreArg,
    /// Continue an interrupted run, by its number in the store
    #[arg(long, value_name = "RUN", conflicts_with = "VmArgs")]
    pub resume: Option<i64>,
    /// Write the report page to FILE
    #[arg(
        long,
        value_name = "FILE",
        default_value = "pinfold-report.html",
        env = "PINFOLD_REPORT",
        hide_env_values = true
    )]
    pub report: String,
    /// Seed the random order [default: from the clock, and stored]
    #[arg(long)]
    pub seed: Option<u64>,
    /// Also measure inside the guest, which runs `pinload agent`
    #[arg(long, conflicts_with_all = ["demo", "VmArgs"])]
    pub agent: bool,
    /// Wait this long for the guest to boot, if it has no agent
    #[arg(long, default_value = "20s", value_name = "TIME", conflicts_with_all = ["demo", "VmArgs"])]
    pub settle: String,
    /// Wait this long for QEMU's monitor at each start
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub start_timeout: String,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
    /// Tune this QEMU command line; disks are opened with -snapshot and never written
    #[arg(
        last = true,
        required_unless_present_any = ["demo", "VmArgs"],
        conflicts_with = "VmArgs",
        value_name = "QEMU-COMMAND"
    )]
    pub command: Vec<String>,
}
