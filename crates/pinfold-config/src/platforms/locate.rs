//! Finds the position in a platform file of a value that a host refuses.
//!
//! A platform does not store positions: the file is parsed again after an error.

use pinfold_model::{RequestField, VnodeField};

use crate::requests::locate::{get, items, place};
use crate::value::{self, Value, ValueKind};

/// Line and column of a part of the platform, both from 1; `None` if platforms have no such part,
/// or the file does not contain it.
pub fn place_of(text: &str, field: &RequestField) -> Option<(usize, usize)> {
    let root = value::parse_toml(text).ok()?;
    match field {
        RequestField::LargestVnode => {
            locate_key(text, vnodes(&root).max_by_key(|one| cores(one))?, "cores")
        }
        RequestField::Vnode(name, field) => {
            let key = key_of(*field)?;
            locate_key(text, of_name(&root, name)?, key)
        }
        RequestField::Device(_)
        | RequestField::Iothread(_)
        | RequestField::Free
        | RequestField::Emulator
        | RequestField::Avoid => None,
    }
}

/// The key of a platform file for a property of a vnode; `None` for those of requests only.
fn key_of(field: VnodeField) -> Option<&'static str> {
    match field {
        VnodeField::Name => Some("name"),
        VnodeField::Count => Some("cores"),
        VnodeField::Speed => Some("speed"),
        VnodeField::MemoryNode => Some("memory-node"),
        VnodeField::Method => Some("method"),
        VnodeField::Whole
        | VnodeField::Vhosts
        | VnodeField::Memory
        | VnodeField::HugePages
        | VnodeField::GuestSmt
        | VnodeField::Policies
        | VnodeField::Pins => None,
    }
}

/// Line and column of the value of a vnode's key, such as `profile`; without it, of the vnode.
pub fn place_of_key(text: &str, vnode: &str, key: &str) -> Option<(usize, usize)> {
    let root = value::parse_toml(text).ok()?;
    locate_key(text, of_name(&root, vnode)?, key)
}

fn locate_key(text: &str, vnode: &Value, key: &str) -> Option<(usize, usize)> {
    place(text, get(vnode, key).unwrap_or(vnode).at)
}

fn vnodes(root: &Value) -> impl Iterator<Item = &Value> {
    get(root, "vnode").into_iter().flat_map(items)
}

fn of_name<'v>(root: &'v Value, name: &str) -> Option<&'v Value> {
    vnodes(root).find(|vnode| {
        get(vnode, "name")
            .is_some_and(|value| matches!(&value.what, ValueKind::Text(text) if text == name))
    })
}

/// The first of the largest is meant, as the planner takes them.
fn cores(vnode: &Value) -> i64 {
    match get(vnode, "cores").map(|cores| &cores.what) {
        Some(ValueKind::Number(cores)) => *cores,
        Some(_) | None => 0,
    }
}
