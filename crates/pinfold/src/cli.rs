//! The command line: what may be typed, and the help that goes with it.
//!
//! Nothing is decided here. Each `…Args` is turned into a request by its command.

pub mod emulate;
pub mod exits;
pub mod measure;
#[cfg(test)]
mod pages;
pub mod study;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use pinfold_model::IsolationScope;
use pinfold_plan::emit::{self, Format};

const AFTER_HELP: &str = "\
Exit codes:
  0  done, and all is as asked
  1  the answer is no: doctor found the main job impossible, status found drift,
     plan --check found warnings or problems, trials of a study failed,
     exits saw nothing or counted wrong, no platform of vnodes is up
  2  the command line or a file that was handed in is wrong
  3  this host cannot do it, or does not allow it; undo: a process that is alive holds it
  4  the virtual machine could not be started, or ended half-way
  5  something could not be restored; `pinfold status` names it
  130  interrupted; what was done is stored or restored
     (0 for watch, apply --watch, emulate up --foreground: a signal ends them)
`run --cores`, `run --speed`, `emulate exec` and `emulate shell` end as their command does.";

/// Finds, makes and proves the best placement of a virtual machine on this host.
#[derive(Debug, Parser)]
#[command(name = "pinfold", version, after_help = AFTER_HELP, max_term_width = 100)]
pub struct Cli {
    /// Folder of the journal and the locks [default: /var/lib/pinfold as root]
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        env = "PINFOLD_STATE_DIR",
        hide_env_values = true
    )]
    pub state_dir: Option<String>,

    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the host: packages, NUMA nodes, L3 domains, cores, PUs
    Topo(TopoArgs),
    /// What this host can and cannot do, and what to change
    Doctor(DoctorArgs),
    /// Work out a placement, explain it, check one, print it for libvirt, QEMU, systemd, …
    Plan(Box<PlanArgs>),
    /// Start QEMU stopped, pin every thread, let it go, watch it, clean up; or any command,
    /// placed like a machine (--cores) or on slower CPUs (--speed)
    Run(Box<RunArgs>),
    /// Pin a virtual machine that is already running
    Apply(ApplyArgs),
    /// Compare what was planned with what is found
    Status(StatusArgs),
    /// Revert what `apply` did, also after a crash
    Undo(UndoArgs),
    /// Monitor active placements: pin new and drifted threads again; text, JSON, metrics
    Watch(WatchArgs),
    /// Show what was changed, when, and what was there before
    Journal(JournalArgs),
    /// Called by libvirt as its hook: applies the plan that is kept for a domain
    LibvirtHook(LibvirtHookArgs),
    /// Takes real-time rights away when the Pinfold that started it stops responding
    #[command(hide = true)]
    Guard(GuardArgs),
    /// Releases what a supervisor of slow vnodes froze or stopped, when that falls silent
    #[command(hide = true)]
    Sentinel(SentinelArgs),
    /// Make CPUs slower: virtual nodes of given speeds, and how accurate they are
    Emulate(emulate::EmulateArgs),
    /// Run one benchmark on chosen CPUs, under a plan's pinning, or inside a guest
    Measure(Box<measure::MeasureArgs>),
    /// Two measurements, two plans, or guest against native: ratio, interval, verdict
    Compare(measure::CompareArgs),
    /// Find the best placement for a virtual machine on this host
    Tune(TuneArgs),
    /// What makes a virtual machine leave the processor: how often, how long, at which address
    Exits(exits::ExitsArgs),
    /// The guest of `exits --micro-guest`
    #[command(hide = true)]
    MicroGuest,
    /// Run an experiment from a file: factors, workloads, repetitions, resumable
    Study(study::StudyArgs),
    /// Becomes the command when its standard input ends, so that it can be placed before
    #[command(hide = true)]
    Gate(study::GateArgs),
    /// Make the report page of a stored run again
    Report(ReportArgs),
}

