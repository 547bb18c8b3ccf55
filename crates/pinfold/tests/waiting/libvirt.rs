//! `apply`, `undo` and the hook on domains of a real libvirt, with TCG.

use std::collections::BTreeMap;

use crate::common::machine::{list_masks, list_threads};
use crate::common::{Checked as _, PINFOLD, SECOND_NS, Sandbox, assert_parts, run, skip, until};
use crate::daemon::Daemon;
use pinfold_host::process::{Output, Signaled, Spawn, Stdio, find_program, is_root, own_pid};
use pinfold_host::{Clock as _, Host as _, HostMut as _, LiveHost, SystemClock, files, paths};
use pinfold_model::text::{cpus_text, pus_text};
use pinfold_model::{CpuSet, PuId, Tid};

pub const NAME: &str = "pinfold-test";

/// The daemon with a domain.
fn domain(inside: &str) -> Option<Daemon> {
    let daemon = Daemon::start(NAME)?;
    start_domain(&daemon, inside);
    Some(daemon)
}

/// Defines the domain and starts it stopped: two vCPUs, one iothread, TCG.
pub fn start_domain(daemon: &Daemon, inside: &str) {
    start_with(daemon, "<vcpu>2</vcpu>", inside);
}

/// The same with these vCPUs.
fn start_with(daemon: &Daemon, vcpus: &str, inside: &str) {
    let emulator = find_program("qemu-system-x86_64").expect("it was found before");
    let xml = format!(
        "<domain type='qemu'><name>{NAME}</name><memory unit='MiB'>32</memory>{vcpus}
         <iothreads>1</iothreads><iothreadids><iothread id='1'/></iothreadids>{inside}
         <os><type arch='x86_64' machine='q35'>hvm</type></os>
         <devices><emulator>{emulator}</emulator></devices></domain>"
    );
    let file = format!("{}/domain.xml", root(daemon));
    files::write_atomic(&file, xml.as_bytes()).expect("written");
    daemon.virsh(&["define", &file]).expect("it is defined");
    daemon.virsh(&["start", NAME, "--paused"]).expect("it starts");
}

/// The daemon's folder.
pub fn root(daemon: &Daemon) -> String {
    daemon.folder.path().to_string_lossy().into_owned()
}

/// Runs pinfold, with this libvirt as its default.
fn pinfold(daemon: &Daemon, arguments: &[&str]) -> Output {
    let state = format!("--state-dir={}/state", root(daemon));
    let uri = format!("LIBVIRT_DEFAULT_URI={}", daemon.uri());
    run("env", [&[&uri, PINFOLD, &state], arguments].concat())
}

/// The process of the domain: the one that its vCPU belongs to.
pub fn pid(daemon: &Daemon) -> Tid {
    let file = format!("{}/libvirt/qemu/run/{NAME}.pid", root(daemon));
    let text = files::read_text(&file).expect("libvirt writes a pid file");
    Tid(text.trim().parse().expect("a number"))
}

/// Masks of all threads of the domain.
pub fn masks(pid: Tid) -> BTreeMap<Tid, CpuSet> {
    list_masks(&LiveHost::new().expect("a host"), pid)
}

/// A plan for the domain that puts everything on one CPU, as a file.
fn plan(daemon: &Daemon) -> (String, CpuSet) {
    let host = LiveHost::new().expect("a host");
    let own = host.affinity(own_pid()).expect("a mask");
    let first = own.iter().next().expect("a CPU");
    let avoid: CpuSet = own.iter().filter(|pu| *pu != first).collect();
    let words = ["plan", "--strategy", "compact", "--vcpus", "2", "--iothread", "iothread1"];
    let avoid = format!("--avoid={avoid}");
    let output =
        pinfold(daemon, &[&words[..], &[avoid.as_str(), "--json"]].concat()).expect_success();
    let file = format!("{}/plan.json", root(daemon));
    files::write_atomic(&file, &output.stdout).expect("written");
    (file, CpuSet::single(PuId(first.0)))
}

fn xml(daemon: &Daemon, words: &[&str]) -> String {
    daemon.virsh(&[&["dumpxml", NAME], words].concat()).expect("XML")
}

