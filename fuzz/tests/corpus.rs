//! All kept inputs of all targets, run without the engine.

use std::path::Path;

use pinfold_fuzz::{TARGETS, corpus};

#[test]
fn every_kept_input_is_understood_or_refused() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/fuzz");
    let mut files: Vec<String> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    let mut expected: Vec<String> =
        TARGETS.iter().map(|target| format!("{}.corpus", target.name)).collect();
    expected.push("README.md".to_owned());
    expected.sort();
    assert_eq!(files, expected, "a corpus for each target and nothing else");
    for target in TARGETS {
        let file = folder.join(format!("{}.corpus", target.name));
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.lines().count() > 0, "{}: empty", target.name);
        for (number, line) in text.lines().enumerate() {
            let input = corpus::from_line(line).unwrap();
            println!("{} line {}", target.name, number + 1); // shown if it fails
            (target.run)(&input);
        }
    }
}
