//! The probes `futex_cycles` and `futex_lock` of a trial: share of the cycles of a process inside
//! `futex(2)`, and of these the share of the lock with most of them.

use pinfold_host::{FutexSamples, LiveHost, SampledClock};
use pinfold_model::{Figure, Finding, Role, TaskId, Unit};
use pinfold_probe::futex_cycles::{self, MostSampledLock, Sampling};
use pinfold_probe::locks::LocksError;
use pinfold_study::study::{Probe, TrialError};

use super::figure::{absent, one_figure};

/// Why a process without samples has no shares.
pub(super) const NO_SAMPLES: [&str; 2] =
    ["the process was never sampled: it used almost no CPU time", "no sample was inside futex(2)"];
/// The label of a lock whose variable has no name.
const NO_SYMBOL: &str = "no symbol";

/// Whether futex calls are sampled, or why not.
pub(super) struct FutexWatch {
    probes: Vec<Probe>,
    sampling: Result<Sampling, String>,
    /// The samples when the region of interest began, and when it ended.
    marks: Vec<FutexSamples>,
}

impl FutexWatch {
    /// Starts the sampling, if it was requested.
    pub(super) fn begin(
        host: &LiveHost,
        probes: &[Probe],
        threads: &[(TaskId, Role)],
    ) -> Result<Self, TrialError> {
        let probes: Vec<Probe> = probes
            .iter()
            .filter(|probe: &&Probe| matches!(probe, Probe::FutexCycles | Probe::FutexLock))
            .copied()
            .collect();
        let sampling = if probes.is_empty() {
            Err(String::new())
        } else {
            match futex_cycles::start(host, threads) {
                Ok(sampling) => Ok(sampling),
                Err(LocksError::Unavailable { why }) => Err(why),
                Err(error @ LocksError::Watch(_)) => return Err(trial_error(&error)),
            }
        };
        Ok(Self { probes, sampling, marks: Vec::new() })
    }

    /// The region of interest begins or ends.
    pub(super) fn mark(&mut self) -> Result<(), TrialError> {
        if let Ok(sampling) = &self.sampling {
            self.marks.push(sampling.read().map_err(|error| trial_error(&error))?);
        }
        Ok(())
    }

    /// Ends the sampling: the figures of the whole program, and of its region of interest if that
    /// was marked; and findings.
    pub(super) fn end(self, host: &LiveHost) -> Result<(Vec<Figure>, Vec<Finding>), TrialError> {
        let sampling = match self.sampling {
            Ok(sampling) => sampling,
            Err(why) => {
                return Ok((
                    self.probes
                        .iter()
                        .map(|probe: &Probe| absent(probe.name(), Unit::Share, &why))
                        .collect(),
                    Vec::new(),
                ));
            }
        };
        let (all, mut symbols) = sampling.stop().map_err(|error| trial_error(&error))?;
        let roi = self.marks.first().map(|begin| self.marks.get(1).unwrap_or(&all).since(begin));
        let mut findings = Vec::new();
        if all.clock != SampledClock::Cycles {
            let no_pmu = "share of CPU time (no PMU)";
            findings.push(Finding::note(Probe::FutexCycles.name(), no_pmu));
        }
        let mut figures = Vec::new();
        for (part, samples) in [("full", Some(&all)), ("roi", roi.as_ref())] {
            let Some(samples) = samples else { continue };
            for probe in &self.probes {
                let mut figure = if *probe == Probe::FutexLock {
                    let lock = futex_cycles::main_lock(host, &mut symbols, samples);
                    of_lock(lock, samples.inside, &mut findings)
                } else {
                    of_cycles(samples)
                };
                figure.labels.insert("part".to_owned(), part.to_owned());
                figures.push(figure);
            }
        }
        Ok((figures, findings))
    }
}

fn of_cycles(samples: &FutexSamples) -> Figure {
    let name = Probe::FutexCycles.name();
    match samples.share() {
        Some(share) => one_figure(name, Unit::Share, share, 0),
        None => absent(name, Unit::Share, NO_SAMPLES[0]),
    }
}

fn of_lock(lock: Option<MostSampledLock>, inside: u64, findings: &mut Vec<Finding>) -> Figure {
    let probe = Probe::FutexLock.name();
    let Some(lock) = lock else { return absent(probe, Unit::Share, NO_SAMPLES[1]) };
    let mut figure = one_figure(probe, Unit::Share, lock.samples as f64 / inside as f64, 0);
    let name = lock.name.unwrap_or_else(|why| {
        let finding =
            Finding::note(probe, format!("the lock with most samples has no name: {why}"));
        if !findings.contains(&finding) {
            findings.push(finding);
        }
        NO_SYMBOL.to_owned()
    });
    figure.labels.insert("lock".to_owned(), name);
    figure
}

fn trial_error(error: &dyn std::fmt::Display) -> TrialError {
    TrialError::from_message(format!("it cannot be observed: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_without_a_name_is_a_finding() {
        let mut findings = Vec::new();
        let named = MostSampledLock { samples: 3, name: Ok("qemu_global_mutex".to_owned()) };
        let figure = of_lock(Some(named), 4, &mut findings);
        assert_eq!(
            (figure.samples[0], figure.labels["lock"].as_str()),
            (0.75, "qemu_global_mutex")
        );
        assert!(findings.is_empty());
        let nameless = MostSampledLock { samples: 4, name: Err("no symbols".to_owned()) };
        for _ in 0..2 {
            let figure = of_lock(Some(nameless.clone()), 4, &mut findings);
            assert_eq!((figure.samples[0], figure.labels["lock"].as_str()), (1.0, NO_SYMBOL));
        }
        assert_eq!(findings.len(), 1);
        assert!(findings[0].to_string().ends_with("has no name: no symbols"));
        assert!(of_lock(None, 0, &mut findings).samples.is_empty());
    }
}