#[test]
fn a_search_on_a_domain_leaves_its_pins() {
    let own = LiveHost::new().expect("a host").affinity(own_pid()).expect("a mask");
    let tune = format!("<cputune><vcpupin vcpu='1' cpuset='{own}'/></cputune>");
    let Some(daemon) = domain(&tune) else { return };
    let pid = pid(&daemon);
    let before = (masks(pid), xml(&daemon, &["--inactive"]));
    let words = ["tune", "--libvirt", NAME, "--strategies", "compact", "--budget", "2m"];
    let words = [&words[..], &["--max-harm", "100%"]].concat();
    let said = pinfold(&daemon, &words).expect_code(4);
    assert!(said.contains("so nothing can be measured"), "{said}");
    daemon.virsh(&["resume", NAME]).expect("it runs");
    let found = pinfold(&daemon, &[&words[..], &["--json"]].concat()).expect_success().json();
    assert_eq!(found["machine"], NAME);
    assert!(found["placements"][2]["windows"].as_u64().is_some_and(|windows| windows > 0));
    assert_eq!((masks(pid), xml(&daemon, &["--inactive"])), before);
}

#[test]
fn apply_goes_through_libvirt_and_back() {
    // Half a <cputune>: one pin of the domain's own.
    let all = LiveHost::new().expect("a host").affinity(own_pid());
    let all = all.expect("a mask");
    let tune = format!("<cputune><vcpupin vcpu='1' cpuset='{all}'/></cputune>");
    let Some(daemon) = domain(&tune) else { return };
    let pid = pid(&daemon);
    let before = (masks(pid), xml(&daemon, &["--inactive"]));
    let (file, one) = plan(&daemon);
    let place = ["apply", "--libvirt", NAME, "--plan", &file, "--config"];
    let dry = pinfold(&daemon, &[&place[..], &["--dry-run"]].concat()).expect_success();
    assert!(dry.stdout_text().contains("vcpupin 0 in the definition of"), "{}", dry.stdout_text());
    assert_eq!((masks(pid), xml(&daemon, &["--inactive"])), before, "a dry run changes nothing");

    pinfold(&daemon, &place).expect_success();
    assert!(masks(pid).values().all(|mask| *mask == one), "{:?}", masks(pid));
    for words in [&[][..], &["--inactive"]] {
        let xml = xml(&daemon, words);
        for pin in
            ["vcpupin vcpu='0'", "vcpupin vcpu='1'", "emulatorpin", "iothreadpin iothread='1'"]
        {
            assert!(xml.contains(&format!("<{pin} cpuset='{one}'/>")), "{pin} in {xml}");
        }
    }
    let shown = pinfold(&daemon, &["status", NAME]).expect_success();
    assert!(shown.stdout_text().contains("1 placement is active"), "{}", shown.stdout_text());
    assert_eq!(pinfold(&daemon, &["status", "nonesuch"]).status.code(), Some(2));
    let undone = pinfold(&daemon, &["undo", NAME]).expect_success();
    assert_eq!((masks(pid), xml(&daemon, &["--inactive"])), before, "{}", undone.stderr_text());
}

