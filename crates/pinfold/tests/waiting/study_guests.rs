//! Studies whose trials run in real guests of QEMU's translator: placed, measured, killed.

use std::io::Read as _;

use crate::common::machine::QEMU;
use crate::common::{Sandbox, assert_parts, is_missing, skip, until};
use pinfold_host::files;
use pinfold_host::process::{Child, Signaled, Stdio, find_program, signal};

/// Programs share a boot; one vCPU that floats and two that are pinned.
const STUDY: &str = r#"
name = "guests"
repetitions = 1
time-limit = "60s"
probes = ["steal", "switches", "process_switches", "process_migrations", "l1d_misses", "lock_time"]
share = ["workload"]
constraints = ["n_vcpu == 1 -> strategy == 'none'", "n_vcpu == 2 -> strategy == 'compact'"]
[[factor]]
name = "isa"
levels = ["x86-64"]
[[factor]]
name = "n_vcpu"
levels = [1, 2]
[[factor]]
name = "strategy"
levels = ["none", "compact"]
[[workload]]
name = "swaptions"
pinload = ["parallel", "swaptions", "--threads", "{n_vcpu}", "--size", "small", "--affinity", "{places}", "--wrap"]
lasts = "1s"
[[workload]]
name = "radix"
pinload = ["parallel", "radix", "--threads", "{n_pus}", "--size", "small", "--affinity", "{pus}"]
lasts = "1s"
[[plot]]
name = "times"
figure = "parallel"
labels = { part = "roi" }
x = "n_vcpu"
series = "strategy"
"#;

/// In one boot: a program of the guest, one that does not end, one that brings the kernel down.
const TROUBLE: &str = r#"
name = "trouble"
repetitions = 1
share = ["workload"]
[[factor]]
name = "n_vcpu"
levels = [1]
[[factor]]
name = "accelerator"
levels = ["tcg"]
[[workload]]
name = "good"
command = ["busybox", "echo", "time: {n_pus}"]
guest-program = "BUSYBOX"
lasts = "1s"
[[workload.figure]]
name = "time"
regex = 'time: (\S+)'
[[workload]]
name = "sleeps"
command = ["busybox", "sleep", "600"]
guest-program = "BUSYBOX"
time-limit = "300ms"
lasts = "1s"
[[workload]]
name = "panics"
command = ["busybox", "sh", "-c", "echo c > /proc/sysrq-trigger"]
guest-program = "BUSYBOX"
time-limit = "20s"
lasts = "1s"
[[workload]]
name = "of-the-host"
command = ["true"]
lasts = "1s"
"#;

/// Two machines at a time, over the host itself; gaps in the loaded and the idle guest.
const CROWD: &str = r#"
name = "crowd"
repetitions = 1
probes = ["exits"]
share = ["workload", "guest_load"]
constraints = ["accelerator == 'native' -> machines == 1 and guest_load == 'idle'", "accelerator == 'tcg' -> machines == 2"]
[baseline]
accelerator = "native"
machines = 1
guest_load = "idle"
[[factor]]
name = "accelerator"
levels = ["native", "tcg"]
[[factor]]
name = "machines"
levels = [1, 2]
[[factor]]
name = "guest_load"
levels = ["idle", "loaded-no-disk"]
[[workload]]
name = "gaps"
pinload = ["spin-gap", "--seconds", "0.2", "--cpus", "0"]
lasts = "1s"
[[workload.figure]]
name = "gap"
unit = "ns"
family = "tail"
json = "samples"
[[plot]]
name = "gaps"
figure = "gap"
kind = "percentiles"
series = "accelerator"
"#;

/// Guests with page tables of both numbers of levels, and more vCPUs than are started at once.
const LEVELS: &str = r#"
name = "levels"
repetitions = 1
[[factor]]
name = "n_vcpu"
levels = [9]
[[factor]]
name = "accelerator"
levels = ["tcg"]
[[factor]]
name = "page_table_levels"
levels = ["4", "5"]
[[workload]]
name = "cpus"
command = ["busybox", "sh", "-c", "cat /sys/devices/system/cpu/online /proc/cmdline; echo la57: $(grep -c la57 /proc/cpuinfo)"]
guest-program = "BUSYBOX"
lasts = "1s"
[[workload.figure]]
name = "la57"
regex = 'la57: (\d+)'
[[workload.figure]]
name = "last"
regex = '^0-(\d+)'
[[workload.figure]]
name = "first"
regex = 'maxcpus=(\d+)'
[[table]]
name = "flags"
figure = "la57"
rows = ["page_table_levels"]
"#;

