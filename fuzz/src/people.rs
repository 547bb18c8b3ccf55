//! Input of users: requests, command-line arguments, plans, domain files.

use std::sync::OnceLock;

use pinfold_config::{platforms, requests};
use pinfold_host::SnapshotHost;
use pinfold_lint::{fix, lint, render};
use pinfold_model::{GuestTopology, Plan, Request, Severity, Topology, VcpuCount};
use pinfold_plan::domain_file::Domain;
use pinfold_plan::layout::Layout;
use pinfold_plan::{explain, resolve_platform, schema, validate};
use pinfold_stats::compare;
use pinfold_study::measured;
use pinfold_study::study::{self, Cells, HostFacts};
use pinfold_vm::libvirt::{HookDomain, Pins};

use crate::text::text;

/// Two packages of two cores of two threads.
fn topology() -> Option<&'static Topology> {
    static TOPOLOGY: OnceLock<Option<Topology>> = OnceLock::new();
    TOPOLOGY
        .get_or_init(|| {
            pinfold_topology::read_input(&SnapshotHost::new(), "numa:2 package:1 l3:1 core:2 pu:2")
                .ok()
        })
        .as_ref()
}

/// Files and command lines of owners of CPUs, and the claims of a capture.
pub(crate) fn claims(bytes: &[u8]) {
    use pinfold_claims::owners::{boot, dpdk, irqbalance, kubelet, libvirt, nova, openvswitch};
    let text = text(bytes);
    drop(kubelet::parse(&text));
    drop(libvirt::parse(&text));
    drop(nova::parse(&text));
    drop(irqbalance::parse(&text));
    drop(openvswitch::parse(&text));
    drop(dpdk::lcores(&text));
    drop(boot::parameter(&text, "isolcpus").map(str::to_owned));
    if let Ok(claims) = pinfold_claims::schema::from_json(&text)
        && let Some(topology) = topology()
    {
        let again = pinfold_claims::schema::to_json(&claims, &topology.online());
        assert_eq!(pinfold_claims::schema::from_json(&again).as_ref(), Ok(&claims));
        drop(pinfold_claims::render::claims(&claims, topology, Some(80)));
    }
}

pub(crate) fn request(bytes: &[u8]) {
    let Ok(request) = requests::from_toml(&text(bytes)) else { return };
    let Some(topology) = topology() else { return };
    for strategy in ["auto", "vnodes"] {
        if let Ok(plan) = pinfold_plan::plan(strategy, topology, &request) {
            look_at(&plan, topology);
        }
    }
}

/// A platform, planned for a host with unknown frequencies and for one with known ones.
pub(crate) fn platform(bytes: &[u8]) {
    let Ok(platform) = platforms::from_toml(&text(bytes)) else { return };
    let Some(topology) = topology() else { return };
    let mut fast = topology.clone();
    fast.highest_khz = (0_u64..).zip(&topology.pus).map(|(n, pu)| (pu.os, 2_000_000 + n)).collect();
    fast.frequency_domains = topology.cores.iter().map(|core| core.pus.clone()).collect();
    for host in [topology, &fast] {
        let Ok(placed) = resolve_platform(&platform, host) else { continue };
        assert_eq!(placed.vnodes.len(), platform.vnodes.len());
        let cores: usize = placed.vnodes.iter().map(|vnode| vnode.pus.len()).sum();
        assert_eq!(placed.plan.pus().len(), cores, "a CPU has two vnodes");
        look_at(&placed.plan, host);
    }
}

/// A study, its cells and its duration on a host with two packages.
pub(crate) fn study(bytes: &[u8]) {
    /// More would only take long.
    const MOST_CELLS: usize = 2_000;
    let Ok(read) = study::from_toml(&text(bytes)) else { return };
    assert!(study::from_toml(&read.text).is_ok());
    let forms = read.presets.keys().map(|name| study::PresetSelection::Preset(name.clone()));
    let presets = forms.filter_map(|form| read.apply_preset(&form).ok());
    let facts = HostFacts { pus: 8, cores: 4, nodes: 2, packages: 2, smt: true, cpufreq: false };
    for study in presets.chain([read.clone()]) {
        let levels: usize = study.factors.iter().map(|factor| factor.levels.len()).product();
        if levels * study.workloads.len() > MOST_CELLS {
            continue;
        }
        let Ok(cells) = Cells::new(&study, &facts) else { continue };
        drop(study::predict(&study, &cells, &facts));
        for cell in &cells.all {
            drop(cell.command_arguments(&study, &|name| Some(format!("<{name}>"))));
        }
    }
}

pub(crate) fn played(bytes: &[u8]) {
    let text = text(bytes);
    if let Ok(profile) = platforms::profile(&text) {
        assert!(profile.changes.is_sorted_by(|one, next| one.at_ns < next.at_ns));
        assert!(!profile.changes.is_empty());
    }
    if let Ok(load) = platforms::load(&text) {
        assert_eq!(platforms::load(&platforms::to_csv(&load)).as_ref(), Ok(&load));
    }
}

