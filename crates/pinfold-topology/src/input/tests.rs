//! Table tests of `input`.

use pinfold_host::{LiveHost, SnapshotHost};
use pinfold_model::Source;

use crate::{discover, read_input};

fn host(files: &[(&str, &str)]) -> SnapshotHost {
    SnapshotHost::from_files(files.iter().copied())
}

#[test]
fn what_a_text_can_be() {
    fn check(files: &SnapshotHost, text: &str, expected: &str) {
        let shown = match read_input(files, text) {
            Ok(topology) => format!("{} PUs", topology.pus.len()),
            Err(error) => error.to_string(),
        };
        assert!(shown.contains(expected), "{text:?}: {shown}");
    }

    let xml = "<topology version=\"2.0\"></topology>";
    let files = host(&[
        ("/notes.txt", "hello"),
        ("/empty", ""),
        ("/shape", "# four cores\ncore:4 pu:2\n"),
        ("/wrong", "# four cores\ncore:4\n"),
        ("/old.capture", "pinfold-capture 99\n"),
        ("/bare.capture", "pinfold-capture 1\nfile /a\n\tb\n"),
        ("/machine.xml", xml),
        ("/bare.synthetic", "core:4 pu:2\n"),
        ("/caps.xml", "<capabilities><host/></capabilities>"),
        (
            "/host.xml",
            "<capabilities><host><topology><cells><cell id='0'><cpus><cpu id='0' socket_id='0'/>\
             <cpu id='1' socket_id='0'/></cpus></cell></cells></topology></host></capabilities>",
        ),
    ]);
    check(&files, "/notes.txt", "/notes.txt: neither a capture, an hwloc XML file nor");
    check(&files, "/empty", "neither");
    check(&files, "/shape", "8 PUs");
    check(&files, "/bare.synthetic", "8 PUs");
    check(
        &files,
        "/caps.xml",
        "/caps.xml: not a usable output of virsh capabilities: its <host> has no",
    );
    check(&files, "/host.xml", "2 PUs");
    check(&files, "/wrong", "the last level is \"core\"");
    check(&files, "/old.capture", "/old.capture: ");
    check(&files, "/bare.capture", "contains no hwloc XML");
    check(
        &files,
        "/machine.xml",
        "/machine.xml: not a usable hwloc XML: its outermost object is not one machine",
    );
    check(&files, "/none", "/none: file not found");
    check(&files, "none.xml", "none.xml: file not found");
    check(&files, "core:2 pu:2", "4 PUs");
    check(&files, "nonsense", "nonsense: file not found");
    check(&files, "host.capture", "host.capture: file not found");
    check(&files, "core:2 nonsense", "\"core:2 nonsense\" is not a synthetic description: ");
    check(&files, "core:1000000 pu:1", "exceed the limit of any kernel");
    check(&files, "pu:2(indexes=0,0)", "do not name 2 different PUs");
    check(&files, "", "it is empty");
    check(&files, "core:2 pu:2\0", "not a synthetic description");
}

#[test]
fn doctor_names_what_is_wrong_with_its_input() {
    let files =
        host(&[("/README.md", "# Pinfold\n"), ("/notes", "hello"), ("/s", "# x\ncore:2 pu:1")]);
    check(&files, "nofile", "nofile: file not found");
    check(&files, "/notes", "/notes: neither a capture");
    check(&files, "/README.md", "\"/README.md\" is not a synthetic description: it is empty");
    check(&files, "/s", "/s contains a topology but no kernel files");
    check(&files, "core:2 pu:2", "core:2 pu:2 contains a topology but no kernel files");
}

fn check(files: &SnapshotHost, text: &str, expected: &str) {
    let error = crate::read_capture(files, text).unwrap_err().to_string();
    assert!(error.contains(expected), "{text:?}: {error}");
}

#[test]
fn each_refusal_has_a_way_out() {
    for text in ["/none", "nonsense", "/bare"] {
        let files = host(&[("/bare", "pinfold-capture 1\n")]);
        let error = read_input(&files, text).unwrap_err();
        assert!(error.hint().is_some(), "{error}");
    }
}

