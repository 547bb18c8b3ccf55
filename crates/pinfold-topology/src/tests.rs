//! Golden tests of the hosts in `fixtures/hosts`, and comparisons with hwloc's own tools where they
//! are installed.
//!
//! `NAME.tree` next to each host contains the terminal output. After an intended change, rewrite
//! them with `PINFOLD_BLESS=1 cargo test -p pinfold-topology` and review the diff.

use pinfold_host::process::{capture as run, find_program};
use pinfold_host::{LiveHost, SnapshotHost, files};
use pinfold_model::{CoreKind, CpuSet, PuId, Source, Topology};
use proptest::prelude::*;

use crate::{capture, discover, read_input, render_tree, schema};

const TIMEOUT_NS: u64 = 20_000_000_000;

fn hosts_dir() -> String {
    format!("{}/../../fixtures/hosts", env!("CARGO_MANIFEST_DIR"))
}

fn live() -> LiveHost {
    LiveHost::new().expect("the running machine")
}

fn fixture(file: &str) -> Topology {
    let path = format!("{}/{file}", hosts_dir());
    let mut topology = read_input(&live(), &path).unwrap_or_else(|error| panic!("{error}"));
    // Golden files must not depend on the path of the checkout.
    if let Source::Captured(_) = topology.source {
        topology.source = Source::Captured(file.to_owned());
    }
    topology
}

fn synthetic(text: &str) -> Topology {
    read_input(&live(), text).unwrap_or_else(|error| panic!("{error}"))
}

/// All fixtures: every file of the directory except golden files.
fn fixtures() -> Vec<String> {
    use pinfold_host::Host;
    let real = std::path::Path::new(&hosts_dir()).canonicalize().expect("fixtures/hosts");
    let mut names = live().list(&real.to_string_lossy()).expect("fixtures/hosts");
    names.retain(|name| {
        [".synthetic", ".capture", ".xml"].iter().any(|ending| name.ends_with(ending))
    });
    names
}

