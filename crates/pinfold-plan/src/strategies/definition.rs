//! Costs that a strategy has by definition: the user requests them by naming the strategy.
//!
//! Some strategies are only a fixed order of CPUs: `scatter` puts vCPUs as far apart as possible;
//! the published orders of `compact` and `isolcpus` start again at their end. `low-latency` needs a
//! core for each vCPU, if necessary of another kind; `balanced-shared` puts the emulator on the
//! vCPUs' CPUs. If the user names the strategy, such a cost is a note, both in the plan and in the
//! check of a file that was written from it. The file contains a mark for this, which libvirt
//! preserves:
//!
//! ```xml
//! <metadata>
//!   <pinfold:placement xmlns:pinfold='urn:pinfold:placement' strategy='scatter' pins='0 4 1-3'/>
//! </metadata>
//! ```
//! The mark is valid while the vCPUs and the emulator have the pins that it lists, in this order.
//! The same pins without a mark, pins by hand, and the choice of `auto` are checked like any other
//! placement.

use pinfold_model::{CpuSet, Plan, Request, Role, Severity, VnodePlan};

use crate::strategies::{StrategyKind, kind_of, strategies};

/// A cost by definition: the subject of the plan's finding, and the names in a check.
struct Cost {
    kind: StrategyKind,
    subject: &'static str,
    names: &'static [&'static str],
}

const COSTS: &[Cost] = &[
    Cost { kind: StrategyKind::Order, subject: "oversubscription", names: &["vcpus-share-pu"] },
    Cost {
        kind: StrategyKind::Order,
        subject: "guest topology",
        names: &["guest-siblings-hidden"],
    },
    Cost { kind: StrategyKind::Order, subject: "host", names: &["no-housekeeping"] },
    Cost { kind: StrategyKind::Order, subject: "L3", names: &["l3-crossed"] },
    Cost { kind: StrategyKind::Order, subject: "core kinds", names: &["mixed-cores"] },
    Cost { kind: StrategyKind::Shape, subject: "core kinds", names: &["mixed-cores"] },
    Cost {
        kind: StrategyKind::Order,
        subject: "NUMA",
        names: &["nodes-crossed", "node-without-memory"],
    },
    Cost { kind: StrategyKind::Shape, subject: "NUMA", names: &["node-without-memory"] },
    Cost {
        kind: StrategyKind::SharedEmulator,
        subject: "emulator",
        names: &["emulator-on-vcpu", "iothread-on-vcpu"],
    },
];

/// The costs of a strategy.
fn costs(strategy: &str) -> impl Iterator<Item = &'static Cost> {
    let kind = kind_of(strategy);
    COSTS.iter().filter(move |cost| Some(cost.kind) == kind)
}

/// The namespace of the mark.
pub const NAMESPACE: &str = "urn:pinfold:placement";

/// The reason why a cost is no warning, for the end of its text.
pub fn reason(strategy: &str) -> String {
    format!("; {strategy} places threads this way by definition")
}

/// Changes findings to notes if they are costs of the named strategy by definition.
pub(crate) fn downgrade_requested_costs(plan: &mut Plan, strategy: &str, request: &Request) {
    let by_hand = request.vnodes.iter().any(|vnode| !vnode.pins.is_empty());
    if by_hand {
        return;
    }
    for finding in &mut plan.findings {
        let is_cost = costs(strategy).any(|cost| cost.subject == finding.subject);
        if is_cost && finding.severity == Severity::Warning {
            finding.severity = Severity::Note;
            finding.text.push_str(&reason(strategy));
        }
    }
}

/// The strategy of a plan, if one of its findings is a note because of the strategy's definition.
pub(crate) fn of_plan(plan: &Plan) -> Option<&str> {
    let reason = reason(&plan.strategy);
    plan.findings.iter().any(|it| it.text.ends_with(&reason)).then_some(plan.strategy.as_str())
}

/// True if a check's finding of this name is a cost of the strategy by definition.
pub fn is_cost(strategy: &str, name: &str) -> bool {
    costs(strategy).any(|cost| cost.names.contains(&name))
}

/// The static name of a strategy that has costs by definition.
fn static_name(name: &str) -> Option<&'static str> {
    let known = strategies().iter().find(|known| known.name == name);
    known.filter(|known| COSTS.iter().any(|cost| cost.kind == known.kind)).map(|known| known.name)
}

/// The mark in a domain file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StrategyRecord {
    strategy: &'static str,
    /// The CPUs of each vCPU, in order, then those of the emulator.
    pins: Vec<CpuSet>,
}

impl StrategyRecord {
    /// The mark for the domain file of one machine of a plan, if it needs one.
    pub fn new(plan: &Plan, vnode: &VnodePlan) -> Option<Self> {
        let pins = vnode.vcpus().chain(vnode.thread(&Role::Emulator));
        let pins = pins.map(|thread| thread.pus.clone()).collect();
        Some(Self { strategy: static_name(of_plan(plan)?)?, pins })
    }

    /// Parses the attributes of a mark; `None` if they are invalid.
    pub(crate) fn read(strategy: &str, pins: &str) -> Option<Self> {
        let lists = pins.split_whitespace().map(CpuSet::parse_list);
        Some(Self { strategy: static_name(strategy)?, pins: lists.collect::<Result<_, _>>().ok()? })
    }

    /// The XML element.
    pub fn line(&self) -> String {
        let lists: Vec<String> = self.pins.iter().map(ToString::to_string).collect();
        format!(
            "<pinfold:placement xmlns:pinfold='{NAMESPACE}' strategy='{}' pins='{}'/>",
            self.strategy,
            lists.join(" ")
        )
    }

    /// The strategy, if `pins` are the mark's CPUs of the vCPUs and of the emulator.
    pub(crate) fn holds(&self, pins: &[Option<&CpuSet>]) -> Option<&'static str> {
        let all = pins.len() == self.pins.len()
            && self
                .pins
                .iter()
                .zip(pins)
                .all(|(own, pin): (&CpuSet, &Option<&CpuSet>)| *pin == Some(own));
        all.then_some(self.strategy)
    }
}
