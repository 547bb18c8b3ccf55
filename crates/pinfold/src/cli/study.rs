//! What may be typed after `pinfold study`.

use clap::{Args, Subcommand};

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
    /// Read a study file, and tell its cells, trials and predicted time; nothing runs
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
    /// Make the page of a study from its store alone, with its tables beside it
    Report(ReportArgs),
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
    /// The page [default: NAME.html of the study's name]; the tables go to a folder beside it
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
    /// Go on although kernel, topology or command line changed; that is stored and told
    #[arg(long)]
    pub accept_host_change: bool,
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
    /// The command
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}
