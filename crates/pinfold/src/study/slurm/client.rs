//! Runs the programs of Slurm; `pinfold-study` parses their output.

use std::io::Write as _;

use pinfold_cluster::scheduler::QueuedTask;
use pinfold_cluster::slurm::{
    BadAnswer, Config, NODE_WORDS, NodeLine, NodeWish, Wish, choose, complaint, config, job_field,
    last_words, node_lines, nodes, queue, queue_words, submitted, will_ask_again,
};
use pinfold_host::process::{self, Output, Signaled, Spawn, Stdio, capture, find_program};
use pinfold_run::{Exit, Failure};

/// Timeout of a command; only a controller with problems takes longer.
const ANSWER_NS: u64 = 120_000_000_000;

/// The programs, by path.
pub struct Slurm {
    sbatch: String,
    srun: String,
    squeue: String,
    scancel: String,
    scontrol: String,
    sinfo: String,
}

/// What a cluster offers for a study.
pub struct Offer {
    pub config: Config,
    /// The nodes that may be used.
    pub nodes: Vec<NodeLine>,
    /// The nodes of the partition that are excluded.
    pub excluded: Vec<String>,
    /// Maximum number of nodes at a time.
    pub at_once: Option<u32>,
}

/// The failure for malformed output of Slurm.
pub fn bad_answer(error: &BadAnswer) -> Failure {
    Failure::new(Exit::Host, error.to_string())
        .with_hint("this Pinfold was tried with Slurm 22.05; run the program by hand to see more")
}

impl Slurm {
    /// Finds the programs on this host.
    pub fn find() -> Result<Self, Failure> {
        let program = |name: &str| {
            find_program(name).ok_or_else(|| {
                Failure::new(Exit::Host, format!("there is no Slurm here: {name} is not in PATH"))
                    .with_hint(
                        "run it where jobs are submitted, install slurm-client, or leave \
                         --engine slurm out",
                    )
            })
        };
        Ok(Self {
            sbatch: program("sbatch")?,
            srun: program("srun")?,
            squeue: program("squeue")?,
            scancel: program("scancel")?,
            scontrol: program("scontrol")?,
            sinfo: program("sinfo")?,
        })
    }

    /// The path of `srun`.
    pub fn srun(&self) -> &str {
        &self.srun
    }

    fn ask(&self, (name, program): (&str, &str), words: &[String]) -> Result<String, Failure> {
        let output = capture(program, words, ANSWER_NS)?;
        checked(name, &output)
    }

    /// What the cluster offers.
    pub fn offer(&self, partition: Option<&str>, wish: Option<&str>) -> Result<Offer, Failure> {
        let words = ["show", "config"].map(str::to_owned);
        let answer = self.ask(("scontrol", &self.scontrol), &words)?;
        let config = config(&answer).map_err(|error| bad_answer(&error))?;
        let words = NODE_WORDS.map(str::to_owned);
        let answer = self.ask(("sinfo", &self.sinfo), &words)?;
        let lines = node_lines(&answer).map_err(|error| bad_answer(&error))?;
        let wish = wish.map(nodes).transpose().map_err(|error| bad_word(&error))?;
        let (these, at_once) = match wish {
            None => (None, None),
            Some(NodeWish::AtOnce(most)) => (None, Some(most)),
            Some(NodeWish::These(list)) => {
                let words = ["show", "hostnames", list.as_str()].map(str::to_owned);
                let answer = self.ask(("scontrol", &self.scontrol), &words)?;
                let names = answer.lines().map(str::trim).filter(|name| !name.is_empty());
                (Some(names.map(str::to_owned).collect::<Vec<_>>()), None)
            }
        };
        let (nodes, excluded) = choose(&lines, partition, these.as_deref())
            .map_err(|(what, hint)| Failure::new(Exit::Input, what).with_hint(hint))?;
        Ok(Offer { config, nodes, excluded, at_once })
    }

    /// Submits a batch job and returns its id. If `sbatch` would itself wait for up to two minutes
    /// for room, it is ended, because results would not be collected meanwhile; the collector
    /// retries.
    pub fn sbatch(
        &self,
        wish: &Wish,
        (output, script): (&str, &str),
        array: (&[u32], Option<u32>),
    ) -> Result<u64, Failure> {
        let spawn = Spawn::new(&self.sbatch).args(wish.sbatch(output, array));
        let output = fed(spawn, script.as_bytes(), &will_ask_again)?;
        let answer = checked("sbatch", &output)?;
        submitted(&answer).map_err(|error| bad_answer(&error))
    }

