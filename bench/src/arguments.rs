//! The arguments of the program, and why a benchmark fails.

use clap::{Parser, ValueEnum};

/// Why a benchmark did not run; its causes are printed after it.
pub type Failure = Box<dyn std::error::Error>;

/// Runs Pinfold's benchmarks, each with its competitor.
#[derive(Debug, Parser)]
#[command(name = "pinfold-bench")]
pub struct Arguments {
    /// Which [default: pin, plan and first-second; the others need a machine without other
    /// work, or minutes]
    pub names: Vec<Name>,
    /// Rounds; each runs every contender once, in quiet five times [default: as many as the
    /// benchmark needs]
    #[arg(long, value_name = "N")]
    pub rounds: Option<u32>,
    /// Begin no further block after so many minutes (emulate)
    #[arg(long, value_name = "N")]
    pub minutes: Option<u32>,
    /// Seed of the random order
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Write the figures to a page [default: docs/figures.md, docs/emulation.md,
    /// docs/scale.md]
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    pub write: Option<Option<String>>,
    /// A short run: a few minutes (emulate), 100 nodes (scale), 20 ms of work (quiet), a short
    /// profile and one program (like), two programs and no calibration (programs), a second of
    /// each part (watch)
    #[arg(long)]
    pub quick: bool,
    /// Only these rows, by their names in the tables, separated by commas (emulate); of gaps by
    /// their words in bench/rivals/culprits.c, such as fifo,stop
    #[arg(long, value_name = "NAMES")]
    pub only: Option<String>,
    /// The `pinfold` program [default: the one next to this program]
    #[arg(long, value_name = "FILE")]
    pub pinfold: Option<String>,
    /// The folder of captured machines
    #[arg(long, value_name = "DIRECTORY", default_value = "fixtures/hosts")]
    pub hosts: String,
    /// Be the work of quiet, with this number of steps
    #[arg(long, hide = true)]
    pub work: Option<u64>,
    /// Be a program of the load of quiet, with this seed, until a signal ends it
    #[arg(long, hide = true)]
    pub load: Option<u64>,
}

/// A benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Name {
    /// Finding and pinning all threads of a guest with 32 vCPUs
    Pin,
    /// Planning 10,000 vCPUs on 4,096 CPUs, and less on less
    Plan,
    /// Where a guest runs before it is pinned
    FirstSecond,
    /// What watching ten guests costs, and how soon a new thread is placed
    Watch,
    /// Count the exits of a micro-guest, and measure what counting costs
    Exits,
    /// Whether the causes of gaps are named right, and their lengths
    Gaps,
    /// How soon libvirt has the nodes for a domain with `placement='auto'`
    Numad,
    /// When the first command runs in a slow node, by method
    Start,
    /// How fast programs of others run in a slow node, by method
    Programs,
    /// What a sample of `pinfold top` costs, by BPF and from /proc
    Top,
    /// Whether a search on a running machine finds the winner that restarts find
    Live,
    /// Whether programs run as fast as the prediction of --like says
    Like,
    /// How accurate the speed of a virtual node is, by method
    Emulate,
    /// How much the run time of the same work varies next to a load
    Quiet,
    /// A study on a simulated cluster of 10,000 nodes
    Scale,
}

impl Name {
    /// True if it runs without being named.
    pub fn runs_by_default(self) -> bool {
        match self {
            Name::Pin | Name::Plan | Name::FirstSecond => true,
            Name::Watch
            | Name::Exits
            | Name::Gaps
            | Name::Numad
            | Name::Start
            | Name::Programs
            | Name::Top
            | Name::Live
            | Name::Like
            | Name::Emulate
            | Name::Quiet
            | Name::Scale => false,
        }
    }
}
