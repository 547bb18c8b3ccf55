//! `apply`, `undo` and the hook on domains of a real libvirt, with TCG.

#![expect(clippy::expect_used, reason = "a test that cannot go on fails")]
#![expect(clippy::print_stdout, reason = "a test that cannot run says so")]

mod common;

use common::Daemon;
use pinfold_host::process::Output;
use pinfold_host::{Host as _, LiveHost};
use pinfold_model::{CpuSet, PuId, Tid};

const NAME: &str = "pinfold-test";

/// The daemon with a domain, or the reason why not; and the domain's process.
fn domain(inside: &str) -> Option<Daemon> {
    match Daemon::start(&[]) {
        Ok(daemon) => {
            daemon.start_domain(NAME, inside);
            Some(daemon)
        }
        Err(why) => {
            println!("skipped: {why}");
            None
        }
    }
}

/// The process of the domain: the one that its vCPU belongs to.
fn pid(daemon: &Daemon) -> Tid {
    let file = format!("{}/libvirt/qemu/run/{NAME}.pid", daemon.root());
    let text = pinfold_host::user::read_text(&file).expect("libvirt writes a pid file");
    Tid(text.trim().parse().expect("a number"))
}

/// Masks of all threads of the domain.
fn masks(pid: Tid) -> Vec<(String, CpuSet)> {
    let host = LiveHost::new().expect("a host");
    let tids = host.list(&pinfold_host::paths::task_dir(pid)).expect("threads");
    let mask = |tid: &str| host.affinity(Tid(tid.parse().expect("a number"))).expect("a mask");
    tids.into_iter().map(|tid| (tid.clone(), mask(&tid))).collect()
}

/// A plan for the domain that puts everything on one PU, as a file.
fn plan(daemon: &Daemon) -> (String, CpuSet) {
    let host = LiveHost::new().expect("a host");
    let own = host.affinity(pinfold_host::process::own_pid()).expect("a mask");
    let first = own.iter().next().expect("a PU");
    let avoid: CpuSet = own.iter().filter(|pu| *pu != first).collect();
    let words = ["plan", "--strategy", "compact", "--vcpus", "2", "--iothread", "iothread1"];
    let avoid = format!("--avoid={avoid}");
    let output = daemon.pinfold(&[&words[..], &[avoid.as_str(), "--json"]].concat());
    assert!(output.status.success(), "{}", output.stderr_text());
    let file = format!("{}/plan.json", daemon.root());
    pinfold_host::user::write_atomic(&file, &output.stdout).expect("written");
    (file, CpuSet::single(PuId(first.0)))
}

fn good(output: &Output) {
    let code = output.status.code();
    assert_eq!(code, Some(0), "{}{}", output.stdout_text(), output.stderr_text());
}

fn xml(daemon: &Daemon, words: &[&str]) -> String {
    daemon.virsh(&[&["dumpxml", NAME], words].concat()).expect("XML")
}

#[test]
fn apply_goes_through_libvirt_and_back() {
    // Half a <cputune>: one pin of the domain's own.
    let all = LiveHost::new().expect("a host").affinity(pinfold_host::process::own_pid());
    let all = all.expect("a mask");
    let tune = format!("<cputune><vcpupin vcpu='1' cpuset='{all}'/></cputune>");
    let Some(daemon) = domain(&tune) else { return };
    let pid = pid(&daemon);
    let before = (masks(pid), xml(&daemon, &["--inactive"]));
    let (file, one) = plan(&daemon);
    let place = ["apply", "--libvirt", NAME, "--plan", &file, "--config"];
    let dry = daemon.pinfold(&[&place[..], &["--dry-run"]].concat());
    good(&dry);
    assert!(dry.stdout_text().contains("vcpupin 0 in the definition of"), "{}", dry.stdout_text());
    assert_eq!((masks(pid), xml(&daemon, &["--inactive"])), before, "a dry run changes nothing");

    good(&daemon.pinfold(&place));
    assert!(masks(pid).iter().all(|(_, mask)| *mask == one), "{:?}", masks(pid));
    for words in [&[][..], &["--inactive"]] {
        let xml = xml(&daemon, words);
        for pin in
            ["vcpupin vcpu='0'", "vcpupin vcpu='1'", "emulatorpin", "iothreadpin iothread='1'"]
        {
            assert!(xml.contains(&format!("<{pin} cpuset='{one}'/>")), "{pin} in {xml}");
        }
    }
    good(&daemon.pinfold(&["status"]));
    let undone = daemon.pinfold(&["undo"]);
    good(&undone);
    assert_eq!((masks(pid), xml(&daemon, &["--inactive"])), before, "{}", undone.stderr_text());
}

#[test]
fn a_domain_is_found_by_name_uuid_and_id() {
    let Some(daemon) = domain("") else { return };
    let uuid = daemon.virsh(&["domuuid", NAME]).expect("a UUID");
    for wanted in [NAME, uuid.trim(), "1"] {
        let words = ["apply", "--libvirt", wanted, "--strategy", "none", "--dry-run"];
        good(&daemon.pinfold(&words));
    }
    let unknown = ["apply", "--libvirt", "nonesuch", "--strategy", "none"];
    let output = daemon.pinfold(&unknown);
    assert_eq!(output.status.code(), Some(4), "{}", output.stderr_text());
    assert!(
        output.stderr_text().contains("knows no domain \"nonesuch\""),
        "{}",
        output.stderr_text()
    );
}

#[test]
fn undo_waits_for_a_libvirt_that_is_away_and_finds_it_again() {
    let Some(mut daemon) = domain("") else { return };
    let pid = pid(&daemon);
    let before = masks(pid);
    let (file, _) = plan(&daemon);
    good(&daemon.pinfold(&["apply", "--libvirt", NAME, "--plan", &file, "--config"]));
    daemon.stop();
    let output = daemon.pinfold(&["undo"]);
    assert_eq!(output.status.code(), Some(5), "{}", output.stderr_text());
    let said = output.stderr_text();
    assert!(said.contains("failed to connect") && said.contains("pinfold undo"), "{said}");
    daemon.restart();
    good(&daemon.pinfold(&["undo"]));
    assert_eq!(masks(pid), before);
    assert!(!xml(&daemon, &["--inactive"]).contains("cputune"));
}

#[test]
fn a_domain_that_ended_leaves_only_its_definition_to_undo() {
    let Some(daemon) = domain("") else { return };
    let (file, _) = plan(&daemon);
    good(&daemon.pinfold(&["apply", "--libvirt", NAME, "--plan", &file, "--config"]));
    daemon.virsh(&["destroy", NAME]).expect("it ends");
    // Started anew it has the pins of its definition, which are not those of the first run.
    daemon.virsh(&["start", NAME, "--paused"]).expect("it starts");
    let (anew, running) = (masks(pid(&daemon)), xml(&daemon, &[]));
    good(&daemon.pinfold(&["undo"]));
    assert!(!xml(&daemon, &["--inactive"]).contains("cputune"));
    assert_eq!((masks(pid(&daemon)), xml(&daemon, &[])), (anew, running), "not ours to change");
}
