//! What Pinfold emits for libvirt passes Pinfold's own check, and so does the plan: every strategy
//! on every host of `fixtures/hosts`, as a fragment and merged into files that people keep.

#![expect(clippy::expect_used, reason = "a test that cannot go on fails")]
#![expect(clippy::print_stderr, reason = "the counts are for the reader")]

mod common;

use std::collections::BTreeMap;

use pinfold_model::{
    IsolationScope, MemoryRequest, Plan, Request, Severity, Topology, VcpuCount, VmRequest,
    VnodeRequest,
};
use pinfold_plan::domain_file::Domain;
use pinfold_plan::emit::{libvirt, libvirt_into};
use pinfold_plan::review::{Flaw, Layout, review};
use pinfold_plan::{plan, strategies};

use common::hosts;

/// More PUs than this make one plan of all of them take longer than it tells.
const LARGE: usize = 200;

/// What the check may warn of because the plan says it too: a cost of that placement on that host.
const SAID: &[(&str, &str)] = &[
    ("vcpus-share-pu", "oversubscription"),
    ("guest-siblings-hidden", "guest topology"),
    ("guest-siblings-hidden", "oversubscription"),
    ("guest-siblings-lie", "oversubscription"),
    ("mixed-cores", "oversubscription"),
    ("mixed-cores", "core kinds"),
    ("mask-on-isolated", "isolated PUs"),
    ("emulator-on-vcpu", "emulator"),
    ("iothread-on-vcpu", "emulator"),
    ("no-housekeeping", "host"),
    ("l3-crossed", "L3"),
];

/// Outcomes by name: `clean`, or the warnings that the plan says too.
#[derive(Default)]
struct Counts {
    clean: usize,
    said: BTreeMap<&'static str, usize>,
    refused: usize,
    /// Warnings that the plan does not say.
    unsaid: Vec<String>,
}

impl Counts {
    fn files(&self) -> usize {
        self.clean + self.said.values().sum::<usize>()
    }

    /// Counts one review.
    fn take(&mut self, case: &str, layout: &Plan, flaws: &[Flaw]) {
        let mut first = None;
        for flaw in flaws.iter().filter(|flaw| flaw.severity >= Severity::Warning) {
            let said = SAID.iter().any(|(name, subject)| {
                *name == flaw.name && layout.findings.iter().any(|it| it.subject == *subject)
            });
            if !said {
                self.unsaid.push(format!("{case}: {}: {}", flaw.name, flaw.what));
            }
            first.get_or_insert(flaw.name);
        }
        match first {
            None => self.clean += 1,
            Some(name) => *self.said.entry(name).or_default() += 1,
        }
    }

    fn tell(&self, what: &str) {
        let (files, clean, refused) = (self.files(), self.clean, self.refused);
        eprintln!(
            "{what}: {clean} of {files} without a warning, {refused} refused, {:?}",
            self.said
        );
        let (count, shown) = (self.unsaid.len(), self.unsaid.iter().take(20).collect::<Vec<_>>());
        assert!(shown.is_empty(), "{count} warnings that the plan does not say: {shown:#?}");
    }
}

fn placers() -> impl Iterator<Item = &'static str> {
    strategies().iter().map(|known| known.name).filter(|name| *name != "vnodes")
}

fn request(vm: VmRequest, memory: Option<u64>, isolation: IsolationScope) -> Request {
    let mut vnode = VnodeRequest::vm("vm", vm);
    vnode.memory = memory.map(|bytes| MemoryRequest { bytes, page_bytes: None });
    Request { isolation, ..Request::of(vec![vnode]) }
}

fn reviewed(text: &str, topology: &Topology) -> Vec<Flaw> {
    let domain = Domain::read(text).expect("what is emitted can be read");
    review(&[Layout::of_domain(&domain, "emitted")], topology)
}

