//! Composes the arguments and scripts for Slurm, and parses its output. Runs nothing.
//!
//! Programs are called with separate arguments, never through a shell; the only shell runs the
//! script of a batch job, which has fixed text and single-quoted words. Only output formats of
//! Slurm that have been stable for twenty years are parsed (`-o` formats, `scontrol -o`), tested
//! with 22.05 and later. Unexpected output is an error that shows it.

use crate::scheduler::{BatchJob, JobRequest, QueuedTask, Rejection, TaskState};

/// Output that Slurm is not expected to print.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{program} printed {line:?}, {why}")]
pub struct BadAnswer {
    /// Name of the program.
    pub program: &'static str,
    /// The line, or its beginning.
    pub line: String,
    /// What is wrong with the line.
    pub why: String,
}

fn bad(program: &'static str, line: &str, why: impl Into<String>) -> BadAnswer {
    BadAnswer { program, line: line.chars().take(120).collect(), why: why.into() }
}

/// An argument on the command line that Slurm would not accept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{option}: {word:?} {why}")]
pub struct InvalidArgument {
    /// Name of the option.
    pub option: &'static str,
    /// The rejected value.
    pub word: String,
    /// Why it is rejected.
    pub why: &'static str,
}

/// Checks the name of a partition.
///
/// # Errors
/// [`InvalidArgument`] if it is invalid.
pub fn partition(word: &str) -> Result<(), InvalidArgument> {
    if !word.is_empty()
        && !word.starts_with('-')
        && word.chars().all(|c: char| c.is_ascii_alphanumeric() || "-_.".contains(c))
    {
        Ok(())
    } else {
        Err(InvalidArgument {
            option: "--partition",
            word: word.to_owned(),
            why: "is not the name of a partition",
        })
    }
}

/// Checks a time limit: minutes, `minutes:seconds`, `hours:minutes:seconds`, `days-hours`, and
/// so on with minutes and seconds.
///
/// # Errors
/// [`InvalidArgument`] for another form.
pub fn check_time_limit(word: &str) -> Result<(), InvalidArgument> {
    let fine = match word.split_once('-') {
        Some((days, rest)) => numbers(days, 1) && numbers(rest, 3),
        None => numbers(word, 3),
    };
    if fine {
        Ok(())
    } else {
        Err(InvalidArgument {
            option: "--time",
            word: word.to_owned(),
            why: "is not a Slurm time: minutes, H:MM:SS or D-HH:MM:SS",
        })
    }
}

fn numbers(text: &str, most: usize) -> bool {
    let parts: Vec<&str> = text.split(':').collect();
    parts.len() <= most
        && parts.iter().all(|part| {
            (1..=9).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit())
        })
}

/// Parses `--nodes`: a number (of nodes at a time), or a list of names.
///
/// # Errors
/// [`InvalidArgument`] for 0 and for an invalid list.
pub fn nodes(word: &str) -> Result<NodeSelection, InvalidArgument> {
    let wrong = |why| InvalidArgument { option: "--nodes", word: word.to_owned(), why };
    if word.bytes().all(|byte| byte.is_ascii_digit()) && !word.is_empty() {
        return match word.parse() {
            Ok(count) if count > 0 => Ok(NodeSelection::AtOnce(count)),
            Ok(_) | Err(_) => Err(wrong("is not a number of nodes")),
        };
    }
    if !word.is_empty()
        && !word.starts_with('-')
        && word.chars().all(|c: char| c.is_ascii_alphanumeric() || "-_.,[]".contains(c))
    {
        Ok(NodeSelection::These(word.to_owned()))
    } else {
        Err(wrong("is neither a number nor a list such as n[1-4,7]"))
    }
}

/// The value of `--nodes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeSelection {
    /// Any nodes, at most this number at a time.
    AtOnce(u32),
    /// Only these nodes.
    These(String),
}

