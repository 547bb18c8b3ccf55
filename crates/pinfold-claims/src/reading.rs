//! Reads the claims of a host, and removes those of one machine with its pools.

use pinfold_host::{Host, proc_stat, uptime};
use pinfold_model::Tid;

use crate::claim::{Claim, Exclusivity, Kind, OwnerCategory};
use crate::claim_set::Claims;
use crate::context::{Context, group_of, own_group};
use crate::owners;

impl Claims {
    /// Adds the claims of all owners that the files and processes of a host show, after those that
    /// are known already: a machine is listed once.
    pub fn read_owners(&mut self, host: &dyn Host) {
        let context = Context::new(host);
        for owner in owners::OWNERS {
            (owner.read)(&context, self);
        }
        owners::cpusets::mark_confined(&context, self);
        if let Some(group) = own_group(host) {
            self.share_with(&group);
        }
        self.measure_load(host);
    }

    /// Reads how many vCPUs of each machine that floats are busy.
    fn measure_load(&mut self, host: &dyn Host) {
        /// A younger process (s) is still booting.
        const YOUNG: u64 = 60;
        let floating = self.known.iter_mut().filter(|one| one.active && one.floating_vcpus > 0);
        let mut floating = floating.peekable();
        if floating.peek().is_none() {
            return;
        }
        let Ok(now) = uptime::read_ticks(host) else { return };
        for claim in floating {
            let Some(process) = claim.owner.process else { continue };
            let Ok(Some(stat)) = proc_stat::read(host, process) else { continue };
            let age = now.saturating_sub(stat.start_time);
            if age.saturating_mul(uptime::TICK_NS) >= YOUNG * 1_000_000_000 {
                let busy = stat.cpu_ticks.saturating_mul(1000) / age;
                let all = claim.floating_vcpus.saturating_mul(1000);
                claim.busy_vcpus_milli = Some(u32::try_from(busy).unwrap_or(all).min(all));
            }
        }
    }

    /// Makes the CPUs of the partition or container to which a group belongs shared ones: for the
    /// processes in it they are no other owner's.
    fn share_with(&mut self, group: &str) {
        let own = self.known.iter_mut().filter(|claim| {
            owners::cpusets::contains(claim, group) || owners::kubelet::contains(claim, group)
        });
        own.for_each(|claim| claim.exclusivity = Exclusivity::Shared);
    }

    /// The claims of all but the machine with a process or name, and without those of the pools
    /// and containers to which it belongs.
    #[must_use]
    pub fn without_machine(&self, host: &dyn Host, process: Tid, name: &str) -> Self {
        let group = group_of(host, process);
        let mut others = self.clone();
        others.bound_threads.retain(|thread| thread.process != process);
        let managers: Vec<&Kind> = self
            .known
            .iter()
            .filter(|claim| is_of_machine(claim, name, process))
            .filter_map(|c| c.owner.manager)
            .collect();
        others.filter(|claim| {
            !is_of_machine(claim, name, process)
                && !managers.contains(&claim.owner.kind)
                && !group.as_deref().is_some_and(|group| owners::cpusets::contains(claim, group))
                && !group.as_deref().is_some_and(|group| owners::kubelet::contains(claim, group))
        })
    }
}

fn is_of_machine(claim: &Claim, name: &str, process: Tid) -> bool {
    let owner = &claim.owner;
    let is_named = owner.kind.sort == OwnerCategory::Machine && owner.name == name;
    owner.process == Some(process) || (is_named && owner.process.is_none())
}
