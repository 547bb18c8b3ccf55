//! The contents of a study file. `docs/studies/study-file.md` describes the keys.

use std::collections::BTreeMap;
use std::fmt;

use pinfold_config::ConfigError;
use pinfold_config::fault::Fault;
use pinfold_model::{CpuSet, Family, PlotKind, Unit};

use super::expr::{Expr, Value};
use regex_lite::Regex;
use serde::{Deserialize, Serialize};

/// Placeholders that every command may use in addition to factors and values: the list of CPUs that
/// the trial runs on (in a guest: of its CPUs), their number, the CPUs of its threads in the order
/// of the strategy (`any` if it does not pin them), the name of the workload, the number of the
/// block.
pub const BUILT_IN: [&str; 5] = ["pus", "n_pus", "places", "workload", "block"];

/// Names of host facts that expressions may use.
pub const HOST_FACTS: [&str; 6] =
    ["host_pus", "host_cores", "host_nodes", "host_packages", "host_smt", "host_cpufreq"];

/// The level of a method or strategy that changes nothing.
pub const NONE: &str = "none";

/// The level of an instruction set or accelerator without a guest.
pub const NATIVE: &str = "native";

/// The level of the kind of a neighbour that is a guest.
pub const GUEST: &str = "guest";

/// The level of a tunable or feature that leaves it unchanged.
pub const AS_IS: &str = "as-is";

/// The level of the other machines that run the measured program.
pub const SAME_PROGRAM: &str = "same-program";

/// The figure of the boot time of a guest, which the first trial of each boot has.
pub const BOOT: &str = "boot";

/// The figure that every trial has.
pub const WHOLE_TIME: &str = "t_full";

/// One level of a factor, or the value of a constant.
#[derive(Clone, Debug, PartialEq)]
pub struct Level {
    /// The text for commands and tables.
    pub text: String,
    /// The value for expressions: `40%` is 0.4.
    pub value: Value,
}

impl Level {
    /// The value as a number, if it is one.
    pub fn number(&self) -> Option<f64> {
        match self.value {
            Value::Number(number) => Some(number),
            Value::Text(_) | Value::Truth(_) => None,
        }
    }
}

/// Name of the value that selects the kernel of x86-64 guests.
const REAL_TIME_GUEST: &str = "real_time_guest";

/// The effect of a factor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FactorEffect {
    /// None: its levels appear in commands and tables.
    Variable,
    /// The strategy that places the workload.
    Strategy,
    /// Number of cores: of the virtual node, or of the placement.
    Cores,
    /// Number of threads of the workload.
    Threads,
    /// Number of virtual CPUs of the guest.
    Vcpus,
    /// Speed of the cores, 0 to 1.
    Speed,
    /// The method of slowing the cores; `none` leaves them unchanged.
    Method,
    /// The form of this method: `corrected` or `as-published`.
    Variant,
    /// `idle` or `loaded`: whether loads run on the host.
    HostLoad,
    /// `idle`, `loaded` or `loaded-no-disk`: which loads run in the guest.
    GuestLoad,
    /// The instruction set of the guest; `native` is no guest.
    Isa,
    /// The accelerator of the guest; `native` is no guest.
    Accelerator,
    /// The NUMA node that memory is bound to: a number, `near` (that of the CPUs), `far` (another);
    /// `any` does not bind it.
    MemoryNode,
    /// The NUMA node of threads that stream through memory at the same time: `none`, `same-node`,
    /// `other-node`.
    Neighbour,
    /// Number of these threads, or of the vCPUs of the guest that streams instead.
    Neighbours,
    /// What streams: `thread` (of the host) or `guest` (another one, placed and loaded).
    NeighbourKind,
    /// Where the emulator threads of a guest run: `usual`, `real-time`, `apart` (of the strategy
    /// `balanced`).
    Emulator,
    /// Number of equal guests at a time; natively of copies of the program on the same CPUs.
    Machines,
    /// What the guests other than the measured one run: `loaded` (loads, and they are not pinned)
    /// or `same-program` (the measured program, started together, under the same placement).
    OtherMachines,
    /// Levels of the guest's page tables: 4 or 5; `as-is` leaves them to its kernel and processor.
    PageTableLevels,
    /// A tunable of the host, as `--tunable KEY=LEVEL`; `as-is` leaves it unchanged.
    Tunable(String),
}

/// A factor: one thing that is varied.
#[derive(Clone, Debug, PartialEq)]
pub struct Factor {
    /// Name of the factor.
    pub name: String,
    /// Effect of its levels.
    pub effect: FactorEffect,
    /// Its levels, in the order of tables.
    pub levels: Vec<Level>,
}

