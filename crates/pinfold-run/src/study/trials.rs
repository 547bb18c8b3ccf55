//! The trials of one start, in sequence and without blocking: the caller (a plain wait, or the
//! turns of a method of slowing) continues them at each signal.

use pinfold_apply::{Journal, Journals, Target};
use pinfold_host::LiveHost;
use pinfold_host::process::{Spawn, Stdio};
use pinfold_model::{CpuSet, Figure, Finding, NodeId, Plan, PuId, Role, TaskId, Unit};
use pinfold_probe::pinload::Pinload;
use pinfold_study::study::{
    FactorEffect, Finished, NextStep, Output, Program, StartRequest, TrialError, TrialRequest,
    TrialResult, extract,
};

use super::copies::Copies;
use super::figure::{absent, one_figure};
use super::job::{EndSignal, Job, JobResult};
use super::probes::{Observation, need_threads, with_findings};
use crate::guest::loads::HostLoadControl;
use crate::{
    Failure, HelperProgram,
    apply_session::{self, OnStop, Placement},
    helper_program::Helper,
    rt_watchdog::{HeartbeatThread, RtWatchdog, Supervision},
};

/// The figure that every trial has: the time from the start of its command to the end of its
/// output.
const WHOLE_TIME: &str = "t_full";

/// Replaces a list of CPUs: a thread may run on any.
const ANYWHERE: &str = "any";

/// Where a process of the start begins.
#[derive(Clone)]
pub struct Enter {
    /// Files of cgroups.
    pub files: Vec<String>,
    /// CPUs on which the process may run.
    pub pus: CpuSet,
    /// The node of its memory; `None` if it is set elsewhere, or any.
    pub memory: Option<NodeId>,
    /// The CPUs of its threads in order, if they are pinned individually.
    pub places: Option<Vec<PuId>>,
}

/// The resources for the trials of a start.
#[derive(Clone, Copy)]
pub struct TrialResources<'a> {
    pub host: &'a LiveHost,
    pub pinload: &'a Pinload,
    /// The program of the gates and watchdogs.
    pub program: &'a HelperProgram,
    pub journals: &'a Journals<'a>,
    pub end_signal: &'a EndSignal,
    /// The host's loads, if the study has any.
    pub loads: Option<&'a HostLoadControl>,
}

/// An active plan for one process.
struct ActiveTrial<'a> {
    journal: Journal<'a>,
    beating: Option<HeartbeatThread>,
    findings: Vec<Finding>,
}

/// A run of a workload in progress.
struct Running<'a> {
    // Must end before its placement is undone.
    jobs: Copies,
    in_force: Option<ActiveTrial<'a>>,
    observation: Option<Observation>,
}

/// The trials of a start.
pub struct Trials<'a, 'f> {
    means: TrialResources<'a>,
    wanted: Vec<TrialRequest<'a>>,
    plan: Option<&'a Plan>,
    finished: &'f mut Finished<'f>,
    next: usize,
    warm_ups: u32,
    work_ns: u64,
    /// Findings of the environment that all trials have in common.
    findings: Vec<Finding>,
    running: Option<Running<'a>>,
}

impl<'a, 'f> Trials<'a, 'f> {
    pub fn new(
        means: TrialResources<'a>,
        request: &StartRequest<'a>,
        plan: Option<&'a Plan>,
        finished: &'f mut Finished<'f>,
    ) -> Self {
        let wanted = request.requests().collect();
        Self {
            means,
            wanted,
            plan,
            finished,
            next: 0,
            warm_ups: 0,
            work_ns: 0,
            findings: Vec::new(),
            running: None,
        }
    }

    /// Adds findings of the environment, which are kept with each trial.
    pub fn add_findings(&mut self, findings: impl Iterator<Item = Finding>) {
        self.findings.extend(findings);
    }

