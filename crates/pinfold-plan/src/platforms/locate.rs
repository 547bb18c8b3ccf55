//! Where in a platform file the value stands that a host cannot have.
//!
//! A platform does not keep its places: the file is read again once something is wrong with it.

use super::PlatformError;
use crate::PlanError;
use crate::requests::locate::{get, items, place};
use crate::requests::value::{self, Value, Whole};

/// Line and column of the value that a refusal of the host is about, both from 1; `None` if it is
/// about no value of the file.
#[must_use]
pub fn place_of(text: &str, error: &PlatformError) -> Option<(usize, usize)> {
    let (vnode, keys): (Option<&str>, &[&str]) = match error {
        PlatformError::Plan(error) => match error {
            PlanError::NoVcpus { vnode, .. } | PlanError::NoRoom { vnode, .. } => {
                (Some(vnode), &["cores"])
            }
            // Of several vnodes the largest is the first that has no room.
            PlanError::TooManyVcpus { .. } => (None, &["cores"]),
            PlanError::BadName { name, .. } => (Some(name), &["name"]),
            PlanError::Device { .. }
            | PlanError::BadIothread { .. }
            | PlanError::Free { .. }
            | PlanError::EmulatorRequest { .. }
            | PlanError::NoPus { .. }
            | PlanError::TooManyVhosts { .. }
            | PlanError::Memory { .. }
            | PlanError::HugePages { .. }
            | PlanError::GuestSmt { .. }
            | PlanError::Policy { .. }
            | PlanError::Pin { .. }
            | PlanError::Nodes { .. }
            | PlanError::Cells { .. }
            | PlanError::WrongKind { .. }
            | PlanError::UnknownStrategy { .. }
            | PlanError::NoVnodes
            | PlanError::NoHousekeeping { .. }
            | PlanError::TooFewPus { .. } => return None,
        },
        PlatformError::Frequency { vnode, .. } | PlatformError::Speeds { vnode, .. } => {
            (Some(vnode), &["speed"])
        }
        PlatformError::MemoryNode { vnode, .. } => (Some(vnode), &["memory-node"]),
        PlatformError::TwoFrequencies { second: (vnode, _), .. } => (Some(vnode), &["speed"]),
        PlatformError::SlowedTwice { slowed: vnode, .. }
        | PlatformError::LastHousekeeping { vnode, .. } => (Some(vnode), &["method"]),
    };
    let root = value::parse_toml(text).ok()?;
    let vnode = match vnode {
        Some(name) => of_name(&root, name),
        None => vnodes(&root).max_by_key(|vnode| cores(vnode)),
    };
    at(text, vnode?, keys)
}

/// The same of a key of a vnode, such as `profile`: of its value, or of the vnode.
#[must_use]
pub fn place_of_key(text: &str, vnode: &str, key: &str) -> Option<(usize, usize)> {
    let root = value::parse_toml(text).ok()?;
    at(text, of_name(&root, vnode)?, &[key])
}

fn at(text: &str, vnode: &Value, keys: &[&str]) -> Option<(usize, usize)> {
    place(text, keys.iter().find_map(|key| get(vnode, key)).unwrap_or(vnode).at)
}

fn vnodes(root: &Value) -> impl Iterator<Item = &Value> {
    get(root, "vnode").into_iter().flat_map(items)
}

fn of_name<'v>(root: &'v Value, name: &str) -> Option<&'v Value> {
    vnodes(root).find(|vnode| {
        get(vnode, "name")
            .is_some_and(|value| matches!(&value.what, Whole::Text(text) if text == name))
    })
}

/// The first of the largest is meant, as the planner takes them.
fn cores(vnode: &Value) -> i64 {
    match get(vnode, "cores").map(|cores| &cores.what) {
        Some(Whole::Number(cores)) => *cores,
        Some(_) | None => 0,
    }
}