#[test]
fn watch_leaves_threads_where_their_owner_moves_them_and_places_new_ones_through_libvirt() {
    let host = LiveHost::new().expect("a host");
    if host.affinity(own_pid()).expect("a mask").len() < 2 {
        skip("with one CPU nothing can be moved");
        return;
    }
    let Some(daemon) = Daemon::start(NAME) else { return };
    start_with(&daemon, "<vcpu current='2'>3</vcpu>", "");
    let pid = pid(&daemon);
    let before = masks(pid);
    let (file, one) = plan(&daemon);
    pinfold(&daemon, &["apply", "--libvirt", NAME, "--plan", &file]).expect_success();
    let state = format!("--state-dir={}/state", root(&daemon));
    let log = format!("{}/watch.log", root(&daemon));
    let line = "exec \"$@\" >\"$0\" 2>&1";
    let mut watch = Spawn::new("sh")
        .args(["-c", line, &log, PINFOLD, &state, "watch", NAME])
        .stdin(Stdio::Null)
        .die_with_parent(true)
        .start()
        .expect("pinfold starts");
    let reported = |words: &str| {
        assert!(
            until(|| files::read_text(&log).unwrap_or_default().contains(words)),
            "waited in vain for {words} in:\n{}",
            files::read_text(&log).unwrap_or_default()
        );
    };
    reported("watching 1 placement;");
    // Behind libvirt's back: it has the pin of the plan.
    let all = format!("0-{}", one.iter().map(|pu| pu.0).max().unwrap_or(0).max(1));
    let elsewhere = CpuSet::parse_list(&all).expect("a list");
    let first = list_threads(&host, pid)
        .into_iter()
        .find(|tid| {
            host.read_text(&paths::task_comm(pid, *tid)).is_ok_and(|it| it.starts_with("CPU 0/"))
        })
        .expect("a vCPU");
    let other = elsewhere.difference(&one);
    host.set_affinity(first, &other).expect("it moves");
    reported(&format!("new plan: vcpu(0) stays on {}", pus_text(&other)));
    assert_eq!(host.affinity(first).expect("a mask"), other);
    assert_parts(&xml(&daemon, &[]), &[&format!("<vcpupin vcpu='0' cpuset='{one}'/>")]);
    // Through libvirt.
    daemon.virsh(&["vcpupin", NAME, "0", &all, "--live"]).expect("it moves");
    reported(&format!("(vcpu(0)): its owner moved it to {}", cpus_text(&elsewhere)));
    reported(&format!("new plan: vcpu(0) stays on {}", pus_text(&elsewhere)));
    pinfold(&daemon, &["status"]).expect_success();
    assert_eq!(host.affinity(first).expect("a mask"), elsewhere);
    // libvirt sends no event for these.
    daemon.virsh(&["setvcpus", NAME, "3", "--live"]).expect("one more");
    reported("new plan: vcpu(2) was added and has CPU");
    daemon.virsh(&["iothreadadd", NAME, "2", "--live"]).expect("one more");
    reported("new plan: iothread(iothread2) was added and has CPU");
    let shown = pinfold(&daemon, &["status"]).expect_success().stdout_text();
    assert!(shown.contains("vcpu(2)") && shown.contains("iothread(iothread2)"), "{shown}");
    let now = xml(&daemon, &[]);
    assert_parts(&now, &["<vcpupin vcpu='2' cpuset='", "<iothreadpin iothread='2' cpuset='"]);
    assert_parts(&now, &[&format!("<vcpupin vcpu='0' cpuset='{elsewhere}'/>")]);
    watch.kill().expect("it ends");
    pinfold(&daemon, &["undo"]).expect_success();
    let after = masks(pid);
    assert!(before.iter().all(|(tid, mask)| after.get(tid) == Some(mask)), "{before:?} {after:?}");
    assert!(after.values().all(|mask| before.values().any(|other| other == mask)), "{after:?}");
}

/// A virsh that waits before it pins, as one does whose libvirt is busy.
#[test]
fn a_kill_ends_the_virsh_that_is_about_to_pin() {
    let Some(daemon) = domain("") else { return };
    let pid = pid(&daemon);
    let before = (masks(pid), xml(&daemon, &[]));
    let (file, _) = plan(&daemon);
    let slow = Sandbox::new();
    let virsh = find_program("virsh").expect("it was found before");
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in *pin*--live*) echo > {begun}; sleep 2; echo > {late};; esac\nexec {virsh} \"$@\"\n",
        begun = slow.path("begun"),
        late = slow.path("late"),
    );
    slow.write("text", script);
    // Written by others: a file that is open for writing in a child of another test cannot be run.
    run("cp", [&slow.path("text"), &slow.path("virsh")]).expect_success();
    run("chmod", ["0755", &slow.path("virsh")]).expect_success();
    let search = format!("{}:{}", slow.root(), std::env::var("PATH").expect("PATH"));
    let mut placing = Spawn::new(PINFOLD)
        .args([&format!("--state-dir={}/state", root(&daemon)), "apply", "--libvirt", NAME])
        .args(["--plan", &file])
        .env("PATH", &search)
        .env("LIBVIRT_DEFAULT_URI", &daemon.uri())
        .stdin(Stdio::Null)
        .die_with_parent(true)
        .start()
        .expect("pinfold starts");
    assert!(until(|| files::exists(&slow.path("begun"))), "it comes to the first pin");
    placing.signal(Signaled::Kill).expect("killed");
    placing.wait().expect("it ends");
    pinfold(&daemon, &["undo"]).expect_success();
    SystemClock.sleep_ns(3 * SECOND_NS);
    assert!(!files::exists(&slow.path("late")), "the virsh of the killed Pinfold went on");
    assert_eq!((masks(pid), xml(&daemon, &[])), before);
}

