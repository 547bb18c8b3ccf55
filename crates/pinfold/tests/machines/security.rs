//! What docs/security.md promises, on processes of this test's own.

use crate::common::machine::{QEMU, changed, find_thread, list_masks, start_quietly};
use crate::common::{Checked as _, PINFOLD, Sandbox, assert_parts, is_missing, run, skip, until};
use pinfold_host::process::{Child, Output, Spawn, is_root};
use pinfold_host::{Host as _, LiveHost, files, paths, proc_stat};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/security.md");

/// What masks and policies of another user's QEMU take; the page says what for.
const NEEDED: [&str; 1] = ["sys_nice"];

fn pinfold(wrap: &[String], state: &str, arguments: &[&str]) -> Output {
    let wrap = wrap.iter().map(String::as_str).chain([PINFOLD, "--state-dir", state]);
    run("env", wrap.chain(arguments.iter().copied()))
}

/// A stopped QEMU of the user nobody, with names for its threads.
fn foreign_qemu() -> Child {
    let line = "--reuid=65534 --regid=65534 --clear-groups qemu-system-x86_64 -S -M q35 -accel tcg,thread=multi -display none -nodefaults -m 64M -name guest=t,debug-threads=on";
    let qemu = start_quietly(Spawn::new("setpriv").args(line.split(' ')));
    let host = LiveHost::new().expect("a host");
    assert!(until(|| find_thread(&host, qemu.pid(), "CPU 0/").is_some()), "QEMU makes its vCPU");
    qemu
}

fn with_capabilities(names: &[&str]) -> Vec<String> {
    let plus: String = names.iter().map(|name| format!(",+{name}")).collect();
    let words = ["setpriv", "--no-new-privs"].map(str::to_owned);
    words.into_iter().chain([format!("--bounding-set=-all{plus}")]).collect()
}

fn cannot_run() -> bool {
    if !is_root() {
        skip("another user's process takes root");
        return true;
    }
    is_missing(&["setpriv", QEMU])
}

#[test]
fn the_capabilities_of_the_page_suffice_and_each_is_needed() {
    if cannot_run() {
        return;
    }
    let qemu = foreign_qemu();
    let pid = qemu.pid().to_string();
    let sandbox = Sandbox::new();
    let apply = ["apply", "--pid", &pid, "--strategy", "compact"];
    for left_out in NEEDED {
        let rest: Vec<&str> = NEEDED.into_iter().filter(|name| *name != left_out).collect();
        let state = sandbox.path(left_out);
        let refused = pinfold(&with_capabilities(&rest), &state, &apply);
        assert!(!refused.status.success(), "{left_out} is not needed");
    }
    let state = sandbox.path("state");
    for command in [&apply[..], &["status"], &["undo"]] {
        let output = pinfold(&with_capabilities(&NEEDED), &state, command);
        assert!(output.status.success(), "{command:?}: {}", output.stderr_text());
    }
    let page = files::read_text(PAGE).expect("the page is there").to_lowercase();
    for name in NEEDED {
        assert!(page.contains(&format!("cap_{name}")), "the page does not name {name}");
    }
}

/// As the user nobody, with a folder of that user.
fn nobody(root: &str) -> Vec<String> {
    run("chown", ["65534", root]).expect_success();
    let home = format!("HOME={root}");
    let user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"];
    let words = [&user[..], &["env", "-u", "XDG_CACHE_HOME", &home]].concat();
    words.into_iter().map(str::to_owned).collect()
}

#[test]
fn without_privileges_own_machines_are_placed_and_the_host_is_left() {
    if cannot_run() {
        return;
    }
    let (qemu, host) = (foreign_qemu(), LiveHost::new().expect("a host"));
    let (pid, before) = (qemu.pid().to_string(), list_masks(&host, qemu.pid()));
    let sandbox = Sandbox::new();
    let root = sandbox.root();
    let (user, state) = (nobody(&root), format!("{root}/state"));
    let works: [&[&str]; 8] = [
        &["topo"],
        &["doctor"],
        &["plan", "-s", "compact", "--vcpus", "1"],
        &["status"],
        &["apply", "-s", "compact", "--pid", &pid],
        &["status"],
        &["undo"],
        &["run", "-s", "compact", "--cores", "1", "--", "true"],
    ];
    for words in works {
        let output = pinfold(&user, &state, words);
        assert!(output.status.success(), "{words:?}: {}", output.stderr_text());
    }
    let lower = ["apply", "-s", "none", "--tunable", "policy:emulator=idle", "--pid", &pid];
    let refused: [(&[&str], &str); 3] = [
        (&["apply", "-s", "balanced", "--isolate", "host", "--pid", &pid], "root"),
        (&["apply", "-s", "low-latency-rt", "--pid", &pid], "the host is unchanged"),
        (&lower, "not take that back"),
    ];
    for (words, reason) in refused {
        let output = pinfold(&user, &state, words);
        let said = output.stderr_text();
        assert!(!output.status.success() && said.contains(reason), "{words:?}: {said}");
        let changed = changed(&host, qemu.pid(), &before);
        assert!(changed.is_empty(), "{words:?}: {changed:?} {said}");
    }
    assert_parts(&pinfold(&user, &state, &["status"]).stdout_text(), &["no placement is active"]);
    // HOME is that of another user, with a cache directory that this user may not read.
    let closed = Sandbox::new();
    files::make_dirs(&closed.path(".cache/pinfold/measure")).expect("made");
    run("chmod", ["-R", "700", &closed.root()]).expect_success();
    let home = format!("HOME={}", closed.root());
    let user = [&user[..], &["env".to_owned(), home]].concat();
    pinfold(&user, &state, &["undo", "--all"]).expect_success();
}

