//! A study as its file says it. `docs/studies/study-file.md` describes the keys.

use std::collections::BTreeMap;
use std::fmt;

use pinfold_model::{CpuSet, Family, Unit};
use pinfold_plan::requests::RequestError;
use pinfold_plan::requests::keys::Fault;
use regex_lite::Regex;

use super::expr::{Expr, Value};

/// Words in braces that every command may use besides factors and values: the list of PUs that the
/// trial runs on (in a guest: of its CPUs), how many they are, the places of its threads in the
/// order of the strategy (`any` where it pins none), the workload's name, the number of the block.
pub const BUILT_IN: [&str; 5] = ["pus", "n_pus", "places", "workload", "block"];

/// Names of the host's facts that expressions may use.
pub const HOST_FACTS: [&str; 6] =
    ["host_pus", "host_cores", "host_nodes", "host_packages", "host_smt", "host_cpufreq"];

/// The level of a method or strategy that leaves everything as it is.
pub const NONE: &str = "none";

/// The level of an instruction set or accelerator that is no guest.
pub const NATIVE: &str = "native";

/// The figure of the time that a guest took to boot, which the first trial of each boot has.
pub const BOOT: &str = "boot";

/// One level of a factor, or the value of a constant.
#[derive(Clone, Debug, PartialEq)]
pub struct Level {
    /// As it is put into commands and shown in tables.
    pub text: String,
    /// As expressions see it: `40%` is 0.4.
    pub value: Value,
}

impl Level {
    /// The number that it is, if it is one.
    #[must_use]
    pub fn number(&self) -> Option<f64> {
        match self.value {
            Value::Number(number) => Some(number),
            Value::Text(_) | Value::Truth(_) => None,
        }
    }
}

/// What the engine does with a factor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acts {
    /// Nothing: its levels stand in commands and tables.
    Variable,
    /// Places the workload by this strategy.
    Strategy,
    /// So many cores are used: of the virtual node, or of the placement.
    Cores,
    /// So many threads has the workload.
    Threads,
    /// So many virtual CPUs has the guest.
    Vcpus,
    /// How fast the cores are, 0 to 1.
    Speed,
    /// How they are slowed; `none` leaves them as they are.
    Method,
    /// `idle` or `loaded`: whether the host carries loads.
    HostLoad,
    /// `idle`, `loaded` or `loaded-no-disk`: which loads the guest carries.
    GuestLoad,
    /// The guest's instruction set; `native` is no guest.
    Isa,
    /// What executes the guest; `native` is no guest.
    Accelerator,
    /// The NUMA node that memory is bound to: a number, `near` (that of the PUs), `far` (another);
    /// `any` binds none.
    MemoryNode,
    /// Where threads run that stream through memory meanwhile: `none`, `same-node`, `other-node`.
    Neighbour,
    /// How many such threads.
    Neighbours,
    /// Where the emulator of a guest runs: `usual`, `real-time`, `apart` (of the strategy `balanced`).
    Emulator,
    /// How many equal guests run at a time; all but the measured one carry loads and float free.
    Machines,
    /// A knob of the host, as `--knob KEY=LEVEL`; `as-is` leaves it.
    Knob(String),
}

/// One thing that is varied.
#[derive(Clone, Debug, PartialEq)]
pub struct Factor {
    /// Its name.
    pub name: String,
    /// What it does.
    pub acts: Acts,
    /// Its levels, in the order of tables.
    pub levels: Vec<Level>,
}

/// An expression with the text that it was read from.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// The text.
    pub text: String,
    /// What it says.
    pub expr: Expr,
    /// Where the text starts in the file, in bytes.
    pub at: usize,
}

/// Cells that are recorded as skipped.
#[derive(Clone, Debug, PartialEq)]
pub struct Skip {
    /// Which.
    pub when: Rule,
    /// Why.
    pub reason: String,
}

/// What runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// A subcommand of `pinload` with its arguments.
    Pinload(Vec<String>),
    /// Program and arguments, without a shell.
    Command(Vec<String>),
}

impl Program {
    /// Its words, with `{factor}` not yet replaced.
    #[must_use]
    pub fn words(&self) -> &[String] {
        match self {
            Program::Pinload(words) | Program::Command(words) => words,
        }
    }
}

/// Where a figure comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// An expression over the fields of a JSON document in the output, one per line or the whole.
    Json(Expr),
    /// The first group of each match of a regular expression.
    Regex(Box<Regex>),
}

/// Which way a figure improves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Times.
    Lower,
    /// Rates.
    Higher,
}