/// A sandbox and the path of a static program for guests; `None`, reported, without it or a QEMU.
fn with_busybox() -> Option<(Sandbox, String)> {
    if is_missing(&[QEMU, "busybox"]) {
        return None;
    }
    Some((Sandbox::new(), find_program("busybox")?))
}

/// Starts a study in the background.
fn start(sandbox: &Sandbox, file: &str, store: &str) -> Child {
    let spawn = sandbox.spawn(&["study", "run", file, "--store", store]);
    spawn.stdout(Stdio::Null).stderr(Stdio::Pipe).start().expect("it starts")
}

/// Makes the report, and returns its page.
fn report(sandbox: &Sandbox, store: &str) -> String {
    sandbox.print(&["study", "report", store, "--out", &sandbox.path("page.html")]);
    sandbox.read("page.html")
}

/// The rows of a table of the report.
fn table(sandbox: &Sandbox, name: &str) -> Vec<Vec<String>> {
    let text = sandbox.read(&format!("page-tables/{name}.csv"));
    text.lines().map(|line| line.split(',').map(str::to_owned).collect()).collect()
}

/// All that a program that has ended said.
fn said_by(child: &mut Child) -> String {
    let mut said = String::new();
    child.stderr().expect("a pipe").read_to_string(&mut said).expect("what it said");
    said
}

/// Without Debian's packages there is no kernel to boot.
fn has_no_kernel(said: &str) -> bool {
    let none = said.contains("there is no kernel for the demo guest");
    if none {
        skip("apt has no kernel for the guest here");
    }
    none
}

/// QEMUs of this Pinfold: its folder in memory stands in their command lines.
fn machines_of(pid: u32) -> usize {
    let folder = format!("/pinfold-{pid}-");
    let numbers = files::list("/proc").expect("the processes");
    let lines = numbers.iter().filter(|name| name.parse::<u32>().is_ok());
    let lines = lines.filter_map(|name| files::read(&format!("/proc/{name}/cmdline")).ok());
    lines.filter(|line| String::from_utf8_lossy(line).contains(&folder)).count()
}

#[test]
fn programs_are_measured_in_guests_that_are_placed() {
    if is_missing(&[QEMU]) {
        return;
    }
    let workspace = Sandbox::new();
    let file = workspace.write("guests.toml", STUDY);
    let store = workspace.path("guests.sqlite");
    let (reported, _) = workspace.expect(0, &["study", "check", &file]);
    assert!(reported.contains("4 run, 0 skipped"), "{reported}");
    let (code, reported, said) = workspace.answer(&["study", "run", &file, "--store", &store]);
    if has_no_kernel(&said) {
        return;
    }
    assert_eq!(code, Some(0), "{said}");
    assert!(reported.contains("5 of 5 trials done, 0 failed"), "{reported}{said}");
    let html = report(&workspace, &store);
    for text in
        ["x86-64 guests, TCG (thread=multi): 4", "results do not carry over to KVM", "HZ 250"]
    {
        let plain = html.replace('\'', "&#39;").replace("&#x27;", "&#39;");
        assert!(plain.contains(text), "{text}");
    }
    let samples = table(&workspace, "samples");
    let column = |name: &str| samples[0].iter().position(|one| one == name).expect("a column");
    let of = |figure: &str| {
        let rows = samples[1..].iter().filter(|row| row[column("figure")] == figure);
        rows.cloned().collect::<Vec<_>>()
    };
    // One boot for the two programs of each start, and one for the twin.
    assert_eq!((of("boot").len(), of("t_full").len(), of("parallel").len()), (3, 5, 10));
    for figure in ["process_migrations", "switches", "steal"] {
        assert_eq!(of(figure).len(), 5, "{figure}");
    }
    // QEMU's main loop handles the guest's console: its threads switch more than the vCPUs' alone.
    let sum = |figure: &str| {
        let samples =
            of(figure).into_iter().map(|row| row[column("value")].parse::<f64>().unwrap_or(0.0));
        samples.sum::<f64>()
    };
    assert!(sum("process_switches") > sum("switches"), "{}", sum("switches"));
    let (reported, _) = workspace.expect(0, &["journal"]);
    assert!(reported.contains("reverted") && !reported.contains("active"), "{reported}");
}