/// `pinfold sentinel`.
#[derive(Debug, Args)]
pub struct SentinelArgs {
    /// Write this value to this file of the kernel
    #[arg(long, value_name = "PATH=VALUE")]
    pub write: Vec<String>,
    /// Let the stopped processes of this cgroup go on
    #[arg(long = "continue", value_name = "GROUP")]
    pub group: Option<String>,
}

/// `pinfold topo`.
#[derive(Debug, Args)]
pub struct TopoArgs {
    /// A captured machine, an hwloc XML file, a folder or tarball with the /sys of a machine, or
    /// a description such as "node:4 core:4 pu:2"
    #[arg(long, value_name = "FILE|DESCRIPTION")]
    pub input: Option<String>,
    /// Print JSON
    #[arg(long, conflicts_with = "capture")]
    pub json: bool,
    /// Write this machine as a capture (without anything that identifies it) to standard output
    #[arg(long, conflicts_with = "input")]
    pub capture: bool,
}

/// `pinfold doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// A captured machine (`pinfold topo --capture`): what the capture can answer
    #[arg(long, value_name = "FILE")]
    pub input: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// What can be asked of a placement; shared by plan, run, apply.
#[derive(Debug, Args)]
pub struct PlacementArgs {
    /// Name of the strategy [default: auto]; `pinfold plan --list` shows them
    #[arg(long, short = 's', value_name = "NAME")]
    pub strategy: Option<String>,
    /// Which cores are taken first where they are not alike: cache, frequency, efficiency, none
    /// [default: a die with a stacked cache, else the fastest kind of cores]
    #[arg(long, value_name = "WHAT")]
    pub prefer: Option<String>,
    /// PUs (OS indexes) that nothing of the plan may use, such as 0-1,8
    #[arg(long, value_name = "PUS", default_value = "")]
    pub avoid: String,
    /// Which other tasks are excluded from the CPUs that the strategy reserves
    #[arg(long, value_name = "SCOPE", default_value = "none")]
    pub isolate: Isolate,
    /// PUs that stay free of the plan: a number, or a part such as 25%
    #[arg(long, value_name = "N|N%")]
    pub free: Option<String>,
    /// PUs (OS indexes) for the host's own tasks, which stay free of the plan
    #[arg(long, value_name = "PUS", conflicts_with = "free")]
    pub host_pus: Option<String>,
    /// Where `balanced` puts the emulator: usual (with the host's tasks), real-time (there, with
    /// priority over them), apart (on PUs that the host's tasks do not get)
    #[arg(long, value_name = "WHERE", default_value = "usual")]
    pub emulator: String,
    /// Pin threads by hand, whatever the strategy gives them: vcpu3=7, vcpu0-3=8-11,
    /// emulator=0,8, iothread:ID=9; may be repeated
    #[arg(long = "pin", value_name = "ROLE=PUS")]
    pub pins: Vec<String>,
    /// Set a tunable of the host too, such as thp=never or workqueues=housekeeping; may be repeated.
    /// An unknown key lists them all
    #[arg(long = "knob", value_name = "KEY=VALUE")]
    pub knobs: Vec<String>,
}

/// Spelling of the isolation scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Isolate {
    /// None
    None,
    /// Only tasks that Pinfold started
    Own,
    /// Every movable task of the host
    Host,
}

impl From<Isolate> for IsolationScope {
    fn from(value: Isolate) -> Self {
        match value {
            Isolate::None => IsolationScope::None,
            Isolate::Own => IsolationScope::Own,
            Isolate::Host => IsolationScope::Host,
        }
    }
}

/// The formats of `plan --emit`, by name.
fn formats() -> impl TypedValueParser<Value = &'static Format> {
    let names = emit::FORMATS.iter().map(|one| PossibleValue::new(one.name).help(one.summary));
    PossibleValuesParser::new(names)
        .try_map(|name| emit::format(&name).ok_or("there is no such format"))
}

