//! Runs starts on this host: creates the environment, runs the trials in it, and undoes all
//! changes.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;

use pinfold_emulate::{Effort, Facts};
use pinfold_host::files;
use pinfold_host::{EventWatcher, HostMut as _, LiveHost, SystemClock, process};
use pinfold_model::{Accelerator, CpuSet, EmulationPlan, Finding, Origin, Plan, Speed, Topology};
use pinfold_probe::loads::{HostLoads, LoadError};
use pinfold_probe::pinload::Pinload;
use pinfold_study::study::{
    Cell, Cells, FactorEffect, Finished, Probe, Runner, StartRequest, Study, TrialError,
    TrialResult,
};

use super::Machine;
use super::NAME;
use super::cell_context::HostFacts;
use super::environment::TrialEnvironment;
use super::guest_trials::TrialGuest;
use super::guests::{self, GuestSetup, Guests};
use super::interference::{Neighbours, free_bytes};
use super::job::EndSignal;
use super::machines::{OtherMachine, RunningMachine};
use super::probes;
use super::trials::{Enter, TrialResources, Trials};
use crate::emulate::helpers::HelperProcesses;
use crate::emulate::status::Endpoint;
use crate::emulate::stored_costs::StoredCosts;
use crate::emulate::supervisor::{self, Activation, with_programs};
use crate::guest::loads::HostLoadControl;
use crate::guest::{Subject, VmStarter};
use crate::message::say;
use crate::{Exit, Failure, Session, host, inputs, interrupt};

/// Maximum duration of a wait.
const LOOK_NS: u64 = 500_000_000;

/// Runs trials on this host.
///
/// ```no_run
/// use pinfold_probe::pinload::Pinload;
/// use pinfold_run::study::{HostRunner, Machine, read};
/// use pinfold_run::{HelperProgram, Session, host};
///
/// let (state, program) = (host::state(None)?, HelperProgram::at("/usr/bin/pinfold"));
/// let machine = Machine::from_study(&read("study.toml")?, "study.toml")?;
/// let pinload = Pinload::install()?;
/// let session = Session { state: &state, program: &program };
/// let _runner = HostRunner::new(&machine, session, &pinload)?;
/// # Ok::<(), pinfold_run::Failure>(())
/// ```
pub struct HostRunner<'a> {
    host: &'a LiveHost,
    topology: &'a Topology,
    session: Session<'a>,
    pinload: &'a Pinload,
    facts: Facts,
    end_signal: EndSignal,
    guests: Guests,
    /// Cached refusals, by the levels that determine them.
    refused: RefCell<BTreeMap<Vec<String>, Option<String>>>,
    /// Set when the warning that neighbours may never access memory was printed.
    cautioned: OnceCell<()>,
}

impl<'a> HostRunner<'a> {
    /// A runner with the folder of its journals, and the program of its loads.
    pub fn new(
        machine: &'a Machine,
        session: Session<'a>,
        pinload: &'a Pinload,
    ) -> Result<Self, Failure> {
        let (host, topology) = (&machine.host, &machine.topology);
        let facts = Facts::find(host)
            .map_err(|error| Failure::from_error(Exit::Host, &error, error.hint()))?;
        let end_signal = EndSignal::new().map_err(|error| {
            Failure::new(Exit::Host, format!("cannot create the notification socket: {error}"))
        })?;
        let (refused, guests) = (RefCell::default(), Guests::default());
        let cautioned = OnceCell::new();
        Ok(Self { host, topology, session, pinload, facts, end_signal, guests, refused, cautioned })
    }

    /// Prepares the guests of these cells, and checks KVM if they use it; guests that are not
    /// available are refused from now on.
    pub fn prepare(&mut self, study: &Study, cells: &Cells) -> Result<(), Failure> {
        let setup = |cell: &Cell| match TrialEnvironment::new(study, cell, self.host_facts()) {
            Ok(TrialEnvironment::Guest(guest)) => Some(*guest),
            Ok(
                TrialEnvironment::Plain(_)
                | TrialEnvironment::Planned(..)
                | TrialEnvironment::Slowed(_),
            )
            | Err(_) => None,
        };
        let wanted = guests::wanted_guests(study, cells, &setup);
        self.guests.prepare(&wanted, self.host)?;
        for setup in &wanted {
            let Some(subject) = self.guests.kvm_subject(setup) else { continue };
            say("Trying a start under KVM …");
            let starter = self.starter(&subject, setup)?;
            if let Err(failure) = starter.with_guest(&setup.plan, |_, _| Ok(())) {
                self.guests.refuse_kvm(setup.isa, &failure);
            }
        }
        self.refused.borrow_mut().clear();
        Ok(())
    }

