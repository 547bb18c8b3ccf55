//! `pinfold journal` on journals that are whole, damaged, foreign, and hostile.

use crate::common::{Checked as _, PINFOLD, Sandbox, assert_parts, run};
use pinfold_host::files::{self, StateDir};
use pinfold_host::process::Output;
use pinfold_host::{Host as _, LiveHost, paths, proc_stat};
use pinfold_model::TaskId;

const HEADER: &str = r#"{"format":"pinfold-journal/1","id":"7-9","boot_id":"11111111-2222-3333-4444-555555555555","created_unix_s":1770000000,"supervisor":{"tid":5,"start_time":1},"vm":{"tid":7,"start_time":9},"vm_name":"NAME","threads":[],"plan":"{}"}"#;
const ANOTHER_BOOT: &str = "11111111-2222-3333-4444-555555555555";
const STEP: &str = r#"{"step":{"index":0,"reason":"vcpu(0): a core of its own","change":{"set_affinity":{"task":{"tid":7,"start_time":9},"mask":"1"}},"undo":{"set_affinity":{"task":{"tid":7,"start_time":9},"original":"0-3"}}}}"#;

struct TestJournals {
    sandbox: Sandbox,
    journals: StateDir,
}

impl TestJournals {
    fn new() -> Self {
        Self::new_in(Sandbox::new())
    }

    fn new_in(sandbox: Sandbox) -> Self {
        StateDir::open(&sandbox.path("state")).expect("a state");
        let journals = StateDir::open(&sandbox.path("state/journal")).expect("journals");
        Self { sandbox, journals }
    }

    fn put(&self, id: &str, text: &str) {
        self.journals.create_new(&format!("{id}.jsonl"), text.as_bytes()).expect("written");
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.pinfold(&[&["journal"], arguments].concat())
    }

    fn pinfold(&self, arguments: &[&str]) -> Output {
        self.sandbox.run(arguments)
    }

    /// The text of a journal.
    fn text(&self, id: &str) -> String {
        self.sandbox.read(&format!("state/journal/{id}.jsonl"))
    }
}

/// A directory in `/proc` cannot be made, as on a file system that is read-only.
#[test]
fn without_journals_there_is_nothing_to_undo_and_nothing_is_created() {
    let sandbox = Sandbox::new();
    let empty = sandbox.path("empty");
    files::make_dirs(&empty).expect("a folder");
    run("chmod", ["0700", &empty]).expect_success();
    for state in [empty.as_str(), "/proc/none/pinfold"] {
        for (word, code, part) in [
            ("--all", 0, "no placement is active"),
            ("--left", 0, "no placement is left behind"),
            ("web", 2, "machine web"),
        ] {
            let said = run(PINFOLD, ["--state-dir", state, "undo", word]).expect_code(code);
            assert!(said.contains(part), "{state}: {said}");
        }
    }
    assert_eq!(files::list(&empty).expect("a folder"), [""; 0]);
    // What may not be used is refused with what to do.
    run("chmod", ["0777", &empty]).expect_success();
    let refused = run(PINFOLD, ["--state-dir", &empty, "undo"]).expect_code(3);
    let parts = ["can be written by others", "chmod go-w", "or name another directory with"];
    assert!(parts.iter().all(|part| refused.contains(part)), "{refused}");
    let file = sandbox.write("file", "");
    let refused = run(PINFOLD, ["--state-dir", &format!("{file}/x"), "apply", "web"]);
    assert!(refused.expect_code(3).contains("another directory with --state-dir"));
}

