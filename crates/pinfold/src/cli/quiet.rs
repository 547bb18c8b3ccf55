//! Arguments of `pinfold quiet`.

use clap::Args;

use super::Isolate;

/// `pinfold quiet`.
#[derive(Debug, Args)]
pub struct QuietArgs {
    /// Give each command this number of cores, whose other hardware threads stay idle
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub cores: u32,
    /// Run this command next to the others; may be repeated. It is split at blanks outside quotes,
    /// and no shell reads it
    #[arg(long = "job", value_name = "NAME: COMMAND", conflicts_with = "command")]
    pub jobs: Vec<String>,
    /// Exclude these tasks from the CPUs; with `host`, also movable interrupts
    #[arg(long, value_name = "SCOPE", default_value = "host")]
    pub isolate: Isolate,
    /// Set the tunables of this profile
    #[arg(long, value_name = "NAME", default_value = "latency")]
    pub profile: String,
    /// Also set a tunable of the host, such as max-khz=2000000 or smt=off; may be repeated
    #[arg(long = "tunable", alias = "knob", value_name = "KEY=VALUE")]
    pub tunables: Vec<String>,
    /// Start the command without randomised addresses (setarch -R)
    #[arg(long)]
    pub no_aslr: bool,
    /// Exclude these CPUs, such as 0-1,8
    #[arg(long, value_name = "CPUS", default_value = "", hide_default_value = true)]
    pub avoid: String,
    /// Plan as if the host had no other owners of CPUs; `pinfold claims` shows them
    #[arg(long, env = "PINFOLD_IGNORE_CLAIMS", hide_env_values = true)]
    pub ignore_claims: bool,
    /// Print the plan with its reasons, without running anything
    #[arg(long)]
    pub dry_run: bool,
    /// Run this command; its exit code is that of `quiet`
    #[arg(last = true, required_unless_present = "jobs", value_name = "COMMAND")]
    pub command: Vec<String>,
}
