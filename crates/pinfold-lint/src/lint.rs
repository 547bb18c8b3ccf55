//! Checks several layouts of one host together, with advice that fits together.

use std::collections::{BTreeMap, BTreeSet};

use pinfold_model::{CpuSet, Request, Topology};
use pinfold_plan::layout::Layout;

use super::diagnostic::Diagnostic;
use super::lookup::{CpuIndex, LintContext};
use super::one_layout::of_one;
use super::target::asks_for_another_place;
use super::{advice, overlap, room};

/// Result of checking layouts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LintReport {
    /// The faults, worst first; empty if there are none.
    pub flaws: Vec<Diagnostic>,
    /// For each layout a strategy that places it without a warning, if it must be placed anew.
    pub strategies: Vec<Option<&'static str>>,
}

/// Maximum number of layouts that get a placement of their own as advice: each is planned next to
/// all others.
const MOST_ADVISED: usize = 16;

/// The faults of `layouts`, all of one host, worst first; empty if there are none.
#[must_use]
pub fn lint(layouts: &[Layout], topology: &Topology) -> Vec<Diagnostic> {
    lint_under(layouts, topology, &Request::of(Vec::new())).flaws
}

/// The same, with advice that respects the user's conditions: CPUs to avoid, CPUs for the host.
///
/// A running machine and a file with the same name are one machine: the running state is checked
/// together with the others, and the file determines where its memory should be.
#[must_use]
pub fn lint_under(layouts: &[Layout], topology: &Topology, conditions: &Request) -> LintReport {
    let lookup = CpuIndex::of(topology, conditions);
    let views: Vec<_> = layouts.iter().map(|layout| LintContext::of(layout, &lookup)).collect();
    let written: BTreeMap<&str, &Layout> = layouts
        .iter()
        .filter(|layout| !layout.runs())
        .map(|layout| (layout.name.as_str(), layout))
        .collect();
    let running: BTreeSet<&str> =
        layouts.iter().filter(|layout| layout.runs()).map(|layout| layout.name.as_str()).collect();
    let of_one = |view: &LintContext<'_, '_>| {
        let mut own = of_one(view, written.get(view.layout.name.as_str()).copied());
        advice::bind_in_place(&mut own, view);
        own
    };
    let mut of_views: Vec<Vec<Diagnostic>> = views.iter().map(of_one).collect();
    let (taken, strategies) = advise(&mut of_views, &views, conditions);
    let claims = |view: &&LintContext<'_, '_>| {
        view.layout.runs() || !running.contains(view.layout.name.as_str())
    };
    let held = views.iter().zip(&taken).filter(|(view, _)| claims(view));
    let held = held.map(|(_, pus)| pus).collect::<CpuSet>();
    let mut isolation = advice::Isolation::new((&lookup, &held), conditions);
    for (view, own) in views.iter().zip(&mut of_views) {
        isolation.advise(own, view);
    }
    let mut flaws: Vec<Diagnostic> = of_views.into_iter().flatten().collect();
    let claims: Vec<_> = views.iter().filter(claims).collect();
    overlap::check(&claims, &lookup, &mut flaws);
    room::check_together(&claims, &mut flaws);
    flaws.sort_by_key(|flaw| std::cmp::Reverse(flaw.severity));
    LintReport { flaws, strategies }
}

/// Adds the advice for each layout. Returns the CPUs of their vCPUs, and the strategy of each that
/// is to be placed anew, if the advice is followed.
fn advise(
    of_views: &mut [Vec<Diagnostic>],
    views: &[LintContext<'_, '_>],
    conditions: &Request,
) -> (Vec<CpuSet>, Vec<Option<&'static str>>) {
    let asks = |own: &&Vec<Diagnostic>| own.iter().any(asks_for_another_place);
    let asking = of_views.iter().filter(asks).count();
    let mut taken: Vec<CpuSet> = views.iter().map(|view| view.held.clone()).collect();
    if asking > MOST_ADVISED {
        for (own, view) in of_views.iter_mut().zip(views) {
            advice::give_together(own, view, asking);
        }
        return (taken, vec![None; views.len()]);
    }
    let mut cores: Vec<CpuSet> =
        views.iter().map(|view| view.lookup.whole_cores(&view.held)).collect();
    let mut strategies = Vec::new();
    for (index, (own, view)) in of_views.iter_mut().zip(views).enumerate() {
        let mut conditions = conditions.clone();
        if asks(&&*own) {
            let others = cores.iter().enumerate().filter(|(other, _)| *other != index);
            others.for_each(|(_, pus)| conditions.avoid.add(pus));
        }
        let target = advice::give(own, view, &conditions);
        if let Some(target) = &target {
            taken[index] = LintContext::of(&target.layout, view.lookup).held;
            cores[index] = view.lookup.whole_cores(&taken[index]);
        }
        strategies.push(target.and_then(|target| target.strategy));
    }
    (taken, strategies)
}
