//! Text form of pins by hand: `vcpu3=7`, `emulator=0,8`, `iothread:disk=9`, `vcpu0-3=8-11`.

use pinfold_model::{CpuSet, MAX_VCPUS, PinRequest, PuId, ROLES};

use super::policies::list;
use crate::fault::Fault;

/// Examples, and the forms of all roles; ranges are named for vCPUs only.
fn hint() -> String {
    let roles = list(
        &ROLES
            .into_iter()
            .flat_map(|kind| {
                let name = kind.name;
                let number = kind.is_numbered().then(|| format!("{name}N"));
                let range = (kind.is_numbered() && kind.runs_work()).then(|| format!("{name}N-M"));
                let id = kind.has_ids().then(|| format!("{name}:ID"));
                [Some(name.to_owned()), number, range, id].into_iter().flatten().collect::<Vec<_>>()
            })
            .collect::<Vec<_>>(),
    );
    format!("for example: vcpu3=7, vcpu0-3=8-11, emulator=0,8, iothread:disk=9; roles are {roles}")
}

/// Parses `ROLE=CPUS`; a range of vCPUs gives one pin for each of them.
pub(super) fn pin_requests(text: &str, at: usize) -> Result<Vec<PinRequest>, Fault> {
    let Some((role, list)) = text.split_once('=') else {
        return Err(fail(at, format!("expected ROLE=CPUS, got {text:?}")));
    };
    let (role, list) = (role.trim(), list.trim());
    let pus = in_order(list).map_err(|why| fail(at, why))?;
    let Some(numbers) = numbers(role) else {
        let role =
            plain(role).ok_or_else(|| fail(at, format!("{role:?} is not a role of a thread")))?;
        return Ok(vec![PinRequest { role, pus: pus.into_iter().collect() }]);
    };
    let (kind, first, last) = numbers.map_err(|why| fail(at, why))?;
    if first == last {
        return Ok(vec![pin_request(kind, first, pus.into_iter().collect())]);
    }
    if pus.len() != (last - first) as usize + 1 {
        let count = last - first + 1;
        return Err(fail(
            at,
            format!(
                "{role} is {count} threads, but {list} is {} CPUs: a range needs one CPU for each",
                pus.len()
            ),
        ));
    }
    Ok((first..=last)
        .zip(pus)
        .map(|(index, pu)| pin_request(kind, index, CpuSet::single(pu)))
        .collect())
}

fn fail(at: usize, why: String) -> Fault {
    Fault::new(at, format!("pins: {why}")).with_hint(hint())
}

fn pin_request(kind: &str, index: u32, pus: CpuSet) -> PinRequest {
    PinRequest { role: format!("{kind}({index})"), pus }
}

/// The CPUs of a list in their written order.
fn in_order(list: &str) -> Result<Vec<PuId>, String> {
    let set = CpuSet::parse_list(list).map_err(|error| error.to_string())?;
    if set.is_empty() {
        return Err("no CPU is named".to_owned());
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
    let mut names = ROLES.into_iter().filter(|kind| kind.is_numbered()).map(|kind| kind.name);
    let kind = names.find(|name| role.starts_with(name))?;
    let rest = bare(role.get(kind.len()..)?);
    if rest.is_empty() {
        return None;
    }
    let (first, last) = rest.split_once('-').unwrap_or((rest, rest));
    Some(match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => Ok((kind, first, last)),
        _ => Err(format!("{role:?} is not a role of a thread")),
    })
}

fn number(text: &str) -> Option<u32> {
    text.parse::<u32>().ok().filter(|number| *number < MAX_VCPUS)
}

/// The name of a role without a number, as plans write it.
fn plain(role: &str) -> Option<String> {
    if ROLES.into_iter().any(|kind| kind.name == role) {
        return Some(role.to_owned());
    }
    let mut names = ROLES.into_iter().filter(|kind| kind.has_ids()).map(|kind| kind.name);
    let kind = names.find(|name| role.starts_with(name))?;
    let id = bare(role.strip_prefix(kind)?.trim());
    let named = !id.is_empty() && !id.chars().any(char::is_control);
    (named && role.len() > kind.len() + id.len()).then(|| format!("{kind}({id})"))
}

/// The text in parentheses or after a colon.
fn bare(text: &str) -> &str {
    let bracketed = text.strip_prefix('(').and_then(|text| text.strip_suffix(')'));
    bracketed.or_else(|| text.strip_prefix(':')).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use pinfold_model::Role;

    use super::super::policies;
    use super::*;

    #[test]
    fn every_role_of_the_table_can_be_pinned() {
        for kind in ROLES {
            let texts = [kind.name.to_owned(), kind.syntax().replace("(N)", "(1)")];
            for text in texts.map(|text| text.replace("(ID)", "(disk)")) {
                let pins = pin_requests(&format!("{text}=7"), 0).ok().unwrap();
                assert_eq!(pins.iter().map(|pin| &pin.role).collect::<Vec<_>>(), [&text]);
                let role = Role::parse(&text);
                assert!(text == kind.name || role.is_some_and(|role| role.to_string() == text));
            }
        }
    }

    #[test]
    fn hints_list_the_roles_of_the_table() {
        assert_eq!(
            hint(),
            "for example: vcpu3=7, vcpu0-3=8-11, emulator=0,8, iothread:disk=9; roles are vcpu, \
             vcpuN, vcpuN-M, emulator, iothread, iothread:ID, vhost, vhostN, worker and task"
        );
        assert_eq!(
            policies::roles(),
            "roles are vcpu, vcpu(N), emulator, iothread, iothread(ID), vhost, vhost(N), worker \
             and task"
        );
    }
}
