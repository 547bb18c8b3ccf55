//! `memory.numa_stat` of a group (cgroup v2): memory that is charged to the group and the groups
//! below it, by NUMA node, in bytes.
//!
//! ```text
//! anon N0=1568768 N1=0
//! pagetables N0=135168 N1=4096
//! sec_pagetables N0=12288 N1=0
//! ```
//!
//! <https://docs.kernel.org/admin-guide/cgroup-v2.html>

use std::collections::BTreeMap;

use pinfold_model::NodeId;

use super::ProcError;

/// The bytes of one row by node; `None` if the kernel has no such row.
///
/// # Errors
/// [`ProcError`] if the row has another form.
pub fn row(text: &str, name: &str) -> Result<Option<BTreeMap<NodeId, u64>>, ProcError> {
    let values =
        |line: &str| line.split_once(' ').filter(|(key, _)| *key == name).map(|it| it.1.to_owned());
    let Some(values) = text.lines().find_map(values) else { return Ok(None) };
    let pair = |word: &str| {
        let (node, bytes) = word.strip_prefix('N')?.split_once('=')?;
        Some((NodeId(node.parse().ok()?), bytes.parse().ok()?))
    };
    values
        .split_ascii_whitespace()
        .map(|word| pair(word).ok_or_else(|| ProcError::new("a row of memory.numa_stat", &values)))
        .collect::<Result<_, _>>()
        .map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_by_their_whole_name() {
        let text = "anon N0=4096 N1=0\nsec_pagetables N0=1 N1=2\npagetables N0=8192 N1=4096\n";
        assert_eq!(row(text, "pagetables"), Ok(nodes([8192, 4096])));
        assert_eq!(row(text, "sec_pagetables"), Ok(nodes([1, 2])));
        assert_eq!(row(text, "file"), Ok(None));
        assert!(row("pagetables N0=x\n", "pagetables").is_err());
        assert!(row("pagetables 8192\n", "pagetables").is_err());
    }

    fn nodes(bytes: [u64; 2]) -> Option<BTreeMap<NodeId, u64>> {
        Some(BTreeMap::from([(NodeId(0), bytes[0]), (NodeId(1), bytes[1])]))
    }
}
