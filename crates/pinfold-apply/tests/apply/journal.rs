//! Who may begin, reopen and undo a journal, and what a damaged one does to the host.

use crate::common::{Bench, Case, PLAN_TEXT, assert_same, break_at, cases, id, v1};
use pinfold_apply::{JournalError, NewJournal, Point, apply};
use pinfold_host::files::StateDir;
use pinfold_host::{Host as _, paths};
use pinfold_model::{IsolationScope, Tid};

fn directory(bench: &Bench) -> StateDir {
    StateDir::open(&format!("{}/state/journal", bench.folder.path().display())).unwrap()
}

fn new(case: &Case) -> NewJournal<'_> {
    NewJournal { vm_name: "vm1", plan: PLAN_TEXT, target: &case.target, supervised: false }
}

#[test]
fn a_second_pinfold_on_the_same_machine_is_refused() {
    let (case, bench) = (v1(), Bench::new());
    let mut first = bench.begin(&case);
    check(
        bench.journals().begin(&case.host, &new(&case)).map(|_| ()).unwrap_err(),
        "stop that process",
    );
    check(bench.journals().reopen(&id(&case)).map(|_| ()).unwrap_err(), "stop that process");
    drop(first);
    // Nothing was done: nothing is in force.
    first = bench.begin(&case);
    let mut observer = break_at(0, Point::AfterJournal);
    apply(&case.host, &case.plan, &case.target, &mut first, &mut observer).unwrap_err();
    drop(first);
    // The first one was killed: its placement may be in force.
    let error = bench.journals().begin(&case.host, &new(&case)).map(|_| ()).unwrap_err();
    assert!(matches!(&error, JournalError::Active { vm_name, .. } if vm_name == "vm1"));
    check(error, "pinfold undo 500-1500");
    assert!(bench.undo(&case).is_complete());
    bench.begin(&case);
}

fn check(error: JournalError, hint: &str) {
    assert!(error.hint().unwrap().contains(hint), "{error}: {:?}", error.hint());
}

/// A later Pinfold in the place of the one that wrote the journal.
fn killed_and_run_again(case: &Case) {
    assert!(case.host.edit_task(Tid(100), |task| *task = task.clone().started(9_999)));
}

#[test]
fn left_behind_is_what_its_supervisor_or_a_restart_left_and_what_was_broken_off() {
    for supervised in [false, true] {
        let (case, bench) = (v1(), Bench::new());
        let new = NewJournal { supervised, ..new(&case) };
        let mut journal = bench.journals().begin(&case.host, &new).unwrap();
        let mut all = pinfold_apply::no_observer();
        apply(&case.host, &case.plan, &case.target, &mut journal, &mut all).unwrap();
        drop(journal);
        assert!(!is_left(&case, &bench), "its Pinfold lives");
        killed_and_run_again(&case);
        assert_eq!(is_left(&case, &bench), supervised, "its Pinfold has ended");
        case.host.set_file(&paths::boot_id(), "00000000-0000-0000-0000-000000000002\n");
        assert!(is_left(&case, &bench), "of an earlier boot");
        assert!(bench.undo(&case).is_complete());
        assert!(!is_left(&case, &bench), "it has ended");
    }
}

fn is_left(case: &Case, bench: &Bench) -> bool {
    let record = bench.journals().read(&id(case)).unwrap().unwrap();
    record.is_left(&case.host).unwrap()
}

#[test]
fn an_apply_and_an_undo_that_were_killed_are_left_behind() {
    let steps =
        pinfold_apply::plan_steps(&v1().host, &v1().plan, &v1().target).unwrap().steps.len();
    for index in 0..steps {
        for point in [Point::AfterJournal, Point::AfterChange] {
            let (case, bench) = (v1(), Bench::new());
            bench.apply_watched(&case, &mut break_at(index, point)).unwrap_err();
            killed_and_run_again(&case);
            let record = bench.journals().read(&id(&case)).unwrap().unwrap();
            assert!(record.is_left(&case.host).unwrap(), "{point:?} of step {index}");
        }
    }
    let (case, bench) = (v1(), Bench::new());
    bench.apply(&case).unwrap();
    killed_and_run_again(&case);
    // The kernel refuses a part of it.
    case.host.fail_on("set_affinity 501", 1);
    assert!(!pinfold_apply::undo(&case.host, &mut bench.reopen(&case)).is_complete());
    let record = bench.journals().read(&id(&case)).unwrap().unwrap();
    assert!(record.is_left(&case.host).unwrap(), "an undo that could not do all");
}

#[test]
fn a_machine_that_has_ended_is_reported() {
    let (case, bench) = (v1(), Bench::new());
    case.host.exit(Tid(500));
    let error = bench.journals().begin(&case.host, &new(&case)).map(|_| ()).unwrap_err();
    assert!(matches!(error, JournalError::VmGone { pid: Tid(500) }), "{error}");
}

#[test]
fn after_a_reboot_nothing_is_replayed() {
    let (case, bench) = (v1().with(IsolationScope::Host), Bench::new());
    bench.apply(&case).unwrap();
    case.host.set_file(&paths::boot_id(), "11111111-2222-3333-4444-555555555555\n");
    let before = case.host.snapshot();
    let report = bench.undo(&case);
    assert!(report.is_complete() && report.dropped > 5 && report.restored == 0, "{report:?}");
    assert_same(&before, &case.host, "another boot");
    assert!(bench.reopen(&case).record().has_ended());
}

