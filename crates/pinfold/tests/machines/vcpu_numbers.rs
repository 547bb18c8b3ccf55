//! A virtual machine with a gap in its vCPU numbers: the plan is for those that are there, and one
//! that comes later and has no place is reported.

use crate::common::machine::Machine;
use crate::common::{Checked as _, until};
use pinfold_vm::Monitor as _;
use pinfold_vm::qemu::QmpTransport as _;
use serde_json::{Value, json};

/// Plugs a vCPU into a socket.
fn plug(machine: &Machine, socket: u32) {
    let mut qmp = machine.connect();
    let device =
        json!({ "driver": "qemu64-x86_64-cpu", "socket-id": socket, "core-id": 0, "thread-id": 0 });
    qmp.execute("device_add", Some(device)).expect("a vCPU");
    assert!(until(|| qmp.cpus().is_ok_and(|cpus| cpus.iter().any(|cpu| cpu.index == socket))));
}

/// The exit code of `status`, and what it prints of the machine.
fn status(machine: &Machine) -> (Option<i32>, Value) {
    let output = machine.run(&["status", "--json"]);
    (output.status.code(), output.json()["in_force"][0].clone())
}

/// The vCPUs of a status with their planned CPUs, and whether each is as planned.
fn vcpus(status: &Value) -> Vec<(String, String, bool)> {
    let roles = status["roles"].as_array().expect("roles").iter();
    let vcpus = roles.filter(|role| text(role, "role").starts_with("vcpu"));
    vcpus
        .map(|role| (text(role, "role"), text(role, "planned"), role["ok"] == json!(true)))
        .collect()
}

fn text(role: &Value, key: &str) -> String {
    role[key].as_str().unwrap_or_default().to_owned()
}

#[test]
fn a_gap_in_the_numbers_of_vcpus_leaves_none_without_a_place() {
    // vCPUs 0 and 1, and room for two more.
    let options = "-cpu qemu64 -smp 2,maxcpus=4,sockets=4,cores=1,threads=1";
    let Some(scene) = Machine::new(options) else { return };
    let qmp = scene.qmp();
    plug(&scene, 3);
    let apply = ["apply", "--qmp", &qmp, "--strategy", "compact", "--pin", "vcpu(3)=0"];
    scene.refuse(&[&apply[..5], &["--pin", "vcpu(2)=0"]].concat(), 2, "no vCPU 2");
    scene.run(&apply).expect_success();
    let (code, found) = status(&scene);
    assert_eq!(code, Some(0), "{found}");
    let placed = vcpus(&found);
    let names: Vec<&str> = placed.iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!(names, ["vcpu(0)", "vcpu(1)", "vcpu(3)"]);
    assert_eq!(placed[2].1, "0", "the pin names the vCPU by its number");
    assert!(placed.iter().all(|(_, pus, ok)| *ok && pus.parse::<u32>().is_ok()), "{placed:?}");

    plug(&scene, 2);
    let (code, found) = status(&scene);
    assert_eq!(code, Some(1), "a vCPU without a place is drift: {found}");
    assert!(found.to_string().contains("vcpu(2)") && !vcpus(&found)[2].2, "{found}");
    assert!(scene.run(&["undo"]).status.success());

    // A plan from a file for fewer numbers than there are is refused.
    let plan = scene.run(&["plan", "--strategy", "compact", "--vcpus", "3", "--json"]);
    let file = scene.write("plan.json", plan.stdout_text());
    scene.run(&["apply", "--qmp", &qmp, "--plan", &file]).expect_code(2);
}
