//! Golden files.

use pinfold_host::files::{read_text, write_atomic};

/// Compares with the file `name` in the folder `src/tests/golden` of the crate in `folder`;
/// `PINFOLD_BLESS=1` rewrites it.
#[track_caller]
pub fn golden(folder: &str, name: &str, found: &str) {
    let path = format!("{folder}/src/tests/golden/{name}");
    if std::env::var_os("PINFOLD_BLESS").is_some() {
        write_atomic(&path, found.as_bytes()).unwrap();
    }
    let expected = read_text(&path).unwrap();
    assert_eq!(found, expected, "{name}: `cargo xtask golden` rewrites it");
}
