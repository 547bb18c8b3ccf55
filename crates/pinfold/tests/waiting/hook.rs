//! The hook without libvirt: it gets a domain's XML and a pid file, and plans at the start.

use crate::common::machine::Machine;
use crate::common::{Checked as _, PINFOLD, ROOT, SECOND_NS, Sandbox, run, until};
use pinfold_host::process::{Output, Spawn, Stdio, own_pid};
use pinfold_host::{Clock as _, Host as _, LiveHost, SystemClock, files};
use pinfold_model::{CpuSet, PuId};

const UUID: &str = "6695eb01-f6a4-8304-79aa-97f2502e193f";
const SPACE: &str = "xmlns:p='urn:pinfold:placement'";

/// A machine as a domain of libvirt.
struct Domain {
    machine: Machine,
    /// The only CPU that the file of domains leaves.
    one: CpuSet,
}

impl Domain {
    fn new() -> Option<Self> {
        Self::with("")
    }

    /// With these further options of QEMU.
    fn with(more: &str) -> Option<Self> {
        let machine = Machine::new(&format!("-smp 2 -uuid {UUID} {more}"))?;
        let own = machine.host.affinity(own_pid()).expect("a mask");
        let one = CpuSet::single(PuId(own.iter().next().expect("a CPU").0));
        machine.write(&format!("{}.pid", machine.name), machine.pid());
        let domain = Self { machine, one };
        domain.write_file("");
        assert!(until(|| domain.machine.thread("CPU 1/TCG").is_some()), "no vCPU threads");
        Some(domain)
    }

    /// The file of domains, with all CPUs avoided but one.
    fn write_file(&self, rows: &str) {
        let own = self.machine.host.affinity(own_pid()).expect("a mask");
        let avoid = own.difference(&self.one);
        let text = format!("[default]\nstrategy = \"compact\"\navoid = \"{avoid}\"\n{rows}");
        self.machine.write("domains.toml", text);
    }

    /// The command line of the hook, with a domain's XML on its standard input.
    fn words(&self, operation: &str, phase: &str, inside: &str) -> Vec<String> {
        let name = &self.machine.name;
        let xml = format!(
            "<domain type='qemu'><name>{name}</name><uuid>{UUID}</uuid>\n\
             <memory unit='MiB'>64</memory><vcpu>2</vcpu>\n{inside}</domain>"
        );
        let (file, state) = (self.machine.write("xml", xml), self.machine.path("state"));
        let (plans, domains) = (self.machine.path("plans"), self.machine.path("domains.toml"));
        let root = self.machine.root();
        let own = ["-c", "exec \"$@\" <\"$0\"", &file, PINFOLD, "--state-dir", &state];
        let hook = ["libvirt-hook", "--plans", &plans, "--domains", &domains, "--run-dir", &root];
        let words = [&own[..], &hook, &[name, operation, phase, "-"]].concat();
        words.into_iter().map(str::to_owned).collect()
    }

    fn hook(&self, operation: &str, phase: &str, inside: &str) -> Output {
        run("sh", self.words(operation, phase, inside))
    }

    /// Asserts what libvirt needs of each hook, and returns its messages.
    #[track_caller]
    fn expect_harmless(output: &Output) -> String {
        let said = output.expect_code(0);
        // libvirt takes it for the changed XML of a domain that is migrated or restored.
        assert_eq!(output.stdout_text(), "", "{said}");
        said
    }

    fn is_placed(&self) -> bool {
        let masks = self.machine.masks();
        !masks.is_empty() && masks.values().all(|mask| *mask == self.one)
    }

    fn has_two_cpus(&self) -> bool {
        self.machine.host.affinity(own_pid()).expect("a mask").len() > 1
    }
}

fn metadata(attributes: &str) -> String {
    format!("<metadata><p:placement {SPACE} {attributes}/></metadata>")
}