impl JobRequest {
    /// A whole node, exclusively, without requeueing.
    fn words(&self) -> Vec<String> {
        let mut words: Vec<String> =
            ["--nodes=1", "--ntasks=1", "--exclusive", "--mem=0"].map(str::to_owned).to_vec();
        words.push(format!("--job-name={}", self.name));
        words.extend(self.partition.iter().map(|name| format!("--partition={name}")));
        words.extend(self.time.iter().map(|time| format!("--time={time}")));
        if !self.exclude.is_empty() {
            words.push(format!("--exclude={}", self.exclude.join(",")));
        }
        words
    }

    /// Arguments of `sbatch`, which reads the script from standard input; an array if there are
    /// elements.
    pub(super) fn sbatch(&self, batch: &BatchJob<'_>) -> Vec<String> {
        let mut words = vec!["--parsable".to_owned(), "--no-requeue".to_owned()];
        words.extend(self.words());
        let pattern = if batch.array_indices.is_empty() { "%j" } else { "%A_%a" };
        words.push(format!("--output={}/{pattern}.txt", batch.output));
        words.push("--open-mode=append".to_owned());
        // The worker undoes its changes before the time limit kills it.
        words.push("--signal=B:TERM@30".to_owned());
        if !batch.array_indices.is_empty() {
            let most = batch.at_once.map_or_else(String::new, |most| format!("%{most}"));
            words.push(format!("--array={}{most}", array(batch.array_indices)));
        }
        words
    }
}

/// Indexes of an array in Slurm's format: `0-3,7,9-12`.
pub fn array(elements: &[u32]) -> String {
    let mut sorted = elements.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for one in sorted {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(one) => *last = one,
            Some(_) | None => ranges.push((one, one)),
        }
    }
    ranges
        .into_iter()
        .map(
            |(first, last)| {
                if first == last { first.to_string() } else { format!("{first}-{last}") }
            },
        )
        .collect::<Vec<_>>()
        .join(",")
}

/// A word quoted for the shell.
pub fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// The script of a batch job: it executes the program.
pub fn script(words: &[String]) -> String {
    let words: Vec<String> = words.iter().map(|word| quote(word)).collect();
    format!("#!/bin/sh\nexec {}\n", words.join(" "))
}

/// The job id that `sbatch --parsable` prints: `17`, or `17;cluster`.
///
/// # Errors
/// [`BadAnswer`].
pub fn parse_job_id(answer: &str) -> Result<u64, BadAnswer> {
    let line = answer.trim_end_matches('\n').lines().next_back().unwrap_or("");
    let number = line.split(';').next().unwrap_or("");
    match number.parse() {
        Ok(job) if job > 0 => Ok(job),
        Ok(_) | Err(_) => Err(bad("sbatch", line, "which is not a job ID")),
    }
}

/// Arguments of `squeue` for [`queue`].
pub fn squeue_arguments(name: &str) -> Vec<String> {
    let format = "--format=%F|%K|%T|%N|%r";
    let fixed = ["--noheader", "--array", "--states=all", format].map(str::to_owned);
    fixed.into_iter().chain([format!("--name={name}")]).collect()
}

/// Parses the output of `squeue`, one task per line.
///
/// # Errors
/// [`BadAnswer`] with the first malformed line.
pub fn queue(answer: &str) -> Result<Vec<QueuedTask>, BadAnswer> {
    answer.lines().filter(|line| !line.trim().is_empty()).map(queue_line).collect()
}

