//! Share of the cycles of some processes in `futex(2)`, by sampling.
//!
//! Badaroux 2021 §V.E profiles an emulator in this way. Unlike [`crate::locks`], the time for which
//! a thread sleeps in the system call is not included, only what the call itself costs. Without a
//! PMU, CPU time is sampled instead of cycles; the result says which.

use pinfold_host::{FutexSampler, FutexSamples, Host, HostError, with_causes};
use pinfold_model::{Role, TaskId};

use crate::locks::LocksError;
use crate::traced_threads::Watched;

/// Sampling in progress.
#[derive(Debug)]
pub struct Sampling(FutexSampler);

/// Starts to sample these threads and the later ones of their processes.
///
/// # Errors
/// [`LocksError`].
pub fn start(host: &dyn Host, threads: &[(TaskId, Role)]) -> Result<Sampling, LocksError> {
    let watched = Watched::of(host, threads)?;
    if !host.is_live() {
        let why = "this is not the running machine".to_owned();
        return Err(LocksError::Unavailable { why });
    }
    FutexSampler::open(host, &watched.processes(), &watched.tids())
        .map(Sampling)
        .map_err(|error| LocksError::Unavailable { why: with_causes(&error) })
}

impl Sampling {
    /// Ends the sampling.
    ///
    /// # Errors
    /// [`HostError`] if the counts cannot be read.
    pub fn stop(self) -> Result<FutexSamples, HostError> {
        self.0.close()
    }
}
