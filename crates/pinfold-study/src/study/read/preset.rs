//! Reads `[quick]` and `[preset.NAME]`: the shorter forms of a study.

use std::collections::BTreeMap;

use pinfold_config::fault::Fault;
use pinfold_config::keys::Keys;
use pinfold_config::value::{Value as Toml, ValueKind};

use super::super::file::{Preset, QUICK, Study};
use super::{levels, named_levels, no_factor, time, whole};

const PRESET: &[&str] =
    &["note", "repetitions", "starts", "warm-up", "levels", "values", "time-limit", "workloads"];

/// Reads all presets.
pub(super) fn presets(keys: &mut Keys, study: &Study) -> Result<BTreeMap<String, Preset>, Fault> {
    let mut all = BTreeMap::new();
    if let Some(table) = keys.take(QUICK) {
        all.insert(QUICK.to_owned(), preset(QUICK, table, study)?);
    }
    let Some(table) = keys.take("preset") else { return Ok(all) };
    let ValueKind::Table(entries) = table.what else {
        return Err(table.kind_fault("preset", "a table of presets, such as [preset.evening]"));
    };
    for (name, at, value) in entries {
        if name == QUICK {
            return Err(Fault::new(at, "preset.quick: write it as [quick]".to_owned()));
        }
        let one = preset(&name, value, study)?;
        all.insert(name, one);
    }
    Ok(all)
}

fn preset(name: &str, table: Toml, study: &Study) -> Result<Preset, Fault> {
    let table_at = table.at;
    let mut keys = Keys::new(table, if name == QUICK { QUICK } else { "preset" }, PRESET)?;
    let (note, at) = keys.take_required("note")?.into_text("note")?;
    if note.trim().is_empty() {
        return Err(Fault::new(
            at,
            format!("note is empty: describe what the {name} form leaves out"),
        ));
    }
    let mut preset = Preset {
        at: table_at,
        note,
        repetitions: whole(&mut keys, "repetitions", 1)?,
        starts: whole(&mut keys, "starts", 1)?,
        warm_up: whole(&mut keys, "warm-up", 0)?,
        levels: BTreeMap::new(),
        values: BTreeMap::new(),
        time_limit_ns: time(&mut keys, "time-limit")?,
        workloads: Vec::new(),
    };
    if let Some(table) = keys.take("values") {
        let at = table.at;
        preset.values = named_levels(table, "values")?;
        if let Some(name) = preset.values.keys().find(|name| !study.values.contains_key(*name)) {
            return Err(Fault::new(at, format!("values: the study has no value {name}")));
        }
    }
    if let Some(table) = keys.take("levels") {
        let ValueKind::Table(entries) = table.what else {
            return Err(table.kind_fault("levels", "a table of factors and levels"));
        };
        for (name, at, value) in entries {
            let factor = study.factor(&name).ok_or_else(|| no_factor(&name, at, study))?;
            let levels = levels(&name, &factor.effect, value)?;
            if let Some(level) = study.baseline.get(&name)
                && !levels.iter().any(|known| known.value == level.value)
            {
                return Err(Fault::new(at, format!("the baseline needs {name} = {level}")));
            }
            preset.levels.insert(name, levels);
        }
    }
    for (name, at) in keys.texts("workloads")? {
        if !study.workloads.iter().any(|workload| workload.name == name) {
            return Err(Fault::new(at, format!("there is no workload {name:?}")));
        }
        preset.workloads.push(name);
    }
    Ok(preset)
}
