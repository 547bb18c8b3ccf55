//! The trials of one start, one after the other, without ever waiting: whoever drives them (a
//! plain wait, or the turns of a method of slowing) asks them to go on whenever the bell rings.

use std::collections::BTreeMap;

use pinfold_apply::{Journal, Journals, Target};
use pinfold_host::process::{Spawn, Stdio};
use pinfold_host::{Clock as _, Host as _, LiveHost, SystemClock, paths};
use pinfold_model::{CpuSet, Family, Figure, Plan, PuId, Role, Unit};
use pinfold_probe::pinload::Pinload;
use pinfold_study::study::{
    Finished, Next, Probe, Program, StartRequest, TrialError, TrialResult, Wanted, extract,
};

use super::job::{Bell, Ended, Job};
use crate::common::host_failure;
use crate::failure::Failure;
use crate::guard::{Beating, Guard};
use crate::place;

/// The figure that every trial has: from the start of its command until its output ended.
const WHOLE_TIME: &str = "t_full";

/// Where a process of the start begins.
#[derive(Clone, Default)]
pub struct Enter {
    /// Files of cgroups.
    pub files: Vec<String>,
    /// PUs.
    pub pus: CpuSet,
}

/// What the trials of a start need.
#[derive(Clone, Copy)]
pub struct Means<'a> {
    pub host: &'a LiveHost,
    pub pinload: &'a Pinload,
    pub journals: &'a Journals<'a>,
    pub bell: &'a Bell,
}

/// A plan that is in force for one process.
struct InForce<'a> {
    journal: Journal<'a>,
    beating: Option<Beating>,
}

/// A run of a workload under way.
struct Running<'a> {
    // Ends before what it runs under is taken back.
    job: Job,
    in_force: Option<InForce<'a>>,
    before: Clocks,
}

/// The trials of a start.
pub struct Trials<'a, 'f> {
    means: Means<'a>,
    wanted: Vec<Wanted<'a>>,
    plan: Option<&'a Plan>,
    finished: &'f mut Finished<'f>,
    next: usize,
    warm_ups: u32,
    work_ns: u64,
    running: Option<Running<'a>>,
}

/// What the PUs' clocks in `/proc/stat` say.
#[derive(Clone, Copy, Default)]
struct Clocks {
    at_ns: u64,
    busy: u64,
    stolen: u64,
}

impl<'a, 'f> Trials<'a, 'f> {
    pub fn new(
        means: Means<'a>,
        request: &StartRequest<'a>,
        plan: Option<&'a Plan>,
        finished: &'f mut Finished<'f>,
    ) -> Self {
        let wanted = request.wanted().collect();
        Self { means, wanted, plan, finished, next: 0, warm_ups: 0, work_ns: 0, running: None }
    }

    /// Goes on. False when all are done or no more are wanted.
    pub fn turn(&mut self, enter: &Enter) -> Result<bool, Failure> {
        self.means.bell.silence();
        loop {
            let Some(wanted) = self.wanted.get(self.next).copied() else { return Ok(false) };
            let Some(running) = &mut self.running else {
                match self.begin(wanted, enter) {
                    Ok(running) => self.running = Some(running),
                    Err(error) => match self.tell(Err(error)) {
                        Next::GoOn => continue,
                        Next::Stop => return Ok(false),
                    },
                }
                return Ok(true);
            };
            let Some(ended) = running.job.ended() else { return Ok(true) };
            let running = self.running.take();
            let clocks = running.as_ref().map(|running| running.before).unwrap_or_default();
            let taken_back = running.map_or(Ok(()), |running| end(self.means.host, running));
            // What cannot be taken back ends the study: the next trial would run beside it.
            taken_back?;
            let result = match ended {
                Ok(ended) => {
                    self.work_ns += ended.elapsed_ns;
                    if self.warm_ups < wanted.study.warm_up {
                        self.warm_ups += 1;
                        continue;
                    }
                    let probes = self.probes(wanted, clocks, &enter.pus);
                    figures(wanted, &ended).and_then(|mut figures| {
                        figures.extend(probes?);
                        Ok(TrialResult { figures, work_ns: self.work_ns })
                    })
                }
                Err(error) => Err(error),
            };
            if self.tell(result) == Next::Stop {
                return Ok(false);
            }
        }
    }