#[test]
fn an_old_journal_of_another_boot_is_no_hindrance() {
    let (case, bench) = (v1(), Bench::new());
    bench.apply(&case).unwrap();
    case.host.set_file(&paths::boot_id(), "11111111-2222-3333-4444-555555555555\n");
    bench.begin(&case);
}

#[test]
fn an_undone_journal_is_not_undone_again() {
    let (case, bench) = (v1(), Bench::new());
    bench.apply(&case).unwrap();
    assert!(bench.undo(&case).restored > 0);
    bench.apply(&case).unwrap();
    bench.undo(&case);
    let before = case.host.snapshot();
    let report = bench.undo(&case);
    assert_eq!(report, pinfold_apply::UndoReport::default());
    assert_same(&before, &case.host, "a second undo");
}

#[test]
fn a_journal_without_a_whole_header_means_that_nothing_was_done() {
    let (case, bench) = (v1(), Bench::new());
    let files = directory(&bench);
    let name = format!("{}.jsonl", id(&case));
    for content in [&b""[..], b"{\"format\":\"pinfold-jour"] {
        files.create_new(&name, content).unwrap();
        assert!(bench.journals().list().unwrap()[0].record.as_ref().unwrap().is_none());
        assert!(bench.journals().reopen(&id(&case)).unwrap().is_none());
        assert!(!files.contains(&name));
        files.create_new(&name, content).unwrap();
        drop(bench.begin(&case));
        files.remove(&name).unwrap();
    }
}

#[test]
fn a_malformed_journal_executes_nothing() {
    let (case, bench) = (v1().with(IsolationScope::Host), Bench::new());
    bench.apply(&case).unwrap();
    let (files, name) = (directory(&bench), format!("{}.jsonl", id(&case)));
    let mut bytes = files.read(&name).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x80;
    files.replace(&name, &bytes).unwrap();
    let before = case.host.snapshot();
    let error = bench.journals().reopen(&id(&case)).map(|_| ()).unwrap_err();
    assert!(matches!(error, JournalError::Malformed { line: 2.., .. }), "{error}");
    assert!(bench.journals().list().unwrap()[0].record.is_err(), "others are still listed");
    assert_same(&before, &case.host, "malformed");
}

/// A journal that lost its end on the disk (which `fsync` should prevent) undoes what it knows,
/// and never does harm: the whole journal still undoes the rest.
#[test]
fn a_journal_cut_anywhere_never_harms() {
    for case in cases() {
        let bench = Bench::new();
        let before = case.host.snapshot();
        bench.apply(&case).unwrap();
        let (files, name) = (directory(&bench), format!("{}.jsonl", id(&case)));
        let whole = files.read(&name).unwrap();
        let ends: Vec<usize> =
            (0..whole.len()).filter(|at| whole[*at] == b'\n').map(|at| at + 1).collect();
        let applied = case.host.clone();
        // Every third line, or all of them.
        let lines = ends.iter().enumerate().step_by(crate::common::times(3, 1) as usize);
        for (position, end) in lines {
            // In the middle of a line, directly before its newline, and directly behind it.
            let start = if position == 0 { 0 } else { ends[position - 1] };
            for cut in [start + (end - start) / 2, end - 1, *end] {
                let what = format!("{}, {}, cut at {cut}", case.name, case.plan.isolation);
                let case = Case { host: applied.clone(), ..case.clone() };
                files.replace(&name, &whole[..cut]).unwrap();
                if let Some(mut journal) = bench.journals().reopen(&id(&case)).unwrap() {
                    pinfold_apply::undo(&case.host, &mut journal);
                }
                for (task, _) in &case.target.threads {
                    let mask = case.host.affinity(task.tid).unwrap();
                    assert!(!mask.is_empty(), "{what}");
                }
                // What the whole journal still has to do.
                if !files.contains(&name) {
                    files.create_new(&name, &whole).unwrap();
                }
                files.replace(&name, &whole).unwrap();
                let report = bench.undo(&case);
                assert!(report.is_complete(), "{what}: {report:?}");
                assert_same(&before, &case.host, &what);
            }
        }
    }
}

#[test]
fn a_torn_line_is_cut_off_before_anything_is_added() {
    let (case, bench) = (v1(), Bench::new());
    let before = case.host.snapshot();
    bench.apply_watched(&case, &mut break_at(1, Point::AfterJournal)).unwrap_err();
    let (files, name) = (directory(&bench), format!("{}.jsonl", id(&case)));
    files.append(&name, b"{\"step\":{\"ind").unwrap();
    assert!(bench.journals().read(&id(&case)).unwrap().unwrap().torn);
    assert!(bench.undo(&case).is_complete());
    let record = bench.journals().read(&id(&case)).unwrap().unwrap();
    assert!(record.has_ended() && !record.torn);
    assert_same(&before, &case.host, "torn");
}

#[test]
fn links_and_foreign_files_are_not_believed() {
    let (case, bench) = (v1(), Bench::new());
    bench.apply(&case).unwrap();
    let path = bench.folder.path().join("state/journal").join(format!("{}.jsonl", id(&case)));
    let elsewhere = bench.folder.path().join("elsewhere.jsonl");
    let (from, to) = (path.to_str().unwrap(), elsewhere.to_str().unwrap());
    pinfold_host::files::write_atomic(to, &pinfold_host::files::read(from).unwrap()).unwrap();
    directory(&bench).remove(&format!("{}.jsonl", id(&case))).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
    let error = bench.journals().reopen(&id(&case)).map(|_| ()).unwrap_err();
    assert!(matches!(error, JournalError::Store(_)), "{error}");
    assert!(error.hint().unwrap().contains("not be writable by other users"), "{error}");
}