#[test]
fn a_domain_is_found_by_name_uuid_and_id_and_its_numatune_is_heeded() {
    let tune = "<numatune><memory mode='strict' nodeset='0'/></numatune>";
    let Some(daemon) = domain(tune) else { return };
    let uuid = daemon.virsh(&["domuuid", NAME]).expect("a UUID");
    for wanted in [NAME, uuid.trim(), "1"] {
        let words = ["apply", "--libvirt", wanted, "--strategy", "none", "--dry-run"];
        pinfold(&daemon, &words).expect_success();
        pinfold(&daemon, &["apply", wanted, "--strategy", "none", "--dry-run"]).expect_success();
    }
    let uri = format!("LIBVIRT_DEFAULT_URI={}", daemon.uri());
    let ask = [&uri, "PINFOLD_COMPLETE=fish", PINFOLD, "--", "pinfold"];
    let words = [&ask[..], &["apply", "--libvirt", ""]].concat();
    let completed = run("env", words).stdout_text();
    assert_eq!(completed, format!("{NAME}\tdomain\n"));
    let unknown = ["apply", "--libvirt", "nonesuch", "--strategy", "none"];
    assert_parts(&pinfold(&daemon, &unknown).expect_code(4), &["knows no domain \"nonesuch\""]);
    let said = pinfold(&daemon, &["apply", "nonesuch", "--strategy", "none"]).expect_code(4);
    assert!(said.contains("no libvirt domain and no running QEMU is named nonesuch"), "{said}");
    // The nodes are those of `virsh dumpxml`. With one CPU this strategy refuses everywhere, and
    // names the nodes to which it was restricted.
    assert!(xml(&daemon, &[]).contains("nodeset='0'"), "{}", xml(&daemon, &[]));
    let own = LiveHost::new().expect("a host").affinity(own_pid()).expect("a mask");
    let avoid: Vec<String> = own.iter().skip(1).map(|pu| pu.to_string()).collect();
    let avoid = format!("--avoid={}", avoid.join(","));
    let place = ["apply", "--libvirt", NAME, "-s", "low-latency", "--dry-run", avoid.as_str()];
    assert_parts(&pinfold(&daemon, &place).stderr_text(), &["the request keeps it on node 0"]);
}

/// A plan names the domain by its UUID, and a machine that libvirt does not manage by its name.
#[test]
fn a_joint_plan_maps_its_machines_by_name_or_uuid() {
    let Some(daemon) = domain("") else { return };
    let uuid = daemon.virsh(&["domuuid", NAME]).expect("a UUID");
    let other = format!("pinfold-other-{}", own_pid());
    let line = "-S -M q35 -accel tcg,thread=multi -display none -nodefaults -smp 1 -name";
    let name = format!("guest={other},debug-threads=on");
    let socket = format!("unix:{}/other,server=on,wait=off", root(&daemon));
    let words = line.split(' ').chain([name.as_str(), "-qmp", &socket]);
    let qemu = Spawn::new("qemu-system-x86_64").args(words).stdin(Stdio::Null);
    let mut qemu = qemu.die_with_parent(true).start().expect("QEMU starts");
    let vms = [format!("name={},vcpus=2", uuid.trim()), format!("name={other},vcpus=1")];
    let words = ["plan", "-s", "compact", "--vm", &vms[0], "--vm", &vms[1], "--json"];
    let planned = pinfold(&daemon, &words).expect_success();
    let file = format!("{}/joint.json", root(&daemon));
    files::write_atomic(&file, &planned.stdout).expect("written");
    let before = masks(pid(&daemon));
    assert!(until(|| files::exists(&format!("{}/other", root(&daemon)))));
    pinfold(&daemon, &["apply", "--plan", &file]).expect_success();
    let status = pinfold(&daemon, &["status"]).stdout_text();
    assert!(status.contains(NAME) && status.contains(&other), "{status}");
    pinfold(&daemon, &["undo", "--all"]).expect_success();
    assert_eq!(masks(pid(&daemon)), before);
    qemu.kill().expect("it runs");
}

