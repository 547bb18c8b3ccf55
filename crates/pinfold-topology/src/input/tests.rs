//! Tests of `input`, as tables.

use pinfold_host::{LiveHost, TreeHost};
use pinfold_model::Source;

use crate::{TopologyError, read_input};

fn host(files: &[(&str, &str)]) -> TreeHost {
    TreeHost::from_files(files.iter().copied())
}

#[test]
fn what_a_text_can_be() {
    let xml = "<topology version=\"2.0\"></topology>";
    let files = host(&[
        ("/notes.txt", "hello"),
        ("/empty", ""),
        ("/shape", "# four cores\ncore:4 pu:2\n"),
        ("/wrong", "# four cores\ncore:4\n"),
        ("/old.capture", "pinfold-capture 99\n"),
        ("/bare.capture", "pinfold-capture 1\nfile /a\n\tb\n"),
        ("/machine.xml", xml),
    ]);
    let check = |text: &str, expected: &str| {
        let shown = match read_input(&files, text) {
            Ok(topology) => format!("{} PUs", topology.pus.len()),
            Err(error) => error.to_string(),
        };
        assert!(shown.contains(expected), "{text:?}: {shown}");
    };
    check("/notes.txt", "/notes.txt: neither a capture nor an hwloc XML");
    check("/empty", "neither");
    check("/shape", "8 PUs");
    check("/wrong", "the last level is \"core\"");
    check("/old.capture", "/old.capture: ");
    check("/bare.capture", "holds no hwloc XML");
    check(
        "/machine.xml",
        "/machine.xml: not a usable hwloc XML: its outermost object is not one machine",
    );
    check("/none", "/none: file not found");
    check("none.xml", "none.xml: file not found");
    check("core:2 pu:2", "4 PUs");
    check("nonsense", "\"nonsense\" is not a synthetic description: ");
    check("core:1000000 pu:1", "more than any kernel has");
    check("pu:2(indexes=0,0)", "do not name 2 different PUs");
    check("", "it is empty");
    check("core:2 pu:2\0", "not a synthetic description");
}

#[test]
fn each_refusal_has_a_way_out() {
    for text in ["/none", "nonsense", "/bare"] {
        let files = host(&[("/bare", "pinfold-capture 1\n")]);
        let error = read_input(&files, text).unwrap_err();
        assert!(error.hint().is_some(), "{error}");
    }
}

#[test]
fn a_directory_is_no_input() {
    let live = LiveHost::new().unwrap();
    let error = read_input(&live, "/").unwrap_err();
    assert!(matches!(error, TopologyError::Host(_)), "{error}");
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
