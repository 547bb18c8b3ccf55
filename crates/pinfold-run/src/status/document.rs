//! The JSON of `pinfold status`, `pinfold-status/1`; keys are described in `docs/json.md`.

use std::collections::BTreeMap;

use pinfold_apply::page_tables::{MachineTables, NodeTables};
use pinfold_apply::{ForeignTask, LostPlacement, RoleStatus, Status, TunableStatus};
use pinfold_model::Finding;
use serde::Serialize;

use super::{ActivePlacement, ActivePlatform, DamagedJournal, Found};
use crate::booting::BootingMachine;

/// Name of the format.
const FORMAT: &str = "pinfold-status/1";

/// What is active, and what processes left that have exited.
#[derive(Serialize)]
pub struct StatusDocument {
    format: &'static str,
    is_active: bool,
    in_force: Vec<PlacementEntry>,
    platforms: Vec<PlatformEntry>,
    damaged: Vec<DamagedEntry>,
    lost: Vec<LostEntry>,
    leftovers: Vec<String>,
    waiting: Vec<WaitingEntry>,
}

impl StatusDocument {
    /// The document of what was found, and of these files of processes that have exited.
    #[must_use]
    pub fn new(found: &Found, leftovers: &[String]) -> Self {
        Self {
            format: FORMAT,
            is_active: !found.placements.is_empty(),
            in_force: found.placements.iter().map(PlacementEntry::new).collect(),
            platforms: found.platforms.iter().map(PlatformEntry::new).collect(),
            damaged: found.damaged.iter().map(DamagedEntry::new).collect(),
            lost: found.lost.iter().map(LostEntry::new).collect(),
            leftovers: leftovers.to_vec(),
            waiting: found.booting.iter().map(WaitingEntry::new).collect(),
        }
    }
}

#[derive(Serialize)]
struct PlacementEntry {
    id: String,
    vm: String,
    strategy: String,
    supervised: bool,
    watched: bool,
    stopped: bool,
    running: bool,
    as_planned: bool,
    counters_bytes: BTreeMap<String, Option<u64>>,
    page_tables: Option<TablesEntry>,
    #[serde(rename = "knobs")]
    tunables: Vec<TunableEntry>,
    roles: Vec<RoleEntry>,
    movable: Option<Vec<IntruderEntry>>,
    findings: Vec<FindingEntry>,
    vanished: Vec<FindingEntry>,
    dangers: Vec<FindingEntry>,
    immovable: Option<Vec<IntruderEntry>>,
}

impl PlacementEntry {
    fn new(one: &ActivePlacement) -> Self {
        let status = one.status.as_ref();
        let counters = one.counters.iter().map(|counter| (counter.name.clone(), counter.bytes));
        Self {
            id: one.id.clone(),
            vm: one.vm_name.clone(),
            strategy: one.plan.strategy.clone(),
            supervised: one.supervised,
            watched: one.watched,
            stopped: one.stopped.is_some(),
            running: status.is_some(),
            as_planned: one.is_as_planned(),
            counters_bytes: counters.collect(),
            page_tables: one.tables.as_ref().map(TablesEntry::new),
            tunables: one.tunables.iter().map(TunableEntry::new).collect(),
            roles: status.iter().flat_map(|status| &status.roles).map(RoleEntry::new).collect(),
            movable: status.map(|status| IntruderEntry::list(&status.movable)),
            findings: FindingEntry::list(status.map_or(&[], |status: &Status| &status.findings)),
            vanished: FindingEntry::list(&one.vanished),
            dangers: FindingEntry::list(status.map_or(&[], |status: &Status| &status.dangers)),
            immovable: status.map(|status| IntruderEntry::list(&status.immovable)),
        }
    }
}

#[derive(Serialize)]
struct TablesEntry {
    vm_pte_kib: Option<u64>,
    of_its_group: Option<Vec<NodeEntry>>,
    of_the_host: Vec<NodeEntry>,
}

impl TablesEntry {
    fn new(tables: &MachineTables) -> Self {
        Self {
            vm_pte_kib: tables.process_kib,
            of_its_group: tables.own.as_deref().map(NodeEntry::list),
            of_the_host: NodeEntry::list(&tables.host),
        }
    }
}

#[derive(Serialize)]
struct NodeEntry {
    node: u32,
    page_tables_kib: u64,
    sec_page_tables_kib: Option<u64>,
}

impl NodeEntry {
    fn list(tables: &[NodeTables]) -> Vec<Self> {
        tables
            .iter()
            .map(|one| Self {
                node: one.node.0,
                page_tables_kib: one.first_kib,
                sec_page_tables_kib: one.second_kib,
            })
            .collect()
    }
}

