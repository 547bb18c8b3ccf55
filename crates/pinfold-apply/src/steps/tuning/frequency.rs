//! The frequency of the plan's CPUs: governor and limits, once per cpufreq policy.

use std::collections::BTreeSet;

use pinfold_host::paths;
use pinfold_model::PuId;
use pinfold_model::tunables::{Value, governor, max_khz, min_khz};

use crate::error::ApplyError;
use crate::steps::step_builder::StepBuilder;

const SUBJECT: &str = "cpufreq";
const REASON: &str = "requested by the plan";

pub(super) fn set(builder: &mut StepBuilder<'_>) -> Result<(), ApplyError> {
    let tuning = &builder.plan.tuning;
    let governor = tuning.get(&governor::TUNABLE).map(Value::to_string);
    let limit = |tunable| tuning.number(tunable);
    let (min, max) = (limit(&min_khz::TUNABLE), limit(&max_khz::TUNABLE));
    if governor.is_none() && min.is_none() && max.is_none() {
        return Ok(());
    }
    let mut seen = BTreeSet::new();
    for pu in builder.vnode.pus().iter() {
        // CPUs that share a policy share its files.
        let related = paths::cpufreq_file(pu, "affected_cpus");
        let shared = builder.state.file(&related)?;
        if shared.is_some_and(|list| !list.trim_ascii().is_empty() && !seen.insert(list)) {
            continue;
        }
        if let Some(governor) = &governor {
            let path = paths::cpufreq_file(pu, "scaling_governor");
            builder.set_tunable(SUBJECT, path, governor.clone(), REASON)?;
        }
        limits(builder, pu, min, max)?;
    }
    Ok(())
}

/// The kernel refuses a minimum above the maximum, so the limit that widens the range is set first.
/// Undo runs in reverse order and therefore widens first too.
fn limits(
    builder: &mut StepBuilder<'_>,
    pu: PuId,
    min: Option<u64>,
    max: Option<u64>,
) -> Result<(), ApplyError> {
    fn file(name: &str, pu: PuId) -> String {
        paths::cpufreq_file(pu, name)
    }
    let now = builder.state.text(&file("scaling_min_freq", pu))?;
    let lowest: Option<u64> = now.and_then(|text| text.trim().parse().ok());
    let mut tunables = vec![("scaling_max_freq", max), ("scaling_min_freq", min)];
    if max.zip(lowest).is_some_and(|(max, lowest)| max < lowest) {
        tunables.reverse();
    }
    for (name, khz) in tunables {
        if let Some(khz) = khz {
            builder.set_tunable(SUBJECT, file(name, pu), khz.to_string(), REASON)?;
        }
    }
    Ok(())
}
