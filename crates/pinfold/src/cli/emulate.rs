//! Arguments of `pinfold emulate`.

use clap::{Args, Subcommand};

/// `pinfold emulate`.
#[derive(Debug, Args)]
pub struct EmulateArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: EmulateCommand,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum EmulateCommand {
    /// List the methods of slowing: effect, requirements, limits, availability on this host
    Methods(MethodsArgs),
    /// Create the virtual nodes of a platform file on this machine
    Up(UpArgs),
    /// Add a running container, process, cgroup, unit or mininet host to a vnode
    Attach(AttachArgs),
    /// Run a command in a vnode
    Exec(ExecArgs),
    /// Run a shell in a vnode
    Shell(ShellArgs),
    /// Change the speed of a vnode
    Set(SetArgs),
    /// Show requested and actual speed of the vnodes in the last second
    Status(StatusArgs),
    /// Measure the speed of a vnode: requested against achieved, with intervals
    Verify(VerifyArgs),
    /// Record the load of each CPU, to be replayed by the method inject
    Record(RecordArgs),
    /// Remove the stored calibration, so that the next start measures it again
    Forget,
    /// End all vnodes and restore the host; their processes continue at full speed
    Down,
}

/// `pinfold emulate methods`.
#[derive(Debug, Args)]
pub struct MethodsArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// How `pinfold run --speed` slows.
#[derive(Debug, Args)]
#[group(skip)]
pub struct SlowArgs {
    #[command(flatten)]
    pub like: LikeArgs,
    /// Slow by this method (--speed); `pinfold emulate methods` lists them
    #[arg(long, value_name = "METHOD", requires = "slowed")]
    pub method: Option<String>,
    /// Set the length of one period (--speed), such as 200us
    #[arg(long, value_name = "TIME", requires = "slowed")]
    pub period: Option<String>,
    /// Limit the disk of the working directory (--speed), reads and writes each: "50 MB/s"
    #[arg(long, value_name = "RATE", requires = "slowed")]
    pub disk: Option<String>,
    /// Limit that disk (--speed) to this number of operations per second, reads and writes each
    #[arg(long, value_name = "N", requires = "slowed")]
    pub iops: Option<u32>,
    /// Measure the cost of the method (--speed) fully before the command starts (8 s)
    #[arg(long, requires = "slowed")]
    pub calibrate: bool,
    /// Allow real-time burners (--speed) on the last CPU of the host's own tasks
    #[arg(long, requires = "slowed")]
    pub share_housekeeping: bool,
}

/// `pinfold emulate up`.
#[derive(Debug, Args)]
pub struct UpArgs {
    /// Read the platform from this file, see docs/platforms.md
    #[arg(value_name = "FILE")]
    pub platform: String,
    /// Print the steps with their reasons, and change nothing
    #[arg(long, conflicts_with = "foreground")]
    pub dry_run: bool,
    /// Stay in the foreground until ctrl-C (exit code 0)
    #[arg(long)]
    pub foreground: bool,
    /// Allow real-time burners on the last CPU of the host's own tasks
    #[arg(long)]
    pub share_housekeeping: bool,
    /// Plan as if the host had no other owners of CPUs; `pinfold claims` shows them
    #[arg(long, env = "PINFOLD_IGNORE_CLAIMS", hide_env_values = true)]
    pub ignore_claims: bool,
    /// Measure the cost of each method fully before the vnodes start (8 s)
    #[arg(long)]
    pub calibrate: bool,
}

/// `pinfold emulate attach`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true))]
pub struct AttachArgs {
    /// Select the vnode by name
    pub vnode: String,
    /// Slow this container (name or ID), or those of this compose service or pod
    #[arg(long, value_name = "NAME", group = "what")]
    pub container: Option<String>,
    /// Slow this process and its children
    #[arg(long, value_name = "PID", group = "what")]
    pub pid: Option<u32>,
    /// Slow this cgroup (version 2), by its path below the mount
    #[arg(long, value_name = "CGROUP", group = "what")]
    pub group: Option<String>,
    /// Slow this systemd unit
    #[arg(long, value_name = "UNIT", group = "what")]
    pub unit: Option<String>,
    /// Slow the processes in this network namespace of `ip netns`
    #[arg(long, value_name = "NAME", group = "what")]
    pub netns: Option<String>,
    /// Slow this host of a running mininet
    #[arg(long, value_name = "HOST", group = "what")]
    pub mininet: Option<String>,
}

/// `pinfold emulate exec`.
#[derive(Debug, Args)]
pub struct ExecArgs {
    /// Select the vnode by name
    pub vnode: String,
    /// Run this command
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// `pinfold emulate shell`.
#[derive(Debug, Args)]
pub struct ShellArgs {
    /// Select the vnode by name
    pub vnode: String,
}

/// `pinfold emulate verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Select the vnode by name
    pub vnode: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Run each of the micro-benchmarks N times, in the vnode and at full speed
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: u32,
    /// Use a tenth of the paper's durations (10 s for all six)
    #[arg(long)]
    pub quick: bool,
}

/// The speed of another machine.
#[derive(Debug, Args)]
#[group(skip)]
pub struct LikeArgs {
    /// Set the speed of the machine with this profile, made there by `pinload profile`
    #[arg(long, value_name = "FILE", group = "slowed")]
    pub like: Option<String>,
    /// Set the speed for this kind of work (--like), such as integer or cache-l2, instead of the
    /// mean over all kinds
    #[arg(long, value_name = "KIND", requires = "like")]
    pub kind: Option<String>,
    /// Compare with this profile of this machine (--like) instead of the stored one
    #[arg(long, value_name = "FILE", requires = "like")]
    pub own: Option<String>,
}

/// `pinfold emulate set`.
#[derive(Debug, Args)]
pub struct SetArgs {
    /// Select the vnode by name
    pub vnode: String,
    /// Set this speed: 30%, 0.3, "800 MHz"
    #[arg(long, value_name = "SPEED", group = "slowed", required_unless_present = "like")]
    pub speed: Option<String>,
    #[command(flatten)]
    pub like: LikeArgs,
    /// Change only this CPU
    #[arg(long, value_name = "CPU")]
    pub pu: Option<u32>,
}

/// `pinfold emulate status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `pinfold emulate record`.
#[derive(Debug, Args)]
pub struct RecordArgs {
    /// Record for N seconds
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=86400))]
    pub seconds: u32,
    /// Write a row every MS milliseconds; the kernel counts in steps of 10
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u32).range(20..=60000))]
    pub interval_ms: u32,
    /// Record only these CPUs
    #[arg(long, value_name = "CPUS")]
    pub pus: Option<String>,
    /// Write to this file instead of standard output
    #[arg(long, value_name = "FILE")]
    pub out: Option<String>,
}