#[test]
fn undo_waits_for_a_libvirt_that_is_away_and_finds_it_again() {
    let Some(mut daemon) = domain("") else { return };
    let pid = pid(&daemon);
    let before = masks(pid);
    let (file, _) = plan(&daemon);
    pinfold(&daemon, &["apply", "--libvirt", NAME, "--plan", &file, "--config"]).expect_success();
    daemon.stop();
    let output = pinfold(&daemon, &["undo"]);
    output.expect_code(5);
    let said = output.stderr_text();
    assert!(said.contains("failed to connect") && said.contains(" undo` again"), "{said}");
    daemon.restart();
    // It hangs: clients connect, and get no answer. One question waits, not one for each thread.
    daemon.child.signal(Signaled::Stop).expect("it runs");
    let output = pinfold(&daemon, &["undo"]);
    daemon.child.signal(Signaled::Continue).expect("it runs");
    let said = output.expect_code(5);
    assert_parts(&said, &["did not answer in time", "restart libvirtd", " undo` again"]);
    pinfold(&daemon, &["undo"]).expect_success();
    assert_eq!(masks(pid), before);
    assert!(!xml(&daemon, &["--inactive"]).contains("cputune"));
}

#[test]
fn a_domain_that_ended_leaves_only_its_definition_to_undo() {
    let Some(daemon) = domain("") else { return };
    let (file, _) = plan(&daemon);
    pinfold(&daemon, &["apply", "--libvirt", NAME, "--plan", &file, "--config"]).expect_success();
    daemon.virsh(&["destroy", NAME]).expect("it ends");
    // The definition is meant for the next start: neither the end of the domain nor a command that
    // finds it ended reverts that.
    let said = pinfold(&daemon, &["status"]).stdout_text();
    assert_parts(
        &said,
        &["has exited; the definition of the domain still has the pins", " removes"],
    );
    assert!(xml(&daemon, &["--inactive"]).contains("cputune"));
    // Started anew it has the pins of its definition, which are not those of the first run.
    daemon.virsh(&["start", NAME, "--paused"]).expect("it starts");
    let (anew, running) = (masks(pid(&daemon)), xml(&daemon, &[]));
    pinfold(&daemon, &["undo"]).expect_success();
    assert!(!xml(&daemon, &["--inactive"]).contains("cputune"));
    assert_eq!((masks(pid(&daemon)), xml(&daemon, &[])), (anew, running), "not ours to change");
}

/// After `undo NAME` nothing of a domain is left: neither what a placement of its former run wrote
/// into the definition nor the placement of the new run.
#[test]
fn a_domain_that_was_started_anew_is_one_machine_for_undo() {
    let Some(daemon) = domain("") else { return };
    let (file, _) = plan(&daemon);
    let before = xml(&daemon, &["--inactive"]);
    pinfold(&daemon, &["apply", "--libvirt", NAME, "--plan", &file, "--config"]).expect_success();
    for by in ["--libvirt", "--pid"] {
        daemon.virsh(&["destroy", NAME]).expect("it ends");
        daemon.virsh(&["start", NAME, "--paused"]).expect("it starts");
        let machine = if by == "--pid" { pid(&daemon).to_string() } else { NAME.to_owned() };
        pinfold(&daemon, &["apply", by, &machine, "--plan", &file]).expect_success();
        assert_eq!(count_active(&daemon), 2, "{by}");
        if by == "--libvirt" {
            pinfold(&daemon, &["undo", &pid(&daemon).to_string()]).expect_success();
        }
    }
    let said = pinfold(&daemon, &["undo", NAME]).expect_code(0);
    assert_eq!(count_active(&daemon), 0, "{said}");
    assert_eq!(xml(&daemon, &["--inactive"]), before);
    let again = pinfold(&daemon, &["undo", NAME]);
    assert_parts(&again.stderr_text(), &["ended on "]);
}

