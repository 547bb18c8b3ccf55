//! `/sys/devices/system/node/nodeN/meminfo`: memory of a NUMA node.
//!
//! ```text
//! Node 0 MemTotal:       65536000 kB
//! Node 0 MemFree:        20480000 kB
//! Node 0 Active(file):    1024000 kB
//! Node 0 Inactive(file):  2048000 kB
//! Node 0 PageTables:        12288 kB
//! Node 0 SecPageTables:       512 kB
//! ```
//!
//! `PageTables` are those of all processes on this node, `SecPageTables` (Linux 6.1) those that KVM
//! and IOMMUs allocated for the second level of translation. The kernel drops cached files
//! (`Active(file)`, `Inactive(file)`) when a program needs the memory.
//! <https://www.kernel.org/doc/Documentation/ABI/stable/sysfs-devices-node>

use super::ProcError;

/// Page tables on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageTables {
    /// `PageTables`, in KiB.
    pub first_kib: u64,
    /// `SecPageTables`, in KiB; `None` if the kernel does not count them separately.
    pub second_kib: Option<u64>,
}

/// Parses the page tables of a node.
///
/// # Errors
/// [`ProcError`] if `PageTables` is missing, or a number is not valid.
pub fn page_tables(text: &str) -> Result<PageTables, ProcError> {
    let mut tables = [None, None];
    for line in text.lines() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let ["Node", _, key, kib, ..] = words.as_slice() else { continue };
        let index = match *key {
            "PageTables:" => 0,
            "SecPageTables:" => 1,
            _ => continue,
        };
        let number = kib.parse().map_err(|_| ProcError::new("a line of a node's meminfo", line));
        tables[index] = Some(number?);
    }
    let [first_kib, second_kib] = tables;
    let first_kib = first_kib.ok_or_else(|| ProcError::new("PageTables of a node", text))?;
    Ok(PageTables { first_kib, second_kib })
}

/// Bytes that programs can get on a node: free memory and cached files; `None` without `MemFree`.
///
/// # Errors
/// [`ProcError`] if a number is not valid.
pub fn free_bytes(text: &str) -> Result<Option<u64>, ProcError> {
    let (mut free, mut cached): (Option<u64>, u64) = (None, 0);
    for line in text.lines() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let ["Node", _, key, kib, ..] = words.as_slice() else { continue };
        if !["MemFree:", "Active(file):", "Inactive(file):"].contains(key) {
            continue;
        }
        let bytes = kib.parse::<u64>().ok().and_then(|kib| kib.checked_mul(1024));
        let bytes = bytes.ok_or_else(|| ProcError::new("a line of a node's meminfo", line))?;
        match *key {
            "MemFree:" => free = Some(bytes),
            _ => cached = cached.saturating_add(bytes),
        }
    }
    Ok(free.map(|free| free.saturating_add(cached)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_memory_includes_cached_files() {
        fn check(text: &str, expected: Option<u64>) {
            assert_eq!(free_bytes(text), Ok(expected), "{text}")
        }

        check("Node 1 MemTotal: 9 kB\nNode 1 MemFree:    3 kB\n", Some(3 << 10));
        check(
            "Node 0 MemFree: 3 kB\nNode 0 Active(file): 2 kB\nNode 0 Inactive(file): 1 kB\n",
            Some(6 << 10),
        );
        check("Node 0 MemTotal: 9 kB\nNode 0 Active(file): 2 kB\n", None);
        assert!(free_bytes("Node 0 MemFree: x kB\n").is_err());
        assert!(free_bytes("Node 0 MemFree: 18446744073709551615 kB\n").is_err());
    }

    #[test]
    fn page_tables_of_old_and_new_kernels() {
        check("Node 1 KernelStack:  2 kB\nNode 1 PageTables:       1234 kB\n", 1234, None);
        check("Node 0 PageTables: 8 kB\nNode 0 SecPageTables:  12 kB\n", 8, Some(12));
        assert!(page_tables("Node 0 MemTotal: 1 kB\n").is_err());
        assert!(page_tables("Node 0 PageTables: -8 kB\n").is_err());
        assert!(page_tables("Node 0 PageTables: 8 kB\nNode 0 SecPageTables: x kB\n").is_err());
    }

    fn check(text: &str, first_kib: u64, second_kib: Option<u64>) {
        assert_eq!(page_tables(text), Ok(PageTables { first_kib, second_kib }), "{text}");
    }
}
