//! Boot parameters on the hosts of `fixtures/hosts`: CPUs that may come online later, and what a
//! host boots with already.

use pinfold_emit::{cmdline, tuned_profile};
use pinfold_model::{IsolationScope, Plan, Request, Topology, VcpuCount};
use pinfold_plan::{explain, plan};

fn host(name: &str) -> Topology {
    pinfold_samples::read(name.to_owned()).1
}

fn make_plan(strategy: &str, vcpus: u32, topology: &Topology) -> Plan {
    let request = Request::vm("vm", VcpuCount::Exactly(vcpus));
    let request = Request { isolation: IsolationScope::Host, ..request };
    plan(strategy, topology, &request).expect("a plan")
}

/// The line of parameters, the only one that is no comment.
fn line(text: &str) -> &str {
    let found = text.lines().find(|line| !line.is_empty() && !line.starts_with('#'));
    found.expect("a line of parameters")
}

/// A sibling of a vCPU's core that is offline now is isolated before it comes online.
#[test]
fn siblings_that_are_offline_are_isolated_from_boot_on() {
    let topology = host("half-offline-smt.capture");
    let layout = make_plan("realtime", 3, &topology);
    assert_eq!(
        (layout.exclusive.to_string(), topology.offline.to_string().as_str()),
        ("1-3,6".to_owned(), "5,7")
    );
    let text = cmdline(&layout, &topology);
    let all = "1-3,5-7";
    let expected = format!(
        "isolcpus=managed_irq,domain,{all} nohz_full={all} rcu_nocbs={all} irqaffinity=0,4"
    );
    assert_eq!(line(&text), expected);
    assert!(
        text.contains("# CPUs 5,7 are offline, and the kernel does not show their cores"),
        "{text}"
    );
    let hint = layout.findings.iter().find(|finding| finding.subject == "isolcpus");
    let hint = hint.and_then(|finding| finding.hint.clone()).expect("a hint");
    assert_eq!(hint, format!("boot with {expected}"));
    let profile = tuned_profile(&layout, &topology);
    assert!(profile.contains("isolated_cores=1-3,6\n"), "{profile}");
    assert!(profile.contains("# CPUs 5,7 are offline"), "{profile}");
    // Core 2 has both threads: no offline CPU is a sibling of its vCPU.
    let request = Request::vm("vm", VcpuCount::Exactly(1));
    let pins = pinfold_config::requests::pins("vcpu0=2").expect("a pin");
    let mut request = Request { isolation: IsolationScope::Host, ..request };
    request.vnodes[0].pins.extend(pins);
    let layout = plan("realtime", &topology, &request).expect("a plan");
    let text = cmdline(&layout, &topology);
    assert!(line(&text).starts_with("isolcpus=managed_irq,domain,2,6 "), "{text}");
    assert!(!text.contains("offline"), "{text}");
}

/// Parameters that the host boots with already are replaced, not written twice.
#[test]
fn parameters_that_are_there_are_replaced_or_left() {
    let topology = host("isolated-realtime.capture");
    let text = cmdline(&make_plan("realtime", 4, &topology), &topology);
    let list = "4-7,12-15";
    let said: Vec<&str> = text.lines().filter(|line| line.starts_with("#   ")).take(4).collect();
    let expected = [
        // The order of flags is nothing.
        format!("#   isolcpus=managed_irq,domain,{list}: already there"),
        format!("#   nohz_full={list}: already there"),
        format!("#   append rcu_nocbs={list}"),
        "#   append irqaffinity=0-3,8-11".to_owned(),
    ];
    assert_eq!(said, expected, "{text}");
    let text = cmdline(&make_plan("realtime", 2, &topology), &topology);
    let list = "4-5,12-13";
    for said in [
        &format!(
            "#   replace isolcpus=domain,managed_irq,4-7,12-15 with\n#     isolcpus=managed_irq,domain,{list}\n"
        ),
        &format!("#   replace nohz_full=4-7,12-15 with nohz_full={list}\n"),
        "# CPUs 6-7,14-15 are isolated now, but not by these parameters: add them if",
    ] {
        assert!(text.contains(said), "{said} is not in\n{text}");
    }
    assert!(!text.contains("append to"), "{text}");
    let mut booted = topology.clone();
    booted.boot_parameters = line(&text).split(' ').map(str::to_owned).collect();
    let text = cmdline(&make_plan("realtime", 2, &topology), &booted);
    assert!(text.contains("already boots with all of these parameters"), "{text}");
    let profile = tuned_profile(&make_plan("realtime", 2, &topology), &topology);
    assert!(
        profile.contains("boots with isolcpus=domain,managed_irq,4-7,12-15 nohz_full="),
        "{profile}"
    );
}

/// Each core is the host's, the plan's, or named as unused.
#[test]
fn the_cores_of_an_explanation_add_up() {
    let isolated = text("isolated-realtime.capture", "realtime", 2);
    let line = "2 cores (CPUs 6-7,14-15) stay unused: they are isolated";
    assert!(
        isolated.contains("the host's tasks have 4 of 8 cores") && isolated.contains(line),
        "{isolated}"
    );
    let offline = text("half-offline-smt.capture", "realtime", 3);
    assert!(offline.contains("CPUs 5,7 are offline: the kernel does not report"), "{offline}");
    for (name, topology) in &pinfold_samples::hosts() {
        let request = Request::vm("vm", VcpuCount::Exactly(1));
        let Ok(layout) = plan("realtime", topology, &request) else { continue };
        let taken = layout.pus().union(&layout.exclusive).union(&layout.housekeeping);
        let unused = topology.cores.iter().any(|core| core.pus.is_disjoint(&taken));
        let text = explain(&layout, topology, 200);
        assert_eq!(text.contains("unused: "), unused, "{name}: {text}");
    }
}

