//! The JSON format: round trip, golden text, and errors that name the field.

use pinfold_model::{IsolationScope, Plan, Policy, Role};
use pinfold_samples::machine::i7_4790k;
use pinfold_samples::{any_plan, auto};
use proptest::prelude::*;

use crate::plan;
use crate::schema::{SchemaError, from_json, to_json, to_json_line};

const GOLDEN: &str = include_str!("golden/plan-1.json");

#[test]
fn the_first_version_of_the_format_is_read_and_written() {
    let layout = from_json(GOLDEN).unwrap();
    assert_eq!(to_json(&layout), GOLDEN);
    assert_eq!((layout.strategy.as_str(), layout.isolation), ("balanced", IsolationScope::Host));
    assert_eq!(pinfold_samples::pins(&layout), "1,5,2,6,3");
    assert_eq!(policy_of(&Role::Vcpu(0), &layout), Some(Policy::RoundRobin { priority: 1 }));
    assert_eq!(policy_of(&Role::Emulator, &layout), Some(Policy::Other { nice: -5 }));
    assert_eq!(policy_of(&Role::Iothread("disk".to_owned()), &layout), None);
    assert_eq!(
        (layout.housekeeping, layout.exclusive),
        (pinfold_samples::set("0,4"), pinfold_samples::set("1-3,5-7"))
    );
    assert_eq!(layout.findings.len(), 2);
}

fn policy_of(role: &Role, layout: &Plan) -> Option<Policy> {
    layout.vnodes[0].thread(role).unwrap().policy
}

/// Other programs may leave them out.
#[test]
fn keys_without_a_value_may_be_missing() {
    let text = GOLDEN.replace("          \"policy\": null,\n", "");
    let text = text.replace(",\n      \"hint\": null", "");
    assert_eq!(text.lines().count() + 3, GOLDEN.lines().count());
    assert_eq!(from_json(&text).unwrap(), from_json(GOLDEN).unwrap());
}

#[track_caller]
fn refused(from: &str, to: &str, error: &str) -> SchemaError {
    let text = to_json(&plan("low-latency", &i7_4790k().build(), &auto()).unwrap());
    assert!(text.contains(from), "{from} is not in the text");
    let found = from_json(&text.replacen(from, to, 1)).unwrap_err();
    assert_eq!(found.to_string(), error);
    found
}

#[test]
fn errors_name_the_field() {
    refused(
        "\"pus\": \"2\"",
        "\"pus\": \"3-2\"",
        "vnodes[0].threads[1].pus: \"3-2\" is not a list of CPUs: \"3-2\": the range runs \
         backwards at line 18 column 22",
    );
    refused(
        "\"pus\": \"2\"",
        "\"pus\": 2",
        "vnodes[0].threads[1].pus: invalid type: integer `2`, expected a string at line 18 column 18",
    );
    refused(
        "\"pus\": \"2\"",
        "\"pus\": \"\"",
        "vnodes[0].threads[1].pus: vcpu(1) has no CPU to run on",
    );
    refused(
        "\"pus\": \"2\"",
        "\"cpus\": \"2\"",
        "vnodes[0].threads[1].cpus: unknown field `cpus`, expected one of `role`, `pus`, `policy`, \
         `reason` at line 18 column 16",
    );
    refused(
        "vcpu(1)",
        "vcpu(one)",
        "vnodes[0].threads[1].role: \"vcpu(one)\" is not a role; roles are vcpu(N), emulator, \
         iothread(ID), vhost(N), worker, task at line 17 column 29",
    );
    refused("vcpu(1)", "vcpu(0)", "vnodes[0].threads[1].role: vcpu(0) is planned twice");
    refused("vcpu(1)", "vcpu(7)", "vnodes[0].threads: the vCPUs are not in ascending order");
    refused(
        "\"policy\": null",
        "\"policy\": {\"fifo\": {\"priority\": 100}}",
        "vnodes[0].threads[0].policy: the real-time priority 100 is out of range (1 to 99) at \
         line 13 column 47",
    );
    refused("\"cores\": 3", "\"cores\": 4", "vnodes[0].guest: 1×4×1 is not the number of vCPUs, 3");
    refused(
        "\"cores\": 3",
        "\"cores\": 4294967295",
        "vnodes[0].guest: 1×4294967295×1 is not the number of vCPUs, 3",
    );
}