#[test]
fn a_domain_is_planned_at_its_start_and_reverted_at_its_end() {
    let Some(mut domain) = Domain::new() else { return };
    // Nothing asks for it.
    assert_eq!(Domain::expect_harmless(&domain.hook("started", "begin", "")), "");
    assert!(!domain.is_placed() || !domain.has_two_cpus());
    // Neither before its start, nor for a migration or a restore, is anything printed or done.
    for operation in ["prepare", "start", "migrate", "restore", "attach"] {
        let said = Domain::expect_harmless(&domain.hook(operation, "begin", &metadata("")));
        assert_eq!(said, "", "{operation}");
    }
    let said = Domain::expect_harmless(&domain.hook("started", "begin", &metadata("")));
    assert!(said.contains("planned by `compact`: its metadata, line 3"), "{said}");
    assert!(domain.is_placed(), "{:?}\n{said}", domain.machine.masks());
    let status = domain.machine.print(&["status"]);
    assert!(status.contains("1 placement is active") && status.contains("compact"), "{status}");
    domain.machine.qemu.kill().expect("it ends");
    domain.machine.qemu.wait().expect("it ends");
    Domain::expect_harmless(&domain.hook("release", "end", &metadata("")));
    assert!(
        until(|| domain.machine.run(&["status"]).stdout_text().contains("no placement is active")),
        "{}",
        domain.machine.run(&["status"]).stdout_text()
    );
}

/// It starts like others, and waits for the memory of the source; the source's end is a release.
#[test]
fn a_domain_that_is_migrated_is_placed_here_and_reverted_there() {
    let Some(mut domain) = Domain::with("-incoming defer") else { return };
    let said = Domain::expect_harmless(&domain.hook("started", "begin", &metadata("")));
    assert!(domain.is_placed(), "{said}");
    // The process of the source ends, and its end is reported with the reason `migrated`.
    domain.machine.qemu.kill().expect("it ends");
    let mut words = domain.words("release", "end", &metadata(""));
    *words.last_mut().expect("words") = "migrated".to_owned();
    Domain::expect_harmless(&run("sh", words));
    let status = domain.machine.run(&["status"]).stdout_text();
    assert!(status.contains("no placement is active"), "{status}");
    // A migration that failed ends a domain that was never placed.
    Domain::expect_harmless(&domain.hook("stopped", "end", &metadata("")));
}

#[test]
fn a_row_of_the_file_places_a_domain_and_its_own_pins_win() {
    let Some(domain) = Domain::new() else { return };
    let other = domain.machine.host.affinity(own_pid()).expect("a mask");
    let other = other.iter().last().map(CpuSet::single).expect("a CPU");
    let name = &domain.machine.name;
    domain.write_file(&format!("[[domain]]\nname = \"{}*\"\n", &name[..name.len() - 1]));
    let pin = format!("<cputune><vcpupin vcpu='1' cpuset='{other}'/></cputune>");
    let said = Domain::expect_harmless(&domain.hook("started", "begin", &pin));
    assert!(said.contains("planned by `compact`: ") && said.contains("line 4"), "{said}");
    let second = domain.machine.thread("CPU 1/TCG").expect("a vCPU");
    let mask = domain.machine.host.affinity(second).expect("a mask");
    assert_eq!(mask, other, "{said}");
    assert!(domain.machine.print(&["status"]).contains("1 placement is active"), "{said}");
}

#[test]
fn what_is_not_understood_is_reported_with_its_line_and_the_domain_is_placed_by_default() {
    let Some(domain) = Domain::new() else { return };
    let name = domain.machine.name.clone();
    let twice = format!("[[domain]]\nname = \"{name}\"\n[[domain]]\nname = \"*\"\n");
    let lines = "has 2 rows: lines 4, 6; none of them is used".to_owned();
    let row = |rest: &str| format!("[[domain]]\nname = \"{name}\"\n{rest}\n");
    for (rows, inside, expected) in [
        (String::new(), metadata("strategy='blanced'"), "metadata: line 3: strategy: ".to_owned()),
        (String::new(), metadata("prefer='speed'"), "metadata: line 3: prefer: ".to_owned()),
        (String::new(), metadata("strategi='x'"), "metadata: line 3, column 11: ".to_owned()),
        (twice, String::new(), lines),
        (row("tunables = \"thp=sometimes\""), String::new(), "placement: compact: ".to_owned()),
    ] {
        domain.write_file(&rows);
        let said = Domain::expect_harmless(&domain.hook("started", "begin", &inside));
        assert!(said.contains(&expected), "{rows}{inside}: {said}");
        assert!(domain.is_placed(), "{rows}{inside}: {said}");
        domain.machine.run(&["undo", "--all"]).expect_success();
    }
    // More vCPUs in cores of their own than this host has: placed by another strategy.
    let cores = format!("[[domain]]\nname = \"{name}\"\nstrategy = \"low-latency-rt\"\n");
    domain.write_file(&cores);
    let said = Domain::expect_harmless(&domain.hook("started", "begin", ""));
    assert!(said.contains("warning: placement: low-latency-rt: "), "{said}");
    assert!(domain.is_placed(), "{said}");
    domain.machine.run(&["undo", "--all"]).expect_success();
    // A file with a fault leaves what the metadata ask.
    domain.machine.write("domains.toml", "[[domain]]\nnam = \"x\"\n");
    let said = Domain::expect_harmless(&domain.hook("started", "begin", &metadata("")));
    assert!(said.contains("domains.toml: line 2, column 1: domain has no key"), "{said}");
    assert!(domain.machine.print(&["status"]).contains("1 placement is active"), "{said}");
    domain.machine.run(&["undo", "--all"]).expect_success();
    // One that others may write is not used.
    domain.write_file("place = true\n");
    run("chmod", ["0666", &domain.machine.path("domains.toml")]).expect_success();
    let said = Domain::expect_harmless(&domain.hook("started", "begin", ""));
    assert!(
        said.contains("can be written by others") && said.contains("the file is ignored"),
        "{said}"
    );
    let file = domain.machine.path("domains.toml");
    let unplaced = format!("was not placed: {file} is ignored, and it has no metadata");
    assert!(said.contains(&unplaced), "{said}");
    // Without a usable state directory, nothing is known about a placement.
    run("chmod", ["0777", &domain.machine.path("state")]).expect_success();
    let said = Domain::expect_harmless(&domain.hook("release", "end", ""));
    run("chmod", ["0700", &domain.machine.path("state")]).expect_success();
    assert!(said.contains("whether it had a placement to revert is not known: "), "{said}");
    // What is no domain at all.
    let state = domain.machine.path("state");
    let hook = [PINFOLD, "--state-dir", &state, "libvirt-hook", "x", "started", "begin", "-"];
    let said = Domain::expect_harmless(&run("env", hook));
    assert!(said.contains("domain \"x\" was not placed"), "{said}");
}

