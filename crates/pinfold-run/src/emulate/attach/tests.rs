//! Layouts of runtimes, network namespaces and mininet, in a described `/proc`.

use pinfold_host::SnapshotHost;

use super::*;

const V2: &str = "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
const HYBRID: &str = "\
31 1 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
32 1 0:28 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd
33 1 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
";
const ID: &str = "4f1c2b7d9e0a4f1c2b7d9e0a4f1c2b7d9e0a4f1c2b7d9e0a4f1c2b7d9e0a4f1c";

fn host(mounts: &str) -> SnapshotHost {
    let mut host = SnapshotHost::new();
    host.insert_file("/proc/self/mountinfo", mounts);
    task(&mut host, 1, 0, "0::/init.scope\n");
    host
}

fn task(host: &mut SnapshotHost, pid: u32, parent: u32, groups: &str) {
    let zeros = "0 ".repeat(16);
    let stat = format!("{pid} (p) S {parent} {pid} 0 0 0 0 {zeros}1 0 77{pid} {zeros}{zeros}0 0");
    host.insert_file(&format!("/proc/{pid}/stat"), stat);
    host.insert_file(&format!("/proc/{pid}/cgroup"), groups);
}

fn check(host: &SnapshotHost, kind: AttachKind, name: &str, expected: &str) {
    let found = match find(host, kind, name) {
        Err(failure) => failure.message,
        Ok(found) => {
            let members = found.members.iter().map(|member| match member {
                Member::Group { path } => path.clone(),
                Member::Process { pid, .. } => format!("pid {pid}"),
            });
            members.chain(found.notes.iter().cloned()).collect::<Vec<_>>().join(", ")
        }
    };
    assert_eq!(found, expected, "{kind:?} {name}");
}

#[test]
fn a_container_is_found_by_name_id_service_or_pod_in_its_own_group() {
    for (driver, group) in [
        ("cgroupfs", format!("/docker/{ID}")),
        ("systemd", format!("/system.slice/docker-{ID}.scope")),
        ("a nested group", format!("/system.slice/docker-{ID}.scope/init")),
    ] {
        let mut host = host(V2);
        task(&mut host, 50, 1, &format!("0::{group}\n"));
        let file = format!(
            r#"{{"ID":"{ID}","Name":"/web","State":{{"Pid":50}},"Config":{{"Labels":{{"com.docker.compose.service":"front"}}}}}}"#
        );
        host.insert_file(&format!("/var/lib/docker/containers/{ID}/config.v2.json"), file);
        let expected = group.trim_end_matches("/init");
        for name in ["web", "front", &ID[..12], ID] {
            check(&host, AttachKind::Container, name, expected);
        }
        let unknown = "container wob is not known to a container runtime";
        check(&host, AttachKind::Container, "wob", unknown);
        println!("{driver}");
    }
}

