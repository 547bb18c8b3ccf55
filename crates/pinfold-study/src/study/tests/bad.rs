//! Invalid study files: each is rejected with line, column and reason.

use super::super::*;
use super::world::{FACTS, STUDY, World};
use crate::error::RunError;

#[track_caller]
fn check(from: &str, to: &str, expected: &str) {
    assert!(STUDY.contains(from), "the study has no {from:?}");
    let error = from_toml(&STUDY.replacen(from, to, 1)).unwrap_err();
    assert_eq!(error.to_string(), expected);
}

#[test]
fn files_are_refused_with_line_and_column() {
    check("seed = 5", "sead = 5", "line 3, column 1: the study has no key \"sead\"");
    check(
        "seed = 5",
        "seed = ",
        "line 3, column 8: the text is not TOML: string values must be quoted, expected literal string",
    );
}

#[test]
fn factors_that_do_not_exist() {
    check(
        "\"method == 'none' -> speed == 1\"",
        "\"methode == 'none' -> speed == 1\"",
        "line 7, column 17: constraints: there is no factor or value methode",
    );
    check(
        "share = [\"workload\"]",
        "share = [\"core\"]",
        "line 5, column 10: there is no factor \"core\"",
    );
    check(
        "method = \"none\"\nspeed = 1",
        "methods = \"none\"\nspeed = 1",
        "line 9, column 1: there is no factor \"methods\"",
    );
    check("--cores={cores}", "--cores={core}", "line 25, column 17: {core} is not known");
    check(
        "levels = [\"none\", \"stall\"",
        "levels = [\"none\", \"stahl\"",
        "line 13, column 19: there is no method \"stahl\"",
    );
    check(
        "name = \"cores\"\nlevels = [1, 2, 8]",
        "name = \"cores\"\nlevels = [1]\n[[factor]]\nname = \"variant\"\nlevels = [\"published\"]",
        "line 22, column 11: there is no variant \"published\"",
    );
    check(
        "share = [\"workload\"]",
        "share = [\"method\"]",
        "line 5, column 10: share: each level of method needs a separate start",
    );
    check("x = \"speed\"", "x = \"spede\"", "line 43, column 5: there is no factor \"spede\"");
}

#[test]
fn values_of_the_source_that_select_nothing() {
    fn check(rows: String, expected: &str) {
        let toml = STUDY.replacen("[quick]", &format!("{rows}[quick]"), 1);
        let error = from_toml(&toml).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }

    let half = "ratio(rate, method = 'stall', speed = 0.5)";
    let no_level = "ratio(rate, method = 'stall', speed = 0.6)";
    check(
        row("ratio", no_level),
        "line 59, column 47: ours: ratio selects no cell: speed has no level 0.6",
    );
    check(row("ratio", "ratio(rat, speed = 1)"), "line 59, column 8: no workload gives the figure");
    check(row("kg", half), "line 58, column 8: there is no unit \"kg\"");
    check(
        row("ns", "value(rate, method = 'none')"),
        "line 59, column 9: ours: unit: ns does not convert to that of rate",
    );
    check(
        row("ratio", half) + &row("ratio", half),
        "line 60, column 1: ours: another row shows ratio(rate, method = 'stall', speed = 0.5) too",
    );
    check(
        row("ratio", half).replace("0.5\n", "\"much\"\n"),
        "line 57, column 9: value: much is not",
    );
}

fn row(unit: &str, ours: &str) -> String {
    format!(
        "[[published]]\nplace = \"p\"\nquantity = \"q\"\nvalue = 0.5\nunit = \"{unit}\"\n\
             ours = \"{ours}\"\n"
    )
}

#[test]
fn empty_products_and_wrong_levels() {
    check(
        "levels = [1, 2, 8]",
        "levels = []",
        "line 19, column 10: the factor cores has no levels",
    );
    check(
        "levels = [1, 2, 8]",
        "levels = [1, 0]",
        "line 19, column 14: 0 is not a whole number of at least 1",
    );
    check(
        "levels = [1, 0.5]",
        "levels = [1, 1.5]",
        "line 16, column 14: 1.5 is not a speed above 0 and at most 1",
    );
    check(
        "levels = [1, 2, 8]",
        "levels = [1, 1.0]",
        "line 19, column 14: cores has the level \"1.0\" twice",
    );
    check(
        "method = \"none\"\nspeed = 1",
        "method = \"none\"\nspeed = 0.7",
        "line 10, column 1: speed has no level \"0.7\"",
    );
}

