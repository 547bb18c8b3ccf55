//! A virtual machine with a gap in its vCPU numbers: the plan is for those that are there, and one
//! that comes later and has no place is reported.

use crate::common::until;
use pinfold_host::process::{Child, Output, Spawn, capture, find_program};
use pinfold_host::{SystemClock, files};
use pinfold_vm::Monitor as _;
use pinfold_vm::qemu::{Qmp, QmpTransport as _};
use serde_json::{Value, json};

const PINFOLD: &str = env!("CARGO_BIN_EXE_pinfold");
const MINUTE_NS: u64 = 60_000_000_000;

struct TestMachine {
    folder: tempfile::TempDir,
    _qemu: Child,
}

impl TestMachine {
    /// A stopped QEMU with vCPUs 0 and 1 and room for two more, without a guest.
    fn new() -> Option<Self> {
        find_program("qemu-system-x86_64")?;
        let folder = tempfile::tempdir().expect("a folder");
        let line = "-S -M q35 -accel tcg,thread=multi -display none -nodefaults -m 64M -cpu qemu64 -smp 2,maxcpus=4,sockets=4,cores=1,threads=1 -name guest=t,debug-threads=on -qmp";
        let socket = format!("unix:{}/qmp,server=on,wait=off", folder.path().display());
        let words = line.split(' ').chain([socket.as_str()]);
        let qemu = crate::common::machine::start_qemu(Spawn::new("qemu-system-x86_64").args(words));
        let scene = Self { folder, _qemu: qemu };
        assert!(until(|| files::exists(&scene.file("qmp"))), "QEMU opens its monitor");
        Some(scene)
    }

    fn file(&self, name: &str) -> String {
        self.folder.path().join(name).to_string_lossy().into_owned()
    }

    /// Plugs a vCPU into a socket.
    fn plug(&self, socket: u32) {
        let mut qmp = Qmp::connect(&self.file("qmp"), MINUTE_NS, SystemClock).expect("a monitor");
        let device = json!({ "driver": "qemu64-x86_64-cpu", "socket-id": socket, "core-id": 0, "thread-id": 0 });
        qmp.execute("device_add", Some(device)).expect("a vCPU");
        assert!(until(|| qmp.cpus().is_ok_and(|cpus| cpus.iter().any(|cpu| cpu.index == socket))));
    }

    fn pinfold(&self, words: &[&str]) -> Output {
        let state = self.file("state");
        capture(PINFOLD, [&["--state-dir", &state], words].concat(), MINUTE_NS).expect("it runs")
    }

    fn status(&self) -> (Option<i32>, Value) {
        let output = self.pinfold(&["status", "--json"]);
        let found: Value = serde_json::from_str(&output.stdout_text()).expect("JSON");
        (output.status.code(), found["in_force"][0].clone())
    }
}

/// The vCPUs of a status with their planned CPUs, and whether each is as planned.
fn vcpus(status: &Value) -> Vec<(String, String, bool)> {
    let text = |role: &Value, key: &str| role[key].as_str().unwrap_or_default().to_owned();
    let roles = status["roles"].as_array().expect("roles").iter();
    let vcpus = roles.filter(|role| text(role, "role").starts_with("vcpu"));
    vcpus
        .map(|role| (text(role, "role"), text(role, "planned"), role["ok"] == json!(true)))
        .collect()
}

#[test]
fn a_gap_in_the_numbers_of_vcpus_leaves_none_without_a_place() {
    let Some(scene) = TestMachine::new() else {
        return println!("skipped: qemu-system-x86_64 is not installed");
    };
    let qmp = scene.file("qmp");
    scene.plug(3);
    let apply = ["apply", "--qmp", &qmp, "--strategy", "compact", "--pin", "vcpu(3)=0"];
    let wrong = scene.pinfold(&[&apply[..5], &["--pin", "vcpu(2)=0"]].concat());
    assert_eq!(wrong.status.code(), Some(2), "{}", wrong.stderr_text());
    assert!(wrong.stderr_text().contains("no vCPU 2"), "{}", wrong.stderr_text());
    let applied = scene.pinfold(&apply);
    assert!(applied.status.success(), "{}", applied.stderr_text());
    let (code, found) = scene.status();
    assert_eq!(code, Some(0), "{found}");
    let placed = vcpus(&found);
    let names: Vec<&str> = placed.iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!(names, ["vcpu(0)", "vcpu(1)", "vcpu(3)"]);
    assert_eq!(placed[2].1, "0", "the pin names the vCPU by its number");
    assert!(placed.iter().all(|(_, pus, ok)| *ok && pus.parse::<u32>().is_ok()), "{placed:?}");

    scene.plug(2);
    let (code, found) = scene.status();
    assert_eq!(code, Some(1), "a vCPU without a place is drift: {found}");
    assert!(found.to_string().contains("vcpu(2)") && !vcpus(&found)[2].2, "{found}");
    assert!(scene.pinfold(&["undo"]).status.success());

    // A plan from a file for fewer numbers than there are is refused.
    let plan = scene.pinfold(&["plan", "--strategy", "compact", "--vcpus", "3", "--json"]);
    let file = scene.file("plan.json");
    files::write_atomic(&file, plan.stdout_text().as_bytes()).expect("a plan");
    let refused = scene.pinfold(&["apply", "--qmp", &qmp, "--plan", &file]);
    assert_eq!(refused.status.code(), Some(2), "{}", refused.stderr_text());
}
