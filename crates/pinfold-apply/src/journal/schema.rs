//! The journal's lines as JSON: format `pinfold-journal/7`.
//!
//! ```text
//! {"format":"pinfold-journal/7","id":"812-9912","boot_id":"…","vm":{"tid":812,"start_time":9912},…}
//! {"step":{"index":0,"reason":"…","change":{"set_affinity":{…}},"undo":{"set_affinity":{…}}}}
//! {"outcome":{"index":0,"result":"done","detail":null}}
//! {"applied":{}}
//! {"plan":{"unix_s":1769990000,"supervisor":{"tid":901,"start_time":9990},"plan":"…"}}
//! {"undoing":{}}
//! {"end":{"unix_s":1770000000,"why":"undone"}}
//! ```
//!
//! Changes and undos are serialised as in [`pinfold_model::serde_formats`]: bytes are text where they are
//! printable, else base 16. Unknown keys are errors: a journal is executed, and a partly understood
//! one must not be. Keys that earlier versions lack are optional:
//! `supervised` and `files` (version 2), `namespaces` (version 3), `earlier` (version 4), `pins`
//! (version 6). Version 7 has the outcome `yielded`. Since version 5 each line ends with its [checksum](super::checksum), which is not shown above.

use pinfold_model::TaskId;
use serde::{Deserialize, Serialize};

use super::{Header, Namespaces};
use crate::tasks::RecordedPin;

/// The format that this version writes.
pub(super) const FORMAT: &str = "pinfold-journal/7";
/// The formats whose lines have a checksum.
pub(super) const WITH_CHECKSUM: [&str; 3] = ["pinfold-journal/5", "pinfold-journal/6", FORMAT];
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
    supervisor: TaskId,
    #[serde(default)]
    supervised: bool,
    vm: TaskId,
    vm_name: String,
    threads: Vec<TaskId>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pins: Vec<RecordedPin>,
    plan: String,
}

impl From<&Header> for HeaderLine {
    fn from(header: &Header) -> Self {
        Self {
            format: FORMAT.to_owned(),
            id: header.id.clone(),
            boot_id: header.boot_id.clone(),
            namespaces: header.namespaces.clone(),
            created_unix_s: header.created_unix_s,
            supervisor: header.supervisor,
            supervised: header.supervised,
            vm: header.vm,
            vm_name: header.vm_name.clone(),
            threads: header.threads.clone(),
            pins: header.pins.clone(),
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
            supervisor: line.supervisor,
            supervised: line.supervised,
            vm: line.vm,
            vm_name: line.vm_name,
            threads: line.threads,
            pins: line.pins,
            plan: line.plan,
        }
    }
}
