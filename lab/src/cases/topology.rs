//! The output of `pinfold topo` in a shaped guest, compared with that of `lscpu`, which reads sysfs
//! independently.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::error::{LabError, expect_none};
use crate::guest::{Guest, Shape};

/// A CPU as both must see it: OS index, and the OS indexes of the CPUs that share its core, its
/// package and its NUMA node. The numbers of cores and packages are specific to each tool.
type CpuPosition = (u64, Vec<u64>, Vec<u64>, Vec<u64>);

pub(super) fn agrees(guest: &mut Guest, shape: &Shape) -> Result<String, LabError> {
    let said = guest.pinfold(&["topo", "--json"])?;
    let shown = guest.shell("lscpu --parse=CPU,CORE,SOCKET,NODE")?;
    let ours = of_pinfold(&said).ok_or_else(|| LabError::wrong("pinfold topo --json", said))?;
    let theirs = of_lscpu(&shown).ok_or_else(|| LabError::wrong("lscpu --parse", shown))?;
    let pus = shape.smp.split(',').next().and_then(|text| text.parse::<usize>().ok());
    if pus != Some(theirs.len())
        || !theirs.iter().all(|(_, core, _, node)| {
            core.len() == shape.threads && node.len() * shape.nodes.len().max(1) == theirs.len()
        })
    {
        return Err(LabError::wrong("the guest is not as it was shaped", format!("{theirs:?}")));
    }
    let found = ours.symmetric_difference(&theirs);
    let found = found.map(|place| format!("CPU, core, package, node: {place:?}")).collect();
    expect_none("pinfold topo and lscpu differ", found)?;
    Ok(format!("{} CPUs as lscpu sees them", theirs.len()))
}

/// Converts (CPU, core, package, node) numbers to sets of CPUs.
fn places(rows: &[[u64; 4]]) -> BTreeSet<CpuPosition> {
    rows.iter()
        .map(|row| (row[0], sharing(row, 1, rows), sharing(row, 2, rows), sharing(row, 3, rows)))
        .collect()
}

fn sharing(row: &[u64; 4], at: usize, rows: &[[u64; 4]]) -> Vec<u64> {
    let mut pus: Vec<u64> =
        rows.iter().filter(|other| other[at] == row[at]).map(|other| other[0]).collect();
    pus.sort_unstable();
    pus
}

fn of_pinfold(text: &str) -> Option<BTreeSet<CpuPosition>> {
    let json: Value = serde_json::from_str(text.trim()).ok()?;
    let mut rows = Vec::new();
    for pu in json["pus"].as_array()? {
        let number = |key: &str| pu[key].as_u64();
        rows.push([number("os")?, number("core")?, number("package")?, number("node")?]);
    }
    Some(places(&rows))
}

/// `0,0,0,0` for CPU, core, socket and node; an empty node means a single one.
fn of_lscpu(text: &str) -> Option<BTreeSet<CpuPosition>> {
    let mut rows = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let numbers: Vec<u64> = line
            .split(',')
            .map(|part| if part.is_empty() { Ok(0) } else { part.parse() })
            .collect::<Result<_, _>>()
            .ok()?;
        rows.push(numbers.try_into().ok()?);
    }
    Some(places(&rows))
}

#[cfg(test)]
mod tests {
    use super::{of_lscpu, of_pinfold};

    #[test]
    fn both_are_read_as_sets() {
        let lscpu = of_lscpu("# CPU,Core\n0,0,0,0\n1,0,0,0\n2,1,0,1\n").unwrap();
        fn row(os: u32, core: u32, node: u32) -> String {
            format!("{{\"os\":{os},\"core\":{core},\"package\":7,\"node\":{node}}}")
        }
        let same = format!("{{\"pus\":[{},{},{}]}}", row(0, 4, 0), row(1, 4, 0), row(2, 9, 1));
        let other = format!("{{\"pus\":[{},{},{}]}}", row(0, 4, 0), row(1, 5, 0), row(2, 9, 1));
        assert_eq!(of_pinfold(&same).unwrap(), lscpu);
        assert_ne!(of_pinfold(&other).unwrap(), lscpu);
    }
}
