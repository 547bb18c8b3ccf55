//! A real `kill -9` at every point of every step, on the machine that the tests run on.
//!
//! Everything touched is the test's own: a cpuset group that it makes, and processes that are
//! this very program, started again with a role in an environment variable: a machine with some
//! threads, a load, and a Pinfold that applies a plan to both and kills itself on the way.

use std::io::Write as _;
use std::ops::ControlFlow;

use crate::common::{PLAN_TEXT, set};
use crate::stage::{ARGUMENTS, TestHost, id, list, live_plan, target, threads};
use pinfold_apply::{
    Event, Journals, NewJournal, Point, UndoReport, apply, plan_steps, status, undo,
};
use pinfold_host::files::StateDir;
use pinfold_host::proc_cgroup;
use pinfold_host::process::{self, Signaled, Stdio};
use pinfold_host::{Host, HostMut as _, LiveHost, SystemClock, paths};
use pinfold_model::Tid;

const POINTS: [Point; 3] = [Point::BeforeJournal, Point::AfterJournal, Point::AfterChange];

/// Applies and kills itself: `STATE MACHINE LOAD STEP POINT`.
pub fn be_pinfold() {
    let arguments = std::env::var(ARGUMENTS).unwrap();
    let arguments: Vec<&str> = arguments.split(' ').collect();
    let (host, clock) = (LiveHost::new().unwrap(), SystemClock);
    let target = target(&host, Tid(number(1, &arguments)), Tid(number(2, &arguments)));
    let journals = Journals::open(&StateDir::open(arguments[0]).unwrap(), &clock).unwrap();
    let new = NewJournal { vm_name: "vm1", plan: PLAN_TEXT, target: &target, supervised: false };
    let mut journal = journals.begin(&host, &new).unwrap();
    let (index, point) =
        (arguments[3].parse::<usize>().unwrap(), POINTS[number(4, &arguments) as usize]);
    apply(&host, &live_plan(), &target, &mut journal, &mut |event: &Event<'_>| {
        if event.index == index && event.point == point {
            process::signal(process::own_pid(), Signaled::Kill).unwrap();
        }
        ControlFlow::Continue(())
    })
    .unwrap();
}

fn number(at: usize, arguments: &[&str]) -> u32 {
    arguments[at].parse::<u32>().unwrap()
}

#[test]
fn a_real_kill_at_every_point_of_every_step_is_undone() {
    let mut stage = match TestHost::set("kill") {
        Ok(stage) => stage,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let (machine, load) = (stage.start("machine", 5), stage.start("load", 3));
    // One thread had a mask of its own before.
    let narrow = *threads(&stage.host, load).last().unwrap();
    stage.host.set_affinity(narrow, &set("1")).unwrap();
    let target = target(&stage.host, machine, load);
    let steps = plan_steps(&stage.host, &live_plan(), &target).unwrap().steps.len();
    assert!(steps >= 9, "{steps} steps are too few for this test");
    let before = stage.picture();
    for index in 0..steps {
        for (number, point) in POINTS.iter().enumerate() {
            let what = format!("killed at {point:?} of step {index}");
            let arguments = format!("{} {machine} {load} {index} {number}", stage.state());
            let mut pinfold = stage.spawn("pinfold", &arguments).start().unwrap();
            let ended = pinfold.wait_for(&SystemClock, 20_000_000_000).unwrap();
            let ended = process::describe(ended.expect("it kills itself"));
            assert!(ended.contains('9') || ended.contains("KILL"), "{what}: {ended}");
            let id = id(target.threads[0].0);
            let Some(id) = crate::common::latest(&stage.journals(), &id) else {
                assert_eq!((index, *point), (0, Point::BeforeJournal), "{what}");
                assert_eq!(before, stage.picture(), "{what}");
                continue;
            };
            let mut journal = stage.journals().reopen(&id).unwrap().unwrap();
            let known = journal.record().step_count() > index;
            assert!(known || *point == Point::BeforeJournal, "{what}");
            let report = undo(&stage.host, &mut journal);
            assert!(report.is_complete() && report.changed.is_empty(), "{what}: {report:?}");
            assert_eq!(before, stage.picture(), "{what}");
        }
    }
}

#[test]
fn a_plan_is_active_on_real_threads_and_undone() {
    let mut stage = match TestHost::set("apply") {
        Ok(stage) => stage,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let (machine, load) = (stage.start("machine", 5), stage.start("load", 3));
    let (target, plan) = (target(&stage.host, machine, load), live_plan());
    let before = stage.picture();
    let journals = stage.journals();
    let new = NewJournal { vm_name: "vm1", plan: PLAN_TEXT, target: &target, supervised: false };
    let mut journal = journals.begin(&stage.host, &new).unwrap();
    let dry = plan_steps(&stage.host, &plan, &target).unwrap();
    let applied = apply(&stage.host, &plan, &target, &mut journal, &mut |_: &Event<'_>| {
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(dry.steps, applied.steps);
    let group = applied.group.unwrap();
    assert_eq!(group.rsplit_once('/').unwrap().0, stage.group, "made below the loads' group");
    assert_eq!(list(&stage.host, &paths::cpuset_effective_cpus(&group)), set("0"));
    assert!(status(&stage.host, &plan, &target).unwrap().is_as_planned());
    assert!(
        threads(&stage.host, load)
            .iter()
            .all(|tid| { stage.host.affinity(*tid).unwrap() == set("0") })
    );
    // A load that is started later joins the group, and goes with it.
    let late = stage.spawn("load", "").cgroup_files(vec![paths::cgroup_procs(&group)]);
    let mut late = late.stdin(Stdio::Pipe).start().unwrap();
    let report: UndoReport = undo(&stage.host, &mut journal);
    assert!(report.is_complete() && report.changed.is_empty(), "{report:?}");
    let groups = stage.host.read_text(&paths::process_cgroup(late.pid())).unwrap();
    let groups = proc_cgroup::parse(&groups).unwrap();
    let at = proc_cgroup::v1_path(&groups, "cpuset").unwrap();
    assert!(stage.group.ends_with(at), "the late load is in {at}");
    assert_eq!(stage.host.affinity(late.pid()).unwrap(), set("0-1"));
    late.stdin().unwrap().write_all(b"end").unwrap();
    late.kill().unwrap();
    assert_eq!(before, stage.picture());
}
