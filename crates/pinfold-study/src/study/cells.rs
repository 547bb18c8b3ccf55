//! Cells: one workload at one level of each factor, and the baseline of each cell.

use std::collections::BTreeMap;

use super::expr::{ExprError, Scope, Value};
use crate::error::RunError;
use pinfold_model::{Accelerator, Isa};

use super::file::{FactorEffect, GUEST, HostFacts, Level, NATIVE, NONE, Rule, Study, Workload};
use super::template;

/// One combination of levels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Index of its workload.
    pub workload: usize,
    /// Index of its level, for each factor.
    pub levels: Vec<usize>,
    /// The cell that it is compared with; its own index for a baseline cell.
    pub baseline: Option<usize>,
    /// Why it is not run.
    pub skipped: Option<String>,
}

/// The guest in which a cell runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestRequest {
    /// Its instruction set; `None` for that of the host.
    pub isa: Option<Isa>,
    /// What executes the guest.
    pub accelerator: Accelerator,
    /// Number of its vCPUs.
    pub vcpus: u32,
}

/// All cells of a study on a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cells {
    /// The cells in the order of the file: workloads, then factors, the last factor varies fastest.
    pub all: Vec<Cell>,
    /// Number of combinations that a constraint excludes.
    pub excluded: usize,
}

impl Cell {
    /// The level of the factor with this name, or the name of the workload, as text.
    pub fn level<'s>(&self, study: &'s Study, name: &str) -> Option<&'s str> {
        if name == "workload" {
            return study.workloads.get(self.workload).map(|one| one.name.as_str());
        }
        self.level_of(study, name).map(|level| level.text.as_str())
    }

    fn level_of<'s>(&self, study: &'s Study, name: &str) -> Option<&'s Level> {
        let place = study.factors.iter().position(|factor| factor.name == name)?;
        study.factors[place].levels.get(*self.levels.get(place)?)
    }

    /// The level of the factor with this effect; `None` if the study has none.
    pub fn level_with_effect<'s>(
        &self,
        study: &'s Study,
        acts: &FactorEffect,
    ) -> Option<&'s Level> {
        let place = study.factors.iter().position(|factor| factor.effect == *acts)?;
        study.factors[place].levels.get(*self.levels.get(place)?)
    }

    /// The workload of the cell.
    #[must_use]
    pub fn workload<'s>(&self, study: &'s Study) -> &'s Workload {
        &study.workloads[self.workload]
    }

    /// The guest of the cell; `None` if it runs on the host itself. It has a guest if its level of
    /// `isa` or `accelerator` is not `native`, or, if the study has neither factor, if it has a
    /// number of vCPUs or a load in the guest.
    ///
    /// # Errors
    /// A message, if its levels contradict each other.
    pub fn guest(&self, study: &Study) -> Result<Option<GuestRequest>, String> {
        let level = |acts: FactorEffect| {
            self.level_with_effect(study, &acts).map(|level| level.text.as_str())
        };
        let (isa, accelerator) = (level(FactorEffect::Isa), level(FactorEffect::Accelerator));
        let load = level(FactorEffect::GuestLoad).filter(|load| *load != "idle");
        let vcpus = level(FactorEffect::Vcpus);
        match (isa, accelerator) {
            (None, None) if vcpus.is_none() && load.is_none() => return Ok(None),
            (Some(NATIVE), None | Some(NATIVE)) | (None, Some(NATIVE)) => {
                return match load {
                    Some(load) => {
                        Err(format!("guest_load {load} needs a guest, but native is not a guest"))
                    }
                    None => Ok(None),
                };
            }
            (Some(NATIVE), Some(other)) => {
                return Err(format!("isa native is not a guest, but accelerator {other} runs one"));
            }
            (Some(other), Some(NATIVE)) => {
                return Err(format!("isa {other} is a guest, but accelerator native runs none"));
            }
            (_, _) => {}
        }
        let accelerator = match accelerator {
            Some("kvm") => Accelerator::Kvm,
            Some("tcg-single") => Accelerator::TcgSingle,
            Some(_) | None => Accelerator::TcgMulti,
        };
        let vcpus = vcpus.map_or(Ok(1), str::parse);
        let vcpus = vcpus.map_err(|_| "n_vcpu is not a number of vCPUs".to_owned())?;
        Ok(Some(GuestRequest { isa: isa.and_then(Isa::from_name), accelerator, vcpus }))
    }

    /// True if its neighbour is another guest.
    pub fn has_neighbour_guest(&self, study: &Study) -> bool {
        self.is(study, FactorEffect::NeighbourKind, GUEST)
            && self.level_with_effect(study, &FactorEffect::Neighbour).is_some()
            && !self.is(study, FactorEffect::Neighbour, NONE)
    }

    fn is(&self, study: &Study, acts: FactorEffect, text: &str) -> bool {
        self.level_with_effect(study, &acts).is_some_and(|level| level.text == text)
    }

    /// The program file for its command in a guest; `None` if it has none.
    ///
    /// # Errors
    /// Names a placeholder without a value.
    pub fn guest_program(&self, study: &Study) -> Result<Option<String>, String> {
        let path = self.workload(study).guest_program.as_ref();
        path.map(|path| template::fill(path, &|name| self.word(study, name))).transpose()
    }

    fn word(&self, study: &Study, name: &str) -> Option<String> {
        let level = self.level(study, name).map(str::to_owned);
        level.or_else(|| study.values.get(name).map(|level| level.text.clone()))
    }

    /// The arguments of its command. `built_in` provides `pus` and the other values that only the
    /// runner has.
    ///
    /// # Errors
    /// Names a placeholder without a value.
    pub fn command_arguments(
        &self,
        study: &Study,
        built_in: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Vec<String>, String> {
        let words = self.workload(study).program.words();
        words
            .iter()
            .map(|word| {
                template::fill(word, &|name: &str| {
                    self.word(study, name).or_else(|| built_in(name))
                })
            })
            .collect()
    }

    /// `cpu: method hogs, speed 0.5`.
    pub fn name(&self, study: &Study) -> String {
        let mut text = self.workload(study).name.clone();
        for (index, (factor, level)) in study.factors.iter().zip(&self.levels).enumerate() {
            let level = factor.levels.get(*level).map_or("?", |level| level.text.as_str());
            let sign = if index == 0 { ":" } else { "," };
            text.push_str(&format!("{sign} {} {level}", factor.name));
        }
        text
    }

    /// Its levels without those of some factors, to find the cells that belong together.
    pub fn key(&self, study: &Study, without: &[String]) -> (Option<usize>, Vec<Option<usize>>) {
        let workload = (!has(without, "workload")).then_some(self.workload);
        let levels = study.factors.iter().zip(&self.levels);
        (
            workload,
            levels.map(|(factor, level)| (!has(without, &factor.name)).then_some(*level)).collect(),
        )
    }
}