    /// The trial that begins next, if none is under way.
    pub fn pending(&self) -> Option<Wanted<'a>> {
        match self.running {
            Some(_) => None,
            None => self.wanted.get(self.next).copied(),
        }
    }

    fn tell(&mut self, result: Result<TrialResult, TrialError>) -> Next {
        let index = self.next;
        self.next += 1;
        self.warm_ups = 0;
        self.work_ns = 0;
        (self.finished)(index, result)
    }

    fn begin(&self, wanted: Wanted<'a>, enter: &Enter) -> Result<Running<'a>, TrialError> {
        let built_in = |name: &str| match name {
            "pus" => Some(enter.pus.to_string()),
            "n_pus" => Some(enter.pus.len().to_string()),
            "block" => Some((wanted.block + 1).to_string()),
            _ => None,
        };
        let words = wanted.cell.words(wanted.study, &built_in).map_err(TrialError::fatal)?;
        let workload = wanted.cell.workload(wanted.study);
        let argv = match &workload.program {
            Program::Pinload(_) => [vec![self.means.pinload.path()], words].concat(),
            Program::Command(_) => words,
        };
        let clocks = clocks(self.means.host, &enter.pus)
            .map_err(|error| TrialError::failed(host_failure(&error).message))?;
        let limit_ns = workload.time_limit_ns;
        match self.plan {
            None => {
                let job =
                    Job::start(spawn(&argv, enter).stdin(Stdio::Null), limit_ns, self.means.bell)?;
                Ok(Running { job, in_force: None, before: clocks })
            }
            Some(plan) => self.placed(plan, &argv, limit_ns, clocks),
        }
    }

    /// Starts a command at a gate, places it, and lets it go.
    fn placed(
        &self,
        plan: &Plan,
        argv: &[String],
        limit_ns: u64,
        before: Clocks,
    ) -> Result<Running<'a>, TrialError> {
        let failed = |failure: Failure| TrialError::failed(failure.message);
        let program = std::env::current_exe()
            .map_err(|error| TrialError::fatal(format!("cannot find this program: {error}")))?;
        let gate = [program.to_string_lossy().into_owned(), "gate".to_owned(), "--".to_owned()];
        let argv = [&gate[..], argv].concat();
        let enter = Enter { files: Vec::new(), pus: plan.pus() };
        let spawn = spawn(&argv, &enter).stdin(Stdio::Pipe);
        let mut job = Job::start(spawn, limit_ns, self.means.bell)?;
        let gate = job.child().stdin();
        let task = job.child().task();
        let target = Target {
            pid: task.tid,
            threads: vec![(task, Role::Task)],
            own: Vec::new(),
            kept: Vec::new(),
        };
        let (_, journal, guard) =
            place::apply_guarded(self.means.host, plan, &target, self.means.journals)
                .map_err(failed)?;
        let beating = guard.map(|guard: Guard| Beating::start(guard)).transpose();
        let beating = beating.map_err(failed)?;
        job.begins_now();
        drop(gate);
        Ok(Running { job, in_force: Some(InForce { journal, beating }), before })
    }

    fn probes(
        &self,
        wanted: Wanted<'_>,
        before: Clocks,
        pus: &CpuSet,
    ) -> Result<Vec<Figure>, TrialError> {
        if wanted.study.probes.is_empty() {
            return Ok(Vec::new());
        }
        let after = clocks(self.means.host, pus)
            .map_err(|error| TrialError::failed(host_failure(&error).message))?;
        let elapsed_ns = after.at_ns.saturating_sub(before.at_ns).max(1);
        // The kernel counts here in hundredths of a second.
        let all = elapsed_ns as f64 / 1e7 * pus.len().max(1) as f64;
        let share = |after: u64, before: u64| (after.saturating_sub(before) as f64 / all).min(1.0);
        let figure = |probe: &Probe| {
            let sample = match probe {
                Probe::Steal => share(after.stolen, before.stolen),
                Probe::Busy => share(after.busy, before.busy),
            };
            one_figure(probe.name(), (Unit::Share, sample), elapsed_ns)
        };
        Ok(wanted.study.probes.iter().map(figure).collect())
    }

    /// Ends what runs and takes back what it runs under.
    pub fn abandon(&mut self) -> Result<(), Failure> {
        self.running.take().map_or(Ok(()), |running| end(self.means.host, running))
    }
}

