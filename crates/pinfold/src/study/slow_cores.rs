//! Slows cores for the trials of a study, with the supervisor of `pinfold emulate`.

use pinfold_model::{CpuSet, Speed};
use pinfold_run::study::{SlowCores, SlowNode, SlowRequest, Turn};
use pinfold_run::{Failure, inputs};

use crate::commands::emulate::{Endpoint, Kept, Machine, Platformed, Programs, with_programs};

/// The methods of `pinfold emulate`.
pub struct Emulated;

impl SlowCores for Emulated {
    fn run(&self, request: &SlowRequest<'_>, turn: &mut Turn<'_>) -> Result<(), Failure> {
        let SlowRequest { host, topology, facts, state, pinload, plan, bell } = *request;
        let programs = Programs::new(pinload, Kept::of(host, state, topology)?).without_renewal();
        with_programs(
            Machine { host, topology, facts },
            (state, Endpoint::Closed),
            plan,
            (&programs, Some(bell)),
            &mut |platformed| turn(platformed),
        )
    }
}

impl SlowNode for Platformed<'_> {
    fn enter(&self, name: &str) -> Result<(Vec<String>, CpuSet), Failure> {
        let found = Platformed::enter(self, name)?;
        Ok((found.files, inputs::pus("the vnode's PUs", &found.pus)?))
    }

    fn set_speed(&mut self, name: &str, speed: Speed) -> Result<(), Failure> {
        let set = self.nodes.set(name, speed, None);
        set.map_err(|error| Failure::from_error(pinfold_run::Exit::Host, &error, error.hint()))
    }
}