#[test]
fn another_machine_runs_beside() {
    if is_missing(&[QEMU]) {
        return;
    }
    let workspace = Sandbox::new();
    let file = workspace.write("crowd.toml", CROWD);
    let store = workspace.path("crowd.sqlite");
    let mut child = start(&workspace, &file, &store);
    let pid = child.task().tid.0;
    let mut most = 0;
    // Two boots take a minute where others work too.
    let ended = (0..5).any(|_| {
        until(|| {
            most = most.max(machines_of(pid));
            child.try_wait().is_ok_and(|end| end.is_some())
        })
    });
    assert!(ended, "it does not end");
    if has_no_kernel(&said_by(&mut child)) {
        return;
    }
    let (reported, _) = workspace.expect(0, &["study", "status", &store]);
    assert!(reported.contains("4 of 4 trials done, 0 failed"), "{reported}");
    assert_eq!(most, 2);
    let html = report(&workspace, &store);
    assert!(html.contains("makes no exits"), "the missing exits are not reported");
    let gaps = table(&workspace, "gaps");
    assert_eq!(gaps[0], ["accelerator", "share", "value", "samples"]);
    for accelerator in ["native", "tcg"] {
        assert!(gaps.iter().any(|row| row[0] == accelerator), "{accelerator}");
    }
}

#[test]
fn a_guest_that_dies_fails_its_trial_alone() {
    let Some((workspace, busybox)) = with_busybox() else { return };
    let file = workspace.write("trouble.toml", TROUBLE.replace("BUSYBOX", &busybox));
    let store = workspace.path("trouble.sqlite");
    let (code, reported, said) = workspace.answer(&["study", "run", &file, "--store", &store]);
    if has_no_kernel(&said) {
        return;
    }
    assert_eq!(code, Some(1), "trials failed: {said}");
    let flat = format!("{reported} {said}").replace('\n', " ");
    assert!(flat.contains("2 failed, 1 cell skipped"), "{flat}");
    assert_parts(
        &flat,
        &["it did not finish within 0.3 s in the guest", "Kernel panic", "trying again"],
    );
    let (_, _, said) = workspace.answer(&["study", "check", &file]);
    assert!(said.contains("its command is a program of the host"), "{said}");
}

#[test]
fn neither_interrupt_nor_kill_leave_a_machine() {
    if is_missing(&[QEMU]) {
        return;
    }
    let workspace = Sandbox::new();
    let file = workspace.write("guests.toml", STUDY);
    for (kind, name) in [(Signaled::Terminate, "term"), (Signaled::Kill, "kill")] {
        let store = workspace.path(&format!("{name}.sqlite"));
        let mut child = start(&workspace, &file, &store);
        let pid = child.task().tid;
        let begun =
            until(|| machines_of(pid.0) > 0 || child.try_wait().is_ok_and(|end| end.is_some()));
        assert!(begun, "{name}: no machine begins");
        if child.try_wait().expect("a child").is_some() {
            assert!(has_no_kernel(&said_by(&mut child)), "{name}: it ended by itself");
            return;
        }
        signal(pid, kind).expect("it is signalled");
        assert!(until(|| child.try_wait().is_ok_and(|end| end.is_some())), "{name}: it lives on");
        assert!(until(|| machines_of(pid.0) == 0), "{name}: QEMU lives on");
        // What was in force is undone, or goes with the threads that it was for.
        let (_, reported, said) = workspace.answer(&["undo", "--all"]);
        assert!(
            !format!("{reported}{said}").contains("not everything"),
            "{name}: {reported}{said}"
        );
        let (reported, _) = workspace.expect(0, &["study", "status", &store]);
        assert!(reported.contains("of 5 trials done, 0 failed"), "{name}: {reported}");
    }
}

/// The kernel lists la57, for each CPU, only if it runs with five levels.
#[test]
fn guests_have_the_requested_levels_of_page_tables_and_all_vcpus_that_come_online_later() {
    let Some((workspace, busybox)) = with_busybox() else { return };
    let file = workspace.write("levels.toml", LEVELS.replace("BUSYBOX", &busybox));
    let store = workspace.path("levels.sqlite");
    let (code, reported, said) = workspace.answer(&["study", "run", &file, "--store", &store]);
    if has_no_kernel(&said) {
        return;
    }
    assert_eq!(code, Some(0), "{said}");
    assert!(reported.contains("3 of 3 trials done, 0 failed"), "{reported}{said}");
    report(&workspace, &store);
    let flags = table(&workspace, "flags");
    let of = |levels: &str| flags.iter().find(|row| row[0] == levels).expect("a row")[1].parse();
    assert_eq!(["4", "5"].map(of), [Ok(0.0), Ok(9.0)]);
    let samples = table(&workspace, "samples");
    let [figure, value] = ["figure", "value"]
        .map(|name: &str| samples[0].iter().position(|one| one == name).expect("a column"));
    for (name, number) in [("last", "8"), ("first", "1")] {
        let rows = samples[1..].iter().filter(|row| row[figure] == name);
        let found: Vec<&str> = rows.map(|row| row[value].as_str()).collect();
        assert_eq!(found, [number; 3], "{name}");
    }
}
