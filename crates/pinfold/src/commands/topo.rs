//! `pinfold topo`: shows a machine, or captures this one.

use crate::cli::TopoArgs;
use crate::common;
use crate::failure::{Exit, Failure};
use crate::output;

/// Prints the tree, JSON, or a capture.
pub fn topo(arguments: &TopoArgs) -> Result<(), Failure> {
    let host = common::host()?;
    if arguments.capture {
        let text = pinfold_topology::capture(&host)
            .map_err(|error| Failure::from_error(Exit::Host, &error, error.hint()))?;
        output::document(&text);
        return Ok(());
    }
    let topology = common::topology(&host, arguments.input.as_deref())?;
    match arguments.json {
        true => output::data(&pinfold_topology::schema::topology_to_json(&topology)),
        false => output::show(&pinfold_topology::render_tree(&topology)),
    }
    Ok(())
}
