//! Domain files of people on every host of `fixtures/hosts`: a file that follows the advice of its
//! check has no finding that it had not before, and following advice again changes nothing. By
//! default on hosts with few CPUs; `PINFOLD_TEST_SIZE=full` takes larger ones too.

use std::collections::BTreeSet;

use pinfold_lint::{Diagnostic, fix, lint};
use pinfold_model::{Request, Severity, Topology};
use pinfold_plan::layout::Layout;
use pinfold_samples::hosts;

use crate::by_size;

const FILES: [&str; 2] = [
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/domains"),
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/examples"),
];

/// The domain files by name; those that describe a CPU also with the host's caches.
fn files() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for folder in FILES {
        let names = pinfold_host::files::list(folder).expect("a folder of domain files");
        for name in names.into_iter().filter(|name| name.ends_with(".xml")) {
            let text = pinfold_host::files::read_text(&format!("{folder}/{name}")).expect("a text");
            if text.contains("<topology ") && !text.contains("<cache ") {
                let cached =
                    text.replacen("<topology ", "<cache mode='passthrough'/><topology ", 1);
                found.push((format!("{name} with the host's caches"), cached));
            }
            found.push((name, text));
        }
    }
    found
}

fn worse(xml: &str, topology: &Topology) -> Vec<Diagnostic> {
    let layout = Layout::of_text(xml, "vm.xml").unwrap_or_else(|error| panic!("{error}\n{xml}"));
    let mut diagnostics = lint(&[layout], topology);
    diagnostics.retain(|diagnostic| diagnostic.severity >= Severity::Warning);
    diagnostics
}

fn names<'f>(diagnostics: impl IntoIterator<Item = &'f Diagnostic>) -> BTreeSet<&'static str> {
    diagnostics.into_iter().map(|diagnostic| diagnostic.name).collect()
}

#[test]
fn advice_that_is_followed_brings_no_new_finding_and_settles() {
    let conditions = Request::from_vnodes(Vec::new());
    let (mut cases, mut changed, mut wrong) = (0, 0, Vec::new());
    let files = files();
    for (host, topology) in hosts().into_iter().filter(|host| host.1.pus.len() <= by_size(64, 16)) {
        for (file, xml) in &files {
            let case = format!("{file} on {host}");
            let fixed = |xml: &str| match fix(xml, "vm.xml", &topology, &conditions) {
                Ok(fixed) => fixed,
                Err(error) => panic!("{case}: {error}"),
            };
            let before = names(&worse(xml, &topology));
            let once = fixed(xml);
            let after = worse(&once.text, &topology);
            // What one check does not say must not be needed to follow it.
            let reported = names(once.done.iter().chain(&once.left));
            let new: Vec<_> = reported.union(&names(&after)).copied().collect();
            let new: Vec<_> = new.into_iter().filter(|name| !before.contains(name)).collect();
            if !new.is_empty() {
                wrong.push(format!("{case}: new {new:?}, before {before:?}"));
            }
            if fixed(&once.text).text != once.text {
                wrong.push(format!("{case}: fixed twice"));
            }
            for diagnostic in &after {
                if !diagnostic.is_final {
                    wrong.push(format!(
                        "{case}: left open: {}: {}",
                        diagnostic.name, diagnostic.what
                    ));
                }
            }
            changed += usize::from(once.text != *xml);
            cases += 1;
        }
    }
    assert!(wrong.is_empty(), "{} of {cases}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(files.len() > 15 && changed * 4 > cases, "{changed} of {cases}");
}