/// `pinfold plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    #[command(flatten)]
    pub placement: PlacementArgs,
    /// Number of vCPUs, or `auto` to let the strategy choose
    /// [default: auto, or as the file of --into or the QEMU command has it]
    #[arg(long, value_name = "N|auto")]
    pub vcpus: Option<String>,
    /// Name of the virtual machine [default: vm, or as the file of --into or the QEMU command has it]
    #[arg(long)]
    pub name: Option<String>,
    /// Id of an iothread; may be given several times
    #[arg(long = "iothread", value_name = "ID")]
    pub iothreads: Vec<String>,
    /// Plan a virtual machine: key=value words; may be given several times
    ///
    /// Keys: name, vcpus, iothreads=A+B, vhosts, smt, memory, huge-pages, devices=A+B, priority
    #[arg(long, value_name = "WORDS", conflicts_with_all = ["vcpus", "name", "iothreads"])]
    pub vm: Vec<String>,
    /// Plan a process group: key=value words; may be given several times
    ///
    /// Keys: name, cores, speed=40%, memory, huge-pages, devices=A+B, priority
    #[arg(long, value_name = "WORDS", conflicts_with_all = ["vcpus", "name", "iothreads"])]
    pub group: Vec<String>,
    /// Device (PCI address or node:N) whose interrupts go near it; may be given several times
    #[arg(long, value_name = "DEVICE")]
    pub interrupts: Vec<String>,
    /// Plan for what a request file (TOML) asks; docs/requests.md describes it
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "vcpus", "name", "iothreads", "vm", "group", "interrupts", "avoid", "isolate", "free",
        "host_pus", "emulator", "prefer", "pins",
    ])]
    pub request: Option<String>,
    /// Plan for another machine: a capture, hwloc XML, a folder or tarball with its /sys, or a
    /// description
    #[arg(long, value_name = "FILE|DESCRIPTION")]
    pub input: Option<String>,
    /// List the strategies
    #[arg(long)]
    pub list: bool,
    /// Say what is wrong with plans or libvirt domain files that you wrote, or with a machine that
    /// runs (--check --libvirt NAME); exit code 1 if anything is worse than a note
    #[arg(long, value_name = "FILE", num_args = 0.., conflicts_with_all = ["strategy", "list", "explain", "emit"])]
    pub check: Option<Vec<String>>,
    /// With --check and one domain file: print the file with all advice followed. The whole file
    /// goes to standard output, FILE itself is not changed
    #[arg(long, requires = "check", conflicts_with = "json")]
    pub fix: bool,
    /// The machine that `--check` looks at
    #[command(flatten)]
    pub running: Option<VmArgs>,
    /// Say why for every choice, and what the plan gives and costs
    #[arg(long)]
    pub explain: bool,
    /// Print the plan as JSON, to be kept or given to `apply --plan`
    #[arg(long, conflicts_with_all = ["emit", "explain"])]
    pub json: bool,
    /// Print it in a format that other tools take
    #[arg(long, value_name = "FORMAT", conflicts_with = "explain", value_parser = formats())]
    pub emit: Option<&'static Format>,
    /// Of several virtual machines, emit this one's text alone
    #[arg(long, value_name = "NAME", requires = "emit")]
    pub vnode: Option<String>,
    /// libvirt domain file of the machine that is planned. `--emit libvirt` merges the plan into it;
    /// every other byte of it stays. The whole file goes to standard output, FILE itself is not
    /// changed
    #[arg(long, value_name = "FILE")]
    pub into: Option<String>,
    /// QEMU command line for `--emit qemu`; unless options say otherwise, the plan is for the
    /// vCPUs, iothreads and memory that it names
    #[arg(last = true, value_name = "QEMU-COMMAND")]
    pub command: Vec<String>,
}

