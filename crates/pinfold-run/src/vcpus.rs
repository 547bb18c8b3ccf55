//! The vCPUs of a machine. Their numbers have gaps if one was plugged into a later slot
//! (`device_add` at socket 3 makes vCPU 3 next to 0 and 1).

use std::ops::RangeInclusive;

use pinfold_model::text::count_noun;
use pinfold_model::{Plan, Request, Role, VnodeKind};
use pinfold_plan::command;
use pinfold_plan::domain_file::Domain;
use pinfold_vm::DiscoveredVm;

use crate::{Exit, Failure, plans};

/// The numbers of a machine's vCPUs, and their maximum number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vcpus {
    /// The numbers, ascending.
    ids: Vec<u32>,
    most: u32,
}

impl Vcpus {
    /// The vCPUs of a running machine.
    pub fn from_found(found: &DiscoveredVm) -> Self {
        Self { ids: found.vcpu_ids(), most: found.max_vcpus }
    }

    /// The vCPUs of a domain file that exist when its machine starts.
    pub fn from_domain(domain: &Domain) -> Self {
        let ids = domain.enabled_vcpus.iter().map(|id| id.0).collect();
        Self { ids, most: domain.vcpus.value }
    }

    /// Numbers from 0 on; the range is from the initial to the maximum number of vCPUs.
    pub fn from_range(range: RangeInclusive<u32>) -> Self {
        Self { ids: (0..*range.start()).collect(), most: *range.end() }
    }

    /// vCPUs with these numbers, ascending.
    pub fn from_ids(ids: Vec<u32>) -> Self {
        let most = ids.last().map_or(0, |last| last + 1);
        Self { ids, most }
    }

    /// The number of vCPUs.
    pub fn count(&self) -> u32 {
        u32::try_from(self.ids.len()).unwrap_or(u32::MAX)
    }

    /// The maximum number of vCPUs.
    pub fn max_vcpus(&self) -> u32 {
        self.most
    }

    /// True if a plan has a placement for each of them.
    pub fn are_in(&self, plan: &Plan) -> bool {
        self.ids.iter().all(|id| plan.threads().any(|(_, thread)| thread.role == Role::Vcpu(*id)))
    }

    /// Rejects a plan from a file that is for fewer vCPUs, for more than the maximum, or for other
    /// numbers. `whole` is the plan in the file, which may have more machines.
    pub fn require_in(&self, path: &str, plan: &Plan, whole: &Plan) -> Result<(), Failure> {
        let vnode = plans::single(plan)?;
        let is_for = |kind: &str, other: &str, advice: &str| {
            let text = format!("{path} is a plan for a {kind}, but this is a {other}");
            Err(Failure::new(Exit::Input, text).with_hint(advice))
        };
        match (vnode.kind, self.most == 0 && self.ids.is_empty()) {
            (VnodeKind::ProcessGroup, false) => {
                let advice = "`pinfold run --plan FILE -- COMMAND` starts a command under it";
                return is_for("process group", "virtual machine", advice);
            }
            (VnodeKind::VirtualMachine, true) => {
                let advice = "omit --cores to start QEMU under it";
                return is_for("virtual machine", "process group", advice);
            }
            (VnodeKind::VirtualMachine, false) | (VnodeKind::ProcessGroup, true) => {}
        }
        let (count, planned) = (self.count(), vnode.vcpus().count());
        if !u32::try_from(planned).is_ok_and(|planned| (count..=self.most).contains(&planned)) {
            let planned = count_noun(planned, "vCPU");
            let text = format!("{path} places {planned}, but the virtual machine has {count}");
            return Err(Failure::new(Exit::Input, text).with_hint(format!(
                "create it again: `{}`",
                command::plan_command_with_vcpus(whole, &vnode.name, count)
            )));
        }
        if self.are_in(plan) {
            return Ok(());
        }
        let count = self.ids.last().map_or(0, |last| last + 1);
        let text = format!("{path} does not place some of the vCPUs {}", self.list());
        Err(Failure::new(Exit::Input, text).with_hint(format!(
            "create it again: `{}`; or apply without --plan",
            command::plan_command_with_vcpus(whole, &vnode.name, count)
        )))
    }

    /// Planning numbers vCPUs from 0: converts pins that name a vCPU to its index among the present
    /// ones.
    pub fn map_pins_to_indexes(&self, request: &mut Request) -> Result<(), Failure> {
        for pin in request.vnodes.iter_mut().flat_map(|vnode| &mut vnode.pins) {
            let number = pin.role.strip_prefix("vcpu(").and_then(|rest| rest.strip_suffix(')'));
            let Some(id) = number.and_then(|number| number.parse().ok()) else { continue };
            let place = self.ids.binary_search(&id).map_err(|_| {
                let text = format!("--pin: the virtual machine has no vCPU {id}");
                Failure::new(Exit::Input, text).with_hint(format!("it has {}", self.list()))
            })?;
            pin.role = format!("vcpu({place})");
        }
        Ok(())
    }

    /// Renumbers the vCPUs of a plan from indexes to their numbers.
    pub fn renumber_vcpus(&self, plan: &mut Plan) {
        let threads = plan.vnodes.iter_mut().flat_map(|vnode| &mut vnode.threads);
        let vcpus = threads.filter(|thread| thread.role.is_vcpu());
        for (thread, id) in vcpus.zip(&self.ids) {
            thread.role = Role::Vcpu(*id);
        }
    }

    fn list(&self) -> String {
        let ids: Vec<String> = self.ids.iter().map(ToString::to_string).collect();
        ids.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use pinfold_model::{Request, VcpuCount, VmRequest, VnodeRequest};

    use super::Vcpus;

    #[test]
    fn the_hint_for_another_number_of_vcpus_keeps_the_other_machines() {
        let host = pinfold_host::SnapshotHost::new();
        let topology = pinfold_topology::read_input(&host, "core:8 pu:1").unwrap();
        let vnodes = ["a", "b"]
            .map(|name| VnodeRequest::vm(name, VmRequest::from_vcpus(VcpuCount::Exactly(2))));
        let request = Request::from_vnodes(vnodes.to_vec());
        let whole = pinfold_plan::plan("balanced", &topology, &request).unwrap();
        let part = whole.part_for(&["b"]);
        let failure = Vcpus::from_range(3..=3).require_in("F", &part, &whole).unwrap_err();
        let hint = "create it again: `pinfold plan --strategy balanced --vm name=a,vcpus=2 --vm \
                    name=b,vcpus=3 --json`";
        assert_eq!(failure.hint.as_deref(), Some(hint));
    }
}