/// Each row of the page's table names a test that exists.
#[test]
fn the_rows_of_the_table_have_tests() {
    let page = files::read_text(PAGE).expect("the page is there");
    let (_, table) = page.split_once("| what | needs | without it | test |").expect("a table");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with("| "));
    let mut count = 0;
    for row in rows {
        let mut words = row.split('`').rev().skip(1).step_by(2);
        let (name, file) = (words.next().expect("a name"), words.next().expect("a file"));
        let path = format!("{}/tests/{file}", env!("CARGO_MANIFEST_DIR"));
        let text = files::read_text(&path).unwrap_or_else(|error| panic!("{row}: {error}"));
        assert!(text.contains(&format!("#[test]\nfn {name}()")), "{row}");
        count += 1;
    }
    assert_eq!(count, 11);
}

/// A machine of root is listed for another user, and `apply` names the missing rights.
#[test]
fn without_privileges_the_machines_of_root_are_listed_as_such() {
    if cannot_run() {
        return;
    }
    let name = format!("alpha{}", std::process::id());
    let named = format!("guest={name},debug-threads=on");
    let line = ["-S", "-M", "q35", "-accel", "tcg", "-display", "none", "-nodefaults"];
    let qemu = start_quietly(Spawn::new(QEMU).args(line).args(["-m", "64M", "-name", &named]));
    let host = LiveHost::new().expect("a host");
    assert!(until(|| find_thread(&host, qemu.pid(), "CPU 0/").is_some()), "QEMU makes its vCPU");
    let sandbox = Sandbox::new();
    let root = sandbox.root();
    let (user, state) = (nobody(&root), format!("{root}/state"));
    let overview = pinfold(&user, &state, &[]).expect_success();
    let line = overview.stdout_text().split_whitespace().collect::<Vec<_>>().join(" ");
    let machine = format!("{name} (process {}, 1 vCPU, of another user)", qemu.pid());
    assert_parts(&line, &[&machine, "; root can check and place those of other users"]);
    let applied = pinfold(&user, &state, &["apply", &name]);
    assert_eq!(applied.status.code(), Some(3), "{}", applied.stderr_text());
    let owner = format!("{name} (process {}) belongs to another user", qemu.pid());
    assert_parts(&applied.stderr_text(), &[&owner, "run it as root (`sudo "]);
    let status = pinfold(&user, &state, &["status", &name]).expect_code(1);
    let runs = format!("{name} (process {}) runs, and is not placed", qemu.pid());
    assert_parts(&status, &[&runs]);
}

/// A user who makes directories with the name of another one's keeps no one from placing a machine.
#[test]
fn a_mark_that_another_user_forged_does_not_count() {
    if cannot_run() {
        return;
    }
    let qemu = foreign_qemu();
    let pid = qemu.pid();
    let host = LiveHost::new().expect("a host");
    let stat = host.read_text(&paths::process_stat(pid)).expect("its stat");
    let start = proc_stat::parse(&stat).expect("parsed").start_time;
    let namespace = host.link(&paths::own_namespace("pid")).expect("a namespace");
    let number: String = namespace.chars().filter(char::is_ascii_digit).collect();
    // The owner of the QEMU is 65534; a third user makes the directory.
    let forged = format!("/tmp/pinfold-placed-65534-{}", std::process::id());
    let line = format!("mkdir -m 711 {forged} && echo x > {forged}/{number}-{pid}-{start}");
    let words = ["--reuid=12345", "--regid=12345", "--clear-groups", "sh", "-c", &line];
    run("setpriv", words).expect_success();
    let sandbox = Sandbox::new();
    let state = sandbox.path("state");
    let applied = pinfold(&[], &state, &["apply", "-s", "compact", "--pid", &pid.to_string()]);
    let undone = pinfold(&[], &state, &["undo"]);
    files::remove_tree(&forged).expect("removed");
    assert!(applied.status.success(), "{}", applied.stderr_text());
    assert!(undone.status.success(), "{}", undone.stderr_text());
    the_mark_of_the_owner_counts(&pid.to_string());
}

