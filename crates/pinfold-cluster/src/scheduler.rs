//! The interface of a batch system: what the collector knows of it.

/// State of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskState {
    /// It is pending, for this reason.
    Pending(String),
    /// It is running, starting or completing.
    Running,
    /// It ended successfully.
    Completed,
    /// It failed; the scheduler's word for it, such as `TIMEOUT`.
    Ended(String),
}

/// One task in the scheduler's queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedTask {
    /// Id of the array job.
    pub job: u64,
    /// Index in the array; `None` for a job that is not an array.
    pub element: Option<u32>,
    /// State of the task.
    pub state: TaskState,
    /// Its node; empty while it has none.
    pub node: String,
}
