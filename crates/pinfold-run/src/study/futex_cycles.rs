//! The probe `futex_cycles` of a trial: share of the cycles of a process inside `futex(2)`.

use pinfold_host::{LiveHost, SampledClock};
use pinfold_model::{Finding, Role, TaskId};
use pinfold_probe::futex_cycles::{self, Sampling};
use pinfold_probe::locks::LocksError;
use pinfold_study::study::{Probe, TrialError};

/// Why a process without CPU time has no share.
pub(super) const NOT_SAMPLED: &str = "the process was never sampled: it hardly ran";

/// Whether futex calls are sampled, or why not.
pub(super) struct FutexWatch(Result<Sampling, String>);

impl FutexWatch {
    /// Starts the sampling, if it was requested.
    pub(super) fn begin(
        host: &LiveHost,
        probes: &[Probe],
        threads: &[(TaskId, Role)],
    ) -> Result<Self, TrialError> {
        if !probes.contains(&Probe::FutexCycles) {
            return Ok(Self(Err(String::new())));
        }
        match futex_cycles::start(host, threads) {
            Ok(sampling) => Ok(Self(Ok(sampling))),
            Err(LocksError::Unavailable { why }) => Ok(Self(Err(why))),
            Err(error @ LocksError::Watch(_)) => Err(failed(&error)),
        }
    }

    /// Ends the sampling: the share, or why there is none; and a finding if it is not of cycles.
    pub(super) fn end(self) -> Result<(Result<f64, String>, Option<Finding>), TrialError> {
        let sampling = match self.0 {
            Ok(sampling) => sampling,
            Err(why) => return Ok((Err(why), None)),
        };
        let samples = sampling.stop().map_err(|error| failed(&error))?;
        let Some(share) = samples.share() else {
            return Ok((Err(NOT_SAMPLED.to_owned()), None));
        };
        let is_cycles = samples.clock == SampledClock::Cycles;
        Ok((Ok(share), (!is_cycles).then(no_pmu)))
    }
}

fn failed(error: &dyn std::fmt::Display) -> TrialError {
    TrialError::failed(format!("it cannot be observed: {error}"))
}

fn no_pmu() -> Finding {
    Finding::note(Probe::FutexCycles.name(), "share of CPU time (no PMU)")
}
