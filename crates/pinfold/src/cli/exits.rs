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
    /// What to look for, and what to show.
    #[command(flatten)]
    pub how: ExitsHow,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// How exits are looked at; `pinfold measure exits` has the same options.
#[derive(Clone, Debug, Default, Args)]
pub struct ExitsHow {
    /// Exits: show each vCPU too
    #[arg(long)]
    pub per_vcpu: bool,
    /// Exits: watch addresses too, and show so many of each kind: ports, MMIO, registers
    #[arg(long, value_name = "N")]
    pub top: Option<usize>,
    /// Exits: how long to look for which events fire, at most [default: 2s]
    #[arg(long, value_name = "TIME")]
    pub look: Option<String>,
    /// Exits of Arm with a GICv2: where the guest has its distributor [default: as QEMU's machine virt]
    #[arg(long, value_name = "ADDRESS")]
    pub distributor: Option<String>,
}

impl ExitsHow {
    /// The options that were given.
    pub fn given(&self) -> [(bool, &'static str); 4] {
        [
            (self.per_vcpu, "--per-vcpu"),
            (self.top.is_some(), "--top"),
            (self.look.is_some(), "--look"),
            (self.distributor.is_some(), "--distributor"),
        ]
    }
}
