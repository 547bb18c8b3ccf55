//! `pinfold doctor` of a captured machine.

use crate::common::{Checked as _, Sandbox};
use pinfold_host::{SnapshotHost, paths};
use serde_json::Value;

#[test]
fn a_captured_machine_is_looked_at() {
    let sandbox = Sandbox::new();
    let file = sandbox.write("host.capture", sandbox.print(&["topo", "--capture"]));
    let output = sandbox.run(&["doctor", "--input", &file, "--json"]).expect_success();
    let found: Value = output.json();
    for answered in ["IOMMU groups", "VFIO", "KSM off", "swap off", "C-states", "halt polling"] {
        assert_ne!(why_of(answered, &found), "not in the capture", "{answered}");
    }
    assert_ne!(why_of("no BPF scheduler", &found), "not in the capture");
    assert_eq!(why_of("QEMU", &found), "not in the capture");

    // A capture says nothing of QEMU, so it cannot say that `tune` runs.
    let answer = sandbox.run(&["doctor", "--input", &file]).stdout_text();
    assert!(
        answer.starts_with("the capture does not show whether pinfold tune can run; it decides"),
        "{answer}"
    );

    sandbox.refuse(&["doctor", "--input", "core:4 pu:2"], 2, "pinfold topo --capture");
}

fn why_of(name: &str, found: &Value) -> String {
    let rows = found["capabilities"].as_array().expect("rows");
    let row = rows.iter().find(|row| row["name"] == name).expect("a row");
    row["why"].as_str().expect("a reason").to_owned()
}

/// The rows of a capture are those of its files, whatever this machine has; rows that only the
/// machine itself can answer say so.
#[test]
fn rows_are_decided_by_the_capture() {
    let sandbox = Sandbox::new();
    let file = sandbox.path("host.capture");
    let made = sandbox.run(&["topo", "--capture"]).stdout_text();
    let rows = |edit: &dyn Fn(&mut SnapshotHost)| -> Vec<(String, String, String)> {
        let mut tree = SnapshotHost::parse(&made).expect("a capture");
        edit(&mut tree);
        sandbox.write("host.capture", tree.to_text());
        let found = sandbox.run(&["doctor", "--input", &file, "--json"]).json();
        found["capabilities"]
            .as_array()
            .expect("rows")
            .iter()
            .map(|row: &Value| (text(row, "name"), text(row, "verdict"), text(row, "why")))
            .collect()
    };
    let quiet = rows(&|tree| {
        tree.insert_file(&paths::ksm_run(), "0\n");
        tree.insert_file(&paths::swaps(), "Filename Type Size Used Priority\n");
        tree.remove(&paths::sched_ext_state());
    });
    let busy = rows(&|tree| {
        tree.insert_file(&paths::ksm_run(), "1\n");
        tree.insert_file(
            &paths::swaps(),
            "Filename Type Size Used Priority\nswap file 1024 512 -2\n",
        );
        tree.insert_file(&paths::sched_ext_state(), "enabled\n");
        tree.insert_file(&paths::sched_ext_ops(), "scx_lavd\n");
    });
    for (name, verdicts) in [
        ("KSM off", ("yes", "no")),
        ("swap off", ("yes", "partly")),
        ("no BPF scheduler", ("yes", "partly")),
    ] {
        let found = (verdict_of(&quiet, name).0, verdict_of(&busy, name).0);
        assert_eq!((found.0.as_str(), found.1.as_str()), verdicts, "{name}");
    }
    assert!(verdict_of(&busy, "no BPF scheduler").1.contains("scx_lavd"), "{busy:?}");
    let not_known: Vec<&str> =
        busy.iter().filter(|row| row.2 == "not in the capture").map(|row| row.0.as_str()).collect();
    for live_only in ["QEMU", "KVM", "libvirt"] {
        assert!(not_known.contains(&live_only), "{live_only}: {not_known:?}");
        assert_eq!(verdict_of(&busy, live_only).0, "partly");
    }
    let text = sandbox.run(&["doctor", "--input", &file]).stdout_text();
    let decided =
        format!("it decides {} of {} capabilities: ", busy.len() - not_known.len(), busy.len());
    assert!(text.contains(&decided) && !text.contains("can run here"), "{text}");
}

fn verdict_of(rows: &[(String, String, String)], name: &str) -> (String, String) {
    let row = rows.iter().find(|row| row.0 == name).expect("a row");
    (row.1.clone(), row.2.clone())
}

fn text(row: &Value, key: &str) -> String {
    row[key].as_str().expect("a text").to_owned()
}
