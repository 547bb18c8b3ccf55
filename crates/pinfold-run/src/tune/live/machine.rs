//! The machine of a search: places it, notices what others change, and leaves it as it was.

use std::collections::BTreeMap;

use pinfold_apply::{Journal, NotReplaced, TunableStatus};
use pinfold_host::process::{self, Child, Stdio};
use pinfold_host::{Clock as _, Host as _, LiveHost, SystemClock, paths, schedstat};
use pinfold_model::text::count_noun;
use pinfold_model::{CpuSet, Policy, Role, TaskId, Tid, escape};

use super::Options;
use super::placed::Placed;
use crate::apply_session::{self, OnStop, Placement};
use crate::helper_program::Helper;
use crate::rt_watchdog::{HeartbeatThread, RtWatchdog, Supervision};
use crate::target::Vm;
use crate::{Exit, Failure, interrupt};

/// Checks, and the pause between them, until a machine that has no threads any more has ended.
const END_CHECKS: u32 = 50;
const END_PAUSE_NS: u64 = 20_000_000;

/// A machine whose placement is changed and put back.
pub(super) struct LiveMachine<'s, 'c> {
    pub host: &'s LiveHost,
    options: &'s Options,
    supervision: Supervision<'s, 'c>,
    name: String,
    process: TaskId,
    tasks: Vec<(TaskId, Role)>,
    journal: Journal<'c>,
    /// The masks of its threads as they are meant to be now.
    masks: BTreeMap<Tid, CpuSet>,
    /// Their scheduling policies, likewise.
    policies: BTreeMap<Tid, Policy>,
    guard: Option<HeartbeatThread>,
    /// Undoes the journal when the standard input that this process holds is closed.
    reverter: Child,
}

/// What the vCPUs did so far.
#[derive(Clone, Debug, Default)]
pub(super) struct VcpuTimes {
    /// Run time of all (ns).
    pub run_ns: u64,
    /// The run delay of each (ns).
    pub delays_ns: BTreeMap<Tid, u64>,
}

impl<'s, 'c> LiveMachine<'s, 'c> {
    /// Begins a search. Fails if the machine is placed, or another process works on it.
    pub fn begin(
        host: &'s LiveHost,
        vm: Vm,
        options: &'s Options,
        first: &Placed,
        supervision: Supervision<'s, 'c>,
    ) -> Result<Self, Failure> {
        let placement = Placement { plan: &first.plan, target: &first.target };
        let journal = apply_session::begin_supervised(host, placement, supervision.journals)?;
        let (id, state) = (&journal.record().header.id, supervision.journals.state_dir());
        let undo = supervision.program.words(Helper::Undo { state: &state, journal: id });
        let reverter = supervision.program.spawn(Helper::Gate { socket: None, command: &undo });
        let reverter = reverter.stdin(Stdio::Pipe).stdout(Stdio::Null).stderr(Stdio::Null);
        let mut machine = Self {
            host,
            options,
            supervision,
            process: journal.record().header.vm,
            tasks: vm.found.tasks(),
            name: vm.name,
            journal,
            masks: BTreeMap::new(),
            policies: BTreeMap::new(),
            guard: None,
            reverter: reverter.detach().start()?,
        };
        machine.read_threads()?;
        Ok(machine)
    }

    /// Its threads with their roles.
    pub fn tasks(&self) -> &[(TaskId, Role)] {
        &self.tasks
    }

    /// The threads of its vCPUs.
    pub fn vcpus(&self) -> impl Iterator<Item = Tid> {
        let vcpus = self.tasks.iter().filter(|(_, role)| role.is_vcpu());
        vcpus.map(|(task, _)| task.tid)
    }

    /// The CPUs on which a thread may run, as they are meant to be now.
    pub fn mask(&self, tid: Tid) -> Option<&CpuSet> {
        self.masks.get(&tid)
    }

