//! Predicts the number of trials and the duration, before anything runs.

use std::collections::BTreeSet;

use pinfold_model::{Accelerator, Isa, Method};

use super::cells::{Cell, CellScope, Cells, GuestRequest};
use super::design::{self, trials_per_block};
use super::file::{FactorEffect, HostFacts, Level, NONE, Probe, Study};
use crate::error::RunError;

/// Overhead of a trial in addition to its workload, before one was measured (seconds).
const TRIAL_S: f64 = 0.02;
/// Overhead of a trial in a guest: the start of the program there, under KVM and in QEMU's
/// translator, which translates the program anew each time (seconds).
const GUEST_TRIAL_S: (f64, f64) = (0.05, 0.3);
/// Start, settling and end of the loads of host or guest (seconds).
const LOADS_S: f64 = 0.2;
/// Observation before a trial with exits, which selects the level of detail (seconds).
const EXITS_S: f64 = 0.5;
/// Attaching the BPF programs of the lock times (seconds).
const LOCK_TRACE_ATTACH_S: f64 = 0.1;
/// Overhead of starting a virtual node with a method of known cost (seconds).
const NODE_S: f64 = 0.5;
/// Duration of the first start of a method that measures its own cost, which is then stored
/// (seconds).
const CALIBRATION_S: f64 = 8.0;

/// Overhead of a start with a guest: boot, shutdown, and setup (seconds). Under TCG the boot time
/// grows with the number of vCPUs, which all take part and wait for each other; measured on two
/// cores with 1 to 128 vCPUs.
fn boot_s(guest: GuestRequest) -> f64 {
    if guest.accelerator == Accelerator::Kvm {
        return 2.0;
    }
    let vcpus = f64::from(guest.vcpus);
    let (least, each, each_pair) = match guest.isa {
        None | Some(Isa::X86) => (2.0, 0.2, 0.003),
        Some(Isa::Riscv) => (2.5, 0.3, 0.005),
        Some(Isa::Arm) => (4.0, 0.4, 0.005),
    };
    least + each * vcpus + each_pair * vcpus * vcpus
}

/// Overhead of a trial in addition to its workload and to its share of a start (seconds).
fn trial_s(study: &Study, cell: &Cell) -> f64 {
    let is_host_loaded = text(cell, study, FactorEffect::HostLoad) == "loaded";
    let is_guest_loaded = text(cell, study, FactorEffect::GuestLoad).starts_with("loaded");
    let loads = f64::from(u8::from(is_host_loaded) + u8::from(is_guest_loaded)) * LOADS_S;
    let locks = if study.probes.contains(&Probe::LockTime) { LOCK_TRACE_ATTACH_S } else { 0.0 };
    let rest = TRIAL_S + locks + loads;
    let Some(guest) = cell.guest(study).ok().flatten() else { return rest };
    let is_kvm = guest.accelerator == Accelerator::Kvm;
    let exits = if is_kvm && study.probes.contains(&Probe::Exits) { EXITS_S } else { 0.0 };
    rest + exits + if is_kvm { GUEST_TRIAL_S.0 } else { GUEST_TRIAL_S.1 }
}

fn text<'a>(cell: &'a Cell, study: &'a Study, acts: FactorEffect) -> &'a str {
    cell.level_with_effect(study, &acts).map_or("", |level| level.text.as_str())
}

/// The size and duration of a study.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// Number of cells that run.
    pub cells: usize,
    /// Number of cells that are recorded as skipped.
    pub skipped: usize,
    /// Number of combinations that constraints exclude.
    pub excluded: usize,
    /// Number of trials of a block, including twins.
    pub block_trials: u64,
    /// Number of blocks.
    pub blocks: u32,
    /// Duration of a block (seconds).
    pub block_s: f64,
    /// Additional duration of the first block (seconds).
    pub once_s: f64,
}

impl Prediction {
    /// Number of trials of the study.
    pub fn trials(&self) -> u64 {
        self.block_trials * u64::from(self.blocks)
    }

