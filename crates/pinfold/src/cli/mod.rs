//! The command line: arguments and their help.
//!
//! No decisions here: each command turns its `…Args` into a request.

mod drift;
pub mod emulate;
pub mod exits;
pub mod layout;
mod libvirt_hook;
pub mod measure;
mod program;
mod quiet;
mod sockets;
pub mod study;
pub mod tune;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use pinfold_emit::Format;
use pinfold_model::{IsolationScope, Tid};
use pinfold_vm::VmSelector;

pub use self::drift::DriftAction;
pub use self::libvirt_hook::LibvirtHookArgs;
pub use self::program::{CompletionsArgs, HelpArgs, ManArgs, VersionArgs};
pub use self::quiet::QuietArgs;
use self::sockets::{ManySockets, OneSocket};
pub use self::tune::TuneArgs;

const AFTER_HELP: &str = "\
Exit codes:
  0  success
  1  the answer is no: doctor: pinfold tune cannot run here; status: drift, or
     the named machine is not placed; plan --check: warnings or problems;
     study: failed trials; exits: no exits, or a wrong count; emulate: no
     platform is up; tune: nothing to try, or another program placed the
     machine
  2  the command line or an input file is invalid
  3  this host cannot do it, or does not permit it; undo: a live process
     prevents it
  4  the virtual machine does not run, did not start, or ended early
  5  something could not be restored; `pinfold status` names it
  127  run --cores, run --speed, quiet: there is no such command to run
  130  interrupted; results are stored, changes are reverted
     (0 for watch, apply --watch, emulate up --foreground: a signal ends them)
`run --cores`, `run --speed`, `quiet`, `emulate exec` and `emulate shell` exit
with the exit code of their command.";

/// Plan, apply, verify and measure the placement of virtual machines on this host.
#[derive(Debug, Parser)]
#[command(
    name = "pinfold",
    version,
    after_help = AFTER_HELP,
    max_term_width = 100,
    disable_help_flag = true,
    disable_version_flag = true,
    disable_help_subcommand = true,
    next_help_heading = "Global options"
)]
pub struct Cli {
    /// Keep the journal and the locks in DIR [default: /var/lib/pinfold as root]
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        env = "PINFOLD_STATE_DIR",
        hide_env_values = true,
        display_order = 1000
    )]
    pub state_dir: Option<String>,

    /// Print help
    #[arg(long, short = 'h', global = true, action = ArgAction::HelpShort, display_order = 1001)]
    help: Option<bool>,

    /// Print help with the options that are rarely needed
    #[arg(long, global = true, action = ArgAction::HelpLong, display_order = 1002)]
    help_all: Option<bool>,

    /// Print the version
    #[arg(long, short = 'V', action = ArgAction::Version, display_order = 1003)]
    version: Option<bool>,

    /// What to do; without it, an overview of this host.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the host: packages, NUMA nodes, L3 domains, cores, CPUs
    Topo(TopoArgs),
    /// Check what this host supports, and how to enable the rest
    Doctor(DoctorArgs),
    /// Show the owner of each CPU, what is free, and what is used twice
    ///
    /// Owners are placements of Pinfold, libvirt domains, other virtual machines, Kubernetes
    /// containers, Open vSwitch, DPDK and SPDK programs, OpenStack Nova, cgroups and busy threads.
    Claims(ClaimsArgs),
    /// Print the NUMA nodes for a machine, as numad does
    ///
    /// Installed as /usr/bin/numad, this program answers libvirt's requests for placement='auto'.
    Advise(AdviseArgs),
    /// Compute, explain, check or print a placement
    Plan(Box<PlanArgs>),
    /// Start a virtual machine, or any command, with a placement
    ///
    /// QEMU is started paused, each thread is pinned, then it runs and is monitored; at its end
    /// everything is reverted. With --cores or --speed any command runs, on cores of its own or on
    /// slower CPUs.
    Run(Box<RunArgs>),
    /// Run a benchmark on its own cores; report what disturbed it
    Quiet(QuietArgs),
    /// Pin a virtual machine that is already running
    Apply(ApplyArgs),
    /// Compare active placements with the actual state
    Status(StatusArgs),
    /// Revert what `apply` did, also after a crash
    Undo(UndoArgs),
    /// Show which machine waits for a CPU now, since when, and why
    Top(TopArgs),
    /// Monitor active placements; pin new and drifted threads
    Watch(WatchArgs),
    /// Show each change: when, what, and the previous value
    Journal(JournalArgs),
    /// Place a domain when it starts; libvirt calls it as its hook
    LibvirtHook(LibvirtHookArgs),
    /// Remove real-time policies when the Pinfold process that started it stops responding
    #[command(hide = true)]
    Guard(GuardArgs),
    /// Revert a placement when its machine ends; started by `apply`
    #[command(hide = true)]
    EndWaiter(EndWaiterArgs),
    /// Release the tasks that a supervisor of vnodes froze or stopped, if it stops responding
    #[command(hide = true)]
    Sentinel(SentinelArgs),
    /// Slow down CPUs: emulate nodes of given speeds
    Emulate(emulate::EmulateArgs),
    /// Run one benchmark on given CPUs, under a plan, or inside a guest
    Measure(Box<measure::MeasureArgs>),
    /// Compare two measurements or plans: ratio, interval, verdict
    Compare(measure::CompareArgs),
    /// Find the best placement for a virtual machine on this host
    Tune(TuneArgs),
    /// Show why a virtual machine exits to KVM, how often, how long
    Exits(exits::ExitsArgs),
    /// Run the guest of `exits --micro-guest`
    #[command(hide = true)]
    MicroGuest,
    /// Run an experiment from a file: factors, workloads, repetitions
    Study(study::StudyArgs),
    /// Execute a command when standard input ends, so that it can be placed before
    #[command(hide = true)]
    Gate(study::GateArgs),
    /// Write the report page of a stored run again
    Report(ReportArgs),
    /// Print the help of a command or a topic
    ///
    /// Topics: strategies, isolation, formats, files.
    Help(HelpArgs),
    /// Print the completions of a shell
    Completions(CompletionsArgs),
    /// Print the version
    Version(VersionArgs),
    /// Write the man pages
    #[command(hide = true)]
    Man(ManArgs),
}

