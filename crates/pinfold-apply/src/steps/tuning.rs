//! The host's tunables: interrupts, kernel work, memory, frequency, run time.
//!
//! Most are written as the table of the model has them; one file per kind of the others. A missing
//! or refused tunable is a finding, or an error if the plan requires its tunables.

mod cpu_time;
mod frequency;
pub(crate) mod hotplug;
pub(crate) mod irqs;
mod memory;
mod shares;

use pinfold_model::tunables::{Tunable, governor, max_khz, min_khz, offline, rt_throttle, smt};
use pinfold_model::{Change, CpuSet, Finding, Undo};

use super::step_builder::StepBuilder;
use crate::actuators;
use crate::error::{ApplyError, Refusal};

/// Drafts the steps for all host tunables of the plan.
pub(super) fn set(builder: &mut StepBuilder<'_>) -> Result<(), ApplyError> {
    irqs::place(builder)?;
    files(builder)?;
    throttle(builder)?;
    memory::bind(builder)?;
    frequency::set(builder)?;
    shares::set(builder)?;
    cpu_time::set(builder)
}

/// Tunables whose steps depend on what the host has: each has code of its own here.
const BY_CODE: [&Tunable; 6] = [
    &rt_throttle::TUNABLE,
    &governor::TUNABLE,
    &max_khz::TUNABLE,
    &min_khz::TUNABLE,
    &smt::TUNABLE,
    &offline::TUNABLE,
];

/// Writes the files of all other tunables as the table has them.
fn files(builder: &mut StepBuilder<'_>) -> Result<(), ApplyError> {
    let pus = builder.vnode.pus();
    for (tunable, value) in builder.plan.tuning.iter() {
        if BY_CODE.iter().any(|one| one.key == tunable.key) {
            continue;
        }
        for (path, raw) in tunable.files(value, &pus) {
            builder.set_tunable(tunable.name, path, raw, tunable.reason)?;
        }
    }
    Ok(())
}

/// An existing limit is kept.
fn throttle(builder: &mut StepBuilder<'_>) -> Result<(), ApplyError> {
    let tunable = &rt_throttle::TUNABLE;
    let Some(value) = builder.plan.tuning.get(tunable) else { return Ok(()) };
    for (path, raw) in tunable.files(value, &CpuSet::new()) {
        let now = builder.state.text(&path)?;
        let is_unlimited = now.is_none_or(|text| text.trim() == "-1");
        if is_unlimited || !value.is_on() {
            builder.set_tunable(tunable.name, path, raw, tunable.reason)?;
        }
    }
    Ok(())
}

impl StepBuilder<'_> {
    /// Sets a tunable unless it already has the value.
    pub(super) fn set_tunable(
        &mut self,
        subject: &str,
        path: String,
        value: String,
        reason: &str,
    ) -> Result<(), ApplyError> {
        let Some(original) = self.state.file(&path)? else {
            let finding = Finding::warning(subject, format!("this host has no {path}"))
                .with_hint("its kernel was built without it, or the hardware lacks it");
            return self.lacks(finding);
        };
        if actuators::holds(&path, &original, value.as_bytes())? {
            return Ok(());
        }
        if !self.state.is_writable() {
            let finding = Finding::warning(subject, format!("only root can write {path}"))
                .with_hint("run it as root");
            return self.lacks(finding);
        }
        let change = Change::WriteFile { path: path.clone(), value: value.into_bytes() };
        self.step(change, Undo::WriteFile { path, original }, reason);
        Ok(())
    }

    /// Reports something that is not available here.
    pub(in crate::steps) fn lacks(&mut self, finding: Finding) -> Result<(), ApplyError> {
        if self.plan.tuning.required {
            return Err(Refusal::Lacks { finding: Box::new(finding) }.into());
        }
        self.add_finding(finding);
        Ok(())
    }
}
