//! Text form of pins by hand: `vcpu3=7`, `emulator=0,8`, `iothread:disk=9`, `vcpu0-3=8-11`.

use pinfold_model::{CpuSet, MAX_VCPUS, PinWish, PuId};

use crate::fault::Fault;

const HINT: &str = "such as vcpu3=7, vcpu0-3=8-11, emulator=0,8, iothread:disk=9; roles are vcpu, \
                    vcpuN, vcpuN-M, emulator, iothread, iothread:ID, vhost, vhostN, worker and task";

/// Parses `ROLE=PUS`; a range of vCPUs gives one pin for each of them.
pub(super) fn wishes(text: &str, at: usize) -> Result<Vec<PinWish>, Fault> {
    let wrong = |why: String| Fault::new(at, format!("pins: {why}")).with_hint(HINT);
    let Some((role, list)) = text.split_once('=') else {
        return Err(wrong(format!("{text:?} is not written ROLE=PUS")));
    };
    let (role, list) = (role.trim(), list.trim());
    let pus = in_order(list).map_err(wrong)?;
    let Some(numbers) = numbers(role) else {
        let role = plain(role).ok_or_else(|| wrong(format!("{role:?} is no role of a thread")))?;
        return Ok(vec![PinWish { role, pus: pus.into_iter().collect() }]);
    };
    let (kind, first, last) = numbers.map_err(wrong)?;
    let wish = |index: u32, pus: CpuSet| PinWish { role: format!("{kind}({index})"), pus };
    if first == last {
        return Ok(vec![wish(first, pus.into_iter().collect())]);
    }
    if pus.len() != (last - first) as usize + 1 {
        let count = last - first + 1;
        return Err(wrong(format!(
            "{role} are {count} threads, {list} are {} PUs: a range takes a PU for each",
            pus.len()
        )));
    }
    Ok((first..=last).zip(pus).map(|(index, pu)| wish(index, CpuSet::single(pu))).collect())
}

/// The CPUs of a list in their written order.
fn in_order(list: &str) -> Result<Vec<PuId>, String> {
    let set = CpuSet::parse_list(list).map_err(|error| error.to_string())?;
    if set.is_empty() {
        return Err("no PU is named".to_owned());
    }
    if list.contains('^') {
        return Ok(set.iter().collect());
    }
    let mut pus: Vec<PuId> = Vec::with_capacity(set.len());
    for part in list.split(',') {
        let part = CpuSet::parse_list(part).map_err(|error| error.to_string())?;
        pus.extend(part.iter());
    }
    Ok(pus)
}

/// Kind, first and last number of `vcpu3`, `vcpu(3)`, `vcpu:3`, `vcpu0-3`, and the same for vhost
/// workers; `None` for a role without a number.
fn numbers(role: &str) -> Option<Result<(&'static str, u32, u32), String>> {
    let kind = ["vcpu", "vhost"].into_iter().find(|kind| role.starts_with(kind))?;
    let rest = bare(role.get(kind.len()..)?);
    if rest.is_empty() {
        return None;
    }
    let (first, last) = rest.split_once('-').unwrap_or((rest, rest));
    let number = |text: &str| text.parse::<u32>().ok().filter(|number| *number < MAX_VCPUS);
    Some(match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => Ok((kind, first, last)),
        _ => Err(format!("{role:?} is no role of a thread")),
    })
}

/// The name of a role without a number, as plans write it.
fn plain(role: &str) -> Option<String> {
    match role {
        "vcpu" | "emulator" | "iothread" | "vhost" | "worker" | "task" => Some(role.to_owned()),
        _ => {
            let id = bare(role.strip_prefix("iothread")?.trim());
            let named = !id.is_empty() && !id.chars().any(char::is_control);
            (named && role.len() > "iothread".len() + id.len()).then(|| format!("iothread({id})"))
        }
    }
}

/// The text in parentheses or after a colon.
fn bare(text: &str) -> &str {
    let bracketed = text.strip_prefix('(').and_then(|text| text.strip_suffix(')'));
    bracketed.or_else(|| text.strip_prefix(':')).unwrap_or(text)
}
