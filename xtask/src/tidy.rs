//! Project rules that the compiler does not check, as a test.
//!
//! Crate dependencies · import cycles · file headers and lengths · unsafe code in one place ·
//! kernel paths in one file · no disabled lints · scrubbed fixtures · short ARCHITECTURE.md.

mod cycles;
mod lists;
mod names;
mod style;
mod tokens;
mod words;

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The crates of this repository that each crate may use. A new dependency is a design change:
/// write a note in docs/decisions/ first.
const ARROWS: &[(&str, &[&str])] = &[
    ("pinfold-model", &[]),
    ("pinfold-host", &["pinfold-model"]),
    ("pinfold-sim", &["pinfold-model", "pinfold-host"]),
    ("pinfold-topology", &["pinfold-model", "pinfold-host"]),
    ("pinfold-config", &["pinfold-model"]),
    ("pinfold-plan", &["pinfold-model"]),
    ("pinfold-claims", &["pinfold-model", "pinfold-host", "pinfold-plan", "pinfold-vm"]),
    ("pinfold-qemu", &["pinfold-model"]),
    ("pinfold-emit", &["pinfold-model", "pinfold-plan", "pinfold-qemu"]),
    ("pinfold-lint", &["pinfold-model", "pinfold-plan", "pinfold-emit"]),
    ("pinfold-samples", &["pinfold-model", "pinfold-host", "pinfold-topology"]),
    ("pinfold-apply", &["pinfold-model", "pinfold-host"]),
    ("pinfold-emulate", &["pinfold-model", "pinfold-host"]),
    ("pinfold-vm", &["pinfold-model", "pinfold-host", "pinfold-qemu"]),
    ("pinfold-probe", &["pinfold-model", "pinfold-host"]),
    ("pinfold-exits", &["pinfold-model", "pinfold-host"]),
    ("pinfold-top", &["pinfold-model", "pinfold-host"]),
    ("pinfold-stats", &["pinfold-model"]),
    ("pinfold-study", &["pinfold-model", "pinfold-host", "pinfold-config", "pinfold-stats"]),
    (
        "pinfold-cluster",
        &[
            "pinfold-model",
            "pinfold-host",
            "pinfold-probe",
            "pinfold-stats",
            "pinfold-study",
            "pinfold-run",
        ],
    ),
    ("pinfold-report", &["pinfold-model"]),
    (
        "pinfold-run",
        &[
            "pinfold-model",
            "pinfold-host",
            "pinfold-topology",
            "pinfold-plan",
            "pinfold-claims",
            "pinfold-emit",
            "pinfold-apply",
            "pinfold-emulate",
            "pinfold-vm",
            "pinfold-probe",
            "pinfold-top",
            "pinfold-exits",
            "pinfold-config",
            "pinfold-stats",
            "pinfold-study",
            "pinfold-report",
        ],
    ),
    ("pinfold-lab", &["pinfold-model", "pinfold-host", "pinfold-vm", "pinfold-probe"]),
    (
        "pinfold",
        &[
            "pinfold-model",
            "pinfold-host",
            "pinfold-topology",
            "pinfold-config",
            "pinfold-plan",
            "pinfold-claims",
            "pinfold-emit",
            "pinfold-lint",
            "pinfold-apply",
            "pinfold-emulate",
            "pinfold-vm",
            "pinfold-probe",
            "pinfold-top",
            "pinfold-exits",
            "pinfold-stats",
            "pinfold-study",
            "pinfold-cluster",
            "pinfold-report",
            "pinfold-run",
        ],
    ),
    (
        "pinfold-bench",
        &[
            "pinfold-model",
            "pinfold-host",
            "pinfold-topology",
            "pinfold-config",
            "pinfold-plan",
            "pinfold-claims",
            "pinfold-lint",
            "pinfold-apply",
            "pinfold-vm",
            "pinfold-qemu",
            "pinfold-probe",
            "pinfold-exits",
            "pinfold-top",
            "pinfold-stats",
            "pinfold-study",
            "pinfold-cluster",
            "pinfold-report",
            "pinfold-run",
        ],
    ),
    (
        "pinfold-fuzz",
        &[
            "pinfold-model",
            "pinfold-host",
            "pinfold-topology",
            "pinfold-config",
            "pinfold-plan",
            "pinfold-top",
            "pinfold-claims",
            "pinfold-emit",
            "pinfold-lint",
            "pinfold-apply",
            "pinfold-vm",
            "pinfold-qemu",
            "pinfold-probe",
            "pinfold-exits",
            "pinfold-stats",
            "pinfold-study",
            "pinfold-cluster",
        ],
    ),
];