/// `pinfold run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub placement: PlacementArgs,
    /// Take the placement from a file made by `pinfold plan --json`
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "strategy", "pins", "avoid", "isolate", "free", "host_pus", "emulator", "prefer",
    ])]
    pub plan: Option<String>,
    /// Run any command on cores that are this fast: 40%, 0.4, "800 MHz"
    #[arg(long, value_name = "SPEED", conflicts_with_all = ["strategy", "plan"])]
    pub speed: Option<String>,
    /// Run any command as a process group on so many cores: placed by the strategy, or slowed
    /// with --speed
    #[arg(long, value_name = "N", conflicts_with = "plan")]
    pub cores: Option<u32>,
    /// With --speed: how it is slowed; `pinfold emulate methods` lists the ways
    #[arg(long, value_name = "METHOD", requires = "speed")]
    pub method: Option<String>,
    /// With --speed: length of one turn, such as 200us
    #[arg(long, value_name = "TIME", requires = "speed")]
    pub period: Option<String>,
    /// With --speed: let real-time burners run on the last PU of the host's own tasks too
    #[arg(long, requires = "speed")]
    pub share_housekeeping: bool,
    /// Time that QEMU has to open its monitor, such as 30s or 5m; more for a start script that
    /// works for a while before
    #[arg(long, value_name = "TIME", default_value = "30s", conflicts_with = "speed")]
    pub start_timeout: String,
    /// The QEMU command line, with what starts it (sudo, numactl, a script that hands its
    /// arguments on); with --cores, --speed or a plan for a process group any command
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// `pinfold apply`.
#[derive(Debug, Args)]
pub struct ApplyArgs {
    #[command(flatten)]
    pub placement: PlacementArgs,
    /// Take the placement from a file made by `pinfold plan --json`
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "strategy", "pins", "avoid", "isolate", "free", "host_pus", "emulator", "prefer",
    ])]
    pub plan: Option<String>,
    #[command(flatten)]
    pub vm: VmArgs,
    /// Print the steps without taking them
    #[arg(long)]
    pub dry_run: bool,
    /// Change the definition of the libvirt domain too, so that the plan outlives a restart
    #[arg(long, requires = "libvirt")]
    pub config: bool,
    /// Stay, and pin threads that appear later; ctrl-C undoes, with exit code 0
    #[arg(long, conflicts_with = "dry_run")]
    pub watch: bool,
}

/// Which virtual machine is meant.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub struct VmArgs {
    /// A QEMU by its QMP socket
    #[arg(long, value_name = "SOCKET")]
    pub qmp: Option<String>,
    /// A libvirt domain by name, UUID or id
    #[arg(long, value_name = "DOMAIN")]
    pub libvirt: Option<String>,
    /// A QEMU by its process id (roles are then read from thread names)
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
}

/// `pinfold status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `pinfold undo`.
#[derive(Debug, Args)]
pub struct UndoArgs {
    /// Id of the apply, as `status` shows it
    #[arg(value_name = "ID", conflicts_with_all = ["all", "left"])]
    pub id: Option<String>,
    /// Revert everything that is still active
    #[arg(long)]
    pub all: bool,
    /// Revert only what a crash or a restart of the host left behind: placements of an earlier
    /// boot, those whose supervisor has ended, and those that were not applied completely
    #[arg(long, conflicts_with = "all")]
    pub left: bool,
}

/// `pinfold watch`.
#[derive(Debug, Args)]
pub struct WatchArgs {
    /// QMP socket of a machine that has no names for its threads; may be given several times
    #[arg(long, value_name = "SOCKET")]
    pub qmp: Vec<String>,
    /// Print each event as a line of JSON
    #[arg(long)]
    pub json: bool,
    /// Serve metrics (Prometheus) at a Unix socket, in a directory that only you can enter
    #[arg(long, value_name = "SOCKET")]
    pub metrics: Option<String>,
    /// Serve metrics at this port of 127.0.0.1 too, to every local user
    #[arg(long, value_name = "PORT")]
    pub metrics_port: Option<u16>,
}