#[test]
fn other_runtimes_are_known_by_their_state_files() {
    let mut host = host(V2);
    let scopes = [
        (60, format!("/machine.slice/libpod-{ID}.scope/container")),
        (61, format!("/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope")),
        (62, "/demo".to_owned()),
        (63, format!("/kubepods/pod2/crio-{ID}")),
    ];
    for (pid, group) in &scopes {
        task(&mut host, *pid, 1, &format!("0::{group}\n"));
    }
    let names = format!(r#"[{{"id":"{ID}","names":["box"]}}]"#);
    host.insert_file("/var/lib/containers/storage/overlay-containers/containers.json", names);
    let storage = format!("/run/containers/storage/overlay-containers/{ID}/userdata");
    host.insert_file(&format!("{storage}/pidfile"), "60\n");
    let task_of = format!("/run/containerd/io.containerd.runtime.v2.task/k8s.io/{ID}");
    host.insert_file(&format!("{task_of}/init.pid"), "61");
    let pod = r#"{"annotations":{"io.kubernetes.cri.container-name":"app","io.kubernetes.cri.sandbox-name":"shop-0"}}"#;
    host.insert_file(&format!("{task_of}/config.json"), pod);
    host.insert_file("/run/runc/demo/state.json", r#"{"id":"demo","init_process_pid":62}"#);
    check(&host, AttachKind::Container, "box", scopes[0].1.trim_end_matches("/container"));
    check(&host, AttachKind::Container, "app", &scopes[1].1);
    check(&host, AttachKind::Container, "shop-0", &scopes[1].1);
    check(&host, AttachKind::Container, "demo", "/demo");
    host.insert_file("/run/runc/old/state.json", r#"{"id":"old","init_process_pid":4000}"#);
    check(&host, AttachKind::Container, "old", "container old is not running");
    host.insert_file("/sys/fs/cgroup/demo/cgroup.events", "populated 1\nfrozen 1\n");
    let paused = "/demo, container demo is paused: its speed applies when it continues";
    check(&host, AttachKind::Container, "demo", paused);
}

#[test]
fn on_version_1_and_in_shared_groups_processes_are_moved() {
    let mut host = host(HYBRID);
    for driver in [format!("/docker/{ID}"), format!("/system.slice/docker-{ID}.scope")] {
        task(&mut host, 50, 1, &format!("4:memory:{driver}\n1:name=systemd:{driver}\n0::/\n"));
        let file = format!(r#"{{"ID":"{ID}","Name":"/web","State":{{"Pid":50}}}}"#);
        host.insert_file(&format!("/var/lib/docker/containers/{ID}/config.v2.json"), file);
        check(&host, AttachKind::Container, "web", "pid 50");
    }
    task(&mut host, 70, 1, "0::/pinfold-vnode-slow\n");
    assert!(process(&host, 70).unwrap_err().message.contains("in a vnode already"));
    task(&mut host, 71, 1, "0::/../other\n");
    assert!(process(&host, 71).unwrap_err().message.contains("outside of this cgroup namespace"));
    assert!(process(&host, 72).unwrap_err().message.contains("is not running"));
}

#[test]
fn units_namespaces_and_mininet_hosts_have_processes() {
    let mounts = format!("{V2}40 1 0:4 net:[77] /run/netns/blue rw - nsfs nsfs rw\n");
    let mut host = host(&mounts);
    check(&host, AttachKind::Unit, "web", "unit web has no cgroup");
    host.insert_file("/sys/fs/cgroup/system.slice/cgroup.procs", "");
    host.insert_file("/sys/fs/cgroup/system.slice/web.service/cgroup.procs", "80\n");
    check(&host, AttachKind::Unit, "web", "/system.slice/web.service");
    // With `Delegate=` the processes are in groups that the service made below its own.
    let delegated = "/sys/fs/cgroup/system.slice/shop.service";
    host.insert_file(&format!("{delegated}/cgroup.procs"), "");
    check(&host, AttachKind::Unit, "shop", "unit shop has no cgroup");
    host.insert_file(&format!("{delegated}/workers/cgroup.procs"), "81\n82\n");
    check(&host, AttachKind::Unit, "shop.service", "/system.slice/shop.service");
    check(&host, AttachKind::Netns, "blue", "netns blue has no process");
    check(&host, AttachKind::Netns, "red", "netns red is not a network namespace");
    for (pid, parent) in [(90, 1), (91, 90), (92, 1)] {
        task(&mut host, pid, parent, "0::/\n");
        host.insert_link(&format!("/proc/{pid}/ns/net"), "net:[77]");
        host.insert_file(&format!("/proc/{pid}/status"), "Uid:\t0\t0\t0\t0\n");
    }
    check(&host, AttachKind::Netns, "blue", "pid 90, pid 92");
    check(&host, AttachKind::Mininet, "h1", "mininet h1 is not running");
    // A program that only has the word among its arguments.
    host.insert_file("/proc/92/cmdline", "grep\0mininet:h1\0");
    check(&host, AttachKind::Mininet, "h1", "mininet h1 is not running");
    host.insert_file("/proc/90/cmdline", "bash\0--norc\0--noediting\0-is\0mininet:h1\0");
    check(&host, AttachKind::Mininet, "h1", "pid 90");
}
