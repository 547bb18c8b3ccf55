//! Threads of hypervisors.

use crate::owners::tests::{claims_of, found, host, status};

type Files = Vec<(String, String)>;

fn machine(pid: u32, line: &str, threads: &[(&str, &str)]) -> Files {
    let mut files = vec![(format!("/proc/{pid}/cmdline"), line.replace(' ', "\0") + "\0")];
    for (number, (name, cpus)) in (0..).zip(threads) {
        let path = format!("/proc/{pid}/task/{}/status", pid + number);
        files.push((path, status(name, pid, cpus)));
    }
    files
}

fn check(files: Files, expected: &[&str]) {
    let files: Vec<(&str, String)> =
        files.iter().map(|(path, text)| (path.as_str(), text.clone())).collect();
    assert_eq!(found(&claims_of(&host(8, &files))), expected);
}

#[test]
fn pinned_vcpus_are_found_by_the_names_of_their_threads() {
    let qemu = "/usr/bin/qemu-system-x86_64 -name guest=web,debug-threads=on -smp 2";
    check(
        machine(40, qemu, &[("qemu-system-x86", "0-7"), ("CPU 0/KVM", "2"), ("CPU 1/KVM", "3")]),
        &["web 2-3 exclusive"],
    );
    check(
        machine(40, qemu, &[("qemu-system-x86", "1"), ("CPU 0/TCG", "2-3"), ("CPU 1/TCG", "2-3")]),
        &["web 2-3 shared", "web 1 shared"],
    );
    check(machine(40, qemu, &[("CPU 0/KVM", "0-7"), ("CPU 1/KVM", "0-7")]), &[]);
    check(
        machine(40, "cloud-hypervisor --cpus boot=1", &[("vmm", "0-7"), ("vcpu0", "4")]),
        &["cloud-hypervisor 4 exclusive"],
    );
    check(machine(40, "crosvm run --name a", &[("crosvm_vcpu0", "5")]), &["a 5 exclusive"]);
    check(
        machine(40, "firecracker --id fc1", &[("fc_api", "1"), ("fc_vcpu 0", "6")]),
        &["fc1 6 exclusive", "fc1 1 shared"],
    );
}

#[test]
fn busy_vcpus_are_counted_by_the_time_of_the_process() {
    let line = "qemu-system-x86_64 -name guest=a,debug-threads=on -smp 2";
    let threads = [("CPU 0/TCG", "2-3"), ("CPU 1/TCG", "2-3")];
    let busy = |ticks: u32, start: u32| {
        let mut files = machine(40, line, &threads);
        files.push(("/proc/uptime".to_owned(), "200.00 1.00\n".to_owned()));
        let stat = format!(
            "40 (qemu-system-x86) S 1 40 0 0 0 0 0 0 0 0 {ticks} 0 0 0 20 0 3 0 {start} \
             0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 2\n"
        );
        files.push(("/proc/40/stat".to_owned(), stat));
        let files: Vec<(&str, String)> =
            files.iter().map(|(path, text)| (path.as_str(), text.clone())).collect();
        claims_of(&host(8, &files)).all()[0].busy_vcpus_milli
    };
    assert_eq!(busy(2_500, 10_000), Some(250), "25 s of 100 s");
    assert_eq!(busy(30_000, 10_000), Some(2000), "the emulator is no vCPU");
    assert_eq!(busy(10, 19_000), None, "it boots");
}

#[test]
fn without_names_all_threads_with_a_narrower_mask_count() {
    let line = "qemu-system-x86_64 -name old -smp 1";
    let name = "qemu-system-x86";
    check(machine(40, line, &[(name, "0-7"), (name, "3"), (name, "0-7")]), &["old 3 exclusive"]);
}

#[test]
fn two_vcpus_on_one_cpu_share_it() {
    let line = "qemu-system-x86_64 -name a";
    let threads = [("CPU 0/KVM", "2"), ("CPU 1/KVM", "2"), ("CPU 2/KVM", "4")];
    check(machine(40, line, &threads), &["a 4 exclusive", "a 2 shared"]);
}

/// It boots on one CPU, or was started under `taskset`.
#[test]
fn a_machine_that_is_on_one_cpu_as_a_whole_has_no_conflict_with_a_bound_emulator() {
    fn line(name: &str) -> String {
        format!("qemu-system-x86_64 -name guest={name},debug-threads=on")
    }
    fn twice(files: &Files) -> usize {
        let files: Vec<(&str, String)> =
            files.iter().map(|(path, text)| (path.as_str(), text.clone())).collect();
        claims_of(&host(8, &files)).used_twice().len()
    }
    let mut files = machine(40, &line("a"), &[("qemu-system-x86", "0"), ("CPU 0/KVM", "1")]);
    files.extend(machine(60, &line("b"), &[("qemu-system-x86", "0"), ("CPU 0/KVM", "0")]));
    assert_eq!(twice(&files), 0);
    files.extend(machine(80, &line("c"), &[("qemu-system-x86", "2-3"), ("CPU 0/KVM", "0")]));
    assert_eq!(twice(&files), 2, "c's vCPU has CPU 0 alone but for a and b");
}

#[test]
fn other_programs_do_not_count() {
    check(machine(40, "vim qemu-system-x86_64", &[("CPU 0/KVM", "2")]), &[]);
}
