//! The limit of a vnode's disk as steps of both cgroup versions.

use crate::common::{node, take, undo};
use pinfold_emulate::{Hierarchies, Node, SpeedError, VnodeCgroup};
use pinfold_host::{Host as _, HostMut as _, SnapshotHost, paths};
use pinfold_model::{Attach, CpuSet, DiskLimit, Method, Step, Tid};
use pinfold_sim::{CgroupVersion, SimBuilder, SimHost, SimTask};

const V2: &str = "/sys/fs/cgroup/pinfold-vnode-web";
const V1: &str = "/sys/fs/cgroup/blkio/pinfold-vnode-web";
const BOTH: &str = "8:0 rbps=50000000 wbps=50000000 riops=500 wiops=500\n";

/// The root file system is on `254:0`, here the first partition of disk `8:0`.
fn partition() -> SnapshotHost {
    let disk = "/sys/devices/pci0000:00/block/sda";
    let mut tree = SnapshotHost::new();
    tree.insert_link(&paths::block_device("254:0"), "../../devices/pci0000:00/block/sda/sda1");
    tree.insert_link(&paths::block_device("8:0"), "../../devices/pci0000:00/block/sda");
    tree.insert_link(&paths::block_device("8:16"), "../../devices/pci0000:00/block/sdb");
    tree.insert_file(&format!("{disk}/sda1/partition"), "1\n");
    tree.insert_file(&format!("{disk}/sda1/dev"), "254:0\n");
    tree.insert_file(&format!("{disk}/dev"), "8:0\n");
    tree
}

fn builder(version: CgroupVersion) -> SimBuilder {
    SimHost::builder(version, 4).speed_groups().tree(partition())
}

fn limit(bytes: Option<u64>, operations: Option<u32>) -> Option<DiskLimit> {
    Some(DiskLimit { bytes, operations, path: "/var/lib".to_owned() })
}

fn limited(method: Method) -> Node {
    Node { disk: limit(Some(50_000_000), Some(500)), ..node(method, &[(1, 50), (2, 50)]) }
}

fn plan(host: &SimHost, node: &Node) -> Result<(VnodeCgroup, Vec<Step>), SpeedError> {
    VnodeCgroup::plan(host, &Hierarchies::find(host).expect("a mount table"), node)
}

#[test]
fn the_whole_disk_of_a_partition_is_limited_on_version_2() {
    for method in [Method::Stall, Method::Quota] {
        let host = builder(CgroupVersion::V2).build();
        let before = host.snapshot();
        let (cgroup, steps) = plan(&host, &limited(method)).unwrap();
        take(&host, &steps);
        assert_eq!(host.read_text(&paths::io_max(V2)).unwrap(), BOTH);
        assert_eq!(cgroup.entries().len(), 1, "{:?}", cgroup.entries());
        let root = paths::cgroup_subtree_control("/sys/fs/cgroup");
        assert!(host.read_text(&root).unwrap().contains("io memory"));
        undo(&host, &steps);
        assert_eq!(host.snapshot(), before);
    }
}

#[test]
fn each_limit_has_its_files_on_version_1() {
    for method in [Method::Stall, Method::Quota] {
        let host = builder(CgroupVersion::V1).task(SimTask::new(500, "work")).build();
        let before = host.snapshot();
        let (cgroup, steps) = plan(&host, &limited(method)).unwrap();
        take(&host, &steps);
        for (name, value) in [
            ("read_bps_device", "8:0 50000000\n"),
            ("write_bps_device", "8:0 50000000\n"),
            ("read_iops_device", "8:0 500\n"),
            ("write_iops_device", "8:0 500\n"),
        ] {
            assert_eq!(host.read_text(&paths::blkio_throttle(V1, name)).unwrap(), value);
        }
        assert!(cgroup.entries().contains(&paths::cgroup_procs(V1)), "{:?}", cgroup.entries());
        undo(&host, &steps);
        assert_eq!(host.snapshot(), before);
        let only = Node { disk: limit(None, Some(500)), ..limited(method) };
        let (_, steps) = plan(&host, &only).unwrap();
        take(&host, &steps);
        let bytes = paths::blkio_throttle(V1, "read_bps_device");
        assert_eq!(host.read_text(&bytes).unwrap(), "");
        undo(&host, &steps);
    }
}

