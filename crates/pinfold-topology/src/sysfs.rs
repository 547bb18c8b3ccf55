//! The tree of another machine from its `/sys`, without hwloc. Reads only from the given host.
//!
//! hwloc can also read a foreign root, but only through an environment variable of the whole
//! process. The kernel's lists are sufficient: cores, packages and caches are sets of CPUs
//! (`topology/core_cpus_list`, `cache/index*/shared_cpu_list`). IDs are not used, because they
//! repeat and have gaps. Kernels before 2.6.31 only have masks (`thread_siblings`,
//! `shared_cpu_map`). <https://docs.kernel.org/admin-guide/cputopology.html>
//!
//! The order is that of hwloc: outer sets before inner ones, each by its first CPU.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use pinfold_host::{Host, paths};
use pinfold_model::{CpuSet, MAX_PUS, NodeId, PuId};

use crate::hwloc::{Key, Tree, TreeNode, TreePu};

/// All sets found so far, each with its identity.
#[derive(Default)]
struct Objects(BTreeMap<(u8, CpuSet), Key>);

impl Objects {
    /// The identity of a set at a level; equal sets of different levels have different identities.
    fn key(&mut self, level: u8, pus: &CpuSet) -> Key {
        let next = Key::try_from(self.0.len()).unwrap_or(Key::MAX);
        *self.0.entry((level, pus.clone())).or_insert(next)
    }
}

/// The CPUs of a cache, with its size in bytes and number of ways, 0 if unknown.
pub(crate) type Cache = (CpuSet, (u64, u32));

/// The sets that contain a CPU.
pub(crate) struct CpuAncestors {
    pub pu: PuId,
    pub core: CpuSet,
    pub package: Option<CpuSet>,
    pub l2: Option<CpuSet>,
    pub l3: Option<Cache>,
    pub node: Option<CpuSet>,
}

/// Reads the tree; the error describes what is wrong with the files.
pub(crate) fn tree(host: &dyn Host) -> Result<Tree, String> {
    let all =
        list_numbered(host, &paths::cpu_dir(), "cpu").into_iter().map(PuId).collect::<CpuSet>();
    if all.is_empty() {
        return Err(format!("it has no {}/cpu0", paths::cpu_dir()));
    }
    let listed = set(host, &paths::cpu_online(), CpuSet::parse_list);
    let online = listed.unwrap_or_else(|| {
        all.iter()
            .filter(|pu: &PuId| host.list(&paths::cpu_file(*pu, "topology")).is_ok())
            .collect()
    });
    let nodes = nodes(host, &online);
    let around = online.iter().map(|pu| CpuAncestors::read(host, pu, &online, &nodes)).collect();
    let tree = assemble(around, nodes, all.union(&online));
    Ok(Tree { allowed: online, ..tree })
}

/// The tree of online CPUs, each with the sets around it; `complete` holds the offline ones too.
pub(crate) fn assemble(
    mut around: Vec<CpuAncestors>,
    nodes: Vec<TreeNode>,
    complete: CpuSet,
) -> Tree {
    around.sort_by_cached_key(CpuAncestors::place);
    let (mut objects, mut l3_sizes) = (Objects::default(), BTreeMap::new());
    let pus = around.iter().map(|one| TreePu {
        os: one.pu,
        core: Some(objects.key(0, &one.core)),
        l2: one.l2.as_ref().map(|pus| objects.key(2, pus)),
        l3: one.l3.as_ref().map(|(pus, size)| {
            let key = objects.key(3, pus);
            l3_sizes.insert(key, *size);
            key
        }),
        package: one.package.as_ref().map(|pus| objects.key(4, pus)),
    });
    let pus = pus.collect();
    Tree { pus, l3_sizes, nodes, complete, ..Tree::default() }
}