    /// Applies a placement, or puts the present one back. Returns why it cannot be applied; the
    /// present one is then active.
    pub fn place(&mut self, placed: Option<&Placed>) -> Result<Option<String>, Failure> {
        self.check()?;
        self.check_tunables()?;
        let former = self.guard.take();
        let why = match placed {
            None => self.put_back().map(|()| None),
            Some(placed) => self.replace(placed),
        };
        if let Some(former) = former
            && !former.end()
        {
            let text = "Pinfold was suspended, and the vCPUs lost their real-time priority";
            return Err(Failure::new(Exit::Vm, text));
        }
        let why = why?;
        self.read_threads()?;
        Ok(why)
    }

    fn replace(&mut self, placed: &Placed) -> Result<Option<String>, Failure> {
        let id = &self.journal.record().header.id;
        let guard = RtWatchdog::new(self.supervision, &placed.plan, id)?;
        self.guard = guard.map(HeartbeatThread::start).transpose()?;
        let placement = Placement { plan: &placed.plan, target: &placed.target };
        match apply_session::replace_plan(self.host, placement, &mut self.journal, OnStop::Undo) {
            Ok(_) => {
                apply_session::record_complete(&self.journal);
                Ok(None)
            }
            Err(NotReplaced::Abandoned) => Err(interrupt_failure()),
            Err(NotReplaced::Failed(why)) => {
                self.require_alive()?;
                self.put_back()?;
                Ok(Some(why))
            }
            Err(NotReplaced::Unwritten(error)) => Err(Failure::from(error)),
        }
    }

    fn put_back(&mut self) -> Result<(), Failure> {
        let report = pinfold_apply::undo_host_part(self.host, &mut self.journal);
        if report.is_complete() {
            return Ok(());
        }
        let lines: Vec<String> = report.failed.iter().map(ToString::to_string).collect();
        Err(Failure::new(Exit::Host, format!("cannot put it back: {}", lines.join("; "))))
    }

    /// Puts the machine back as it was, and ends the search.
    pub fn end(self) -> Result<(), Failure> {
        let undone = apply_session::undo(self.host, self.journal);
        if let Some(guard) = self.guard {
            guard.end();
        }
        // It is killed: there is nothing left to undo, or the failure says what.
        drop(self.reverter);
        undone.map(drop)
    }