const LONGEST_FILE: usize = 800;
/// Limits of ARCHITECTURE.md, so that it is read in one go.
const ARCHITECTURE_LINES: usize = 150;
const ARCHITECTURE_BYTES: usize = 12 * 1024;
const ARCHITECTURE_LINE_CHARS: usize = 300;
/// Pages that name files of the repository between backticks.
const MAPS: &[&str] = &["ARCHITECTURE.md", "docs/changes.md"];

/// Prints each violation with its location; fails if there is any. With `--report` also the counts.
pub fn report(root: &Path, arguments: &[String]) -> Result<(), String> {
    let counts_too = match arguments {
        [] => false,
        [one] if one == "--report" => true,
        [one, ..] => return Err(format!("tidy: {:?} is no option; there is --report", one)),
    };
    println!("$ cargo xtask tidy");
    let mut counts = style::Counts::default();
    let broken = check(root, &mut counts);
    if counts_too {
        counts.print();
    }
    for line in &broken {
        println!("{}", line);
    }
    if broken.is_empty() {
        Ok(())
    } else {
        Err(format!("{} project rule(s) violated", broken.len()))
    }
}

fn check(root: &Path, counts: &mut style::Counts) -> Vec<String> {
    let mut broken = Vec::new();
    arrows(root, &mut broken);
    cycles::check(root, &mut broken);
    broken.extend(crate::bpf::stale(root));
    for file in files(root) {
        let name = file.strip_prefix(root).unwrap_or(&file).to_string_lossy().into_owned();
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(_) => continue, // pictures
        };
        if name.ends_with(".rs") {
            source(&name, &text, &mut broken);
            lists::check(&name, &text, &mut broken);
            counts.add(&name, &text, &mut broken);
        } else if name.ends_with(".c") || name.ends_with(".h") {
            length(&name, &text, &mut broken);
        }
        if name.ends_with(".md") || (name.ends_with(".rs") && name.starts_with("crates/")) {
            words::check(&name, &text, &mut broken);
        }
        if name.starts_with("fixtures/") {
            fixture(&name, &text, &mut broken);
        }
    }
    for page in MAPS {
        match fs::read_to_string(root.join(page)) {
            Ok(text) => {
                if *page == "ARCHITECTURE.md" {
                    architecture(&text, &mut broken);
                }
                let missing = paths(&text).into_iter().filter(|path| !root.join(path).exists());
                broken.extend(missing.map(|path| format!("{}: there is no {}", page, path)));
            }
            Err(error) => broken.push(format!("{}: {}", page, error)),
        }
    }
    counts.check(&mut broken);
    broken
}

/// ARCHITECTURE.md must be short; what takes more words has a page of its own.
fn architecture(text: &str, broken: &mut Vec<String>) {
    let lines = text.lines().count();
    if lines > ARCHITECTURE_LINES {
        broken.push(format!("ARCHITECTURE.md: {} lines, more than {}", lines, ARCHITECTURE_LINES));
    }
    if text.len() > ARCHITECTURE_BYTES {
        broken.push(format!(
            "ARCHITECTURE.md: {} bytes, more than {}",
            text.len(),
            ARCHITECTURE_BYTES
        ));
    }
    for (index, line) in text.lines().enumerate() {
        let chars = line.chars().count();
        if chars > ARCHITECTURE_LINE_CHARS {
            let place = format!("ARCHITECTURE.md:{}", index + 1);
            broken.push(format!(
                "{}: {} characters, more than {}",
                place, chars, ARCHITECTURE_LINE_CHARS
            ));
        }
    }
}

/// The files and folders that a page names between backticks, relative to the root of the
/// repository.
fn paths(text: &str) -> Vec<&str> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted
        .filter(|word| word.contains('/') && !word.contains([' ', ':', '<']) && !is_format(word))
        .collect()
}

/// True for the name of a file format with its version: `pinfold-plan/1`.
fn is_format(word: &str) -> bool {
    word.rsplit('/')
        .next()
        .is_some_and(|last| !last.is_empty() && last.chars().all(|c| c.is_ascii_digit()))
}

