//! Slurm: runs its programs; [`protocol`] composes their arguments and parses their output.

pub mod protocol;
mod task;

use pinfold_host::process::{Output, Spawn, capture, find_program};
use pinfold_run::{Exit, Failure};

use self::protocol::{BadAnswer, InvalidArgument, NodeSelection, SINFO_ARGUMENTS};
use crate::child_input::run_with_input;
use crate::documents::Options;
use crate::scheduler::{
    BatchJob, ClusterOffer, JobRequest, Kind, OfferedNode, QueuedTask, Rejection, Scheduler,
};

/// Timeout of a command; only a controller with problems takes longer.
const ANSWER_NS: u64 = 120_000_000_000;

/// Slurm among the batch systems.
pub const KIND: Kind = Kind {
    name: "slurm",
    check,
    find: || Ok(Box::new(Slurm::find()?)),
    is_here: task::is_here,
    task: task::environment,
    array_index: task::array_index,
};

/// The programs, by path.
struct Slurm {
    sbatch: String,
    squeue: String,
    scancel: String,
    scontrol: String,
    sinfo: String,
}

/// Checks the options that are passed on to Slurm.
fn check(options: &Options) -> Result<(), Failure> {
    if let Some(name) = &options.partition {
        protocol::partition(name).map_err(|error| bad_word(&error))?;
    }
    if let Some(limit) = &options.time {
        protocol::check_time_limit(limit).map_err(|error| bad_word(&error))?;
    }
    if let Some(nodes) = &options.nodes {
        protocol::nodes(nodes).map_err(|error| bad_word(&error))?;
    }
    Ok(())
}

/// The failure for malformed output of Slurm.
fn bad_answer(error: &BadAnswer) -> Failure {
    Failure::new(Exit::Host, error.to_string())
        .with_hint("Pinfold was tested with Slurm 22.05; run the program by hand to see more")
}

/// The failure for an argument that Slurm would not accept.
fn bad_word(error: &InvalidArgument) -> Failure {
    Failure::new(Exit::Input, error.to_string())
}

impl Slurm {
    /// Finds the programs on this host.
    fn find() -> Result<Self, Failure> {
        Ok(Self {
            sbatch: program("sbatch")?,
            squeue: program("squeue")?,
            scancel: program("scancel")?,
            scontrol: program("scontrol")?,
            sinfo: program("sinfo")?,
        })
    }

    fn ask(&self, name: &str, program: &str, words: &[String]) -> Result<String, Failure> {
        check_output(name, &capture(program, words, ANSWER_NS)?)
    }

    /// The exit code, such as `7:0`, while Slurm knows it.
    fn exit_code(&self, job: &str) -> Option<String> {
        let words = ["-o", "show", "job", job].map(str::to_owned);
        let answer = self.ask("scontrol", &self.scontrol, &words).ok()?;
        protocol::job_field(&answer, "ExitCode").map(str::to_owned)
    }
}

fn program(name: &str) -> Result<String, Failure> {
    find_program(name).ok_or_else(|| {
        Failure::new(Exit::Host, format!("there is no Slurm here: {name} is not in PATH"))
            .with_hint(
                "run it where jobs are submitted, install slurm-client, or omit --engine \
                         slurm",
            )
    })
}

fn check_output(name: &str, output: &Output) -> Result<String, Failure> {
    if output.status.success() {
        return Ok(output.stdout_text());
    }
    let (message, hint) = protocol::explain_error(name, &output.stderr_text());
    let failure = Failure::new(Exit::Host, message);
    Err(match hint {
        Some(hint) => failure.with_hint(hint),
        None => failure,
    })
}

impl Scheduler for Slurm {
    fn name(&self) -> &'static str {
        "Slurm"
    }

    fn offer(&self, options: &Options) -> Result<ClusterOffer, Failure> {
        let words = ["show", "config"].map(str::to_owned);
        let answer = self.ask("scontrol", &self.scontrol, &words)?;
        let config = protocol::config(&answer).map_err(|error| bad_answer(&error))?;
        let words = SINFO_ARGUMENTS.map(str::to_owned);
        let answer = self.ask("sinfo", &self.sinfo, &words)?;
        let lines = protocol::node_lines(&answer).map_err(|error| bad_answer(&error))?;
        let node_selection = options.nodes.as_deref().map(protocol::nodes).transpose();
        let (these, at_once) = match node_selection.map_err(|error| bad_word(&error))? {
            None => (None, None),
            Some(NodeSelection::AtOnce(most)) => (None, Some(most)),
            Some(NodeSelection::These(list)) => {
                let words = ["show", "hostnames", list.as_str()].map(str::to_owned);
                let answer = self.ask("scontrol", &self.scontrol, &words)?;
                let names = answer.lines().map(str::trim).filter(|name| !name.is_empty());
                (Some(names.map(str::to_owned).collect::<Vec<_>>()), None)
            }
        };
        let chosen = protocol::choose(&lines, options.partition.as_deref(), these.as_deref());
        let (nodes, excluded) =
            chosen.map_err(|(what, hint)| Failure::new(Exit::Input, what).with_hint(hint))?;
        Ok(ClusterOffer {
            cluster: format!("Slurm {} of cluster {}", config.version, config.cluster),
            nodes: nodes
                .into_iter()
                .map(|line| OfferedNode { is_up: line.is_up(), name: line.name, state: line.state })
                .collect(),
            excluded,
            at_once,
            max_array: config.max_array,
            max_jobs: config.max_jobs,
        })
    }

    /// If `sbatch` would itself wait for up to two minutes for room, it is ended, because results
    /// would not be collected meanwhile; the collector retries.
    fn submit(&self, request: &JobRequest, batch: &BatchJob<'_>) -> Result<u64, Failure> {
        let spawn = Spawn::new(&self.sbatch).args(request.sbatch(batch));
        let script = protocol::script(batch.program);
        let output = run_with_input(spawn, script.as_bytes(), &protocol::is_sbatch_retrying)?;
        let answer = check_output("sbatch", &output)?;
        protocol::parse_job_id(&answer).map_err(|error| bad_answer(&error))
    }

    fn queue(&self, name: &str) -> Result<Vec<QueuedTask>, Failure> {
        let answer = self.ask("squeue", &self.squeue, &protocol::squeue_arguments(name))?;
        protocol::queue(&answer).map_err(|error| bad_answer(&error))
    }

    fn describe_end(&self, state: &str, job: &str) -> String {
        protocol::describe_end_state(state, self.exit_code(job).as_deref())
    }

    fn last_message(&self, output: &str) -> Option<String> {
        let marks = ["pinfold: ", "error: "];
        let own = output
            .lines()
            .rev()
            .find_map(|line| marks.iter().find_map(|mark| line.trim().strip_prefix(mark)));
        own.or_else(|| protocol::last_message(output)).map(|line| line.chars().take(300).collect())
    }

    fn classify_rejection(&self, message: &str) -> Option<Rejection> {
        protocol::not_taken(message)
    }

    fn is_usual_pending_reason(&self, reason: &str) -> bool {
        protocol::waits_as_usual(reason)
    }

    fn node_command(&self) -> &'static str {
        "sinfo -R"
    }

    fn cancel_job(&self, job: u64) -> Result<(), Failure> {
        let words = ["--quiet".to_owned(), job.to_string()];
        self.ask("scancel", &self.scancel, &words).map(drop)
    }

    fn cancel(&self, name: &str) -> Result<(), Failure> {
        let words = [format!("--name={name}"), "--quiet".to_owned()];
        self.ask("scancel", &self.scancel, &words).map(drop)
    }
}