#[test]
fn workloads_figures_and_claims() {
    check(
        "json = \"rate\"",
        "json = \"rate +\"",
        "line 30, column 15: json: found the end, but expected a value",
    );
    check(
        "json = \"rate\"",
        "regex = 'rate'",
        "line 30, column 9: regex: it has no group that holds the number",
    );
    check("json = \"rate\"", "", "line 27, column 1: a figure has either json or regex");
    check(
        "json = \"rate\"",
        "json = \"rate\"\nfrom = \"stdlog\"",
        "line 31, column 8: from: there is no stream \"stdlog\"",
    );
    check(
        "unit = \"per-second\"",
        "unit = \"furlongs\"",
        "line 29, column 8: there is no unit \"furlongs\"",
    );
    check(
        "figure = \"rate\"",
        "figure = \"rat\"",
        "line 41, column 10: no workload gives the figure \"rat\"",
    );
    check(
        "lasts = \"1s\"",
        "lasts = \"1 fortnight\"",
        "line 26, column 12: lasts: unexpected fortnight",
    );
    check(
        "agree = \"abs(error(rate, method = 'stall')) < 5\"",
        "agree = \"fib(rate) < 5\"",
        "line 49, column 10: agree: there is no function fib",
    );
    check(
        "note = \"two blocks\"",
        "note = \" \"",
        "line 55, column 8: note is empty: describe what the quick form leaves out",
    );
    check(
        "[quick]",
        "[quick]\nworkloads = [\"c\"]",
        "line 55, column 14: there is no workload \"c\"",
    );
}

#[test]
fn constraints_that_exclude_everything_or_have_no_value() {
    fn check(world: &World, rule: &str, expected: &str) {
        let toml = STUDY.replacen("\"method == 'none' -> speed == 1\"", &format!("\"{rule}\""), 1);
        let study = from_toml(&toml).unwrap();
        let error = cells(&study, &FACTS, &world.machine).unwrap_err();
        assert!(error.to_string().starts_with(expected), "{error}");
    }

    let world = World::new();
    check(
        &world,
        "cores > 100",
        "line 7, column 16: the constraints exclude all 36 combinations of levels; this one \
         excludes 36: cores > 100",
    );
    check(
        &world,
        "cores == 'one'",
        "line 7, column 23: 1 is a number, one is a string (for a: method none",
    );
    check(&world, "cores", "line 7, column 17: 1 is a number, not true or false");
    let few = HostFacts { pus: 0, ..FACTS };
    let error = cells(&from_toml(STUDY).unwrap(), &few, &world.machine).unwrap_err();
    assert_eq!(error.to_string(), "none of the 18 cells can be run here: too few CPUs (18 cells)");
    let quick =
        from_toml(STUDY).unwrap().apply_preset(&PresetSelection::from_preset(Some(QUICK))).unwrap();
    let error = cells(&quick, &few, &world.machine).unwrap_err();
    let text = error.to_string();
    let expected = "line 54, column 1: preset quick: none of the ";
    assert!(text.starts_with(expected) && text.contains("too few CPUs"), "{text}");
    assert!(error.hint().is_some_and(|hint| hint.contains("pinfold doctor")));
}

/// A store holds the text of its study; one that an older version wrote may not be valid any more.
#[test]
fn a_store_of_an_older_study_file_is_refused_with_the_line() {
    let older = STUDY.replacen("seed = 5", "sead = 5", 1);
    let error = RunError::Stored(from_toml(&older).unwrap_err());
    let expected = "cannot read the study in the store: line 3, column 1: the study has no key";
    assert!(error.to_string().starts_with(expected), "{error}");
}

#[test]
fn figures_distinguished_and_shown_side_by_side() {
    check(
        "json = \"rate\"",
        "regex = '(rate)'\nwhere = \"of == 'pass'\"",
        "line 31, column 9: where and labels apply only to figures with json",
    );
    check(
        "x = \"speed\"",
        "x = \"speed\"\nkind = \"percentiles\"",
        "line 39, column 1: x: leave it out, the x axis of a percentile plot is the percentile",
    );
    check(
        "show = \"ratio\"\nx = \"speed\"",
        "kind = \"sequence\"\nx = \"time\"",
        "line 39, column 1: x: time needs a figure in ns, whose sum is the time",
    );
    check(
        "x = \"speed\"",
        "kind = \"sequence\"",
        "line 39, column 1: show: percentile and sequence plots show values only",
    );
    check(
        "x = \"speed\"\nseries",
        "kind = \"percentiles\"\nseries",
        "line 39, column 1: show: percentile and sequence plots show values only",
    );
    check(
        "x = \"speed\"",
        "x = \"speed\"\nx-unit = \"furlongs\"",
        "line 44, column 10: there is no unit \"furlongs\"",
    );
    check("[quick]", "[preset.quick]", "line 54, column 9: preset.quick: write it as [quick]");
    check("[quick]", "[preset.late]\nnight = 1", "line 55, column 1: preset has no key \"night\"");
    let table = "[[table]]\nname = \"t\"\nfigures = [\"rate\"]\ncolumns = \"speed\"\n[[plot]]";
    check(
        "[[plot]]",
        table,
        "line 39, column 1: columns: leave it out, the figures or statistics are the columns",
    );
    let table = "[[table]]\nname = \"t\"\nfigure = \"rate\"\nstatistics = [\"p99\"]\n[[plot]]";
    check("[[plot]]", table, "line 42, column 15: statistics: \"p99\" is not known");
    let table = "[[table]]\nname = \"t\"\nfigures = [\"rat\"]\n[[plot]]";
    check("[[plot]]", table, "line 41, column 12: no workload gives the figure \"rat\"");
    check(
        "name = \"cores\"\nlevels = [1, 2, 8]",
        "name = \"cores\"\nlevels = [1, 2, 8]\n[[factor]]\nname = \"neighbour\"\nlevels = [\"upstairs\"]",
        "line 22, column 11: there is no place of a neighbour \"upstairs\"",
    );
}
