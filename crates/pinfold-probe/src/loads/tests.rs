//! Loads as the host sees them.

use pinfold_host::process::task_alive;
use pinfold_host::{Clock as _, LiveHost, SystemClock};
use pinfold_model::PuId;

use super::*;
use crate::pinload::Pinload;

const LIMIT_NS: u64 = 600_000_000_000;

fn spec(kind: LoadKind) -> LoadSpec {
    LoadSpec { kind, threads: 1, life: LoadDuration::Limited(LIMIT_NS) }
}

fn program() -> (tempfile::TempDir, Pinload) {
    let folder = tempfile::tempdir().unwrap();
    let pinload = Pinload::install_in(folder.path().join("bin").to_str().unwrap()).unwrap();
    (folder, pinload)
}

fn eventually<T>(mut answer: impl FnMut() -> Option<T>) -> T {
    for _ in 0..2000 {
        if let Some(value) = answer() {
            return value;
        }
        SystemClock.sleep_ns(20_000_000);
    }
    panic!("it never happened");
}

#[test]
fn arguments() {
    let check = |kind, expected: &str| assert_eq!(spec(kind).argv().join(" "), expected);
    check(LoadKind::Cpu, "load cpu --threads 1 --seconds 600.000000000 --supervised");
    let burner = LoadSpec {
        life: LoadDuration::WhileHeartbeat { silence_ns: 90_000_000 },
        ..spec(LoadKind::Cpu)
    };
    let expected = "load cpu --threads 1 --silence 0.090000000 --supervised";
    assert_eq!(burner.argv().join(" "), expected);
    assert_eq!(burner.life.beat(), Duration::from_millis(30));
    check(
        LoadKind::Memory { mib: 8 },
        "load memory --threads 1 --seconds 600.000000000 --supervised --memory-mib 8",
    );
    check(
        LoadKind::Io { path: "/tmp".to_owned() },
        "load io --threads 1 --seconds 600.000000000 --supervised --path /tmp",
    );
}

#[test]
fn loads_run_where_they_were_put_and_end_with_the_value() {
    let (_folder, pinload) = program();
    let host = LiveHost::new().unwrap();
    let own = host.affinity(pinfold_host::process::own_tid()).unwrap();
    let pu = CpuSet::single(own.first().unwrap_or(PuId(0)));
    let placement = Placement { affinity: Some(pu.clone()), ..Placement::default() };
    let specs = [spec(LoadKind::Cpu), spec(LoadKind::Memory { mib: 2 })];
    let loads = HostLoads::start(&pinload.path(), &specs, &placement).unwrap();
    drop(pinload); // the file may be removed while they run
    let processes = loads.processes().to_vec();
    assert_eq!(processes.len(), 2);
    // Each load has its main thread and one that works.
    let tasks = eventually(|| loads.tasks(&host).ok().filter(|tasks| tasks.len() == 4));
    for task in &tasks {
        assert_eq!(host.affinity(task.tid).unwrap(), pu);
    }
    loads.check().unwrap();
    loads.stop().unwrap();
    for process in processes {
        assert!(!task_alive(&host, process).unwrap());
    }
}

#[test]
fn a_dropped_value_takes_its_loads_with_it() {
    let (_folder, pinload) = program();
    let host = LiveHost::new().unwrap();
    let loads =
        HostLoads::start(&pinload.path(), &[spec(LoadKind::Cpu)], &Placement::default()).unwrap();
    let process = loads.processes()[0];
    drop(loads);
    assert!(!task_alive(&host, process).unwrap());
}

#[test]
fn a_load_that_ends_by_itself_is_reported_with_its_message() {
    let (_folder, pinload) = program();
    let specs = [spec(LoadKind::Io { path: "/none".to_owned() })];
    let loads = HostLoads::start(&pinload.path(), &specs, &Placement::default()).unwrap();
    let text = loads.stop().unwrap_err().to_string();
    assert!(text.contains("the io load ended (exit code 1)") && text.contains("/none"), "{text}");
}

#[test]
fn loads_that_cannot_start_are_errors() {
    let (_folder, pinload) = program();
    check("/none/pinload", &Placement::default());
    let nowhere = Placement { cgroup_files: vec!["/none/tasks".to_owned()], affinity: None };
    check(&pinload.path(), &nowhere);
}

fn check(program: &str, placement: &Placement) {
    let error = HostLoads::start(program, &[spec(LoadKind::Cpu)], placement).unwrap_err();
    assert!(matches!(error, LoadError::Start { name: "cpu", .. }), "{error}");
}
