//! `pinfold topo`: shows a machine, or captures this one.

use crate::cli::TopoArgs;
use crate::output;
use pinfold_run::{Exit, Failure, host, inputs};

/// Prints the tree, JSON, or a capture.
pub fn topo(arguments: &TopoArgs) -> Result<(), Failure> {
    let host = host::live()?;
    if arguments.capture {
        let text = pinfold_topology::capture(&host)
            .map_err(|error| Failure::from_error(Exit::Host, &error, error.hint()))?;
        output::document(&text);
        return Ok(());
    }
    let topology = inputs::topology(&host, arguments.input.as_deref())?;
    if arguments.json {
        output::data(&pinfold_topology::schema::topology_to_json(&topology))
    } else {
        output::show(&pinfold_topology::render_tree(&topology))
    }
    Ok(())
}