/// An expression with its source text.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// The source text.
    pub text: String,
    /// The parsed expression.
    pub expr: Expr,
    /// Byte offset of the text in the file.
    pub at: usize,
}

/// A rule for cells that are recorded as skipped.
#[derive(Clone, Debug, PartialEq)]
pub struct Skip {
    /// The condition.
    pub when: Rule,
    /// The reason.
    pub reason: String,
}

/// The program of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// A subcommand of `pinload` with its arguments.
    Pinload(Vec<String>),
    /// Program and arguments, without a shell.
    Command(Vec<String>),
}

impl Program {
    /// Its arguments, before `{factor}` is replaced.
    pub fn words(&self) -> &[String] {
        match self {
            Program::Pinload(words) | Program::Command(words) => words,
        }
    }
}

/// Source of a figure.
#[derive(Clone, Debug)]
pub enum Source {
    /// An expression over the fields of JSON documents in the output, one per line or a single one.
    Json(Expr),
    /// The first group of each match of a regular expression.
    Regex(Box<Regex>),
}

/// An output stream of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error, where `perf stat` and `time` print.
    Stderr,
}

impl Stream {
    /// Both streams.
    pub const ALL: [Stream; 2] = [Stream::Stdout, Stream::Stderr];

    /// Name in files and messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        }
    }
}

/// A figure that is read from the output of a workload.
#[derive(Clone, Debug)]
pub struct FigureRule {
    /// Its name.
    pub name: String,
    /// Unit of its samples.
    pub unit: Unit,
    /// How its samples are summarised.
    pub family: Family,
    /// The stream that it is read from.
    pub from: Stream,
    /// Source of its samples.
    pub source: Source,
    /// For JSON: a condition on the documents; `None` for all.
    pub only: Option<Expr>,
    /// For JSON: fields whose values become labels; the last component of each path is the name of
    /// the label.
    pub labels: Vec<String>,
}

/// A program, and how to parse its output.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Its name.
    pub name: String,
    /// The program.
    pub program: Program,
    /// A static program file that is sent into a guest and replaces the first word of a command,
    /// before `{factor}` is replaced.
    pub guest_program: Option<String>,
    /// Approximate duration (seconds), over factors and values.
    pub lasts_s: Rule,
    /// Timeout of a trial (ns).
    pub time_limit_ns: u64,
    /// Figures to read from its output. If empty, the output has the lines of a `pinload`
    /// instrument.
    pub figures: Vec<FigureRule>,
}

/// The source's summary of a cell, in addition to Pinfold's.
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
    /// Name in files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Summary::Median => "median",
            Summary::Mean => "mean",
            Summary::MeanInterval => "mean-95",
        }
    }
}

/// What is observed during the workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Probe {
    /// Share of the CPUs' time that the hypervisor took.
    Steal,
    /// Share of the CPUs' time that was busy.
    Busy,
    /// Migrations of the vCPU threads, or of the threads of the process.
    Migrations,
    /// Context switches of these threads.
    Switches,
    /// Loads of these threads that missed the L1 data cache, if there is a PMU.
    L1dMisses,
    /// Migrations of all threads of QEMU: of its vCPUs, its main loop, its helpers.
    ProcessMigrations,
    /// Context switches of these threads.
    ProcessSwitches,
    /// Loads of these threads that missed the L1 data cache, if there is a PMU.
    ProcessL1dMisses,
    /// Share of the vCPU threads' time that they waited for locks.
    LockTime,
    /// Share of the cycles of all threads of QEMU, or of the process, inside `futex(2)`: of the
    /// whole program, and of its region of interest if it marks that.
    FutexCycles,
    /// Share of these cycles inside `futex(2)` that were for the lock with most of them.
    FutexLock,
    /// VM exits by type, if KVM events fire.
    Exits,
}

impl Probe {
    /// All probes.
    pub const ALL: [Probe; 12] = [
        Probe::Steal,
        Probe::Busy,
        Probe::Migrations,
        Probe::Switches,
        Probe::L1dMisses,
        Probe::ProcessMigrations,
        Probe::ProcessSwitches,
        Probe::ProcessL1dMisses,
        Probe::LockTime,
        Probe::FutexCycles,
        Probe::FutexLock,
        Probe::Exits,
    ];

    /// Name in files and of the figure.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Probe::Steal => "steal",
            Probe::Busy => "busy",
            Probe::Migrations => "migrations",
            Probe::Switches => "switches",
            Probe::L1dMisses => "l1d_misses",
            Probe::ProcessMigrations => "process_migrations",
            Probe::ProcessSwitches => "process_switches",
            Probe::ProcessL1dMisses => "process_l1d_misses",
            Probe::LockTime => "lock_time",
            Probe::FutexCycles => "futex_cycles",
            Probe::FutexLock => "futex_lock",
            Probe::Exits => "exits",
        }
    }
}