fn queue_line(line: &str) -> Result<QueuedTask, BadAnswer> {
    let fields: Vec<&str> = line.splitn(5, '|').map(str::trim).collect();
    let [job, element, state, node, reason] = fields[..] else {
        return Err(fail(line, format!("which has {} fields, not 5", fields.len())));
    };
    let number = job.parse().map_err(|_| fail(line, format!("where {job:?} is not a job ID")))?;
    let element = match element {
        "N/A" | "" => None,
        text => {
            Some(text.parse().map_err(|_| fail(line, format!("where {text:?} is not an index")))?)
        }
    };
    let state = match state {
        "PENDING" | "REQUEUED" | "REQUEUE_HOLD" | "REQUEUE_FED" | "SPECIAL_EXIT"
        | "RESV_DEL_HOLD" => TaskState::Pending(reason.to_owned()),
        "RUNNING" | "COMPLETING" | "CONFIGURING" | "RESIZING" | "SIGNALING" | "STAGE_OUT"
        | "STOPPED" | "SUSPENDED" => TaskState::Running,
        "COMPLETED" => TaskState::Completed,
        "FAILED" | "TIMEOUT" | "NODE_FAIL" | "CANCELLED" | "BOOT_FAIL" | "DEADLINE"
        | "OUT_OF_MEMORY" | "PREEMPTED" | "REVOKED" => TaskState::Ended(state.to_owned()),
        other => return Err(fail(line, format!("where {other:?} is not a job state"))),
    };
    Ok(QueuedTask { job: number, element, state, node: node.to_owned() })
}

fn fail(line: &str, why: String) -> BadAnswer {
    bad("squeue", line, why)
}

/// True if this reason for waiting is usual in a busy cluster; otherwise the user must act.
#[must_use]
pub fn waits_as_usual(reason: &str) -> bool {
    matches!(
        reason,
        "" | "None"
            | "Priority"
            | "Resources"
            | "JobArrayTaskLimit"
            | "BeginTime"
            | "Prolog"
            | "Cleaning"
    )
}

/// Description of a state.
pub fn describe_end_state(state: &str, exit_code: Option<&str>) -> String {
    let exit = exit_code.filter(|code| *code != "0:0");
    let text = match state {
        "TIMEOUT" => "the time limit ended it",
        "NODE_FAIL" => "its node failed",
        "CANCELLED" => "it was cancelled",
        "OUT_OF_MEMORY" => "it ran out of memory",
        "PREEMPTED" => "it was preempted",
        "BOOT_FAIL" => "its node did not start",
        "DEADLINE" => "its deadline passed",
        "FAILED" => {
            return match exit.and_then(|code| code.split_once(':')) {
                Some((code, "0")) => format!("exit code {code}"),
                Some((_, signal)) => format!("killed by signal {signal}"),
                None => "it failed".to_owned(),
            };
        }
        other => return format!("it ended as {other}"),
    };
    text.to_owned()
}

/// Fields of `scontrol -o show job`: `ExitCode=7:0`.
pub fn job_field<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    let mut words = answer.split_ascii_whitespace();
    words.find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

/// Limits in the output of `scontrol show config`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// `MaxArraySize`: indexes of arrays are below this.
    pub max_array: u32,
    /// `MaxJobCount`: maximum number of jobs in the controller, of all users.
    pub max_jobs: u32,
    /// Version of Slurm.
    pub version: String,
    /// Name of the cluster.
    pub cluster: String,
}

/// Parses the output of `scontrol show config`.
///
/// # Errors
/// [`BadAnswer`] if a limit is missing or not a number.
pub fn config(answer: &str) -> Result<Config, BadAnswer> {
    Ok(Config {
        max_array: number(answer, "MaxArraySize")?,
        max_jobs: number(answer, "MaxJobCount")?,
        version: field(answer, "SLURM_VERSION")?.to_owned(),
        cluster: field(answer, "ClusterName")?.to_owned(),
    })
}

fn number(answer: &str, name: &str) -> Result<u32, BadAnswer> {
    let text = field(answer, name)?;
    text.parse::<u32>()
        .map_err(|_| bad("scontrol", text, format!("which is not a number for {name}")))
}

fn field<'a>(answer: &'a str, name: &str) -> Result<&'a str, BadAnswer> {
    let value = answer.lines().find_map(|line| {
        let (key, value) = line.split_once('=')?;
        (key.trim() == name).then(|| value.trim())
    });
    value.ok_or_else(|| bad("scontrol", "", format!("where {name} is missing")))
}

