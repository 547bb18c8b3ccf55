//! `[[published]]`: values of the source.

use pinfold_config::fault::Fault;
use pinfold_config::keys::Keys;
use pinfold_config::value::Value as Toml;
use pinfold_model::Unit;

use super::super::expr::Argument;
use super::super::file::{PublishedValue, Rule, Study};
use super::report::{check_claim, figures_of};
use super::{expr_fault, rule};

const PUBLISHED: &[&str] = &["place", "quantity", "value", "spread", "unit", "ours"];
/// The unit of a ratio.
const RATIO: &str = "ratio";

/// Reads the values of the source.
pub(super) fn read_published(keys: &mut Keys, study: &mut Study) -> Result<(), Fault> {
    for table in keys.tables("published")? {
        let at = table.at;
        let value = published_value(table, study)?;
        if study.published.iter().any(|known| known.ours.text == value.ours.text) {
            let why = format!("ours: another row shows {} too", value.ours.text);
            return Err(Fault::new(at, why));
        }
        study.published.push(value);
    }
    Ok(())
}

/// Parses one value of the source.
fn published_value(table: Toml, study: &Study) -> Result<PublishedValue, Fault> {
    let mut keys = Keys::new(table, "published", PUBLISHED)?;
    let (place, _) = keys.take_required("place")?.into_text("place")?;
    let (quantity, _) = keys.take_required("quantity")?.into_text("quantity")?;
    let value = published_number(keys.take_required("value")?)?;
    let spread = keys.text("spread")?.map_or_else(String::new, |(text, _)| text);
    let (unit, unit_at) = keys.take_required("unit")?.into_text("unit")?;
    let unit = parse_unit(&unit, unit_at)?;
    let (text, at) = keys.take_required("ours")?.into_text("ours")?;
    let ours = rule(text, at, "ours")?;
    check_claim(&ours, study, "ours")?;
    check_levels(&ours, study)?;
    let figures = figures_of(&ours.expr);
    if let Some(unit) = unit {
        check_unit(&ours, unit, study)?;
    }
    Ok(PublishedValue { place, quantity, value, spread, unit, figures, ours })
}

fn published_number(value: Toml) -> Result<f64, Fault> {
    let at = value.at;
    let level = super::level("value", value)?;
    let number = level.number().filter(|number| number.is_finite());
    number.ok_or_else(|| Fault::new(at, format!("value: {} is not a number", level.text)))
}

fn parse_unit(text: &str, at: usize) -> Result<Option<Unit>, Fault> {
    if text == RATIO {
        return Ok(None);
    }
    Unit::from_name(text).map(Some).ok_or_else(|| {
        Fault::new(at, format!("there is no unit {text:?}"))
            .with_hint(format!("available: {RATIO}, {}", Unit::ALL.map(Unit::name).join(", ")))
    })
}

/// Each level that its functions select must be one of its factor, else no cell is selected.
fn check_levels(ours: &Rule, study: &Study) -> Result<(), Fault> {
    for (function, arguments, _) in ours.expr.calls() {
        for Argument { name, value } in arguments {
            let factor = name.as_deref().and_then(|name| study.factor(name));
            let (Some(factor), Some(wanted)) = (factor, value.constant()) else { continue };
            if !factor.levels.iter().any(|level| level.value == *wanted) {
                let known: Vec<&str> =
                    factor.levels.iter().map(|level| level.text.as_str()).collect();
                let why =
                    format!("{function} selects no cell: {} has no level {wanted}", factor.name);
                let error = super::ExprError { at: value.at(), why };
                return Err(expr_fault("ours", ours.at, &error)
                    .with_hint(format!("its levels are {}", known.join(", "))));
            }
        }
    }
    Ok(())
}

/// The values of a figure have its unit.
fn check_unit(ours: &Rule, unit: Unit, study: &Study) -> Result<(), Fault> {
    let figures: Vec<_> = study.workloads.iter().flat_map(|workload| &workload.figures).collect();
    for (function, arguments, at) in ours.expr.calls() {
        let Some(name) = arguments.first().and_then(|first| first.value.as_name()) else {
            continue;
        };
        let declared = figures.iter().find(|figure| figure.name == name);
        let differs = declared.is_some_and(|figure| figure.unit != unit);
        if function == "value" && differs {
            let why = format!("unit: {} does not convert to that of {name}", unit.name());
            return Err(expr_fault("ours", ours.at, &super::ExprError { at, why }));
        }
    }
    Ok(())
}