/// The process first, then what it ran under.
fn end(host: &LiveHost, running: Running<'_>) -> Result<(), Failure> {
    let Running { job, in_force, .. } = running;
    drop(job);
    let Some(InForce { journal, beating }) = in_force else { return Ok(()) };
    let undone = place::undo(host, journal);
    let was_heard = beating.is_none_or(Beating::end);
    undone?;
    match was_heard {
        true => Ok(()),
        false => Err(Failure::new(
            crate::failure::Exit::Host,
            "this Pinfold was stopped, and what it measured has lost its real-time rights",
        )),
    }
}

fn spawn(argv: &[String], enter: &Enter) -> Spawn {
    let (program, words) =
        argv.split_first().map_or(("", argv), |(program, words)| (program, words));
    Spawn::new(program).args(words).cgroup_files(enter.files.clone()).affinity(enter.pus.clone())
}

/// What a run printed, and how long it took.
fn figures(wanted: Wanted<'_>, ended: &Ended) -> Result<Vec<Figure>, TrialError> {
    let workload = wanted.cell.workload(wanted.study);
    let mut figures = match (&workload.program, workload.figures.is_empty()) {
        (Program::Pinload(_) | Program::Command(_), false) => {
            extract(&workload.figures, &ended.stdout, ended.elapsed_ns)
                .map_err(TrialError::failed)?
        }
        (Program::Pinload(_), true) => pinfold_probe::figures::parse("pinload", &ended.stdout)
            .map_err(|error| TrialError::failed(error.to_string()))?,
        // Its time is all that is asked of it.
        (Program::Command(_), true) => Vec::new(),
    };
    let whole = (Unit::Nanoseconds, ended.elapsed_ns as f64);
    figures.push(one_figure(WHOLE_TIME, whole, ended.elapsed_ns));
    Ok(figures)
}

fn one_figure(name: &str, (unit, sample): (Unit, f64), duration_ns: u64) -> Figure {
    Figure {
        probe: name.to_owned(),
        labels: BTreeMap::new(),
        unit,
        family: Family::Count,
        cpu: None,
        duration_ns,
        samples: vec![sample],
        dropped: 0,
        disturbed: 0,
        flags: Vec::new(),
    }
}

/// The clocks of these PUs, in the kernel's ticks.
fn clocks(host: &LiveHost, pus: &CpuSet) -> Result<Clocks, pinfold_host::HostError> {
    let text = host.read_text(&paths::kernel_stat())?;
    Ok(Clocks { at_ns: SystemClock.now_ns(), ..sums(&text, pus) })
}

fn sums(text: &str, pus: &CpuSet) -> Clocks {
    let mut clocks = Clocks::default();
    for line in text.lines() {
        let mut fields = line.split_ascii_whitespace();
        let pu = fields.next().and_then(|name| name.strip_prefix("cpu")?.parse().ok()).map(PuId);
        if !pu.is_some_and(|pu| pus.contains(pu)) {
            continue;
        }
        let numbers: Vec<u64> = fields.filter_map(|field| field.parse().ok()).collect();
        let field = |index: usize| numbers.get(index).copied().unwrap_or(0);
        // user, nice, system, idle, iowait, irq, softirq, steal
        clocks.busy += field(0) + field(1) + field(2) + field(5) + field(6);
        clocks.stolen += field(7);
    }
    clocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_those_of_the_pus() {
        let text =
            "cpu  9 9 9 9 9 9 9 9\ncpu0 1 2 3 4 5 6 7 8 9 10\ncpu1 10 20 30 40 50 60 70 80\n";
        let check = |list: &str, busy: u64, stolen: u64| {
            let clocks = sums(text, &CpuSet::parse_list(list).unwrap());
            assert_eq!((clocks.busy, clocks.stolen), (busy, stolen), "{list}");
        };
        check("0", 19, 8);
        check("0-1", 209, 88);
        check("2", 0, 0);
    }
}