/// A daemon without a domain, whose hook is this Pinfold: libvirtd sees a folder of this test's own
/// as `/etc/libvirt/hooks`, in a mount namespace. `None`, reported, if that is not possible.
pub fn daemon_with_hook(hooks: &Sandbox) -> Option<Daemon> {
    let folder = hooks.root();
    // A session daemon reads nothing else there.
    let place = "mount -t tmpfs none /etc/libvirt && mkdir /etc/libvirt/hooks && mount --bind \"$0\" /etc/libvirt/hooks && exec \"$@\"";
    let wrap = ["unshare", "--mount", "sh", "-c", place, &folder].map(str::to_owned);
    if let Err(why) = can_wrap(&wrap) {
        skip(why);
        return None;
    }
    // libvirt hands the daemon's HOME on to its hooks: the test's own folder.
    let script = "#!/bin/sh\nexec \"$(dirname \"$0\")/pinfold\" --state-dir \"$HOME/state\" \
        libvirt-hook --plans \"$HOME/plans\" --domains \"$HOME/domains.toml\" \
        --run-dir \"$HOME/libvirt/qemu/run\" \"$@\" 2>> \"$HOME/hook.log\"\n";
    let hook = format!("{folder}/qemu");
    files::write_atomic(&hook, script.as_bytes()).expect("written");
    run("cp", [PINFOLD, &format!("{folder}/pinfold")]).expect_success();
    run("chmod", ["0755", &folder, &hook, &format!("{folder}/pinfold")]).expect_success();
    Daemon::start_by(NAME, &wrap)
}

/// Planned at each start; found again when libvirt is restarted; reverted when it ends.
#[test]
fn the_hook_plans_a_domain_when_libvirt_starts_or_finds_it() {
    let hooks = Sandbox::new();
    let Some(mut daemon) = daemon_with_hook(&hooks) else { return };
    let (_, one) = plan(&daemon);
    let own = LiveHost::new().expect("a host").affinity(own_pid()).expect("a mask");
    let file = format!("{}/domains.toml", root(&daemon));
    let text = format!("[default]\nstrategy = \"compact\"\navoid = \"{}\"\n", own.difference(&one));
    files::write_atomic(&file, text.as_bytes()).expect("written");
    // As the user that the daemon runs as.
    let owner = run("stat", ["-c", "%u:%g", &format!("{}/libvirt", root(&daemon))]).stdout_text();
    run("chown", [owner.trim(), &file]).expect_success();
    let metadata = "<metadata><pinfold:placement xmlns:pinfold='urn:pinfold:placement' \
                    prefer='cache'/></metadata>";
    start_domain(&daemon, metadata);
    let is_placed = |daemon: &Daemon| masks(pid(daemon)).values().all(|mask| *mask == one);
    assert!(is_placed(&daemon), "{:?}\n{:?}", masks(pid(&daemon)), hook_log(&daemon));
    let said = hook_log(&daemon).expect("the hook spoke");
    assert!(said.contains("planned by `compact`: its metadata, line"), "{said}");
    daemon.virsh(&["destroy", NAME]).expect("it ends");
    assert_eq!(count_active(&daemon), 0, "{:?}", hook_log(&daemon));

    // A save image is restored by a start of its own.
    daemon.virsh(&["start", NAME, "--paused"]).expect("it starts");
    let image = format!("{}/image", root(&daemon));
    daemon.virsh(&["save", NAME, &image, "--paused"]).expect("it is saved");
    daemon.virsh(&["restore", &image, "--paused"]).expect("it is restored");
    assert!(is_placed(&daemon), "{:?}\n{:?}", masks(pid(&daemon)), hook_log(&daemon));
    assert_eq!(count_active(&daemon), 1, "{:?}", hook_log(&daemon));

    // One that started while the hook was away is placed when libvirt is restarted, once.
    daemon.virsh(&["destroy", NAME]).expect("it ends");
    let (away, there) = (format!("{}/away", hooks.root()), format!("{}/qemu", hooks.root()));
    run("mv", [&there, &away]).expect_success();
    daemon.stop();
    daemon.restart();
    daemon.virsh(&["start", NAME, "--paused"]).expect("it starts");
    assert!(!is_placed(&daemon) || own == one);
    run("mv", [&away, &there]).expect_success();
    daemon.stop();
    daemon.restart();
    daemon.virsh(&["dumpxml", NAME]).expect("it reconnects");
    assert!(until(|| is_placed(&daemon)), "{:?}\n{:?}", masks(pid(&daemon)), hook_log(&daemon));
    assert!(until(|| count_active(&daemon) == 1), "{:?}", hook_log(&daemon));
    daemon.virsh(&["destroy", NAME]).expect("it ends");
    assert!(until(|| count_active(&daemon) == 0), "{:?}", hook_log(&daemon));
}

