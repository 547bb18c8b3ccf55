//! `pinfold measure --guest SOCKET` and `compare --guest SOCKET`, in a real guest that runs
//! already: Debian's kernel in QEMU's translator, whose init is `pinload agent`.

use crate::common::machine::{QEMU, start_quietly};
use crate::common::{Checked as _, SECOND_NS, Sandbox, TIMEOUT_NS, assert_parts, is_missing, skip};
use pinfold_host::process::{Child, Output, Spawn, Stdio, find_program};
use pinfold_host::{SystemClock, files};
use pinfold_model::{Accelerator, Isa};
use pinfold_probe::agent::Agent;
use pinfold_probe::pinload;
use pinfold_vm::guest::{self, DemoGuest, GuestDisks, GuestError};
use serde_json::Value;

/// A boot on a machine where others work too.
const BOOT_NS: u64 = 300 * SECOND_NS;
const DISK_BYTES: usize = 1 << 20;

/// A guest of two vCPUs; it ends with this test.
struct Running {
    qemu: Child,
    socket: String,
    sandbox: Sandbox,
}

impl Running {
    /// Boots it; `None`, told with the reason, where there can be none.
    fn boot() -> Option<Self> {
        if is_missing(&[QEMU]) {
            return None;
        }
        let cache = files::cache_dir().expect("a cache directory");
        let kernel = match guest::fetch_kernel(&cache, &guest::DEMO_FLAVOUR, guest::DEMO_MODULES) {
            Err(GuestError::NoKernel { why, .. }) => {
                skip(format!("apt has no kernel for the guest here: {why}"));
                return None;
            }
            kernel => kernel.expect("a kernel"),
        };
        let sandbox = Sandbox::with_cache();
        let archive = guest::build_initramfs(&kernel, pinload::BINARY).expect("an initramfs");
        let demo = DemoGuest {
            isa: Isa::X86,
            qemu: find_program(QEMU)?,
            accelerator: Accelerator::TcgMulti,
            vcpus: 2,
            memory_mib: 256,
            page_table_levels: None,
            kernel: kernel.image,
            initramfs: sandbox.write("initramfs", archive),
            agent_socket: sandbox.path("agent.sock"),
            console: sandbox.write("console.log", ""),
            disks: GuestDisks {
                ahci: sandbox.write("ahci.img", vec![0x5a; DISK_BYTES]),
                virtio: sandbox.write("virtio.img", vec![0x5a; DISK_BYTES]),
            },
        };
        let socket = demo.agent_socket.clone();
        let argv = demo.argv();
        let qemu = start_quietly(Spawn::new(&argv[0]).args(&argv[1..]));
        // Whoever measures waits less long than a boot may take here.
        drop(Agent::connect(&socket, BOOT_NS, &SystemClock).expect("the guest says hello"));
        Some(Self { qemu, socket, sandbox })
    }

    /// `measure PROBE --guest SOCKET …`
    fn measure(&self, probe: &str, more: &[&str]) -> Output {
        let words = [&["measure", probe, "--guest", &self.socket], more].concat();
        self.sandbox.run(&words)
    }

    fn json(&self, probe: &str, more: &[&str]) -> Value {
        let output = self.measure(probe, &[&["--json"], more].concat());
        assert!(output.status.success(), "{probe}: {}", output.stderr_text());
        output.json()
    }

    fn refused(&self, probe: &str, more: &[&str], reported: &str) {
        let output = self.measure(probe, more);
        let said = output.stderr_text();
        assert_eq!(output.status.code(), Some(2), "{probe} {more:?}: {said}");
        assert!(said.contains(reported) && output.stdout.is_empty(), "{probe} {more:?}: {said}");
    }
}

fn cpus(reported: &Value) -> Vec<u64> {
    let summary = reported["summary"].as_array().expect("a summary");
    summary.iter().filter_map(|one| one["cpu"].as_u64()).collect()
}

/// Rulers and instruments, on all of its CPUs and on one.
fn check_probes(guest: &Running) {
    let reported = guest.json("wakeup", &["--seconds", "0.5", "--period", "10ms", "--blocks", "2"]);
    assert_eq!(cpus(&reported), [0, 1], "each of the guest's CPUs");
    let measurement = &reported["measurement"];
    let place = measurement["place"].as_str().expect("a place");
    assert!(place.starts_with("in a guest that was already running, other, TCG"), "{place}");
    assert_eq!(measurement["blocks"].as_array().map(Vec::len), Some(2));
    let origin = &measurement["origin"];
    assert!(origin["guest_kernel"].is_string(), "{origin}");
    assert_ne!(origin["accelerator"], "native", "{origin}");
    assert!(measurement["tool"].as_str().is_some_and(|tool| tool.starts_with("pinload ")));
    // Periods are told apart from wake-ups as on the host.
    assert!(reported["summary"][0]["open_loop"]["skipped"].is_u64(), "{}", reported["summary"]);
    assert_eq!(cpus(&guest.json("compute", &["--seconds", "0.5", "--cpus", "1"])), [1]);
    let words = ["--", "--from", "16K", "--to", "16K", "--operations", "read", "--windows", "30"];
    let reported = guest.json("bandwidth", &[&["--cpus", "0"], &words[..]].concat());
    let figure = &reported["measurement"]["blocks"][0]["figures"][0];
    assert_eq!(figure["probe"], "bandwidth");
    // Its own kernel is asked for stolen time, and can be.
    assert!(!figure["flags"].to_string().contains("steal-unknown"), "{}", figure["flags"]);
    let reported = guest.json("io", &["--seconds", "0.5", "--file", "/dev/vda"]);
    assert!(reported["summary"][0]["n"].as_u64() > Some(0), "{}", reported["summary"]);
    let output = guest.measure("micro-cpu", &["--seconds", "0.2"]);
    let text = output.stdout_text();
    assert!(
        text.contains("in a guest that was already running") && text.contains("guest under TCG")
    );
}

