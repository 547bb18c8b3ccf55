//! Text from the kernel, or from captures that claim to be.

use pinfold_host::{
    Format, Host, SnapshotHost, maps, memory_numa_stat, mountinfo, node_meminfo, numa_maps,
    proc_cgroup, proc_stat, proc_status, schedstat,
};
use pinfold_model::{CpuSet, Topology};
use pinfold_topology::{capabilities, capture as captured, discover, read_input, render_tree};

use crate::text::text;

pub(crate) fn cpu_list(bytes: &[u8]) {
    if let Ok(set) = CpuSet::parse_list(&text(bytes)) {
        assert_eq!(CpuSet::parse_list(&set.to_string()).as_ref(), Ok(&set));
    }
}

pub(crate) fn cpu_mask(bytes: &[u8]) {
    if let Ok(set) = CpuSet::parse_mask(&text(bytes)) {
        assert_eq!(CpuSet::parse_mask(&set.to_mask()).as_ref(), Ok(&set));
        assert_eq!(CpuSet::parse_list(&set.to_string()).as_ref(), Ok(&set));
    }
}

pub(crate) fn stat(bytes: &[u8]) {
    if let Ok(stat) = proc_stat::parse(&text(bytes)) {
        drop((stat.task(), format!("{stat:?}")));
    }
}

pub(crate) fn status(bytes: &[u8]) {
    let text = text(bytes);
    drop(proc_status::parse(&text));
    drop(proc_status::page_tables_kib(&text));
}

pub(crate) fn cgroup(bytes: &[u8]) {
    if let Ok(memberships) = proc_cgroup::parse(&text(bytes)) {
        let paths =
            [proc_cgroup::v1_path(&memberships, "cpuset"), proc_cgroup::v2_path(&memberships)];
        assert!(paths.iter().flatten().all(|path| memberships.iter().any(|one| one.path == *path)));
    }
}

pub(crate) fn mounts(bytes: &[u8]) {
    let Ok(mounts) = mountinfo::parse(&text(bytes)) else { return };
    let found = [mountinfo::v1_mount(&mounts, "cpuset"), mountinfo::v2_mount(&mounts)];
    for mount in found.into_iter().flatten() {
        for group in ["/", "/machine/é", "", "machine"] {
            if let Some(dir) = mount.group_dir(group) {
                assert!(dir.starts_with(mount.mount.path.trim_end_matches('/')), "{dir}");
            }
        }
    }
}

pub(crate) fn maps(bytes: &[u8]) {
    let text = text(bytes);
    drop(numa_maps::parse(&text));
    drop(node_meminfo::page_tables(&text));
    drop(memory_numa_stat::row(&text, "pagetables"));
}

pub(crate) fn sched(bytes: &[u8]) {
    drop(schedstat::parse(&text(bytes)));
}

pub(crate) fn mappings(bytes: &[u8]) {
    if let Ok(mappings) = maps::parse(&text(bytes)) {
        assert!(mappings.iter().all(|mapping| mapping.start < mapping.end));
    }
}

pub(crate) fn event_format(bytes: &[u8]) {
    if let Ok(format) = Format::parse(&text(bytes)) {
        for field in &format.fields {
            drop(format.offset(&field.name, 8));
        }
    }
}

/// A captured machine, and everything that is read from its files.
pub(crate) fn capture(bytes: &[u8]) {
    let Ok(tree) = SnapshotHost::parse(&text(bytes)) else { return };
    let written = tree.to_text();
    let again = SnapshotHost::parse(&written).map(|tree| tree.to_text());
    assert_eq!(again.as_deref(), Ok(written.as_str()));
    drop(capabilities(&tree));
    if let Ok(topology) = discover(&tree) {
        look_at(&topology);
        if let Ok(text) = captured(&tree) {
            assert!(SnapshotHost::parse(&text).is_ok());
        }
    }
}

/// hwloc's own parser is written in C and trusts its input, so this tests the filter before it.
pub(crate) fn hwloc_xml(bytes: &[u8]) {
    const FILE: &str = "/machine.xml";
    let host = SnapshotHost::from_files([(FILE, bytes.to_vec())]);
    if let Ok(topology) = read_input(&host, FILE) {
        look_at(&topology);
    }
}

pub(crate) fn synthetic(bytes: &[u8]) {
    let text = text(bytes);
    // File names are tested by another target.
    let host = SnapshotHost::new();
    if host.read(text.trim()).is_err()
        && let Ok(topology) = read_input(&host, &text)
    {
        look_at(&topology);
    }
}

fn look_at(topology: &Topology) {
    drop(render_tree(topology));
    drop(pinfold_topology::schema::topology_to_json(topology));
}
