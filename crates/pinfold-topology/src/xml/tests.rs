//! Table tests of `xml`.

use super::check::parse_set;
use super::{check_text, scrub};

/// A machine with two CPUs around these objects, and one NUMA node.
fn machine(inner: &str) -> String {
    let pus = if inner.matches("\"PU\"").count() == 1 { 1 } else { 3 };
    format!(
        "<topology version=\"2.0\">\n{}{}{inner}</object>\n</topology>",
        object("Machine", 0, pus, "allowed_cpuset=\"0x1\" allowed_nodeset=\"0x1\"", false),
        object("NUMANode", 0, pus, "gp_index=\"900\"", true),
    )
}

/// An object with all its sets; its identity is in `rest`, or made of type and number.
fn object(kind: &str, os: u32, pus: u32, rest: &str, closed: bool) -> String {
    let identity = u64::try_from(kind.len()).unwrap() * 10 + u64::from(os);
    let identity =
        if rest.contains("gp_index") { String::new() } else { format!("gp_index=\"{identity}\"") };
    let end = if closed { "/" } else { "" };
    format!(
        "<object type=\"{kind}\" os_index=\"{os}\" cpuset=\"{pus:#x}\" \
         complete_cpuset=\"{pus:#x}\" nodeset=\"0x1\" complete_nodeset=\"0x1\" {identity} {rest}{end}>\n"
    )
}

fn pu(os: u32) -> String {
    object("PU", os, 1 << os, "", true)
}

#[test]
fn what_hwloc_writes_is_accepted() {
    fn check(inner: &str, kept: bool) {
        let checked = check_text(&machine(&format!("{}{inner}", pu(0)))).unwrap();
        assert_eq!(checked.contains(inner.trim()), kept, "{inner}");
    }

    check(&pu(1), true);
    check("<info name=\"CPUModel\" value=\"x\"/>", true);
    check("<!-- by hand -->", false);
    check("<object type=\"PCIDev\" gp_index=\"77\"><object type=\"OSDev\"/></object>", false);
    check("<distances2 nbobjs=\"-1\"/>", false);
    let whole = format!("<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n{}", machine(&pu(0)));
    assert!(!check_text(&whole).unwrap().contains("DOCTYPE"));
}

/// Found by fuzzing: hwloc also orders siblings by their offline CPUs, and asserts that it can.
#[test]
fn offline_pus_are_of_one_part_alone() {
    assert!(check_two("0x2").is_ok());
    for shared in ["0x3", "0x1"] {
        let why = check_two(shared).unwrap_err();
        assert!(why.contains("no PU of its own") || why.contains("does not"), "{why}");
    }
}

fn check_two(complete: &str) -> Result<String, String> {
    check_text(&machine(&format!("{}{}", core(0, "0x1"), core(1, complete))))
}

fn core(os: u32, complete: &str) -> String {
    let text = object("Core", os, 1 << os, "", false);
    let own = format!("complete_cpuset=\"{:#x}\"", 1 << os);
    format!(
        "{}{}</object>\n",
        text.replace(&own, &format!("complete_cpuset=\"{complete}\"")),
        pu(os)
    )
}

#[test]
fn what_hwloc_must_not_be_given() {
    refuse("<topology>", "");
    refuse("<html/>", "<html>");
    refuse("<topology/>", "not of hwloc 2");
    refuse("<topology version=\"2.0\"/>", "not one machine");
    refuse(&machine(""), "of its parts");
    refuse(&machine(&object("Core", 0, 3, "", true)), "of its parts");
    refuse("<!DOCTYPE topology [<!ENTITY a \"b\">]><topology/>", "DOCTYPE");
    refuse("<!DOCTYPE topology SYSTEM \"/etc/passwd\"><topology/>", "DOCTYPE");
    refuse(
        "<!DOCTYPE topology SYSTEM \"hwloc2.dtd\"><!DOCTYPE t [<!ENTITY a \"b\">]><topology/>",
        "DTD",
    );
    refuse_inside(&pu(0), "appears twice");
    refuse_inside(&object("PU", 0, 1, "gp_index=\"5\"", true), "a PU appears twice");
    refuse_inside(&object("PU", 1, 1, "", true), "its own index");
    refuse_inside(&object("PU", 5, 32, "", true), "its parent's set");
    refuse_inside(&object("PU", 4_294_967_295, 2, "gp_index=\"5\"", true), "os_index");
    refuse_inside(&object("Chip", 1, 2, "", true), "\"Chip\" is not a type");
    refuse_inside(&object("NUMANode", 0, 1, "gp_index=\"5\"", true), "a NUMA node appears twice");
    refuse_inside(&object("NUMANode", 1, 1, "", true), "the nodeset of a NUMA node");
    refuse_inside(&object("Machine", 1, 1, "", true), "inside another object");
    for set in ["cpuset", "complete_cpuset", "nodeset", "complete_nodeset"] {
        refuse_inside(&pu(1).replace(&format!(" {set}=\"0x"), " x=\"0x"), &format!("no {set}"));
    }
    refuse_inside(&pu(1).replace(" cpuset=\"0x2\"", " cpuset=\"0xf...f\""), "not a set");
    let deep: String = (0..100)
        .map(|at: u32| object("Group", 0, 1, &format!("gp_index=\"{}\"", 1000 + at), false))
        .collect();
    refuse_inside(&(deep + &"</object>".repeat(100)), "nested");
}