#[test]
fn every_fixture_shows_its_golden_tree() {
    let bless = std::env::var_os("PINFOLD_BLESS").is_some();
    let mut wrong = Vec::new();
    for file in fixtures() {
        let (stem, _) = file.rsplit_once('.').expect("an ending");
        let golden = format!("{}/{stem}.tree", hosts_dir());
        let shown = render_tree(&fixture(&file));
        if bless {
            files::write_atomic(&golden, shown.as_bytes()).expect("golden written");
        } else if files::read_text(&golden).ok().as_deref() != Some(shown.as_str()) {
            wrong.push(format!("--- {golden} should be:\n{shown}"));
        }
    }
    assert!(fixtures().len() >= 24, "too few fixtures");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_fixture_says_why_it_is_interesting() {
    let list = files::read_text(&format!("{}/README.md", hosts_dir())).unwrap();
    for file in fixtures() {
        let (stem, _) = file.rsplit_once('.').expect("an ending");
        assert!(list.contains(&format!("| `{stem}` |")), "{stem} is not in README.md");
        let text = files::read_text(&format!("{}/{file}", hosts_dir())).unwrap();
        let says = text.starts_with("# ")
            || text.contains("\nfile /pinfold/why\n\t")
            || text.contains("<!--\n");
        assert!(says, "{file}");
    }
}

/// CPU numbers in logical order, from Pinfold's tables and from hwloc's tool.
#[test]
fn pus_stand_in_hwlocs_own_order() {
    let Some(lstopo) = find_program("lstopo-no-graphics") else {
        eprintln!("skipped: lstopo-no-graphics is not installed");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    for file in fixtures() {
        let topology = fixture(&file);
        let input = oracle_input(&file, &directory);
        let arguments =
            ["-i", &input, "--of", "console", "--only", "pu", "--no-io", "--disallowed"];
        let output = run(&lstopo, arguments, TIMEOUT_NS).expect("lstopo runs");
        let theirs: Vec<u32> = output
            .stdout_text()
            .lines()
            .filter_map(|line| line.split_once("(P#")?.1.split_once(')')?.0.parse().ok())
            .collect();
        let ours: Vec<u32> = topology.pus.iter().map(|pu| pu.os.0).collect();
        assert_eq!(ours, theirs, "{file}: {}", output.stderr_text());
    }
}

/// Number of objects per level, from Pinfold's tables and from hwloc's tool.
#[test]
fn counts_are_hwlocs_own() {
    fn check(input: &str, calc: &str, file: &str, level: &str, ours: usize) {
        let arguments = ["-i", input, "--disallowed", "-N", level, "all"];
        let output = run(calc, arguments, TIMEOUT_NS).expect("hwloc-calc runs");
        let theirs = output.stdout_text().trim().parse::<usize>();
        assert_eq!(Ok(ours), theirs, "{file} {level}: {}", output.stderr_text());
    }

    let Some(calc) = find_program("hwloc-calc") else {
        eprintln!("skipped: hwloc-calc is not installed");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    for file in fixtures() {
        let topology = fixture(&file);
        let input = oracle_input(&file, &directory);
        check(&input, &calc, &file, "pu", topology.pus.len());
        check(&input, &calc, &file, "core", topology.cores.len());
        check(&input, &calc, &file, "package", topology.packages.len());
        if !topology.l3.is_empty() {
            check(&input, &calc, &file, "l3cache", topology.l3.len());
        }
    }
}

/// Input of hwloc's tools for this fixture: a description, or a plain XML file in `directory`.
fn oracle_input(file: &str, directory: &tempfile::TempDir) -> String {
    use pinfold_host::Host;
    if let Source::Synthetic(description) = fixture(file).source {
        return description;
    }
    let text = files::read_text(&format!("{}/{file}", hosts_dir())).unwrap();
    let xml = match SnapshotHost::parse(&text) {
        Ok(tree) => tree.read_text("/pinfold/hwloc.xml").unwrap(),
        Err(_) => text,
    };
    let path = format!("{}/{file}.xml", directory.path().display());
    files::write_atomic(&path, crate::xml::check_text(&xml).unwrap().as_bytes()).unwrap();
    path
}

#[test]
fn the_orders_that_the_sources_publish() {
    check("i7-4790k.synthetic", &[0, 4, 1, 5, 2, 6, 3, 7]);
    check("r910.synthetic", &[0, 16, 4, 20, 8, 24, 12, 28, 1, 17]);
    check("e5-2670-dual.synthetic", &[0, 16, 1, 17, 2, 18]);
}

fn check(file: &str, first: &[u32]) {
    let order: Vec<u32> = fixture(file).pus.iter().map(|pu| pu.os.0).collect();
    assert_eq!(&order[..first.len()], first, "{file}");
}

#[test]
fn core_kinds_of_each_source() {
    fn check(file: &str, expected: &[(CoreKind, &str)]) {
        let topology = fixture(file);
        for (kind, pus) in expected {
            let ours: CpuSet =
                topology.pus.iter().filter(|pu| pu.kind == *kind).map(|pu| pu.os).collect();
            assert_eq!(ours.to_string(), *pus, "{file} {kind:?}");
        }
    }

    use CoreKind::{Efficiency, LowPower, Performance, Uniform};
    check("i5-12600k.capture", &[(Performance, "0-11"), (Efficiency, "12-15"), (Uniform, "")]);
    check("ultra-255h.capture", &[(Performance, "0-5"), (Efficiency, "6-13"), (LowPower, "14-15")]);
    check("arm-big-little.capture", &[(Performance, "4-7"), (Efficiency, "0-3")]);
    check("gb10.xml", &[(Performance, "5-9,15-19"), (Efficiency, "0-4,10-14"), (Uniform, "")]);
    check(
        "arrow-lake-225u.xml",
        &[(Performance, "0-3"), (Efficiency, "4-11"), (LowPower, "12-13")],
    );
    check("i7-4790k.synthetic", &[(Uniform, "0-7")]);
}

#[test]
fn what_hwloc_does_not_say() {
    let topology = fixture("isolated-realtime.capture");
    assert_eq!(topology.isolated.to_string(), "4-7,12-15");
    assert_eq!(topology.nohz_full.to_string(), "4-7,12-15");
    assert_eq!(topology.allowed.to_string(), "0-15", "only a cpuset forbids CPUs");
    assert_eq!(topology.mask.as_ref().unwrap().to_string(), "0-3,8-11");
    assert_eq!(topology.inherited_cpus().to_string(), "0-3,8-11");
    let topology = fixture("half-offline-smt.capture");
    assert_eq!(topology.offline.to_string(), "5,7");
    assert_eq!(topology.frequency_domains.len(), 4);
    let topology = fixture("cxl-memory.capture");
    assert_eq!(topology.nodes[2].pus, CpuSet::new());
    assert_eq!(topology.pu(PuId(5)).unwrap().node.unwrap().0, 1);
    let topology = fixture("e7-four.capture");
    let nodes: Vec<(&str, Option<u32>)> = topology
        .devices
        .iter()
        .map(|device| (device.address.as_str(), device.node.map(|node| node.0)))
        .collect();
    let expected = [
        ("0000:00:1f.2", None),
        ("0000:05:00.0", Some(1)),
        ("0000:06:00.0", Some(1)),
        ("0000:85:00.0", Some(2)),
    ];
    assert_eq!(nodes, expected);
    let pairs: Vec<String> =
        fixture("l5420-dual.capture").frequency_domains.iter().map(CpuSet::to_string).collect();
    assert_eq!(pairs, ["0-1", "2-3", "4-5", "6-7"]);
}

#[test]
fn sources_that_leave_levels_out() {
    fn check(text: &str, packages: usize, cores: usize) {
        let topology = synthetic(text);
        assert_eq!((topology.packages.len(), topology.cores.len()), (packages, cores), "{text}");
        assert_consistent(&topology);
    }

    check("pu:4", 1, 4);
    check("node:4 core:4 pu:2", 4, 16);
    check("core:2 pu:2", 1, 2);
    check("2 3", 2, 6);
    check("pack:2 core:2 1", 2, 4);
}

#[test]
fn a_capture_reads_back_as_the_same_machine() {
    for file in fixtures() {
        let text = files::read_text(&format!("{}/{file}", hosts_dir())).unwrap();
        let Ok(tree) = SnapshotHost::parse(&text) else { continue };
        let original = discover(&tree).unwrap();
        let again = SnapshotHost::parse(&capture(&tree).unwrap()).unwrap();
        assert_eq!(discover(&again).unwrap(), original, "{file}");
    }
}

#[test]
fn the_running_machine_and_its_capture_are_the_same() {
    let host = live();
    let found = match discover(&host) {
        Ok(found) => found,
        Err(error) => panic!("{error} {:?}", error.hint()),
    };
    assert_consistent(&found);
    let text = capture(&host).unwrap();
    let mut again = discover(&SnapshotHost::parse(&text).unwrap()).unwrap();
    assert_eq!(again.fingerprint, found.fingerprint);
    // Memory sizes change on machines with balloons.
    again.source = Source::Live;
    again.nodes.clone_from(&found.nodes);
    assert_eq!(again, found);
}

#[test]
fn json_is_json_and_names_its_format() {
    for file in fixtures() {
        let text = schema::topology_to_json(&fixture(&file));
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["format"], schema::TOPOLOGY_FORMAT);
        assert_eq!(value["pus"].as_array().unwrap().len(), fixture(&file).pus.len());
    }
}

/// Properties on which strategies rely.
fn assert_consistent(topology: &Topology) {
    let online = topology.online();
    assert_eq!(online.len(), topology.pus.len(), "a CPU appears twice");
    for (index, core) in topology.cores.iter().enumerate() {
        assert_eq!(core.id.index(), index);
        assert!(!core.pus.is_empty());
        assert!(core.pus.is_subset(&topology.packages[core.package.index()].pus));
    }
    for (index, pu) in topology.pus.iter().enumerate() {
        assert_eq!(pu.logical.0 as usize, index);
        let core = topology.core(pu.core);
        assert!(core.pus.contains(pu.os));
        assert_eq!((core.package, core.kind), (pu.package, pu.kind));
        assert!((pu.smt_rank as usize) < core.pus.len());
        assert!(pu.l3.is_none_or(|l3| topology.l3[l3.index()].pus.contains(pu.os)));
        let node = pu.node.map(|id| topology.nodes.iter().find(|node| node.id == id).unwrap());
        assert!(node.is_none_or(|node| node.pus.contains(pu.os)));
    }
    let in_cores: usize = topology.cores.iter().map(|core| core.pus.len()).sum();
    let in_packages: usize = topology.packages.iter().map(|package| package.pus.len()).sum();
    assert_eq!((in_cores, in_packages), (online.len(), online.len()));
    assert!(topology.allowed.is_subset(&online));
    assert!(topology.offline.is_disjoint(&online));
    let tree = render_tree(topology);
    assert!(tree.contains(&topology.fingerprint));
}

#[test]
fn every_fixture_is_consistent() {
    for file in fixtures() {
        assert_consistent(&fixture(&file));
    }
}

fn any_shape() -> impl Strategy<Value = String> {
    let level = |name: &'static str, most: u32| {
        prop::option::of(1..=most)
            .prop_map(move |count| count.map(|count| format!("{name}:{count}")))
    };
    (level("package", 3), level("numa", 3), level("l3", 3), level("core", 4), 1_u32..=4).prop_map(
        |(package, numa, l3, core, pu)| {
            let levels = [package, numa, l3, core, Some(format!("pu:{pu}"))];
            levels.into_iter().flatten().collect::<Vec<_>>().join(" ")
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_synthetic_shape_gives_consistent_tables(text in any_shape()) {
        let topology = synthetic(&text);
        assert_consistent(&topology);
        prop_assert_eq!(&topology.allowed, &topology.online());
        prop_assert_eq!(synthetic(&text).fingerprint, topology.fingerprint);
    }

    #[test]
    fn two_shapes_have_two_fingerprints(a in any_shape(), b in any_shape()) {
        let (left, right) = (synthetic(&a), synthetic(&b));
        let same = left.pus == right.pus && left.l3 == right.l3 && left.nodes == right.nodes
            && left.smt == right.smt;
        prop_assert_eq!(same, left.fingerprint == right.fingerprint);
    }
}

/// A tarball that hwloc's own tool creates here gives the topology of this host.
#[test]
fn what_hwloc_gathers_is_the_same_machine() {
    let Some(gather) = find_program("hwloc-gather-topology") else {
        eprintln!("skipped: hwloc-gather-topology is not installed");
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let name = folder.path().join("machine").to_string_lossy().into_owned();
    let output = run(&gather, [&name], TIMEOUT_NS).expect("it runs");
    assert!(output.status.success(), "{}", output.stderr_text());
    let (mut ours, mut theirs) =
        (read_input(&live(), &format!("{name}.tar.bz2")).unwrap(), discover(&live()).unwrap());
    // Free memory changes between the two.
    for node in ours.nodes.iter_mut().chain(&mut theirs.nodes) {
        assert!(node.free_bytes.take().is_some(), "{node:?}");
    }
    assert_eq!((&ours.pus, &ours.cores), (&theirs.pus, &theirs.cores));
    assert_eq!((&ours.l3, &ours.l2_domains), (&theirs.l3, &theirs.l2_domains));
    assert_eq!((&ours.nodes, &ours.packages), (&theirs.nodes, &theirs.packages));
    assert_eq!(ours.model, theirs.model);
}