/// The condition to stop early.
#[derive(Clone, Debug, PartialEq)]
pub struct Stop {
    /// The figure that decides.
    pub figure: String,
    /// Maximum half-width of all intervals of ratios, as a share.
    pub half_width: f64,
    /// Minimum number of blocks.
    pub at_least: u32,
}

/// What a plot or table shows of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DisplayedStatistic {
    /// The figure itself.
    Value,
    /// The sum of the figure over cells and blocks.
    Sum,
    /// Its ratio to the baseline.
    Ratio,
    /// The ratio minus `ideal`, in percentage points.
    Error,
}

/// The x axis of a sequence: the number of the sample, from 1.
pub const ORDER: &str = "order";
/// The x axis of a sequence of durations: the sum of the samples so far, as they follow one
/// another.
pub const TIME: &str = "time";

/// The settings that plots and tables have in common.
#[derive(Clone, Debug, PartialEq)]
pub struct Selection {
    /// Name of the figure.
    pub figure: String,
    /// Labels that the figure must have.
    pub labels: BTreeMap<String, String>,
    /// A condition on the cells.
    pub only: Option<Rule>,
    /// What is shown of the figure.
    pub shown: DisplayedStatistic,
    /// The levels that ratios compare with; those of the study unless it has its own.
    pub baseline: BTreeMap<String, Level>,
    /// The expected value, over factors: drawn as a line, and the reference of an error.
    pub ideal: Option<Rule>,
}

/// A plot of the report.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    /// Name, also in file names.
    pub name: String,
    /// Title.
    pub title: String,
    /// Kind.
    pub kind: PlotKind,
    /// What it shows.
    pub selection: Selection,
    /// The factor (or label of the figure) on the x axis; empty for percentiles; for a sequence
    /// [`ORDER`] or [`TIME`].
    pub x: String,
    /// The unit of the x axis, if it has one.
    pub x_unit: Option<Unit>,
    /// The factor (or label) with one line for each level.
    pub series: Option<String>,
    /// The factor with one plot for each level.
    pub panel: Option<String>,
    /// The value of a horizontal line.
    pub mark: Option<Rule>,
    /// True if the x axis is logarithmic.
    pub log_x: bool,
    /// True if the y axis is logarithmic.
    pub log_y: bool,
}

/// A row of the lab that shows a part of the study functionally, without times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabRow {
    /// Name of the case in `docs/lab.md`.
    pub case: String,
    /// What it shows.
    pub shows: String,
}

/// A table of the report.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Name, also in file names.
    pub name: String,
    /// Title.
    pub title: String,
    /// What it shows: one figure, or several statistics and figures side by side.
    pub selections: Vec<Selection>,
    /// The name of the column of each selection; empty for a single figure.
    pub headings: Vec<String>,
    /// True if cells that were skipped have rows too.
    pub has_skipped_rows: bool,
    /// Factors (or labels) whose levels are the rows.
    pub rows: Vec<String>,
    /// The factor (or label) whose levels are the columns, for a single figure.
    pub columns: Option<String>,
}

/// A claim of the source, and the condition under which it is reproduced.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// The claim, in our words.
    pub source: String,
    /// True if it is not in the source, but one of this study.
    pub is_own: bool,
    /// Where the source makes it.
    pub place: String,
    /// The cells that all its functions select from.
    pub only: Option<Rule>,
    /// The figures of its functions.
    pub figures: Vec<String>,
    /// What this study observes: a text with expressions in braces.
    pub see: String,
    /// The condition under which the results agree.
    pub agree: Rule,
}

/// A value that the source publishes, next to which the page shows that of this run.
#[derive(Clone, Debug, PartialEq)]
pub struct PublishedValue {
    /// The figure, table or section of the source.
    pub place: String,
    /// The quantity, in our words.
    pub quantity: String,
    /// The source's value.
    pub value: f64,
    /// Its uncertainty as the source states it: `σ 172`.
    pub spread: String,
    /// Its unit; `None` for ratios, which hold on any machine.
    pub unit: Option<Unit>,
    /// The figures of the functions of `ours`.
    pub figures: Vec<String>,
    /// The same quantity of this run.
    pub ours: Rule,
}

/// Name of the preset that `--quick` selects.
pub const QUICK: &str = "quick";