fn hook_log(daemon: &Daemon) -> Result<String, pinfold_host::HostError> {
    files::read_text(&format!("{}/hook.log", root(daemon)))
}

/// The number of journals without an end. The hook runs as the daemon's user, whose state directory
/// `status` of another user refuses.
pub fn count_active(daemon: &Daemon) -> usize {
    let folder = format!("{}/state/journal", root(daemon));
    let names = files::list(&folder).expect("journals").into_iter();
    let texts = names
        .filter(|name| name.ends_with(".jsonl"))
        .map(|name| files::read_text(&format!("{folder}/{name}")).expect("text"));
    texts.filter(|text| !text.lines().any(|line| line.starts_with("{\"end\""))).count()
}

#[test]
fn the_hook_places_a_domain_that_libvirt_starts() {
    let hooks = Sandbox::new();
    let Some(daemon) = daemon_with_hook(&hooks) else { return };
    let (file, one) = plan(&daemon);
    let plans = format!("{}/plans", root(&daemon));
    files::make_dirs(&plans).expect("a folder");
    run("cp", [&file, &format!("{plans}/{NAME}.json")]).expect_success();
    run("chmod", ["0700", &plans]).expect_success();
    run("chown", ["-R", "65534:65534", &plans]).expect_success();

    start_domain(&daemon, "<cputune><vcpupin vcpu='1' cpuset='0-1'/></cputune>");
    let all = masks(pid(&daemon));
    assert!(all.values().all(|mask| *mask == one), "{all:?}\n{:?}", hook_log(&daemon));
    let said = hook_log(&daemon).expect("the hook spoke");
    assert!(said.contains("places vcpu(1) elsewhere") || one == all_pus(), "{said}");
    daemon.virsh(&["destroy", NAME]).expect("it ends");
    let journals = format!("{}/state/journal", root(&daemon));
    let names = files::list(&journals).expect("a journal");
    let name = names.iter().find(|name| name.ends_with(".jsonl")).expect("a journal");
    let text = files::read_text(&format!("{journals}/{name}")).expect("text");
    assert!(text.lines().last().is_some_and(|line| line.starts_with("{\"end\"")), "{text}");

    // A start of another process that takes long does not keep libvirt waiting.
    let lock = format!("{journals}/start.lock");
    let other = Spawn::new("flock").args([&lock, "sleep", "60"]).die_with_parent(true);
    let mut other = other.own_group().start().expect("flock runs");
    let attempt = ["-n", lock.as_str(), "true"];
    assert!(until(|| !run("flock", attempt).status.success()), "it is not locked");
    daemon.virsh(&["start", NAME, "--paused"]).expect("it starts");
    assert!(other.try_wait().expect("its state").is_none(), "the hook waited for the lock");
    let all = masks(pid(&daemon));
    assert!(all.values().all(|mask| *mask == one), "{all:?}\n{:?}", hook_log(&daemon));
    assert!(
        hook_log(&daemon).expect("a log").contains("is starting a placement"),
        "{:?}",
        hook_log(&daemon)
    );
    other.kill().expect("it ends");
    daemon.virsh(&["destroy", NAME]).expect("it ends");

    // A plan that does not fit never keeps a domain from starting.
    let plan = format!("{plans}/{NAME}.json");
    files::write_atomic(&plan, b"{\"format\":\"nonsense\"}").expect("written");
    daemon.virsh(&["start", NAME, "--paused"]).expect("it starts all the same");
    assert!(
        hook_log(&daemon).expect("a log").contains("was not placed"),
        "{:?}",
        hook_log(&daemon)
    );
}