/// `pinfold sentinel`.
#[derive(Debug, Args)]
pub struct SentinelArgs {
    /// Write this value to this file of the kernel
    #[arg(long, value_name = "PATH=VALUE")]
    pub write: Vec<String>,
    /// Continue the stopped processes of this cgroup
    #[arg(long = "continue", value_name = "GROUP")]
    pub group: Option<String>,
}

/// `pinfold advise`.
#[derive(Debug, Args)]
pub struct AdviseArgs {
    /// Find nodes for N vCPUs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub vcpus: u32,
    /// Find nodes with this much memory, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=1 << 40))]
    pub memory: u64,
    /// Take the memory from free huge pages of SIZE, such as 2MiB
    #[arg(long, value_name = "SIZE", value_parser = page_size)]
    pub huge_pages: Option<u64>,
    /// Answer for another machine: a capture, an hwloc XML file, a directory or tarball with its
    /// /sys, a description such as "node:4 core:4 pu:2", or example:NAME
    #[arg(long, value_name = "FILE|DESCRIPTION")]
    pub input: Option<String>,
    /// Answer as if no CPU had an owner
    #[arg(long)]
    pub ignore_claims: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn page_size(text: &str) -> Result<u64, String> {
    pinfold_config::requests::page_size(text).map_err(|error| error.to_string())
}

/// `pinfold claims`.
#[derive(Debug, Args)]
pub struct ClaimsArgs {
    /// Show the owners of a captured machine: a file of `pinfold topo --capture`
    #[arg(long, value_name = "FILE")]
    pub input: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Also sample S seconds for threads that are bound to one CPU and keep it busy; 0: skip
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = seconds)]
    pub seconds: f64,
}

/// A time of observation in seconds.
fn seconds(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "is not a number of seconds".to_owned())?;
    if (0.0..=3600.0).contains(&number) {
        Ok(number)
    } else {
        Err("must be from 0 to 3600".to_owned())
    }
}

/// `pinfold topo`.
#[derive(Debug, Args)]
pub struct TopoArgs {
    /// Show another machine: a capture, an hwloc XML file, a directory or tarball with its /sys, a
    /// description such as "node:4 core:4 pu:2", or example:NAME
    #[arg(long, value_name = "FILE|DESCRIPTION")]
    pub input: Option<String>,
    /// Print JSON
    #[arg(long, conflicts_with = "capture")]
    pub json: bool,
    /// Write a capture of this machine (without identifying data) to standard output
    #[arg(long, conflicts_with = "input")]
    pub capture: bool,
}