    /// Continues the trials. False when all are done or no more are requested. `prepare` is called
    /// before each run of a trial's command.
    pub fn turn(
        &mut self,
        enter: &Enter,
        prepare: &mut dyn FnMut(TrialRequest<'_>) -> Result<(), Failure>,
    ) -> Result<bool, Failure> {
        self.means.end_signal.silence();
        loop {
            let Some(wanted) = self.wanted.get(self.next).copied() else { return Ok(false) };
            let Some(running) = &mut self.running else {
                prepare(wanted)?;
                match self.begin(wanted, enter) {
                    Ok(running) => self.running = Some(running),
                    Err(error) => match self.report(Err(error)) {
                        NextStep::GoOn => continue,
                        NextStep::Stop => return Ok(false),
                    },
                }
                return Ok(true);
            };
            let Some(ended) = running.jobs.poll_result() else { return Ok(true) };
            let observation = running.observation.take();
            let seen = observation.map_or(Ok(Vec::new()), |it| it.end(self.means.host));
            let in_force = running.in_force.as_mut();
            let mut findings = self.findings.clone();
            findings.extend(in_force.into_iter().flat_map(|it| std::mem::take(&mut it.findings)));
            let running = self.running.take();
            let taken_back = running.map(|running| end(self.means.host, running)).transpose();
            // A failed undo ends the study: it would affect the next trial.
            findings.extend(taken_back?.into_iter().flatten());
            let result = match ended {
                Ok(ended) => {
                    self.work_ns += ended.elapsed_ns;
                    if self.warm_ups < wanted.study.warm_up {
                        self.warm_ups += 1;
                        continue;
                    }
                    figures(wanted, &ended).and_then(|mut figures| {
                        figures.extend(seen?);
                        Ok(TrialResult { figures, work_ns: self.work_ns })
                    })
                }
                Err(error) => Err(error),
            };
            if self.report(with_findings(result, &findings)) == NextStep::Stop {
                return Ok(false);
            }
        }
    }

    fn report(&mut self, result: Result<TrialResult, TrialError>) -> NextStep {
        let index = self.next;
        self.next += 1;
        self.warm_ups = 0;
        self.work_ns = 0;
        (self.finished)(index, result)
    }

    fn begin(&self, wanted: TrialRequest<'a>, enter: &Enter) -> Result<Running<'a>, TrialError> {
        let words = words(wanted, &enter.pus, enter.places.as_deref())?;
        let workload = wanted.cell.workload(wanted.study);
        let argv = match &workload.program {
            Program::Pinload(_) => [vec![self.means.pinload.path()], words].concat(),
            Program::Command(_) => words,
        };
        self.set_loads(wanted)?;
        let limit_ns = workload.time_limit_ns;
        let probes = &wanted.study.probes;
        if self.plan.is_some() || need_threads(probes) {
            return self.at_a_gate(wanted, enter, &argv, limit_ns);
        }
        let observation = Observation::begin(self.means.host, probes, &enter.pus, &[])?;
        let jobs = self.start_together(
            wanted,
            &|| spawn(argv.as_slice(), enter).stdin(Stdio::Null),
            limit_ns,
        )?;
        Ok(Running { jobs, in_force: None, observation: Some(observation) })
    }

    /// Starts a command as many times as its cell has machines, the measured one last.
    fn start_together(
        &self,
        wanted: TrialRequest<'_>,
        spawn: &dyn Fn() -> Spawn,
        limit_ns: u64,
    ) -> Result<Copies, TrialError> {
        let machines = wanted.cell.level_with_effect(wanted.study, &FactorEffect::Machines);
        let machines = machines.map_or(Ok(1_u32), |level| level.text.parse());
        let machines = machines.map_err(|_| TrialError::fatal("machines is not a whole number"))?;
        let others = (1..machines)
            .map(|_| Job::start(spawn(), limit_ns, self.means.end_signal))
            .collect::<Result<Vec<Job>, TrialError>>()?;
        Ok(Copies::new(Job::start(spawn(), limit_ns, self.means.end_signal)?, others))
    }

    fn set_loads(&self, wanted: TrialRequest<'_>) -> Result<(), TrialError> {
        let Some(side) = self.means.loads else { return Ok(()) };
        let level = wanted.cell.level_with_effect(wanted.study, &FactorEffect::HostLoad);
        side.set(level.is_some_and(|level| level.text == "loaded"))
            .map_err(|error| TrialError::from_message(error.to_string()))
    }

    /// Starts a command at a gate, places it, starts to observe it, and opens the gate.
    fn at_a_gate(
        &self,
        wanted: TrialRequest<'a>,
        enter: &Enter,
        argv: &[String],
        limit_ns: u64,
    ) -> Result<Running<'a>, TrialError> {
        let argv = self.means.program.words(Helper::Gate { socket: None, command: argv });
        let mut jobs = self.start_together(
            wanted,
            &|| spawn(argv.as_slice(), enter).stdin(Stdio::Pipe),
            limit_ns,
        )?;
        let gates: Vec<_> = jobs.all().map(|job| job.child().stdin()).collect();
        let threads: Vec<(TaskId, Role)> =
            jobs.all().map(|job| (job.child().task(), Role::Task)).collect();
        let Some((first, _)) = threads.first() else {
            return Err(TrialError::from_message("it has no process"));
        };
        let mut in_force = None;
        if let Some(plan) = self.plan {
            let target = Target::new(first.tid, threads.clone());
            let (applied, journal, guard) = apply_session::apply_guarded(
                self.means.host,
                Placement { plan, target: &target },
                Supervision { journals: self.means.journals, program: self.means.program },
                OnStop::Finish,
            )
            .map_err(trial_error)?;
            let beating = guard.map(|guard: RtWatchdog| HeartbeatThread::start(guard)).transpose();
            let findings = applied.findings;
            in_force =
                Some(ActiveTrial { journal, beating: beating.map_err(trial_error)?, findings });
        }
        let (host, probes) = (self.means.host, &wanted.study.probes);
        let observation = Observation::begin(host, probes, &enter.pus, &threads[..1]);
        let mut running = Running { jobs, in_force, observation: None };
        match observation {
            Ok(observation) => running.observation = Some(observation),
            Err(error) => {
                end(host, running).map_err(trial_error)?;
                return Err(error);
            }
        }
        running.jobs.all().for_each(Job::begins_now);
        drop(gates);
        Ok(running)
    }

    /// Ends the running trial and undoes its placement.
    pub fn abandon(&mut self) -> Result<(), Failure> {
        let ended = self.running.take().map(|running| end(self.means.host, running)).transpose();
        ended.map(|_| ())
    }
}

fn trial_error(failure: Failure) -> TrialError {
    TrialError::from_message(failure.message)
}

/// Ends the process first, then undoes its placement. Returns what other programs changed of it
/// meanwhile.
fn end(host: &LiveHost, running: Running<'_>) -> Result<Vec<Finding>, Failure> {
    let Running { jobs, in_force, .. } = running;
    drop(jobs);
    let Some(ActiveTrial { journal, beating, .. }) = in_force else { return Ok(Vec::new()) };
    let undone = apply_session::undo(host, journal);
    let was_received = beating.is_none_or(HeartbeatThread::end);
    let undone = undone?;
    if was_received {
        Ok([undone.changed, undone.vanished].concat())
    } else {
        Err(Failure::new(
            crate::Exit::Host,
            "Pinfold was suspended, and the measured threads lost their real-time priority",
        ))
    }
}

fn spawn(argv: &[String], enter: &Enter) -> Spawn {
    let (program, words) =
        argv.split_first().map_or(("", argv), |(program, words)| (program, words));
    Spawn::new(program)
        .args(words)
        .cgroup_files(enter.files.clone())
        .affinity(enter.pus.clone())
        .memory_node(enter.memory)
}

/// The arguments of a command, on these CPUs; `places` are the CPUs of its threads, if they are
/// pinned individually.
pub fn words(
    wanted: TrialRequest<'_>,
    pus: &CpuSet,
    places: Option<&[PuId]>,
) -> Result<Vec<String>, TrialError> {
    wanted
        .cell
        .command_arguments(wanted.study, &|name: &str| match name {
            "pus" => Some(pus.to_string()),
            "n_pus" => Some(pus.len().to_string()),
            "places" => Some(places.map_or_else(
                || ANYWHERE.to_owned(),
                |places| places.iter().map(ToString::to_string).collect::<Vec<String>>().join(","),
            )),
            "block" => Some((wanted.block + 1).to_string()),
            _ => None,
        })
        .map_err(TrialError::fatal)
}

/// The figures from the output of a run and its duration.
pub fn figures(wanted: TrialRequest<'_>, ended: &JobResult) -> Result<Vec<Figure>, TrialError> {
    let workload = wanted.cell.workload(wanted.study);
    let lacking = match workload.program {
        Program::Pinload(_) => absent_reason(&ended.stdout),
        Program::Command(_) => None,
    };
    if let Some(why) = lacking {
        let rules = workload.figures.iter();
        return Ok(rules.map(|rule| absent(&rule.name, rule.unit, &why)).collect());
    }
    let mut figures = match (&workload.program, workload.figures.is_empty()) {
        (Program::Pinload(_) | Program::Command(_), false) => {
            let output = Output { stdout: &ended.stdout, stderr: &ended.stderr };
            extract(&workload.figures, output, ended.elapsed_ns)
                .map_err(TrialError::from_message)?
        }
        (Program::Pinload(_), true) => pinfold_probe::figures::parse("pinload", &ended.stdout)
            .map_err(|error| TrialError::from_message(error.to_string()))?,
        // Only its duration is measured.
        (Program::Command(_), true) => Vec::new(),
    };
    let ns = ended.elapsed_ns;
    figures.push(one_figure(WHOLE_TIME, Unit::Nanoseconds, ns as f64, ns));
    Ok(figures)
}

/// Why a benchmark of `pinload` is not available where it ran, from its output.
fn absent_reason(stdout: &str) -> Option<String> {
    let document: serde_json::Value = serde_json::from_str(stdout.trim()).ok()?;
    Some(document.get("absent")?.as_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::absent_reason;

    #[test]
    fn a_benchmark_that_is_not_available_says_why() {
        check("{\"probe\":\"hwlat\",\"absent\":\"no tracer\"}\n", Some("no tracer"));
        check("{\"probe\":\"hwlat\",\"samples\":[1]}\n", None);
        check("{\"a\":1}\n{\"absent\":\"of one of two\"}\n", None);
        check("", None);
    }

    fn check(stdout: &str, expected: Option<&str>) {
        assert_eq!(absent_reason(stdout).as_deref(), expected, "{stdout}");
    }
}
