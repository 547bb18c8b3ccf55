//! Tunables that were set and that somebody else changes: `read_tunables` and the watch tell of them.

use crate::common::{Bench, Case};
use pinfold_apply::{Extent, Roles, WatchEvent, Watcher, read_tunables};
use pinfold_host::{Host, HostMut as _, paths};
use pinfold_model::{NodeId, Role, TaskId, Tid, Tuning};
use pinfold_sim::{SimTask, WriteRule};

const PAGE: u64 = 2 << 20;

/// A host with some tunables: one that the kernel refuses, a pool that is short.
fn case() -> Case {
    let builder = crate::common::v2_builder()
        .writable_file(&paths::thp_file("enabled"), WriteRule::Choice, "always [madvise] never\n")
        .writable_file(&paths::sysctl_kernel("numa_balancing"), WriteRule::Integer, "1\n")
        .writable_file(&paths::node_huge_pages(NodeId(0), PAGE), WriteRule::Pool(64), "3\n")
        .writable_file(&paths::workqueue_cpumask(), WriteRule::Mask, "ff\n");
    let mut case = crate::common::alone("tunables", builder);
    let words = ["thp=never", "numa-balancing=off", "workqueues=0,4", "huge-pages=0:2048:100"];
    case.plan.tuning = Tuning::from_words(&words).unwrap();
    case.host.fail_on(&format!("write {}", paths::workqueue_cpumask()), 1);
    case
}

struct KnownRoles(Vec<(TaskId, Role)>);

impl Roles for KnownRoles {
    fn roles(&mut self, _: &dyn Host, _: Tid) -> Result<Vec<(TaskId, Role)>, String> {
        Ok(self.0.clone())
    }
}

#[test]
fn what_another_program_changed_is_reported_and_what_was_refused_is_not() {
    let case = case();
    let bench = Bench::new();
    bench.apply(&case).unwrap();
    let journal = bench.reopen(&case);
    let look = || read_tunables(&case.host, journal.record()).unwrap();
    let paths: Vec<String> = look().into_iter().map(|tunable| tunable.path).collect();
    assert!(!paths.contains(&paths::workqueue_cpumask()), "it was refused: {paths:?}");
    assert_eq!(paths.len(), 3, "{paths:?}");
    assert!(look().iter().all(|tunable| tunable.ok), "64 of 100 pages are as many as there were");
    let change = |path: String, value: &str, planned: &str| {
        case.host.write(&path, value.as_bytes()).unwrap();
        let changed: Vec<_> = look().into_iter().filter(|tunable| !tunable.ok).collect();
        assert_eq!(changed.len(), 1, "{changed:?}");
        assert_eq!((changed[0].path.clone(), changed[0].planned.as_str()), (path, planned));
        changed[0].found.clone()
    };
    let thp = paths::thp_file("enabled");
    assert_eq!(change(thp.clone(), "always", "never").unwrap(), "[always] madvise never");
    case.host.write(&thp, b"never").unwrap();
    let pool = paths::node_huge_pages(NodeId(0), PAGE);
    assert_eq!(change(pool, "3", "100").unwrap(), "3", "put back by somebody else");
}

#[test]
fn the_watch_reports_of_a_tunable_once_each_time_and_leaves_it() {
    let case = case();
    let bench = Bench::new();
    bench.apply(&case).unwrap();
    let mut journal = bench.reopen(&case);
    let mut watcher = Watcher::new(&case.host, &case.plan, &case.target).unwrap();
    let mut roles = KnownRoles(case.target.threads.clone());
    let mut tick = || {
        let events = watcher.tick(&case.host, &mut journal, &mut roles, Extent::Masks).unwrap();
        events
            .into_iter()
            .filter_map(|event| match event {
                WatchEvent::Finding(finding) if finding.subject == "tunables" => Some(finding.text),
                WatchEvent::Finding(_)
                | WatchEvent::Placed { .. }
                | WatchEvent::Repaired { .. }
                | WatchEvent::Contested { .. }
                | WatchEvent::Groups { .. }
                | WatchEvent::Yielded { .. }
                | WatchEvent::Replanned { .. }
                | WatchEvent::Undone
                | WatchEvent::Ended => None,
            })
            .collect::<Vec<String>>()
    };
    assert!(tick().is_empty());
    let path = paths::sysctl_kernel("numa_balancing");
    case.host.write(&path, b"1").unwrap();
    case.host.add_task(SimTask::new(950, "tuned"));
    let reported = tick();
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert!(reported[0].contains("numa_balancing was set to 0 and is now 1"), "{reported:?}");
    assert!(reported[0].contains("tuned (process 950)"), "{reported:?}");
    assert!(tick().is_empty(), "once");
    assert_eq!(case.host.read_text(&path).unwrap(), "1\n", "it is left");
    case.host.write(&path, b"0").unwrap();
    assert!(tick().is_empty());
    case.host.write(&path, b"1").unwrap();
    assert_eq!(tick().len(), 1, "again");
}

#[test]
fn a_number_that_cannot_be_read_is_left_and_reported_so() {
    let case = case();
    let bench = Bench::new();
    bench.apply(&case).unwrap();
    let pool = paths::node_huge_pages(NodeId(0), PAGE);
    case.host.set_file(&pool, "unknown\n");
    let changed = |case: &Case| {
        let found = read_tunables(&case.host, bench.reopen(case).record()).unwrap();
        found
            .into_iter()
            .filter(|tunable| !tunable.ok)
            .map(|tunable| tunable.path)
            .collect::<Vec<_>>()
    };
    assert_eq!(changed(&case), std::slice::from_ref(&pool));
    let report = bench.undo(&case);
    let reported = report.changed.iter().find(|one| one.text.contains(&pool)).unwrap();
    assert!(reported.text.contains("\"unknown\", which is not a number"), "{reported:?}");
    assert!(reported.hint.as_ref().unwrap().contains("\"3\""), "{reported:?}");
    assert_eq!(case.host.read_text(&pool).unwrap(), "unknown\n");
}
