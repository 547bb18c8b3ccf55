//! The interrupts of the devices that the plan places, and those that `--isolate host` moves off
//! the exclusive CPUs: all that the plan does not name.
//!
//! A PCI device has message-signalled interrupts, listed by number, or one line interrupt.
//! Interrupts that its driver sets up later (for a guest, by vfio) do not exist yet.

use std::collections::{BTreeMap, BTreeSet};

use pinfold_host::paths;
use pinfold_model::{CpuSet, Finding, IrqPlan, IsolationScope, Plan};

use crate::cpusets;
use crate::error::ApplyError;
use crate::host_state::HostState;
use crate::steps::step_builder::StepBuilder;

/// Name of the daemon that distributes interrupts.
const BALANCER: &str = "irqbalance";

pub(super) fn place(builder: &mut StepBuilder<'_>) -> Result<(), ApplyError> {
    let plan = builder.plan;
    let isolated = find_irqs_to_move(builder.state, plan)?;
    if plan.irqs.is_empty() && isolated.is_empty() {
        return Ok(());
    }
    if balancer_runs(builder)? {
        let text = format!("{BALANCER} is running and may move the interrupts again");
        let hint = "stop it, or ban these interrupts with its option --banirq";
        builder.add_finding(Finding::warning("IRQ affinity", text).with_hint(hint));
    }
    for irq in &plan.irqs {
        of_device(builder, irq)?;
    }
    for (number, pus) in isolated {
        let path = paths::irq_file(number, "smp_affinity_list");
        let reason = "no interrupt that can be moved is on exclusive CPUs";
        builder.set_tunable("IRQ affinity", path, pus.to_string(), reason)?;
    }
    Ok(())
}

/// The interrupts that `--isolate host` moves, each with its new CPUs: its present ones that are
/// not exclusive, or the housekeeping CPUs if there are none. A plan with `irq:all` has chosen
/// itself.
pub(crate) fn find_irqs_to_move(
    state: &HostState<'_>,
    plan: &Plan,
) -> Result<BTreeMap<u32, CpuSet>, ApplyError> {
    let mut moved = BTreeMap::new();
    if plan.isolation != IsolationScope::Host
        || plan.irqs.iter().any(|irq| irq.device == IrqPlan::ALL)
    {
        return Ok(moved);
    }
    for number in numbers_of(state, plan, IrqPlan::ALL)?.unwrap_or_default() {
        let path = paths::irq_file(number, "smp_affinity_list");
        let Some(bytes) = state.file(&path)? else { continue };
        let present = cpusets::parse(&path, &bytes)?;
        if !present.is_disjoint(&plan.exclusive) {
            let rest = present.difference(&plan.exclusive);
            moved.insert(number, if rest.is_empty() { plan.housekeeping.clone() } else { rest });
        }
    }
    Ok(moved)
}

fn of_device(builder: &mut StepBuilder<'_>, plan: &IrqPlan) -> Result<(), ApplyError> {
    let device = &plan.device;
    let Some(numbers) = numbers_of(builder.state, builder.plan, device)? else {
        let text = format!("{device:?} is not a PCI address, so its interrupts are unknown");
        let hint = "name the device by its address, such as 0000:05:00.0 (lspci -D shows it), its node, or all";
        return builder.lacks(Finding::warning("IRQ affinity", text).with_hint(hint));
    };
    if numbers.is_empty() {
        let text = format!("{device} has no active interrupts");
        let hint = "a passed-through device gets its interrupts when the guest's driver requests \
                    them: apply again then, or set new-irqs";
        return builder.lacks(Finding::warning("IRQ affinity", text).with_hint(hint));
    }
    for number in numbers {
        let path = paths::irq_file(number, "smp_affinity_list");
        let reason = format!("{device}: {}", plan.reason);
        builder.set_tunable("IRQ affinity", path, plan.pus.to_string(), &reason)?;
    }
    Ok(())
}

/// The interrupts that a name in a plan stands for: those of one device, of all devices of a node,
/// or all of the host that the plan does not name otherwise. `None` if the name has none of these
/// forms.
pub(crate) fn numbers_of(
    state: &HostState<'_>,
    plan: &Plan,
    device: &str,
) -> Result<Option<BTreeSet<u32>>, ApplyError> {
    if device == IrqPlan::ALL {
        let listed = state.names(&paths::irqs_dir())?;
        let mut numbers = existing(state, listed.iter().filter_map(|name| name.parse().ok()));
        for other in plan.irqs.iter().filter(|irq| irq.device != IrqPlan::ALL) {
            let named = numbers_of(state, plan, &other.device)?.unwrap_or_default();
            numbers = &numbers - &named;
        }
        return Ok(Some(numbers));
    }
    if let Some(node) = device.strip_prefix("node ").and_then(|node| node.parse::<u32>().ok()) {
        let mut numbers = BTreeSet::new();
        let devices = state.names(&paths::pci_devices_dir())?;
        for address in devices {
            let own = state.text(&paths::pci_numa_node(&address))?;
            if own.and_then(|text| text.trim().parse().ok()) == Some(node) {
                numbers.extend(of_address(state, &address)?);
            }
        }
        return Ok(Some(numbers));
    }
    // A name from a plan must not lead to another path.
    let is_address = device.chars().all(|c| c.is_ascii_hexdigit() || matches!(c, ':' | '.'))
        && !device.contains("..");
    if is_address { of_address(state, device).map(Some) } else { Ok(None) }
}

fn of_address(state: &HostState<'_>, device: &str) -> Result<BTreeSet<u32>, ApplyError> {
    let listed = state.names(&paths::pci_msi_irqs(device))?;
    let mut numbers: BTreeSet<u32> = listed.iter().filter_map(|name| name.parse().ok()).collect();
    if numbers.is_empty() {
        let line = state.text(&paths::pci_irq(device))?;
        let line: Option<u32> = line.and_then(|text| text.trim().parse().ok());
        numbers.extend(line.filter(|number| *number != 0));
    }
    Ok(existing(state, numbers.into_iter()))
}

/// The interrupts that exist: one that no driver has requested is not listed.
fn existing(state: &HostState<'_>, numbers: impl Iterator<Item = u32>) -> BTreeSet<u32> {
    numbers.filter(|number| state.exists(&paths::irq_file(*number, "smp_affinity_list"))).collect()
}

fn balancer_runs(builder: &StepBuilder<'_>) -> Result<bool, ApplyError> {
    for pid in builder.state.processes()? {
        if builder.state.stat(pid)?.is_some_and(|stat| stat.comm == BALANCER) {
            return Ok(true);
        }
    }
    Ok(false)
}
