//! `pinfold topo`: shows a machine, or captures this one.

use crate::cli::TopoArgs;
use crate::output;
use pinfold_claims::Claims;
use pinfold_host::{LiveHost, SnapshotHost, paths};
use pinfold_run::{Exit, Failure, claims, host, inputs};

/// Prints the tree, JSON, or a capture.
pub fn topo(arguments: &TopoArgs, state: Option<&str>) -> Result<(), Failure> {
    let host = host::live()?;
    if arguments.capture {
        let text = pinfold_topology::capture(&host)
            .map_err(|error| Failure::from_error(Exit::Host, &error, error.hint()))?;
        output::document(&with_claims(&host, &text, state)?);
        return Ok(());
    }
    let topology = inputs::topology(&host, arguments.input.as_deref())?;
    if arguments.json {
        output::print_data(&pinfold_topology::schema::topology_to_json(&topology))
    } else {
        output::show(&pinfold_topology::render_tree(&topology))
    }
    Ok(())
}

/// A capture with the claims on the CPUs of this host, without the names of their owners.
fn with_claims(host: &LiveHost, text: &str, state: Option<&str>) -> Result<String, Failure> {
    let found = claims::of_existing(host, state).unwrap_or_else(|failure| {
        output::print_message(&format!(
            "warning: claims: placements are not in the capture: {failure}"
        ));
        let mut claims = Claims::default();
        claims.read_owners(host);
        claims
    });
    let online = inputs::topology(host, None)?.online();
    let mut capture =
        SnapshotHost::parse(text).map_err(|error| Failure::new(Exit::Host, error.to_string()))?;
    capture.insert_file(&paths::captured_claims(), pinfold_claims::for_capture(&found, &online));
    Ok(capture.to_text())
}
