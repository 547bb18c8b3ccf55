//! The request file of the documentation and the same in flags give the same plan.

#![expect(clippy::expect_used, reason = "a test that cannot go on fails")]

use pinfold_host::process::capture;
use pinfold_host::user;

const PINFOLD: &str = env!("CARGO_BIN_EXE_pinfold");
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const MINUTE_NS: u64 = 60_000_000_000;

/// The first block of `docs/requests.md` in this language.
fn block(language: &str) -> String {
    let docs = user::read_text(&format!("{ROOT}/docs/requests.md")).expect("the page is there");
    let fence = format!("```{language}\n");
    let (_, rest) = docs.split_once(&fence).expect("the block is there");
    rest.split_once("```").expect("the block ends").0.to_owned()
}

fn file(text: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = format!("{}/request.toml", folder.path().display());
    user::write_atomic(&path, text.as_bytes()).expect("the file is written");
    (folder, path)
}

fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = capture(PINFOLD, arguments, MINUTE_NS).expect("runs");
    (output.status.code(), output.stdout_text().to_owned(), output.stderr_text().to_owned())
}

#[test]
fn a_file_and_flags_say_the_same() {
    let (_folder, path) = file(&block("toml"));
    let input = format!("{ROOT}/fixtures/hosts/x5540-dual.synthetic");
    let command = block("sh");
    let flags: Vec<&str> = command.split_whitespace().skip(1).collect();
    for form in ["--json", "--explain"] {
        let of_file =
            ["plan", "--strategy", "multi-vm", "--request", &path, "--input", &input, form];
        let (code, planned, told) = run(&of_file);
        assert_eq!(code, Some(0), "{told}");
        let mut arguments = flags.clone();
        arguments.extend(["--input", &input, form]);
        let (code, by_flags, told) = run(&arguments);
        assert_eq!(code, Some(0), "{told}");
        assert_eq!(planned, by_flags);
        assert!(planned.contains("slow") && planned.contains("web"), "{planned}");
    }
}

#[test]
fn what_is_wrong_is_told_with_its_place() {
    let input = format!("{ROOT}/fixtures/hosts/x5540-dual.synthetic");
    let in_file = |text: &str, told: &str| {
        let (_folder, path) = file(text);
        let (code, _, said) =
            run(&["plan", "--strategy", "auto", "--request", &path, "--input", &input]);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains(told), "{said}");
    };
    in_file("[[vm]]\nname = \"a\"\nvcpu = 1\n", "line 3, column 1: vm has no key \"vcpu\"");
    in_file("[[vm]]\nname = \"a\"\nvcpu = 1\n", "did you mean vcpus?");
    in_file("avoid = \"16\"\n[[vm]]\nname = \"a\"\n", "this machine has no PU 16");
    in_file("[[vm]]\nname = \"a\"\ndevices = [\"node:4\"]\n", "this host has the nodes 0, 1");
    let check = |flags: &[&str], told: &str| {
        let mut arguments = vec!["plan", "--strategy", "auto", "--input", &input];
        arguments.extend(flags);
        let (code, _, said) = run(&arguments);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains(told), "{said}");
    };
    check(&["--vm", "name=a,vcpus=0"], "--vm: vcpus: 0 is not a number of at least 1");
    check(&["--free", "all"], "--free: free: \"all\" is not a number of PUs");
    check(&["--vm", "name=a", "--vcpus", "2"], "cannot be used with");
    check(&["--request", "/nonexistent/request.toml"], "/nonexistent/request.toml");
    check(
        &["--vm", "name=a", "--vm", "name=b", "--emit", "libvirt"],
        "one virtual machine at a time",
    );
}
