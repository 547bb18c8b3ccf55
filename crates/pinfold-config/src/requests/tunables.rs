//! The host's tunables in the syntax of the command line: `KEY=VALUE`.

use pinfold_model::tunables::{TUNABLES, Tunable, Value, irq};
use pinfold_model::{Device, IrqPlan, Plan, PolicyRequest, closest};

use super::policies;
use crate::ConfigError;
use crate::fault::Fault;

/// Adds one tunable to a plan, such as `thp=never` or `workqueues=housekeeping`; `housekeeping`
/// stands for the plan's housekeeping CPUs.
///
/// # Errors
/// [`ConfigError`] names the invalid key or value, and the valid ones.
pub fn set_tunable(plan: &mut Plan, words: &str) -> Result<(), ConfigError> {
    Ok(set(plan, words)?)
}

/// The tunable that words name, with key and value.
pub(crate) fn parts(words: &str) -> Result<(&'static Tunable, &str, &str), Fault> {
    let Some((key, text)) = words.split_once('=') else {
        return Err(Fault::new(0, format!("expected KEY=VALUE, got {words:?}")).with_hint(keys()));
    };
    let (key, text) = (key.trim(), text.trim());
    let name = key.split_once(':').map_or(key, |(name, _)| name);
    let found = Tunable::by_key(name).filter(|one| one.of.is_empty() != key.contains(':'));
    let Some(tunable) = found else {
        let fault = Fault::new(0, format!("there is no tunable {key:?}"));
        let titles: Vec<String> = TUNABLES.iter().map(|one| one.title()).collect();
        let nearest = closest(key, titles.iter().map(String::as_str));
        let meant = nearest.map_or_else(String::new, |one| format!("did you mean {one}? "));
        return Err(fault.with_hint(format!("{meant}tunables are {}", titles.join(", "))));
    };
    Ok((tunable, key, text))
}

fn set(plan: &mut Plan, words: &str) -> Result<(), Fault> {
    let (tunable, key, text) = parts(words)?;
    let of = key.split_once(':').map_or("", |(_, of)| of);
    // The device is checked first.
    let is_irq = tunable.key == irq::TUNABLE.key;
    let device = is_irq.then(|| irq_device(of)).transpose()?;
    let value = tunable.values.parse(key, text, &plan.housekeeping).map_err(Fault::from)?;
    if let Value::Policy(policy) = value {
        let policy_request = PolicyRequest { role: of.to_owned(), policy };
        return plan
            .set_policy(None, &policy_request)
            .map_err(|why| Fault::new(0, why).with_hint(policies::roles()));
    }
    match (value, device) {
        (Value::Cpus(pus), Some(device)) => {
            let reason = "requested on the command line".to_owned();
            plan.irqs.retain(|irq| irq.device != device);
            plan.irqs.push(IrqPlan { device, pus, reason });
        }
        (value, _) => plan.tuning.set(tunable, value),
    }
    Ok(())
}

/// A device as plans name it: a PCI address with its domain, `node N`, or all.
fn irq_device(text: &str) -> Result<String, Fault> {
    if matches!(text, IrqPlan::ALL | "*") {
        return Ok(IrqPlan::ALL.to_owned());
    }
    match super::device_of(text, 0) {
        Ok(Device::Pci(address)) => Ok(address),
        Ok(Device::Node(node)) => Ok(format!("node {node}")),
        Err(fault) => {
            let why = format!("irq: {}", fault.why);
            Err(Fault::new(0, why).with_hint(
                "write irq:0000:05:00.0, irq:node:1 for the devices of a node, or irq:all",
            ))
        }
    }
}

fn keys() -> String {
    // With blanks between the values, so that the list can be wrapped.
    let all: Vec<String> = TUNABLES
        .iter()
        .map(|one: &&Tunable| {
            format!("{}={}", one.title(), one.values.syntax().replace('|', " | "))
        })
        .collect();
    format!("tunables are {}", all.join("; "))
}