/// Normal dependencies between our crates must be in [`ARROWS`]; tests may use more.
fn arrows(root: &Path, broken: &mut Vec<String>) {
    let mut manifests: Vec<PathBuf> = Vec::new();
    if let Ok(entries) = fs::read_dir(root.join("crates")) {
        manifests.extend(entries.flatten().map(|entry| entry.path().join("Cargo.toml")));
    }
    manifests.push(root.join("bench/Cargo.toml"));
    manifests.push(root.join("fuzz/Cargo.toml"));
    manifests.push(root.join("lab/Cargo.toml"));
    for manifest in manifests {
        let text = match fs::read_to_string(&manifest) {
            Ok(text) => text,
            Err(error) => {
                broken.push(format!("{}: {}", manifest.display(), error));
                continue;
            }
        };
        let (name, uses) = read_manifest(&text);
        match ARROWS.iter().find(|(from, _)| *from == name) {
            None => broken.push(format!("{}: the crate is not in the table of arrows", name)),
            Some((_, allowed)) => broken.extend(
                uses.iter()
                    .filter(|used| !allowed.contains(&used.as_str()))
                    .map(|used| format!("{}: must not depend on {}", name, used)),
            ),
        }
    }
}

/// The package's name and the `pinfold-*` crates under `[dependencies]`.
fn read_manifest(text: &str) -> (String, Vec<String>) {
    let mut section = "";
    let (mut name, mut uses) = (String::new(), Vec::new());
    for line in text.lines() {
        let line = line.trim();
        if line.starts_with('[') {
            section = line;
        } else if section == "[package]" && line.starts_with("name = ") {
            name = line["name = ".len()..].trim_matches('"').to_string();
        } else if section == "[dependencies]" && line.starts_with("pinfold") {
            uses.push(
                line.split(|c| c == '.' || c == ' ' || c == '=').next().unwrap_or("").to_string(),
            );
        }
    }
    (name, uses)
}

fn source(name: &str, text: &str, broken: &mut Vec<String>) {
    if !text.starts_with("//! ") && !name.contains("/tests/") {
        broken.push(format!("{}: the first line must be `//! ` and the file's job", name));
    }
    length(name, text, broken);
    let tests = name.contains("/tests") || name.ends_with("tests.rs");
    let of_ours = !name.starts_with("xtask/");
    let of_product = name.starts_with("crates/") && !tests && !name.contains("/examples/");
    // Neither tests nor comments.
    let tokens = tokens::product_code(text);
    let product: HashSet<usize> = tokens.iter().map(|token| token.line).collect();
    if of_ours && !name.starts_with("crates/pinfold-host/src/raw") {
        for token in tokens.iter().filter(|token| token.is("unsafe")) {
            broken.push(format!(
                "{}:{}: unsafe belongs into crates/pinfold-host/src/raw",
                name, token.line
            ));
        }
    }
    for (index, line) in
        text.lines().enumerate().filter(|(index, _)| product.contains(&(index + 1)))
    {
        let code = line.split("//").next().unwrap_or("");
        let place = format!("{}:{}", name, index + 1);
        let kernel_path = code.contains("\"/sys/") || code.contains("\"/proc/");
        // The table of tunables has the names of their files, and the texts for tuned one more;
        // nothing is opened there.
        let named = name.starts_with("crates/pinfold-model/src/tunables")
            || name == "crates/pinfold-emit/src/tuned.rs";
        // The names of tasks in a simulated host.
        let simulated = name.starts_with("crates/pinfold-host/src/sim")
            || name.starts_with("crates/pinfold-sim/");
        let shell = ["\"sh\"", "\"bash\"", "\"/bin/sh\""].iter().any(|word| code.contains(word));
        if of_product && shell && !simulated {
            broken.push(format!("{}: no shell; give a program its words", place));
        }
        // The simulated kernel has these files.
        let of_kernel = name.starts_with("crates/pinfold-host/src/")
            || name.starts_with("crates/pinfold-sim/src/");
        if of_product && kernel_path && !named && !of_kernel {
            broken.push(format!("{}: kernel paths belong into pinfold_host::paths", place));
        }
    }
}

fn length(name: &str, text: &str, broken: &mut Vec<String>) {
    let lines = text.lines().count();
    if lines > LONGEST_FILE && !name.contains("tests") {
        broken.push(format!("{}: {} lines; which concept wants a file of its own?", name, lines));
    }
}

/// Captured machines must not contain serial numbers, UUIDs, MAC addresses or host names.
fn fixture(name: &str, text: &str, broken: &mut Vec<String>) {
    for needle in [
        "product_serial",
        "product_uuid",
        "board_serial",
        "HostName",
        "DMIBoardSerial",
        "DMIProductUUID",
    ] {
        if text.contains(needle) {
            broken.push(format!("{}: holds {}, which identifies a machine", name, needle));
        }
    }
}

