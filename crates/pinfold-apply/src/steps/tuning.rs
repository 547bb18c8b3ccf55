//! The host's tunables: interrupts, kernel work, memory, frequency, run time.
//!
//! One file per kind. A missing or refused tunable is a finding, or an error if the plan requires
//! its tunables.

mod cpu_time;
mod frequency;
pub(crate) mod hotplug;
mod irqs;
mod memory;
mod shares;

use pinfold_host::paths;
use pinfold_model::{Change, CpuSet, Finding, SamePageMerging, Undo};

use super::draft::Draft;
use crate::actuators;
use crate::error::{ApplyError, Refusal};

/// Drafts the steps for all host tunables of the plan.
pub(super) fn set(draft: &mut Draft<'_>) -> Result<(), ApplyError> {
    irqs::place(draft)?;
    switches(draft)?;
    memory::pools(draft)?;
    memory::bind(draft)?;
    frequency::set(draft)?;
    shares::set(draft)?;
    cpu_time::set(draft)
}

fn switches(draft: &mut Draft<'_>) -> Result<(), ApplyError> {
    let tuning = &draft.plan.tuning;
    if let Some(pus) = &tuning.new_irqs {
        let knob = (paths::default_smp_affinity(), mask_of(pus));
        draft.knob("default IRQ affinity", knob, "interrupts that are set up later go there")?;
    }
    if let Some(pus) = &tuning.workqueues {
        let knob = (paths::workqueue_cpumask(), mask_of(pus));
        draft.knob("workqueues", knob, "unbound work of the kernel stays there")?;
    }
    if let Some(on) = tuning.numa_balancing {
        let knob = (paths::sysctl_kernel("numa_balancing"), u8::from(on).to_string());
        draft.knob("numa_balancing", knob, "asked by the plan")?;
    }
    if let Some(on) = tuning.real_time_throttle {
        throttle(draft, on)?;
    }
    if let Some(when) = tuning.transparent_huge_pages {
        let knob = (paths::thp_file("enabled"), when.word().to_owned());
        draft.knob("transparent huge pages", knob, "asked by the plan")?;
    }
    if let Some(merging) = tuning.same_page_merging {
        let number = match merging {
            SamePageMerging::Stop => "0",
            SamePageMerging::Run => "1",
            SamePageMerging::Unmerge => "2",
        };
        draft.knob("ksm", (paths::ksm_run(), number.to_owned()), "asked by the plan")?;
    }
    if let Some(longest_us) = tuning.wake_up_us {
        // In this file 0 means "no limit" and `n/a` means "no latency at all".
        let value = if longest_us == 0 { "n/a".to_owned() } else { longest_us.to_string() };
        for pu in draft.vnode.pus().iter() {
            let knob = (paths::cpu_resume_latency(pu), value.clone());
            draft.knob("wake-up latency", knob, "this PU wakes fast enough")?;
        }
    }
    Ok(())
}

/// -1 means no limit; an existing limit is kept.
fn throttle(draft: &mut Draft<'_>, on: bool) -> Result<(), ApplyError> {
    let path = paths::sysctl_kernel("sched_rt_runtime_us");
    let now = draft.state.text(&path)?;
    let value = match (on, now.as_deref().map(str::trim)) {
        (false, _) => "-1",
        (true, Some("-1") | None) => "950000",
        (true, Some(_)) => return Ok(()),
    };
    draft.knob("real-time throttle", (path, value.to_owned()), "asked by the plan")
}

/// A mask in the kernel's hexadecimal format.
fn mask_of(pus: &CpuSet) -> String {
    pus.to_mask()
}

impl Draft<'_> {
    /// Sets a tunable unless it already has the value.
    pub(super) fn knob(
        &mut self,
        subject: &str,
        (path, value): (String, String),
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
        self.find(finding);
        Ok(())
    }
}
