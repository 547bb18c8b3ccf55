//! Checks several layouts of one host together, with advice that fits together.

use std::collections::{BTreeMap, BTreeSet};

use pinfold_model::{CpuSet, Request, Topology};
use pinfold_plan::layout::Layout;

use super::diagnostic::Diagnostic;
use super::lookup::{CpuIndex, LintContext};
use super::one_layout::of_one;
use super::target::asks_for_another_place;
use super::{advice, capacity, overlap};

/// Result of checking layouts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LintReport {
    /// The faults, worst first; empty if there are none.
    pub diagnostics: Vec<Diagnostic>,
    /// For each layout a strategy that places it without a warning, if it must be placed anew.
    pub strategies: Vec<Option<&'static str>>,
}

/// Maximum number of layouts that get a placement of their own as advice: each is planned next to
/// all others.
const MOST_ADVISED: usize = 16;

/// The faults of `layouts`, all of one host, worst first; empty if there are none.
///
/// ```
/// use pinfold_plan::layout::Layout;
///
/// // Both vCPUs are on one CPU.
/// let xml = "<domain type='kvm'><name>vm</name><memory unit='MiB'>512</memory><vcpu>2</vcpu>\
///            <cputune><vcpupin vcpu='0' cpuset='2'/><vcpupin vcpu='1' cpuset='2'/></cputune>\
///            </domain>";
/// let topology = pinfold_samples::from_description("core:4 pu:2");
/// let layout = Layout::of_text(xml, "vm.xml")?;
/// let diagnostics = pinfold_lint::lint(&[layout], &topology);
/// assert!(diagnostics.iter().any(|diagnostic| diagnostic.what.contains("CPU 2")));
/// # Ok::<(), pinfold_plan::domain_file::DomainError>(())
/// ```
pub fn lint(layouts: &[Layout], topology: &Topology) -> Vec<Diagnostic> {
    lint_under(layouts, topology, &Request::from_vnodes(Vec::new())).diagnostics
}

/// The same, with advice that respects the user's conditions: CPUs to avoid, CPUs for the host.
///
/// A running machine and a file with the same name are one machine: the running state is checked
/// together with the others, and the file determines where its memory should be.
#[must_use]
pub fn lint_under(layouts: &[Layout], topology: &Topology, conditions: &Request) -> LintReport {
    let lookup = CpuIndex::new(topology, conditions);
    let views: Vec<_> = layouts.iter().map(|layout| LintContext::new(layout, &lookup)).collect();
    let written: BTreeMap<&str, &Layout> = layouts
        .iter()
        .filter(|layout| !layout.is_running())
        .map(|layout| (layout.name.as_str(), layout))
        .collect();
    let running: BTreeSet<&str> = layouts
        .iter()
        .filter(|layout| layout.is_running())
        .map(|layout| layout.name.as_str())
        .collect();
    let mut of_views: Vec<Vec<Diagnostic>> =
        views.iter().map(|view| check_one(&written, view)).collect();
    let advised = advise(&mut of_views, &views, conditions);
    let claims = |view: &&LintContext<'_, '_>| {
        view.layout.is_running() || !running.contains(view.layout.name.as_str())
    };
    let held = views.iter().zip(&advised).filter(|(view, _)| claims(view));
    let held = held.map(|(_, advised)| &advised.held).collect::<CpuSet>();
    let mut isolation = advice::Isolation::new(&lookup, &held, conditions);
    let cores = lookup.whole_cores(&held);
    for ((view, own), advised) in views.iter().zip(&mut of_views).zip(&advised) {
        // The cores of the other machines: all but its own, and those of its own that others use
        // too.
        let own_cores = lookup.whole_cores(&advised.held);
        let shared = own_cores.intersection(&held).difference(&advised.held);
        let others = cores.difference(&own_cores).union(&lookup.whole_cores(&shared));
        let placed = advised.layout.as_ref().unwrap_or(view.layout);
        isolation.advise(own, view, placed, &others.difference(&advised.held));
    }
    let mut diagnostics: Vec<Diagnostic> = of_views.into_iter().flatten().collect();
    let claims: Vec<_> = views.iter().filter(claims).collect();
    overlap::check(&claims, &lookup, &mut diagnostics);
    capacity::check_together(&claims, &mut diagnostics);
    diagnostics.sort_by_key(|diagnostic| std::cmp::Reverse(diagnostic.severity));
    let strategies = advised.iter().map(|advised| advised.strategy).collect();
    LintReport { diagnostics, strategies }
}

fn check_one(written: &BTreeMap<&str, &Layout>, view: &LintContext<'_, '_>) -> Vec<Diagnostic> {
    let mut own = of_one(view, written.get(view.layout.name.as_str()).copied());
    advice::bind_in_place(&mut own, view);
    own
}

/// What is advised for one layout.
struct Advised {
    /// The CPUs of its vCPUs.
    held: CpuSet,
    /// The strategy of its new placement, if it needs one and a strategy makes it.
    strategy: Option<&'static str>,
    /// The layout with its new placement.
    layout: Option<Layout>,
}

/// Adds the advice for each layout, and returns what it leads to.
fn advise(
    of_views: &mut [Vec<Diagnostic>],
    views: &[LintContext<'_, '_>],
    conditions: &Request,
) -> Vec<Advised> {
    let asking = of_views.iter().filter(asks).count();
    let mut advised: Vec<Advised> = views.iter().map(keep_layout).collect();
    if asking > MOST_ADVISED {
        for (own, view) in of_views.iter_mut().zip(views) {
            advice::give_together(own, view, asking);
        }
        return advised;
    }
    let mut cores: Vec<CpuSet> =
        views.iter().map(|view| view.lookup.whole_cores(&view.held)).collect();
    for (index, (own, view)) in of_views.iter_mut().zip(views).enumerate() {
        let mut conditions = conditions.clone();
        if asks(&&*own) {
            let others = cores.iter().enumerate().filter(|(other, _)| *other != index);
            others.for_each(|(_, pus)| conditions.avoid.add(pus));
        }
        if let Some(target) = advice::add_advice(own, view, &conditions) {
            let held = LintContext::new(&target.layout, view.lookup).held;
            cores[index] = view.lookup.whole_cores(&held);
            let (strategy, layout) = (target.strategy, Some(target.layout));
            advised[index] = Advised { held, strategy, layout };
        }
    }
    advised
}

fn keep_layout(view: &LintContext<'_, '_>) -> Advised {
    Advised { held: view.held.clone(), strategy: None, layout: None }
}

fn asks(own: &&Vec<Diagnostic>) -> bool {
    own.iter().any(asks_for_another_place)
}
