//! What may be typed after `pinfold exits`.

use clap::Args;

use super::VmArgs;

/// `pinfold exits`.
#[derive(Debug, Args)]
pub struct ExitsArgs {
    #[command(flatten)]
    pub vm: VmArgs,
    /// Watch a guest of Pinfold's own, which makes a known number of exits, and compare
    #[arg(long, conflicts_with_all = ["qmp", "libvirt", "pid", "seconds"])]
    pub micro_guest: bool,
    /// How long to watch
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub seconds: u64,
    /// Show each vCPU too
    #[arg(long)]
    pub per_vcpu: bool,
    /// Show so many addresses of each kind: ports, MMIO, registers
    #[arg(long, default_value_t = 5, value_name = "N")]
    pub top: usize,
    /// How long to look for which events fire, at most
    #[arg(long, default_value = "2s", value_name = "TIME")]
    pub look: String,
    /// Arm with a GICv2: where the guest has its distributor [default: as QEMU's machine virt]
    #[arg(long, value_name = "ADDRESS")]
    pub distributor: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