/// libvirt waits for its hook and answers no other client about the domain meanwhile.
#[test]
fn the_hook_of_a_domain_that_was_placed_with_its_definition_never_calls_libvirt() {
    let hooks = Sandbox::new();
    let Some(daemon) = daemon_with_hook(&hooks) else { return };
    let (file, one) = plan(&daemon);
    run("chmod", ["0644", &file]).expect_success();
    let virsh = find_program("virsh").expect("it was found before");
    let (own, log) = (format!("{}/bin/virsh", root(&daemon)), format!("{}/calls", root(&daemon)));
    let script = format!("#!/bin/sh\necho \"$*\" >> {log}\nexec {virsh} \"$@\"\n");
    files::write_atomic(&own, script.as_bytes()).expect("written");
    run("chmod", ["0755", &own]).expect_success();
    start_domain(&daemon, "");
    // As the user of the daemon and its hook.
    let uri = format!("LIBVIRT_DEFAULT_URI={}", daemon.uri());
    let (program, state) =
        (format!("{}/pinfold", hooks.root()), format!("--state-dir={}/state", root(&daemon)));
    let home = format!("HOME={}", root(&daemon));
    let user = ["--clear-groups", "--reuid=65534", "--regid=65534", "env", &uri, &home];
    let user = [&user[..], &[program.as_str(), &state]].concat();
    let as_user = |words: &[&str]| run("setpriv", [&user[..], words].concat());
    let place = ["apply", "--libvirt", NAME, "--plan", &file, "--config"];
    as_user(&place).expect_success();
    assert!(masks(pid(&daemon)).values().all(|mask| *mask == one), "{:?}", masks(pid(&daemon)));
    let begun = SystemClock.now_ns();
    daemon.virsh(&["destroy", NAME]).expect("it ends");
    let took = SystemClock.now_ns().saturating_sub(begun);
    assert!(took < 15 * SECOND_NS, "{took} ns");
    let said = hook_log(&daemon).expect("a log");
    assert!(!said.contains("not placed") && !said.contains("not reverted"), "{said}");
    assert!(!files::exists(&log), "{:?}", files::read_text(&log));
    // The definition is for the next start, and its pins are left to `undo`.
    assert_eq!(count_active(&daemon), 1, "{said}");
    let pin = format!("<vcpupin vcpu='0' cpuset='{one}'/>");
    assert!(xml(&daemon, &["--inactive"]).contains(&pin), "{}", xml(&daemon, &["--inactive"]));
    as_user(&["undo", NAME]).expect_success();
    assert!(!xml(&daemon, &["--inactive"]).contains("cputune"));
    assert_eq!(count_active(&daemon), 0);
}

fn all_pus() -> CpuSet {
    CpuSet::parse_list("0-1").expect("a list")
}

/// Whether the daemon can be given hooks of this test's own.
fn can_wrap(wrap: &[String]) -> Result<(), String> {
    if !is_root() {
        return Err("a mount namespace of its own needs root".to_owned());
    }
    if find_program(&wrap[0]).is_none() {
        return Err(format!("{} is not installed", wrap[0]));
    }
    let words = wrap[1..].iter().map(String::as_str).chain(["true"]);
    let output = run(&wrap[0], words);
    if output.status.success() {
        return Ok(());
    }
    Err(format!("no folder of its own as hooks: {}", output.stderr_text()))
}
