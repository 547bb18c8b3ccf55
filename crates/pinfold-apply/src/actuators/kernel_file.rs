//! A file of the kernel that takes a value in one `write(2)`.
//!
//! Three kinds need different eyes: lists of PUs or nodes compare as sets, and those of
//! `cpuset.cpus` have a file beside them that shows what was really granted (version 2 drops
//! without an error what the parent lacks); `cgroup.subtree_control` takes `+name` and
//! shows names; all others compare as text without the blanks at their ends.

use pinfold_host::mountinfo::Version;
use pinfold_host::{Host, HostError, HostMut};
use pinfold_model::Finding;

use super::{Past, Reverted, Shown, Taken, inherit};
use crate::cpusets::{self, CPUSET, Cpusets};
use crate::tasks;

/// What [`pinfold_model::Change::WriteFile`] writes to give children the controller.
pub(crate) const ENABLE: &[u8] = b"+cpuset";
pub(super) const DISABLE: &[u8] = b"-cpuset";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    GrantedList,
    List,
    Controllers,
    Text,
}

fn kind(path: &str) -> Kind {
    match path.rsplit('/').next() {
        Some("cpuset.cpus") => Kind::GrantedList,
        Some("cpuset.mems") => Kind::List,
        Some("cgroup.subtree_control") => Kind::Controllers,
        Some(_) | None => Kind::Text,
    }
}

pub(super) fn take(host: &dyn HostMut, path: &str, value: &[u8]) -> Result<Taken, HostError> {
    host.write(path, value)?;
    Ok(Taken::Done(Vec::new()))
}

pub(super) fn verify(
    host: &dyn Host,
    cpusets: Option<&Cpusets>,
    path: &str,
    value: &[u8],
) -> Result<Shown, HostError> {
    let found = host.read(path)?;
    if !same(kind(path), path, &found, value)? {
        return Ok(Shown::Other { wanted: shown(value), found: shown(&found) });
    }
    let (Some(cpusets), Kind::GrantedList) = (cpusets, kind(path)) else {
        return Ok(Shown::AsAsked);
    };
    let group = path.rsplit_once('/').map_or(path, |(group, _)| group);
    let asked = cpusets::parse(path, value)?;
    let got = cpusets::list(host, &cpusets.effective_path(group))?;
    Ok(match got.is_subset(&asked) {
        true => Shown::AsAsked,
        false => Shown::Other { wanted: asked.to_string(), found: format!("{got} in effect") },
    })
}

pub(super) fn revert(past: &Past<'_>, path: &str, original: &[u8]) -> Result<Reverted, HostError> {
    let kind = kind(path);
    let group = path.rsplit_once('/').map_or(path, |(group, _)| group);
    let unified = past.cpusets.as_ref().filter(|cpusets| cpusets.version() == Version::V2);
    let list = unified.filter(|_| kind == Kind::GrantedList);
    if let Some(cpusets) = list {
        inherit::mend(past, cpusets, group)?;
    }
    let Some(now) = tasks::unless_gone(past.host.read(path))? else { return Ok(Reverted::Gone) };
    if kind == Kind::Controllers {
        return disable(past, (path, group), &now, original);
    }
    if same(kind, path, &now, original)? {
        return Ok(Reverted::Nothing);
    }
    let ours = past.written_values(path).map(|value| same(kind, path, &now, value));
    let mut ours = ours.collect::<Result<Vec<_>, _>>()?.contains(&true);
    if let Some(cpusets) = list {
        if is_empty(original) && inherit::is_all(past, cpusets, path, &now) {
            return Ok(Reverted::Later);
        }
        // Empty is what a list is after the controller was switched off and on by an undo.
        ours |= is_empty(&now);
        if ours && is_empty(original) {
            return inherit::restore(past, cpusets, group);
        }
    }
    if !ours {
        let text = format!(
            "{path} holds {:?}, which Pinfold did not write; the original {:?} was not put back",
            shown(&now),
            shown(original)
        );
        return Ok(Reverted::Changed(Finding::warning("kernel file", text)));
    }
    past.host.write(path, original)?;
    let now = past.host.read(path)?;
    if same(kind, path, &now, original)? {
        return Ok(Reverted::Restored);
    }
    Err(unexpected(path, &now, original))
}

/// Takes the controller from a group's children again, unless somebody else uses it now.
fn disable(
    past: &Past<'_>,
    (path, group): (&str, &str),
    now: &[u8],
    original: &[u8],
) -> Result<Reverted, HostError> {
    let Some(cpusets) = &past.cpusets else { return Ok(Reverted::Gone) };
    if has_cpuset(original) || !has_cpuset(now) {
        return Ok(Reverted::Nothing);
    }
    let ours = |path: &str, value: &[u8]| {
        past.wrote(path, value) || inherit::is_all(past, cpusets, path, value)
    };
    if let Some(why) = inherit::obstacle(past.host, cpusets, group, &ours)? {
        let text = format!("{path} keeps the cpuset controller, because {why}");
        return Ok(Reverted::Changed(Finding::warning("cgroup cpuset", text)));
    }
    past.host.write(path, DISABLE)?;
    let now = past.host.read(path)?;
    if has_cpuset(&now) { Err(unexpected(path, &now, original)) } else { Ok(Reverted::Restored) }
}

fn is_empty(bytes: &[u8]) -> bool {
    bytes.trim_ascii().is_empty()
}

fn same(kind: Kind, path: &str, found: &[u8], value: &[u8]) -> Result<bool, HostError> {
    match kind {
        Kind::GrantedList | Kind::List => {
            Ok(cpusets::parse(path, found)? == cpusets::parse(path, value)?)
        }
        Kind::Controllers => Ok(has_cpuset(found)),
        Kind::Text => Ok(found.trim_ascii() == value.trim_ascii()),
    }
}

/// True if a list of controllers has cpuset.
pub(crate) fn has_cpuset(bytes: &[u8]) -> bool {
    bytes.split(u8::is_ascii_whitespace).any(|name| name == CPUSET.as_bytes())
}

fn unexpected(path: &str, now: &[u8], original: &[u8]) -> HostError {
    HostError::Unexpected {
        path: path.to_owned(),
        why: format!("holds {:?} after {:?} was written back", shown(now), shown(original)),
    }
}

fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}