    /// The probes of a study whose figures stay empty on this host, with the reason.
    ///
    /// # Errors
    /// [`Failure`] if this process cannot be observed.
    pub fn absent_probes(
        &self,
        study: &Study,
        cells: &Cells,
    ) -> Result<Vec<(String, String)>, Failure> {
        let absent = probes::absent_here(self.host, &study.probes);
        let mut absent = absent.map_err(|error| Failure::new(Exit::Host, error.message))?;
        let is_kvm = |cell: &Cell| {
            let guest = cell.guest(study).ok().flatten();
            guest.is_some_and(|guest| guest.accelerator == Accelerator::Kvm)
        };
        let exits = study.probes.contains(&Probe::Exits);
        if exits && !cells.running().any(|(_, cell)| is_kvm(cell)) {
            let why = "only guests under KVM make exits, and KVM does not work here".to_owned();
            absent.push((Probe::Exits.name().to_owned(), why));
        }
        Ok(absent)
    }

    /// The origin of the numbers, with the prepared guests.
    pub fn origin(&self, origin: Origin) -> Origin {
        self.guests.origin(origin)
    }

    fn host_facts(&self) -> HostFacts<'_> {
        HostFacts { host: self.host, topology: self.topology, facts: &self.facts }
    }

    /// Allows this process to run on all CPUs again.
    pub fn release(&self) -> Result<(), Failure> {
        self.host
            .set_affinity(process::own_tid(), &self.topology.inherited_cpus())
            .map_err(Failure::from)
    }

    fn start_on(
        &self,
        setup: &TrialEnvironment,
        request: &StartRequest<'_>,
        finished: &mut Finished<'_>,
    ) -> Result<(), Failure> {
        // Loads and guests inherit the affinity of this process.
        self.release()?;
        let Some(first) = request.requests().next() else { return Ok(()) };
        let beside =
            Neighbours::new(request.study, first.cell, &setup.measured_cpus(), self.topology)
                .map_err(|why| Failure::new(Exit::Input, why))?;
        let mib = beside.neighbour_mib(self.topology, free_bytes(self.host));
        if let Some(caveat) = beside.caveat(self.topology, mib)
            && self.cautioned.set(()).is_ok()
        {
            say(&format!("warning: {caveat}"));
        }
        let neighbours = beside.start(self.pinload, mib).map_err(|error| load_failure(&error))?;
        // A trial that ended after the end of a load was not measured under it.
        let mut finished = |index: usize, result: Result<TrialResult, TrialError>| {
            let kept = neighbours.as_ref().map_or(Ok(()), HostLoads::check);
            let kept = kept.map_err(|error| TrialError::from_message(load_failure(&error).message));
            finished(index, result.and_then(|result| kept.map(|()| result)))
        };
        let memory = beside.memory;
        match setup {
            TrialEnvironment::Guest(guest) => {
                let others = OtherMachine::all(guest, &beside, mib, self.topology)
                    .map_err(|why| Failure::new(Exit::Input, why))?;
                self.in_guest(guest, &others, request, &mut finished)
            }
            TrialEnvironment::Plain(pus) => {
                let enter = Enter { files: Vec::new(), pus: pus.clone(), places: None, memory };
                self.with_trials(request, None, &mut finished, |mut trials| {
                    self.wait_out(&mut trials, &enter)
                })
            }
            TrialEnvironment::Planned(plan, places) => {
                let enter =
                    Enter { files: Vec::new(), pus: plan.pus(), places: places.clone(), memory };
                self.with_trials(request, Some(plan), &mut finished, |mut trials| {
                    self.wait_out(&mut trials, &enter)
                })
            }
            TrialEnvironment::Slowed(plan) => {
                self.with_trials(request, None, &mut finished, |trials| {
                    self.run_slowed(plan, trials)
                })
            }
        }
    }

    /// Runs the trials of a start as processes of this host.
    fn with_trials(
        &self,
        request: &StartRequest<'_>,
        plan: Option<&Plan>,
        finished: &mut Finished<'_>,
        work: impl FnOnce(Trials<'_, '_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let journals = host::journals(self.session.state, &SystemClock)?;
        let loads = self.loads(request)?;
        let means = TrialResources {
            host: self.host,
            pinload: self.pinload,
            program: self.session.program,
            journals: &journals,
            end_signal: &self.end_signal,
            loads: loads.as_ref(),
        };
        work(Trials::new(means, request, plan, &mut |index: usize, result| finished(index, result)))
    }

    /// Runs the trials of a start in one guest, next to others.
    fn in_guest(
        &self,
        guest: &GuestSetup,
        others: &[OtherMachine],
        request: &StartRequest<'_>,
        finished: &mut Finished<'_>,
    ) -> Result<(), Failure> {
        self.run_with_machines(others, &mut |others| {
            let subject = self.subject(guest, 0)?;
            let starter = self.starter(&subject, guest)?;
            starter.with_guest(&guest.plan, |running, facts| {
                let kernel = self.guests.kernel(guest.isa);
                let (pus, sent) = (guest.plan.pus(), BTreeMap::new());
                let equal = others.iter().filter(|one| one.side.is_none());
                let copies = equal.map(|one| one.agent).collect();
                // A trial that ended after the end of another guest's loads was not measured under
                // them.
                TrialGuest { running, facts, kernel, pus, copies, sent }.trials(
                    request,
                    &mut |index: usize, result: Result<TrialResult, TrialError>| {
                        let kept = others.iter().all(RunningMachine::is_loaded);
                        let kept = if kept {
                            Ok(())
                        } else {
                            Err(TrialError::from_message("the load of another machine exited"))
                        };
                        finished(index, result.and_then(|result| kept.map(|()| result)))
                    },
                )
            })
        })
    }

    fn starter<'s>(
        &'s self,
        subject: &'s Subject,
        guest: &GuestSetup,
    ) -> Result<VmStarter<'s>, Failure> {
        guests::starter(self.host_facts(), self.session, self.pinload, subject, guest.memory)
    }

    fn subject(&self, guest: &GuestSetup, index: u32) -> Result<Subject, Failure> {
        self.guests.subject(guest, index).map_err(|why| Failure::new(Exit::Host, why))
    }

    /// Starts other machines, one after the other, and runs the work next to them.
    fn run_with_machines(
        &self,
        others: &[OtherMachine],
        work: &mut dyn FnMut(&[RunningMachine<'_>]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let Some((first, rest)) = others.split_first() else { return work(&[]) };
        let subject = self.subject(&first.setup, first.index)?;
        let starter = self.starter(&subject, &first.setup)?;
        starter.with_guest(&first.setup.plan, |running, _| {
            first.run_with_loads(running, &mut |own| {
                self.run_with_machines(rest, &mut |inner| work(&[&[own], inner].concat()))
            })
        })
    }

    /// The host's loads, stopped, if cells of this start need them.
    fn loads(&self, request: &StartRequest<'_>) -> Result<Option<HostLoadControl>, Failure> {
        let loaded = |cell: &Cell| {
            cell.level_with_effect(request.study, &FactorEffect::HostLoad)
                .is_some_and(|level| level.text == "loaded")
        };
        if !request.requests().any(|wanted| loaded(wanted.cell)) {
            return Ok(None);
        }
        let directory = files::cache_dir()?;
        files::make_dirs(&directory)?;
        let pus = u32::try_from(self.topology.allowed.len()).unwrap_or(u32::MAX);
        let side = HostLoadControl::start(self.pinload, pus, &directory);
        side.map(Some).map_err(|error| load_failure(&error))
    }

    /// Continues the trials at each end.
    fn wait_out(&self, trials: &mut Trials<'_, '_>, enter: &Enter) -> Result<(), Failure> {
        self.keep_off(&enter.pus)?;
        let mut watcher = EventWatcher::new();
        let worked = loop {
            if interrupt::is_requested() {
                break Ok(());
            }
            match trials.turn(enter, &mut |_| Ok(())) {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(failure) => break Err(failure),
            }
            let mut sources = vec![self.end_signal.fd()];
            sources.extend(interrupt::signal_fd());
            if let Err(error) = watcher.wait(LOOK_NS, &sources) {
                break Err(Failure::from(error));
            }
            interrupt::drain_signal_pipe();
        };
        worked.and(trials.abandon())
    }

    /// Excludes this process from the measured CPUs, if there are others.
    fn keep_off(&self, pus: &CpuSet) -> Result<(), Failure> {
        let all = self.topology.inherited_cpus();
        let rest = all.difference(pus);
        let free = if rest.is_empty() { all } else { rest };
        self.host.set_affinity(process::own_tid(), &free).map_err(Failure::from)
    }

    fn run_slowed(&self, plan: &EmulationPlan, mut trials: Trials<'_, '_>) -> Result<(), Failure> {
        let kept = StoredCosts::from_host(self.host, self.session.state, self.topology);
        let programs = HelperProcesses::new(self.pinload, self.session.program, kept?);
        let programs = programs.without_renewal();
        let end_signal = Some(self.end_signal.fd());
        let mut enter = None;
        // The initial speed of the node; the trials of a start may use it at several speeds.
        let begun = plan.vnodes.first().and_then(|vnode| vnode.pus.first());
        let mut speed = begun.map_or(Speed::FULL, |(_, speed)| *speed);
        let (host, topology, facts) = (self.host, self.topology, &self.facts);
        let worked = with_programs(
            supervisor::Machine { host, topology, facts },
            Activation {
                plan,
                starting: None,
                session: self.session,
                door: Endpoint::Closed,
                wake_fd: end_signal,
                effort: Effort::Full,
            },
            &programs,
            &mut |platformed| {
                let place = match &enter {
                    Some(place) => place,
                    None => {
                        let texts = platformed.cautions.drain(..).chain(programs.messages());
                        trials.add_findings(texts.map(|text| Finding::warning("slow cores", text)));
                        let found = platformed.enter(NAME)?;
                        let pus = inputs::pus("the vnode's CPUs", &found.pus)?;
                        enter.insert(Enter { files: found.files, pus, places: None, memory: None })
                    }
                };
                let nodes = &mut platformed.nodes;
                let goes_on = trials.turn(place, &mut |wanted| {
                    let Some(wanted) =
                        TrialEnvironment::speed(wanted).filter(|wanted| *wanted != speed)
                    else {
                        return Ok(());
                    };
                    nodes
                        .set(NAME, wanted, None)
                        .map_err(|error| Failure::from_error(Exit::Host, &error, error.hint()))?;
                    speed = wanted;
                    Ok(())
                })?;
                if !goes_on {
                    // Its processes must end before their cgroups are removed.
                    trials.abandon()?;
                }
                Ok(goes_on)
            },
        );
        worked.and(trials.abandon())
    }
}

fn load_failure(error: &LoadError) -> Failure {
    Failure::from_error(Exit::Host, error, error.hint())
}

impl Runner for HostRunner<'_> {
    fn refusal(&self, study: &Study, cell: &Cell) -> Option<String> {
        let mut key: Vec<String> = study
            .factors
            .iter()
            .filter(|factor| factor.effect != FactorEffect::Variable)
            .filter_map(|factor| cell.level(study, &factor.name).map(str::to_owned))
            .collect();
        key.push(cell.workload(study).name.clone());
        if let Some(known) = self.refused.borrow().get(&key) {
            return known.clone();
        }
        let setup = TrialEnvironment::new(study, cell, self.host_facts());
        let refusal = match &setup {
            Ok(TrialEnvironment::Guest(guest)) => self.guests.refusal(guest),
            Ok(
                TrialEnvironment::Plain(_)
                | TrialEnvironment::Planned(..)
                | TrialEnvironment::Slowed(_),
            ) => None,
            Err(why) => Some(why.clone()),
        };
        let refusal = refusal.or_else(|| {
            let setup = setup.ok()?;
            let beside = Neighbours::new(study, cell, &setup.measured_cpus(), self.topology);
            let TrialEnvironment::Guest(guest) = &setup else { return beside.err() };
            beside.and_then(|beside| OtherMachine::all(guest, &beside, 0, self.topology)).err()
        });
        self.refused.borrow_mut().insert(key, refusal.clone());
        refusal
    }

    fn start(
        &mut self,
        request: &StartRequest<'_>,
        finished: &mut Finished<'_>,
    ) -> Result<(), TrialError> {
        let Some(first) = request.requests().next() else { return Ok(()) };
        let setup = TrialEnvironment::new(request.study, first.cell, self.host_facts());
        let setup = setup.map_err(TrialError::from_message)?;
        self.start_on(&setup, request, finished).map_err(|failure| {
            let error = match failure.exit {
                // A residue would affect the next measurement.
                Exit::Residue => TrialError::fatal(failure.message),
                Exit::No
                | Exit::Input
                | Exit::Host
                | Exit::Vm
                | Exit::NoProgram
                | Exit::Interrupted => TrialError::from_message(failure.message),
            };
            match failure.hint {
                Some(hint) => error.with_hint(hint),
                None => error,
            }
        })
    }
}
