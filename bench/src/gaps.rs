//! `gaps`: whether `pinfold measure gaps` names the cause of gaps that are made on purpose, and how
//! long it says that they are.
//!
//! The subject spins on a CPU and records each time for which it did not run: the reference. A
//! culprit records when it was at work (`rivals/culprits.c`). A gap counts if at least 60 % of it
//! is the work of the culprit by these two records alone; what else disturbed the CPU does not.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::thread;

use pinfold_host::process::{self, Child, Spawn, Stdio};
use pinfold_host::{
    Clock as _, Host as _, HostMut as _, LiveHost, SystemClock, files, mountinfo, paths, proc_stat,
};
use pinfold_model::{PuId, Role, TaskId, Tid};
use pinfold_probe::gaps::{self, Cause, Gap, GapWatch};
use pinfold_stats::random::Pcg32;
use pinfold_stats::{median, quantile};
use pinfold_vm::hypervisors;

use crate::arguments::{Arguments, Failure};
use crate::origin;
use crate::page::{Figures, Table};
use crate::scratch::Scratch;

const SOURCE: &str = include_str!("../rivals/culprits.c");
/// Rounds, and gaps of each culprit in a round: 240 gaps of 15 culprits.
const ROUNDS: u32 = 4;
const IN_ROUND: usize = 4;
/// Attempts for one gap, as other tasks may spoil some.
const ATTEMPTS: usize = 2;
const OVER_NS: u64 = 200_000;
const GROUP: &str = "pinfold-bench-gaps";
const COMPILES_NS: u64 = 120_000_000_000;
/// A quota of 20 ms in 100 ms: its gaps are longer than this.
const QUOTA_GAP_NS: u64 = 40_000_000;

/// A way to make gaps.
#[derive(Clone, Copy)]
struct Culprit {
    /// Its name in `culprits.c`.
    kind: &'static str,
    /// What it is, in the table.
    what: &'static str,
    /// The controller of the cgroup that it needs.
    controller: Option<&'static str>,
    is_it: fn(&Cause, &Block) -> bool,
}

const CULPRITS: [Culprit; 15] = [
    Culprit {
        kind: "fifo",
        what: "real-time task (fifo:50)",
        controller: None,
        is_it: |cause, block| matches!(cause, Cause::Thread { tid, policy, .. } if *tid == block.culprit && policy == "fifo:50"),
    },
    Culprit {
        kind: "fair",
        what: "fair task",
        controller: None,
        is_it: |cause, block| matches!(cause, Cause::Thread { tid, policy, .. } if *tid == block.culprit && policy == "other, nice -20"),
    },
    Culprit {
        kind: "cgroup",
        what: "fair task in another cgroup, by its group",
        controller: Some("cpu"),
        is_it: |cause, block| matches!(cause, Cause::Thread { tid, cgroup: Some(group), .. } if *tid == block.culprit && group.ends_with(GROUP)),
    },
    Culprit {
        kind: "own",
        what: "thread of its own process",
        controller: None,
        is_it: |cause, block| matches!(cause, Cause::Thread { tid, is_own: true, .. } if *tid == block.culprit),
    },
    Culprit {
        kind: "machine",
        what: "vCPU of another machine (QEMU, TCG), by its name",
        controller: None,
        is_it: |cause, block| matches!(cause, Cause::Thread { tid, machine: Some(name), .. } if *tid == block.culprit && name == "gap-machine"),
    },
    Culprit {
        kind: "timer",
        what: "local timer: 3,000 timers that expire together",
        controller: None,
        is_it: |cause, _| matches!(cause, Cause::Processor { name, function: Some(function) } if name == "local timer" && function == "timerfd_tmrproc"),
    },
    Culprit {
        kind: "ipi",
        what: "function call IPI: perf events scheduled from another CPU",
        controller: None,
        is_it: |cause, _| matches!(cause, Cause::Processor { name, .. } if name.starts_with("function call")),
    },
    Culprit {
        kind: "softirq",
        what: "softirq NET_RX: veth with RPS",
        controller: None,
        is_it: |cause, _| matches!(cause, Cause::Softirq { name, .. } if name == "NET_RX"),
    },
    Culprit {
        kind: "stop",
        what: "SIGSTOP",
        controller: None,
        is_it: |cause, _| *cause == Cause::Stopped,
    },
    Culprit {
        kind: "freezer",
        what: "freezer of cgroup v1",
        controller: Some("freezer"),
        is_it: |cause, _| *cause == Cause::Stopped,
    },
    Culprit {
        kind: "blocked",
        what: "uninterruptible sleep: vfork",
        controller: None,
        is_it: |cause, _| matches!(cause, Cause::Blocked { .. }),
    },
    Culprit {
        kind: "exit",
        what: "exit of a vCPU under KVM, handled in user space",
        controller: None,
        is_it: |cause, _| matches!(cause, Cause::Exit { reason: Some(reason), is_kernel: false } if reason == "IO"),
    },
    Culprit {
        kind: "await",
        what: "vCPU under KVM that waits for a thread of its process",
        controller: None,
        is_it: |cause, block| matches!(cause, Cause::Awaited { task: Some(task), is_own: true, .. } if *task == format!("answer ({})", block.culprit)),
    },
    Culprit {
        kind: "quota",
        what: "quota of its group",
        controller: Some("cpu"),
        is_it: |cause, block| matches!(cause, Cause::Quota { group, .. } if *group == block.directory),
    },
    Culprit {
        kind: "parent-quota",
        what: "quota of the group above",
        controller: Some("cpu"),
        is_it: |cause, block| matches!(cause, Cause::Quota { group, .. } if *group == block.directory),
    },
];