fn check_refusals(guest: &Running) {
    guest.refused("wakeup", &["--cpus", "1,7"], "the guest has no CPU 7 that is online");
    guest.refused("wakeup", &["--cpus", "7"], "it has 0-1");
    guest.refused("wakeup", &["--node", "0"], "cannot be used with");
    guest.refused("io", &[], "needs a disk or a file");
    guest.refused("compute", &["--policy", "fifo:3"], "would starve the CPU");
    let plan = guest.sandbox.print(&["plan", "-s", "none", "--vcpus", "1", "--json"]);
    let plan = guest.sandbox.write("none.json", plan);
    let words = ["compare", "--guest", &guest.socket, "--plan", &plan, "--plan", &plan];
    let output = guest.sandbox.run(&[&words[..], &["--", "wakeup"]].concat());
    assert_parts(&output.stderr_text(), &["only the demo guest can be started under a plan"]);
}

/// A probe in the guest against the same probe on this machine.
fn compared(guest: &Running, probe: &[&str]) -> Value {
    let words = ["compare", "--guest", &guest.socket, "--native", "--blocks", "2", "--json", "--"];
    let reported = guest.sandbox.print_json(&[&words[..], probe].concat());
    assert_eq!(reported["blocks"], 2);
    assert!(reported["first"].as_str().is_some_and(|name| name.contains("guest")), "{reported}");
    assert!(
        reported["second"].as_str().is_some_and(|name| name.starts_with("native")),
        "{reported}"
    );
    assert_eq!(reported["stolen"].as_array().map(Vec::len), Some(2));
    reported
}

/// Guest against native, the same program on both sides.
fn check_comparison(guest: &Running) {
    let reported = compared(guest, &["compute", "--seconds", "0.3"]);
    // A translator has never been quicker than what it translates to.
    let best =
        reported["rows"].as_array().expect("rows").iter().find(|row| row["statistic"] == "best");
    let ratio = best.and_then(|row| row["ratio"].as_f64()).expect("a ratio");
    assert!(ratio > 0.0 && ratio < 1.0, "{reported}");
    // Sizes pair whatever caches the guest sees.
    for probe in ["chase", "bandwidth"] {
        let sizes = ["--", "--from", "8K", "--to", "16K", "--steps", "1"];
        let reported = compared(guest, &[&[probe, "--seconds", "0.3"][..], &sizes].concat());
        assert_eq!(reported["unmatched"], serde_json::json!([]), "{reported}");
        let rows = reported["rows"].as_array().expect("rows");
        let bytes: Vec<&str> =
            rows.iter().filter_map(|row| row["labels"]["bytes"].as_str()).collect();
        assert_eq!((bytes.first(), bytes.last()), (Some(&"8192"), Some(&"16384")), "{reported}");
        assert!(rows.iter().all(|row| row["described"]["caches"].is_array()), "{reported}");
    }
}

/// It ends while it is measured: that is said, and there is no number.
fn check_its_end(mut guest: Running) {
    let words = ["measure", "wakeup", "--guest", &guest.socket, "--seconds", "600"];
    let mut child = guest
        .sandbox
        .spawn(&words)
        .stdout(Stdio::Pipe)
        .stderr(Stdio::Pipe)
        .start()
        .expect("pinfold starts");
    let mut said = Vec::new();
    let mut talk = child.stderr().expect("a pipe");
    // It says that it measures once it has reached the guest.
    while !String::from_utf8_lossy(&said).contains("measuring wakeup") {
        let mut byte = [0];
        let got = std::io::Read::read(&mut talk, &mut byte).expect("talk");
        assert!(got > 0, "{}", String::from_utf8_lossy(&said));
        said.extend(byte);
    }
    guest.qemu.kill().expect("QEMU ends");
    std::io::Read::read_to_end(&mut talk, &mut said).expect("talk");
    let end = child.wait_for(&SystemClock, TIMEOUT_NS).expect("it ends");
    let said = String::from_utf8_lossy(&said);
    assert_eq!(end.and_then(|status| status.code()), Some(4), "{said}");
    let mut printed = String::new();
    let mut data = child.stdout().expect("a pipe");
    std::io::Read::read_to_string(&mut data, &mut printed).expect("nothing");
    assert_eq!(printed, "", "no number of a guest that is gone");
    let output = guest.measure("wakeup", &["--seconds", "0.1"]);
    assert_ne!(output.status.code(), Some(0), "{}", output.stdout_text());
}

/// One boot for all of it: a boot takes longer than any measurement here.
#[test]
fn a_guest_that_runs_already_is_measured_and_left_alone() {
    let Some(guest) = Running::boot() else { return };
    check_probes(&guest);
    check_refusals(&guest);
    check_comparison(&guest);
    check_its_end(guest);
}