/// A figure that is read from what a workload prints.
#[derive(Clone, Debug)]
pub struct FigureRule {
    /// Its name.
    pub name: String,
    /// Unit of its samples.
    pub unit: Unit,
    /// How its samples are summarised.
    pub family: Family,
    /// Where it comes from.
    pub source: Source,
    /// Of JSON: the documents that it is read from; all if it is not said.
    pub only: Option<Expr>,
    /// Of JSON: fields that tell its figures apart; the last step of each path is a label.
    pub labels: Vec<String>,
}

/// A program and how to read what it prints.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Its name.
    pub name: String,
    /// What runs.
    pub program: Program,
    /// The file of a static program that is sent into a guest in the place of a command's first
    /// word, with `{factor}` not yet replaced.
    pub guest_program: Option<String>,
    /// About how long (seconds), over factors and values.
    pub lasts_s: Rule,
    /// Longest time that a trial may take (ns).
    pub time_limit_ns: u64,
    /// What is read from its output. Without any the lines of a `pinload` instrument are.
    pub figures: Vec<FigureRule>,
}

/// The study's own summary of a cell beside Pinfold's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Summary {
    /// Median of the starts.
    Median,
    /// Mean of the starts with their standard deviation (Badaroux 2021: of 10).
    Mean,
    /// Mean of the starts with its 95 % interval by Student's t (Buchert 2011: of 40).
    MeanInterval,
}

impl Summary {
    /// Its name in files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Summary::Median => "median",
            Summary::Mean => "mean",
            Summary::MeanInterval => "mean-95",
        }
    }
}

/// What is looked at beside the workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Probe {
    /// Share of the PUs' time that the hypervisor took.
    Steal,
    /// Share of the PUs' time that was busy.
    Busy,
    /// Moves of threads from one PU to another: of the vCPUs' threads, or of the process's.
    Migrations,
    /// Their context switches.
    Switches,
    /// Their loads that missed the first level's data cache, where there is a PMU.
    L1dMisses,
    /// Share of their time that they waited for locks.
    LockTime,
    /// What made the guest leave the processor, by type, where events of KVM fire.
    Exits,
}

impl Probe {
    /// All of them.
    pub const ALL: [Probe; 7] = [
        Probe::Steal,
        Probe::Busy,
        Probe::Migrations,
        Probe::Switches,
        Probe::L1dMisses,
        Probe::LockTime,
        Probe::Exits,
    ];

    /// Its name in files, which is its figure's name too.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Probe::Steal => "steal",
            Probe::Busy => "busy",
            Probe::Migrations => "migrations",
            Probe::Switches => "switches",
            Probe::L1dMisses => "l1d_misses",
            Probe::LockTime => "lock_time",
            Probe::Exits => "exits",
        }
    }
}

/// When enough was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Stop {
    /// The figure that decides.
    pub figure: String,
    /// All intervals of ratios are at most so wide to either side of their middle, as a share.
    pub half_width: f64,
    /// But not before so many blocks.
    pub at_least: u32,
}

/// What a plot or table shows of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// The figure itself.
    Value,
    /// Its ratio to the baseline.
    Ratio,
    /// The ratio less what was asked (`ideal`), in points of 100.
    Error,
}

/// How a plot is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlotKind {
    /// Lines over a factor, with intervals.
    Lines,
    /// Groups of bars, with intervals.
    Bars,
    /// All samples by their percentile, each nine as wide as the one before.
    Percentiles,
}

/// What a plot and a table have in common.
#[derive(Clone, Debug, PartialEq)]
pub struct Selection {
    /// Name of the figure.
    pub figure: String,
    /// Labels that the figure has.
    pub labels: BTreeMap<String, String>,
    /// Which cells.
    pub only: Option<Rule>,
    /// What is shown of it.
    pub shown: Shown,
    /// What it should be, over factors: drawn as a line, and what an error is counted from.
    pub ideal: Option<Rule>,
}

/// A figure of the report.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    /// Its name, in names of files too.
    pub name: String,
    /// Its title.
    pub title: String,
    /// How it is drawn.
    pub kind: PlotKind,
    /// What it shows.
    pub selection: Selection,
    /// The factor (or label of the figure) along the axis; empty for percentiles.
    pub x: String,
    /// The unit of what lies along the axis, if it has one.
    pub x_unit: Option<Unit>,
    /// The factor (or label) that tells its lines apart.
    pub series: Option<String>,
    /// The factor whose levels get a plot each.
    pub panel: Option<String>,
    /// A line across the axis at this value.
    pub mark: Option<Rule>,
    /// Whether the axis along is logarithmic.
    pub log_x: bool,
    /// Whether the axis up is logarithmic.
    pub log_y: bool,
}

/// A table of the report.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Its name, in names of files too.
    pub name: String,
    /// Its title.
    pub title: String,
    /// What it shows: of one figure, or of several side by side.
    pub selections: Vec<Selection>,
    /// Factors (or labels) that tell its rows apart.
    pub rows: Vec<String>,
    /// The factor (or label) that tells the columns of a single figure apart.
    pub columns: Option<String>,
}

