//! A run of a program, and copies of it that run at the same time on the same CPUs.

use pinfold_study::study::TrialError;

use super::job::{Job, JobResult};

/// The measured run with its copies. Dropping it kills all of them.
pub struct Copies {
    own: Job,
    result: Option<Result<JobResult, TrialError>>,
    others: Vec<Job>,
}

impl Copies {
    pub fn new(own: Job, others: Vec<Job>) -> Self {
        Self { own, result: None, others }
    }

    /// All of them, the measured one first.
    pub fn all(&mut self) -> impl Iterator<Item = &mut Job> {
        std::iter::once(&mut self.own).chain(&mut self.others)
    }

    /// The result of the measured run, if all have ended; an error if one of them failed.
    pub fn poll_result(&mut self) -> Option<Result<JobResult, TrialError>> {
        if self.result.is_none() {
            self.result = self.own.poll_result();
        }
        if let Some(Err(_)) = &self.result {
            return self.result.take();
        }
        while let Some(last) = self.others.last_mut() {
            if let Err(error) = last.poll_result()? {
                let why = format!("a copy next to it: {}", error.message);
                return Some(Err(TrialError::from_message(why)));
            }
            self.others.pop();
        }
        self.result.take()
    }
}