#[test]
fn a_domain_that_started_without_the_hook_is_placed_when_libvirt_reconnects() {
    let Some(domain) = Domain::new() else { return };
    let said = Domain::expect_harmless(&domain.hook("reconnect", "begin", &metadata("")));
    assert!(domain.is_placed(), "{said}");
    let again = Domain::expect_harmless(&domain.hook("reconnect", "begin", &metadata("")));
    assert_eq!(again, "", "its placement is active");
    domain.machine.run(&["undo", "--all"]).expect_success();
    // The undo of its owner wins.
    let again = Domain::expect_harmless(&domain.hook("reconnect", "begin", &metadata("")));
    assert_eq!(again, "");
    assert!(!domain.is_placed() || !domain.has_two_cpus());
}

/// Another process that places machines holds the lock.
fn hold_lock(domain: &Domain) -> pinfold_host::process::Child {
    let folder = domain.machine.path("state/journal");
    files::make_dirs(&folder).expect("a folder");
    run("chmod", ["0700", &domain.machine.path("state"), &folder]).expect_success();
    let lock = format!("{folder}/start.lock");
    let other = Spawn::new("flock").args([&lock, "sleep", "60"]).die_with_parent(true);
    let other = other.own_group().start().expect("flock runs");
    let attempt = ["-n", lock.as_str(), "true"];
    assert!(until(|| !run("flock", attempt).status.success()), "it is not locked");
    other
}

#[test]
fn a_domain_that_ends_while_its_hook_runs_is_no_error() {
    let Some(mut domain) = Domain::new() else { return };
    let mut other = hold_lock(&domain);
    let words = domain.words("started", "begin", &metadata(""));
    let hook = Spawn::new("sh").args(words).stdin(Stdio::Null).stdout(Stdio::Pipe);
    let mut hook = hook.stderr(Stdio::Null).die_with_parent(true).start().expect("it starts");
    SystemClock.sleep_ns(SECOND_NS);
    domain.machine.qemu.kill().expect("it ends");
    other.kill().expect("it ends");
    assert!(hook.wait().expect("it ends").success());
    let status = domain.machine.print(&["status"]);
    assert!(status.contains("no placement is active"), "{status}");
    // Its pid file may be there longer than its process.
    let said = Domain::expect_harmless(&domain.hook("started", "begin", &metadata("")));
    assert!(
        said.contains(", but no process has this ID: the domain is no longer running"),
        "{said}"
    );
}

