//! Describes what a method does while it runs, and what does not work for a vnode on this host: for
//! `--dry-run` and for warnings.
//!
//! Steps have an undo in the journal. What is listed here ends with the supervisor, or is written
//! to files of groups that are removed with their steps.

use pinfold_host::{Host, paths};
use pinfold_model::Method;

use super::code;
use crate::hierarchies::Hierarchies;
use crate::node::Node;
use crate::vnode_cgroup::{Part, VnodeCgroup, disk_caution};

/// What a method starts and writes while its vnode is active, one line each.
pub fn describe_effects(node: &Node, cgroup: &VnodeCgroup) -> Vec<String> {
    (code::code(node.method).describe)(node, cgroup)
}

/// Warnings about the method on this host, one line each.
#[must_use]
pub fn cautions(
    host: &dyn Host,
    hierarchies: &Hierarchies,
    node: &Node,
    cgroup: &VnodeCgroup,
) -> Vec<String> {
    let mut cautions = Vec::new();
    // The groups may not exist yet, but their ancestors have the same files.
    if cgroup.parts.iter().any(|part: &Part| {
        parents_of(&part.cpu).any(|group| host.exists(&paths::cpu_rt_runtime(group)))
    }) {
        cautions.push(format!(
            "vnode {}: real-time programs (chrt, SCHED_FIFO) fail there with EPERM, because this \
             kernel gives each group in the cpu hierarchy its own real-time budget and the groups \
             of {} have none: use stall or hogs for them",
            node.name, node.method
        ));
    }
    cautions.extend(limit_of_method(node));
    cautions.extend(disk_caution(hierarchies, node));
    cautions
}

/// What the method of a vnode does not do.
fn limit_of_method(node: &Node) -> Option<String> {
    match node.method {
        Method::Lim => Some(format!(
            "vnode {}: lim checks each process by its own CPU time and age, as published: a \
             process that is new or that slept runs at full speed until it exceeds its share: use \
             stall",
            node.name
        )),
        Method::Stall
        | Method::Hogs
        | Method::Fracas
        | Method::Gov
        | Method::Freq
        | Method::Quota
        | Method::Inject => None,
    }
}

/// The parent directories of a group, nearest first.
fn parents_of(group: &str) -> impl Iterator<Item = &str> {
    group.rmatch_indices('/').map(|(end, _)| &group[..end])
}

#[cfg(test)]
mod tests {
    use pinfold_host::SnapshotHost;
    use pinfold_model::{PuId, Speed};

    use super::*;

    fn node(method: Method) -> Node {
        Node::new("web", method, vec![(PuId(2), Speed::FULL), (PuId(3), Speed::FULL)])
    }

    fn cgroup() -> VnodeCgroup {
        VnodeCgroup {
            perf: Some("/perf/web".to_owned()),
            freezer: Some("/freezer/web".to_owned()),
            parts: vec![part(2), part(3)],
            ..VnodeCgroup::default()
        }
    }

    fn part(pu: u32) -> Part {
        Part {
            pus: [PuId(pu)].into_iter().collect(),
            cpu: format!("/cpu/web/core-{pu}"),
            cpuset: None,
            burns: vec![format!("/cpu/web/burn-{pu}")],
            unified: false,
        }
    }

    #[test]
    fn each_method_lists_what_it_starts_and_writes() {
        let timer = "attach it to a timer (perf_event, cpu-clock) on CPU 3 that counts while tasks \
                     of /perf/web run, with a period of 200.0 µs";
        check(Method::Stall, 3, &["load the BPF program stall", timer]);
        check(Method::Hogs, 2, &["a burner on CPU 2: a thread with SCHED_FIFO 98, every 500.0 µs"]);
        check(Method::Inject, 2, &["a burner on CPU 3"]);
        check(Method::Fracas, 2, &["on each of CPU 2 in /cpu/web/burn-2", "to /cpu/web/core-2"]);
        check(Method::Quota, 2, &["/cpu/web/core-3"]);
        check(Method::Gov, 1, &["alternate CPU 2-3", "thaw /freezer/web"]);
        check(Method::Freq, 1, &["CPU 2-3"]);
        check(Method::Lim, 1, &["SIGSTOP and SIGCONT", "/freezer/web"]);
    }

    fn check(method: Method, lines: usize, parts: &[&str]) {
        let found = describe_effects(&node(method), &cgroup());
        assert_eq!(found.len(), lines, "{found:?}");
        let text = found.join("\n");
        parts.iter().for_each(|part| assert!(text.contains(part), "{part}: {text}"));
    }

    #[test]
    fn what_fails_or_is_not_slowed_is_stated_where_the_method_is_chosen() {
        let mut host = SnapshotHost::new();
        assert_eq!(cautions_of(&host, Method::Quota), "");
        assert!(cautions_of(&host, Method::Lim).contains("a process that is new"));
        host.insert_file("/cpu/cpu.rt_runtime_us", "950000\n");
        let said = cautions_of(&host, Method::Quota);
        assert!(said.contains("with EPERM") && said.contains("groups of quota"), "{said}");
        let unparted = VnodeCgroup { parts: Vec::new(), ..cgroup() };
        assert_eq!(
            cautions(&host, &Hierarchies::default(), &node(Method::Stall), &unparted),
            Vec::<String>::new()
        );
    }

    fn cautions_of(host: &SnapshotHost, method: Method) -> String {
        cautions(host, &Hierarchies::default(), &node(method), &cgroup()).join("\n")
    }
}
