//! `/proc/PID/numa_maps`: one line for each mapping of a process.
//!
//! ```text
//! 7f1c00000000 default anon=512 dirty=512 active=0 N0=400 N1=112 kernelpagesize_kB=4
//! ```
//!
//! `Nn=` is the number of pages on node n, each of `kernelpagesize_kB`. Mappings without pages have
//! no such field. <https://docs.kernel.org/filesystems/proc.html>

use std::collections::BTreeMap;

use pinfold_model::NodeId;

use super::ProcError;

/// Memory of a process by node, in KiB; nodes without memory are left out.
///
/// # Errors
/// [`ProcError`] if a number of pages or a page size is not a number.
pub fn parse(text: &str) -> Result<BTreeMap<NodeId, u64>, ProcError> {
    let mut nodes: BTreeMap<NodeId, u64> = BTreeMap::new();
    for line in text.lines() {
        let mut pages: Vec<(NodeId, u64)> = Vec::new();
        let mut page_kib = 4;
        for word in line.split_ascii_whitespace() {
            let Some((key, value)) = word.split_once('=') else { continue };
            if key == "kernelpagesize_kB" {
                page_kib = value.parse().map_err(|_| fail(line))?;
            } else if let Some(node) = key.strip_prefix('N')
                && let Ok(node) = node.parse()
            {
                pages.push((NodeId(node), value.parse().map_err(|_| fail(line))?));
            }
        }
        for (node, count) in pages {
            let total = nodes.entry(node).or_default();
            *total = total.saturating_add(count.saturating_mul(page_kib));
        }
    }
    Ok(nodes)
}

fn fail(line: &str) -> ProcError {
    ProcError::new("a line of numa_maps", line)
}

#[cfg(test)]
mod tests {
    use pinfold_model::NodeId;

    use super::parse;

    #[test]
    fn pages_are_added_up_by_node_and_size() {
        check("", &[]);
        check("7f00 default file=/lib/N1=9.so mapped=3 N0=3 kernelpagesize_kB=4\n", &[(0, 12)]);
        check(
            "1 bind:1 anon=2 N1=2 N0=1 kernelpagesize_kB=2048\n2 default\n",
            &[(0, 2048), (1, 4096)],
        );
        assert!(parse("1 default N0=x kernelpagesize_kB=4").is_err());
    }

    fn check(text: &str, expected: &[(u32, u64)]) {
        let found: Vec<(u32, u64)> =
            parse(text).unwrap().into_iter().map(|(NodeId(node), kib)| (node, kib)).collect();
        assert_eq!(found, expected, "{text}");
    }
}
