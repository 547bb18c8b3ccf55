//! Arguments of `pinfold study`.

use clap::{Args, Subcommand, ValueEnum};
use pinfold_study::study::{PresetSelection, QUICK};

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
    /// Read a study file and print its cells, trials and predicted time, without running it
    Check(CheckArgs),
    /// Run a study; each trial is stored when it ends
    Run(RunArgs),
    /// Continue an interrupted study
    Resume(ResumeArgs),
    /// Show the progress of a study, and failed trials
    Status(StoreArgs),
    /// Write all tables as CSV (and Parquet, if built with that feature): cells, trials, raw
    /// samples, estimates, report tables
    Export(ExportArgs),
    /// Compare two runs of a study, or one study on two machines
    Diff(DiffArgs),
    /// Write the page of a study from its store, with a directory of its tables
    Report(ReportArgs),
    /// Run one task of a cluster on its node
    #[command(hide = true)]
    Worker(WorkerArgs),
}

/// What runs the trials of a study.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    /// Run on this machine, one trial at a time
    #[default]
    Local,
    /// Run on the nodes of a Slurm cluster, one trial at a time on each
    Slurm,
}

/// How tasks are submitted to Slurm.
#[derive(Clone, Debug, Default, Args)]
pub struct SlurmArgs {
    /// Use this partition [default: that of the cluster]
    #[arg(long, value_name = "NAME", help_heading = "Slurm")]
    pub partition: Option<String>,
    /// Use this number of nodes at a time, or a list such as n[1-4,7] [default: all of the
    /// partition]
    #[arg(long, value_name = "N|LIST", help_heading = "Slurm")]
    pub nodes: Option<String>,
    /// Limit the time of a task, in Slurm's format [default: that of the partition]
    #[arg(long, value_name = "TIME", help_heading = "Slurm")]
    pub time: Option<String>,
    /// Submit the tasks and return; `study resume` collects the results
    #[arg(long, help_heading = "Slurm")]
    pub detach: bool,
    /// Stop (resumable) if no task ran or ended, or the store was locked, for this long, such as
    /// 30m [default: wait; 1m for a locked store]
    #[arg(long, value_name = "TIME", help_heading = "Slurm")]
    pub patience: Option<String>,
}

/// `pinfold study worker`.
#[derive(Debug, Args)]
pub struct WorkerArgs {
    /// The job's document
    #[arg(long, value_name = "FILE")]
    pub job: String,
    /// Directory of the results
    #[arg(long, value_name = "DIR")]
    pub out: String,
    /// Only report what this node has
    #[arg(long, conflicts_with = "offset")]
    pub scout: bool,
    /// Add this to the index of an array task to get the number of the part
    #[arg(long, value_name = "N")]
    pub offset: Option<u32>,
    /// Number of the attempt
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub attempt: u32,
}

/// `pinfold study export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// Read this store
    #[arg(value_name = "STORE")]
    pub store: String,
    /// Select the run with this number [default: the last one]
    #[arg(long, value_name = "N")]
    pub run: Option<i64>,
    /// Write the files to DIR [default: NAME-tables, with the name of the study]
    #[arg(long, value_name = "DIR")]
    pub out: Option<String>,
}

/// `pinfold study diff`.
#[derive(Debug, Args)]
pub struct DiffArgs {
    /// Compare this store; STORE:N selects a run other than the last
    #[arg(value_name = "STORE")]
    pub first: String,
    /// Compare it with this store
    #[arg(value_name = "STORE")]
    pub second: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `pinfold study report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Read this store
    #[arg(value_name = "STORE")]
    pub store: String,
    /// Select the run with this number [default: the last one]
    #[arg(long, value_name = "N")]
    pub run: Option<i64>,
    /// Use statements, charts, tables and published values of this file, a later version of the study
    /// file that measures the same
    #[arg(long, value_name = "FILE")]
    pub study: Option<String>,
    /// Write the page to FILE [default: NAME.html, with the name of the study]; the tables are
    /// written to a directory next to it. With the extension md: Markdown, with charts as SVG files
    #[arg(long, value_name = "FILE")]
    pub out: Option<String>,
}

/// The form of a study.
#[derive(Clone, Debug, Default, Args)]
pub struct FormArgs {
    /// Use the reduced form that the table `quick` of the file defines
    #[arg(long, conflicts_with = "preset")]
    quick: bool,
    /// Use the form that the table `preset.NAME` of the file defines, such as evening
    #[arg(long, value_name = "NAME")]
    preset: Option<String>,
}

impl FormArgs {
    /// The form.
    pub fn form(&self) -> PresetSelection {
        PresetSelection::from_preset(self.preset.as_deref().or(self.quick.then_some(QUICK)))
    }
}

/// `pinfold study check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Read the study from this file, see docs/studies/study-file.md
    #[arg(value_name = "FILE")]
    pub file: String,
    /// The form of the study.
    #[command(flatten)]
    pub form: FormArgs,
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
    /// Read the study from this file
    #[arg(value_name = "FILE")]
    pub file: String,
    /// The form of the study.
    #[command(flatten)]
    pub form: FormArgs,
    /// Store the results in STORE [default: NAME.sqlite, where NAME is the study's name]
    #[arg(long, value_name = "STORE")]
    pub store: Option<String>,
    /// Run the trials on this engine; for `slurm` see docs/scale.md
    #[arg(long, value_enum, value_name = "ENGINE", default_value_t)]
    pub engine: Engine,
    /// How tasks are submitted to Slurm.
    #[command(flatten)]
    pub slurm: SlurmArgs,
    /// Keep program, study and results in this directory, which all nodes and this host share under
    /// the same path; required by `slurm`
    #[arg(long, value_name = "DIR", help_heading = "Slurm")]
    pub shared: Option<String>,
    /// Run pinfold from this path on the nodes [default: this program, copied to the shared
    /// directory]
    #[arg(long, value_name = "PATH", help_heading = "Slurm")]
    pub program: Option<String>,
}

/// `pinfold study resume`.
#[derive(Debug, Args)]
pub struct ResumeArgs {
    /// Continue the run in this store
    #[arg(value_name = "STORE")]
    pub store: String,
    /// Check that this study file is the one that the run began with
    #[arg(value_name = "FILE")]
    pub file: Option<String>,
    /// Continue although kernel, topology or command line changed; stored and reported
    #[arg(long)]
    pub accept_host_change: bool,
    /// How tasks are submitted to Slurm, for a run that began on one.
    #[command(flatten)]
    pub slurm: SlurmArgs,
}

/// A run in a store.
#[derive(Debug, Args)]
pub struct StoreArgs {
    /// Read this store
    #[arg(value_name = "STORE")]
    pub store: String,
    /// Select the run with this number [default: the last one]
    #[arg(long, value_name = "N")]
    pub run: Option<i64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `pinfold gate`.
#[derive(Debug, Args)]
pub struct GateArgs {
    /// Wait at this socket, and leave standard input to the command
    #[arg(long, value_name = "PATH")]
    pub socket: Option<String>,
    /// The command
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}