impl CpuAncestors {
    fn read(host: &dyn Host, pu: PuId, online: &CpuSet, nodes: &[TreeNode]) -> Self {
        let core = topology_set(
            ["core_cpus_list", "thread_siblings_list", "thread_siblings"],
            host,
            online,
            pu,
        );
        let package = topology_set(
            ["package_cpus_list", "core_siblings_list", "core_siblings"],
            host,
            online,
            pu,
        );
        let mut one = Self {
            pu,
            core: core.unwrap_or_else(|| CpuSet::single(pu)),
            package,
            l2: None,
            l3: None,
            node: nodes.iter().find(|node| node.pus.contains(pu)).map(|node| node.pus.clone()),
        };
        let directory = paths::cpu_file(pu, "cache");
        for index in list_numbered(host, &directory, "index") {
            one.cache(host, &format!("{directory}/index{index}"), online);
        }
        one
    }

    fn cache(&mut self, host: &dyn Host, directory: &str, online: &CpuSet) {
        if file_text("type", directory, host).is_some_and(|kind| kind == "Instruction") {
            return;
        }
        let shared = set(host, &format!("{directory}/shared_cpu_list"), CpuSet::parse_list)
            .or_else(|| set(host, &format!("{directory}/shared_cpu_map"), CpuSet::parse_mask));
        let pus = shared.map(|pus| pus.intersection(online)).filter(|pus| pus.contains(self.pu));
        match (file_text("level", directory, host).as_deref(), pus) {
            (Some("2"), Some(pus)) => self.l2 = Some(pus),
            (Some("3"), Some(pus)) => {
                let kib = file_text("size", directory, host)
                    .and_then(|size| size.strip_suffix('K')?.parse::<u64>().ok());
                let bytes = kib.and_then(|kib| kib.checked_mul(1024)).unwrap_or(0);
                let ways = file_text("ways_of_associativity", directory, host)
                    .and_then(|ways| ways.parse().ok());
                self.l3 = Some((pus, (bytes, ways.unwrap_or(0))));
            }
            (Some(_) | None, Some(_) | None) => {}
        }
    }

    /// Sort key for hwloc's order: the first CPU of each containing set, the largest set first.
    fn place(&self) -> Vec<PuId> {
        let l3 = self.l3.as_ref().map(|(pus, _)| pus);
        let outer = [self.package.as_ref(), self.node.as_ref(), l3, self.l2.as_ref()];
        let mut sets: Vec<&CpuSet> = outer.into_iter().flatten().chain([&self.core]).collect();
        sets.sort_by_key(|pus| Reverse(pus.len()));
        sets.into_iter().filter_map(CpuSet::first).chain([self.pu]).collect()
    }
}

fn topology_set(
    names: [&str; 3],
    host: &dyn Host,
    online: &CpuSet,
    pu: PuId,
) -> Option<pinfold_model::CpuSet> {
    let [new, old, mask] = names.map(|name| paths::cpu_file(pu, &format!("topology/{name}")));
    let found = set(host, &new, CpuSet::parse_list)
        .or_else(|| set(host, &old, CpuSet::parse_list))
        .or_else(|| set(host, &mask, CpuSet::parse_mask));
    found.map(|pus| pus.intersection(online)).filter(|pus| pus.contains(pu))
}

fn file_text(name: &str, directory: &str, host: &dyn Host) -> Option<String> {
    text(host, &format!("{directory}/{name}"))
}

fn nodes(host: &dyn Host, online: &CpuSet) -> Vec<TreeNode> {
    let numbers = list_numbered(host, &paths::node_dir(), "node").into_iter().map(NodeId);
    numbers
        .map(|id| {
            let pus = set(host, &paths::node_file(id, "cpulist"), CpuSet::parse_list)
                .or_else(|| set(host, &paths::node_file(id, "cpumap"), CpuSet::parse_mask));
            TreeNode {
                id,
                pus: pus.unwrap_or_default().intersection(online),
                memory_bytes: memory_bytes(host, id),
            }
        })
        .collect()
}

/// Parses `Node 0 MemTotal:       32768 kB`.
fn memory_bytes(host: &dyn Host, node: NodeId) -> u64 {
    let text = text(host, &paths::node_file(node, "meminfo")).unwrap_or_default();
    let total = text.lines().find_map(|line| line.split_once("MemTotal:").map(|(_, rest)| rest));
    let kib = total.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.and_then(|kib| kib.checked_mul(1024)).unwrap_or(0)
}

