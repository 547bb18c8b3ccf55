//! Starts on this host: a ground is made, its trials run on it, and all is taken back.

use std::cell::RefCell;
use std::collections::BTreeMap;

use pinfold_host::user::{self, StateDir};
use pinfold_host::{HostMut as _, LiveHost, SystemClock, Vigil, process};
use pinfold_model::{CpuSet, EmulationPlan, Speed, Topology};
use pinfold_probe::pinload::Pinload;
use pinfold_speed::Facts;
use pinfold_study::study::{Acts, Cell, Finished, Runner, StartRequest, Study, TrialError};

use super::ground::{Ground, NAME};
use super::job::Bell;
use super::trials::{Enter, Means, Trials};
use crate::commands::emulate::{Door, Programs, with_programs};
use crate::common::{self, host_failure};
use crate::failure::{Exit, Failure};
use crate::tune::loads::HostSide;
use crate::{interrupt, place};

/// A wait never lasts longer, whatever rings.
const LOOK_NS: u64 = 500_000_000;

/// Runs trials on this host.
pub struct HostRunner<'a> {
    host: &'a LiveHost,
    topology: &'a Topology,
    state: &'a StateDir,
    pinload: &'a Pinload,
    facts: Facts,
    bell: Bell,
    /// Refusals by what decides them: cells differ in much that does not.
    refused: RefCell<BTreeMap<Vec<String>, Option<String>>>,
}

impl<'a> HostRunner<'a> {
    pub fn new(
        host: &'a LiveHost,
        topology: &'a Topology,
        (state, pinload): (&'a StateDir, &'a Pinload),
    ) -> Result<Self, Failure> {
        let facts = Facts::find(host)
            .map_err(|error| Failure::from_error(Exit::Host, &error, error.hint()))?;
        let bell =
            Bell::new().map_err(|error| Failure::new(Exit::Host, format!("no bell: {error}")))?;
        let refused = RefCell::default();
        Ok(Self { host, topology, state, pinload, facts, bell, refused })
    }

    /// This process may run on all PUs again.
    pub fn release(&self, topology: &Topology) -> Result<(), Failure> {
        self.host
            .set_affinity(process::own_tid(), &topology.allowed)
            .map_err(|error| host_failure(&error))
    }

    fn start_on(
        &self,
        ground: &Ground,
        request: &StartRequest<'_>,
        finished: &mut Finished<'_>,
    ) -> Result<(), Failure> {
        let journals = place::journals(self.state, &SystemClock)?;
        let means =
            Means { host: self.host, pinload: self.pinload, journals: &journals, bell: &self.bell };
        let _loads = self.loads(request)?;
        let mut finished = |index: usize, result| finished(index, result);
        match ground {
            Ground::Plain(pus) => {
                let enter = Enter { files: Vec::new(), pus: pus.clone() };
                let mut trials = Trials::new(means, request, None, &mut finished);
                self.wait_out(&mut trials, &enter)
            }
            Ground::Planned(plan) => {
                let enter = Enter { files: Vec::new(), pus: plan.pus() };
                let mut trials = Trials::new(means, request, Some(plan), &mut finished);
                self.wait_out(&mut trials, &enter)
            }
            Ground::Slowed(plan) => {
                let trials = Trials::new(means, request, None, &mut finished);
                self.slowed(plan, trials)
            }
        }
    }

    /// The host's loads, running, if the cells of this start want them.
    fn loads(&self, request: &StartRequest<'_>) -> Result<Option<HostSide>, Failure> {
        let loaded = |cell: &Cell| {
            cell.acting(request.study, &Acts::HostLoad).is_some_and(|level| level.text == "loaded")
        };
        let wanted = request.wanted().next().is_some_and(|wanted| loaded(wanted.cell));
        if !wanted {
            return Ok(None);
        }
        let failed = |error: &pinfold_probe::loads::LoadError| {
            Failure::from_error(Exit::Host, error, error.hint())
        };
        let directory = user::cache_dir().map_err(|error| host_failure(&error))?;
        user::make_dirs(&directory).map_err(|error| host_failure(&error))?;
        let pus = u32::try_from(self.topology.allowed.len()).unwrap_or(u32::MAX);
        let side = HostSide::start(self.pinload, pus, &directory).map_err(|e| failed(&e))?;
        side.set(true).map_err(|e| failed(&e))?;
        Ok(Some(side))
    }