/// A sentence of the source, and what would make it true here.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// What the source says, in its words.
    pub source: String,
    /// Where it says so.
    pub place: String,
    /// What we see: a text with expressions in braces.
    pub see: String,
    /// True if we agree.
    pub agree: Rule,
}

/// A documented reduction that still shows the shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Quick {
    /// What it leaves out and what that costs, in a sentence.
    pub note: String,
    /// Repetitions.
    pub repetitions: Option<u32>,
    /// Starts per cell and block.
    pub starts: Option<u32>,
    /// Warm-up runs.
    pub warm_up: Option<u32>,
    /// Levels of factors.
    pub levels: BTreeMap<String, Vec<Level>>,
    /// Constants.
    pub values: BTreeMap<String, Level>,
    /// The longest time of one run of a workload, where its own is not shorter (ns).
    pub time_limit_ns: Option<u64>,
    /// The workloads that stay; empty for all.
    pub workloads: Vec<String>,
}

/// A study.
#[derive(Clone, Debug)]
pub struct Study {
    /// The file's text.
    pub text: String,
    /// Its name.
    pub name: String,
    /// Its title.
    pub title: String,
    /// The question that it answers.
    pub question: String,
    /// Whose experiment it repeats.
    pub source: String,
    /// Seed of the order.
    pub seed: u64,
    /// Complete blocks.
    pub repetitions: u32,
    /// Starts of a process or machine per cell and block.
    pub starts: u32,
    /// Runs of the workload before the measured one, thrown away.
    pub warm_up: u32,
    /// Time that the whole may take (ns); no further block begins that would exceed it.
    pub budget_ns: Option<u64>,
    /// When enough was measured.
    pub stop: Option<Stop>,
    /// PUs that may be used; all if it is not said.
    pub pus: Option<CpuSet>,
    /// Whether real-time burners may use the last PU of the host's own tasks too.
    pub share_housekeeping: bool,
    /// Ratios within so much of 1 count as the same.
    pub margin: f64,
    /// Constants for commands and expressions.
    pub values: BTreeMap<String, Level>,
    /// What is varied.
    pub factors: Vec<Factor>,
    /// Factors whose cells run next to each other in a block.
    pub together: Vec<String>,
    /// Factors whose cells share a start.
    pub share: Vec<String>,
    /// What must hold of a cell.
    pub constraints: Vec<Rule>,
    /// Cells that are recorded as skipped.
    pub skips: Vec<Skip>,
    /// The levels that others are compared with.
    pub baseline: BTreeMap<String, Level>,
    /// What runs.
    pub workloads: Vec<Workload>,
    /// What is looked at beside.
    pub probes: Vec<Probe>,
    /// The source's own summary.
    pub summary: Summary,
    /// Figures of the report.
    pub plots: Vec<Plot>,
    /// Tables of the report.
    pub tables: Vec<Table>,
    /// What the source says.
    pub claims: Vec<Claim>,
    /// The reduction.
    pub quick: Option<Quick>,
}

impl Study {
    /// The factor of this name.
    #[must_use]
    pub fn factor(&self, name: &str) -> Option<&Factor> {
        self.factors.iter().find(|factor| factor.name == name)
    }

    /// True for a factor's name and for `workload`.
    #[must_use]
    pub fn varies(&self, name: &str) -> bool {
        name == "workload" || self.factor(name).is_some()
    }

    /// A fault in the file's text, with line and column.
    #[must_use]
    pub fn fault(&self, at: usize, why: String) -> RequestError {
        RequestError::in_file(&self.text, Fault::new(at, why))
    }

    /// True if expressions over cells may use this name.
    #[must_use]
    pub fn knows(&self, name: &str) -> bool {
        self.varies(name) || self.values.contains_key(name) || HOST_FACTS.contains(&name)
    }
}

/// What is known of the host without measuring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostFacts {
    /// PUs that may be used.
    pub pus: usize,
    /// Their cores.
    pub cores: usize,
    /// NUMA nodes.
    pub nodes: usize,
    /// Packages.
    pub packages: usize,
    /// Whether a core has several PUs.
    pub smt: bool,
    /// Whether the kernel governs their frequency.
    pub cpufreq: bool,
}

impl HostFacts {
    /// The fact of this name.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<Value> {
        let number = |count: usize| Some(Value::Number(count as f64));
        match name {
            "host_pus" => number(self.pus),
            "host_cores" => number(self.cores),
            "host_nodes" => number(self.nodes),
            "host_packages" => number(self.packages),
            "host_smt" => Some(Value::Truth(self.smt)),
            "host_cpufreq" => Some(Value::Truth(self.cpufreq)),
            _ => None,
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
