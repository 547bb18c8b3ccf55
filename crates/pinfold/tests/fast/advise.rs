//! `pinfold advise`, and the same program under the name of numad.

use std::os::unix::fs::symlink;

use crate::common::{Checked as _, PINFOLD, Sandbox, run};

const HOST: &str = "package:2 node:1(memory=8GiB) core:8 pu:2";

#[test]
fn the_fewest_nodes_that_have_cpus_and_memory_are_printed() {
    let sandbox = Sandbox::new();
    let check = |vcpus: &str, memory: &str, expected: &str, reason: &str| {
        let words = ["advise", "--vcpus", vcpus, "--memory", memory, "--input", HOST];
        let output = sandbox.run(&words);
        let said = output.expect_code(0);
        assert_eq!(output.stdout_text(), expected, "{said}");
        assert!(said.contains(reason), "{said}");
    };
    check("4", "1024", "0\n", "16 CPUs and 8192 MiB free");
    check("20", "1024", "0-1\n", "no single node has");
    check("64", "1024", "0-1\n", "no set of nodes has that many free CPUs");
    check("4", "65536", "0-1\n", "all nodes: ");
    sandbox.run(&["advise", "--vcpus", "0"]).expect_code(2);
    sandbox.run(&["advise", "--vcpus", "1", "--huge-pages", "3x"]).expect_code(2);
}

/// libvirt runs exactly `/usr/bin/numad -w VCPUS:MIB`, and does not start the machine if that
/// fails or prints anything but nodes.
#[test]
fn numad_always_gets_an_answer() {
    let sandbox = Sandbox::new();
    let numad = sandbox.path("numad");
    symlink(PINFOLD, &numad).expect("a link");
    for request in ["2:200", "2", "x", "", "1:y", "4096:99999999999", "0:0"] {
        let output = run(&numad, ["-w", request]);
        assert_eq!(output.status.code(), Some(0), "{request}: {}", output.stderr_text());
        let nodes = pinfold_model::CpuSet::parse_list(output.stdout_text().trim());
        assert!(nodes.is_ok_and(|nodes| !nodes.is_empty()), "{request}: {}", output.stdout_text());
    }
    let all = pinfold_host::files::read_text("/sys/devices/system/node/online");
    for request in ["0:512", "0"] {
        let output = run(&numad, ["-w", request]);
        assert_eq!(output.status.code(), Some(0), "{request}: {}", output.stderr_text());
        let all = all.as_deref().map_or("0", str::trim);
        assert_eq!(output.stdout_text().trim(), all, "{request}");
    }
    // A file without end is not read.
    let output = run("env", ["HWLOC_XMLFILE=/dev/zero", &numad, "-w", "1"]);
    assert_eq!(output.stdout_text().trim(), all.as_deref().map_or("0", str::trim));
    let more = run(&numad, ["-w", "1:1", "-v"]);
    assert!(more.status.success() && !more.stdout.is_empty(), "{}", more.stderr_text());
    for (option, expected) in [("-h", "numad -w VCPUS[:MIB]"), ("-V", "numad version: ")] {
        let output = run(&numad, [option]);
        assert!(output.status.success() && output.stderr.is_empty(), "{option}");
        assert!(output.stdout_text().contains(expected), "{option}");
    }
    for words in [&["-i", "15"][..], &["-D", "/tmp"], &[]] {
        let output = run(&numad, words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(output.stderr_text().contains("needs no daemon") && output.stdout.is_empty());
    }
}