    /// The tasks with this name that Slurm knows.
    pub fn queue(&self, name: &str) -> Result<Vec<QueuedTask>, Failure> {
        let answer = self.ask(("squeue", &self.squeue), &queue_words(name))?;
        queue(&answer).map_err(|error| bad_answer(&error))
    }

    /// The exit code, such as `7:0`, while Slurm knows it.
    pub fn exit_code(&self, job: &str) -> Option<String> {
        let words = ["-o", "show", "job", job].map(str::to_owned);
        let answer = self.ask(("scontrol", &self.scontrol), &words).ok()?;
        job_field(&answer, "ExitCode").map(str::to_owned)
    }

    /// Cancels one job, with all tasks of its array.
    pub fn cancel_job(&self, job: u64) -> Result<(), Failure> {
        let words = ["--quiet".to_owned(), job.to_string()];
        self.ask(("scancel", &self.scancel), &words).map(drop)
    }

    /// Cancels all jobs with this name.
    pub fn cancel(&self, name: &str) -> Result<(), Failure> {
        let words = [format!("--name={name}"), "--quiet".to_owned()];
        self.ask(("scancel", &self.scancel), &words).map(drop)
    }
}

/// The failure for an argument that Slurm would not accept.
pub fn bad_word(error: &pinfold_cluster::slurm::BadWord) -> Failure {
    Failure::new(Exit::Input, error.to_string())
}

fn checked(name: &str, output: &Output) -> Result<String, Failure> {
    if output.status.success() {
        return Ok(output.stdout_text());
    }
    let (message, hint) = complaint(name, &output.stderr_text());
    let failure = Failure::new(Exit::Host, message);
    Err(match hint {
        Some(hint) => failure.with_hint(hint),
        None => failure,
    })
}

/// Runs a program with this standard input; Slurm itself ends it if needed. It is ended early when
/// `enough` is true for its standard error.
pub fn fed(
    spawn: Spawn,
    input: &[u8],
    is_enough: &(dyn Fn(&str) -> bool + Sync),
) -> Result<Output, Failure> {
    let failed =
        |error: std::io::Error| Failure::new(Exit::Host, format!("cannot talk to it: {error}"));
    let mut child = spawn
        .env("LC_ALL", "C")
        .stdin(Stdio::Pipe)
        .stdout(Stdio::Pipe)
        .stderr(Stdio::Pipe)
        .own_group()
        .start()?;
    let (stdin, stdout, stderr) = (child.stdin(), child.stdout(), child.stderr());
    let pid = child.pid();
    let gathered = std::thread::scope(|scope| {
        let written = scope.spawn(move || {
            let Some(mut pipe) = stdin else { return };
            // If the program does not read all of its input, its output has the reason.
            match pipe.write_all(input) {
                Ok(()) | Err(_) => {}
            }
        });
        let errors = scope.spawn(move || {
            gather(stderr, &mut |so_far| {
                if is_enough(&String::from_utf8_lossy(so_far)) {
                    // It may have ended by itself; it was not waited for yet.
                    match process::signal(pid, Signaled::Kill) {
                        Ok(()) | Err(_) => {}
                    }
                }
            })
        });
        let out = gather(stdout, &mut |_| {});
        let broken = |_| std::io::Error::other("a thread broke");
        let errors = errors.join().map_err(broken)?;
        written.join().map_err(broken)?;
        Ok((out?, errors?))
    });
    let (stdout, stderr) = gathered.map_err(failed)?;
    let status = child.wait()?;
    Ok(Output { status, stdout, stderr })
}

/// Reads to the end, and passes on the data so far at each read.
fn gather(
    stream: Option<impl std::io::Read>,
    received: &mut dyn FnMut(&[u8]),
) -> std::io::Result<Vec<u8>> {
    let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
    let Some(mut stream) = stream else { return Ok(bytes) };
    loop {
        match stream.read(&mut piece) {
            Ok(0) => return Ok(bytes),
            Ok(count) => {
                bytes.extend_from_slice(&piece[..count]);
                received(&bytes);
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// The last message of a task: Pinfold's own if there is one.
pub fn said(text: &str) -> Option<String> {
    let marks = ["pinfold: ", "error: "];
    let own = text
        .lines()
        .rev()
        .find_map(|line| marks.iter().find_map(|mark| line.trim().strip_prefix(mark)));
    own.or_else(|| last_words(text)).map(|line| line.chars().take(300).collect())
}
