//! The interrupts of the devices that the plan places.
//!
//! A PCI device has message-signalled interrupts, listed by number, or one line interrupt.
//! Interrupts that its driver sets up later (a guest's, by vfio) are not there yet.

use std::collections::BTreeSet;

use pinfold_host::paths;
use pinfold_model::{Finding, IrqPlan};

use crate::error::ApplyError;
use crate::steps::draft::Draft;
use crate::tasks;

/// Name of the program that spreads interrupts by its own mind.
const BALANCER: &str = "irqbalance";

pub(super) fn place(draft: &mut Draft<'_>) -> Result<(), ApplyError> {
    let plan = draft.plan;
    if plan.irqs.is_empty() {
        return Ok(());
    }
    if balancer_runs(draft)? {
        let text = format!("{BALANCER} runs and may move the interrupts again");
        let hint = "stop it, or ban these interrupts with its option --banirq";
        draft.find(Finding::warning("IRQ affinity", text).with_hint(hint));
    }
    for irq in &plan.irqs {
        of_device(draft, irq)?;
    }
    Ok(())
}

fn of_device(draft: &mut Draft<'_>, plan: &IrqPlan) -> Result<(), ApplyError> {
    let device = &plan.device;
    // A name from a plan must not lead elsewhere.
    let is_address = device.chars().all(|c| c.is_ascii_hexdigit() || matches!(c, ':' | '.'))
        && !device.contains("..");
    if !is_address {
        let text = format!("{device:?} is no PCI address, so its interrupts are not known");
        let hint = "name the device by its address, such as 0000:05:00.0: lspci -D shows it";
        return draft.lacks(Finding::warning("IRQ affinity", text).with_hint(hint));
    }
    let numbers = numbers_of(draft, device)?;
    if numbers.is_empty() {
        let text = format!("{device} has no interrupt that is set up");
        let hint = "those of a passed-through device come when the guest's driver asks for them: apply again then, or set new-irqs";
        return draft.lacks(Finding::warning("IRQ affinity", text).with_hint(hint));
    }
    for number in numbers {
        let knob = (paths::irq_file(number, "smp_affinity_list"), plan.pus.to_string());
        draft.knob("IRQ affinity", knob, &format!("{device}: {}", plan.reason))?;
    }
    Ok(())
}

fn numbers_of(draft: &Draft<'_>, device: &str) -> Result<BTreeSet<u32>, ApplyError> {
    let listed = tasks::unless_gone(draft.host.list(&paths::pci_msi_irqs(device)))?;
    let mut numbers: BTreeSet<u32> =
        listed.iter().flatten().filter_map(|name| name.parse().ok()).collect();
    if numbers.is_empty() {
        let line = tasks::unless_gone(draft.host.read_text(&paths::pci_irq(device)))?;
        let line: Option<u32> = line.and_then(|text| text.trim().parse().ok());
        numbers.extend(line.filter(|number| *number != 0));
    }
    // One that no driver has asked for is not listed.
    numbers.retain(|number| draft.host.exists(&paths::irq_file(*number, "smp_affinity_list")));
    Ok(numbers)
}

fn balancer_runs(draft: &Draft<'_>) -> Result<bool, ApplyError> {
    for pid in tasks::processes(draft.host)? {
        if tasks::stat(draft.host, pid)?.is_some_and(|stat| stat.comm == BALANCER) {
            return Ok(true);
        }
    }
    Ok(false)
}
