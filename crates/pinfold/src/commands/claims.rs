//! `pinfold claims`: the owner of each CPU.

use pinfold_claims::{Claims, render, schema};
use pinfold_host::process;
use pinfold_model::Topology;
use pinfold_run::claims::{add_busy, of_existing};
use pinfold_run::{Exit, Failure, host, inputs, interrupt};

use crate::cli::ClaimsArgs;
use crate::{output, screen};

/// Prints the claims on this host, or on a captured one.
pub fn claims(arguments: &ClaimsArgs, state: Option<&str>) -> Result<(), Failure> {
    let host = host::live()?;
    let topology = inputs::topology(&host, arguments.input.as_deref())?;
    let claims = match &arguments.input {
        Some(input) => read_input(&host, input)?,
        None => {
            let mut claims = of_existing(&host, state)?;
            if arguments.seconds > 0.0 {
                interrupt::install()?;
                add_busy(&host, &mut claims, arguments.seconds)?;
            }
            claims
        }
    };
    show(arguments, &claims, &topology);
    if arguments.input.is_none() && !process::is_root() {
        output::print_message(
            "note: without root, programs and files of other users are not known completely",
        );
    }
    Ok(())
}

fn read_input(host: &pinfold_host::LiveHost, input: &str) -> Result<Claims, Failure> {
    let capture = pinfold_topology::read_capture(host, input)
        .map_err(|error| Failure::from_error(Exit::Input, &error, error.hint()))?;
    Ok(pinfold_claims::read_captured(&capture))
}

fn show(arguments: &ClaimsArgs, claims: &Claims, topology: &Topology) {
    if arguments.json {
        output::print_data(&schema::to_json(claims, &topology.online()));
    } else {
        let columns = screen::columns().map(usize::from);
        output::print_data(&render::claims(claims, topology, columns));
    }
}