#[test]
fn a_journal_is_shown_with_what_was_there_before() {
    let journals = TestJournals::new();
    let empty = journals.run(&[]);
    assert_eq!(empty.stdout_text().trim(), "no journals: nothing was applied");
    let outcome = r#"{"outcome":{"index":0,"result":"done","detail":null}}"#;
    journals.put("7-9", &format!("{HEADER}\n{STEP}\n{outcome}\n{{\"end\":"));
    let list = journals.run(&[]).expect_success();
    assert!(list.stdout_text().contains("of an earlier boot"), "{}", list.stdout_text());
    let shown = journals.run(&["7-9"]).stdout_text();
    assert_parts(
        &shown,
        &[
            "NAME",
            "set affinity of task 7 to 1",
            "before: 0-3",
            "a core of its own",
            "done",
            "is incomplete",
        ],
    );
    let json = journals.run(&["7-9", "--json"]).stdout_text();
    assert_parts(&json, &[r#""before":"0-3""#, r#""outcome":"done""#, r#""torn":true"#]);
}

/// What a power cut leaves on the disk: an open journal, and a file that was to replace one.
#[test]
fn a_placement_of_an_earlier_boot_is_ended_and_not_called_restored() {
    let journals = TestJournals::new();
    journals.put("7-9", &format!("{HEADER}\n{STEP}\n"));
    let half = journals.sandbox.write("state/journal/.7-9.jsonl.4194999.tmp", "{");
    let status = journals.pinfold(&["status"]);
    let said = status.stdout_text() + &status.stderr_text();
    assert!(said.contains(".7-9.jsonl.4194999.tmp"), "{said}");
    let said = journals.pinfold(&["undo", "--left"]).expect_code(0);
    assert!(said.contains("the restart of the host reverted 1 run-time step"), "{said}");
    assert!(said.contains("0 restored") && !files::exists(&half), "{said}");
    let json = journals.run(&["--json"]).stdout_text();
    assert!(json.contains(r#""state":"ended by a restart of the host""#), "{json}");
    assert!(journals.run(&[]).stdout_text().contains("ended by a restart"));
}

#[test]
fn what_is_not_understood_is_named_with_a_hint_and_hides_nothing() {
    let journals = TestJournals::new();
    journals.put("1-1", "{}\n");
    journals.put("2-2", &format!("{HEADER}\nnonsense\n"));
    journals.put("3-3", &HEADER.replace("journal/1", "journal/9").replace("7-9", "3-3"));
    journals.put("4-4", &format!("{}\n", HEADER.replace("journal/1", "journal/9")));
    journals.put("5-5", &format!("{HEADER}\n{STEP}\n"));
    journals.put("6-6", "");
    let list = journals.run(&[]);
    assert_eq!(list.status.code(), Some(3));
    let (data, talk) = (list.stdout_text(), list.stderr_text());
    assert_eq!(data.matches("not understood").count(), 3, "{data}");
    assert_eq!(data.matches("no step was executed").count(), 2, "{data}");
    assert_eq!(data.matches("of an earlier boot").count(), 1, "{data}");
    assert_parts(
        &talk,
        &["2-2.jsonl: cannot parse line 2", "mv ", "pinfold-journal/9", "a later one"],
    );
    journals.run(&["2-2"]).expect_code(3);
    for (id, part) in [("9-9", "the latest 16 that ended"), ("../x", "there is no journal")] {
        let unknown = journals.run(&[id]);
        assert_eq!(unknown.status.code(), Some(2));
        assert!(unknown.stderr_text().contains(part), "{}", unknown.stderr_text());
    }
}

#[test]
fn a_journal_behind_a_link_or_open_to_others_is_not_read() {
    let journals = TestJournals::new();
    let elsewhere = journals.sandbox.write("elsewhere", format!("{HEADER}\n"));
    std::os::unix::fs::symlink(&elsewhere, journals.journals.path_of("1-1.jsonl")).expect("a link");
    journals.put("2-2", &format!("{HEADER}\n"));
    let open = journals.journals.path_of("2-2.jsonl");
    run("chmod", ["666", &open]).expect_success();
    let list = journals.run(&[]);
    assert_eq!(list.status.code(), Some(3));
    let talk = list.stderr_text();
    assert_parts(&talk, &["1-1.jsonl: is a link", "2-2.jsonl: can be written by others", "check "]);
}

#[test]
fn a_hostile_name_neither_steers_the_terminal_nor_forges_a_line() {
    let journals = TestJournals::new();
    let name = r"vm\u001b]0;owned\u0007\u009b2J\u202e\npinfold: all is well";
    journals.put("7-9", &format!("{}\n{STEP}\n", HEADER.replace("NAME", name)));
    for arguments in [&["7-9"][..], &[], &["7-9", "--json"]] {
        let output = journals.run(arguments);
        let text = output.stdout_text() + &output.stderr_text();
        assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
        assert!(!text.contains('\u{202e}'), "{text:?}");
        assert!(!text.lines().any(|line| line.starts_with("pinfold: all")), "{text:?}");
    }
}

#[test]
fn status_goes_on_where_a_journal_is_damaged() {
    let journals = TestJournals::new();
    journals.put("1-1", "{}\n");
    journals.put("2-2", &format!("{HEADER}\nnonsense\n"));
    journals.put(
        "7-9",
        &format!("{HEADER}\n{STEP}\n{{\"end\":{{\"unix_s\":1,\"why\":\"undone\"}}}}\n"),
    );
    journals.put("8-8", &format!("{HEADER}\n{STEP}\n"));
    let run = |words: &[&str]| journals.pinfold(&[&["status"], words].concat());
    let status = run(&[]);
    assert_eq!(status.status.code(), Some(3), "{}", status.stdout_text());
    let talk = status.stderr_text();
    assert_parts(&talk, &["1-1: ", "2-2: ", "cannot parse line 2", "8-8: ", "3 journals"]);
    assert!(!talk.contains("7-9: "), "{talk}");
    let json = run(&["--json"]).stdout_text();
    assert_eq!(json.matches(r#""why":"#).count(), 3, "{json}");
}

#[test]
fn only_what_is_left_behind_is_undone_by_that_name() {
    let journals = TestJournals::new();
    let boot = files::read_text("/proc/sys/kernel/random/boot_id").expect("a boot id");
    // No process has such a number: the kernel gives out at most 4194304.
    let now = HEADER.replace(ANOTHER_BOOT, boot.trim()).replace(r#""tid":5"#, r#""tid":4999999"#);
    let vm = own_task();
    let alive = format!(r#""tid":{},"start_time":{}"#, vm.tid, vm.start_time);
    let now = now.replace(r#""tid":7,"start_time":9"#, &alive);
    let step = STEP.replace(r#""tid":7"#, r#""tid":4999998"#);
    let kept = now.replace("journal/1", "journal/2");
    let supervised = kept.replace(r#""vm":"#, r#""supervised":true,"vm":"#);
    let done = r#"{"outcome":{"index":0,"result":"done","detail":null}}"#;
    let put = |id: &str, header: &str, rest: &str| {
        journals.put(id, &format!("{}\n{rest}", header.replace("7-9", id)));
    };
    put("1-1", &now, &format!("{step}\n{done}\n"));
    put("2-2", &kept, &format!("{step}\n{done}\n"));
    put("3-3", &supervised, &format!("{step}\n{done}\n"));
    put("4-4", &kept, &format!("{step}\n"));
    put("5-5", HEADER, &format!("{STEP}\n{done}\n"));
    let ended = kept.replace(&alive, r#""tid":4999998,"start_time":9"#);
    put("6-6", &ended, &format!("{step}\n{done}\n"));
    let output = journals.pinfold(&["undo", "--left"]);
    let talk = output.stderr_text();
    assert!(output.status.success(), "{talk}");
    assert!(talk.contains("2 placements stay"), "{talk}");
    let stay = [("1-1", false), ("2-2", false)];
    for (id, is_over) in stay.into_iter().chain(["3-3", "4-4", "5-5", "6-6"].map(|id| (id, true))) {
        assert_eq!(journals.text(id).contains("{\"end\":"), is_over, "{id}: {talk}");
    }
    let again = journals.pinfold(&["undo", "--left"]);
    let said = again.stderr_text();
    assert!(said.contains("no placement is left behind: 2 placements stay active\n"), "{said}");
}

/// What stays because its journal cannot be read is a residue, and does not keep the others.
#[test]
fn undo_of_all_reverts_the_newest_first_and_ends_with_5_over_a_damaged_journal() {
    let journals = TestJournals::new();
    journals.put("1-1", &format!("{}\n{STEP}\n", header_at("1-1", "1770000001")));
    journals.put("3-3", &format!("{}\n{STEP}\n", header_at("3-3", "1770000003")));
    journals.put("2-2", &format!("{}\n{STEP}\n", header_at("2-2", "1770000002")));
    journals.put("4-4", &format!("{HEADER}\nnonsense\n"));
    let said = journals.pinfold(&["undo", "--all"]).expect_code(5);
    assert!(said.contains("cannot parse line 2"), "{said}");
    let places = ["3-3 (", "2-2 (", "1-1 ("].map(|id| said.find(id).expect(id));
    assert!(places.is_sorted(), "{said}");
    assert_eq!(journals.pinfold(&["undo", "4-4"]).status.code(), Some(5));
}

fn header_at(id: &str, second: &str) -> String {
    HEADER.replace("\"7-9\"", &format!("{id:?}")).replace("1770000000", second)
}

/// A name selects all placements of one machine, and is refused where two machines have it.
#[test]
fn placements_are_undone_and_shown_by_the_name_of_their_machine() {
    let journals = TestJournals::new();
    let put = |id: &str, name: &str, pid: &str| {
        let header = HEADER.replace("\"7-9\"", &format!("{id:?}")).replace("NAME", name);
        let vm = format!(r#""vm":{{"tid":{pid}"#);
        journals.put(id, &format!("{}\n{STEP}\n", header.replace(r#""vm":{"tid":7"#, &vm)));
    };
    put("1-1", "desktop", "7");
    put("2-2", "desktop", "7");
    put("3-3", "twin", "8");
    put("4-4", "twin", "9");
    journals.sandbox.refuse(&["undo", "nonesuch"], 2, "the machine nonesuch");
    let twins = journals.pinfold(&["undo", "twin"]);
    twins.expect_code(2);
    let said = twins.stderr_text();
    assert!(said.contains("2 machines are named twin") && said.contains("3-3, 4-4"), "{said}");
    let said = journals.pinfold(&["undo", "desktop"]).expect_code(0);
    assert!(["1-1 (", "2-2 ("].iter().all(|id| said.contains(id)), "{said}");
    for wanted in ["3-3", "8"] {
        let shown = journals.pinfold(&["status", wanted]);
        let shown = format!("{}{}", shown.stdout_text(), shown.stderr_text());
        assert!(!shown.contains("4-4"), "{wanted}: {shown}");
        let listed = journals.pinfold(&["journal", wanted]).stdout_text();
        assert!(listed.contains("3-3: twin"), "{wanted}: {listed}");
    }
    let several = journals.pinfold(&["journal", "desktop"]).expect_success();
    let (listed, said) = (several.stdout_text(), several.stderr_text());
    assert!(
        listed.contains("1-1") && listed.contains("2-2") && !listed.contains("3-3"),
        "{listed}"
    );
    assert_parts(&said, &[" journal ID` shows the steps of one of them"]);
    assert_eq!(journals.pinfold(&["status", "desktop"]).status.code(), Some(1));
    assert!(journals.pinfold(&["undo", "8"]).status.success(), "by its process ID");
    assert!(journals.pinfold(&["undo", "twin"]).status.success(), "one machine has the name now");
    assert_parts(&journals.pinfold(&["undo", "twin"]).stderr_text(), &["of twin ended on "]);
    let nonesuch = journals.pinfold(&["undo", "nonesuch"]);
    assert_parts(&nonesuch.stderr_text(), &["none is active; `pinfold"]);
}

/// A plan cannot avoid the CPUs of a placement whose journal cannot be read, and says so.
#[test]
fn a_plan_reports_journals_that_it_cannot_read() {
    let journals = TestJournals::new_in(Sandbox::with_claims());
    let words = ["plan", "-s", "compact", "--vcpus", "1"];
    let sound = journals.pinfold(&words);
    assert!(!sound.stdout_text().contains("cannot be read"), "{}", sound.stdout_text());
    journals.put("4-4", "no journal at all\n");
    let warned = journals.pinfold(&words);
    warned.expect_code(0);
    let text = warned.stdout_text().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("warning: claims: the journal 4-4 cannot be read"), "{text}");
    let ignored = journals.pinfold(&[&words[..], &["--ignore-claims"]].concat());
    assert!(!ignored.stdout_text().contains("4-4"), "{}", ignored.stdout_text());
}

#[test]
fn journals_are_listed_in_the_order_of_time() {
    let journals = TestJournals::new();
    let earlier = HEADER.replace("\"7-9\"", "\"9-1\"");
    let later = HEADER.replace("\"7-9\"", "\"10-1\"").replace("1770000000", "1770009999");
    journals.put("10-1", &format!("{later}\n{STEP}\n"));
    journals.put("9-1", &format!("{earlier}\n{STEP}\n"));
    let list = journals.run(&[]).stdout_text();
    let at = |id: &str| list.find(id).expect("it is listed");
    assert!(at("9-1") < at("10-1"), "{list}");
}

/// This process as the kernel shows it.
fn own_task() -> TaskId {
    let host = LiveHost::new().expect("a host");
    let stat = host.read_text(&paths::own_stat()).expect("own stat");
    proc_stat::parse(&stat).expect("parsed").task()
}

/// What a machine that has ended changed on the host is reverted by the next command. One that its
/// own Pinfold process reverts is left to that process.
#[test]
fn a_placement_ends_with_its_machine() {
    let journals = TestJournals::new();
    let boot = files::read_text("/proc/sys/kernel/random/boot_id").expect("a boot id");
    let own = own_task();
    // No process has such a number: the kernel gives out at most 4194304.
    let header =
        HEADER.replace(ANOTHER_BOOT, boot.trim()).replace(r#""tid":7"#, r#""tid":4999998"#);
    let step = STEP.replace(r#""tid":7"#, r#""tid":4999998"#);
    let done = r#"{"outcome":{"index":0,"result":"done","detail":null}}"#;
    journals.put("4999998-9", &format!("{header}\n{step}\n{done}\n"));
    let supervisor = format!(r#""tid":{},"start_time":{}"#, own.tid, own.start_time);
    let supervised = header
        .replace("journal/1", "journal/2")
        .replace(r#""vm":"#, r#""supervised":true,"vm":"#)
        .replace(r#""tid":5,"start_time":1"#, &supervisor);
    journals.put("3-3", &format!("{}\n{step}\n{done}\n", supervised.replace("7-9", "3-3")));
    let status = journals.pinfold(&["status"]);
    let said = status.stderr_text();
    let counts = "has ended with its process: 0 restored, 0 already as before, 1 gone";
    assert!(said.contains(&format!("4999998-9 (NAME) {counts}")), "{said}");
    let shown = journals.run(&["4999998-9"]).stdout_text();
    assert!(shown.contains("0  gone, so nothing was restored"), "{shown}");
    let json = journals.run(&["4999998-9", "--json"]).stdout_text();
    assert!(json.contains(r#""outcome":"gone, so nothing was restored""#), "{json}");
    assert!(journals.text("4999998-9").contains(r#""why":"ended with its process""#), "{said}");
    assert!(!journals.text("3-3").contains(r#"{"end""#), "{said}");
    let left = journals.pinfold(&["undo", "--left"]).stderr_text();
    assert!(left.contains("no placement is left behind: 1 placement stays active"), "{left}");
}

/// Whatever a journal names, undo changes only tunables and groups of the kernel.
#[test]
fn undo_leaves_files_that_are_not_of_the_kernel() {
    let journals = TestJournals::new();
    let host = LiveHost::new().expect("a host");
    let own = own_task();
    let id = format!("{}-{}", own.tid, own.start_time);
    let task = format!(r#"{{"tid":{},"start_time":{}}}"#, own.tid, own.start_time);
    let boot = host.read_text(&paths::boot_id()).expect("a boot id");
    let header = HEADER
        .replace(r#"{"tid":7,"start_time":9}"#, &task)
        .replace(r#""id":"7-9""#, &format!(r#""id":"{id}""#))
        .replace(ANOTHER_BOOT, boot.trim());
    let base = journals.sandbox.root();
    let (value, group, pipe) =
        (format!("{base}/value"), format!("{base}/pinfold-1-1"), format!("{base}/pipe"));
    files::write_atomic(&value, b"mine\n").expect("a file");
    files::make_dirs(&group).expect("a folder");
    std::os::unix::fs::symlink(&value, format!("{base}/link")).expect("a link");
    run("mkfifo", [&pipe]).expect_success();
    let through = format!("/proc/self/root{value}");
    let around = format!("/sys/../{value}");
    for path in [&value, &format!("{base}/link"), &pipe, &through, &around] {
        let change = format!(r#"{{"write_file":{{"path":"{path}","value":{{"text":"mine"}}}}}}"#);
        let undo = format!(r#"{{"write_file":{{"path":"{path}","original":{{"text":"no"}}}}}}"#);
        is_refused(&journals, &id, &[&header, &step(&change, &undo)], path);
        assert_eq!(files::read_text(&value).expect("it is there"), "mine\n", "{path}");
    }
    let change = format!(r#"{{"make_group":{{"path":"{group}"}}}}"#);
    let undo = format!(r#"{{"remove_group":{{"path":"{group}"}}}}"#);
    is_refused(&journals, &id, &[&header, &step(&change, &undo)], &group);
    assert!(files::is_dir(&group));
}

/// A journal is created whole: an empty one of a live process was cut, and may have had steps.
#[test]
fn an_empty_journal_of_a_live_process_is_not_called_nothing_done() {
    let journals = TestJournals::new();
    let own = own_task();
    let id = format!("{}-{}", own.tid, own.start_time);
    journals.put(&id, "");
    journals.put("4999999-1", "");
    let said = journals.pinfold(&["undo", &id]).expect_code(5);
    assert!(
        said.contains(&format!("it is truncated, and process {} is running", own.tid)),
        "{said}"
    );
    assert!(journals.journals.contains(&format!("{id}.jsonl")), "it is left");
    journals.pinfold(&["status"]).expect_code(3);
    let other = journals.pinfold(&["undo", "4999999-1"]).expect_success();
    assert!(other.stderr_text().contains("no step had been executed"), "{}", other.stderr_text());
}

fn step(change: &str, undo: &str) -> String {
    format!(r#"{{"step":{{"index":0,"reason":"","change":{change},"undo":{undo}}}}}"#)
}

/// `undo` names the path, exits with 5, and leaves the journal open.
fn is_refused(journals: &TestJournals, id: &str, lines: &[&str], path: &str) {
    let name = format!("{id}.jsonl");
    let text = format!("{}\n", lines.join("\n"));
    journals.journals.replace(&name, text.as_bytes()).expect("written");
    let undone = journals.pinfold(&["undo", id]);
    let said = undone.stderr_text();
    assert_eq!(undone.status.code(), Some(5), "{path}: {said}");
    assert!(said.contains(path) && said.contains("it belongs to no tunable or cgroup"), "{said}");
    assert!(!journals.text(id).contains(r#"{"end""#), "{path}");
}

#[test]
fn a_placement_that_ended_is_named_with_when_and_why() {
    let journals = TestJournals::new();
    let end = r#"{"end":{"unix_s":1770000100,"why":"ended with its process"}}"#;
    journals.put("7-9", &format!("{HEADER}\n{STEP}\n{end}\n"));
    let ended =
        "the placement 7-9 of NAME ended on 2026-02-02 02:41:40 UTC: ended with its process";
    for wanted in ["NAME", "7-9", "7"] {
        for (command, code) in [("status", 1), ("undo", 2), ("watch", 2)] {
            let said = journals.pinfold(&[command, wanted]).expect_code(code);
            assert!(said.contains(ended), "{command} {wanted}: {said}");
            let is_status = command == "status";
            assert_eq!(said.contains("NAME does not run; "), is_status, "{wanted}: {said}");
            assert_eq!(!said.contains("nothing is left to revert"), is_status, "{wanted}: {said}");
            assert!(said.contains("`pinfold --state-dir"), "{command} {wanted}: {said}");
        }
    }
    let said = journals.pinfold(&["status", "other"]).expect_code(2);
    assert!(said.contains("there is no active placement"), "{said}");
}