/// The numbers of a directory's entries `cpu0`, `cpu1`, …, ascending.
fn list_numbered(host: &dyn Host, directory: &str, prefix: &str) -> Vec<u32> {
    let names = host.list(directory).unwrap_or_default();
    let number = |name: &String| name.strip_prefix(prefix)?.parse::<u32>().ok();
    let mut numbers: Vec<u32> =
        names.iter().filter_map(number).filter(|number| *number < MAX_PUS).collect();
    numbers.sort_unstable();
    numbers
}

fn text(host: &dyn Host, path: &str) -> Option<String> {
    host.read_text(path).ok().map(|text| text.trim().to_owned())
}

fn set<E>(host: &dyn Host, path: &str, parse: fn(&str) -> Result<CpuSet, E>) -> Option<CpuSet> {
    parse(&text(host, path)?).ok()
}

#[cfg(test)]
mod tests {
    use pinfold_host::SnapshotHost;

    use super::*;

    /// Two packages of two cores with two threads; siblings are not numbered consecutively, and the
    /// first package is node 1. CPU 7 is offline. `masks` writes the files of kernels before
    /// 2.6.31.
    fn machine(masks: bool) -> SnapshotHost {
        let mut host = SnapshotHost::from_files([
            (paths::cpu_online(), "0-6\n"),
            (paths::node_file(NodeId(1), "cpulist"), "0,2,4,6\n"),
            (paths::node_file(NodeId(1), "meminfo"), "Node 1 MemTotal:       2048 kB\n"),
            (paths::node_file(NodeId(0), "cpumap"), "00000000,0000002a\n"),
        ]);
        host.insert_dir(&paths::cpu_file(PuId(7), ""));
        for pu in 0..7 {
            let mut put = |name: &str, list: &str| {
                let pus = CpuSet::parse_list(list).unwrap();
                let (name, text) = if masks {
                    (name.replace("cpu_list", "cpu_map").replace("_list", ""), pus.to_mask())
                } else {
                    (name.to_owned(), list.to_owned())
                };
                host.insert_file(&paths::cpu_file(PuId(pu), &name), text + "\n");
            };
            let core = pu % 4;
            let siblings = format!("{core},{}", core + 4);
            let package = if core % 2 == 0 { "0,2,4,6" } else { "1,3,5,7" };
            put("topology/thread_siblings_list", &siblings);
            put("topology/core_siblings_list", package);
            put("cache/index1/shared_cpu_list", &siblings);
            put("cache/index3/shared_cpu_list", package);
            for (name, text) in [
                ("cache/index1/level", "1"),
                ("cache/index1/type", "Instruction"),
                ("cache/index3/level", "3"),
                ("cache/index3/type", "Unified"),
                ("cache/index3/size", "8192K"),
                ("cache/index3/ways_of_associativity", "16"),
            ] {
                host.insert_file(&paths::cpu_file(PuId(pu), name), text);
            }
        }
        host
    }

    #[test]
    fn lists_and_masks_give_the_same_tree_in_hwlocs_order() {
        for masks in [false, true] {
            let tree = tree(&machine(masks)).unwrap();
            let order: Vec<u32> = tree.pus.iter().map(|pu| pu.os.0).collect();
            assert_eq!(order, [0, 4, 2, 6, 1, 5, 3], "masks: {masks}");
            let cores: Vec<_> = tree.pus.iter().map(|pu| pu.core).collect();
            assert!(cores[0] == cores[1] && cores[1] != cores[2], "{cores:?}");
            assert!(tree.pus.iter().all(|pu| pu.l3.is_some() && pu.package.is_some()));
            assert_eq!(tree.l3_sizes.values().copied().collect::<Vec<_>>(), [(8 << 20, 16); 2]);
            assert_eq!(tree.complete.to_string(), "0-7");
            let nodes: Vec<_> = tree
                .nodes
                .iter()
                .map(|node| (node.id.0, node.pus.to_string(), node.memory_bytes))
                .collect();
            assert_eq!(nodes, [(0, "1,3,5".to_owned(), 0), (1, "0,2,4,6".to_owned(), 2 << 20)]);
        }
        assert!(tree(&SnapshotHost::new()).unwrap_err().contains("cpu0"));
    }
}