#[test]
fn what_is_emitted_passes_the_check_and_so_does_the_plan() {
    let (mut files, mut plans) = (Counts::default(), Counts::default());
    for (name, topology) in &hosts() {
        let half = u32::try_from(topology.pus.len() / 2).unwrap_or(u32::MAX).clamp(1, 64);
        let mut counts = vec![VcpuCount::Exactly(2), VcpuCount::Exactly(half)];
        if topology.pus.len() <= LARGE {
            counts.push(VcpuCount::Auto);
        }
        for strategy in placers() {
            for vcpus in &counts {
                for option in 0_u32..8 {
                    let scope = [IsolationScope::None, IsolationScope::Host][(option & 1) as usize];
                    let iothreads = if option & 2 == 0 { vec![] } else { vec!["io".to_owned()] };
                    let memory = (option & 4 != 0).then_some(256 << 20);
                    let vm = VmRequest { iothreads, ..VmRequest::of(*vcpus) };
                    let case = format!("{name}, {strategy}, {vcpus:?}, option {option}");
                    let Ok(layout) = plan(strategy, topology, &request(vm, memory, scope)) else {
                        files.refused += 1;
                        continue;
                    };
                    plans.take(
                        &case,
                        &layout,
                        &review(&Layout::of_plan(&layout, "plan"), topology),
                    );
                    let fragment = libvirt(&layout, topology).expect("one machine");
                    let text = format!("<domain type='kvm'>\n<name>vm</name>\n{fragment}</domain>");
                    files.take(&case, &layout, &reviewed(&text, topology));
                }
            }
        }
    }
    plans.tell("plans");
    files.tell("fragments");
    assert!(files.clean > 5_000 && files.clean * 10 > files.files() * 7, "{}", files.clean);
}

/// Files that people keep, with what of them a plan has to respect.
const FILES: &[(&str, &str)] = &[
    ("plain", include_str!("domains/plain.xml")),
    ("numatune-node0", include_str!("domains/numatune-node0.xml")),
    ("cells", include_str!("domains/cells.xml")),
    ("cells-swapped", include_str!("domains/cells-swapped.xml")),
    ("current", include_str!("domains/current.xml")),
    ("no-cpu", include_str!("domains/no-cpu.xml")),
    ("numad", include_str!("domains/numad.xml")),
    ("iothreads", include_str!("domains/iothreads.xml")),
];

/// All memory of a host in bytes.
fn memory_of(topology: &Topology) -> u64 {
    topology.nodes.iter().map(|node| node.memory_bytes).sum()
}

#[test]
fn a_merged_file_passes_the_check() {
    let mut counts = Counts::default();
    for (name, topology) in &hosts() {
        for (file, xml) in FILES {
            let domain = Domain::read(xml).expect("a domain file");
            for strategy in placers() {
                let case = format!("{file} on {name}, {strategy}");
                let memory = domain.memory_request(topology).map(|memory| memory.bytes);
                let asked = request(domain.request(topology), memory, IsolationScope::None);
                let Ok(layout) = plan(strategy, topology, &asked) else {
                    counts.refused += 1;
                    continue;
                };
                let vnode = layout.single().expect("one machine");
                let merged = libvirt_into(xml, (&layout, vnode), topology);
                let merged = match merged {
                    Ok(merged) => merged,
                    Err(error) if domain.memory_bytes > Some(memory_of(topology)) => {
                        assert!(error.why.contains("this host has"), "{case}: {error}");
                        counts.refused += 1;
                        continue;
                    }
                    Err(error) => panic!("{case}: {error}"),
                };
                counts.take(&case, &layout, &reviewed(&merged.text, topology));
                let again = libvirt_into(&merged.text, (&layout, vnode), topology);
                assert_eq!(again.map(|again| again.text), Ok(merged.text), "{case}: twice");
            }
        }
    }
    counts.tell("merges");
    assert!(counts.clean > 1_500 && counts.clean * 10 > counts.files() * 7, "{}", counts.clean);
}