#[test]
fn libvirt_does_not_wait_for_many_other_starts() {
    let Some(domain) = Domain::new() else { return };
    let mut other = hold_lock(&domain);
    let begin = SystemClock.now_ns();
    let said = Domain::expect_harmless(&domain.hook("started", "begin", &metadata("")));
    assert!(said.contains("is placed later: other machines are being placed"), "{said}");
    let took = SystemClock.now_ns() - begin;
    assert!(took < 10 * SECOND_NS, "libvirt waited for {took} ns");
    assert!(!domain.is_placed() || !domain.has_two_cpus());
    other.kill().expect("it ends");
    assert!(until(|| domain.is_placed()), "{:?}", domain.machine.masks());
    // The placement is complete a little later than the masks.
    let status = || domain.machine.run(&["status"]).stdout_text();
    assert!(until(|| status().contains("1 placement is active")), "{}", status());
    domain.machine.run(&["undo", "--all"]).expect_success();
}

#[test]
fn what_the_hook_does_not_understand_never_prevents_a_start() {
    let Some(domain) = Domain::new() else { return };
    // A later libvirt may add arguments; options may follow them.
    let plans = domain.machine.path("plans");
    for surplus in [&["--new"][..], &["x"], &["x", "--new=1", "y", "--newer"]] {
        let more = surplus.iter().copied().chain(["--late"]).map(str::to_owned).collect();
        let words = [domain.words("started", "begin", &metadata("")), more].concat();
        let said = Domain::expect_harmless(&run("sh", words));
        assert!(domain.is_placed(), "{said}");
        assert!(said.contains("has arguments that are ignored: "), "{said}");
        assert!(surplus.iter().all(|word| said.contains(&format!("{word:?}"))), "{said}");
        domain.machine.run(&["undo", "--all"]).expect_success();
    }
    assert!(!files::exists(&plans), "{plans}");
    let mut words = domain.words("started", "begin", "");
    words.extend(["--state-dir".to_owned(), String::new()]);
    let said = Domain::expect_harmless(&run("sh", words));
    assert!(said.contains("was not placed") && said.contains("--state-dir or"), "{said}");
    let mut words = domain.words("started", "begin", &metadata(""));
    let own = words.iter().position(|word| *word == domain.machine.name).expect("the name");
    words[own] = "other".to_owned();
    let said = Domain::expect_harmless(&run("sh", words));
    let name = &domain.machine.name;
    let expected = format!("domain \"other\" has the name {name:?} in its XML, which is used");
    assert!(said.contains(&expected), "{said}");
    domain.machine.run(&["undo", "--all"]).expect_success();
    let state = domain.machine.path("state");
    let call = "\"$0\" --state-dir \"$1\" libvirt-hook \"$(printf 'a\\377')\" started begin -";
    let said = Domain::expect_harmless(&run("sh", ["-c", call, PINFOLD, &state]));
    assert!(said.contains("UTF-8"), "{said}");
    let call = "\"$0\" --state-dir \"$1\" --no-such-option libvirt-hook a started begin -";
    let said = Domain::expect_harmless(&run("sh", ["-c", call, PINFOLD, &state]));
    assert!(said.contains("--no-such-option"), "{said}");
    for text in ["", "x".repeat(65_536).as_str(), "-1", "0", "1 2"] {
        domain.machine.write(&format!("{}.pid", domain.machine.name), text);
        let said = Domain::expect_harmless(&domain.hook("started", "begin", &metadata("")));
        assert!(said.contains(".pid has no process ID: \""), "{said}");
        assert!(said.contains("was not placed") && said.len() < 1000, "{said}");
    }
}

#[test]
fn the_hook_names_what_is_wrong_with_a_pid_file() {
    let Some(domain) = Domain::new() else { return };
    let path = domain.machine.path(&format!("{}.pid", domain.machine.name));
    let (own, uuid) = (own_pid(), "not the QEMU of domain");
    let foreign = format!("echo {own} > \"$0\"");
    let mismatch = format!("names process {own}, which is {uuid}");
    for (make, expected) in [
        ("true", "does not exist"),
        ("mkfifo \"$0\"", "is a pipe, not a regular file"),
        ("mkdir \"$0\"", "is a directory, not a regular file"),
        ("ln -s /dev/zero \"$0\"", "is a device, not a regular file"),
        ("printf '\\377' > \"$0\"", "has no process ID: it is not text"),
        ("echo 4194305 > \"$0\"", "has no process ID: \"4194305\""),
        // The kernel gives no process the largest number.
        ("echo 4194304 > \"$0\"", "names process 4194304, but no process has this ID: the domain"),
        (foreign.as_str(), mismatch.as_str()),
    ] {
        run("rm", ["-rf", &path]).expect_success();
        run("sh", ["-c", make, &path]).expect_success();
        let said = Domain::expect_harmless(&domain.hook("started", "begin", &metadata("")));
        let expected = format!("libvirt's PID file {path} {expected}");
        assert!(said.contains("was not placed") && said.contains(&expected), "{said}");
        assert!(!said.contains("has ended") && !said.contains("standard input"), "{said}");
    }
}