    /// Lets trials go on whenever the bell rings.
    fn wait_out(&self, trials: &mut Trials<'_, '_>, enter: &Enter) -> Result<(), Failure> {
        self.keep_off(&enter.pus)?;
        let mut vigil = Vigil::new();
        let worked = loop {
            if interrupt::requested() {
                break Ok(());
            }
            match trials.turn(enter) {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(failure) => break Err(failure),
            }
            let mut sources = vec![self.bell.fd()];
            sources.extend(interrupt::bell());
            if let Err(error) = vigil.wait(LOOK_NS, &sources) {
                break Err(host_failure(&error));
            }
            interrupt::silence();
        };
        worked.and(trials.abandon())
    }

    /// This process stays off the PUs that are measured, if there are others.
    fn keep_off(&self, pus: &CpuSet) -> Result<(), Failure> {
        let rest = self.topology.allowed.difference(pus);
        let free = if rest.is_empty() { &self.topology.allowed } else { &rest };
        self.host.set_affinity(process::own_tid(), free).map_err(|error| host_failure(&error))
    }

    fn slowed(&self, plan: &EmulationPlan, mut trials: Trials<'_, '_>) -> Result<(), Failure> {
        let programs = Programs::new(self.pinload);
        let bell = Some(self.bell.fd());
        let mut enter = None;
        // What the node begins with; the trials of a start may share it at several speeds.
        let begun = plan.vnodes.first().and_then(|vnode| vnode.pus.first());
        let mut speed = begun.map_or(Speed::FULL, |(_, speed)| *speed);
        let worked = with_programs(
            self.host,
            (self.state, Door::Closed),
            plan,
            (&programs, bell),
            &mut |platformed| {
                let place = match &enter {
                    Some(place) => place,
                    None => {
                        let found = platformed.enter(NAME)?;
                        let pus = common::pus("the vnode's PUs", &found.pus)?;
                        enter.insert(Enter { files: found.files, pus })
                    }
                };
                let wanted = trials.pending().and_then(|wanted| Ground::speed(wanted));
                if let Some(wanted) = wanted.filter(|wanted| *wanted != speed) {
                    platformed
                        .nodes
                        .set(NAME, wanted, None)
                        .map_err(|error| Failure::from_error(Exit::Host, &error, error.hint()))?;
                    speed = wanted;
                }
                let goes_on = trials.turn(place)?;
                if !goes_on {
                    // Its processes end before the groups that they are in.
                    trials.abandon()?;
                }
                Ok(goes_on)
            },
        );
        worked.and(trials.abandon())
    }
}

impl Runner for HostRunner<'_> {
    fn refusal(&self, study: &Study, cell: &Cell) -> Option<String> {
        let key: Vec<String> = study
            .factors
            .iter()
            .filter(|factor| factor.acts != Acts::Variable)
            .filter_map(|factor| cell.level(study, &factor.name).map(str::to_owned))
            .collect();
        if let Some(known) = self.refused.borrow().get(&key) {
            return known.clone();
        }
        let refusal = Ground::of(study, cell, (self.topology, &self.facts)).err();
        self.refused.borrow_mut().insert(key, refusal.clone());
        refusal
    }

    fn start(
        &mut self,
        request: &StartRequest<'_>,
        finished: &mut Finished<'_>,
    ) -> Result<(), TrialError> {
        let Some(first) = request.wanted().next() else { return Ok(()) };
        let ground = Ground::of(request.study, first.cell, (self.topology, &self.facts))
            .map_err(TrialError::failed)?;
        self.start_on(&ground, request, finished).map_err(|failure| {
            let error = match failure.exit {
                // What is left behind would be measured by the next.
                Exit::Residue => TrialError::fatal(failure.message),
                Exit::No | Exit::Input | Exit::Host | Exit::Vm | Exit::Interrupted => {
                    TrialError::failed(failure.message)
                }
            };
            match failure.hint {
                Some(hint) => error.with_hint(hint),
                None => error,
            }
        })
    }
}