/// A time (`CLOCK_MONOTONIC`, ns).
#[derive(Clone, Copy)]
struct Span {
    from_ns: u64,
    until_ns: u64,
}

impl Span {
    fn length_ns(self) -> u64 {
        self.until_ns.saturating_sub(self.from_ns)
    }

    fn common_ns(self, other: Span) -> u64 {
        self.until_ns.min(other.until_ns).saturating_sub(self.from_ns.max(other.from_ns))
    }
}

/// What one run of a culprit gave.
struct Block {
    directory: String,
    culprit: u32,
    reference: Vec<Span>,
    acts: Vec<Span>,
    found: Vec<(Span, Gap)>,
    lost: Vec<String>,
}

/// What became of the gaps of a culprit.
#[derive(Default)]
struct Score {
    right: usize,
    wrong: Vec<String>,
    open: Vec<String>,
    unseen: usize,
    /// Length in the result to that of the reference.
    ratios: Vec<f64>,
    /// The same of the longest gap of a block, whatever its cause.
    longest: Vec<f64>,
    /// Of which the length is wrong.
    apart: Vec<String>,
}

impl Score {
    fn count_made(&self) -> usize {
        self.right + self.wrong.len() + self.open.len() + self.unseen
    }

    fn add(&mut self, other: Self) {
        self.right += other.right;
        self.wrong.extend(other.wrong);
        self.open.extend(other.open);
        self.unseen += other.unseen;
        self.ratios.extend(other.ratios);
        self.longest.extend(other.longest);
        self.apart.extend(other.apart);
    }

    fn row(&self, what: &str) -> Vec<String> {
        let at =
            |p| quantile(&self.ratios, p).map_or_else(|| "–".to_owned(), |x| format!("{x:.3}"));
        let middle = median(&self.ratios).map_or_else(|| "–".to_owned(), |x| format!("{x:.3}"));
        vec![
            what.to_owned(),
            self.count_made().to_string(),
            self.right.to_string(),
            self.wrong.len().to_string(),
            self.open.len().to_string(),
            self.unseen.to_string(),
            format!("{middle} ({} – {})", at(0.05), at(0.95)),
            count_close(&self.ratios),
            count_close(&self.longest),
        ]
    }
}

fn is_close(ratio: f64) -> bool {
    (ratio - 1.0).abs() <= 0.05
}

fn count_close(ratios: &[f64]) -> String {
    let count = ratios.iter().filter(|ratio| is_close(**ratio)).count();
    format!("{count} of {}", ratios.len())
}

