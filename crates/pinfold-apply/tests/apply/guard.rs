//! Real-time rights taken away from a machine whose supervisor has ended.

use crate::common::{Bench, VM, assert_same};
use pinfold_apply::{demote_real_time_threads, real_time_priority};
use pinfold_host::Host as _;
use pinfold_model::{Policy, Tid};

const FIFO: Policy = Policy::Fifo { priority: 1 };

#[test]
fn threads_that_were_given_rights_and_those_that_inherited_them_lose_them() {
    let case = crate::common::v2();
    let (bench, before) = (Bench::new(), case.host.snapshot());
    bench.apply(&case).unwrap();
    case.host.clone_thread(Tid(501), Tid(510));
    assert_eq!(case.host.policy(Tid(510)).unwrap(), FIFO, "born real-time");
    let journal = bench.reopen(&case);
    let demoted = demote_real_time_threads(&case.host, journal.record()).unwrap();
    let tids: Vec<u32> = demoted.iter().map(|one| one.task.tid.0).collect();
    assert_eq!(tids, [501, 510]);
    for tid in [501, 510] {
        assert_eq!(case.host.policy(Tid(tid)).unwrap(), Policy::default());
    }
    assert!(
        demote_real_time_threads(&case.host, journal.record()).unwrap().is_empty(),
        "nothing is left"
    );
    drop(journal);
    case.host.exit(Tid(510));
    assert!(bench.undo(&case).is_complete());
    assert_same(&before, &case.host, "undone after the rights were taken");
}

#[test]
fn what_was_real_time_before_stays_so() {
    let case = crate::common::v2();
    case.host.edit_task(Tid(502), |task| task.policy = FIFO);
    let bench = Bench::new();
    bench.apply(&case).unwrap();
    let journal = bench.reopen(&case);
    demote_real_time_threads(&case.host, journal.record()).unwrap();
    assert_eq!(case.host.policy(Tid(502)).unwrap(), FIFO);
    assert_eq!(case.host.policy(Tid(501)).unwrap(), Policy::default());
}

#[test]
fn one_thread_that_keeps_its_rights_does_not_save_the_others() {
    let mut case = crate::common::v2();
    case.plan.vnodes[0].threads[1].policy = Some(FIFO);
    case.plan.vnodes[0].threads[1].pus = crate::common::set("4");
    let bench = Bench::new();
    bench.apply(&case).unwrap();
    let journal = bench.reopen(&case);
    case.host.fail_on(&format!("set_policy {VM}"), 1);
    let error = demote_real_time_threads(&case.host, journal.record()).unwrap_err();
    assert_eq!(error.errno(), Some(1));
    assert_eq!(case.host.policy(Tid(501)).unwrap(), Policy::default());
    case.host.exit(Tid(VM));
    case.host.clear_faults();
    assert!(
        demote_real_time_threads(&case.host, journal.record()).unwrap().is_empty(),
        "it has ended"
    );
}

#[test]
fn only_real_time_plans_are_guarded() {
    let mut plan = crate::common::v2().plan;
    assert_eq!(real_time_priority(&plan), Some(1));
    plan.vnodes[0].threads[0].policy = Some(Policy::Other { nice: -20 });
    assert_eq!(real_time_priority(&plan), None);
}
