//! Platforms on the hosts of `fixtures/hosts`: the paper's Fig. 2 as a golden file, and what holds
//! for random platforms.
//!
//! `PINFOLD_BLESS=1` rewrites the golden file; read the difference before it is committed.

use std::cell::Cell;
use std::fmt::Write as _;

use pinfold_config::platforms;
use pinfold_host::files;
use pinfold_model::{
    CpuSet, EmulationPlan, Method, NodeId, Platform, PlatformVnode, Speed, SpeedRequest, Topology,
    Variant,
};
use pinfold_plan::{resolve_platform, validate};
use pinfold_samples::hosts;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/examples/buchert-fig2.toml");
const LAYOUT: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/hosts/l5420-dual.platform");

fn host(name: &str) -> Topology {
    let found = hosts().into_iter().find(|(file, _)| file.starts_with(name));
    found.expect("a host of fixtures/hosts").1
}

fn lines(plan: &EmulationPlan) -> String {
    let mut text = String::new();
    for vnode in &plan.vnodes {
        let pus: Vec<String> =
            vnode.pus.iter().map(|(pu, speed)| format!("{pu} at {speed}")).collect();
        let last = if vnode.on_last_housekeeping { ", with the host's own tasks" } else { "" };
        writeln!(text, "{}: {}{last}", vnode.name, pus.join(", ")).expect("a string");
    }
    writeln!(text, "host {}", plan.plan.housekeeping).expect("a string");
    for finding in &plan.plan.findings {
        writeln!(text, "{}: {}", finding.subject, finding.text).expect("a string");
    }
    text
}

/// Buchert 2011 Fig. 2 on two L5420, eight cores that change frequency two by two.
#[test]
fn buchert_figure_2() {
    let platform = platforms::from_toml(&files::read_text(EXAMPLE).expect("the example"));
    let plan = resolve_platform(&platform.expect("a platform"), &host("l5420-dual"));
    let text = lines(&plan.expect("a place for each"));
    if std::env::var_os("PINFOLD_BLESS").is_some() {
        files::write_atomic(LAYOUT, text.as_bytes()).expect("the file can be written");
    }
    let there = files::read_text(LAYOUT).unwrap_or_default();
    assert!(there == text, "{LAYOUT} is not what there is: cargo xtask golden, then read\n{text}");
}

/// Hosts of different shapes; the largest would only take long.
fn some_hosts() -> Vec<(String, Topology)> {
    let names = [
        "l5420-dual",
        "x5570-dual",
        "i5-12600k",
        "i7-4790k",
        "snc2",
        "one-pu",
        "vm-2pu",
        "no-smt-arm-server",
        "isolated-realtime",
        "half-offline-smt",
        "cxl-memory",
        "ls2080",
    ];
    let all = hosts().into_iter();
    let some: Vec<_> =
        all.filter(|(file, _)| names.iter().any(|name| file.starts_with(name))).collect();
    assert!(some.len() >= names.len(), "{} hosts", some.len());
    some
}

fn any_wish() -> impl Strategy<Value = SpeedRequest> {
    let share = (1_u32..=1_000_000)
        .prop_map(|share| SpeedRequest::Share(Speed::from_millionths(share).expect("a speed")));
    let frequency =
        (1_u64..40).prop_map(|tenths| SpeedRequest::Frequency { hertz: tenths * 100_000_000 });
    prop_oneof![8 => share, 1 => frequency]
}

fn any_vnode() -> impl Strategy<Value = PlatformVnode> {
    let methods = prop::option::of(prop::sample::select(Method::ALL.to_vec()));
    let speeds = (1_usize..5, prop::bool::ANY, prop::collection::vec(any_wish(), 5));
    (speeds, methods, prop::option::weighted(0.2, 0_u32..3)).prop_map(
        |((cores, each, speeds), method, node)| PlatformVnode {
            like: None,
            name: String::new(),
            cores: u32::try_from(cores).expect("few"),
            speeds: speeds.into_iter().take(if each { cores } else { 1 }).collect(),
            memory_node: node.map(NodeId),
            method,
            variant: Variant::Corrected,
            period_ns: None,
            calibrate: false,
            attach: None,
            profile: None,
            disk: None,
        },
    )
}

