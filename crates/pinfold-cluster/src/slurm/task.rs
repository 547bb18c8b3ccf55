//! The variables that Slurm sets for each of its tasks.

use pinfold_run::{Exit, Failure};

use crate::scheduler::TaskEnvironment;

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

fn read_variable(name: &str) -> Result<String, Failure> {
    variable(name).ok_or_else(|| {
        Failure::new(Exit::Input, format!("{name} is not set: this is not a Slurm task"))
            .with_hint("`pinfold study run FILE --engine slurm` submits such tasks")
    })
}

/// True in a process that Slurm started.
pub fn is_here() -> bool {
    variable("SLURMD_NODENAME").is_some()
}

/// The task in which this process runs.
pub fn environment() -> Result<TaskEnvironment, Failure> {
    let node = read_variable("SLURMD_NODENAME")?;
    let job = match (variable("SLURM_ARRAY_JOB_ID"), variable("SLURM_ARRAY_TASK_ID")) {
        (Some(job), Some(element)) => format!("{job}_{element}"),
        (Some(_), None) | (None, Some(_)) | (None, None) => read_variable("SLURM_JOB_ID")?,
    };
    Ok(TaskEnvironment { node, job })
}

/// The index of this process in its array.
pub fn array_index() -> Option<u32> {
    variable("SLURM_ARRAY_TASK_ID").and_then(|text| text.parse().ok())
}
