//! The request, and the origin of every number: rows of label and text.

use pinfold_model::{Source, Topology, shown_parameters};

use crate::format;
use crate::page::{CandidateKind, Page, ReachedStage};

/// One row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fact {
    pub(crate) label: String,
    pub(crate) text: String,
    pub(crate) kind: FactKind,
}

/// How a fact is typeset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FactKind {
    Prose,
    /// Literal input or output of a program.
    Code,
}

impl Fact {
    fn prose(label: &str, text: impl Into<String>) -> Self {
        Self { label: label.to_owned(), text: text.into(), kind: FactKind::Prose }
    }

    fn code(label: &str, text: impl Into<String>) -> Self {
        Self { label: label.to_owned(), text: text.into(), kind: FactKind::Code }
    }

    pub(crate) fn is_code(&self) -> bool {
        self.kind == FactKind::Code
    }
}

/// The request.
pub(crate) fn request(page: &Page) -> Vec<Fact> {
    let asked = &page.asked;
    let mut facts = vec![
        Fact::code("Command", &asked.command),
        Fact::prose("Goal", &asked.goal),
        Fact::prose(
            "Constraint",
            asked.max_gap_ns.map_or_else(
                || "none".to_owned(),
                |limit| {
                    let limit = format::tick(limit, pinfold_model::Unit::Nanoseconds);
                    format!("no spin-gap longer than {limit}")
                },
            ),
        ),
        Fact::prose("Guest", &asked.guest),
        Fact::prose("Candidates", candidates(page)),
        Fact::prose("Load states", loads(page)),
        Fact::prose("Blocks", blocks(page)),
    ];
    let spent = [
        asked.budget.as_ref().map(|budget| format!("budget {budget}")),
        asked.took.as_ref().map(|took| format!("took {took}")),
    ];
    let spent: Vec<String> = spent.into_iter().flatten().collect();
    if !spent.is_empty() {
        facts.push(Fact::prose("Time", spent.join(", ")));
    }
    facts.extend(asked.more.iter().map(|(label, text)| Fact::prose(label, text)));
    facts
}

fn candidates(page: &Page) -> String {
    let named: Vec<String> = page
        .candidates
        .iter()
        .map(|candidate| {
            let note = match (candidate.kind, candidate.stage) {
                (CandidateKind::Baseline, _) => " (baseline)",
                (CandidateKind::Repeat, _) => " (A/A pair)",
                (CandidateKind::Layout, ReachedStage::Dropped) => " (dropped early)",
                (CandidateKind::Layout, ReachedStage::Screened) => " (screened only)",
                (CandidateKind::Layout, ReachedStage::Failed) => " (failed)",
                (CandidateKind::Layout, ReachedStage::Confirmed) => "",
            };
            format!("{}{note}", candidate.name)
        })
        .collect();
    if named.is_empty() { format::MISSING.to_owned() } else { named.join(", ") }
}

fn loads(page: &Page) -> String {
    let loads: Vec<String> = page.asked.loads.iter().map(ToString::to_string).collect();
    if loads.is_empty() { format::MISSING.to_owned() } else { loads.join("; ") }
}

fn blocks(page: &Page) -> String {
    format!(
        "{} to race, {} to confirm; each block starts the VM once per candidate, in random \
         order, and measures its load states in random order",
        page.asked.screening_blocks, page.asked.confirmation_blocks
    )
}

/// The host in one line.
pub(crate) fn host_line(topology: &Topology) -> String {
    let mut parts = vec![
        count_of(topology.packages.len(), "package", "packages"),
        count_of(topology.nodes.len(), "NUMA node", "NUMA nodes"),
        count_of(topology.l3.len(), "L3 domain", "L3 domains"),
        count_of(topology.cores.len(), "core", "cores"),
        count_of(topology.pus.len(), "CPU", "CPUs"),
    ];
    if let Some(model) = &topology.model {
        parts.insert(0, model.clone());
    }
    parts.join(" · ")
}

fn count_of(count: usize, one: &str, many: &str) -> String {
    match count {
        1 => format!("1 {one}"),
        _ => format!("{count} {many}"),
    }
}

/// The origin of every number.
pub(crate) fn origin(page: &Page) -> Vec<Fact> {
    let provenance = &page.provenance;
    let origin = &provenance.origin;
    let source = match &page.topology.source {
        Source::Live => "read from the running kernel".to_owned(),
        Source::Captured(name) => format!("captured machine {name}"),
        Source::Synthetic(text) => format!("synthetic description {text}"),
    };
    vec![
        Fact::prose("CPU", &origin.cpu_model),
        Fact::prose("Host’s topology", format!("{}; {source}", host_line(&page.topology))),
        Fact::code("Host fingerprint", &origin.fingerprint),
        Fact::code("Host kernel", &origin.kernel),
        Fact::code("Kernel parameters", shown_parameters(&origin.cmdline)),
        Fact::prose("Hypervisor under the host", text_or(&origin.hypervisor, "none seen")),
        Fact::prose("QEMU", text_or(&origin.qemu, "not used")),
        Fact::prose("Accelerator", origin.accelerator.to_string()),
        Fact::code(
            "Guest kernel",
            text_or(&origin.guest_kernel, "not known: the user’s own guest"),
        ),
        Fact::code("Seed of the design", origin.seed.to_string()),
        Fact::prose("Pinfold", &origin.pinfold),
        Fact::code("Raw samples", format!("{} (run {})", provenance.store, provenance.run)),
        Fact::code("To repeat", &provenance.repeat),
        Fact::prose("Date", &provenance.date),
    ]
}

fn text_or(text: &Option<String>, missing: &str) -> String {
    text.clone().unwrap_or_else(|| missing.to_owned())
}