fn text(name: &str, strategy: &str, vcpus: u32) -> String {
    let topology = host(name);
    explain(&make_plan(strategy, vcpus, &topology), &topology, 200)
}

/// The kernel parameters of a real-time plan isolate whole cores of its vCPUs under any isolation
/// scope, and all texts that name them agree.
#[test]
fn parameters_of_a_real_time_plan_are_the_same_under_any_scope() {
    let check = |name: &str, request: &Request, (kept, host_has): (&str, &str)| {
        let topology = host(name);
        for isolation in [IsolationScope::None, IsolationScope::Own, IsolationScope::Host] {
            let request = Request { isolation, ..request.clone() };
            let layout = plan("realtime", &topology, &request).expect("a plan");
            let text = cmdline(&layout, &topology);
            let case = format!("{name}, {isolation}:\n{text}");
            assert!(
                line(&text).starts_with(&format!("isolcpus=managed_irq,domain,{kept} ")),
                "{case}"
            );
            assert!(line(&text).contains(&format!(" irqaffinity={host_has}")), "{case}");
            let profile = tuned_profile(&layout, &topology);
            assert!(profile.contains(&format!("isolated_cores={kept}\n")), "{case}{profile}");
            assert!(profile.contains(&format!("irqaffinity={host_has}\n")), "{case}{profile}");
            let note = layout.findings.iter().find(|finding| finding.subject == "isolcpus");
            let hint = note.and_then(|finding| finding.hint.clone());
            assert!(hint.is_none_or(|hint| hint.contains(line(&text))), "{case}");
        }
    };
    check("isolated-realtime.capture", &exact_request(4), ("4-7,12-15", "0-3,8-11"));
    check("isolated-realtime.capture", &Request::vm("vm", VcpuCount::Auto), ("1-7,9-15", "0,8"));
    let mut by_hand = exact_request(2);
    by_hand.vnodes[0].pins = pinfold_config::requests::pins("vcpu0=1").expect("a pin");
    check("isolated-realtime.capture", &by_hand, ("1,4,9,12", "0,2-3,8,10-11"));
    by_hand.vnodes[0].pins = pinfold_config::requests::pins("vcpu0=9").expect("a pin");
    check("isolated-realtime.capture", &by_hand, ("1,4,9,12", "0,2-3,8,10-11"));
    check("e5-2670-dual.synthetic", &exact_request(4), ("8-11,24-27", "0-7,12-23,28-31"));
    for strategy in ["low-latency-rt", "low-latency"] {
        let topology = host("isolated-realtime.capture");
        let layout = plan(strategy, &topology, &exact_request(2)).expect("a plan");
        let text = cmdline(&layout, &topology);
        assert!(line(&text).starts_with("isolcpus=managed_irq,domain,4-5,12-13 "), "{text}");
    }
}

fn exact_request(count: u32) -> Request {
    Request::vm("vm", VcpuCount::Exactly(count))
}

/// Where a plan keeps no CPU from the host, the text names the command for one that does.
#[test]
fn a_plan_that_shares_all_names_the_command_that_isolates() {
    let topology = host("e5-2670-dual.synthetic");
    let request = Request::vm("vm", VcpuCount::Exactly(4));
    for (strategy, better) in
        [("low-latency", "low-latency"), ("balanced", "balanced"), ("compact", "low-latency")]
    {
        let layout = plan(strategy, &topology, &request).expect("a plan");
        let texts = [
            ("cmdline", cmdline(&layout, &topology)),
            ("tuned", tuned_profile(&layout, &topology)),
        ];
        for (format, text) in texts {
            let command = format!(
                "pinfold plan --strategy {better} --vcpus 4 --isolate host --emit {format}"
            );
            assert_eq!(wide(&text), Vec::<&str>::new());
            let text: String = text.replace(" \\\n", "\n").replace('#', " ");
            let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(text.contains(&command), "{command} is not in\n{text}");
            assert!(text.contains("add `--isolate host`") == (strategy == better), "{text}");
        }
        let layout = make_plan(better, 4, &topology);
        assert!(line(&cmdline(&layout, &topology)).starts_with("isolcpus="));
    }
}

/// Comments that are wider than 80 columns, but for those of one word and lines of a command, whose
/// arguments stay whole.
fn wide(text: &str) -> Vec<&str> {
    let comments = text.lines().filter(|line| line.starts_with('#'));
    let wide = comments.filter(|line| line.chars().count() > 80);
    wide.filter(|line| !is_command(line) && !is_word(line)).collect()
}

fn is_command(line: &str) -> bool {
    line.starts_with("#   --") || line.starts_with("# pinfold ")
}

fn is_word(line: &str) -> bool {
    line.split_whitespace().count() == 2
}

/// Comments have at most 80 columns; the parameters are one line.
#[test]
fn comments_of_the_command_line_are_wrapped() {
    for name in ["isolated-realtime.capture", "half-offline-smt.capture", "e5-2670-dual.synthetic"]
    {
        let topology = host(name);
        for strategy in ["realtime", "low-latency", "balanced", "compact", "none"] {
            for vcpus in [2, 3] {
                let text = cmdline(&make_plan(strategy, vcpus, &topology), &topology);
                assert_eq!(wide(&text), Vec::<&str>::new(), "{name}, {strategy}");
                let others = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
                assert!(others.count() <= 1, "{text}");
            }
        }
    }
}