/// A documented shorter form of a study that still shows the same shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Preset {
    /// Position in the file's text.
    pub at: usize,
    /// What it leaves out and the consequences, in a sentence.
    pub note: String,
    /// Number of repetitions.
    pub repetitions: Option<u32>,
    /// Number of starts per cell and block.
    pub starts: Option<u32>,
    /// Number of warm-up runs.
    pub warm_up: Option<u32>,
    /// Levels of factors.
    pub levels: BTreeMap<String, Vec<Level>>,
    /// Constants.
    pub values: BTreeMap<String, Level>,
    /// Upper limit of the timeout of a workload (ns).
    pub time_limit_ns: Option<u64>,
    /// The workloads that are run; empty for all.
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
    /// The experiment that it repeats.
    pub source: String,
    /// Seed of the random order.
    pub seed: u64,
    /// Number of complete blocks.
    pub repetitions: u32,
    /// Number of starts of a process or machine per cell and block.
    pub starts: u32,
    /// Number of warm-up runs of the workload before the measured one.
    pub warm_up: u32,
    /// Time limit of the whole study (ns); no block starts that would exceed it.
    pub budget_ns: Option<u64>,
    /// The condition to stop early.
    pub stop: Option<Stop>,
    /// The CPUs that may be used; `None` for all.
    pub pus: Option<CpuSet>,
    /// If true, real-time burners may also use the last CPU of the host's own tasks.
    pub share_housekeeping: bool,
    /// Ratios within `1 ± margin` count as the same.
    pub margin: f64,
    /// Constants for commands and expressions.
    pub values: BTreeMap<String, Level>,
    /// The factors.
    pub factors: Vec<Factor>,
    /// Factors whose cells run next to each other in a block.
    pub together: Vec<String>,
    /// Factors whose cells share a start.
    pub share: Vec<String>,
    /// Conditions that each cell must meet.
    pub constraints: Vec<Rule>,
    /// Cells that are recorded as skipped.
    pub skips: Vec<Skip>,
    /// The levels that others are compared with.
    pub baseline: BTreeMap<String, Level>,
    /// The workloads.
    pub workloads: Vec<Workload>,
    /// What is observed during the workloads.
    pub probes: Vec<Probe>,
    /// The source's summary.
    pub summary: Summary,
    /// Plots of the report.
    pub plots: Vec<Plot>,
    /// Tables of the report.
    pub tables: Vec<Table>,
    /// Claims of the source.
    pub claims: Vec<Claim>,
    /// Values of the source.
    pub published: Vec<PublishedValue>,
    /// What the lab shows functionally.
    pub lab: Vec<LabRow>,
    /// Its shorter forms, by name.
    pub presets: BTreeMap<String, Preset>,
    /// The preset that this form of the study is, if it is one.
    pub preset: Option<String>,
}

impl Study {
    /// True if a workload, a probe or every trial gives this figure. A workload without figures of
    /// its own gives those of the lines that it prints.
    pub fn has_figure_source(&self, figure: &str) -> bool {
        self.workloads
            .iter()
            .any(|one| one.figures.is_empty() || one.figures.iter().any(|rule| rule.name == figure))
            || self.probes.iter().any(|probe| probe.name() == figure)
            || [WHOLE_TIME, BOOT].contains(&figure)
    }

    /// The factor with this name.
    #[must_use]
    pub fn factor(&self, name: &str) -> Option<&Factor> {
        self.factors.iter().find(|factor| factor.name == name)
    }

    /// True for a factor's name and for `workload`.
    pub fn is_factor_name(&self, name: &str) -> bool {
        name == "workload" || self.factor(name).is_some()
    }

    /// True if guests run a kernel with PREEMPT_RT, which has the tracers of latencies: the value
    /// `real_time_guest`.
    #[must_use]
    pub fn real_time_guest(&self) -> bool {
        let level = self.values.get(REAL_TIME_GUEST);
        level.is_some_and(|level| level.value == Value::Truth(true))
    }

    /// An error at this byte offset of the file, with line and column.
    pub fn fault(&self, at: usize, why: String) -> ConfigError {
        ConfigError::in_file(&self.text, Fault::new(at, why))
    }

    /// True if expressions over cells may use this name.
    #[must_use]
    pub fn is_known_name(&self, name: &str) -> bool {
        self.is_factor_name(name) || self.values.contains_key(name) || HOST_FACTS.contains(&name)
    }
}

/// Properties of the host that are known without measuring.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostFacts {
    /// Number of CPUs that may be used.
    pub pus: usize,
    /// Number of their cores.
    pub cores: usize,
    /// Number of NUMA nodes.
    pub nodes: usize,
    /// Number of packages.
    pub packages: usize,
    /// True if a core has several CPUs (SMT).
    pub smt: bool,
    /// True if the kernel controls their frequency (cpufreq).
    #[serde(default)]
    pub cpufreq: bool,
}

impl HostFacts {
    /// The fact with this name.
    pub fn value(&self, name: &str) -> Option<Value> {
        fn number(count: usize) -> Option<Value> {
            Some(Value::Number(count as f64))
        }

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
