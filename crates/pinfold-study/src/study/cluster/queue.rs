//! The tasks in the queue of a batch system, and their states.

/// State of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It is pending, for this reason.
    Pending(String),
    /// It is running, starting or completing.
    Running,
    /// It ended successfully.
    Completed,
    /// It failed: `TIMEOUT`, `NODE_FAIL`.
    Ended(String),
}

/// One task in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueLine {
    /// Id of the array job.
    pub job: u64,
    /// Index in the array; `None` for a job that is not an array.
    pub element: Option<u32>,
    /// State of the task.
    pub state: State,
    /// Its node; empty while it has none.
    pub node: String,
}
