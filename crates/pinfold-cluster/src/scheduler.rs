//! The interface of a batch system: what the collector and the shared folder know of it.
//!
//! Each batch system is one folder that implements [`Scheduler`], with a row in `KINDS`.

use pinfold_run::Failure;

use crate::documents::Options;

/// A batch system of this program.
pub struct Kind {
    /// Its name on the command line.
    pub name: &'static str,
    /// Checks options that are passed on to it.
    pub check: fn(&Options) -> Result<(), Failure>,
    /// Finds its programs on this host.
    pub find: fn() -> Result<Box<dyn Scheduler>, Failure>,
    /// True in a process that it started.
    pub is_here: fn() -> bool,
    /// The task in which this process runs.
    pub task: fn() -> Result<TaskEnvironment, Failure>,
    /// The index of this process in its array, if it runs in one.
    pub array_index: fn() -> Option<u32>,
}

/// The task in which a process runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskEnvironment {
    /// Name of its node.
    pub node: String,
    /// Id of its job, with the index in the array.
    pub job: String,
}

/// A batch system, as seen from the host that submits.
///
/// ```no_run
/// use pinfold_cluster::Options;
/// use pinfold_cluster::scheduler::Scheduler;
///
/// fn print_offer(scheduler: &dyn Scheduler) -> Result<(), pinfold_run::Failure> {
///     println!("{}", scheduler.offer(&Options::new("/shared".to_owned()))?.cluster);
///     Ok(())
/// }
/// ```
pub trait Scheduler: Sync {
    /// Its name in messages.
    fn name(&self) -> &'static str;

    /// What the cluster offers for these options.
    ///
    /// # Errors
    /// [`Failure`] if it does not respond, or has no such nodes.
    fn offer(&self, options: &Options) -> Result<ClusterOffer, Failure>;

    /// Submits a batch job and returns its id.
    ///
    /// # Errors
    /// [`Failure`] if it is not accepted; [`Scheduler::classify_rejection`] says whether to try again.
    fn submit(&self, request: &JobRequest, batch: &BatchJob<'_>) -> Result<u64, Failure>;

    /// The tasks with this name that it knows.
    ///
    /// # Errors
    /// [`Failure`] if it does not respond.
    fn queue(&self, name: &str) -> Result<Vec<QueuedTask>, Failure>;

    /// Description of the end of a task, from its state and its id.
    fn describe_end(&self, state: &str, job: &str) -> String;

    /// The last message of a task in its output.
    fn last_message(&self, output: &str) -> Option<String>;

    /// Why it did not accept tasks; `None` if neither fewer nor later ones would help.
    fn classify_rejection(&self, message: &str) -> Option<Rejection>;

    /// True if this reason for waiting is usual in a busy cluster; otherwise the user must act.
    fn is_usual_pending_reason(&self, reason: &str) -> bool;

    /// The command that shows nodes that are down.
    fn node_command(&self) -> &'static str;

    /// Cancels one job, with all tasks of its array.
    ///
    /// # Errors
    /// [`Failure`] if it does not respond.
    fn cancel_job(&self, job: u64) -> Result<(), Failure>;

    /// Cancels all jobs with this name.
    ///
    /// # Errors
    /// [`Failure`] if it does not respond.
    fn cancel(&self, name: &str) -> Result<(), Failure>;
}

/// What a cluster offers for a study.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterOffer {
    /// Version and name of the cluster, for messages.
    pub cluster: String,
    /// The nodes that may be used.
    pub nodes: Vec<OfferedNode>,
    /// The nodes of the partition that are excluded.
    pub excluded: Vec<String>,
    /// Maximum number of nodes at a time.
    pub at_once: Option<u32>,
    /// Indexes of arrays are below this.
    pub max_array: u32,
    /// Maximum number of jobs, of all users.
    pub max_jobs: u32,
}

impl ClusterOffer {
    /// Number of nodes that can run jobs, now or after the running ones.
    pub fn up(&self) -> usize {
        self.nodes.iter().filter(|node| node.is_up).count()
    }
}

/// A node that may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferedNode {
    /// Name of the node.
    pub name: String,
    /// Its state, as the scheduler reports it.
    pub state: String,
    /// True if it can run jobs, now or after the running ones.
    pub is_up: bool,
}

/// The requirements of a job: a whole node, exclusively.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobRequest {
    /// Its name, by which it is found again.
    pub name: String,
    /// The partition; `None` for the default one.
    pub partition: Option<String>,
    /// Nodes to exclude.
    pub exclude: Vec<String>,
    /// Time limit in the scheduler's format; `None` for the default of the partition.
    pub time: Option<String>,
}

/// A batch job.
#[derive(Clone, Copy, Debug)]
pub struct BatchJob<'a> {
    /// The program of each task, with its arguments.
    pub program: &'a [String],
    /// Folder of the tasks' output: `JOB.txt`, in an array `JOB_INDEX.txt`.
    pub output: &'a str,
    /// Indexes of an array; empty for a single task.
    pub array_indices: &'a [u32],
    /// Maximum number of tasks of the array at a time.
    pub at_once: Option<u32>,
}

/// Why a scheduler rejected tasks, if it may accept fewer of them, or later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// The controller, an account or a QOS accepts no more jobs now.
    NoRoom,
    /// A limit that is not named; waiting may not help.
    Unnamed,
    /// The array has an index, or a number of tasks, above the cluster's limit.
    ArrayTooLarge,
}

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
