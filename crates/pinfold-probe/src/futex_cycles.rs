//! Share of the cycles of some processes in `futex(2)`, and for which lock, by sampling.
//!
//! Badaroux 2021 §V.E profiles an emulator in this way. Unlike [`crate::locks`], the time for which
//! a thread sleeps in the system call is not included, only what the call itself costs. Without a
//! PMU, CPU time is sampled instead of cycles; the result says which.

use pinfold_host::{FutexSampler, FutexSamples, Host, HostError, with_causes};
use pinfold_model::{Role, TaskId};

use crate::locks::LocksError;
use crate::symbols::{Symbols, debug_file};
use crate::traced_threads::TracedThreads;

/// Sampling in progress.
#[derive(Debug)]
pub struct Sampling {
    sampler: FutexSampler,
    /// Of the first process.
    symbols: Symbols,
}

/// The lock at which most samples inside `futex(2)` were.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MostSampledLock {
    /// Number of these samples.
    pub samples: u64,
    /// Its variable, or why that has no name.
    pub name: Result<String, String>,
}

/// Starts to sample these threads and the later ones of their processes.
///
/// # Errors
/// [`LocksError`].
pub fn start(host: &dyn Host, threads: &[(TaskId, Role)]) -> Result<Sampling, LocksError> {
    let watched = TracedThreads::read(host, threads)?;
    if !host.is_live() {
        let why = "this is not the running machine".to_owned();
        return Err(LocksError::Unavailable { why });
    }
    let processes = watched.processes();
    let symbols = Symbols::read(
        host,
        *processes
            .first()
            .ok_or_else(|| LocksError::Unavailable { why: "no process was found".to_owned() })?,
    )?;
    let sampler = FutexSampler::open(host, &processes, &watched.tids())
        .map_err(|error| LocksError::Unavailable { why: with_causes(&error) })?;
    Ok(Sampling { sampler, symbols })
}

impl Sampling {
    /// The samples so far.
    ///
    /// # Errors
    /// [`HostError`] if the counts cannot be read.
    pub fn read(&self) -> Result<FutexSamples, HostError> {
        self.sampler.read()
    }

    /// Ends the sampling: its samples, and the symbols for [`main_lock`].
    ///
    /// # Errors
    /// [`HostError`] if the counts cannot be read.
    pub fn stop(self) -> Result<(FutexSamples, Symbols), HostError> {
        Ok((self.sampler.close()?, self.symbols))
    }
}

/// The lock with most of these samples; `None` if none was inside `futex(2)`.
pub fn main_lock(
    host: &dyn Host,
    symbols: &mut Symbols,
    samples: &FutexSamples,
) -> Option<MostSampledLock> {
    let (address, samples) = samples.words.iter().max_by_key(|(_, count)| **count)?;
    let name = match symbols.place(host, *address) {
        None => Err("it is in no file of the program".to_owned()),
        Some(place) if place.symbol.is_some() => Ok(place.to_string()),
        Some(place) => {
            let debug = match symbols.build_id(host, &place.file) {
                "" => "it has no build id, by which debug symbols are found".to_owned(),
                id => format!("there is no {}", debug_file(id)),
            };
            let file = &place.file;
            Err(format!(
                "{place}: {file} has no symbol there, and {debug}; install its debug symbols"
            ))
        }
    };
    Some(MostSampledLock { samples: *samples, name })
}