/// Root does not place a machine that its owner has placed.
fn the_mark_of_the_owner_counts(pid: &str) {
    let sandbox = Sandbox::new();
    let root = sandbox.root();
    let (own, other) = (format!("{root}/own"), format!("{root}/other"));
    let user = nobody(&root);
    pinfold(&user, &own, &["apply", "-s", "compact", "--pid", pid]).expect_success();
    let refused = pinfold(&[], &other, &["apply", "-s", "none", "--pid", pid]);
    let undone = pinfold(&user, &own, &["undo"]);
    assert_eq!(refused.status.code(), Some(3), "{}", refused.stderr_text());
    assert!(refused.stderr_text().contains("already has a placement"), "{}", refused.stderr_text());
    assert!(undone.status.success(), "{}", undone.stderr_text());
}

#[test]
fn numa_balancing_is_written_only_with_the_capability_of_the_page() {
    let file = paths::sysctl_kernel("numa_balancing");
    let host = LiveHost::new().expect("a host");
    let Ok(value) = host.read_text(&file) else {
        return skip(format!("this kernel has no {file}"));
    };
    if cannot_run() {
        return;
    }
    // The same value again: the setting stays.
    let line = format!("printf %s {} > {file}", value.trim());
    let writes = |names: &[&str]| {
        let words = with_capabilities(names).into_iter();
        let words = words.chain(["sh", "-c", &line].map(str::to_owned));
        run("env", words).status.success()
    };
    assert!(writes(&["sys_admin"]));
    assert!(!writes(&["sys_nice", "sys_ptrace", "dac_override", "perfmon"]));
}

#[test]
fn a_state_directory_that_others_could_have_filled_is_refused() {
    let sandbox = Sandbox::new();
    files::make_dirs(&sandbox.path("open")).expect("made");
    run("chmod", ["777", &sandbox.path("open")]).expect_success();
    files::make_dirs(&sandbox.path("real")).expect("made");
    std::os::unix::fs::symlink(sandbox.path("real"), sandbox.path("link")).expect("a link");
    for command in ["status", "undo", "journal", "watch"] {
        for (name, why) in [("open", "can be written by others"), ("link", "is a link")] {
            let refused = pinfold(&[], &sandbox.path(name), &[command]);
            assert_eq!(refused.status.code(), Some(3), "{command} {name}");
            assert!(refused.stderr_text().contains(why), "{}", refused.stderr_text());
        }
    }
    if !is_root() {
        return skip("a directory of another user takes root");
    }
    files::make_dirs(&sandbox.path("foreign")).expect("made");
    run("chown", ["65534", &sandbox.path("foreign")]).expect_success();
    let refused = pinfold(&[], &sandbox.path("foreign"), &["undo"]);
    assert!(refused.stderr_text().contains("belongs to user 65534"), "{}", refused.stderr_text());
}

/// Runs the hook as libvirt does when a domain has started; what it says.
fn hook(folder: &str) -> String {
    let words = ["libvirt-hook", "vm1", "started", "begin", "-", "--plans", "plans"];
    let line = format!("cd '{folder}' && exec '{PINFOLD}' {} < domain.xml", words.join(" "));
    let output = run("sh", ["-c", &line]);
    assert!(output.status.success(), "a hook never fails");
    output.stderr_text()
}

#[test]
fn the_hook_refuses_plans_that_others_can_write() {
    let sandbox = Sandbox::new();
    let root = sandbox.root();
    let plan = format!("{root}/plans/vm1.json");
    let xml = "<domain><name>vm1</name><uuid>0f4c5a52-6a3e-4c1b-9a55-3f2d6f1b7c10</uuid></domain>";
    files::write_atomic(&format!("{root}/domain.xml"), xml.as_bytes()).expect("written");
    sh("mkdir -m 0755 plans && echo '{}' > plans/vm1.json && chmod 644 plans/vm1.json", &root);
    let said = hook(&root);
    assert!(said.contains("plans/vm1.json: ") && !said.contains("others"), "it is read: {said}");
    sh("chmod 666 plans/vm1.json", &root);
    assert_parts(&hook(&root), &["vm1.json: can be written by others"]);
    // A link into a folder of somebody else's, say.
    sh(
        "chmod 600 plans/vm1.json && mv plans/vm1.json home.json && ln -s ../home.json plans/vm1.json",
        &root,
    );
    assert_parts(&hook(&root), &["vm1.json: is a link"]);
    assert!(files::exists(&plan), "it is left there");
    sh("rm plans/vm1.json && mv home.json plans/vm1.json && chmod 777 plans", &root);
    assert_parts(&hook(&root), &["plans: can be written by others"]);
}

fn sh(line: &str, root: &str) {
    let line = format!("cd '{root}' && {line}");
    assert!(run("sh", ["-c", &line]).status.success());
}