#[test]
fn plans_that_would_harm_the_host_are_refused() {
    refused(
        "\"housekeeping_pus\": \"0,4\"",
        "\"housekeeping_pus\": \"\"",
        "housekeeping_pus: the host's own tasks would have no CPU",
    );
    refused(
        "\"housekeeping_pus\": \"0,4\"",
        "\"housekeeping_pus\": \"0-2\"",
        "exclusive_pus: the CPUs 1-2 are also in housekeeping_pus",
    );
    refused(
        "\"isolation\": \"host\"",
        "\"isolation\": \"none\"",
        "exclusive_pus: the isolation is none, so nothing is excluded from any CPU",
    );
    refused(
        "\"pus\": \"1\",\n          \"policy\": null",
        "\"pus\": \"0,4\",\n          \"policy\": {\"fifo\": {\"priority\": 1}}",
        "housekeeping_pus: real-time threads may run on all of 0,4, so no CPU is left for the host \
         only",
    );
}

#[test]
fn texts_that_are_no_plan() {
    let written = "`pinfold plan --json` writes a plan";
    check("", "the text is not JSON: EOF while parsing a value at line 1 column 0", written);
    check("{}", "the format is missing, not \"pinfold-plan/1\"", written);
    check("[]", "the format is missing, not \"pinfold-plan/1\"", written);
    check(
        "{\"format\": \"pinfold-plan/9\", \"new\": 1}",
        "the format is \"pinfold-plan/9\", not \"pinfold-plan/1\"",
        "another version of Pinfold wrote it; create a new plan",
    );
    let missing = from_json("{\"format\": \"pinfold-plan/1\"}").unwrap_err();
    assert!(missing.to_string().contains("missing field `strategy`"), "{missing}");
    refused(
        "\"strategy\": \"low-latency\"",
        "\"strategy\": \"low-latency\", \"strategy\": \"none\"",
        "plan: duplicate field `strategy` at line 3 column 39",
    );
}

fn check(text: &str, error: &str, hint: &str) {
    let found = from_json(text).unwrap_err();
    assert_eq!(found.to_string(), error);
    assert_eq!(found.hint().unwrap_or_default(), hint);
}

/// A text in a plan cannot imitate other lines of Pinfold's output.
#[test]
fn a_line_break_in_a_plan_makes_no_line() {
    fn refused(name: &str, change: &dyn Fn(&mut serde_json::Value)) {
        let mut value: serde_json::Value = serde_json::from_str(GOLDEN).unwrap();
        change(&mut value);
        let error = from_json(&value.to_string()).unwrap_err().to_string();
        assert!(error.starts_with(name), "{error}");
        assert!(error.contains("x\\u000ano placement is active"), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }

    let bad = "x\nno placement is active";
    refused("strategy: ", &|plan| plan["strategy"] = bad.into());
    refused("fingerprint: ", &|plan| plan["fingerprint"] = bad.into());
    refused("vnodes[0].threads[0].role: ", &|plan| {
        plan["vnodes"][0]["threads"][0]["role"] = format!("iothread({bad})").into();
    });
    refused("x\\u000ano", &|plan| plan[bad] = 1.into());
    let mut value: serde_json::Value = serde_json::from_str(GOLDEN).unwrap();
    value["vnodes"][0]["threads"][0]["reason"] = bad.into();
    let plan = from_json(&value.to_string()).unwrap();
    assert_eq!(plan.vnodes[0].threads[0].reason, "x\\u000ano placement is active");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, ..ProptestConfig::default() })]

    #[test]
    fn plan_to_text_to_plan_is_the_identity(layout in any_plan()) {
        let line = to_json_line(&layout);
        prop_assert!(!line.contains('\n'));
        prop_assert_eq!(from_json(&line), Ok(layout.clone()));
        prop_assert_eq!(from_json(&to_json(&layout)), Ok(layout));
    }

    #[test]
    fn no_text_panics(text in "\\PC{0,64}", cut in 0_usize..4000) {
        let broken: String = GOLDEN.chars().take(cut).chain(text.chars()).collect();
        prop_assert!(from_json(&text).is_err());
        prop_assert!(from_json(&broken).is_err() || cut >= GOLDEN.chars().count());
    }
}
