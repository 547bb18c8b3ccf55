//! Process groups under every strategy on the hosts of `fixtures/hosts`: CPUs or a refusal, in the
//! words of process groups.

use std::collections::BTreeSet;

use pinfold_emit::cmdline;
use pinfold_lint::{lint, render};
use pinfold_model::{IsolationScope, Request, Speed, Topology, VnodeRequest};
use pinfold_plan::layout::Layout;
use pinfold_plan::{explain, plan, strategies};

fn groups(sizes: &[u32]) -> Request {
    let request = Request::from_vnodes(
        sizes
            .iter()
            .enumerate()
            .map(|(place, size)| VnodeRequest::processes(&format!("g{place}"), *size, Speed::FULL))
            .collect(),
    );
    Request { isolation: IsolationScope::Host, ..request }
}

/// What is said of a plan, or why there is none.
fn explain_strategy(strategy: &str, topology: &Topology, request: &Request) -> String {
    match plan(strategy, topology, request) {
        Ok(layout) => {
            let emitted = cmdline(&layout, topology);
            // The first sentence may be folded.
            let unfolded = emitted.replacen("\n# ", " ", 1);
            let first = unfolded.lines().next();
            assert!(first.is_some_and(|line| line.contains("tasks on ")), "{emitted}");
            let layouts = Layout::of_plan(&layout, "plan.json");
            let diagnostics = lint(&layouts, topology);
            let checked = render(&layouts, &diagnostics, topology, 100_000);
            let text = explain(&layout, topology, 100_000);
            let text = text
                .lines()
                .filter(|line: &&str| !line.contains("this host is itself"))
                .collect::<Vec<_>>()
                .join("\n");
            format!("{text}\n{checked}")
        }
        Err(error) => format!("{error}\n{}", error.hint().unwrap_or_default()),
    }
}

#[test]
fn no_text_mentions_virtual_machines() {
    let mut found = BTreeSet::new();
    for (_, topology) in &pinfold_samples::hosts() {
        let cpus = u32::try_from(topology.online().len()).expect("a count");
        if cpus > 256 {
            continue;
        }
        for strategy in strategies() {
            for sizes in [&[1][..], &[2, 1], &[cpus + 1]] {
                let text = explain_strategy(strategy.name, topology, &groups(sizes));
                found.extend(
                    text.lines()
                        .filter(|line| {
                            ["vCPU", "virtual machine", "guest"]
                                .iter()
                                .any(|word| line.contains(word))
                        })
                        .map(|line| format!("{}: {line}", strategy.name)),
                );
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// A group that asks for more CPUs than there are is refused, or it is said what it gets.
#[test]
fn no_group_gets_fewer_cpus_in_silence() {
    for (name, topology) in &pinfold_samples::hosts() {
        let cpus = u32::try_from(topology.online().len()).expect("a count");
        let too_many = cpus + 1;
        for strategy in strategies().iter().filter(|_| too_many <= 4096) {
            let at = format!("{}, {name}", strategy.name);
            match plan(strategy.name, topology, &groups(&[too_many])) {
                Ok(layout) => {
                    assert_ne!(strategy.name, "auto", "{name}");
                    let found = layout.findings.iter().find(|one| one.subject == "fewer CPUs");
                    let text = found.map(ToString::to_string).unwrap_or_default();
                    assert!(text.contains(&format!("requests {too_many} cores")), "{at}: {text}");
                }
                Err(error) => {
                    let text = error.to_string();
                    assert!(
                        text.contains(&format!("asks for {too_many}"))
                            || text.contains("cannot use"),
                        "{at}: {text}"
                    );
                    let hint = error.hint().unwrap_or_default();
                    assert!(!hint.contains("which gives"), "{at}: {hint}");
                }
            }
        }
    }
}