fn has(without: &[String], name: &str) -> bool {
    without.iter().any(|known| known == name)
}

/// The scope of expressions over a cell on a host.
pub struct CellScope<'a> {
    /// The study of the cell.
    pub study: &'a Study,
    /// The cell whose levels are visible.
    pub cell: &'a Cell,
    /// The facts of the host.
    pub facts: &'a HostFacts,
}

impl Scope for CellScope<'_> {
    fn value(&self, name: &str) -> Option<Value> {
        if name == "workload" {
            return self.cell.level(self.study, name).map(|text| Value::Text(text.to_owned()));
        }
        let level = self.cell.level_of(self.study, name);
        let level = level.or_else(|| self.study.values.get(name));
        level.map(|level| level.value.clone()).or_else(|| self.facts.value(name))
    }
}

impl Cells {
    /// The cells of a study on a host, before the runner refuses any.
    ///
    /// # Errors
    /// [`RunError::Rule`] for an expression that has no value for a cell, or if the constraints
    /// exclude all cells.
    pub fn new(study: &Study, facts: &HostFacts) -> Result<Self, RunError> {
        let mut cells = Self { all: Vec::new(), excluded: 0 };
        let mut by_rule: BTreeMap<usize, usize> = BTreeMap::new();
        for workload in 0..study.workloads.len() {
            let mut levels = vec![0; study.factors.len()];
            loop {
                let cell = Cell { workload, levels: levels.clone(), baseline: None, skipped: None };
                match cells.admit(cell, study, facts)? {
                    None => {}
                    Some(rule) => *by_rule.entry(rule).or_default() += 1,
                }
                if !next(&mut levels, study) {
                    break;
                }
            }
        }
        if cells.all.is_empty() {
            let strictest = by_rule.into_iter().max_by_key(|(_, count)| *count);
            let (rule, count) = strictest.unwrap_or((0, 0));
            return Err(no_cells_left_error(study, rule, count, cells.excluded));
        }
        cells.compare(study);
        Ok(cells)
    }