/// Measures all culprits.
pub fn run(arguments: &Arguments) -> Result<Figures, Failure> {
    let (host, scratch) = (LiveHost::new()?, Scratch::in_memory()?);
    let program = compile(&scratch)?;
    let topology = pinfold_topology::discover(&host)?;
    let cpus = topology.online().intersection(&topology.allowed);
    let (Some(elsewhere), Some(cpu)) = (cpus.first(), cpus.iter().last()) else {
        return Err("there are no CPUs".into());
    };
    if cpu == elsewhere {
        return Err("gaps needs two CPUs: one for the subject, one for the culprits".into());
    }
    let machine = origin::of_host(&host, &topology)?;
    let bench = Bench { host, program, cpu, elsewhere, scratch: scratch.path().to_owned() };
    let rounds = arguments.rounds.unwrap_or(ROUNDS);
    let mut random = Pcg32::new(arguments.seed, 53);
    let mut scores: BTreeMap<&str, Score> = BTreeMap::new();
    let (mut order, mut notes) = (CULPRITS, Vec::new());
    for round in 0..rounds {
        random.shuffle(&mut order);
        for culprit in order.iter().filter(|culprit| is_wanted(arguments, culprit)) {
            match bench.block(culprit) {
                Ok(block) => {
                    notes
                        .extend(block.lost.iter().map(|text| format!("{}: {text}.", culprit.kind)));
                    scores.entry(culprit.kind).or_default().add(score(culprit, &block));
                }
                Err(why) if round == 0 => {
                    notes.push(format!("Not made here: {} ({why}).", culprit.what));
                }
                Err(_) => {}
            }
        }
    }
    let load = bench.host.read_text(&paths::load_average())?;
    let load = load.split(' ').next().unwrap_or_default();
    Ok(figures(
        &scores,
        notes,
        format!("{machine}; load average {load}; {rounds} rounds; seed {}", arguments.seed),
    ))
}

fn is_wanted(arguments: &Arguments, culprit: &Culprit) -> bool {
    let only = arguments.only.as_deref();
    only.is_none_or(|names| names.split(',').any(|name| name == culprit.kind))
}

fn figures(scores: &BTreeMap<&str, Score>, mut notes: Vec<String>, origin: String) -> Figures {
    let mut all = Score::default();
    let mut rows = Vec::new();
    for culprit in &CULPRITS {
        let Some(score) = scores.get(culprit.kind) else { continue };
        rows.push(score.row(culprit.what));
        let texts = score.wrong.iter().chain(&score.open).chain(&score.apart);
        notes.extend(texts.map(|text| format!("{}: {text}.", culprit.kind)));
        all.add(Score {
            right: score.right,
            wrong: score.wrong.clone(),
            open: score.open.clone(),
            unseen: score.unseen,
            ratios: score.ratios.clone(),
            longest: score.longest.clone(),
            apart: Vec::new(),
        });
    }
    rows.push(all.row("all"));
    let share = all.right as f64 * 100.0 / (all.count_made() as f64).max(1.0);
    notes.insert(0, format!("Named right: {share:.1} % (goal: at least 95 %, none wrong; length within 5 % of the reference)."));
    let head = [
        "cause",
        "gaps",
        "right",
        "wrong",
        "no single cause",
        "not found",
        "length to the reference's: median (5 % – 95 %)",
        "within 5 %",
        "longest of a run within 5 %",
    ];
    Figures {
        name: "gaps".to_owned(),
        title: "causes and lengths of gaps that are made on purpose".to_owned(),
        origin,
        tables: vec![Table { head: head.map(str::to_owned).to_vec(), rows }],
        notes,
    }
}

fn compile(scratch: &Scratch) -> Result<String, Failure> {
    let (source, program) = (scratch.file("culprits.c"), scratch.file("culprits"));
    files::write_atomic(&source, SOURCE.as_bytes())?;
    let words = ["-O2", "-o", &program, &source, "-lpthread"];
    let output = process::capture("gcc", words, COMPILES_NS)?;
    if output.status.success() {
        Ok(program)
    } else {
        Err(format!("gcc: {}", output.stderr_text().trim()).into())
    }
}

/// What all blocks have in common.
struct Bench {
    host: LiveHost,
    program: String,
    cpu: PuId,
    elsewhere: PuId,
    scratch: String,
}

