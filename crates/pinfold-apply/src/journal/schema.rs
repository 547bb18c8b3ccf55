//! The journal's lines as JSON: format `pinfold-journal/5`.
//!
//! ```text
//! {"format":"pinfold-journal/5","id":"812-9912","boot_id":"…","vm":{"tid":812,"start_time":9912},…}
//! {"step":{"index":0,"reason":"…","change":{"set_affinity":{…}},"undo":{"set_affinity":{…}}}}
//! {"outcome":{"index":0,"result":"done","detail":null}}
//! {"applied":{}}
//! {"plan":{"unix_s":1769990000,"supervisor":{"tid":901,"start_time":9990},"plan":"…"}}
//! {"undoing":{}}
//! {"end":{"unix_s":1770000000,"why":"undone"}}
//! ```
//!
//! Each model type has a serialisable counterpart here, because the model does not serialise. Bytes
//! are text where they are printable, else base 16. Unknown keys are errors: a journal is executed,
//! and a partly understood one must not be. Keys that earlier versions lack are optional:
//! `supervised` and `files` (version 2), `namespaces` (version 3), `earlier` (version 4). Since
//! version 5 each line ends with its [checksum](super::checksum), which is not shown above.

use pinfold_model::{
    Change, CpuSet, Keeper, KeptFile, Lifetime, NodeId, Policy, Setting, Step, TaskId, TaskState,
    Tid, Undo,
};
use serde::{Deserialize, Serialize};

use super::{EarlierUndo, Entry, Header, Namespaces, NewPlan, Outcome};

/// The format that this version writes.
pub(super) const FORMAT: &str = "pinfold-journal/5";
/// Earlier formats that this version reads. Their lines have no checksum.
pub(super) const WITHOUT_CHECKSUM: [&str; 4] =
    ["pinfold-journal/1", "pinfold-journal/2", "pinfold-journal/3", "pinfold-journal/4"];
/// Common prefix of all versions' formats.
pub(super) const FAMILY: &str = "pinfold-journal/";

