//! Features for speed emulation: weights, quotas, the freezer, signals, frequencies.

use pinfold_host::process::Signaled;
use pinfold_host::{Host as _, paths};
use pinfold_model::{CpuSet, TaskId, Tid};

use super::*;

#[test]
fn freezing_waits_for_those_that_cannot_be_woken() {
    for (version, group, file, ask, asked, done) in [
        (
            CgroupVersion::V1,
            "/sys/fs/cgroup/freezer/a",
            "freezer.state",
            "FROZEN",
            "FREEZING",
            "FROZEN",
        ),
        (
            CgroupVersion::V2,
            "/sys/fs/cgroup/a",
            "cgroup.freeze",
            "1",
            "populated 1\nfrozen 0",
            "populated 1\nfrozen 1",
        ),
    ] {
        let host =
            SimHost::builder(version, 2).speed_groups().task(SimTask::new(500, "disk")).build();
        let shown = || {
            let file = if version == CgroupVersion::V2 { "cgroup.events" } else { file };
            host.read_text(&format!("{group}/{file}")).unwrap().trim().to_owned()
        };
        host.make_dir(group).unwrap();
        host.write(&paths::cgroup_procs(group), b"500").unwrap();
        assert!(host.edit_task(Tid(500), |task| task.state = 'D'));
        host.write(&format!("{group}/{file}"), ask.as_bytes()).unwrap();
        assert_eq!(shown(), asked);
        assert!(host.edit_task(Tid(500), |task| task.state = 'S'));
        assert_eq!(shown(), done);
    }
}

#[test]
fn weights_and_quotas_have_the_kernel_s_bounds() {
    let host = SimHost::builder(CgroupVersion::V1, 2).speed_groups().build();
    let group = "/sys/fs/cgroup/cpu/a";
    host.make_dir(group).unwrap();
    host.write(&paths::cpu_shares(group), b"1").unwrap();
    assert_eq!(host.read_text(&paths::cpu_shares(group)).unwrap(), "2\n");
    let refused = |path: String, value: &[u8]| host.write(&path, value).unwrap_err().errno();
    assert_eq!(refused(paths::cpu_cfs_quota(group), b"999"), Some(libc::EINVAL));
    assert_eq!(refused(paths::cpu_cfs_period(group), b"1000001"), Some(libc::EINVAL));
    let host = SimHost::builder(CgroupVersion::V2, 2).build();
    let group = "/sys/fs/cgroup/a";
    host.make_dir(group).unwrap();
    assert!(!host.exists(&paths::cpu_max(group)));
    host.write("/sys/fs/cgroup/cgroup.subtree_control", b"+cpu").unwrap();
    assert_eq!(
        host.write(&paths::cpu_max(group), b"999 100000").unwrap_err().errno(),
        Some(libc::EINVAL)
    );
    assert_eq!(
        host.write(&paths::cpu_weight(group), b"10001").unwrap_err().errno(),
        Some(libc::ERANGE)
    );
    host.write(&paths::cpu_max(group), b"1000 10000").unwrap();
    assert_eq!(host.read_text(&paths::cpu_max(group)).unwrap(), "1000 10000\n");
}

#[test]
fn signals_reach_a_whole_process_and_no_later_one_of_its_number() {
    let host = SimHost::v1_two_pus();
    let process = host.task(Tid(310)).unwrap().id();
    host.signal(process, Signaled::Stop).unwrap();
    assert_eq!(host.task(Tid(311)).unwrap().state, 'T');
    let later = TaskId { start_time: process.start_time + 1, ..process };
    assert_eq!(host.signal(later, Signaled::Continue).unwrap_err().errno(), Some(libc::ESRCH));
    host.signal(process, Signaled::Continue).unwrap();
    assert_eq!(host.task(Tid(310)).unwrap().state, 'S');
    host.signal(process, Signaled::Kill).unwrap();
    assert!(host.task(Tid(311)).is_none());
}

#[test]
fn frequencies_are_taken_under_userspace_alone() {
    let domains = [CpuSet::first_n(2)];
    let host =
        SimHost::builder(CgroupVersion::V2, 2).cpufreq(&domains, &[2_000_000, 2_400_000]).build();
    assert!(host.write(&path("scaling_setspeed"), b"2000000").is_err());
    assert!(host.write(&path("scaling_governor"), b"ondemand").is_err());
    host.write(&path("scaling_governor"), b"userspace").unwrap();
    host.write(&path("scaling_setspeed"), b"2000000").unwrap();
    assert_eq!(host.read_text(&path("scaling_setspeed")).unwrap(), "2000000\n");
}

fn path(name: &str) -> String {
    paths::cpufreq_policy_file("policy0", name)
}