/// Files of the repository, without `target` and hidden folders.
fn files(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![root.to_path_buf()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with('.') || name == "target" {
                continue;
            }
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => open.push(path),
                Ok(kind) if kind.is_file() => found.push(path),
                _ => {}
            }
        }
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::{architecture, paths, read_manifest, source};

    #[test]
    fn manifests_are_read_by_section() {
        let text = "[package]\nname = \"pinfold-x\"\n[dependencies]\npinfold-model.workspace = true\nserde.workspace = true\n[dev-dependencies]\npinfold-host.workspace = true\n";
        assert_eq!(
            read_manifest(text),
            ("pinfold-x".to_string(), vec!["pinfold-model".to_string()])
        );
    }

    /// The text of a file, or of all files in a folder and below.
    fn text_below(path: &std::path::Path) -> String {
        let Ok(entries) = std::fs::read_dir(path) else {
            return std::fs::read_to_string(path).unwrap_or_default();
        };
        entries.flatten().map(|entry| text_below(&entry.path())).collect()
    }

    #[test]
    fn paths_of_a_page_are_found() {
        let text = "`crates/a/src/x.rs`, `a::b`, `plan --emit x/y`, `pinfold-plan/1` and `lab/`";
        assert_eq!(paths(text), vec!["crates/a/src/x.rs", "lab/"]);
    }

    #[test]
    fn a_long_architecture_page_is_named() {
        fn check(text: &str, count: usize) {
            let mut broken = Vec::new();
            architecture(text, &mut broken);
            assert_eq!(broken.len(), count, "{:?}", broken);
        }

        check(&"─\n".repeat(150), 0);
        check(&"─\n".repeat(151), 1);
        check(&"─".repeat(300), 0);
        check(&"─".repeat(301), 1);
        check(&format!("{}\n", "a".repeat(299)).repeat(42), 1);
    }

    #[test]
    fn broken_rules_are_named() {
        fn check(name: &str, text: &str, count: usize) {
            let mut broken = Vec::new();
            source(name, text, &mut broken);
            assert_eq!(broken.len(), count, "{:?}", broken);
        }

        check("crates/a/src/x.rs", "//! Does x.\nfn f() {}\n", 0);
        check("crates/a/src/x.rs", "fn f() {}\n", 1);
        check("crates/a/src/x.rs", "//! Does x.\nfn f() { unsafe { g() } }\n", 1);
        check("crates/a/src/x.rs", "//! Does x.\nconst P: &str = \"/proc/stat\";\n", 1);
        check("crates/a/src/x.rs", "//! Does x.\nconst S: &str = \"sh\";\n", 1);
        check(
            "crates/a/src/x.rs",
            "//! Does x.\n#[cfg(test)]\nmod x;\nconst S: &str = \"sh\";\n",
            1,
        );
        check(
            "crates/a/src/x.rs",
            "//! Does x.\n#[cfg(test)]\nmod tests {\nconst S: &str = \"sh\";\n",
            0,
        );
        check("crates/a/src/x.rs", "//! Does x.\nfn f() { g(\"--unsafe\") }\n", 0);
        check("crates/a/src/x.rs", "//! Does x.\n// unsafe \"/proc/stat\" in a comment\n", 0);
    }

    /// Names in code spans, in tables and between them; a folder has the text of all its files.
    #[test]
    fn names_in_the_list_of_changes_occur_in_its_files() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let page = std::fs::read_to_string(root.join("docs/changes.md")).unwrap();
        for row in page.lines() {
            let named = paths(row).into_iter().filter(|path| !path.starts_with('/'));
            let files: Vec<_> = named.map(|path| root.join(path)).collect();
            if files.is_empty() {
                continue;
            }
            let text: String = files.iter().map(|path| text_below(path)).collect();
            for name in row.split('`').skip(1).step_by(2) {
                let is_plain = name.chars().all(|c| c.is_ascii_alphanumeric() || "_:".contains(c));
                let is_code = name.contains("::")
                    || name.contains('_')
                    || name.chars().any(|c| c.is_ascii_uppercase());
                let last = name.rsplit("::").next().unwrap_or(name);
                assert!(!is_plain || !is_code || text.contains(last), "{}: {}", name, row);
            }
        }
    }
}