/// The running host's files give the same tree as hwloc.
#[test]
fn a_folder_with_sys_and_proc_is_a_machine() {
    let live = LiveHost::new().unwrap();
    let (mut ours, mut theirs) = (read_input(&live, "/").unwrap(), discover(&live).unwrap());
    // Free memory changes between two readings.
    ours.nodes.iter_mut().chain(&mut theirs.nodes).for_each(|node| node.free_bytes = None);
    assert_eq!(ours.source, Source::Captured("/".to_owned()));
    assert_eq!(ours.pus, theirs.pus);
    assert_eq!(ours.cores, theirs.cores);
    assert_eq!((&ours.l3, &ours.l2_domains), (&theirs.l3, &theirs.l2_domains));
    assert_eq!((&ours.nodes, &ours.packages), (&theirs.nodes, &theirs.packages));
    assert_eq!(ours.fingerprint, theirs.fingerprint);
    let error = read_input(&live, "/proc").unwrap_err();
    assert!(error.to_string().contains("not the /sys and /proc"), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("hwloc-gather-topology")));
}

/// A NUMA node that only has memory, in a group without CPUs: read, captured and read again.
#[test]
fn a_group_around_memory_alone() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/hosts/memory-in-group.xml");
    let live = LiveHost::new().unwrap();
    let first = read_input(&live, path).unwrap();
    let nodes: Vec<_> = first.nodes.iter().map(|node| (node.id.0, node.pus.to_string())).collect();
    let expected = [(0, "0-3"), (2, "16-19"), (16, "")].map(|(id, pus)| (id, pus.to_owned()));
    assert_eq!(nodes, expected);
    let xml = pinfold_host::files::read_text(path).unwrap();
    let host = SnapshotHost::from_files([("/pinfold/hwloc.xml", xml)]);
    let captured = SnapshotHost::parse(&crate::capture(&host).unwrap()).unwrap();
    let again = discover(&captured).unwrap();
    assert_eq!((&again.nodes, &again.pus), (&first.nodes, &first.pus));
}

#[test]
fn a_blank_list_of_nodes_says_nothing() {
    assert_eq!(nodes("\n"), ["0-3", "16-19", ""]);
    assert_eq!(nodes("0\n"), ["0-3", "", ""]);
}

fn nodes(has_cpu: &str) -> Vec<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/hosts/memory-in-group.xml");
    let xml = pinfold_host::files::read_text(path).unwrap();
    let host = SnapshotHost::from_files([
        ("/pinfold/hwloc.xml", xml.as_str()),
        ("/sys/devices/system/node/has_cpu", has_cpu),
    ]);
    let topology = discover(&host).unwrap();
    let pus = topology.nodes.iter().map(|node| node.pus.to_string());
    pus.collect::<Vec<_>>()
}

#[test]
fn an_xml_without_our_files_says_itself_what_is_allowed() {
    let xml = "<topology version=\"2.0\">\
        <object type=\"Machine\" os_index=\"0\" cpuset=\"0x00000003\" \
        complete_cpuset=\"0x00000007\" allowed_cpuset=\"0x00000001\" nodeset=\"0x00000001\" \
        complete_nodeset=\"0x00000001\" allowed_nodeset=\"0x00000001\" gp_index=\"1\">\
        <object type=\"NUMANode\" os_index=\"0\" cpuset=\"0x00000003\" \
        complete_cpuset=\"0x00000007\" nodeset=\"0x00000001\" complete_nodeset=\"0x00000001\" \
        gp_index=\"2\" local_memory=\"1073741824\"/>\
        <object type=\"Core\" os_index=\"0\" cpuset=\"0x00000001\" complete_cpuset=\"0x00000001\" \
        nodeset=\"0x00000001\" complete_nodeset=\"0x00000001\" gp_index=\"3\">\
        <object type=\"PU\" os_index=\"0\" cpuset=\"0x00000001\" complete_cpuset=\"0x00000001\" \
        nodeset=\"0x00000001\" complete_nodeset=\"0x00000001\" gp_index=\"4\"/></object>\
        <object type=\"Core\" os_index=\"1\" cpuset=\"0x00000002\" complete_cpuset=\"0x00000002\" \
        nodeset=\"0x00000001\" complete_nodeset=\"0x00000001\" gp_index=\"5\">\
        <object type=\"PU\" os_index=\"1\" cpuset=\"0x00000002\" complete_cpuset=\"0x00000002\" \
        nodeset=\"0x00000001\" complete_nodeset=\"0x00000001\" gp_index=\"6\"/></object>\
        </object></topology>";
    let topology = read_input(&host(&[("/m.xml", xml)]), "/m.xml").unwrap();
    assert_eq!(topology.source, Source::Captured("/m.xml".to_owned()));
    let sets = [&topology.allowed, &topology.offline].map(ToString::to_string);
    assert_eq!(sets, ["0", "2"]);
}