/// `pinfold journal`.
#[derive(Debug, Args)]
pub struct JournalArgs {
    /// Id of the apply; without it, all journals are listed
    #[arg(value_name = "ID")]
    pub id: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `pinfold guard`.
#[derive(Debug, Args)]
pub struct GuardArgs {
    /// Id of the apply
    #[arg(value_name = "ID")]
    pub id: String,
}

/// `pinfold libvirt-hook`.
#[derive(Debug, Args)]
pub struct LibvirtHookArgs {
    /// Name of the domain
    #[arg(value_name = "DOMAIN", allow_hyphen_values = true)]
    pub domain: String,
    /// What happens: prepare, start, started, stopped, release, reconnect, …
    #[arg(value_name = "OPERATION")]
    pub operation: String,
    /// When: begin or end
    #[arg(value_name = "PHASE")]
    pub phase: String,
    /// What libvirt adds: `-` or a reason
    #[arg(value_name = "EXTRA", allow_hyphen_values = true)]
    pub extra: Option<String>,
    /// Folder with the plans: UUID.json or NAME.json, made by `pinfold plan --json`
    #[arg(long, value_name = "DIR", default_value = "/etc/pinfold/domains")]
    pub plans: String,
    /// Where libvirt keeps the pid files of its domains
    #[arg(long, value_name = "DIR", default_value = "/run/libvirt/qemu")]
    pub run_dir: String,
}

/// What `tune` looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Goal {
    /// Shortest worst gap with host and guest loaded
    Latency,
    /// Most work done with host and guest loaded
    Throughput,
    /// Shortest worst gap among those within 5 % of the most work
    Balanced,
}

/// Where `tune` keeps what it measured.
#[derive(Debug, Args)]
pub struct StoreArg {
    /// File that keeps every raw sample of the runs
    #[arg(
        long = "store",
        value_name = "FILE",
        default_value = "pinfold-tune.sqlite",
        env = "PINFOLD_STORE",
        hide_env_values = true
    )]
    pub path: String,
}

/// `pinfold tune`.
#[derive(Debug, Args)]
pub struct TuneArgs {
    /// Tune the demo guest: a Debian kernel whose init is the measuring program
    #[arg(long, conflicts_with = "command")]
    pub demo: bool,
    /// Number of vCPUs of the demo guest
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub vcpus: u32,
    /// What to look for
    #[arg(long, default_value = "latency")]
    pub goal: Goal,
    /// Refuse placements whose worst gap is longer, such as 1ms
    #[arg(long, value_name = "TIME")]
    pub max_gap: Option<String>,
    /// Time that it may take, such as 330s or 10m
    #[arg(long, default_value = "10m", value_name = "TIME")]
    pub budget: String,
    /// Strategies to try, comma separated [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub strategies: Vec<String>,
    /// Measure every placement in every block. Without it more than three race: those that cannot
    /// win any more are dropped early, and three at most are confirmed
    #[arg(long)]
    pub full: bool,
    /// PUs (OS indexes) that nothing may use
    #[arg(long, value_name = "PUS", default_value = "")]
    pub avoid: String,
    #[command(flatten)]
    pub store: StoreArg,
    /// Go on with a run that was broken off, by its number in the store
    #[arg(long, value_name = "RUN")]
    pub resume: Option<i64>,
    /// Where the report page goes
    #[arg(
        long,
        value_name = "FILE",
        default_value = "pinfold-report.html",
        env = "PINFOLD_REPORT",
        hide_env_values = true
    )]
    pub report: String,
    /// Seed of the random order [default: from the clock, and stored]
    #[arg(long)]
    pub seed: Option<u64>,
    /// Your guest runs `pinload agent`: measure inside it too
    #[arg(long, conflicts_with = "demo")]
    pub agent: bool,
    /// Time that your guest needs to start before it is measured without an agent
    #[arg(long, default_value = "20s", value_name = "TIME", conflicts_with = "demo")]
    pub settle: String,
    /// Time that QEMU has to open its monitor at each start
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub start_timeout: String,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
    /// Your QEMU command line; its disks are opened with -snapshot and never written
    #[arg(last = true, required_unless_present = "demo", value_name = "QEMU-COMMAND")]
    pub command: Vec<String>,
}

/// `pinfold report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    #[command(flatten)]
    pub store: StoreArg,
    /// Number of the run [default: the last]
    #[arg(long)]
    pub run: Option<i64>,
    /// List the runs that the store holds, and nothing else
    #[arg(long, conflicts_with_all = ["run", "out"])]
    pub list: bool,
    /// Where the page goes
    #[arg(long, value_name = "FILE", default_value = "pinfold-report.html")]
    pub out: String,
}
