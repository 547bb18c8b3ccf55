//! What may be typed after `pinfold emulate`.

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
    /// What each method does, needs and cannot do, and whether this host can
    Methods(MethodsArgs),
    /// Divide this machine into the vnodes of a platform file
    Up(UpArgs),
    /// Run a command in a vnode
    Exec(ExecArgs),
    /// Run a shell in a vnode
    Shell(ShellArgs),
    /// Change the speed of a vnode
    Set(SetArgs),
    /// What was asked and what the vnodes got in the last second
    Status(StatusArgs),
    /// Measure what speed the vnode really has: requested against achieved, with intervals
    Verify(VerifyArgs),
    /// Record how much each PU works, to be replayed by the method inject
    Record(RecordArgs),
    /// Remove the kept costs of the methods, so that the next start measures them again
    Forget,
    /// End all vnodes and restore the host; their processes go on at full speed
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
    /// The platform file; docs/platforms.md describes it
    #[arg(value_name = "FILE")]
    pub platform: String,
    /// Print the steps that would be taken, with their reasons, and change nothing
    #[arg(long, conflicts_with = "foreground")]
    pub dry_run: bool,
    /// Stay here until ctrl-C (exit code 0) instead of going to the background
    #[arg(long)]
    pub foreground: bool,
    /// Let real-time burners run on the last PU of the host's own tasks too
    #[arg(long)]
    pub share_housekeeping: bool,
}

/// `pinfold emulate exec`.
#[derive(Debug, Args)]
pub struct ExecArgs {
    /// Name of the vnode
    pub vnode: String,
    /// The command
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// `pinfold emulate shell`.
#[derive(Debug, Args)]
pub struct ShellArgs {
    /// Name of the vnode
    pub vnode: String,
}

/// `pinfold emulate verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Name of the vnode
    pub vnode: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// How often each of the six micro-benchmarks runs, in the vnode and at full speed next to it
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: u32,
    /// Take a tenth of the lengths of the paper (10 s for the six together)
    #[arg(long)]
    pub quick: bool,
}

/// `pinfold emulate set`.
#[derive(Debug, Args)]
pub struct SetArgs {
    /// Name of the vnode
    pub vnode: String,
    /// The speed from now on: 30%, 0.3, "800 MHz"
    #[arg(long, value_name = "SPEED")]
    pub speed: String,
    /// Only of this PU (OS index)
    #[arg(long, value_name = "PU")]
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
    /// For so long
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=86400))]
    pub seconds: u32,
    /// One row for each so many milliseconds; the kernel counts in steps of 10
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u32).range(20..=60000))]
    pub interval_ms: u32,
    /// Only these PUs (OS indexes)
    #[arg(long, value_name = "PUS")]
    pub pus: Option<String>,
    /// Write to this file instead of standard output
    #[arg(long, value_name = "FILE")]
    pub out: Option<String>,
}