#[test]
fn a_device_mapper_is_its_own_disk() {
    let mut tree = SnapshotHost::new();
    tree.insert_link(&paths::block_device("254:0"), "../../devices/virtual/block/dm-0");
    let host = SimHost::builder(CgroupVersion::V2, 4).tree(tree).build();
    let only = Node { disk: limit(Some(4096), None), ..limited(Method::Stall) };
    take(&host, &plan(&host, &only).unwrap().1);
    let line = "254:0 rbps=4096 wbps=4096 riops=max wiops=max\n";
    assert_eq!(host.read_text(&paths::io_max(V2)).unwrap(), line);
}

#[test]
fn an_attached_group_gets_the_limit_itself_and_the_earlier_one_back() {
    let group = "/sys/fs/cgroup/web.slice";
    let host = builder(CgroupVersion::V2).group("/web.slice", CpuSet::new(), CpuSet::new()).build();
    let attach = Some(Attach::Group("/web.slice".to_owned()));
    let attached = Node { attach, ..limited(Method::Stall) };
    let error = plan(&host, &attached).unwrap_err();
    let why = "vnode web: group /sys/fs/cgroup/web.slice cannot have a disk limit, because io is \
               not enabled for it";
    assert_eq!(error.to_string(), why);
    assert!(error.hint().unwrap().contains("IOAccounting=yes"));
    host.write(&paths::cgroup_subtree_control("/sys/fs/cgroup"), b"+io").unwrap();
    let file = paths::io_max(group);
    host.write(&file, b"8:16 rbps=7").unwrap();
    for own in ["", "8:0 rbps=max wbps=9 riops=max wiops=max\n"] {
        host.write(&file, own.as_bytes()).unwrap();
        let before = host.snapshot();
        let (cgroup, steps) = plan(&host, &attached).unwrap();
        take(&host, &steps);
        assert!(host.read_text(&file).unwrap().starts_with(BOTH));
        let hierarchies = Hierarchies::find(&host).unwrap();
        assert_eq!(cgroup.changed_disk(&host, &hierarchies, &attached).unwrap(), None);
        host.write(&file, b"8:0 rbps=9000000 wbps=max riops=max wiops=max").unwrap();
        let changed = cgroup.changed_disk(&host, &hierarchies, &attached).unwrap();
        assert_eq!(changed.unwrap(), "8:0 rbps=9000000 wbps=max riops=max wiops=max");
        undo(&host, &steps);
        assert_eq!(host.snapshot(), before);
    }
}

#[test]
fn a_process_is_moved_to_the_group_with_the_limit() {
    for (version, group) in [(CgroupVersion::V1, V1), (CgroupVersion::V2, V2)] {
        let host = builder(version).task(SimTask::new(500, "work")).build();
        let before = host.snapshot();
        let attached = Node { attach: Some(Attach::Process(500)), ..limited(Method::Stall) };
        let (_, steps) = plan(&host, &attached).unwrap();
        take(&host, &steps);
        let members = host.read_text(&paths::cgroup_procs(group)).unwrap();
        assert_eq!(members, format!("{}\n", Tid(500)), "{version:?}");
        undo(&host, &steps);
        assert_eq!(host.snapshot(), before);
    }
}

#[test]
fn what_cannot_be_limited_is_refused_with_vnode_folder_and_hint() {
    let refused = |host: &SimHost, path: &str, why: &str, hint: &str| {
        let disk =
            limit(Some(4096), None).map(|limit| DiskLimit { path: path.to_owned(), ..limit });
        let error = plan(host, &Node { disk, ..limited(Method::Stall) }).unwrap_err();
        assert_eq!(error.to_string(), format!("vnode web: cannot limit the disk of {path}: {why}"));
        assert!(error.hint().unwrap().contains(hint), "{:?}", error.hint());
    };
    let host = builder(CgroupVersion::V2).build();
    let why = "its file system (proc at /proc) has no block device";
    refused(&host, "/proc/sys", why, "disk-path = ");
    refused(
        &SimHost::builder(CgroupVersion::V2, 4).build(),
        "/",
        "its device 254:0 is not in sysfs",
        "container",
    );
    let without = SimHost::builder(CgroupVersion::V1, 4).tree(partition()).build();
    let why = "there is no writable cgroup hierarchy with io (version 2) or blkio (version 1)";
    refused(&without, "/procs", why, "remove disk and iops");
}