    /// Duration of the study (seconds).
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.once_s + self.block_s * f64::from(self.blocks)
    }
}

/// Computes the prediction.
///
/// # Errors
/// [`RunError::Rule`] if the duration of a workload has no value for a cell.
pub fn predict(study: &Study, cells: &Cells, facts: &HostFacts) -> Result<Prediction, RunError> {
    let mut block_s = 0.0;
    for (index, cell) in cells.running() {
        let rule = &cell.workload(study).lasts_s;
        let scope = CellScope { study, cell, facts };
        let lasts_s = rule.expr.number(&scope).map_err(|error| {
            RunError::Rule(study.fault(rule.at + 1 + error.at, format!("lasts: {}", error.why)))
        })?;
        if !lasts_s.is_finite() || lasts_s < 0.0 {
            let why = format!("lasts: {lasts_s} s is not a time (for {})", cell.name(study));
            return Err(RunError::Rule(study.fault(rule.at, why)));
        }
        let times = 1 + u32::from(cells.has_twin(index, study));
        let runs = f64::from(times * study.starts) * f64::from(study.warm_up + 1);
        block_s += runs * lasts_s + f64::from(times * study.starts) * trial_s(study, cell);
    }
    let starts = design::block(study, cells, 0);
    let slow = |start: &design::PlannedStart| {
        start.trials.iter().map(|slot| &cells.all[slot.cell]).find(|cell| {
            let method = cell
                .level_with_effect(study, &FactorEffect::Method)
                .is_some_and(|level| level.text != NONE);
            let speed = cell.level_with_effect(study, &FactorEffect::Speed).and_then(Level::number);
            method || speed.is_some_and(|speed| speed < 1.0)
        })
    };
    let slow: Vec<&Cell> = starts.iter().filter_map(slow).collect();
    block_s += slow.len() as f64 * NODE_S;
    for start in &starts {
        let Some(first) = start.trials.first().map(|slot| &cells.all[slot.cell]) else { continue };
        block_s +=
            first.guest(study).ok().flatten().map_or(0.0, |guest| boots_s(study, first, guest));
    }
    Ok(Prediction {
        cells: cells.running().count(),
        skipped: cells.all.len() - cells.running().count(),
        excluded: cells.excluded,
        block_trials: trials_per_block(study, cells),
        blocks: study.repetitions,
        block_s,
        once_s: calibrations(study, &slow) as f64 * CALIBRATION_S,
    })
}

/// Time for the boots of a start (seconds): of the measured guest, of others of its kind, of a
/// neighbour.
fn boots_s(study: &Study, cell: &Cell, guest: GuestRequest) -> f64 {
    let equal = boot_s(guest) * number(cell, study, FactorEffect::Machines);
    if !cell.has_neighbour_guest(study) {
        return equal;
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "1 to 1,000,000")]
    let vcpus = number(cell, study, FactorEffect::Neighbours) as u32;
    equal + boot_s(GuestRequest { vcpus, ..guest })
}

fn number(cell: &Cell, study: &Study, acts: FactorEffect) -> f64 {
    cell.level_with_effect(study, &acts).and_then(Level::number).unwrap_or(1.0)
}

/// Number of calibrations for these cells: one for each combination of a method that measures its
/// own cost and a number of cores.
fn calibrations(study: &Study, slow: &[&Cell]) -> usize {
    fn text(cell: &&Cell, study: &Study, acts: FactorEffect) -> Option<String> {
        cell.level_with_effect(study, &acts).map(|level| level.text.clone())
    }

    slow.iter()
        .filter_map(|cell| {
            let method = text(cell, study, FactorEffect::Method)
                .unwrap_or_else(|| Method::Stall.name().to_owned());
            let is_measured = Method::from_name(&method).is_some_and(Method::measures_own_cost);
            is_measured.then(|| (method, text(cell, study, FactorEffect::Cores)))
        })
        .collect::<BTreeSet<_>>()
        .len()
}