/// `pinfold doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Check a captured machine (`pinfold topo --capture`) instead of this host
    #[arg(long, value_name = "FILE")]
    pub input: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Options of a placement; shared by plan, run, apply.
#[derive(Debug, Args)]
pub struct PlacementArgs {
    /// Use this strategy [default: auto]; `pinfold plan --list` lists them
    #[arg(long, short = 's', value_name = "NAME")]
    pub strategy: Option<String>,
    /// Prefer this kind of cores: cache, frequency, efficiency, none
    ///
    /// [default: the die with the large L3 cache, else the fastest kind of cores]
    #[arg(long, value_name = "WHAT")]
    pub prefer: Option<String>,
    /// Exclude these CPUs from the plan, such as 0-1,8
    #[arg(long, value_name = "CPUS", default_value = "", hide_default_value = true)]
    pub avoid: String,
    /// Plan as if the host had no other owners of CPUs; `pinfold claims` shows them
    #[arg(long, env = "PINFOLD_IGNORE_CLAIMS", hide_env_values = true)]
    pub ignore_claims: bool,
    /// Exclude these tasks from the CPUs that the plan reserves
    #[arg(long, value_name = "SCOPE", default_value = "none")]
    pub isolate: Isolate,
    /// Leave this many CPUs unused: a number, or a percentage such as 25%
    #[arg(long, value_name = "N|N%")]
    pub free: Option<String>,
    /// Reserve these CPUs for the host's own tasks
    #[arg(long = "host-cpus", alias = "host-pus", value_name = "CPUS", conflicts_with = "free")]
    pub host_pus: Option<String>,
    /// Choose where `balanced` places the emulator: usual (with the host's tasks), real-time (on
    /// the same CPUs, with priority over them), apart (on CPUs that the host's tasks do not use)
    #[arg(long, value_name = "WHERE", default_value = "usual")]
    pub emulator: String,
    /// Pin threads: vcpu3=7, vcpu0-3=8-11, emulator=0,8; may be repeated
    ///
    /// Pins have priority over the strategy. Roles: vcpuN, emulator, iothread:ID, task
    #[arg(long = "pin", value_name = "ROLE=CPUS")]
    pub pins: Vec<String>,
    /// Also set a tunable of the host, such as thp=never or workqueues=housekeeping; may be
    /// repeated. An unknown key lists all keys
    #[arg(long = "tunable", alias = "knob", value_name = "KEY=VALUE")]
    pub tunables: Vec<String>,
    /// Also set the tunables of a profile (latency, none) that this host has; --tunable overrides them
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,
}

/// Values of `--isolate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Isolate {
    /// No other tasks
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
    let names =
        pinfold_emit::FORMATS.iter().map(|one| PossibleValue::new(one.name).help(one.summary));
    PossibleValuesParser::new(names)
        .try_map(|name| pinfold_emit::format(&name).ok_or("there is no such format"))
}

