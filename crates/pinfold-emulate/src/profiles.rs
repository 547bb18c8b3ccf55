//! Checks speed profiles at the start, so that an impossible row is reported early.

use std::collections::BTreeSet;

use pinfold_host::Host;

use crate::emulation::Emulation;
use crate::node::{Node, ProfileRow};
use crate::{SpeedError, frequency};

/// Checks that every row of every vnode's profile can be applied.
///
/// # Errors
/// [`SpeedError::Row`] with the first that cannot be applied.
pub(crate) fn check(host: &dyn Host, nodes: &[(&Node, &dyn Emulation)]) -> Result<(), SpeedError> {
    for (node, emulation) in nodes {
        for row in &node.profile {
            emulation
                .check_speeds(&node.at(row.speed).cores)
                .map_err(|error| error.in_row(&node.profile_file, row.line))?;
        }
    }
    let scaled: Vec<&Node> =
        nodes.iter().map(|(node, _)| *node).filter(|node| node.method.sets_frequency()).collect();
    let times: BTreeSet<u64> =
        scaled.iter().flat_map(|node| node.profile.iter().map(|row| row.at_ns)).collect();
    for at_ns in times {
        let wanted: Vec<Node> = scaled
            .iter()
            .map(|node| row(node, at_ns).map_or((*node).clone(), |row| node.at(row.speed)))
            .collect();
        frequency::agree(host, &wanted.iter().collect::<Vec<_>>()).map_err(|error| {
            let first = scaled.iter().find_map(|node| {
                let row = row(node, at_ns).filter(|row| row.at_ns == at_ns)?;
                Some((node.profile_file.as_str(), row.line))
            });
            let (file, line) = first.unwrap_or(("", 1));
            error.in_row(file, line)
        })?;
    }
    Ok(())
}

/// The row that is active at a time.
fn row(node: &Node, at_ns: u64) -> Option<ProfileRow> {
    node.profile.iter().take_while(|row| row.at_ns <= at_ns).last().copied()
}
