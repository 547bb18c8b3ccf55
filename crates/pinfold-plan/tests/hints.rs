//! Whoever follows a hint of a plan gets a plan without that finding.

#![expect(clippy::expect_used, reason = "a test that cannot go on fails")]

mod common;

use std::mem::discriminant;

use pinfold_model::{MemoryRequest, Plan, Request, Topology, VcpuCount, VmRequest, Work};
use pinfold_plan::{PlanError, plan, strategies};

/// More CPUs than this make the plans take longer than they say.
const LARGE: usize = 130;

fn asked(vcpus: u32, memory: Option<u64>) -> Request {
    let mut request = Request::vm("vm", VcpuCount::Exactly(vcpus));
    request.vnodes[0].memory = memory.map(|bytes| MemoryRequest { bytes, page_bytes: None });
    request
}

fn with_vcpus(request: &Request, vcpus: u32) -> Request {
    let mut request = request.clone();
    request.vnodes[0].work = Work::Vm(VmRequest::of(VcpuCount::Exactly(vcpus)));
    request
}

/// What a hint says to ask for: requests, each with its strategy. Empty for other hints.
fn followed(hint: &str, strategy: &str, request: &Request) -> Vec<(String, Request)> {
    let words: Vec<&str> = hint.split([' ', ',', '`']).filter(|word| !word.is_empty()).collect();
    let number = |word: &str| word.parse::<u32>().ok();
    let own = |vcpus| (strategy.to_owned(), with_vcpus(request, vcpus));
    let other = |name: &str| (name.to_owned(), request.clone());
    match words.as_slice() {
        ["ask", "for", "at", "most", count, unit @ ("GiB" | "MiB"), ..] => {
            let shift = if *unit == "GiB" { 30 } else { 20 };
            let mut less = request.clone();
            let bytes = u64::from(number(count).expect("a number")) << shift;
            less.vnodes[0].memory = Some(MemoryRequest { bytes, page_bytes: None });
            vec![(strategy.to_owned(), less)]
        }
        ["ask", "for", "at", "most", count, "vCPU" | "vCPUs", rest @ ..] => {
            let mut all = vec![own(number(count).expect("a number"))];
            if let ["or", "use", name, ..] = rest {
                all.push(other(name));
            }
            all
        }
        ["ask", "for", count, "vCPU" | "vCPUs"] => vec![own(number(count).expect("a number"))],
        ["ask", "for", fewer, "or", more, "vCPUs"] => {
            [fewer, more].map(|count| own(number(count).expect("a number"))).to_vec()
        }
        ["-s", name, "runs", ..] | [name, "gives", ..] | ["use", name, "which", ..] => {
            vec![other(name)]
        }
        _ => Vec::new(),
    }
}

fn is_without(subject: &str, made: &Result<Plan, PlanError>) -> bool {
    made.as_ref().is_ok_and(|made| made.findings.iter().all(|found| found.subject != subject))
}

/// Follows the hints of one request; how many there were.
fn follow(name: &str, topology: &Topology, (strategy, request): (&str, &Request)) -> usize {
    let mut count = 0;
    let mut check = |what: &str, hint: &str, goes: &dyn Fn(&Result<Plan, PlanError>) -> bool| {
        for (other, request) in followed(hint, strategy, request) {
            count += 1;
            let made = plan(&other, topology, &request);
            assert!(goes(&made), "{name}, {strategy}: {what}: {hint}, {made:?}");
        }
    };
    match plan(strategy, topology, request) {
        Ok(layout) => {
            for finding in &layout.findings {
                let goes = |made: &_| is_without(&finding.subject, made);
                check(&finding.subject, finding.hint.as_deref().unwrap_or(""), &goes);
            }
        }
        // What was refused for two reasons may then be refused for the other one.
        Err(error) => check(&error.to_string(), error.hint().as_deref().unwrap_or(""), &|made| {
            made.as_ref().err().is_none_or(|next| discriminant(next) != discriminant(&error))
        }),
    }
    count
}

#[test]
fn every_hint_leads_to_a_plan_without_its_finding() {
    let mut hints = 0;
    for (name, topology) in common::hosts().iter().filter(|(_, it)| it.pus.len() <= LARGE) {
        let pus = u32::try_from(topology.pus.len()).expect("few CPUs");
        let node = topology.nodes.iter().map(|node| node.memory_bytes).max().unwrap_or(0);
        let large = (node > 0 && topology.nodes.len() > 1).then_some(node / 2 * 3);
        for strategy in strategies().iter().map(|it| it.name).filter(|name| *name != "vnodes") {
            for vcpus in [pus / 4, pus / 2 + 1, pus - 1, pus + 1] {
                for memory in [None, large] {
                    let request = asked(vcpus.max(1), memory);
                    hints += follow(name, topology, (strategy, &request));
                }
            }
        }
    }
    assert!(hints > 500, "{hints}");
}
