//! Requests that get no plan, and the suggested alternatives.

use pinfold_model::{Request, VcpuCount};
use pinfold_samples::machine::{Machine, dual_x5540, i7_4790k, plain};
use pinfold_samples::{auto, exactly, set};

use crate::{PlanError, plan, strategies};

#[track_caller]
fn check(machine: Machine, strategy: &str, request: &Request, text: &str, hint: &str) -> PlanError {
    let error = plan(strategy, &machine.build(), request).unwrap_err();
    assert_eq!(error.to_string(), text);
    assert_eq!(error.hint().unwrap_or_default(), hint);
    error
}

#[test]
fn names_that_no_strategy_has() {
    check(
        plain(4),
        "low_latency",
        &auto(),
        "there is no strategy named \"low_latency\"",
        "did you mean low-latency? `pinfold plan --list` shows all strategies",
    );
    check(
        plain(4),
        "fast",
        &auto(),
        "there is no strategy named \"fast\"",
        "`pinfold plan --list` shows all strategies",
    );
}

#[test]
fn numbers_of_vcpus_that_cannot_be_had() {
    let error = check(
        i7_4790k(),
        "low-latency",
        &exactly(6),
        "low-latency gives at most 3 vCPUs on this host, the request asks for 6: each vCPU needs a \
         core of its own, and core 0 stays with the host",
        "request at most 3 vCPUs, or use the strategy balanced, which gives 6",
    );
    assert!(matches!(error, PlanError::TooManyVcpus { asked: 6, most: 3, .. }));
    check(
        i7_4790k(),
        "balanced",
        &exactly(8),
        "balanced gives at most 6 vCPUs on this host, the request asks for 8: each vCPU needs a \
         CPU of its own, and core 0 stays with the host",
        "request at most 6 vCPUs, or use the strategy max-performance, which gives 8",
    );
    check(
        i7_4790k(),
        "max-performance",
        &exactly(9),
        "max-performance gives at most 8 vCPUs on this host, the request asks for 9: the guest \
         mirrors the host, one vCPU for each CPU that may be used",
        "request at most 8 vCPUs, or use the strategy none, which gives 9",
    );
    check(
        i7_4790k(),
        "none",
        &exactly(u32::MAX),
        "none gives at most 4096 vCPUs on this host, the request asks for 4294967295: no \
         hypervisor on Linux runs a virtual machine with more",
        "request at most 4096 vCPUs",
    );
    check(
        i7_4790k(),
        "compact",
        &exactly(0),
        "\"vm\" has no vCPUs; it needs at least one",
        "request one or more vCPUs, or auto",
    );
}

/// vCPUs that must share CPUs run better unpinned, as `auto` says.
#[test]
fn more_vcpus_than_cpus_are_not_sent_to_a_strategy_that_pins() {
    for strategy in ["numa-exclusive", "low-latency", "balanced", "max-performance"] {
        let error = plan(strategy, &dual_x5540().build(), &exactly(18)).unwrap_err();
        let hint = error.hint().unwrap();
        assert!(hint.ends_with("or use the strategy none, which gives 18"), "{strategy}: {hint}");
    }
    let auto = plan("auto", &dual_x5540().build(), &exactly(18)).unwrap();
    assert_eq!(auto.strategy, "none");
}

#[test]
fn hosts_that_are_too_small() {
    for (machine, pus) in [(plain(1), "CPU 0"), (i7_4790k().allowed("0,4"), "the CPUs 0,4")] {
        check(
            machine.clone(),
            "low-latency",
            &auto(),
            &format!(
                "low-latency cannot use {pus} of this host: each vCPU needs a core of its \
                 own, and core 0 stays with the host"
            ),
            "use max-performance, which works on these CPUs",
        );
        let error = plan("balanced", &machine.build(), &exactly(1)).unwrap_err();
        assert!(matches!(error, PlanError::TooFewPus { .. }), "{error}");
        assert!(plan("none", &machine.build(), &auto()).is_ok());
        assert!(plan("max-performance", &machine.build(), &auto()).is_ok());
    }
}

#[test]
fn hosts_of_which_nothing_is_left() {
    let avoiding = Request { avoid: set("0-3"), ..auto() };
    for strategy in strategies() {
        check(
            plain(4),
            strategy.name,
            &avoiding,
            "no CPU is available for the plan: the cpuset of this process allows 0-3, and the \
             request avoids 0-3",
            "avoid fewer CPUs, or start Pinfold in a cgroup with a wider cpuset",
        );
        check(
            plain(4).isolated("1-3").allowed("1-3"),
            strategy.name,
            &auto(),
            "all available CPUs (1-3) are isolated, so none is left for the host's own tasks",
            "leave at least one CPU out of `isolcpus=`, of isolated partitions and of the avoided \
             CPUs",
        );
    }
}

#[test]
fn iothread_ids_that_cannot_be_used() {
    fn check(ids: &[&str], why: &str) {
        let mut request = Request::vm("vm", VcpuCount::Auto);
        *pinfold_samples::iothreads(&mut request) =
            ids.iter().copied().map(str::to_owned).collect();
        let error = plan("none", &plain(2).build(), &request).unwrap_err();
        assert!(error.to_string().ends_with(why), "{error}");
    }

    check(&[""], "it is empty");
    check(&["a", "b", "a"], "it is given twice");
    check(&["a\nb"], "it contains a control character");
}
