use super::{checked, parse_set, scrubbed};

const HEAD: &str = "<topology version=\"2.0\"><object type=\"Machine\" cpuset=\"0x00000003\">";
const TAIL: &str = "</object></topology>";
const PU0: &str = "<object type=\"PU\" os_index=\"0\" cpuset=\"0x00000001\"/>";
const PU1: &str = "<object type=\"PU\" os_index=\"1\" cpuset=\"0x00000002\"/>";

#[test]
fn what_hwloc_writes_is_accepted() {
    let check = |inner: &str| {
        assert!(checked(&format!("{HEAD}{inner}{TAIL}")).is_ok(), "{inner}");
    };
    check(PU0);
    check(&format!("{PU0}{PU1}"));
    check(&format!("<object type=\"NUMANode\" os_index=\"0\" cpuset=\"0x0\"/>{PU0}"));
    check(&format!("<!-- by hand -->{PU0}"));
    let whole = format!("<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n{HEAD}{PU0}{TAIL}");
    assert!(!checked(&whole).unwrap().contains("DOCTYPE"));
}

#[test]
fn what_hwloc_must_not_be_given() {
    let refuse = |text: &str, part: &str| {
        let why = checked(text).unwrap_err();
        assert!(why.contains(part), "{text:.120}: {why}");
    };
    let inside = |inner: &str, part: &str| refuse(&format!("{HEAD}{inner}{TAIL}"), part);
    refuse("<topology>", "");
    refuse("<html/>", "<html>");
    refuse(&format!("{HEAD}{TAIL}"), "no PU");
    refuse("<!DOCTYPE topology [<!ENTITY a \"b\">]><topology/>", "DOCTYPE");
    refuse("<!DOCTYPE topology SYSTEM \"/etc/passwd\"><topology/>", "DOCTYPE");
    refuse(
        "<!DOCTYPE topology SYSTEM \"hwloc2.dtd\"><!DOCTYPE t [<!ENTITY a \"b\">]><topology/>",
        "DTD",
    );
    inside(&format!("{PU0}{PU0}"), "comes twice");
    inside("<object type=\"PU\" os_index=\"0\" cpuset=\"0x00000002\"/>", "its own index");
    inside("<object type=\"PU\" os_index=\"5\" cpuset=\"0x00000020\"/>", "the object around");
    inside("<object type=\"PU\" os_index=\"4294967295\"/>", "os_index");
    inside("<object type=\"PU\" cpuset=\"0x00000001\"/>", "os_index");
    inside("<object type=\"Core\" cpuset=\"0xf...f\"/>", "not a set");
    inside("<object type=\"Core\" cpuset=\"3\"/>", "not a set");
    let deep = "<object type=\"Group\">".repeat(100) + PU0 + &"</object>".repeat(100);
    inside(&deep, "nested");
}

#[test]
fn sets_as_hwloc_writes_them() {
    let check = |text: &str, list: &str| {
        assert_eq!(parse_set(text).map(|set| set.to_string()), Ok(list.to_owned()), "{text}");
    };
    check("0x0", "");
    check("0x000000ff", "0-7");
    check("0x00000001,0x80000000", "31-32");
    check("0x1,,0x0000000f", "0-3,64");
}

#[test]
fn a_scrubbed_xml_tells_no_names() {
    let secrets = "<info name=\"HostName\" value=\"secret-1\"/>\n\
                   <info name=\"DMIBoardSerial\" value=\"secret-2\"/>\n\
                   <info name=\"LinuxCgroup\" value=\"/secret-3\"/>\n\
                   <!-- secret-4 -->\n<userdata name=\"x\">secret-5</userdata>\n\
                   <info name=\"CPUModel\" value=\"kept\"/>\n";
    let text = format!("<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n{HEAD}{secrets}{PU0}{TAIL}");
    let scrubbed = scrubbed(&text).unwrap();
    assert!(!scrubbed.contains("secret"), "{scrubbed}");
    assert!(scrubbed.contains("kept"));
    assert!(checked(&scrubbed).is_ok());
}
