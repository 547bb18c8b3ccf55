//! Runs the examples of a crate. `cargo test` builds them before the tests, `cargo test --test
//! examples` does not.

use std::path::Path;
use std::time::SystemTime;

use pinfold_host::process::Spawn;

const MINUTE_NS: u64 = 60_000_000_000;

/// The standard output of an example. It must end with exit code 0.
pub fn run(name: &str, arguments: &[&str]) -> String {
    let (code, output, errors) = try_run(name, arguments);
    assert_eq!(code, Some(0), "{name}: {output}{errors}");
    output
}

/// Exit code, standard output and standard error of an example, which must leave no temporary file.
pub fn try_run(name: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
    let test = std::env::current_exe().unwrap();
    let profile = test.parent().and_then(Path::parent).unwrap();
    let program = profile.join("examples").join(name);
    let source = format!("{}/examples/{name}.rs", env!("CARGO_MANIFEST_DIR"));
    let is_current = read_modified(&program) >= read_modified(Path::new(&source));
    assert!(is_current, "{} is not built from {source}: run `cargo test`", program.display());
    let temporary = tempfile::tempdir().unwrap();
    let temporary = temporary.path().to_string_lossy();
    let spawn = Spawn::new(&program.to_string_lossy()).args(arguments).env("TMPDIR", &temporary);
    let output = spawn.capture(MINUTE_NS).unwrap();
    let left = pinfold_host::files::list(&temporary).unwrap();
    assert!(left.is_empty(), "{name} left {left:?}");
    (output.status.code(), output.stdout_text(), output.stderr_text())
}

/// When a file was last written; `None` if it does not exist.
fn read_modified(path: &Path) -> Option<SystemTime> {
    path.metadata().and_then(|metadata| metadata.modified()).ok()
}