/// A node of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeLine {
    /// Name of the node.
    pub name: String,
    /// State: `idle`, `down*`.
    pub state: String,
    /// Name of the partition.
    pub partition: String,
    /// True for the default partition.
    pub is_default: bool,
}

impl NodeLine {
    /// True if it can run jobs, now or after the running ones.
    #[must_use]
    pub fn is_up(&self) -> bool {
        let state = self.state.trim_end_matches(['*', '~', '#', '!', '%', '$', '@', '^', '-', '+']);
        let is_answering = !self.state.contains('*');
        is_answering
            && matches!(
                state,
                "idle"
                    | "allocated"
                    | "mixed"
                    | "completing"
                    | "reserved"
                    | "planned"
                    | "power_saved"
            )
    }
}

/// Arguments of `sinfo` for [`node_lines`].
pub const SINFO_ARGUMENTS: [&str; 3] = ["--noheader", "--Node", "--format=%N|%T|%P"];

/// Parses the output of `sinfo`, one line for each node and partition.
///
/// # Errors
/// [`BadAnswer`].
pub fn node_lines(answer: &str) -> Result<Vec<NodeLine>, BadAnswer> {
    fn line(line: &str) -> Result<NodeLine, BadAnswer> {
        let fields: Vec<&str> = line.split('|').map(str::trim).collect();
        let [name, state, partition] = fields[..] else {
            return Err(bad("sinfo", line, format!("which has {} fields, not 3", fields.len())));
        };
        if name.is_empty() || partition.is_empty() {
            return Err(bad("sinfo", line, "where a name is empty"));
        }
        Ok(NodeLine {
            name: name.to_owned(),
            state: state.to_owned(),
            partition: partition.trim_end_matches('*').to_owned(),
            is_default: partition.ends_with('*'),
        })
    }

    answer.lines().filter(|line| !line.trim().is_empty()).map(line).collect()
}

/// The nodes of a partition (the default one without a name): those that may be used, and those to
/// exclude because they are not among `these`.
///
/// # Errors
/// A message on what is missing, with a hint.
pub fn choose(
    lines: &[NodeLine],
    partition: Option<&str>,
    these: Option<&[String]>,
) -> Result<(Vec<NodeLine>, Vec<String>), (String, String)> {
    let all: Vec<NodeLine> = lines
        .iter()
        .filter(|line: &&NodeLine| match partition {
            Some(name) => line.partition == name,
            None => line.is_default,
        })
        .cloned()
        .collect();
    let mut partitions: Vec<&str> = lines.iter().map(|line| line.partition.as_str()).collect();
    partitions.sort_unstable();
    partitions.dedup();
    let there = partitions.join(", ");
    if all.is_empty() {
        return Err(match partition {
            Some(name) => (
                format!("there is no partition {name:?}"),
                format!("name one with --partition: {there}"),
            ),
            None => (
                "the cluster has no default partition".to_owned(),
                format!("name one with --partition: {there}"),
            ),
        });
    }
    let Some(these) = these else { return Ok((all, Vec::new())) };
    if let Some(strange) = these.iter().find(|name| !all.iter().any(|line| line.name == **name)) {
        let names: Vec<&str> = all.iter().map(|line| line.name.as_str()).collect();
        let name = &all[0].partition;
        return Err((
            format!("the partition {name} has no node {strange:?}"),
            format!("its nodes are {}", names.join(", ")),
        ));
    }
    let (used, excluded): (Vec<NodeLine>, Vec<NodeLine>) =
        all.into_iter().partition(|line| these.contains(&line.name));
    Ok((used, excluded.into_iter().map(|line| line.name).collect()))
}