/// `pinfold plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    #[command(flatten)]
    pub placement: PlacementArgs,
    /// Plan N vCPUs, or `auto` [default: auto, or that of --into or QEMU]
    ///
    /// With `auto`, the strategy chooses.
    #[arg(long, value_name = "N|auto")]
    pub vcpus: Option<String>,
    /// Name the virtual machine [default: vm, or the name in the file of --into or in the QEMU
    /// command]
    #[arg(long)]
    pub name: Option<String>,
    /// Plan an iothread with this ID; may be repeated
    #[arg(long = "iothread", value_name = "ID")]
    pub iothreads: Vec<String>,
    /// Plan a virtual machine: key=value,key=value…; may be repeated
    ///
    /// Keys: name, vcpus, iothreads=A+B, vhosts, smt, memory, huge-pages, devices=A+B, priority
    #[arg(long, value_name = "WORDS", conflicts_with_all = ["vcpus", "name", "iothreads"])]
    pub vm: Vec<String>,
    /// Plan as many machines with these keys of --vm as fit, and print how many
    #[arg(long, value_name = "WORDS", conflicts_with_all = [
        "vcpus", "name", "iothreads", "vm", "group", "request", "into", "pins", "command",
    ])]
    pub fill: Option<String>,
    /// Plan a process group: key=value,key=value…; may be repeated
    ///
    /// Keys: name, cores, speed=40%, memory, huge-pages, devices=A+B, priority
    #[arg(long, value_name = "WORDS", conflicts_with_all = ["vcpus", "name", "iothreads"])]
    pub group: Vec<String>,
    /// Route the interrupts of this device (PCI address or node:N) to CPUs near it; may be repeated
    #[arg(long, value_name = "DEVICE")]
    pub interrupts: Vec<String>,
    /// Plan for a request file (TOML), see docs/requests.md
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "vcpus", "name", "iothreads", "vm", "group", "interrupts", "avoid", "isolate", "free",
        "host_pus", "emulator", "prefer", "pins",
    ])]
    pub request: Option<String>,
    /// Plan for another machine: a capture, hwloc XML, a directory or tarball with its /sys, a
    /// description, or example:NAME
    #[arg(long, value_name = "FILE|DESCRIPTION")]
    pub input: Option<String>,
    /// List the strategies
    #[arg(long)]
    pub list: bool,
    /// Check plans or libvirt domain files, or running machines (--check --libvirt NAME, --check
    /// --all); exit code 1 if a finding is worse than a note
    #[arg(long, value_name = "FILE", num_args = 0.., conflicts_with_all = ["strategy", "list", "explain", "emit"])]
    pub check: Option<Vec<String>>,
    /// Print the domain file of --check with all advice; FILE stays as it is
    #[arg(long, requires = "check", conflicts_with = "json")]
    pub fix: bool,
    /// The machines for `--check`
    #[command(flatten)]
    pub running: RunningArgs,
    /// Print the reason for each choice, and the plan's benefits and costs
    #[arg(long)]
    pub explain: bool,
    /// Print the plan as JSON, for `apply --plan`
    #[arg(long, conflicts_with_all = ["emit", "explain"])]
    pub json: bool,
    /// Print the plan for another tool
    #[arg(long, value_name = "FORMAT", conflicts_with = "explain", value_parser = formats())]
    pub emit: Option<&'static Format>,
    /// Emit only the text of this virtual machine
    #[arg(long, value_name = "NAME", requires = "emit")]
    pub vnode: Option<String>,
    /// Merge the plan into this libvirt domain file, which `--emit libvirt` prints; FILE itself is
    /// not changed
    ///
    /// All other bytes stay as they are.
    #[arg(long, value_name = "FILE")]
    pub into: Option<String>,
    /// Use this QEMU command line for `--emit qemu`; options override its vCPUs, iothreads and memory
    #[arg(last = true, value_name = "QEMU-COMMAND")]
    pub command: Vec<String>,
}

/// `pinfold run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub placement: PlacementArgs,
    /// Use the plan in this file, written by `pinfold plan --json`
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "strategy", "pins", "avoid", "isolate", "free", "host_pus", "emulator", "prefer",
    ])]
    pub plan: Option<String>,
    /// Use the part of the plan for this machine or group
    #[arg(long, value_name = "NAME", requires = "plan")]
    pub vnode: Option<String>,
    /// Run any command on cores of this speed: 40%, 0.4, "800 MHz"
    #[arg(long, value_name = "SPEED", group = "slowed", conflicts_with_all = ["strategy", "plan"])]
    pub speed: Option<String>,
    #[command(flatten)]
    pub slow: emulate::SlowArgs,
    /// Run any command on this number of cores: placed by the strategy, or slowed with --speed
    #[arg(long, value_name = "N", conflicts_with = "plan")]
    pub cores: Option<u32>,
    /// Terminate the processes that the command leaves in the background (--cores)
    #[arg(long, conflicts_with = "slowed")]
    pub kill_left: bool,
    /// Wait this long for QEMU's monitor, such as 30s or 5m; longer if a start script prepares
    /// something first
    #[arg(long, value_name = "TIME", default_value = "30s", conflicts_with = "slowed")]
    pub start_timeout: String,
    /// Let the guest boot on all free CPUs, and place it when CONDITION holds: agent (the guest
    /// agent answers), "port HOST:PORT" (it is open), or a time such as 10s
    #[arg(long, value_name = "CONDITION", conflicts_with_all = ["slowed", "cores"])]
    pub pin_after: Option<String>,
    /// Place it after this time at the latest (--pin-after)
    #[arg(
        long,
        value_name = "TIME",
        default_value = "5m",
        conflicts_with = "slowed",
        requires = "pin_after"
    )]
    pub pin_timeout: String,
    /// Act on threads whose affinity or policy another program changed
    #[arg(long, value_name = "ACTION", value_enum, default_value_t,
        conflicts_with_all = ["speed", "cores"])]
    pub drift: DriftAction,
    /// Run this QEMU command line, with wrappers (sudo, numactl, a script that passes on its
    /// arguments); with --cores, --speed or a plan for a process group any command
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// `pinfold apply`.
#[derive(Debug, Args)]
pub struct ApplyArgs {
    #[command(flatten)]
    pub placement: PlacementArgs,
    /// Use the plan in this file, written by `pinfold plan --json`; without a machine, apply it to
    /// all machines that it names (by name or UUID), or to none
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "strategy", "pins", "avoid", "isolate", "free", "host_pus", "emulator", "prefer",
    ])]
    pub plan: Option<String>,
    /// Use the part of the plan for this machine [default: the machine's own name]
    #[arg(long, value_name = "NAME", requires = "plan")]
    pub vnode: Option<String>,
    /// Select the machine by name: of its libvirt domain, else the name in its command line
    #[arg(value_name = "NAME", group = "VmArgs")]
    pub machine: Option<String>,
    #[command(flatten)]
    pub vm: VmArgs,
    /// Print the steps without executing them
    #[arg(long)]
    pub dry_run: bool,
    /// Also change the definition of the libvirt domain, so that the plan persists
    #[arg(long)]
    pub config: bool,
    /// Refuse a machine that is placed already, instead of replacing its plan
    #[arg(long)]
    pub keep: bool,
    /// Keep running and pin new threads; ctrl-C reverts the placement, with exit code 0
    #[arg(long, conflicts_with = "dry_run")]
    pub watch: bool,
    /// Act on threads whose affinity or policy another program changed (--watch). A
    /// change made through libvirt always stays
    #[arg(long, value_name = "ACTION", value_enum, default_value_t, requires = "watch")]
    pub drift: DriftAction,
}

