//! Measures the real speed at each hardware frequency.

use std::collections::BTreeMap;

use pinfold_host::with_causes;

use super::MethodContext;
use crate::SpeedError;
use crate::frequency::{Domain, domains};

/// Number of samples per frequency in a calibration,
const LOOKS: usize = 3;
/// duration of a sample,
const LOOK_NS: u64 = 200_000_000;
/// and time between setting a frequency and its sample.
const SETTLE_NS: u64 = 20_000_000;

/// The domains of a vnode at its start, checked to be settable, and calibrated on request.
pub(super) fn ready(context: &MethodContext<'_, '_>) -> Result<Vec<Domain>, SpeedError> {
    let mut domains = domains(context.host, &context.node.pus())?;
    for domain in &mut domains {
        if let Some(why) = domain.refusal(context.host)? {
            return Err(context.unavailable(&why));
        }
        if context.node.calibrate {
            calibrate(domain, context)?;
        }
    }
    Ok(domains)
}

/// Measures the speed at each frequency with reference runs in the vnode. The frequencies
/// alternate, so that drift affects all of them equally. The result is the median of three
/// samples, relative to the highest. If a reference run fails, the nominal frequencies are
/// used.
fn calibrate(domain: &mut Domain, context: &MethodContext<'_, '_>) -> Result<(), SpeedError> {
    let pus = domain.pus.intersection(&context.node.pus());
    let mut looks: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let mut failed = None;
    for _ in 0..LOOKS {
        for khz in &domain.khz {
            domain.set(context.host, *khz)?;
            context.clock.sleep_ns(SETTLE_NS);
            let rates = match context.spawner.measure_throughput(
                &context.cgroup.entries(),
                &pus,
                LOOK_NS,
            ) {
                Ok(rates) => rates,
                Err(error) => {
                    failed = failed.or(Some(error));
                    continue;
                }
            };
            let windows: Vec<u64> = rates
                .into_values()
                .flat_map(|one| one.windows)
                .map(|window| window.units)
                .collect();
            looks.entry(*khz).or_default().extend(middle(windows));
        }
    }
    domain.set_full(context.host)?;
    let rates: BTreeMap<u64, u64> =
        looks.into_iter().filter_map(|(khz, rates)| Some((khz, middle(rates)?))).collect();
    let most = domain.khz.last().and_then(|khz| rates.get(khz)).copied().unwrap_or(0);
    if most == 0 || rates.len() != domain.khz.len() || rates.values().any(|rate| *rate == 0) {
        let why = failed.map(|error| format!(" ({})", with_causes(&error))).unwrap_or_default();
        context.spawner.report(&format!(
            "vnode {}: the frequencies of CPU {pus} could not be measured, because other tasks ran \
             there{why}: Pinfold assumes their nominal speeds",
            context.node.name
        ));
        return Ok(());
    }
    domain.measured = rates
        .into_iter()
        .map(|(khz, rate)| {
            let millionths = rate.saturating_mul(1_000_000) / most;
            (khz, u32::try_from(millionths).unwrap_or(u32::MAX))
        })
        .collect();
    Ok(())
}

/// The median.
fn middle(mut values: Vec<u64>) -> Option<u64> {
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}
