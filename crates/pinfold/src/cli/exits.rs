//! Arguments of `pinfold exits`.

use clap::Args;

use super::{VmArgs, sockets};

/// `pinfold exits`.
#[derive(Debug, Args)]
pub struct ExitsArgs {
    #[command(flatten)]
    pub vm: VmArgs,
    /// Run a built-in guest that causes a known number of exits, and compare the counts
    #[arg(long, conflicts_with_all = sockets::names().chain(["libvirt", "pid", "seconds"]))]
    pub micro_guest: bool,
    /// Observe for N seconds
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub seconds: u64,
    /// What to count and show.
    #[command(flatten)]
    pub how: ExitObservationArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// How exits are observed; `pinfold measure exits` has the same options.
#[derive(Clone, Debug, Default, Args)]
pub struct ExitObservationArgs {
    /// Also show each vCPU (exits)
    #[arg(long)]
    pub per_vcpu: bool,
    /// Also count exits by address; show the top N ports, MMIO addresses and registers
    #[arg(long, value_name = "N")]
    pub top: Option<usize>,
    /// Spend at most this time on finding out which events fire (exits) [default: 2s]
    #[arg(long, value_name = "TIME")]
    pub look: Option<String>,
    /// Set the address of the guest's distributor (exits of Arm with a GICv2) [default: as in QEMU's
    /// machine virt]
    #[arg(long, value_name = "ADDRESS")]
    pub distributor: Option<String>,
}

impl ExitObservationArgs {
    /// The options that were given.
    pub fn given_options(&self) -> [(bool, &'static str); 4] {
        [
            (self.per_vcpu, "--per-vcpu"),
            (self.top.is_some(), "--top"),
            (self.look.is_some(), "--look"),
            (self.distributor.is_some(), "--distributor"),
        ]
    }
}