#[test]
fn xml_that_is_not_understood_is_named_as_that_of_standard_input() {
    let Some(domain) = Domain::new() else { return };
    for (make, expected) in [
        ("printf '<domain'", "cannot parse the domain's XML on standard input: "),
        ("printf 'a\\n\\377'", "the domain's XML on standard input: line 2, byte offset 2: 0xff"),
        ("head -c 16777217 /dev/zero", "XML on standard input: is larger than 16 MiB, the limit"),
    ] {
        let mut words = domain.words("started", "begin", "");
        words[1] = format!("{make} | \"$@\"");
        let said = Domain::expect_harmless(&run("sh", words));
        assert!(said.contains(expected), "{said}");
        assert!(!said.contains("virsh") && !said.contains("iconv"), "{said}");
    }
}

/// `watch` does for a QEMU that is started by hand what the hook does for a domain.
#[test]
fn watch_places_a_machine_that_is_started_by_hand_once() {
    let sandbox = Sandbox::new();
    let host = LiveHost::new().expect("a host");
    let own = host.affinity(own_pid()).expect("a mask");
    let one: CpuSet = own.iter().take(1).collect();
    let name = sandbox.root().rsplit(['/', '.']).next().expect("a name").to_owned();
    let text = format!(
        "[default]\nstrategy = \"compact\"\navoid = \"{}\"\n[[domain]]\nname = \"{name}\"\n",
        own.difference(&one).union(&CpuSet::single(PuId(8191)))
    );
    let file = sandbox.write("domains.toml", text);
    let mut watch = sandbox.start_logged(&["watch", "--domains", &file]);
    let said = || files::read_text(&format!("{}/said", file.trim_end_matches("/domains.toml")));
    assert!(until(|| said().unwrap_or_default().contains("watching 0 placements")), "{:?}", said());
    let Some(machine) = Machine::new_in(sandbox, "-smp 2") else { return };
    assert_eq!(machine.name, name);
    assert!(
        until(|| said().unwrap_or_default().contains(&format!("{name} (process"))),
        "{:?}",
        said()
    );
    assert!(
        machine.masks().values().all(|mask| *mask == one),
        "{:?}\n{:?}",
        machine.masks(),
        said()
    );
    assert!(machine.print(&["status"]).contains("1 placement is active"), "{:?}", said());
    // The row is used without the CPU that the host does not have.
    let warning = "warning: placement: avoid: this host has no CPU 8191";
    assert!(said().unwrap_or_default().contains(warning), "{:?}", said());
    // The undo of its owner wins.
    machine.run(&["undo", "--all"]).expect_success();
    SystemClock.sleep_ns(3 * SECOND_NS);
    assert!(machine.print(&["status"]).contains("no placement is active"), "{:?}", said());
    watch.kill().expect("it ends");
}

/// The script of the page, with the paths of the test.
#[test]
fn the_hookscript_of_the_proxmox_page_places_a_machine_at_its_start() {
    let page = files::read_text(&format!("{ROOT}/docs/how-to/proxmox.md")).expect("the page");
    let script = page.split("```sh\n").find(|block| block.starts_with("#!/bin/sh\n# Arguments"));
    let script = script.and_then(|block| block.split("```").next()).expect("a script");
    let Some(machine) = Machine::new("-smp 1") else { return };
    machine.write("100.pid", machine.pid());
    let program = format!("{PINFOLD} --state-dir {}", machine.path("state"));
    let script = script
        .replace("/usr/bin/pinfold ]", &format!("{PINFOLD} ]"))
        .replace("/usr/bin/pinfold apply", &format!("{program} apply"))
        .replace("/run/qemu-server", &machine.root())
        .replace("logger -t pinfold-proxmox", &format!("cat > {}", machine.path("log")))
        .replace("strategy=balanced", "strategy=compact");
    let path = machine.write("hook", script);
    for (phase, expected) in [("pre-start", "no placement is active"), ("post-start", "compact")] {
        run("sh", [&path, "100", phase]).expect_success();
        let status = machine.print(&["status"]);
        assert!(status.contains(expected), "{phase}: {status}\n{:?}", machine.path("log"));
    }
    // A machine without a pid file starts all the same.
    run("sh", [&path, "101", "post-start"]).expect_success();
    machine.run(&["undo", "--all"]).expect_success();
}