/// The error message of a Slurm program, and a hint.
pub fn explain_error(program: &str, said: &str) -> (String, Option<&'static str>) {
    if has(said, "Munge encode failed")
        || has(said, "auth/munge")
        || has(said, "Protocol authentication error")
    {
        let hint =
            "start munged on this host (`systemctl start munge`), with the key of the cluster";
        return (format!("{program} cannot authenticate: munge does not answer"), Some(hint));
    }
    if has(said, "Unable to contact slurm controller")
        || has(said, "Unable to establish controller machine")
    {
        let hint =
            "is slurmctld running, and SLURM_CONF or /etc/slurm/slurm.conf that of the cluster?";
        return (format!("{program} cannot reach the Slurm controller"), Some(hint));
    }
    let hint = if has(said, "Invalid partition name") {
        Some("`sinfo` lists the partitions; name one with --partition")
    } else if has(said, "node configuration is not available") {
        Some("no permitted node has what a task needs: see --nodes and --partition")
    } else if has(said, "time limit") || has(said, "TimeLimit") {
        Some("`scontrol show partition` shows the longest time; use a shorter --time")
    } else if has(said, "Invalid job array specification") {
        Some("`scontrol show config` shows MaxArraySize; where it is 0 there are no arrays")
    } else if has(said, "QOS") || has(said, "Access") || has(said, "account") {
        Some("your account is not permitted to do this; ask the administrators of the cluster")
    } else {
        None
    };
    let prefix = format!("{program}: ");
    let lines = said.lines().map(|line| line.trim().trim_start_matches(&prefix));
    let mut lines = lines.map(|line| line.trim_start_matches("error: "));
    let last = lines.rfind(|line| !line.is_empty()).unwrap_or("it failed");
    // The limit that caused the rejection is in a line of its own.
    let limit = lines.rfind(|line| names_a_limit(line));
    let limit = limit.map_or_else(String::new, |limit| format!(" ({limit})"));
    (format!("{program}: {last}{limit}"), hint)
}

fn has(said: &str, text: &str) -> bool {
    said.contains(text)
}

/// The reason in the output of `sbatch` when it accepted no task; `None` if neither fewer
/// nor later tasks would help. Only its own lines count, not those of a task.
pub fn not_taken(said: &str) -> Option<Rejection> {
    fn has(own: &[&str], text: &str) -> bool {
        own.iter().any(|line| line.contains(text))
    }

    let own: Vec<&str> =
        said.lines().map(str::trim).filter(|line| line.starts_with("sbatch: ")).collect();
    let mut words = own.iter().flat_map(|line| line.split(|c: char| !c.is_ascii_alphanumeric()));
    match words.find(|word| names_a_limit(word)) {
        Some(limit) if limit.contains("SubmitJob") => Some(Rejection::NoRoom),
        Some(_) => None,
        None if has(&own, "Invalid job array specification") => Some(Rejection::ArrayTooLarge),
        None if has(&own, "job submit limit") => Some(Rejection::Unnamed),
        None if has(&own, "Resource temporarily unavailable")
            || own.iter().any(|one| waits(one)) =>
        {
            Some(Rejection::NoRoom)
        }
        None => None,
    }
}

/// `AssocMaxSubmitJobLimit`, `QOSMaxWallDurationPerJobLimit`, `MaxSubmitJobsPerAccount`.
fn names_a_limit(word: &str) -> bool {
    ["AssocMax", "AssocGrp", "QOSMax", "QOSMin", "QOSGrp", "MaxSubmitJobs"]
        .iter()
        .any(|begin| word.starts_with(begin))
}

/// True if `sbatch` itself waits to retry, for two minutes in total.
pub fn is_sbatch_retrying(said: &str) -> bool {
    said.lines().any(|line| line.trim().starts_with("sbatch: ") && waits(line))
}

fn waits(line: &str) -> bool {
    let not_reached = line.contains("controller not responding");
    !not_reached && (line.contains("sleeping and retrying") || line.contains("disabled, retrying"))
}

/// The last output line of a task, without the messages that Slurm prints for every task.
#[must_use]
pub fn last_message(said: &str) -> Option<&str> {
    let own = said
        .lines()
        .map(str::trim)
        .rfind(|line: &&str| !line.is_empty() && !line.starts_with("slurmstepd"));
    own.or_else(|| said.lines().map(str::trim).rfind(|line| !line.is_empty()))
}

#[cfg(test)]
mod tests;
