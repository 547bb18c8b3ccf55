//! How often an apply asks a host: while the steps are planned, each question once.

use crate::common::{Bench, Case, cases};
use crate::counted::CountedHost;
use pinfold_apply::{apply, no_observer, plan_steps};
use pinfold_host::paths;
use pinfold_model::Tuning;

/// Every host and scope, also with tunables that the same files decide.
fn plans() -> impl Iterator<Item = (String, Case)> {
    cases().into_iter().flat_map(|case| {
        let mut tuned = case.clone();
        tuned.plan.tuning = Tuning::from_words(&[
            "rt-throttle=off",
            "numa-balancing=off",
            "smt=off",
            "cpu-weight=200",
            "partition=isolated",
        ])
        .unwrap();
        let what = format!("{}, isolate {}", case.name, case.plan.isolation);
        [(what.clone(), case), (format!("{what}, tuned"), tuned)]
    })
}

#[test]
fn no_question_is_asked_twice() {
    for (what, case) in plans() {
        let host = CountedHost::new(&case.host);
        // A plan that is refused has been read too.
        let planned = plan_steps(&host, &case.plan, &case.target);
        let questions = host.questions();
        assert!(questions.len() > 10, "{what}: {planned:?}");
        let repeated: Vec<_> = questions.iter().filter(|(_, times)| **times > 1).collect();
        assert!(repeated.is_empty(), "{what}: {repeated:?}");
    }
}

#[test]
fn an_apply_lists_the_threads_again_after_its_steps() {
    for case in cases() {
        let what = format!("{}, isolate {}", case.name, case.plan.isolation);
        let (host, bench) = (CountedHost::new(&case.host), Bench::new());
        plan_steps(&host, &case.plan, &case.target).unwrap();
        let to_plan: u32 = host.questions().values().sum();
        let mut journal = bench.begin(&case);
        let applied =
            apply(&host, &case.plan, &case.target, &mut journal, &mut no_observer()).unwrap();
        let questions = host.questions();
        let (steps, to_apply) = (applied.steps.len(), questions.values().sum::<u32>());
        println!("{what}: {steps} steps, {to_plan} reads to plan, {to_apply} to apply");
        let listed = format!("list {}", paths::task_dir(case.target.pid));
        assert!(questions[&listed] >= 2, "{what}: {questions:?}");
    }
}
