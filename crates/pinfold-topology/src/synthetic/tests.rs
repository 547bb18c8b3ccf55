//! Table tests of `synthetic`.

use super::{check_size, fault, words};

#[test]
fn faults_are_named() {
    check("", "empty");
    check("core:2 foo:1 pu:2", "\"foo\" is not a level");
    check("core:x pu:2", "\"x\" in \"core:x\" is not a number");
    check("core pu:2", "\"core\" has no count");
    check("core:0 pu:2", "count of 0");
    check("package:2 core:4", "the last level is \"core\"");
    check("core:2 pu:2(indexes=0,1", "bracket is not closed");
    check("core:2 pu:2)", "has no (");
    check("core:2 pu:2(indexes=0,0,0,0)", "indexes");
}

fn check(text: &str, part: &str) {
    let why = fault(text);
    assert!(why.contains(part), "{text:?}: {why}");
}

#[test]
fn size_is_bounded_before_hwloc_builds_it() {
    fn check(text: &str, fits: bool) {
        assert_eq!(check_size(text).is_ok(), fits, "{text}")
    }

    check("package:2 core:4 pu:2", true);
    check("package:64 core:128 pu:1", true);
    check("package:8193 pu:1", false);
    check("numa:1024 pu:8", true);
    check("package:2 numa:1024 pu:1", false);
    check("core:4294967295 pu:4294967295", false);
    check("100000 2", false);
    check("pu:99999999999999999999", true); // not a number: hwloc refuses it
    // Found by fuzzing: hwloc also parses base 16 and 8, and takes minutes for such a number.
    check("0x8620", false);
    check("pu:0x8620", false);
    check("pu:077777", false);
    check("pu:+99999", false);
    check("core:1 pu:1", true);
    // Found by fuzzing: hwloc creates a set with that many bits.
    check("core:2 pu:2(indexes=0,46666666666666666666666666,1,5)", false);
    check("package:1 [numa(indexes=4000000000)] pu:2", false);
    check("core:2 pu:2(indexes=0,8191,1,5)", true);
    check("core:2 pu:2(indexes=2*2:1*2)", true);
    check("numa:2 core:2 pu:2(indexes=numa:core)", true);
}

#[test]
fn levels_of_a_text() {
    fn check(text: &str, expected: &[&str]) {
        assert_eq!(words(text).unwrap(), expected, "{text}")
    }

    check("package:2 pu:2", &["package:2", "pu:2"]);
    check("package:2 [numa(memory=4 GB)] pu:2", &["package:2", "pu:2"]);
    check("(memory=4GB) core:2[numa] pu:2(indexes=0, 1)", &["core:2", "pu:2(indexes=0, 1)"]);
}
