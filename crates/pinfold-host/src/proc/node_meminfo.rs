//! `/sys/devices/system/node/nodeN/meminfo`: memory of a NUMA node.
//!
//! ```text
//! Node 0 MemTotal:       65536000 kB
//! Node 0 PageTables:        12288 kB
//! Node 0 SecPageTables:       512 kB
//! ```
//!
//! `PageTables` are those of all processes on this node, `SecPageTables` (Linux 6.1) those that KVM
//! and IOMMUs allocated for the second level of translation.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_tables_of_old_and_new_kernels() {
        let check = |text: &str, first_kib: u64, second_kib: Option<u64>| {
            assert_eq!(page_tables(text), Ok(PageTables { first_kib, second_kib }), "{text}");
        };
        check("Node 1 KernelStack:  2 kB\nNode 1 PageTables:       1234 kB\n", 1234, None);
        check("Node 0 PageTables: 8 kB\nNode 0 SecPageTables:  12 kB\n", 8, Some(12));
        assert!(page_tables("Node 0 MemTotal: 1 kB\n").is_err());
        assert!(page_tables("Node 0 PageTables: -8 kB\n").is_err());
        assert!(page_tables("Node 0 PageTables: 8 kB\nNode 0 SecPageTables: x kB\n").is_err());
    }
}