/// Selects a virtual machine.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub struct VmArgs {
    #[command(flatten)]
    pub socket: OneSocket,
    /// Select a libvirt domain by name, UUID or ID
    #[arg(long, value_name = "DOMAIN", group = "VmArgs")]
    pub libvirt: Option<String>,
    /// Select a QEMU process by its PID (roles are read from thread names)
    #[arg(long, value_name = "PID", group = "VmArgs")]
    pub pid: Option<u32>,
}

impl VmArgs {
    /// The machine that the options select.
    pub fn selector(&self) -> Option<VmSelector> {
        let socket = self.socket.0.clone();
        let socket = socket.map(|(hypervisor, path)| VmSelector::Socket(hypervisor, path));
        let domain = self.libvirt.clone().map(VmSelector::Libvirt);
        socket.or(domain).or(self.pid.map(|pid| VmSelector::Pid(Tid(pid))))
    }
}

/// Selects running machines to check.
#[derive(Debug, Args)]
pub struct RunningArgs {
    #[command(flatten)]
    pub sockets: ManySockets,
    /// Select a libvirt domain by name, UUID or ID; may be repeated
    #[arg(long, value_name = "DOMAIN")]
    pub libvirt: Vec<String>,
    /// Select a QEMU process by its PID (roles are read from thread names); may be repeated
    #[arg(long, value_name = "PID")]
    pub pid: Vec<u32>,
    /// Check all running machines of this host (--check)
    #[arg(long, requires = "check", conflicts_with_all = ["libvirt", "pid"])]
    pub all: bool,
}

impl RunningArgs {
    /// The machines that the options select, but for --all.
    pub fn selectors(&self) -> Vec<VmSelector> {
        let sockets = self.sockets.0.iter();
        sockets
            .map(|(hypervisor, path)| VmSelector::Socket(*hypervisor, path.clone()))
            .chain(self.libvirt.iter().cloned().map(VmSelector::Libvirt))
            .chain(self.pid.iter().map(|pid| VmSelector::Pid(Tid(*pid))))
            .collect()
    }
}

/// `pinfold status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Show only this placement, by its ID, or the name or process ID of its machine or group
    #[arg(value_name = "NAME|PID|ID")]
    pub id: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Exit with 0 although a CPU is used twice, which is still reported
    #[arg(long, env = "PINFOLD_IGNORE_CLAIMS", hide_env_values = true)]
    pub ignore_claims: bool,
}

/// `pinfold top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Print one sample of one second, and exit
    #[arg(long)]
    pub once: bool,
    /// Print JSON, a line for each second
    #[arg(long)]
    pub json: bool,
    /// Write all samples to FILE, which must not exist yet
    #[arg(long, value_name = "FILE", conflicts_with = "replay")]
    pub record: Option<String>,
    /// Print the samples of a record
    #[arg(long, value_name = "FILE")]
    pub replay: Option<String>,
}