pub(crate) fn words(bytes: &[u8]) {
    let text = text(bytes);
    drop(requests::parse_vm_spec(&text));
    drop(requests::parse_group_spec(&text));
    drop(platforms::parse_vnode_spec(&text));
    if let Ok(speed) = platforms::speed(&text) {
        assert_eq!(platforms::speed(&speed.to_string()).as_ref(), Ok(&speed));
    }
    drop(requests::free_share(&text));
    if let Ok(domains) = pinfold_config::domains::Domains::from_toml(&text) {
        let names: Vec<&String> = domains.rows.iter().flat_map(|row| &row.names).collect();
        assert!(names.iter().all(|name| domains.row(name, "") != Ok(None)), "{text}");
    }
    drop(requests::device(&text));
    drop(requests::parse_emulator_request(&text));
    let Some(topology) = topology() else { return };
    let request = Request::vm("vm", VcpuCount::Exactly(2));
    if let Ok(mut plan) = pinfold_plan::plan("low-latency", topology, &request)
        && requests::set_tunable(&mut plan, &text).is_ok()
        && !validate(&plan, topology).iter().any(|one| one.severity == Severity::Problem)
    {
        look_at(&plan, topology);
    }
}

pub(crate) fn plan(bytes: &[u8]) {
    if let Ok(plan) = schema::from_json(&text(bytes))
        && let Some(topology) = topology()
    {
        look_at(&plan, topology);
    }
}

/// The operations on a plan from a user: it is written, compared with a host, explained, and
/// converted to the formats of other tools.
fn look_at(plan: &Plan, topology: &Topology) {
    assert_eq!(schema::from_json(&schema::to_json(plan)).ok().as_ref(), Some(plan));
    drop(validate(plan, topology));
    drop(explain(plan, topology, 80));
    let layouts = Layout::of_plan(plan, "plan.json");
    drop(render(&layouts, &lint(&layouts, topology), topology, 80));
    let command = pinfold_qemu::parse(&[]);
    for format in &pinfold_emit::FORMATS {
        drop(format.text(plan, topology, &command));
        for vnode in &plan.vnodes {
            let text = format.text(&plan.extract_vnode(vnode), topology, &command);
            assert!(text.is_ok_and(|text| !text.is_empty()), "{} of {}", format.name, vnode.name);
        }
    }
}

pub(crate) fn domain(bytes: &[u8]) {
    let xml = text(bytes);
    drop(Pins::from_xml(&xml));
    drop(HookDomain::from_xml(&xml));
    let Some(topology) = topology() else { return };
    let Ok(layout) = Layout::of_text(&xml, "domain.xml") else { return };
    drop(pinfold_plan::domain_file::PlacementMetadata::read(&xml));
    let layouts = [layout];
    drop(render(&layouts, &lint(&layouts, topology), topology, 80));
    if let Ok(fixed) = fix(&xml, "domain.xml", topology, &Request::from_vnodes(Vec::new())) {
        assert!(Domain::read(&fixed.text).is_ok(), "{}", fixed.text);
    }
    let request = Request::vm("vm", VcpuCount::Exactly(2));
    let Ok(plan) = pinfold_plan::plan("low-latency", topology, &request) else { return };
    if let Some(vnode) = plan.vnodes.first()
        && let Ok(merged) = pinfold_emit::merge_libvirt_domain(&xml, &plan, vnode, topology)
    {
        assert!(Domain::read(&merged.text).is_ok(), "{}", merged.text);
    }
}

pub(crate) fn argv(bytes: &[u8]) {
    let argv: Vec<String> = text(bytes).split('\0').map(str::to_owned).collect();
    let command = pinfold_qemu::parse(&argv);
    drop((command.iothreads(), command.memory_bytes(), command.cells(), command.memory_nodes()));
    let guest = GuestTopology { sockets: 1, cores: 2, threads: 1, reason: String::new() };
    // A word after an option without a value would be taken for its value.
    if command.options.iter().all(|option| option.value().is_some()) {
        let changed = pinfold_qemu::set_smp(&command, &guest);
        assert_eq!(pinfold_qemu::parse(&changed).vcpus(), Some(2), "{changed:?}");
    }
    if let Some(topology) = topology() {
        let request = Request::vm("vm", VcpuCount::Exactly(2));
        if let Ok(plan) = pinfold_plan::plan("low-latency", topology, &request) {
            drop(pinfold_emit::qemu(&plan, topology, &command));
        }
    }
}

pub(crate) fn measurement(bytes: &[u8]) {
    let Ok(read) = measured::from_json(&text(bytes)) else { return };
    let written = measured::to_json(&read).unwrap_or_default();
    assert_eq!(measured::from_json(&written).ok().as_ref(), Some(&read));
    let figures: Vec<_> = read.blocks.iter().map(|block| block.figures.clone()).collect();
    let found = compare::compare(&figures, &figures);
    assert!(found.rows.iter().all(|row| row.ratio.is_none_or(|ratio| ratio == 1.0)));
}

/// `pinfold top --record`: what was read is written and read again.
pub(crate) fn top(bytes: &[u8]) {
    use pinfold_top::{Replay, to_line};

    let mut replay = Replay::new(bytes);
    while let Ok(Some(snapshot)) = replay.read_next() {
        let (Some(_) | None) = snapshot.worst();
        let line = to_line(&snapshot).unwrap_or_default();
        assert_eq!(Replay::new(line.as_bytes()).read_next(), Ok(Some(snapshot)));
    }
}

/// `pinfold measure gaps --record`: what was read is written and read again.
pub(crate) fn gaps(bytes: &[u8]) {
    use pinfold_probe::gaps::record;

    let text = String::from_utf8_lossy(bytes);
    if let Ok(report) = record::parse(&text) {
        for gap in &report.gaps {
            let (Some(_) | None) = gap.cause().map(ToString::to_string);
            assert!(gap.unexplained_ns() <= gap.length_ns);
        }
        let again = record::to_text(&report).unwrap_or_default();
        assert_eq!(record::parse(&again).ok(), Some(report));
    }
}
