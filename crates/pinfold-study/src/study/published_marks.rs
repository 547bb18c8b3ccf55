//! Values of the source in charts, and which part of a comparison a chart has.

use super::analyse::Analysis;
use super::cells::CellScope;
use super::expr::{Expr, Scope as _, Value};
use super::file::{DisplayedStatistic, PublishedValue, Selection};
use super::select::{ClaimScope, Key};

/// The function of claims that gives what a chart shows.
fn function_of(shown: DisplayedStatistic) -> &'static str {
    match shown {
        DisplayedStatistic::Value => "value",
        DisplayedStatistic::Sum => "sum",
        DisplayedStatistic::Ratio => "ratio",
        DisplayedStatistic::Error => "error",
    }
}

impl Analysis {
    /// The group of a selection whose value a value of the source stands next to: that of the
    /// cells which its `ours` selects. `None` if `ours` is more than one function, shows something
    /// else, or covers more or fewer cells than one group.
    pub fn group_of(
        &self,
        published: &PublishedValue,
        selection: &Selection,
        names: &[&str],
    ) -> Option<Key> {
        let (function, arguments) = published.ours.expr.as_call()?;
        let (first, picks) = arguments.split_first()?;
        let is_same = function == function_of(selection.shown)
            && first.value.as_name() == Some(&selection.figure);
        if !is_same {
            return None;
        }
        let scope = ClaimScope { analysis: self, only: None };
        let mut wanted: Vec<(&str, Value)> = Vec::new();
        for pick in picks {
            wanted.push((pick.name.as_deref()?, pick.value.evaluate(&scope).ok()?));
        }
        let study = &self.loaded.study;
        let (levels, labels): (Vec<_>, Vec<_>) =
            wanted.into_iter().partition(|(name, _)| study.is_factor_name(name));
        let label = |name: &str| labels.iter().find(|(known, _)| *known == name);
        let fits = selection
            .labels
            .iter()
            .all(|(name, text)| label(name).is_some_and(|(_, value)| value.to_string() == *text));
        if !fits || !labels.iter().all(|(name, _)| is_shown(selection, names, name)) {
            return None;
        }
        let mut keys: Vec<Key> = Vec::new();
        let mut others: Vec<Key> = Vec::new();
        for (_, cell) in self.select_cells(selection) {
            let level = |name: &&str| {
                let level = cell.level(study, name).map(str::to_owned);
                level.or_else(|| label(name).map(|(_, value)| value.to_string()))
            };
            let key: Key = names.iter().map(|name| level(name).unwrap_or_default()).collect();
            let scope = CellScope { study, cell, facts: &self.loaded.facts };
            let is_meant =
                levels.iter().all(|(name, value)| scope.value(name).as_ref() == Some(value));
            let known = if is_meant { &mut keys } else { &mut others };
            if !known.contains(&key) {
                known.push(key);
            }
        }
        match keys.as_slice() {
            [only] if !others.contains(only) => Some(only.clone()),
            _ => None,
        }
    }

    /// The only level of a factor that was found, if the selection is about several.
    ///
    /// If its rule names the factor, it is about the levels of its cells, skipped ones too; else
    /// about all levels of the factor.
    pub fn only_level<'f>(
        &self,
        selection: &Selection,
        name: &str,
        found: &'f [String],
    ) -> Option<&'f str> {
        let study = &self.loaded.study;
        let factor = study.factor(name)?;
        let [only] = found else { return None };
        let is_limited = selection.only.as_ref().is_some_and(|rule| names_it(name, &rule.expr));
        let mut cells = self.select_cells(selection);
        let has_others = if is_limited {
            cells.any(|(_, cell)| cell.level(study, name) != Some(only))
        } else {
            factor.levels.len() > 1
        };
        has_others.then_some(only)
    }
}

fn names_it(name: &str, rule: &Expr) -> bool {
    rule.names().iter().any(|(known, _)| *known == name)
}

fn is_shown(selection: &Selection, names: &[&str], name: &str) -> bool {
    selection.labels.contains_key(name) || names.contains(&name)
}