fn any_platform() -> impl Strategy<Value = Platform> {
    (prop::collection::vec(any_vnode(), 1..5), any::<bool>()).prop_map(
        |(mut vnodes, share_housekeeping)| {
            for (place, vnode) in vnodes.iter_mut().enumerate() {
                vnode.name = format!("v{place}");
            }
            Platform { vnodes, share_housekeeping, avoid: CpuSet::new() }
        },
    )
}

fn keeps_the_rules(
    platform: &Platform,
    plan: &EmulationPlan,
    topology: &Topology,
) -> Result<(), TestCaseError> {
    prop_assert_eq!(validate(&plan.plan, topology), vec![]);
    prop_assert!(!plan.plan.housekeeping.is_empty());
    prop_assert_eq!(plan.vnodes.len(), platform.vnodes.len());
    let mut taken = CpuSet::new();
    for (asked, vnode) in platform.vnodes.iter().zip(&plan.vnodes) {
        let cpus = vnode.cpus();
        prop_assert_eq!((&vnode.name, cpus.len()), (&asked.name, asked.cores as usize));
        prop_assert_eq!(cpus.len(), vnode.pus.len(), "a CPU twice");
        prop_assert!(vnode.pus.is_sorted_by_key(|(pu, _)| *pu));
        prop_assert!(cpus.is_disjoint(&taken) && cpus.is_subset(&topology.allowed));
        taken.add(&cpus);
        for (place, (pu, speed)) in vnode.pus.iter().enumerate() {
            match asked.speeds.get(place).unwrap_or(&asked.speeds[0]) {
                SpeedRequest::Share(wanted) => prop_assert_eq!(wanted, speed),
                SpeedRequest::Frequency { hertz } => {
                    let highest = topology.highest_khz[pu] * 1000;
                    let given = u64::from(speed.millionths()) * (highest / 1_000_000);
                    prop_assert!(given.abs_diff(*hertz) <= highest / 1_000_000, "{given} {hertz}");
                }
            }
        }
    }
    for vnode in &plan.vnodes {
        let free = plan.plan.housekeeping.difference(&taken);
        let shares = !plan.plan.housekeeping.is_disjoint(&vnode.cpus());
        prop_assert_eq!(vnode.on_last_housekeeping, free.is_empty() && shares);
        let burns = vnode.method.is_some_and(Method::burns_in_real_time);
        prop_assert!(!burns || !vnode.on_last_housekeeping || platform.share_housekeeping);
    }
    for domain in &topology.frequency_domains {
        let inside: Vec<_> = plan
            .vnodes
            .iter()
            .flat_map(|vnode| vnode.pus.iter().map(move |(pu, speed)| (pu, speed, vnode.method)))
            .filter(|(pu, _, _)| domain.contains(**pu))
            .collect();
        if inside.iter().any(|(_, _, method)| sets(*method)) {
            prop_assert!(inside.iter().all(|(_, _, method)| sets(*method)));
            prop_assert!(inside.iter().all(|(_, speed, _)| *speed == inside[0].1));
        }
    }
    Ok(())
}

fn sets(method: Option<Method>) -> bool {
    method.is_some_and(Method::sets_frequency)
}

/// Every platform has one place on a host or a reason why not, and many have one.
#[test]
fn the_same_platform_has_the_same_place() {
    let hosts = some_hosts();
    let placed = Cell::new(0_usize);
    let tried = Cell::new(0_usize);
    let checked = TestRunner::deterministic().run(&any_platform(), |platform| {
        for (name, topology) in &hosts {
            let plan = resolve_platform(&platform, topology);
            prop_assert_eq!(&plan, &resolve_platform(&platform, topology), "{}", name);
            tried.set(tried.get() + 1);
            match plan {
                Ok(plan) => {
                    placed.set(placed.get() + 1);
                    keeps_the_rules(&platform, &plan, topology)?;
                }
                Err(error) => {
                    prop_assert!(error.hint().is_some(), "{}: {}: no way out", name, error);
                }
            }
        }
        Ok(())
    });
    if let Err(broken) = checked {
        panic!("{broken}");
    }
    let (placed, tried) = (placed.get(), tried.get());
    assert!(placed * 10 > tried, "only {placed} of {tried} have a place");
}
