//! The list of probes.

use pinfold_probe::registry::PROBES;
use pinfold_run::measure::Instrument;
use serde_json::{Value, json};

use crate::screen;

/// As text: two lines for each, so that it fits any terminal.
pub fn list() -> String {
    let mut table = screen::rows();
    table.set_header(["probe", "what it measures\nunit, family; reference tools for --against"]);
    for probe in PROBES {
        let reference_tools: Vec<&str> =
            probe.reference_tools.iter().map(|reference_tool| reference_tool.name()).collect();
        let reference_tools = if reference_tools.is_empty() {
            String::new()
        } else {
            format!("; {}", reference_tools.join(", "))
        };
        let (unit, family) = (probe.unit.name(), probe.family.name());
        table.add_row([probe.name, &format!("{}\n{unit}, {family}{reference_tools}", probe.what)]);
    }
    for one in Instrument::ALL {
        table.add_row([one.name(), &format!("{}\ncount {}", one.what(), one.by())]);
    }
    screen::draw_table(table, 0..0)
}

/// As JSON.
pub fn list_json() -> String {
    let probes: Vec<Value> = PROBES
        .iter()
        .map(|probe| {
            json!({
                        "name": probe.name,
                        "what": probe.what,
                        "unit": probe.unit.name(),
                        "family": probe.family.name(),
                        "anchors": probe.reference_tools.iter().map(|reference_tool| {
                json!({
                    "name": reference_tool.name(),
                    "package": reference_tool.package(),
                    "installed": reference_tool.program().is_ok(),
                })
            }).collect::<Vec<_>>(),
                    })
        })
        .chain(Instrument::ALL.iter().map(|one| {
            let (name, what) = (one.name(), one.what());
            json!({ "name": name, "what": what, "unit": null, "family": "count", "anchors": [] })
        }))
        .collect();
    json!({ "format": "pinfold-probes/1", "probes": probes }).to_string()
}
