//! Selection and order of the kernel modules to insert.
//!
//! A module's `.modinfo` section contains NUL-terminated `key=value` texts, among them
//! `depends=virtio,virtio_ring`. Reading it directly avoids `depmod` and `modinfo`.

use std::collections::BTreeMap;

/// The modules named in a module's `depends=`, with `-` written as `_`.
///
/// # Errors
/// A message that the bytes are no kernel module.
pub fn depends(module: &[u8]) -> Result<Vec<String>, &'static str> {
    const KEY: &[u8] = b"\0depends=";
    if !module.starts_with(b"\x7fELF") {
        return Err("is not an ELF file");
    }
    let start = module
        .windows(KEY.len())
        .position(|window| window == KEY)
        .ok_or("has no depends= entry")?
        + KEY.len();
    let value: Vec<u8> = module[start..].iter().copied().take_while(|byte| *byte != 0).collect();
    let value = String::from_utf8_lossy(&value).replace('-', "_");
    Ok(value.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect())
}

/// Orders `wanted` and everything it needs so that each module comes after what it depends on.
/// `depends_of` gives a module's dependencies, or `None` if it is built in or unknown.
pub fn insertion_order(wanted: &[&str], depends_of: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    let mut order = Vec::new();
    for name in wanted {
        visit(name, depends_of, &mut order, 0);
    }
    order
}

fn visit(
    name: &str,
    depends_of: &BTreeMap<String, Vec<String>>,
    order: &mut Vec<String>,
    depth: usize,
) {
    // The kernel forbids cycles; the limit protects against corrupt packages.
    if depth > 32 || order.iter().any(|done| done == name) {
        return;
    }
    if let Some(needs) = depends_of.get(name) {
        for need in needs {
            visit(need, depends_of, order, depth + 1);
        }
        order.push(name.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_come_first_and_once() {
        let table: BTreeMap<String, Vec<String>> = [
            ("virtio_blk", vec!["virtio", "virtio_ring"]),
            ("virtio_ring", vec!["virtio"]),
            ("virtio", vec![]),
        ]
        .into_iter()
        .map(|(name, needs)| (name.to_owned(), needs.into_iter().map(str::to_owned).collect()))
        .collect();
        let order = insertion_order(&["virtio_blk", "virtio_ring", "built_in"], &table);
        assert_eq!(order, ["virtio", "virtio_ring", "virtio_blk"]);
    }

    #[test]
    fn modinfo_is_read() {
        let names = |list: &[&str]| Ok(list.iter().map(|name| (*name).to_owned()).collect());
        check(b"\x7fELF...\0depends=crc-t10dif,crc64\0x=1", names(&["crc_t10dif", "crc64"]));
        check(b"\x7fELF...\0depends=\0", names(&[]));
        check(b"\x7fELF...", Err("has no depends= entry"));
        check(b"#!/bin/sh", Err("is not an ELF file"));
    }

    fn check(bytes: &[u8], expected: Result<Vec<String>, &'static str>) {
        assert_eq!(depends(bytes), expected);
    }
}
