//! `pinfold doctor` of a captured machine.

use pinfold_host::process::capture;
use serde_json::Value;

const PINFOLD: &str = env!("CARGO_BIN_EXE_pinfold");
const SECOND_NS: u64 = 1_000_000_000;

#[test]
fn a_captured_machine_is_looked_at() {
    let pinfold = |words: &[&str]| capture(PINFOLD, words, 60 * SECOND_NS).expect("pinfold runs");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("host.capture").to_string_lossy().into_owned();
    let made = pinfold(&["topo", "--capture"]);
    assert!(made.status.success(), "{}", made.stderr_text());
    pinfold_host::user::write_atomic(&file, &made.stdout).expect("written");
    let output = pinfold(&["doctor", "--input", &file, "--json"]);
    assert!(output.status.success(), "{}", output.stderr_text());
    let found: Value = serde_json::from_str(&output.stdout_text()).expect("JSON");
    let why = |name: &str| {
        let rows = found["capabilities"].as_array().expect("rows");
        let row = rows.iter().find(|row| row["name"] == name).expect("a row");
        row["why"].as_str().expect("a reason").to_owned()
    };
    for answered in ["IOMMU groups", "VFIO", "KSM off", "swap off", "C-states", "halt polling"] {
        assert_ne!(why(answered), "not in the capture", "{answered}");
    }
    assert_ne!(why("no BPF scheduler"), "not in the capture");
    assert_eq!(why("QEMU"), "not in the capture");

    // A capture says nothing of QEMU, so it cannot say that `tune` runs.
    let answer = pinfold(&["doctor", "--input", &file]).stdout_text();
    assert!(
        answer.starts_with("the capture does not show whether pinfold tune can run"),
        "{answer}"
    );
    assert!(answer.contains("are not in the capture"), "{answer}");

    let refused = pinfold(&["doctor", "--input", "core:4 pu:2"]);
    assert_eq!(refused.status.code(), Some(2), "{}", refused.stderr_text());
    assert!(refused.stderr_text().contains("pinfold topo --capture"), "{}", refused.stderr_text());
}