    /// Fails if the search must end: a request to stop, the end of the machine, another mask or
    /// policy.
    pub fn check(&self) -> Result<(), Failure> {
        if interrupt::is_requested() {
            return Err(interrupt_failure());
        }
        self.require_alive()?;
        for (tid, mask) in &self.masks {
            match self.host.affinity(*tid) {
                Ok(now) if now == *mask => {}
                Ok(now) => {
                    return Err(self.change_failure(&format!(
                        "{} (thread {tid}) was moved from {mask} to {now}",
                        self.role(*tid)
                    )));
                }
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.check_policies()
    }

    /// The watchdog of real-time threads may change their policies.
    fn check_policies(&self) -> Result<(), Failure> {
        if self.guard.is_some() {
            return Ok(());
        }
        for (tid, policy) in &self.policies {
            match self.host.policy(*tid) {
                Ok(now) if now == *policy => {}
                Ok(now) => {
                    return Err(self.change_failure(&format!(
                        "the policy of {} (thread {tid}) was changed from {policy} to {now}",
                        self.role(*tid)
                    )));
                }
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Fails if another program changed a tunable of the present window.
    fn check_tunables(&self) -> Result<(), Failure> {
        let tunables = pinfold_apply::read_tunables(self.host, self.journal.record())?;
        let Some(changed) = tunables.into_iter().find(|tunable| !tunable.ok) else {
            return Ok(());
        };
        let TunableStatus { path, planned, found, .. } = changed;
        let found = found.unwrap_or_else(|| "gone".to_owned());
        let what = format!("{path} was set to {planned} and is now {found}");
        Err(change_failure("a tunable of the host", &what))
    }

    /// Finds it again, to compare its vCPUs and its state.
    pub fn check_whole(&self) -> Result<(), Failure> {
        let vm = Vm::find(self.host, &self.options.selector);
        if vm.is_err() {
            self.wait_for_end()?;
        }
        self.require_alive()?;
        let mut vm = vm?;
        let now = vm.found.tasks().into_iter().filter(|(_, role)| role.is_vcpu());
        let known = self.tasks.iter().filter(|(_, role)| role.is_vcpu());
        if vm.found.pid != self.process.tid || !now.clone().eq(known.clone().cloned()) {
            let (now, before) = (now.count(), known.count());
            let now = count_noun(now, "vCPU");
            return Err(
                self.change_failure(&format!("it has {now} with other threads, {before} before"))
            );
        }
        let state = vm.monitor.as_mut().map(|monitor| monitor.status()).transpose()?;
        match state {
            Some(state) if !state.running => Err(self.stop_failure(&format!("is {}", state.name))),
            Some(_) | None => Ok(()),
        }
    }

    /// The failure of a machine whose vCPUs do not run.
    pub fn stop_failure(&self, how: &str) -> Failure {
        let text = format!("machine {} {how}, so nothing can be measured", self.short_name());
        Failure::new(Exit::Vm, text).with_hint("continue it, and run the search again")
    }

    fn change_failure(&self, what: &str) -> Failure {
        change_failure(&format!("machine {}", self.short_name()), what)
    }

    /// A machine that ends has no threads for a moment before its process has ended.
    fn wait_for_end(&self) -> Result<(), Failure> {
        for _ in 0..END_CHECKS {
            if !process::task_alive(self.host, self.process)? {
                break;
            }
            SystemClock.sleep_ns(END_PAUSE_NS);
        }
        Ok(())
    }

    fn require_alive(&self) -> Result<(), Failure> {
        if process::task_alive(self.host, self.process)? {
            return Ok(());
        }
        let text = format!("machine {} ended during the search", self.short_name());
        Err(Failure::new(Exit::Vm, text))
    }

    fn short_name(&self) -> String {
        escape::short_name(&self.name).to_string()
    }

    fn role(&self, tid: Tid) -> String {
        let known = self.tasks.iter().find(|(task, _)| task.tid == tid);
        known.map_or_else(|| Role::Worker.to_string(), |(_, role)| role.to_string())
    }

    /// Reads masks and policies of all threads of its process, and of its threads in others.
    fn read_threads(&mut self) -> Result<(), Failure> {
        let names = match self.host.list(&paths::task_dir(self.process.tid)) {
            Ok(names) => names,
            Err(error) if error.is_gone() => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        let own = names.iter().filter_map(|name| name.parse().ok().map(Tid));
        self.masks.clear();
        self.policies.clear();
        for tid in own.chain(self.tasks.iter().map(|(task, _)| task.tid)) {
            let read = self.host.affinity(tid).and_then(|mask| Ok((mask, self.host.policy(tid)?)));
            match read {
                Ok((mask, policy)) => {
                    self.masks.insert(tid, mask);
                    self.policies.insert(tid, policy);
                }
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Run time and run delays of the vCPUs.
    pub fn vcpu_times(&self) -> Result<VcpuTimes, Failure> {
        let mut times = VcpuTimes::default();
        for tid in self.vcpus() {
            let path = paths::task_schedstat(self.process.tid, tid);
            let text = self.host.read_text(&path);
            let text = match text {
                Err(error) if error.is_gone() => {
                    self.require_alive()?;
                    continue;
                }
                text => text?,
            };
            let stat = schedstat::parse(&text).map_err(|error| Failure::from(error.at(&path)))?;
            times.run_ns += stat.run_ns;
            times.delays_ns.insert(tid, stat.delay_ns);
        }
        Ok(times)
    }
}

fn change_failure(subject: &str, what: &str) -> Failure {
    let text = format!(
        "the search ended because another program changed {subject}: {what}; that change was kept"
    );
    Failure::new(Exit::No, text).with_hint("run the search again when nothing else changes that")
}

fn interrupt_failure() -> Failure {
    Failure::new(Exit::Interrupted, "interrupted")
}