fn refuse_inside(inner: &str, part: &str) {
    refuse(&machine(&format!("{}{inner}", pu(0))), part)
}

fn refuse(text: &str, part: &str) {
    let why = check_text(text).unwrap_err();
    assert!(why.contains(part), "{part}: {why}\n{text}");
}

/// Version 3 only differs in data that is not read, and in data about the whole machine.
#[test]
fn versions_of_the_format() {
    for version in ["2.0", "2.1", "3.0"] {
        let text = check_text(&machine_of_version(version)).unwrap();
        assert!(!text.contains("Backend") && !text.contains("3.0"), "{text}");
    }
    assert!(refuse_version("3.1").contains("--export-xml-flags v2"));
    assert!(refuse_version("4.0").contains("--export-xml-flags v2"));
    assert!(refuse_version("1.0").contains("converts older ones"));
    let broken = machine_of_version("3.0").replace(" nodeset=\"0x1\"", "");
    assert!(check_text(&broken).unwrap_err().contains("--export-xml-flags v2"));
}

fn refuse_version(version: &str) -> String {
    check_text(&machine_of_version(version)).unwrap_err()
}

fn machine_of_version(version: &str) -> String {
    let text = machine(&pu(0)).replace("version=\"2.0\"", &format!("version=\"{version}\""));
    text.replace("</topology>", "<info name=\"Backend\" value=\"Linux\"/></topology>")
}

#[test]
fn sets_as_hwloc_writes_them() {
    fn check(text: &str, list: &str) {
        assert_eq!(parse_set(text).map(|set| set.to_string()), Ok(list.to_owned()), "{text}");
    }

    check("0x0", "");
    check("0x000000ff", "0-7");
    check("0x00000001,0x80000000", "31-32");
    check("0x1,,0x0000000f", "0-3,64");
}

#[test]
fn a_scrubbed_xml_reports_no_names() {
    let secrets = "<info name=\"HostName\" value=\"secret-1\"/>\n\
                   <info name=\"DMIBoardSerial\" value=\"secret-2\"/>\n\
                   <info name=\"LinuxCgroup\" value=\"/secret-3\"/>\n\
                   <!-- secret-4 -->\n<userdata name=\"x\">secret-5</userdata>\n\
                   <info name=\"CPUModel\" value=\"kept\"/>\n";
    let text = machine(&format!("{secrets}{}", pu(0)));
    let text = format!("<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n{text}");
    let scrubbed = scrub(&text).unwrap();
    assert!(!scrubbed.contains("secret"), "{scrubbed}");
    assert!(scrubbed.contains("kept"));
    assert!(check_text(&scrubbed).is_ok());
}

/// hwloc 3 may leave identities out; of hwloc 2 each object has one.
#[test]
fn objects_of_hwloc_3_need_no_identity() {
    fn core(os: u32) -> String {
        format!("{}{}</object>\n", object("Core", os, 1 << os, "", false), pu(os))
    }

    let whole = machine(&format!("{}{}", core(0), core(1)));
    let three = whole.replace("version=\"2.0\"", "version=\"3.0\"");
    let text = check_text(&bare(&three)).unwrap();
    assert_eq!(text.matches(" gp_index=").count(), 6, "{text}");
    let some = three.replacen("gp_index=\"900\"", "", 1);
    assert!(check_text(&some).unwrap().contains("gp_index=\"71\""), "{some}");
    assert!(check_text(&bare(&whole)).unwrap_err().contains("an object has no gp_index"));
    let tree = crate::hwloc::from_xml(&text).unwrap();
    assert_eq!((tree.pus.len(), tree.nodes.len()), (2, 1));
}

fn bare(text: &str) -> String {
    let mut parts = text.split(" gp_index=\"");
    let first = parts.next().unwrap().to_owned();
    let rest = parts.map(|part| part.split_once('"').unwrap().1);
    first + &rest.collect::<String>()
}
