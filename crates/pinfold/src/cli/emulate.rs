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
    /// Run each of the six micro-benchmarks N times, in the vnode and at full speed
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: u32,
    /// Use a tenth of the paper's durations (10 s for all six)
    #[arg(long)]
    pub quick: bool,
}

/// `pinfold emulate set`.
#[derive(Debug, Args)]
pub struct SetArgs {
    /// Select the vnode by name
    pub vnode: String,
    /// Set this speed: 30%, 0.3, "800 MHz"
    #[arg(long, value_name = "SPEED")]
    pub speed: String,
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