#[derive(Serialize)]
struct TunableEntry {
    path: String,
    planned: String,
    found: Option<String>,
    ok: bool,
}

impl TunableEntry {
    fn new(tunable: &TunableStatus) -> Self {
        Self {
            path: tunable.path.clone(),
            planned: tunable.planned.clone(),
            found: tunable.found.clone(),
            ok: tunable.ok,
        }
    }
}

#[derive(Serialize)]
struct RoleEntry {
    role: String,
    tid: u32,
    planned: Option<String>,
    found: Option<String>,
    planned_policy: Option<String>,
    found_policy: Option<String>,
    ok: bool,
}

impl RoleEntry {
    fn new(role: &RoleStatus) -> Self {
        Self {
            role: role.role.to_string(),
            tid: role.task.tid.0,
            planned: role.planned.as_ref().map(ToString::to_string),
            found: role.found.as_ref().map(ToString::to_string),
            planned_policy: role.planned_policy.map(|policy| policy.to_string()),
            found_policy: role.found_policy.map(|policy| policy.to_string()),
            ok: role.ok,
        }
    }
}

#[derive(Serialize)]
struct IntruderEntry {
    tid: u32,
    name: String,
    pus: String,
}

impl IntruderEntry {
    fn list(tasks: &[ForeignTask]) -> Vec<Self> {
        tasks
            .iter()
            .map(|task| Self {
                tid: task.tid.0,
                name: task.name.clone(),
                pus: task.pus.to_string(),
            })
            .collect()
    }
}

#[derive(Serialize)]
struct FindingEntry {
    subject: String,
    text: String,
    hint: Option<String>,
}

impl FindingEntry {
    fn list(findings: &[Finding]) -> Vec<Self> {
        findings
            .iter()
            .map(|one| Self {
                subject: one.subject.clone(),
                text: one.text.clone(),
                hint: one.hint.clone(),
            })
            .collect()
    }
}

#[derive(Serialize)]
struct PlatformEntry {
    id: String,
    supervised: bool,
    pid: u32,
}

impl PlatformEntry {
    fn new(one: &ActivePlatform) -> Self {
        Self { id: one.id.clone(), supervised: one.is_alive, pid: one.supervisor.0 }
    }
}

#[derive(Serialize)]
struct WaitingEntry {
    vm: String,
    pid: u32,
    cpus: String,
    until: String,
}

impl WaitingEntry {
    fn new(one: &BootingMachine) -> Self {
        let (vm, until) = (one.name.clone(), one.condition.clone());
        Self { vm, pid: one.process.tid.0, cpus: one.cpus.to_string(), until }
    }
}

#[derive(Serialize)]
struct DamagedEntry {
    id: String,
    why: String,
    hint: Option<String>,
}

impl DamagedEntry {
    fn new(one: &DamagedJournal) -> Self {
        Self {
            id: one.id.clone(),
            why: one.failure.message.clone(),
            hint: one.failure.hint.clone(),
        }
    }
}

#[derive(Serialize)]
struct LostEntry {
    pid: u32,
    journal: String,
    why: String,
    hint: String,
}

impl LostEntry {
    fn new(one: &LostPlacement) -> Self {
        Self {
            pid: one.process.tid.0,
            journal: one.journal.clone(),
            why: one.reason.to_string(),
            hint: one.hint(),
        }
    }
}

#[cfg(test)]
mod tests {
    use pinfold_model::Tid;

    use super::*;
    use crate::{Exit, Failure};

    #[test]
    fn keys_are_those_of_the_format() {
        let found = Found {
            platforms: vec![ActivePlatform {
                id: "1-2".to_owned(),
                supervisor: Tid(7),
                answers: true,
                is_alive: false,
            }],
            damaged: vec![DamagedJournal {
                id: "3-4".to_owned(),
                failure: Failure::new(Exit::Host, "line 2 is cut"),
            }],
            ..Found::default()
        };
        let left = ["/run/pinfold/old".to_owned()];
        let written = serde_json::json!(StatusDocument::new(&found, &left)).to_string();
        assert_eq!(
            written,
            "{\"damaged\":[{\"hint\":null,\"id\":\"3-4\",\"why\":\"line 2 is cut\"}],\
             \"format\":\"pinfold-status/1\",\"in_force\":[],\"is_active\":false,\
             \"leftovers\":[\"/run/pinfold/old\"],\"lost\":[],\
             \"platforms\":[{\"id\":\"1-2\",\"pid\":7,\"supervised\":false}],\"waiting\":[]}"
        );
    }
}