impl Bench {
    /// One run of a culprit, observed.
    fn block(&self, culprit: &Culprit) -> Result<Block, Failure> {
        let group = culprit.controller.map(|name| Group::make(&self.host, name)).transpose()?;
        let directory = group.as_ref().map_or(self.scratch.clone(), |group| group.path.clone());
        let mut child = Spawn::new(&self.program)
            .args([
                culprit.kind.to_owned(),
                self.cpu.to_string(),
                self.elsewhere.to_string(),
                OVER_NS.to_string(),
                (IN_ROUND * ATTEMPTS).to_string(),
                directory.clone(),
            ])
            .stdin(Stdio::Pipe)
            .stdout(Stdio::Pipe)
            .die_with_parent(true)
            .start()?;
        self.observe(&mut child, directory)
    }

    fn observe(&self, child: &mut Child, directory: String) -> Result<Block, Failure> {
        let mut output = BufReader::new(child.stdout().ok_or("no output")?);
        let mut ids = BTreeMap::new();
        loop {
            let mut line = String::new();
            output.read_line(&mut line)?;
            match line.trim().split_once(' ') {
                Some(("error", why)) => return Err(why.into()),
                Some((name, number)) => {
                    ids.insert(name.to_owned(), number.parse::<u32>()?);
                }
                None if line.trim() == "ready" => break,
                None => return Err("the culprit ended early".into()),
            }
        }
        let id = |name: &str| ids.get(name).copied().ok_or(format!("no {name}"));
        let (subject, culprit) = (id("subject")?, id("culprit")?);
        let task = self.task(Tid(subject))?;
        let observed = [gaps::Subject::of_threads(vec![(task, Role::Task)])];
        let mut watch = gaps::start(&self.host, &SystemClock, &observed, OVER_NS)?;
        // Times of the result count from here, which is before the start has returned.
        let began_ns = watch.began_ns();
        // The result counts from here.
        let ready_ns = SystemClock.now_ns();
        let machines = self.machines()?;
        child.stdin().ok_or("no input")?.write_all(b"\n")?;
        let text = thread::scope(|scope| {
            let reading = scope.spawn(move || {
                let mut text = String::new();
                output.read_to_string(&mut text).map(|_| text)
            });
            while !reading.is_finished() {
                SystemClock.sleep_ns(GapWatch::POLL_NS);
                watch.poll(&self.host, &SystemClock);
            }
            reading.join()
        });
        let report = watch.stop(&self.host, &SystemClock, machines)?;
        child.wait()?;
        let text = text.map_err(|_| "the reader of the culprit's output panicked")??;
        let found = report.gaps.into_iter().filter(|gap| gap.tid == subject).map(|gap| {
            let from_ns = began_ns.saturating_add(gap.at_ns);
            (Span { from_ns, until_ns: from_ns.saturating_add(gap.length_ns) }, gap)
        });
        Ok(Block {
            directory,
            culprit,
            reference: spans(&text, "gap")
                .into_iter()
                .filter(|gap| gap.from_ns > ready_ns)
                .collect(),
            acts: spans(&text, "act"),
            found: found.collect(),
            lost: report.summary.lost,
        })
    }

    fn task(&self, tid: Tid) -> Result<TaskId, Failure> {
        let stat = proc_stat::read(&self.host, tid)?;
        Ok(stat.ok_or_else(|| format!("{} is not there", paths::process_stat(tid)))?.task())
    }

    fn machines(&self) -> Result<BTreeMap<Tid, String>, Failure> {
        let running = hypervisors::list_vm_processes(&self.host)?.into_iter();
        Ok(running.map(|machine| (machine.pid, machine.name_or_pid())).collect())
    }
}

/// The lines of this name.
fn spans(text: &str, name: &str) -> Vec<Span> {
    let spans = text.lines().filter_map(|line| {
        let (first, rest) = line.split_once(' ')?;
        let (from, until) = rest.split_once(' ').filter(|_| first == name)?;
        Some(Span { from_ns: from.parse().ok()?, until_ns: until.parse().ok()? })
    });
    spans.collect()
}

/// A cgroup; removed when dropped.
struct Group<'h> {
    host: &'h LiveHost,
    path: String,
}

