//! Finds the position in a request file of a value that a host or a strategy refuses.
//!
//! A request does not store positions: the file is parsed again after an error.

use pinfold_model::{RequestField, VnodeField};

use crate::ConfigError;
use crate::fault::Fault;
use crate::value::{self, Value, ValueKind};

/// Line and column of a part of the request, both from 1; `None` if the file does not contain it.
pub fn place_of(text: &str, field: &RequestField) -> Option<(usize, usize)> {
    let root = value::parse_toml(text).ok()?;
    place(text, find_offset(&root, field)?)
}

/// Line and column of the value of a key such as `["host", "pus"]`.
#[must_use]
pub fn place_of_key(text: &str, path: &[&str]) -> Option<(usize, usize)> {
    let root = value::parse_toml(text).ok()?;
    let found = path.iter().try_fold(&root, |table, key| get(table, key))?;
    place(text, found.at)
}

pub(crate) fn place(text: &str, at: usize) -> Option<(usize, usize)> {
    ConfigError::in_file(text, Fault::new(at, String::new())).place
}

fn find_offset(root: &Value, field: &RequestField) -> Option<usize> {
    match field {
        RequestField::Device(device) => {
            let lists = vnodes(root).filter_map(|vnode| get(vnode, "devices"));
            item(lists.chain(get(root, "interrupts")), |text: &str| {
                super::device(text).is_ok_and(|found| found.to_string() == *device)
            })
        }
        RequestField::Iothread(id) => {
            item(vnodes(root).filter_map(|vnode| get(vnode, "iothreads")), |text| text == id)
        }
        RequestField::Free => {
            let host = get(root, "host")?;
            Some(get(host, "pus").or_else(|| get(host, "free"))?.at)
        }
        RequestField::Emulator => Some(get(root, "emulator")?.at),
        RequestField::Avoid => Some(get(root, "avoid")?.at),
        RequestField::LargestVnode => {
            let counts =
                vnodes(root).filter_map(|vnode| COUNTS.iter().find_map(|key| get(vnode, key)));
            Some(counts.max_by_key(|count| number(count))?.at)
        }
        RequestField::Vnode(name, field) => of_vnode(root, name, keys_of(*field)),
    }
}

/// The keys of a request file for a property of a vnode; none for the vnode as a whole, and for
/// those of platforms only.
fn keys_of(field: VnodeField) -> &'static [&'static str] {
    match field {
        VnodeField::Name => &["name"],
        VnodeField::Count => COUNTS,
        VnodeField::Vhosts => &["vhosts"],
        VnodeField::Memory => &["memory"],
        VnodeField::HugePages => &["huge-pages"],
        VnodeField::GuestSmt => &["smt"],
        VnodeField::Policies => &["policies"],
        VnodeField::Pins => &["pins"],
        VnodeField::Whole | VnodeField::Speed | VnodeField::MemoryNode | VnodeField::Method => &[],
    }
}

/// The keys for the size of a vnode.
const COUNTS: &[&str] = &["vcpus", "cores"];

fn number(value: &Value) -> i64 {
    if let ValueKind::Number(number) = value.what { number } else { 0 }
}

pub(crate) fn get<'v>(table: &'v Value, key: &str) -> Option<&'v Value> {
    let ValueKind::Table(entries) = &table.what else { return None };
    entries.iter().find(|(known, _, _)| known == key).map(|(_, _, value)| value)
}

/// The items of a list; a single value is its own only one.
pub(crate) fn items(list: &Value) -> &[Value] {
    if let ValueKind::List(items) = &list.what { items } else { std::slice::from_ref(list) }
}

/// All tables `[[vm]]` and `[[group]]`.
fn vnodes(root: &Value) -> impl Iterator<Item = &Value> {
    let lists = ["vm", "group"].into_iter().filter_map(|key| get(root, key));
    lists.flat_map(items)
}

/// The value of the first of some keys that a vnode has, or else its table.
fn of_vnode(root: &Value, name: &str, keys: &[&str]) -> Option<usize> {
    let vnode = vnodes(root).find(|vnode| is_it(name, vnode))?;
    Some(keys.iter().find_map(|key| get(vnode, key)).unwrap_or(vnode).at)
}

fn is_it(name: &str, vnode: &&Value) -> bool {
    get(vnode, "name")
        .is_some_and(|value| matches!(&value.what, ValueKind::Text(text) if text == name))
}

/// The matching text among some lists or single texts.
fn item<'v>(lists: impl Iterator<Item = &'v Value>, is_it: impl Fn(&str) -> bool) -> Option<usize> {
    let mut texts = lists.flat_map(items);
    let found = texts.find(|value| matches!(&value.what, ValueKind::Text(text) if is_it(text)));
    found.map(|value| value.at)
}