    /// Adds a cell, or counts it as excluded by a constraint.
    fn admit(
        &mut self,
        mut cell: Cell,
        study: &Study,
        facts: &HostFacts,
    ) -> Result<Option<usize>, RunError> {
        for (index, rule) in study.constraints.iter().enumerate() {
            if !holds(facts, study, rule, &cell)? {
                self.excluded += 1;
                return Ok(Some(index));
            }
        }
        for skip in &study.skips {
            if holds(facts, study, &skip.when, &cell)? {
                cell.skipped = Some(skip.reason.clone());
                break;
            }
        }
        self.all.push(cell);
        Ok(None)
    }

    /// Gives each cell its baseline: the cell that agrees with it in all but the factors of the
    /// baseline.
    fn compare(&mut self, study: &Study) {
        if study.baseline.is_empty() {
            return;
        }
        let varied: Vec<String> = study.baseline.keys().cloned().collect();
        let is_reference = |cell: &Cell| {
            study.baseline.iter().all(|(name, level)| {
                cell.level_of(study, name).is_some_and(|own| own.value == level.value)
            })
        };
        let mut references = BTreeMap::new();
        for (index, cell) in self.all.iter().enumerate() {
            if is_reference(cell) {
                references.insert(cell.key(study, &varied), index);
            }
        }
        for cell in &mut self.all {
            cell.baseline = references.get(&cell.key(study, &varied)).copied();
        }
    }

    /// The cell that agrees with this one in all but these levels.
    pub fn with_levels(
        &self,
        cell: &Cell,
        study: &Study,
        levels: &BTreeMap<String, Level>,
    ) -> Option<usize> {
        let factors = study.factors.iter().zip(&cell.levels);
        let wanted = factors.map(|(factor, own)| match levels.get(&factor.name) {
            None => Some(*own),
            Some(level) => factor.levels.iter().position(|known| known.value == level.value),
        });
        let wanted: Vec<usize> = wanted.collect::<Option<_>>()?;
        self.all.iter().position(|one| one.workload == cell.workload && one.levels == wanted)
    }

    /// True if other cells are compared with it.
    pub fn is_reference(&self, index: usize) -> bool {
        self.all.get(index).is_some_and(|cell| cell.baseline == Some(index))
    }

    /// The largest number of cells that are compared with one cell; `None` if nothing is compared.
    #[must_use]
    pub fn largest_family(&self) -> Option<u32> {
        let mut sizes: BTreeMap<usize, u32> = BTreeMap::new();
        for (index, cell) in self.running() {
            let compared = cell.baseline.filter(|baseline| *baseline != index);
            compared.into_iter().for_each(|baseline| *sizes.entry(baseline).or_default() += 1);
        }
        sizes.into_values().max()
    }

    /// True if it runs twice in each block, under two names: the pair gives the noise floor. These
    /// are the cells that others are compared with; in a study without comparisons, the first cell
    /// that runs.
    pub fn has_twin(&self, index: usize, study: &Study) -> bool {
        if study.baseline.is_empty() {
            self.all.iter().position(|cell| cell.skipped.is_none()) == Some(index)
        } else {
            self.is_reference(index)
        }
    }

    /// The cells that run.
    pub fn running(&self) -> impl Iterator<Item = (usize, &Cell)> {
        self.all.iter().enumerate().filter(|(_, cell)| cell.skipped.is_none())
    }
}

fn holds(facts: &HostFacts, study: &Study, rule: &Rule, cell: &Cell) -> Result<bool, RunError> {
    let scope = CellScope { study, cell, facts };
    rule.expr.evaluate_bool(&scope).map_err(|error| rule_error(study, rule, cell, &error))
}

fn rule_error(study: &Study, rule: &Rule, cell: &Cell, error: &ExprError) -> RunError {
    let why = format!("{} (for {})", error.why, cell.name(study));
    RunError::Rule(study.fault(rule.at + 1 + error.at, why))
}

fn no_cells_left_error(study: &Study, rule: usize, count: usize, all: usize) -> RunError {
    let at = study.constraints.get(rule).map_or(0, |rule| rule.at);
    let text = study.constraints.get(rule).map_or("", |rule| rule.text.as_str());
    let why = format!(
        "the constraints exclude all {all} combinations of levels; this one excludes {count}: \
         {text}"
    );
    RunError::Rule(study.fault(at, why))
}

/// The next combination; false after the last.
fn next(levels: &mut [usize], study: &Study) -> bool {
    for (level, factor) in levels.iter_mut().zip(&study.factors).rev() {
        *level += 1;
        if *level < factor.levels.len() {
            return true;
        }
        *level = 0;
    }
    false
}