impl<'h> Group<'h> {
    fn make(host: &'h LiveHost, controller: &str) -> Result<Self, Failure> {
        let at = mountinfo::controller(host, controller)?
            .ok_or_else(|| format!("no cgroup has {controller}"))?;
        let root = at.mount.path.trim_end_matches('/').to_owned();
        if at.version == mountinfo::Version::V2 {
            host.write(&paths::cgroup_subtree_control(&root), format!("+{controller}").as_bytes())?;
        }
        let path = paths::cgroup_file(&root, GROUP);
        if !host.exists(&path) {
            host.make_dir(&path)?;
        }
        Ok(Self { host, path })
    }
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        // An empty group that remains is used by the next run.
        for path in [paths::cgroup_file(&self.path, "below"), self.path.clone()] {
            match self.host.remove_dir(&path) {
                Ok(()) | Err(_) => {}
            }
        }
    }
}

/// Compares the result with what was made.
fn score(culprit: &Culprit, block: &Block) -> Score {
    let mut score = Score::default();
    for made in gaps_made(culprit, block).into_iter().take(IN_ROUND) {
        let common = |(span, _): &&(Span, Gap)| span.common_ns(made);
        let Some((span, gap)) =
            block.found.iter().max_by_key(common).filter(|best| common(best) > 0)
        else {
            score.unseen += 1;
            continue;
        };
        score.ratios.push(span.length_ns() as f64 / (made.length_ns() as f64).max(1.0));
        let text = |cause: &str| format!("a gap of {} µs was {cause}", made.length_ns() / 1000);
        match gap.cause() {
            Some(cause) if (culprit.is_it)(cause, block) => score.right += 1,
            Some(cause) => score.wrong.push(text(&cause.to_string())),
            None => {
                let parts = gap.parts.iter().take(3);
                let parts: Vec<String> =
                    parts.map(|part| format!("{} {} µs", part.cause, part.ns / 1000)).collect();
                score.open.push(text(&format!(
                    "{}, rest {} µs",
                    parts.join(", "),
                    gap.unexplained_ns() / 1000
                )));
            }
        }
    }
    let longest = block.reference.iter().max_by_key(|gap| gap.length_ns());
    let found = block.found.iter().map(|(span, _)| span.length_ns()).max();
    if let (Some(longest), Some(found)) = (longest, found) {
        let ratio = found as f64 / (longest.length_ns() as f64).max(1.0);
        score.longest.push(ratio);
        if !is_close(ratio) {
            score.apart.push(describe_longest(*longest, found, block));
        }
    }
    score
}

/// What the result has in the time of the longest gap of the reference.
fn describe_longest(longest: Span, found_ns: u64, block: &Block) -> String {
    let inside = block.found.iter().filter(|(span, _)| span.common_ns(longest) > 0);
    let parts = inside.map(|(span, gap)| {
        let parts = gap.parts.iter().map(|part| format!("{} {} µs", part.cause, part.ns / 1000));
        let before = span.from_ns.cast_signed() - longest.from_ns.cast_signed();
        format!(
            "{} µs from {} µs on ({})",
            span.length_ns() / 1000,
            before / 1000,
            parts.collect::<Vec<_>>().join(", ")
        )
    });
    let parts: Vec<String> = parts.collect();
    format!(
        "the longest gap was {} µs, that of the result {} µs; in the time of the first the result has {}",
        longest.length_ns() / 1000,
        found_ns / 1000,
        if parts.is_empty() { "none".to_owned() } else { parts.join("; ") }
    )
}

/// The gaps of the reference that are the culprit's work.
fn gaps_made(culprit: &Culprit, block: &Block) -> Vec<Span> {
    let is_quota = culprit.kind.ends_with("quota");
    let gaps = block.reference.iter().filter(|gap| {
        if is_quota {
            return gap.length_ns() >= QUOTA_GAP_NS;
        }
        let work: u64 = block.acts.iter().map(|act| act.common_ns(**gap)).sum();
        gap.length_ns() >= OVER_NS && work.saturating_mul(10) >= gap.length_ns().saturating_mul(6)
    });
    gaps.copied().collect()
}
