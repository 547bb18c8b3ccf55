//! Again and again on the test's own part of the machine: nothing is left behind and nothing
//! grows, also when Pinfold is killed at any moment.
//!
//! The counts fit a test; `PINFOLD_TEST_SIZE=full cargo test -p pinfold-apply` takes the whole
//! ones (1,000 cycles and 200 kills here, 10,000 cycles on simulated hosts).

use crate::common::{PLAN_TEXT, times};
use crate::stage::{ARGUMENTS, TestHost, be_machine, id, live_plan, target};
use pinfold_apply::{Journals, NewJournal, apply, no_observer, undo};
use pinfold_host::files::StateDir;
use pinfold_host::process::{self, Signaled};
use pinfold_host::{Clock as _, Host as _, LiveHost, SystemClock, paths};
use pinfold_model::Tid;

/// Applies and undoes until it is killed: `STATE MACHINE LOAD`.
pub fn be_restless() {
    let arguments = std::env::var(ARGUMENTS).unwrap();
    let arguments: Vec<&str> = arguments.split(' ').collect();
    let host = LiveHost::new().unwrap();
    let target =
        target(&host, Tid(arguments[1].parse().unwrap()), Tid(arguments[2].parse().unwrap()));
    let journals = Journals::open(&StateDir::open(arguments[0]).unwrap(), &SystemClock).unwrap();
    loop {
        let new =
            NewJournal { vm_name: "vm1", plan: PLAN_TEXT, target: &target, supervised: false };
        let mut journal = journals.begin(&host, &new).unwrap();
        apply(&host, &live_plan(), &target, &mut journal, &mut no_observer()).unwrap();
        assert!(undo(&host, &mut journal).is_complete());
    }
}

/// A machine whose first vCPU starts a worker, which creates threads continuously.
pub fn be_storm() {
    std::thread::spawn(|| {
        SystemClock.sleep_ns(400_000_000);
        let worker = std::thread::spawn(|| {
            for _ in 0..1_000 {
                std::thread::spawn(std::thread::park);
                SystemClock.sleep_ns(3_000_000);
            }
        });
        worker.join().unwrap();
    });
    be_machine(2);
    // The parked threads end with the process.
    std::process::exit(0);
}

/// Files that this process holds open, and KiB of memory that it has.
fn held(host: &LiveHost) -> (usize, u64) {
    let files = host.list(&format!("{}/fd", paths::own_dir())).unwrap().len();
    let status = host.read_text(&paths::own_status()).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    (files, line.trim().trim_end_matches(" kB").parse().unwrap())
}

#[test]
fn cycles_on_the_real_machine_leave_nothing_behind() {
    let mut stage = match TestHost::set("cycles") {
        Ok(stage) => stage,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let (machine, load) = (stage.start("machine", 5), stage.start("load", 3));
    let (target, plan) = (target(&stage.host, machine, load), live_plan());
    let before = stage.picture();
    let cycle = || {
        let journals = stage.journals();
        let new =
            NewJournal { vm_name: "vm1", plan: PLAN_TEXT, target: &target, supervised: false };
        let mut journal = journals.begin(&stage.host, &new).unwrap();
        apply(&stage.host, &plan, &target, &mut journal, &mut no_observer()).unwrap();
        let report = undo(&stage.host, &mut journal);
        assert!(report.is_complete() && report.changed.is_empty(), "{report:?}");
    };
    let names = || StateDir::open(&format!("{}/journal", stage.state())).unwrap().list().unwrap();
    // What is made once is made by then.
    (0..10).for_each(|_| cycle());
    let (files, memory) = held(&stage.host);
    let count = times(100, 1_000);
    for number in 0..count {
        cycle();
        assert_eq!(before, stage.picture(), "after {number} cycles");
    }
    let (files_after, memory_after) = held(&stage.host);
    assert!(files_after <= files, "{files} files were open, now {files_after}");
    assert!(memory_after <= memory + 4096, "{memory} KiB, now {memory_after}");
    // At most 32 journals that have ended, the last one, and their lock.
    assert!(names().len() <= 34, "{:?}", names());
}

#[test]
fn kills_at_random_moments_are_undone() {
    let mut stage = match TestHost::set("random") {
        Ok(stage) => stage,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let (machine, load) = (stage.start("machine", 5), stage.start("load", 3));
    let target = target(&stage.host, machine, load);
    let before = stage.picture();
    let id = id(target.threads[0].0);
    let (count, mut random, mut in_force) = (times(20, 200), 1_u64, 0);
    for number in 0..count {
        let state = format!("{}/{number}", stage.state());
        let journals = Journals::open(&StateDir::open(&state).unwrap(), &SystemClock).unwrap();
        let arguments = format!("{state} {machine} {load}");
        let mut restless = stage.spawn("restless", &arguments).start().unwrap();
        while journals.list().unwrap().iter().all(|one| one.id != id) {
            SystemClock.sleep_ns(100_000);
        }
        // Knuth's generator: the moments are the same in each run, what they hit is not.
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        SystemClock.sleep_ns(random >> 40);
        process::signal(restless.pid(), Signaled::Kill).unwrap();
        restless.wait_for(&SystemClock, 20_000_000_000).unwrap().expect("it has ended");
        let what = format!("kill {number}");
        // Each placement has a journal of its own; a kill may hit any of them.
        for one in journals.list().unwrap() {
            let Some(mut journal) = journals.reopen(&one.id).unwrap() else { continue };
            in_force += u32::from(!journal.record().has_ended());
            let report = undo(&stage.host, &mut journal);
            assert!(report.is_complete() && report.changed.is_empty(), "{what}: {report:?}");
        }
        assert_eq!(before, stage.picture(), "{what}");
    }
    println!("{in_force} of {count} kills came while something was in force");
    assert!(in_force * 4 > count, "only {in_force} of {count} kills hit anything");
}

#[test]
fn an_undo_releases_threads_that_are_created_while_it_works() {
    let mut stage = match TestHost::set("storm") {
        Ok(stage) => stage,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    for number in 0..times(3, 30) {
        let (machine, load) = (stage.start("storm", 5), stage.start("load", 3));
        let target = target(&stage.host, machine, load);
        let before = stage.host.affinity(machine).unwrap();
        let journals = stage.journals();
        let new =
            NewJournal { vm_name: "vm1", plan: PLAN_TEXT, target: &target, supervised: false };
        let mut journal = journals.begin(&stage.host, &new).unwrap();
        apply(&stage.host, &live_plan(), &target, &mut journal, &mut no_observer()).unwrap();
        SystemClock.sleep_ns(900_000_000);
        let is_pinned = |tid: &Tid| stage.host.affinity(*tid).unwrap() != before;
        let pinned = || crate::stage::threads(&stage.host, machine).into_iter().filter(is_pinned);
        // On a busy machine threads are created slowly.
        let limit = SystemClock.now_ns() + 60_000_000_000;
        while pinned().count() <= 10 {
            assert!(SystemClock.now_ns() < limit, "{number}: {} are pinned", pinned().count());
            SystemClock.sleep_ns(50_000_000);
        }
        let report = undo(&stage.host, &mut journal);
        assert!(report.is_complete() && report.changed.is_empty(), "{report:?}");
        let created = crate::stage::threads(&stage.host, machine);
        let left: Vec<&Tid> =
            created.iter().filter(|tid| stage.host.affinity(**tid).unwrap() != before).collect();
        assert!(left.is_empty(), "{number}: {left:?} of {} are pinned", created.len());
        stage.children.clear();
    }
}
