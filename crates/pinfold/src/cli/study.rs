//! What may be typed after `pinfold study`.

use clap::{Args, Subcommand, ValueEnum};

/// `pinfold study`.
#[derive(Debug, Args)]
pub struct StudyArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: StudyCommand,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum StudyCommand {
    /// Read a study file and print its cells, trials and predicted time; nothing runs
    Check(CheckArgs),
    /// Run a study; each trial is stored when it ends
    Run(RunArgs),
    /// Go on with a study that was broken off
    Resume(ResumeArgs),
    /// How far a study is, and what failed
    Status(StoreArgs),
    /// Write every table as CSV and Parquet: cells, trials, raw samples, estimates, the report's
    Export(ExportArgs),
    /// Two runs of a study, or one on two machines: what differs
    Diff(DiffArgs),
    /// Make the page of a study from its store, with a folder of its tables
    Report(ReportArgs),
    /// What a task of a cluster runs on its node
    #[command(hide = true)]
    Worker(WorkerArgs),
}

/// What makes the trials of a study.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    /// This machine, one trial at a time
    #[default]
    Local,
    /// The nodes of a Slurm cluster, one trial at a time on each
    Slurm,
}

/// How tasks are given to Slurm.
#[derive(Clone, Debug, Default, Args)]
pub struct SlurmArgs {
    /// The partition [default: that of the cluster]
    #[arg(long, value_name = "NAME", help_heading = "Slurm")]
    pub partition: Option<String>,
    /// So many nodes at a time, or these nodes alone, such as n[1-4,7] [default: all of the partition]
    #[arg(long, value_name = "N|LIST", help_heading = "Slurm")]
    pub nodes: Option<String>,
    /// Time limit of a task, as Slurm writes it [default: the partition's]
    #[arg(long, value_name = "TIME", help_heading = "Slurm")]
    pub time: Option<String>,
    /// Leave the tasks in Slurm's hands and return; `study resume` collects. Needs --shared
    #[arg(long, help_heading = "Slurm")]
    pub detach: bool,
    /// Stop, resumable, when for so long no task ran and none ended, or the store was locked, such
    /// as 30m [default: wait; 1m for a locked store]
    #[arg(long, value_name = "TIME", help_heading = "Slurm")]
    pub patience: Option<String>,
}

/// `pinfold study worker`.
#[derive(Debug, Args)]
pub struct WorkerArgs {
    /// The job's document; `-` for standard input
    #[arg(long, value_name = "FILE")]
    pub job: String,
    /// Folder of the results; `-` for standard output
    #[arg(long, value_name = "DIR")]
    pub out: String,
    /// Only look what this node has
    #[arg(long, conflicts_with_all = ["part", "offset"])]
    pub scout: bool,
    /// Number of the part
    #[arg(long, value_name = "N", conflicts_with = "offset")]
    pub part: Option<u32>,
    /// What is added to the index of an array's task to get that number
    #[arg(long, value_name = "N")]
    pub offset: Option<u32>,
    /// Which attempt it is
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub attempt: u32,
    /// This program is a copy for this task alone: remove it
    #[arg(long)]
    pub remove_self: bool,
}

/// `pinfold study export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The store
    #[arg(value_name = "STORE")]
    pub store: String,
    /// Number of the run in the store [default: the last one]
    #[arg(long, value_name = "N")]
    pub run: Option<i64>,
    /// Folder of the files [default: NAME-tables of the study's name]
    #[arg(long, value_name = "DIR")]
    pub out: Option<String>,
}

/// `pinfold study diff`.
#[derive(Debug, Args)]
pub struct DiffArgs {
    /// The first store; with a run other than the last as STORE:N
    #[arg(value_name = "STORE")]
    pub first: String,
    /// The second
    #[arg(value_name = "STORE")]
    pub second: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `pinfold study report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// The store
    #[arg(value_name = "STORE")]
    pub store: String,
    /// Number of the run in the store [default: the last one]
    #[arg(long, value_name = "N")]
    pub run: Option<i64>,
    /// The page [default: NAME.html of the study's name]; the tables go to a folder next to it
    #[arg(long, value_name = "FILE")]
    pub out: Option<String>,
}

/// `pinfold study check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The study file; docs/studies/study-file.md describes it
    #[arg(value_name = "FILE")]
    pub file: String,
    /// The reduced form of its table `quick`
    #[arg(long)]
    pub quick: bool,
    /// List every cell
    #[arg(long)]
    pub cells: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `pinfold study run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The study file
    #[arg(value_name = "FILE")]
    pub file: String,
    /// The reduced form of its table `quick`
    #[arg(long)]
    pub quick: bool,
    /// Where the results go [default: NAME.sqlite of the study's name]
    #[arg(long, value_name = "STORE")]
    pub store: Option<String>,
    /// What makes the trials; docs/scale.md describes `slurm`
    #[arg(long, value_enum, value_name = "ENGINE", default_value_t)]
    pub engine: Engine,
    /// How tasks are given to Slurm.
    #[command(flatten)]
    pub slurm: SlurmArgs,
    /// A folder that all nodes and this host share, under one path: through it go program, study
    /// and results [default: none, they go through `srun`]
    #[arg(long, value_name = "DIR", help_heading = "Slurm")]
    pub shared: Option<String>,
    /// The pinfold on the nodes, if one is there already [default: this program, sent to them]
    #[arg(long, value_name = "PATH", help_heading = "Slurm")]
    pub program: Option<String>,
}

/// `pinfold study resume`.
#[derive(Debug, Args)]
pub struct ResumeArgs {
    /// The store
    #[arg(value_name = "STORE")]
    pub store: String,
    /// The study file, to be compared with the one that the run began with
    #[arg(value_name = "FILE")]
    pub file: Option<String>,
    /// Go on although kernel, topology or command line changed; that is stored and reported
    #[arg(long)]
    pub accept_host_change: bool,
    /// How tasks are given to Slurm, for a run that began on one.
    #[command(flatten)]
    pub slurm: SlurmArgs,
}

/// A run in a store.
#[derive(Debug, Args)]
pub struct StoreArgs {
    /// The store
    #[arg(value_name = "STORE")]
    pub store: String,
    /// Number of the run in the store [default: the last one]
    #[arg(long, value_name = "N")]
    pub run: Option<i64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `pinfold gate`.
#[derive(Debug, Args)]
pub struct GateArgs {
    /// Wait at this socket, and leave the standard input to the command
    #[arg(long, value_name = "PATH")]
    pub socket: Option<String>,
    /// The command
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}