/// `pinfold undo`.
#[derive(Debug, Args)]
pub struct UndoArgs {
    /// Revert the placements of this machine or group (name or process ID), or the placement with
    /// this ID; `status` lists them
    #[arg(value_name = "NAME|PID|ID", conflicts_with_all = ["all", "left"])]
    pub id: Option<String>,
    /// Revert all active placements
    #[arg(long)]
    pub all: bool,
    /// Revert only what was left behind: placements of an earlier boot, those whose supervisor or
    /// machine has ended, and those that were applied partly
    #[arg(long, conflicts_with = "all")]
    pub left: bool,
    /// Let all threads of this process run on all CPUs of their cgroup; for a placement whose
    /// journal was removed
    #[arg(long, value_name = "PID", conflicts_with_all = ["id", "all", "left"])]
    pub reset: Option<u32>,
}

/// The store of `tune`.
#[derive(Debug, Args)]
pub struct StoreArg {
    /// Store the raw samples of all runs in FILE (SQLite)
    #[arg(
        long = "store",
        value_name = "FILE",
        default_value = "pinfold-tune.sqlite",
        env = "PINFOLD_STORE",
        hide_env_values = true
    )]
    pub path: String,
}

/// `pinfold watch`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("served").args(["metrics", "metrics_port"]).multiple(true))]
pub struct WatchArgs {
    /// Watch only the placements of this machine or group (name or process ID), or the placement
    /// with this ID [default: all]
    #[arg(value_name = "NAME|PID|ID", conflicts_with = "all")]
    pub id: Option<String>,
    /// Watch all active placements, as without a name
    #[arg(long)]
    pub all: bool,
    /// Act on threads whose affinity or policy another program changed. A change made
    /// through libvirt always stays
    #[arg(long, value_name = "ACTION", value_enum, default_value_t)]
    pub drift: DriftAction,
    /// Plan machines that change while they run as if the host had no other owners of CPUs
    #[arg(long, env = "PINFOLD_IGNORE_CLAIMS", hide_env_values = true)]
    pub ignore_claims: bool,
    #[command(flatten)]
    pub sockets: ManySockets,
    /// Place machines that are started by hand, by the rows of FILE, as the libvirt hook does with
    /// domains
    #[arg(long, value_name = "FILE", conflicts_with = "id")]
    pub domains: Option<String>,
    /// Print each event as a line of JSON
    #[arg(long)]
    pub json: bool,
    /// Serve Prometheus metrics at a Unix socket, in a directory that only you can enter
    #[arg(long, value_name = "SOCKET")]
    pub metrics: Option<String>,
    /// Also serve metrics at this port of 127.0.0.1, for every local user
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub metrics_port: Option<u16>,
    /// Add to the metrics how long threads could run and did not, and the causes of gaps of at
    /// least DURATION. It needs root and a kernel with BTF
    #[arg(long, value_name = "DURATION", requires = "served")]
    pub gaps: Option<String>,
}

/// `pinfold journal`.
#[derive(Debug, Args)]
pub struct JournalArgs {
    /// Show this placement, by its ID, or the name or process ID of its machine or group
    /// [default: list all]
    #[arg(value_name = "NAME|PID|ID")]
    pub id: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `pinfold guard`.
#[derive(Debug, Args)]
pub struct GuardArgs {
    /// ID of the placement
    #[arg(value_name = "ID")]
    pub id: String,
}

/// `pinfold end-waiter`.
#[derive(Debug, Args)]
pub struct EndWaiterArgs {
    /// ID of the placement
    #[arg(value_name = "ID")]
    pub id: String,
}

/// What `tune` optimizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Goal {
    /// Shortest worst-case vCPU stall, with host and guest loaded
    Latency,
    /// Highest throughput, with host and guest loaded
    Throughput,
    /// Shortest worst-case vCPU stall among placements within 5 % of the highest throughput
    Balanced,
}

/// `pinfold report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    #[command(flatten)]
    pub store: StoreArg,
    /// Report the run with this number [default: the last one]
    #[arg(long)]
    pub run: Option<i64>,
    /// Only list the runs in the store
    #[arg(long, conflicts_with_all = ["run", "out"])]
    pub list: bool,
    /// Write the page to FILE
    #[arg(long, value_name = "FILE", default_value = "pinfold-report.html")]
    pub out: String,
}
