//! The pins of a layout by hand, so that `apply` keeps them.

use pinfold_model::{CpuSet, PinRequest, PuId, Role};
use pinfold_plan::layout::Layout;

/// The pins of vCPUs, emulator and iothreads as parts of a request.
pub(super) fn pin_requests(layout: &Layout) -> Vec<PinRequest> {
    list_pins(layout)
        .map(|(role, pus)| PinRequest { role: role.to_string(), pus: pus.clone() })
        .collect()
}

/// The same as options: `--pin vcpu0-3=8,24,9,25 --pin emulator=0-1`.
pub(super) fn options(layout: &Layout) -> String {
    let mut options = Vec::new();
    let mut run: Vec<(u32, PuId)> = Vec::new();
    let mut vcpus: Vec<(u32, &CpuSet)> =
        list_pins(layout).filter_map(|(role, pus)| Some((role.vcpu()?, pus))).collect();
    vcpus.sort_unstable_by_key(|(index, _)| *index);
    for (index, pus) in vcpus {
        let is_next = run.last().is_none_or(|(last, _)| last + 1 == index);
        match pus.first().filter(|_| pus.len() == 1) {
            Some(pu) if is_next => run.push((index, pu)),
            Some(pu) => {
                options.extend(of_run(&std::mem::replace(&mut run, vec![(index, pu)])));
            }
            None => {
                options.extend(of_run(&std::mem::take(&mut run)));
                options.push(format!("vcpu{index}={pus}"));
            }
        }
    }
    options.extend(of_run(&run));
    for (role, pus) in list_pins(layout) {
        match (role, role.iothread()) {
            (Role::Emulator, _) => options.push(format!("emulator={pus}")),
            (_, Some(name)) => options.push(format!("iothread:{name}={pus}")),
            (_, None) => {}
        }
    }
    options.iter().map(|option| format!(" --pin {option}")).collect()
}

/// The roles that `apply` finds in a domain, with their pins.
fn list_pins(layout: &Layout) -> impl Iterator<Item = (&Role, &CpuSet)> {
    let pins = layout.pins.iter().filter(|pin| {
        pin.role.is_vcpu() || pin.role == Role::Emulator || pin.role.iothread().is_some()
    });
    pins.filter_map(|pin| Some((&pin.role, pin.pus.as_ref()?)))
}

/// Neighbouring vCPUs with one CPU each, in their order; `None` without any.
fn of_run(run: &[(u32, PuId)]) -> Option<String> {
    let ((first, _), (last, _)) = (run.first()?, run.last()?);
    let mut parts: Vec<(PuId, PuId)> = Vec::new();
    for (_, pu) in run {
        match parts.last_mut() {
            Some((_, end)) if end.0 + 1 == pu.0 => *end = *pu,
            _ => parts.push((*pu, *pu)),
        }
    }
    let list = parts
        .iter()
        .map(|(start, end)| if start == end { start.to_string() } else { format!("{start}-{end}") })
        .collect::<Vec<_>>()
        .join(",");
    let range = if first == last { first.to_string() } else { format!("{first}-{last}") };
    Some(format!("vcpu{range}={list}"))
}
