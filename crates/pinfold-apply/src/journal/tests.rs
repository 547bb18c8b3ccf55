//! A disk that runs full under the journal, and lines that Pinfold did not write.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use pinfold_host::files::{Lock, StateDir};
use pinfold_host::{Host as _, HostError, SimClock};
use pinfold_model::{
    Change, CpuSet, IsolationScope, Lifetime, Plan, Role, Setting, SettingManager, SettingsFile,
    Speed, Step, TaskId, ThreadPlan, Tid, Undo, VnodeKind, VnodePlan,
};
use pinfold_sim::{CgroupVersion, SimHost, SimTask};

use super::HISTORY;
use super::*;
use crate::{ApplyError, apply, no_observer, plan_steps, undo};

/// A state directory whose disk accepts only a given number of further writes.
struct FullDisk {
    inner: StateDir,
    left: AtomicUsize,
    removable: bool,
    /// Text that another program writes into a file before the file is locked here.
    meanwhile: Mutex<Option<(&'static str, Vec<u8>)>>,
}

impl FullDisk {
    fn new(inner: StateDir, room: usize, removable: bool) -> Arc<Self> {
        let left = AtomicUsize::new(room);
        Arc::new(Self { inner, left, removable, meanwhile: Mutex::new(None) })
    }

    fn full<T>(
        &self,
        name: &str,
        write: impl FnOnce() -> Result<T, HostError>,
    ) -> Result<T, HostError> {
        if self.left.load(Ordering::SeqCst) == 0 {
            let source = std::io::Error::from(std::io::ErrorKind::StorageFull);
            let path = Storage::path_of(&self.inner, name);
            return Err(HostError::File { operation: "append to", path, value: None, source });
        }
        self.left.fetch_sub(1, Ordering::SeqCst);
        write()
    }
}

impl Storage for FullDisk {
    fn path_of(&self, name: &str) -> String {
        Storage::path_of(&self.inner, name)
    }
    /// With a journal that another Pinfold process removes right after.
    fn list(&self) -> Result<Vec<String>, HostError> {
        let mut names = Storage::list(&self.inner)?;
        names.push("400-1400.jsonl".to_owned());
        Ok(names)
    }
    fn mark(&self) -> Result<u64, HostError> {
        Storage::mark(&self.inner)
    }
    fn contains(&self, name: &str) -> bool {
        Storage::contains(&self.inner, name)
    }
    fn read(&self, name: &str) -> Result<Vec<u8>, HostError> {
        Storage::read(&self.inner, name)
    }
    fn append(&self, name: &str, content: &[u8]) -> Result<(), HostError> {
        self.full(name, || Storage::append(&self.inner, name, content))
            // Half of the text reached the disk.
            .inspect_err(|_| {
                Storage::append(&self.inner, name, &content[..content.len() / 2]).unwrap();
            })
    }
    fn append_unsynced(&self, name: &str, content: &[u8]) -> Result<(), HostError> {
        self.full(name, || Storage::append_unsynced(&self.inner, name, content))
    }
    fn replace(&self, name: &str, content: &[u8], room: u64) -> Result<(), HostError> {
        self.full(name, || Storage::replace(&self.inner, name, content, room))
    }
    fn release_room(&self, name: &str) -> Result<(), HostError> {
        Storage::release_room(&self.inner, name)
    }
    fn remove(&self, name: &str) -> Result<(), HostError> {
        if self.removable || name.ends_with(".lock") {
            return Storage::remove(&self.inner, name);
        }
        self.full(name, || Storage::remove(&self.inner, name))
    }
    fn lock(&self, name: &str) -> Result<Option<Lock>, HostError> {
        let mut meanwhile = self.meanwhile.lock().unwrap();
        if let Some((file, text)) =
            meanwhile.take_if(|(file, _)| name.strip_suffix(".lock") == file.strip_suffix(".jsonl"))
        {
            Storage::replace(&self.inner, file, &text, 0)?;
        }
        Storage::lock(&self.inner, name)
    }
}

fn host() -> (SimHost, Plan, Target) {
    let host = SimHost::builder(CgroupVersion::V1, 2)
        .task(SimTask::new(500, "qemu"))
        .task(SimTask::new(501, "CPU 0/KVM").thread_of(500))
        .task(SimTask::new(600, "pinload"))
        .build();
    let id = |tid: u32| host.task(Tid(tid)).unwrap().id();
    let target = Target {
        pid: Tid(500),
        threads: vec![(id(500), Role::Emulator), (id(501), Role::Vcpu(0))],
        own: vec![id(600)],
        ..Target::new(Tid(500), Vec::new())
    };
    let plan = Plan {
        strategy: "test".to_owned(),
        fingerprint: String::new(),
        vnodes: vec![VnodePlan {
            name: "vm1".to_owned(),
            kind: VnodeKind::VirtualMachine,
            threads: vec![thread(Role::Vcpu(0), "1"), thread(Role::Emulator, "0")],
            guest: None,
            memory: None,
            speed: Speed::FULL,
        }],
        irqs: Vec::new(),
        tuning: pinfold_model::Tuning::default(),
        cpus: None,
        housekeeping: CpuSet::first_n(1),
        exclusive: CpuSet::parse_list("1").unwrap(),
        isolation: IsolationScope::Own,
        avoid_pus: pinfold_model::CpuSet::new(),
        moved: Vec::new(),
        housekeeping_reason: String::new(),
        findings: Vec::new(),
    };
    (host, plan, target)
}

fn thread(role: Role, pus: &str) -> ThreadPlan {
    ThreadPlan { role, pus: CpuSet::parse_list(pus).unwrap(), policy: None, reason: String::new() }
}

fn folder() -> (tempfile::TempDir, StateDir) {
    let folder = tempfile::tempdir().unwrap();
    let state = StateDir::open(&format!("{}/journal", folder.path().display())).unwrap();
    (folder, state)
}

#[test]
fn a_full_disk_stops_the_step_and_takes_back_what_was_done() {
    for removable in [true, false] {
        for room in 1.. {
            let ((host, plan, target), (_folder, inner)) = (host(), folder());
            let before = host.snapshot();
            let clock = SimClock::at(0);
            let disk = FullDisk::new(inner, room, removable);
            let journals = Journals::over(disk.clone(), &clock);
            let new = NewJournal { vm_name: "vm1", plan: "{}", target: &target, supervised: false };
            let mut journal = journals.begin(&host, &new).unwrap();
            let Err(error) = apply(&host, &plan, &target, &mut journal, &mut no_observer()) else {
                break;
            };
            assert!(matches!(error, ApplyError::NotJournalled { .. }), "{error}");
            assert!(error.hint().unwrap().contains("space"), "{error}");
            assert_eq!(before, host.snapshot(), "room for {room} writes");
            // If the journal cannot even be removed it stays active, and the later undo finds
            // nothing to do.
            assert_eq!(error.undone().unwrap().is_complete(), removable, "{error}");
            drop(journal);
            disk.left.store(usize::MAX, Ordering::SeqCst);
            if !removable {
                let mut again = journals.reopen("500-1500").unwrap().unwrap();
                let report = undo(&host, &mut again);
                assert!(report.is_complete(), "{report:?}");
                assert!(again.record().has_ended());
            }
            journals.begin(&host, &new).unwrap();
        }
    }
}

#[test]
fn a_header_that_does_not_fit_is_an_error_and_leaves_no_journal() {
    let ((host, plan, target), (_folder, inner)) = (host(), folder());
    let before = host.snapshot();
    let clock = SimClock::at(0);
    let disk = FullDisk::new(inner, 0, true);
    let journals = Journals::over(disk, &clock);
    let new = NewJournal { vm_name: "vm1", plan: "{}", target: &target, supervised: false };
    let mut journal = journals.begin(&host, &new).unwrap();
    let error = apply(&host, &plan, &target, &mut journal, &mut no_observer()).unwrap_err();
    assert!(error.hint().unwrap().contains("space"), "{error}");
    assert!(error.undone().unwrap().is_complete(), "{error}");
    assert_eq!(before, host.snapshot());
    assert!(journals.list().unwrap().is_empty());
}

/// The journal of a complete apply and undo.
fn text() -> String {
    let ((host, plan, target), (_folder, inner)) = (host(), folder());
    let clock = SimClock::at(5_000_000_000);
    let journals = Journals::over(Arc::new(inner), &clock);
    let new = NewJournal {
        vm_name: "vm \"1\"\n",
        plan: "{\"a\":1}\n",
        target: &target,
        supervised: false,
    };
    let mut journal = journals.begin(&host, &new).unwrap();
    apply(&host, &plan, &target, &mut journal, &mut no_observer()).unwrap();
    assert!(undo(&host, &mut journal).is_complete());
    String::from_utf8(journal.bytes.clone()).unwrap()
}

/// A changed line with the checksum that belongs to it.
fn summed(line: &str) -> String {
    let start = line.find(",\"crc32\"").map_or(line.to_owned(), |at| format!("{}}}", &line[..at]));
    let mut bytes = start.into_bytes();
    checksum::add(&mut bytes);
    String::from_utf8(bytes).unwrap()
}

#[test]
fn lines_are_readable_and_complete() {
    let text = text();
    let check = |line: &str| assert!(text.contains(line), "no {line} in:\n{text}");
    check(r#"{"format":"pinfold-journal/7","id":"500-1500","boot_id":"#);
    check(r#""supervisor":{"tid":100,"start_time":1100},"supervised":false,"#);
    check(r#""vm":{"tid":500,"start_time":1500},"vm_name":"vm \"1\"\n""#);
    check(r#""plan":"{\"a\":1}\n""#);
    check(r#""change":{"set_affinity":{"task":{"tid":501,"start_time":1501},"mask":"1"}}"#);
    check(r#""undo":{"set_affinity":{"task":{"tid":501,"start_time":1501},"original":"0-1"}}"#);
    check(
        r#""change":{"write_file":{"path":"/sys/fs/cgroup/cpuset/pinfold-500-1500/cpuset.mems","value":{"text":"0"}}}"#,
    );
    check(r#""group":"/","mask":"0-1","policy":{"other":{"nice":0}}"#);
    check(r#"{"outcome":{"index":0,"result":"done","detail":null},"crc32":"902c9f23"}"#);
    check(r#"{"end":{"unix_s":5,"why":"undone"},"crc32":"60d7111c"}"#);
}

#[test]
fn a_journal_reads_back_as_it_was_written() {
    let text = text();
    let record = Record::parse("j", text.as_bytes()).unwrap().unwrap();
    let mut again = Vec::new();
    put_line(&mut again, &schema::HeaderLine::from(&record.header), "j", true).unwrap();
    for entry in &record.entries {
        put_line(&mut again, entry, "j", true).unwrap();
    }
    assert_eq!(text, String::from_utf8(again).unwrap());
}

#[test]
fn bytes_that_are_no_text_survive() {
    fn check(bytes: &[u8], line: &str) {
        let path = "/f".to_owned();
        let change = Change::WriteFile { path, value: bytes.to_vec() };
        let line = format!("{{\"write_file\":{{\"path\":\"/f\",\"value\":{line}}}}}");
        assert_eq!(serde_json::to_string(&change).unwrap(), line);
        assert_eq!(serde_json::from_str::<Change>(&line).unwrap(), change);
    }
    check(b"0-1\n", r#"{"text":"0-1\n"}"#);
    check(b"", r#"{"text":""}"#);
    check(b"\x00\xff", r#"{"base16":"00ff"}"#);
    check(b"\x1b[0m", r#"{"base16":"1b5b306d"}"#);
    for digits in ["0", "zz"] {
        let text =
            format!("{{\"write_file\":{{\"path\":\"/f\",\"value\":{{\"base16\":\"{digits}\"}}}}}}");
        assert!(serde_json::from_str::<Change>(&text).is_err());
    }
}

#[test]
fn a_setting_reads_back_as_it_was_written() {
    let setting = |keeper, lifetime| {
        Box::new(Setting { keeper, object: "x".to_owned(), key: "vcpupin 0".to_owned(), lifetime })
    };
    let task = TaskId { tid: Tid(7), start_time: 70 };
    let mask = CpuSet::parse_list("0-1").unwrap();
    let uri = "qemu:///system".to_owned();
    for (keeper, lifetime, original) in [
        (SettingManager::Libvirt { uri }, Lifetime::Running, Some("0-1".to_owned())),
        (SettingManager::Systemd, Lifetime::Lasting, None),
    ] {
        let setting = setting(keeper, lifetime);
        let value = "1".to_owned();
        let change = Change::WriteSetting { setting: setting.clone(), value, tasks: vec![task] };
        let files = vec![file("/run/a", Some(b"[Slice]\n\xff")), file("/run/b", None)];
        let masks = vec![(task, mask.clone())];
        let undo = Undo::WriteSetting { setting, original, masks, files };
        let earlier = vec![EarlierUndo {
            journal: "/state/journal/1-2.jsonl".to_owned(),
            created_unix_s: 5,
            undo: undo.clone(),
        }];
        let step = Step { change, undo, reason: String::new() };
        let entry = Entry::Step { index: 0, step, earlier };
        let line = serde_json::to_string(&entry).unwrap();
        let read: Entry = serde_json::from_str(&line).unwrap();
        assert_eq!(read, entry, "{line}");
    }
}

fn file(path: &str, content: Option<&[u8]>) -> SettingsFile {
    SettingsFile { path: path.to_owned(), content: content.map(<[u8]>::to_vec) }
}

#[test]
fn a_journal_cut_at_any_byte_is_a_part_of_itself() {
    let text = text();
    let whole = Record::parse("j", text.as_bytes()).unwrap().unwrap();
    for cut in 0..text.len() {
        let lines = text[..cut].matches('\n').count();
        let record = Record::parse("j", &text.as_bytes()[..cut]).unwrap();
        let Some(record) = record else {
            assert_eq!(lines, 0);
            continue;
        };
        assert_eq!(record.entries, whole.entries[..lines - 1], "cut at {cut}");
        assert_eq!(record.torn, !text[..cut].ends_with('\n'));
        assert!(!record.has_ended());
    }
}

#[test]
fn what_is_not_understood_names_its_line() {
    let text = text();
    let lines: Vec<&str> = text.lines().collect();
    let check = |at: usize, line: &str, why: &str| {
        let mut lines = lines.clone();
        lines[at] = line;
        let text = lines.join("\n") + "\n";
        let error = Record::parse("j", text.as_bytes()).unwrap_err();
        let JournalError::Malformed { line, .. } = &error else { panic!("{error}") };
        assert_eq!(*line, at + 1, "{error}");
        assert!(error.to_string().contains(why), "{error}");
        assert!(error.hint().unwrap().contains("nothing was executed"));
    };
    check(0, "not JSON", "expected");
    check(0, r#"{"format":"something/1"}"#, "something/1");
    check(0, r#"{"format":"pinfold-journal/1"}"#, "missing field");
    check(0, &lines[0].replacen("supervised", "supervisec", 1), "checksum is");
    let closed = lines[0].replacen("0f4c5a52-6a3e", "restarted", 1);
    check(0, &summed(&closed), "is not a boot ID");
    check(3, "", "no checksum");
    check(3, "\u{0}\u{0}", "no checksum");
    check(2, &lines[2].replacen("done", "kept", 1), "checksum is");
    check(3, &summed(r#"{"run":"rm -rf /"}"#), "unknown variant");
    check(3, lines[1], "a step is missing");
    let last = lines.len() - 2;
    let outcome = summed(r#"{"outcome":{"index":99,"result":"done","detail":null}}"#);
    check(last, &outcome, "without its step");
}

#[test]
fn nothing_may_follow_the_end() {
    let end = summed(r#"{"end":{"unix_s":6,"why":"undone"}}"#);
    let text = format!("{}{end}\n", text());
    let error = Record::parse("j", text.as_bytes()).unwrap_err();
    assert!(error.to_string().contains("there are lines after the end record"), "{error}");
}

#[test]
fn a_journal_without_the_pins_of_libvirt_is_read() {
    let text = text();
    let (header, rest) = text.split_once('\n').unwrap();
    let header = summed(&header.replacen("pinfold-journal/7", "pinfold-journal/5", 1));
    let record = Record::parse("j", format!("{header}\n{rest}").as_bytes()).unwrap().unwrap();
    assert!(record.has_ended() && record.header.pins.is_empty());
}

#[test]
fn a_later_format_is_refused_whole() {
    let text = text().replacen("pinfold-journal/7", "pinfold-journal/8", 1);
    let error = Record::parse("j", text.as_bytes()).unwrap_err();
    assert!(matches!(&error, JournalError::Newer { format, .. } if format.ends_with("/8")));
    assert!(error.hint().unwrap().contains("Pinfold that wrote it"));
}

/// The texts are as those versions wrote them.
#[test]
fn journals_of_earlier_versions_are_read_and_undone() {
    is_read_and_taken_back(include_str!("tests-v1.jsonl"), false);
    is_read_and_taken_back(include_str!("tests-v2.jsonl"), true);
    is_read_and_taken_back(include_str!("tests-v3.jsonl"), true);
    is_read_and_taken_back(include_str!("tests-v4.jsonl"), true);
}

/// `supervised`: whether the journal says that its placement ends with its process. Version 1 does
/// not record this, so its placement is not reverted automatically.
fn is_read_and_taken_back(text: &str, supervised: bool) {
    let ((host, plan, target), (_folder, inner)) = (host(), folder());
    let before = host.snapshot();
    let clock = SimClock::at(5_000_000_000);
    let journals = Journals::over(Arc::new(inner), &clock);
    let new = NewJournal { vm_name: "vm1", plan: "{}", target: &target, supervised: true };
    let mut journal = journals.begin(&host, &new).unwrap();
    apply(&host, &plan, &target, &mut journal, &mut no_observer()).unwrap();
    drop(journal);
    journals.files.replace("500-1500.jsonl", text.as_bytes(), 0).unwrap();
    let mut journal = journals.reopen("500-1500").unwrap().unwrap();
    assert_eq!(journal.record().step_count(), 7);
    assert!(journal.record().header.namespaces.is_empty());
    host.edit_task(Tid(100), |task| *task = task.clone().started(9_999));
    assert_eq!(journal.record().is_left(&host).unwrap(), supervised);
    let report = undo(&host, &mut journal);
    assert!(report.is_complete() && report.changed.is_empty(), "{report:?}");
    assert_eq!(before, host.snapshot());
    assert!(journals.read("500-1500").unwrap().unwrap().has_ended());
}

/// Numbers, times and paths have other meanings in another namespace: nothing is read or reverted.
#[test]
fn a_journal_of_another_namespace_is_refused_whole_and_stays_open() {
    let ((host, plan, target), (_folder, inner)) = (host(), folder());
    let clock = SimClock::at(5_000_000_000);
    let journals = Journals::over(Arc::new(inner), &clock);
    let new = NewJournal { vm_name: "vm1", plan: "{}", target: &target, supervised: true };
    let mut journal = journals.begin(&host, &new).unwrap();
    apply(&host, &plan, &target, &mut journal, &mut no_observer()).unwrap();
    drop(journal);
    let applied = host.snapshot();
    let text = String::from_utf8(journals.files.read("500-1500.jsonl").unwrap()).unwrap();
    for kind in ["pid", "time", "cgroup"] {
        let noted = format!(r#""namespaces":{{"{kind}":"{kind}:[4026531836]"}},"created_unix_s""#);
        let (header, rest) = text.split_once('\n').unwrap();
        let header = summed(&header.replacen(r#""created_unix_s""#, &noted, 1));
        let other = format!("{header}\n{rest}");
        journals.files.replace("500-1500.jsonl", other.as_bytes(), 0).unwrap();
        let mut journal = journals.reopen("500-1500").unwrap().unwrap();
        let report = undo(&host, &mut journal);
        assert_eq!((report.gone, report.restored, report.failed.len()), (0, 0, 1), "{report:?}");
        assert!(
            report.failed[0].text.to_lowercase().contains(&format!("another {kind} namespace"))
        );
        assert!(!journal.record().has_ended());
        assert_eq!(applied, host.snapshot());
    }
    journals.files.replace("500-1500.jsonl", text.as_bytes(), 0).unwrap();
    assert!(undo(&host, &mut journals.reopen("500-1500").unwrap().unwrap()).is_complete());
}

/// A thread counts as ended only if its own file, or the kernel's answer about its number, says so.
#[test]
fn a_thread_or_group_that_is_hidden_is_never_called_gone() {
    for hidden in [
        "read /proc/501/task/501/stat",
        "read /proc/501/cgroup",
        "read /sys/fs/cgroup/cpuset/cpuset.effective_cpus",
    ] {
        let ((host, plan, target), (_folder, inner)) = (host(), folder());
        let clock = SimClock::at(5_000_000_000);
        let journals = Journals::over(Arc::new(inner), &clock);
        let new = NewJournal { vm_name: "vm1", plan: "{}", target: &target, supervised: true };
        let mut journal = journals.begin(&host, &new).unwrap();
        apply(&host, &plan, &target, &mut journal, &mut no_observer()).unwrap();
        // ENOENT, as when another file system is mounted over the path.
        host.fail_on(hidden, 2);
        let report = undo(&host, &mut journal);
        assert_eq!(report.gone, 0, "{hidden}: {report:?}");
        assert!(!report.is_complete() && !journal.record().has_ended(), "{hidden}: {report:?}");
    }
}

/// `undo ID` never reverts another placement than the one that printed it.
#[test]
fn each_placement_of_a_machine_has_a_journal_of_its_own() {
    let ((host, plan, target), (_folder, inner)) = (host(), folder());
    let clock = SimClock::at(0);
    let journals = Journals::over(Arc::new(inner), &clock);
    let new = NewJournal { vm_name: "vm1", plan: "{}", target: &target, supervised: false };
    for id in ["500-1500", "500-1500-2", "500-1500-3"] {
        let mut journal = journals.begin(&host, &new).unwrap();
        assert_eq!(journal.record().header.id, id);
        apply(&host, &plan, &target, &mut journal, &mut no_observer()).unwrap();
        assert!(matches!(journals.begin(&host, &new), Err(JournalError::Busy { .. })));
        drop(journal);
        let active = journals.begin(&host, &new).map(|_| ()).unwrap_err();
        assert!(matches!(&active, JournalError::Active { id: of, .. } if of == id), "{active}");
        assert!(undo(&host, &mut journals.reopen(id).unwrap().unwrap()).is_complete());
    }
    let ended = |id: &str| journals.read(id).unwrap().unwrap().has_ended();
    assert!(ended("500-1500") && ended("500-1500-2") && ended("500-1500-3"));
}

/// A machine that is placed and undone all the time: its old journals are removed, and their IDs
/// are not used again.
#[test]
fn a_removed_journal_does_not_give_its_id_away() {
    let ((host, _plan, target), (_folder, inner)) = (host(), folder());
    let clock = SimClock::at(0);
    let journals = Journals::over(Arc::new(inner), &clock);
    let new = NewJournal { vm_name: "vm1", plan: "{}", target: &target, supervised: false };
    let mut used = BTreeSet::new();
    for _ in 0..3 * HISTORY {
        clock.sleep_ns(1_000_000_000);
        let mut journal = journals.begin(&host, &new).unwrap();
        journal.flush().unwrap();
        journal.end("undone").unwrap();
        assert!(used.insert(journal.record().header.id.clone()));
    }
    assert!(!journals.files.contains("500-1500.jsonl"), "the oldest is removed");
}

#[test]
fn an_ended_history_stays_small() {
    let (_folder, inner) = folder();
    let clock = SimClock::at(0);
    let journals = Journals::over(Arc::new(inner), &clock);
    let mut most = 0;
    for pid in 1000..1060 {
        clock.sleep_ns(1_000_000_000);
        let host = SimHost::builder(CgroupVersion::V1, 2).task(SimTask::new(pid, "qemu")).build();
        let target = Target::new(Tid(pid), Vec::new());
        let new = NewJournal { vm_name: "vm", plan: "{}", target: &target, supervised: false };
        let mut journal = journals.begin(&host, &new).unwrap();
        journal.flush().unwrap();
        assert!(undo(&host, &mut journal).is_complete());
        most = most.max(journals.list().unwrap().len());
    }
    assert_eq!(most, 2 * HISTORY + 1);
    assert!(journals.read("1059-2059").unwrap().is_some(), "the latest are kept");
}

#[test]
fn a_journal_that_is_active_again_is_not_pruned() {
    let (_folder, inner) = folder();
    let clock = SimClock::at(0);
    let disk = FullDisk::new(inner, usize::MAX, true);
    let journals = Journals::over(disk.clone(), &clock);
    // The one that another process removes is counted too.
    for pid in 1000..1000 + 2 * u32::try_from(HISTORY).unwrap() {
        clock.sleep_ns(1_000_000_000);
        let host = SimHost::builder(CgroupVersion::V1, 2).task(SimTask::new(pid, "qemu")).build();
        let target = Target::new(Tid(pid), Vec::new());
        let new = NewJournal { vm_name: "vm", plan: "{}", target: &target, supervised: false };
        let mut journal = journals.begin(&host, &new).unwrap();
        journal.flush().unwrap();
        assert!(undo(&host, &mut journal).is_complete());
    }
    // The oldest journal has ended, and its machine is placed again just before its removal.
    let text = String::from_utf8(journals.files.read("1000-2000.jsonl").unwrap()).unwrap();
    let header = text.lines().next().unwrap();
    *disk.meanwhile.lock().unwrap() = Some(("1000-2000.jsonl", format!("{header}\n").into_bytes()));
    journals.prune(&host().0, "").unwrap();
    assert!(disk.meanwhile.lock().unwrap().is_none(), "it had its turn");
    assert!(!journals.read("1000-2000").unwrap().unwrap().has_ended(), "it is in force");
    assert_eq!(journals.list().unwrap().len(), HISTORY + 1);
    assert!(!journals.files.contains("1001-2001.lock"), "the others are removed");
}

#[test]
fn steps_are_on_the_disk_before_they_are_done() {
    let ((host, plan, target), (_folder, inner)) = (host(), folder());
    let clock = SimClock::at(0);
    let journals = Journals::over(Arc::new(inner), &clock);
    let new = NewJournal { vm_name: "vm1", plan: "{}", target: &target, supervised: false };
    let mut journal = journals.begin(&host, &new).unwrap();
    let dry = plan_steps(&host, &plan, &target).unwrap().steps;
    let mut reported = 0;
    apply(&host, &plan, &target, &mut journal, &mut |event: &crate::Event<'_>| {
        // The file is made with the first steps in it.
        let files = journals.files.list().unwrap();
        let is_made = files.contains(&"500-1500.jsonl".to_owned());
        let record = is_made.then(|| journals.read("500-1500").unwrap().unwrap());
        let steps = record.iter().flat_map(Record::steps);
        let known: Vec<Step> = steps.map(|(_, step)| step.clone()).collect();
        match event.point {
            crate::Point::BeforeJournal => assert!(known.len() <= event.index),
            crate::Point::AfterJournal | crate::Point::AfterChange => {
                assert_eq!(known.get(event.index), Some(event.step));
            }
        }
        reported += 1;
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(reported, 3 * dry.len());
    assert!(!host.is_live());
}

#[test]
fn a_second_state_folder_sees_the_placement_of_the_first() {
    let ((host, plan, target), clock) = (host(), SimClock::at(0));
    let marks = tempfile::tempdir().unwrap();
    let marks = marks.path().join("placed").to_string_lossy().into_owned();
    let ((a, state_a), (_b, state_b)) = (folder(), folder());
    let [first, second] = [state_a, state_b]
        .map(|state| Journals::over(Arc::new(state), &clock).with_marks_in(&marks));
    let new = NewJournal { vm_name: "vm1", plan: "{}", target: &target, supervised: false };
    let before = host.snapshot();

    let mut journal = first.begin(&host, &new).unwrap();
    let busy = second.begin(&host, &new).map(|_| ()).unwrap_err();
    assert!(matches!(busy, JournalError::Busy { .. }), "while the first is at work: {busy}");
    apply(&host, &plan, &target, &mut journal, &mut no_observer()).unwrap();
    drop(journal);
    let placed = second.begin(&host, &new).map(|_| ()).unwrap_err();
    let JournalError::Placed { journal, .. } = &placed else { panic!("{placed}") };
    assert!(journal.ends_with("/journal/500-1500.jsonl"), "{journal}");
    assert!(placed.hint().unwrap().contains("undo 500-1500"), "{placed}");

    assert!(undo(&host, &mut first.reopen("500-1500").unwrap().unwrap()).is_complete());
    assert_eq!(before, host.snapshot());
    // A journal that was begun and not written leaves no mark. One that was removed, or is hidden
    // by a mount namespace, still holds its machine.
    drop(second.begin(&host, &new).unwrap());
    let mut journal = first.begin(&host, &new).unwrap();
    apply(&host, &plan, &target, &mut journal, &mut no_observer()).unwrap();
    drop((journal, a));
    let lost = second.begin(&host, &new).map(|_| ()).unwrap_err();
    assert!(matches!(lost, JournalError::Lost(_)), "{lost}");
    assert!(
        lost.to_string().contains("process 500 already has a placement, and the journal"),
        "{lost}"
    );
    assert!(lost.hint().unwrap().contains("undo --reset 500"), "{lost}");
    let found = second.marks.as_ref().unwrap().find_lost(&host).unwrap();
    let [LostPlacement { process, .. }] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!(process.tid, Tid(500));
    second.marks.as_ref().unwrap().remove_lost(&host, *process).unwrap();
    drop(second.begin(&host, &new).unwrap());
}

/// A process that is bound to a journal (it becomes a vnode) cannot be placed by another one, and
/// vice versa.
#[test]
fn a_process_that_one_journal_has_bound_is_refused_to_others_until_its_undo() {
    let host = SimHost::builder(CgroupVersion::V1, 2)
        .task(SimTask::new(500, "qemu"))
        .task(SimTask::new(600, "pinfold"))
        .build();
    let (target, clock) = (Target::new(Tid(500), Vec::new()), SimClock::at(0));
    let marks = tempfile::tempdir().unwrap();
    let marks = marks.path().join("placed").to_string_lossy().into_owned();
    let ((_a, state_a), (_b, state_b)) = (folder(), folder());
    let [first, second] = [state_a, state_b]
        .map(|state| Journals::over(Arc::new(state), &clock).with_marks_in(&marks));
    let own = Target::new(Tid(600), Vec::new());
    let platform = NewJournal { vm_name: "p", plan: "{}", target: &own, supervised: true };
    let machine = NewJournal { vm_name: "vm1", plan: "{}", target: &target, supervised: false };
    let vm = tasks::stat(&host, target.pid).unwrap().unwrap().task();

    // First case: the placement is made before the platform.
    let mut placed = first.begin(&host, &machine).unwrap();
    placed.flush().unwrap();
    for journals in [&first, &second] {
        let refused = journals.begin(&host, &platform).unwrap().bind(&host, &[vm]).unwrap_err();
        assert!(refused.to_string().contains("process 500 already has a placement"), "{refused}");
        assert!(refused.hint().unwrap().contains("undo 500-1500"), "{refused}");
    }
    placed.end("reverted").unwrap();
    drop(placed);
    // Second case: the platform is made first, also one that was killed.
    let mut up = first.begin(&host, &platform).unwrap();
    up.bind(&host, &[vm]).unwrap();
    up.flush().unwrap();
    let id = up.record().header.id.clone();
    drop(up);
    for journals in [&first, &second] {
        let refused = journals.begin(&host, &machine).map(|_| ()).unwrap_err();
        assert!(refused.hint().unwrap().contains(&format!("undo {id}")), "{refused}");
    }
    assert!(undo(&host, &mut first.reopen(&id).unwrap().unwrap()).is_complete());
    assert_eq!(pinfold_host::files::list(&marks).unwrap(), Vec::<String>::new());
    drop(second.begin(&host, &machine).unwrap());
}

/// A kill between the removal of the mark and the end of the journal leaves none of these; a power
/// cut may.
#[test]
fn a_mark_is_void_once_its_journal_has_ended_or_its_process_and_journal_are_gone() {
    let clock = SimClock::at(0);
    for has_journal in [true, false] {
        for is_swept in [true, false] {
            let (host, _plan, target) = host();
            let marks = tempfile::tempdir().unwrap();
            let marks = marks.path().join("placed").to_string_lossy().into_owned();
            let ((_a, state_a), (_b, state_b)) = (folder(), folder());
            let [first, second] = [state_a, state_b]
                .map(|state| Journals::over(Arc::new(state), &clock).with_marks_in(&marks));
            let new = NewJournal { vm_name: "vm1", plan: "{}", target: &target, supervised: false };
            let mut journal = first.begin(&host, &new).unwrap();
            if has_journal {
                journal.flush().unwrap();
            }
            journal.marks[0].write(&journal.path()).unwrap();
            let all = first.marks.as_ref().unwrap();
            assert_eq!(all.void(&host).unwrap(), Vec::<String>::new(), "it is locked");
            let path = journal.path();
            drop(journal);
            assert_eq!(all.void(&host).unwrap(), Vec::<String>::new(), "its process lives");
            if has_journal {
                let mut text = first.files.read("500-1500.jsonl").unwrap();
                put_line(&mut text, &ended(), &path, true).unwrap();
                first.files.replace("500-1500.jsonl", &text, 0).unwrap();
            } else {
                host.exit(Tid(500));
            }
            if is_swept {
                assert_eq!(all.void(&host).unwrap().len(), 1);
                assert_eq!(all.remove_void(&host).unwrap().len(), 1);
            } else {
                let other = Target::new(Tid(600), Vec::new());
                let target = if has_journal { &target } else { &other };
                let new = NewJournal { target, ..new };
                drop(second.begin(&host, &new).unwrap());
            }
            assert_eq!(
                pinfold_host::files::list(&marks).unwrap(),
                Vec::<String>::new(),
                "{has_journal} {is_swept}"
            );
        }
    }
}

fn ended() -> Entry {
    Entry::End { unix_s: 5, why: "undone".to_owned() }
}

/// Placements from three state directories that set the same file, connected only by their marks.
#[test]
fn placements_of_several_state_folders_leave_nothing_in_any_order() {
    let step = |host: &SimHost, value: &str| {
        let original = host.read(FILE).unwrap();
        let change = Change::WriteFile { path: FILE.to_owned(), value: value.into() };
        let undo = Undo::WriteFile { path: FILE.to_owned(), original };
        Step { change, undo, reason: String::new() }
    };
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let clock = SimClock::at(5_000_000_000);
        let marks = tempfile::tempdir().unwrap();
        let marks = marks.path().join("placed").to_string_lossy().into_owned();
        let host = SimHost::builder(CgroupVersion::V1, 2)
            .task(SimTask::new(500, "a"))
            .task(SimTask::new(501, "b"))
            .task(SimTask::new(502, "c"))
            .writable_file(FILE, pinfold_sim::WriteRule::Integer, "0\n")
            .build();
        let folders: Vec<_> = (0..3).map(|_| folder()).collect();
        let journals: Vec<Journals<'_>> = folders
            .iter()
            .map(|(folder, _)| {
                let state = StateDir::open(&format!("{}/journal", folder.path().display()));
                Journals::over(Arc::new(state.unwrap()), &clock).with_marks_in(&marks)
            })
            .collect();
        for (number, journals) in (0..).zip(&journals) {
            let target = Target::new(Tid(500 + number), Vec::new());
            let new = NewJournal { vm_name: "a", plan: "{}", target: &target, supervised: false };
            let mut journal = journals.begin(&host, &new).unwrap();
            let steps = vec![step(&host, ["1", "2", "0"][number as usize])];
            crate::take_steps(&host, steps, &mut journal, &mut no_observer()).unwrap();
        }
        for place in order {
            let id = format!("{}-{}", 500 + place, 1500 + place);
            let mut journal = journals[place].reopen(&id).unwrap().unwrap();
            assert!(undo(&host, &mut journal).is_complete());
        }
        assert_eq!(host.read(FILE).unwrap().trim_ascii(), b"0", "{order:?}");
    }
}

const FILE: &str = "/proc/sys/kernel/numa_balancing";