/// The `format` key of a first line; other keys are ignored.
#[derive(Deserialize)]
pub(super) struct FormatLine {
    pub(super) format: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HeaderLine {
    format: String,
    id: String,
    boot_id: String,
    #[serde(default, skip_serializing_if = "Namespaces::is_empty")]
    namespaces: Namespaces,
    created_unix_s: u64,
    supervisor: TaskLine,
    #[serde(default)]
    supervised: bool,
    vm: TaskLine,
    vm_name: String,
    threads: Vec<TaskLine>,
    plan: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Line {
    Step {
        index: usize,
        reason: String,
        change: ChangeLine,
        undo: UndoLine,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        earlier: Vec<EarlierLine>,
    },
    Outcome {
        index: usize,
        result: ResultLine,
        detail: Option<String>,
    },
    Masks(Vec<MaskLine>),
    Plan {
        unix_s: u64,
        supervisor: TaskLine,
        plan: String,
    },
    Applied {},
    Undoing {},
    End {
        unix_s: u64,
        why: String,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EarlierLine {
    journal: String,
    created_unix_s: u64,
    undo: UndoLine,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ResultLine {
    Done,
    Skipped,
    Failed,
    Restored,
    Kept,
    Dropped,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TaskLine {
    tid: u32,
    start_time: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MaskLine {
    task: TaskLine,
    #[serde(with = "list")]
    mask: CpuSet,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StateLine {
    task: TaskLine,
    group: String,
    #[serde(with = "list")]
    mask: CpuSet,
    policy: PolicyLine,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum PolicyLine {
    Other { nice: i8 },
    Batch { nice: i8 },
    Idle,
    Fifo { priority: u8 },
    RoundRobin { priority: u8 },
    Deadline { runtime_ns: u64, deadline_ns: u64, period_ns: u64 },
    Unknown { number: u32 },
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum ChangeLine {
    WriteFile {
        path: String,
        value: BytesLine,
    },
    MakeGroup {
        path: String,
    },
    MoveTasks {
        group: String,
        file: String,
        tasks: Vec<TaskLine>,
    },
    SetAffinity {
        task: TaskLine,
        #[serde(with = "list")]
        mask: CpuSet,
    },
    SetPolicy {
        task: TaskLine,
        policy: PolicyLine,
    },
    WriteSetting {
        setting: Box<SettingLine>,
        value: String,
        tasks: Vec<TaskLine>,
    },
    MovePages {
        task: TaskLine,
        from: Vec<u32>,
        to: Vec<u32>,
    },
    SignalProcesses {
        group: String,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum UndoLine {
    WriteFile {
        path: String,
        original: BytesLine,
    },
    RemoveGroup {
        path: String,
    },
    MoveTasks {
        mount: String,
        file: String,
        tasks: Vec<StateLine>,
    },
    SetAffinity {
        task: TaskLine,
        #[serde(with = "list")]
        original: CpuSet,
    },
    SetPolicy {
        task: TaskLine,
        original: PolicyLine,
    },
    WriteSetting {
        setting: Box<SettingLine>,
        original: Option<String>,
        masks: Vec<MaskLine>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        files: Vec<FileLine>,
    },
    LeavePages {
        task: TaskLine,
        /// Pairs of a node and its memory in KiB.
        kib: Vec<(u32, u64)>,
    },
    ContinueProcesses {
        group: String,
        stopped: Vec<TaskLine>,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileLine {
    path: String,
    content: Option<BytesLine>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SettingLine {
    keeper: KeeperLine,
    object: String,
    key: String,
    lifetime: LifetimeLine,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum KeeperLine {
    Libvirt { uri: String },
    Systemd,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum LifetimeLine {
    Running,
    Lasting,
}

/// Bytes, as text where they are printable.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum BytesLine {
    Text(String),
    #[serde(with = "base16")]
    Base16(Vec<u8>),
}

impl From<&[u8]> for BytesLine {
    fn from(bytes: &[u8]) -> Self {
        let printable = |c: char| c == '\n' || c == '\t' || !c.is_control();
        match std::str::from_utf8(bytes) {
            Ok(text) if text.chars().all(printable) => Self::Text(text.to_owned()),
            Ok(_) | Err(_) => Self::Base16(bytes.to_vec()),
        }
    }
}

impl From<BytesLine> for Vec<u8> {
    fn from(line: BytesLine) -> Self {
        match line {
            BytesLine::Text(text) => text.into_bytes(),
            BytesLine::Base16(bytes) => bytes,
        }
    }
}

/// A set of CPUs in the kernel's list format.
mod list {
    use pinfold_model::CpuSet;
    use serde::{Deserialize as _, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(set: &CpuSet, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(set)
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<CpuSet, D::Error> {
        let text = String::deserialize(from)?;
        CpuSet::parse_list(&text).map_err(de::Error::custom)
    }
}

/// Bytes as pairs of hexadecimal digits.
mod base16 {
    use std::fmt::Write as _;

    use serde::{Deserialize as _, Deserializer, Serializer, de, ser};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        let mut text = String::with_capacity(bytes.len() * 2);
        for byte in bytes {
            write!(text, "{byte:02x}").map_err(ser::Error::custom)?;
        }
        to.serialize_str(&text)
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(from)?;
        if !text.len().is_multiple_of(2) {
            return Err(de::Error::custom("hexadecimal data needs an even number of digits"));
        }
        let digits = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        text.as_bytes()
            .chunks(2)
            .map(|pair| digits(pair).ok_or_else(|| de::Error::custom("not hexadecimal")))
            .collect()
    }
}

impl From<TaskId> for TaskLine {
    fn from(task: TaskId) -> Self {
        Self { tid: task.tid.0, start_time: task.start_time }
    }
}

impl From<TaskLine> for TaskId {
    fn from(line: TaskLine) -> Self {
        Self { tid: Tid(line.tid), start_time: line.start_time }
    }
}

impl From<Policy> for PolicyLine {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::Other { nice } => Self::Other { nice },
            Policy::Batch { nice } => Self::Batch { nice },
            Policy::Idle => Self::Idle,
            Policy::Fifo { priority } => Self::Fifo { priority },
            Policy::RoundRobin { priority } => Self::RoundRobin { priority },
            Policy::Deadline { runtime_ns, deadline_ns, period_ns } => {
                Self::Deadline { runtime_ns, deadline_ns, period_ns }
            }
            Policy::Unknown(number) => Self::Unknown { number },
        }
    }
}

impl From<PolicyLine> for Policy {
    fn from(line: PolicyLine) -> Self {
        match line {
            PolicyLine::Other { nice } => Self::Other { nice },
            PolicyLine::Batch { nice } => Self::Batch { nice },
            PolicyLine::Idle => Self::Idle,
            PolicyLine::Fifo { priority } => Self::Fifo { priority },
            PolicyLine::RoundRobin { priority } => Self::RoundRobin { priority },
            PolicyLine::Deadline { runtime_ns, deadline_ns, period_ns } => {
                Self::Deadline { runtime_ns, deadline_ns, period_ns }
            }
            PolicyLine::Unknown { number } => Self::Unknown(number),
        }
    }
}

impl From<&Setting> for SettingLine {
    fn from(setting: &Setting) -> Self {
        Self {
            keeper: match &setting.keeper {
                Keeper::Libvirt { uri } => KeeperLine::Libvirt { uri: uri.clone() },
                Keeper::Systemd => KeeperLine::Systemd,
            },
            object: setting.object.clone(),
            key: setting.key.clone(),
            lifetime: match setting.lifetime {
                Lifetime::Running => LifetimeLine::Running,
                Lifetime::Lasting => LifetimeLine::Lasting,
            },
        }
    }
}

impl From<SettingLine> for Setting {
    fn from(line: SettingLine) -> Self {
        Self {
            keeper: match line.keeper {
                KeeperLine::Libvirt { uri } => Keeper::Libvirt { uri },
                KeeperLine::Systemd => Keeper::Systemd,
            },
            object: line.object,
            key: line.key,
            lifetime: match line.lifetime {
                LifetimeLine::Running => Lifetime::Running,
                LifetimeLine::Lasting => Lifetime::Lasting,
            },
        }
    }
}

impl From<&(TaskId, CpuSet)> for MaskLine {
    fn from((task, mask): &(TaskId, CpuSet)) -> Self {
        Self { task: (*task).into(), mask: mask.clone() }
    }
}

impl From<&KeptFile> for FileLine {
    fn from(file: &KeptFile) -> Self {
        Self { path: file.path.clone(), content: file.content.as_deref().map(Into::into) }
    }
}

impl From<FileLine> for KeptFile {
    fn from(line: FileLine) -> Self {
        Self { path: line.path, content: line.content.map(Into::into) }
    }
}

impl From<&TaskState> for StateLine {
    fn from(state: &TaskState) -> Self {
        Self {
            task: state.task.into(),
            group: state.group.clone(),
            mask: state.mask.clone(),
            policy: state.policy.into(),
        }
    }
}

impl From<StateLine> for TaskState {
    fn from(line: StateLine) -> Self {
        Self {
            task: line.task.into(),
            group: line.group,
            mask: line.mask,
            policy: line.policy.into(),
        }
    }
}

impl From<&Change> for ChangeLine {
    fn from(change: &Change) -> Self {
        match change {
            Change::WriteFile { path, value } => {
                Self::WriteFile { path: path.clone(), value: value.as_slice().into() }
            }
            Change::MakeGroup { path } => Self::MakeGroup { path: path.clone() },
            Change::MoveTasks { group, file, tasks } => Self::MoveTasks {
                group: group.clone(),
                file: file.clone(),
                tasks: tasks.iter().map(|task| (*task).into()).collect(),
            },
            Change::SetAffinity { task, mask } => {
                Self::SetAffinity { task: (*task).into(), mask: mask.clone() }
            }
            Change::SetPolicy { task, policy } => {
                Self::SetPolicy { task: (*task).into(), policy: (*policy).into() }
            }
            Change::WriteSetting { setting, value, tasks } => Self::WriteSetting {
                setting: Box::new(SettingLine::from(&**setting)),
                value: value.clone(),
                tasks: tasks.iter().map(|task| (*task).into()).collect(),
            },
            Change::MovePages { task, from, to } => {
                let numbers = |nodes: &[NodeId]| nodes.iter().map(|node| node.0).collect();
                Self::MovePages { task: (*task).into(), from: numbers(from), to: numbers(to) }
            }
            Change::SignalProcesses { group } => Self::SignalProcesses { group: group.clone() },
        }
    }
}

impl From<ChangeLine> for Change {
    fn from(line: ChangeLine) -> Self {
        match line {
            ChangeLine::WriteFile { path, value } => Self::WriteFile { path, value: value.into() },
            ChangeLine::MakeGroup { path } => Self::MakeGroup { path },
            ChangeLine::MoveTasks { group, file, tasks } => {
                Self::MoveTasks { group, file, tasks: tasks.into_iter().map(Into::into).collect() }
            }
            ChangeLine::SetAffinity { task, mask } => Self::SetAffinity { task: task.into(), mask },
            ChangeLine::SetPolicy { task, policy } => {
                Self::SetPolicy { task: task.into(), policy: policy.into() }
            }
            ChangeLine::WriteSetting { setting, value, tasks } => Self::WriteSetting {
                setting: Box::new((*setting).into()),
                value,
                tasks: tasks.into_iter().map(Into::into).collect(),
            },
            ChangeLine::MovePages { task, from, to } => {
                let nodes = |numbers: Vec<u32>| numbers.into_iter().map(NodeId).collect();
                Self::MovePages { task: task.into(), from: nodes(from), to: nodes(to) }
            }
            ChangeLine::SignalProcesses { group } => Self::SignalProcesses { group },
        }
    }
}

impl From<&Undo> for UndoLine {
    fn from(undo: &Undo) -> Self {
        match undo {
            Undo::WriteFile { path, original } => {
                Self::WriteFile { path: path.clone(), original: original.as_slice().into() }
            }
            Undo::RemoveGroup { path } => Self::RemoveGroup { path: path.clone() },
            Undo::MoveTasks { mount, file, tasks } => Self::MoveTasks {
                mount: mount.clone(),
                file: file.clone(),
                tasks: tasks.iter().map(Into::into).collect(),
            },
            Undo::SetAffinity { task, original } => {
                Self::SetAffinity { task: (*task).into(), original: original.clone() }
            }
            Undo::SetPolicy { task, original } => {
                Self::SetPolicy { task: (*task).into(), original: (*original).into() }
            }
            Undo::WriteSetting { setting, original, masks, files } => Self::WriteSetting {
                setting: Box::new(SettingLine::from(&**setting)),
                original: original.clone(),
                masks: masks.iter().map(Into::into).collect(),
                files: files.iter().map(Into::into).collect(),
            },
            Undo::LeavePages { task, kib } => Self::LeavePages {
                task: (*task).into(),
                kib: kib.iter().map(|(node, kib)| (node.0, *kib)).collect(),
            },
            Undo::ContinueProcesses { group, stopped } => Self::ContinueProcesses {
                group: group.clone(),
                stopped: stopped.iter().map(|task| (*task).into()).collect(),
            },
        }
    }
}

impl From<UndoLine> for Undo {
    fn from(line: UndoLine) -> Self {
        match line {
            UndoLine::WriteFile { path, original } => {
                Self::WriteFile { path, original: original.into() }
            }
            UndoLine::RemoveGroup { path } => Self::RemoveGroup { path },
            UndoLine::MoveTasks { mount, file, tasks } => {
                Self::MoveTasks { mount, file, tasks: tasks.into_iter().map(Into::into).collect() }
            }
            UndoLine::SetAffinity { task, original } => {
                Self::SetAffinity { task: task.into(), original }
            }
            UndoLine::SetPolicy { task, original } => {
                Self::SetPolicy { task: task.into(), original: original.into() }
            }
            UndoLine::WriteSetting { setting, original, masks, files } => Self::WriteSetting {
                setting: Box::new((*setting).into()),
                original,
                masks: masks.into_iter().map(|line| (line.task.into(), line.mask)).collect(),
                files: files.into_iter().map(Into::into).collect(),
            },
            UndoLine::LeavePages { task, kib } => Self::LeavePages {
                task: task.into(),
                kib: kib.into_iter().map(|(node, kib)| (NodeId(node), kib)).collect(),
            },
            UndoLine::ContinueProcesses { group, stopped } => Self::ContinueProcesses {
                group,
                stopped: stopped.into_iter().map(Into::into).collect(),
            },
        }
    }
}

impl From<&EarlierUndo> for EarlierLine {
    fn from(one: &EarlierUndo) -> Self {
        Self {
            journal: one.journal.clone(),
            created_unix_s: one.created_unix_s,
            undo: (&one.undo).into(),
        }
    }
}

impl From<EarlierLine> for EarlierUndo {
    fn from(line: EarlierLine) -> Self {
        Self { journal: line.journal, created_unix_s: line.created_unix_s, undo: line.undo.into() }
    }
}

impl From<&Header> for HeaderLine {
    fn from(header: &Header) -> Self {
        Self {
            format: FORMAT.to_owned(),
            id: header.id.clone(),
            boot_id: header.boot_id.clone(),
            namespaces: header.namespaces.clone(),
            created_unix_s: header.created_unix_s,
            supervisor: header.supervisor.into(),
            supervised: header.supervised,
            vm: header.vm.into(),
            vm_name: header.vm_name.clone(),
            threads: header.threads.iter().map(|task| (*task).into()).collect(),
            plan: header.plan.clone(),
        }
    }
}

impl From<HeaderLine> for Header {
    fn from(line: HeaderLine) -> Self {
        Self {
            id: line.id,
            boot_id: line.boot_id,
            namespaces: line.namespaces,
            created_unix_s: line.created_unix_s,
            supervisor: line.supervisor.into(),
            supervised: line.supervised,
            vm: line.vm.into(),
            vm_name: line.vm_name,
            threads: line.threads.into_iter().map(Into::into).collect(),
            plan: line.plan,
        }
    }
}

impl From<&Entry> for Line {
    fn from(entry: &Entry) -> Self {
        match entry {
            Entry::Step { index, step, earlier } => Self::Step {
                index: *index,
                reason: step.reason.clone(),
                change: (&step.change).into(),
                undo: (&step.undo).into(),
                earlier: earlier.iter().map(Into::into).collect(),
            },
            Entry::Outcome { index, outcome, detail } => {
                Self::Outcome { index: *index, result: (*outcome).into(), detail: detail.clone() }
            }
            Entry::Masks(masks) => Self::Masks(masks.iter().map(Into::into).collect()),
            Entry::Plan(new) => Self::Plan {
                unix_s: new.unix_s,
                supervisor: new.supervisor.into(),
                plan: new.plan.clone(),
            },
            Entry::Applied => Self::Applied {},
            Entry::Undoing => Self::Undoing {},
            Entry::End { unix_s, why } => Self::End { unix_s: *unix_s, why: why.clone() },
        }
    }
}

impl From<Line> for Entry {
    fn from(line: Line) -> Self {
        match line {
            Line::Step { index, reason, change, undo, earlier } => Self::Step {
                index,
                step: Step { change: change.into(), undo: undo.into(), reason },
                earlier: earlier.into_iter().map(Into::into).collect(),
            },
            Line::Outcome { index, result, detail } => {
                Self::Outcome { index, outcome: result.into(), detail }
            }
            Line::Masks(masks) => {
                Self::Masks(masks.into_iter().map(|line| (line.task.into(), line.mask)).collect())
            }
            Line::Plan { unix_s, supervisor, plan } => {
                Self::Plan(NewPlan { unix_s, supervisor: supervisor.into(), plan })
            }
            Line::Applied {} => Self::Applied,
            Line::Undoing {} => Self::Undoing,
            Line::End { unix_s, why } => Self::End { unix_s, why },
        }
    }
}

impl From<Outcome> for ResultLine {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Done => Self::Done,
            Outcome::Skipped => Self::Skipped,
            Outcome::Failed => Self::Failed,
            Outcome::Restored => Self::Restored,
            Outcome::Kept => Self::Kept,
            Outcome::Dropped => Self::Dropped,
        }
    }
}

impl From<ResultLine> for Outcome {
    fn from(line: ResultLine) -> Self {
        match line {
            ResultLine::Done => Self::Done,
            ResultLine::Skipped => Self::Skipped,
            ResultLine::Failed => Self::Failed,
            ResultLine::Restored => Self::Restored,
            ResultLine::Kept => Self::Kept,
            ResultLine::Dropped => Self::Dropped,
        }
    }
}
