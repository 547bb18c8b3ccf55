//! `irq:all` moves all interrupts that can be moved, `--isolate host` all of those on exclusive CPUs. The kernel keeps some on their CPUs: those of
//! the queues of most disks, and of timers. They are one finding, also if the plan requires its
//! tunables; it is an error only if all of `irq:all` stay.

use std::collections::BTreeSet;

use pinfold_host::{HostError, HostMut, paths};
use pinfold_model::{Finding, IrqPlan, Plan};

use crate::actuators::is_managed_irq;
use crate::error::{ApplyError, Refusal};
use crate::host_state::HostState;
use crate::steps::{irqs_of, irqs_off_exclusive};

/// Text that is no list of CPUs. The kernel compares it only for an interrupt that it does not
/// manage (`kernel/irq/proc.c`, `write_irq_affinity`), so a write changes nothing either way.
const NO_LIST: &[u8] = b"x";

/// What asked for all interrupts to be moved, in messages.
const BY_NAME: &str = "irq:all";
const BY_ISOLATION: &str = "--isolate host";

/// The interrupts of `irq:all` or `--isolate host`, and those of them that stay.
#[derive(Default)]
pub(super) struct ManagedIrqs {
    cause: &'static str,
    all: BTreeSet<u32>,
    stay: BTreeSet<u32>,
}

impl ManagedIrqs {
    /// The interrupts that the plan names by `irq:all` only, or those that isolation moves.
    pub(super) fn new(state: &HostState<'_>, plan: &Plan) -> Result<Self, ApplyError> {
        if !plan.irqs.iter().any(|irq| irq.device == IrqPlan::ALL) {
            let all = irqs_off_exclusive(state, plan)?.into_keys().collect();
            return Ok(Self { cause: BY_ISOLATION, all, stay: BTreeSet::new() });
        }
        let all = irqs_of(state, plan, IrqPlan::ALL)?.unwrap_or_default();
        Ok(Self { cause: BY_NAME, all, stay: BTreeSet::new() })
    }

    /// True for the kernel's refusal to move one of them.
    pub(super) fn stays(&mut self, error: &HostError) -> bool {
        let HostError::File { path, .. } = error else { return false };
        let number = self
            .all
            .iter()
            .copied()
            .find(|number: &u32| *path == paths::irq_file(*number, "smp_affinity_list"))
            .filter(|_| is_managed_irq(error));
        number.is_some_and(|number| self.stay.insert(number))
    }

    /// What stays, after all were tried.
    pub(super) fn finding(&self, is_required: bool) -> Result<Option<Finding>, ApplyError> {
        let count = self.stay.len();
        match (count, self.all.len()) {
            (0, _) => Ok(None),
            (_, all) if count == all && self.cause == BY_NAME && is_required => {
                Err(Refusal::Lacks { finding: Box::new(none_movable(all)) }.into())
            }
            (_, all) if count == all && self.cause == BY_NAME => Ok(Some(none_movable(all))),
            (_, all) => Ok(Some(some_stay(self.cause, &self.stay, all))),
        }
    }
}

fn some_stay(cause: &str, stay: &BTreeSet<u32>, all: usize) -> Finding {
    let numbers: Vec<String> = stay.iter().map(u32::to_string).collect();
    let numbers = numbers.join(", ");
    let text = format!(
        "{cause}: the kernel manages {} of {all} interrupts; not moved: {numbers}",
        stay.len()
    );
    Finding::warning("IRQ affinity", text)
        .with_hint("boot with isolcpus=managed_irq,CPUS, or give the devices fewer queues")
}

fn none_movable(all: usize) -> Finding {
    let text = format!("irq:all: the kernel manages all {all} interrupts; none was moved");
    Finding::warning("IRQ affinity", text)
        .with_hint("boot with isolcpus=managed_irq,CPUS, or give the devices fewer queues")
}

/// The finding that `irq:all` would move nothing on this host, without a change: the kernel is
/// asked with a text that is no list of CPUs. `None` if one can be moved, or if this process may
/// not ask.
///
/// # Errors
/// [`HostError`] if the list of interrupts cannot be read.
pub fn no_movable_irq(host: &dyn HostMut) -> Result<Option<Finding>, HostError> {
    let mut managed = 0;
    for name in host.list(&paths::irqs_dir())? {
        let Ok(number) = name.parse::<u32>() else { continue };
        let path = paths::irq_file(number, "smp_affinity_list");
        if !host.exists(&path) {
            continue;
        }
        match host.write(&path, NO_LIST) {
            Err(error) if is_managed_irq(&error) => managed += 1,
            Ok(()) | Err(_) => return Ok(None),
        }
    }
    Ok((managed > 0).then(|| none_movable(managed)))
}
