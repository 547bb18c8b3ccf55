//! Tables, charts and JSON of measurements and comparisons.
//!
//! Labels that differ between rows are columns; the others are printed once. Missing values are not
//! printed as numbers: a quantile with too few samples is a dash with the number of samples that it
//! needs, and a tail without events gets the upper bound that follows.

mod arrivals;
mod compared;
mod json;
mod list;
mod steps;
mod wakeups;

use std::collections::{BTreeMap, BTreeSet};

use pinfold_model::{Accelerator, Family, Figure, Unit};
use pinfold_probe::registry::{Picture, Probe};
use pinfold_report::format::{self, MISSING};
use pinfold_report::terminal;
use pinfold_stats::{
    Capacity, Direction, P999_SAMPLES, SteadyState, Tail, gap_curve, quantile_curve, steady,
};
use pinfold_study::measured::{Measurement, StealTime};

use crate::screen;

pub use compared::{answer, comparison, comparison_json, cross_check, cross_check_json};
pub use json::json;
pub use list::{list, list_json};
use wakeups::Wakeups;

/// How samples with steal time are treated.
pub const KEPT: &str = "rates exclude windows with stolen time, tails keep every sample";
/// Number of points of the chart of stalls.
const GAP_POINTS: usize = 120;
/// Number of columns of a bar.
const BAR: usize = 12;
/// Maximum number of charts; more would hide the table.
const MOST_PICTURES: usize = 4;

/// The samples of one figure over all blocks.
pub struct Pooled {
    /// The figure, with the samples of all blocks.
    pub figure: Figure,
    /// Steadiness of the samples of the first block.
    pub steadiness: SteadyState,
    /// For wake-ups: those that happened, separated from the skipped periods.
    pub wakeups: Option<Wakeups>,
}

/// Probe, labels and CPU.
type Key = (String, BTreeMap<String, String>, Option<u32>);

/// The figures of all blocks, pooled by key.
pub fn pool_figures(measurement: &Measurement) -> Vec<Pooled> {
    pool(measurement.blocks.iter().flat_map(|block| &block.figures))
}

fn pool<'f>(figures: impl Iterator<Item = &'f Figure>) -> Vec<Pooled> {
    let mut order = Vec::new();
    let mut all: BTreeMap<Key, Pooled> = BTreeMap::new();
    for figure in figures {
        let key = (figure.probe.clone(), figure.labels.clone(), figure.cpu);
        let steadiness = match figure.family {
            Family::Capacity => steady(&figure.samples),
            Family::Tail | Family::Count | Family::Place => SteadyState::TooFew,
        };
        let kept = steadiness.of_samples(&figure.samples).to_vec();
        // For each block separately: the skipped periods of a late wake-up end with the block.
        let wakeups = Wakeups::from_figure(figure);
        match all.get_mut(&key) {
            Some(one) => {
                one.figure.samples.extend(kept);
                one.figure.duration_ns += figure.duration_ns;
                one.figure.dropped += figure.dropped;
                one.figure.disturbed += figure.disturbed;
                one.figure.flags.extend(figure.flags.iter().cloned());
                if matches!(steadiness, SteadyState::No { .. }) {
                    one.steadiness = steadiness;
                }
                one.wakeups =
                    one.wakeups.take().zip(wakeups).map(|(all, more)| all.merge_blocks(more));
            }
            None => {
                order.push(key.clone());
                let figure = Figure { samples: kept, ..figure.clone() };
                all.insert(key, Pooled { figure, steadiness, wakeups });
            }
        }
    }
    order.iter().filter_map(|key| all.remove(key)).collect()
}

/// The complete text output.
pub fn text(measurement: &Measurement, probe: &Probe) -> String {
    let all = pool_figures(measurement);
    let blocks = measurement.blocks.len();
    let times = if blocks == 1 { String::new() } else { format!(", {blocks} blocks") };
    let mut text = format!("{}: {}\n", probe.name, probe.what);
    text.push_str(&format!("{}{times}, by {}\n", measurement.place, measurement.tool));
    for family in [Family::Capacity, Family::Tail, Family::Count] {
        let some: Vec<&Pooled> = all.iter().filter(|one| one.figure.family == family).collect();
        if !some.is_empty() {
            text.push_str(&format!("\n{}\n", table(&some, family)));
        }
    }
    for line in notes(&all) {
        text.push_str(&format!("{line}\n"));
    }
    for line in steps::lines(&all) {
        text.push_str(&format!("{line}\n"));
    }
    text.push_str(&wakeups::table(&all));
    if probe.picture == Picture::Gaps {
        text.push_str(&arrivals::table(&all));
    }
    let stolen = StealTime::from_blocks(&measurement.blocks);
    if stolen.is_reportable() {
        text.push_str(&format!("stolen time: {stolen}\n"));
    }
    for picture in pictures(&all, probe.picture) {
        text.push_str(&format!("\n{picture}"));
    }
    text.push_str(&format!("\n{}\n", origin(measurement)));
    text
}

/// A figure that has just arrived: its labels and its median, or the number of places.
pub fn format_arrived_figure(figure: &Figure) -> String {
    let value = match figure.family {
        Family::Place => figure.samples.len().to_string(),
        Family::Capacity | Family::Tail | Family::Count => {
            format::maybe(pinfold_stats::median(&figure.samples), figure.unit)
        }
    };
    format!("{}: {value}", own_words(words(figure), &Vec::new()).join(" "))
}

/// A table of figures of one family.
fn table(all: &[&Pooled], family: Family) -> String {
    let common = common(all.iter().map(|one| words(&one.figure)));
    let mut table = screen::rows();
    let named = all.iter().any(|one| !own_words(words(&one.figure), &common).is_empty());
    let pinned = all.iter().any(|one| one.figure.cpu.is_some());
    let mut head: Vec<String> = Vec::new();
    head.extend(pinned.then(|| "CPU".to_owned()));
    head.extend(named.then(|| "figure".to_owned()));
    let names = head.len();
    head.extend(columns(family).iter().map(|name| (*name).to_owned()));
    let width = head.len();
    table.set_header(head);
    // Bars compare, so there must be several with the same unit.
    let units: BTreeSet<&str> = all.iter().map(|one| one.figure.unit.name()).collect();
    let most = if all.len() > 1 && units.len() == 1 {
        all.iter().filter_map(|one| middle(one)).fold(0.0, f64::max)
    } else {
        0.0
    };
    for one in all {
        let mut row = Vec::new();
        row.extend(
            pinned
                .then(|| one.figure.cpu.map_or_else(|| MISSING.to_owned(), |cpu| cpu.to_string())),
        );
        row.extend(named.then(|| own_words(words(&one.figure), &common).join(", ")));
        row.extend(cells(one, most));
        table.add_row(row);
    }
    // The last column of capacities is a bar or a word.
    let numbers = names..width - usize::from(family == Family::Capacity);
    let table = screen::draw_table(table, numbers);
    match labels_line(&common).as_str() {
        "" => table,
        reported => format!("{reported}\n{table}"),
    }
}

fn columns(family: Family) -> &'static [&'static str] {
    match family {
        Family::Capacity => &["windows", "best", "p10", "median", "left out", ""],
        Family::Tail => &["n", "median", "p99", "p99.9", "max", ">100 µs", ">500 µs", ">1 ms"],
        Family::Count => &["samples", "median", "least", "most"],
        Family::Place => &[],
    }
}

fn cells(one: &Pooled, most: f64) -> Vec<String> {
    let Figure { samples, unit, family, disturbed, .. } = &one.figure;
    let value = |number: Option<f64>| format::maybe(number, *unit);
    match family {
        Family::Capacity => {
            let direction = direction(&one.figure);
            let Some(found) = Capacity::new(samples, *disturbed, direction) else {
                return vec![MISSING.to_owned(); columns(*family).len()];
            };
            let word = match one.steadiness {
                _ if found.is_contended() => "contended".to_owned(),
                SteadyState::No { .. } => "not steady".to_owned(),
                SteadyState::From(_) | SteadyState::TooFew if most > 0.0 => {
                    terminal::bar(found.median / most, bar_columns())
                }
                SteadyState::From(_) | SteadyState::TooFew => String::new(),
            };
            vec![
                format::count(u64::try_from(found.windows).unwrap_or(u64::MAX)),
                value(Some(found.best)),
                value(Some(found.p10)),
                value(Some(found.median)),
                format::percent(found.excluded_share()),
                word,
            ]
        }
        Family::Tail => {
            let tail = tail(&one.figure);
            let mut cells = vec![format::count(u64::try_from(tail.samples).unwrap_or(u64::MAX))];
            cells.extend([tail.p50_ns, tail.p99_ns, tail.p999_ns, tail.max_ns].map(value));
            cells.extend(tail.exceedances.iter().map(|over| match (over.samples, unit) {
                (1.., Unit::Nanoseconds) => over.count.to_string(),
                (_, _) => MISSING.to_owned(),
            }));
            cells
        }
        Family::Place => Vec::new(),
        Family::Count => {
            let of = |p| value(pinfold_stats::quantile(samples, p));
            vec![samples.len().to_string(), of(0.5), of(0.0), of(1.0)]
        }
    }
}

/// A figure's tail.
pub fn tail(figure: &Figure) -> Tail {
    Tail::new(figure.samples.clone(), figure.duration_ns, figure.dropped)
}

/// The direction of improvement of a figure; counts are never compared.
pub fn direction(figure: &Figure) -> Direction {
    match figure.unit.higher_is_better() {
        Some(true) => Direction::HigherIsBetter,
        Some(false) | None => Direction::LowerIsBetter,
    }
}

fn middle(one: &Pooled) -> Option<f64> {
    pinfold_stats::median(&one.figure.samples)
}

/// Probe and labels, each with its name.
type Words = Vec<(String, String)>;

fn words(figure: &Figure) -> Words {
    words_of(&figure.probe, &figure.labels)
}

fn words_of(probe: &str, labels: &BTreeMap<String, String>) -> Words {
    let labels = labels.iter().map(|(name, text)| (name.clone(), size_text(name, text)));
    std::iter::once((String::new(), probe.to_owned())).chain(labels).collect()
}

/// What all rows have in common, which is printed once.
fn common(mut rows: impl Iterator<Item = Words>) -> Words {
    let mut shared = rows.next().unwrap_or_default();
    rows.for_each(|row| shared.retain(|word| row.contains(word)));
    shared
}

/// The labels of a single figure: words are printed alone, numbers with their name.
fn own_words(mut own: Words, common: &Words) -> Vec<String> {
    own.retain(|word| !common.contains(word));
    own.sort_by_key(|(_, text)| text.starts_with(|letter: char| letter.is_ascii_digit()));
    own.into_iter()
        .map(
            |(name, text)| {
                if text.parse::<f64>().is_ok() { format!("{name} {text}") } else { text }
            },
        )
        .collect()
}

/// The common labels as one line: `period-us 1000, policy other`.
fn labels_line(common: &Words) -> String {
    let reported = common.iter().filter(|(name, _)| !name.is_empty());
    reported.map(|(name, text)| format!("{name} {text}")).collect::<Vec<_>>().join(", ")
}

/// Formats sizes in bytes; they have the word in their name.
fn size_text(name: &str, text: &str) -> String {
    match text.parse::<u64>() {
        Ok(size) if name.ends_with("bytes") => format::bytes(size),
        Ok(_) | Err(_) => text.to_owned(),
    }
}

/// Remarks that are not in the table.
fn notes(all: &[Pooled]) -> Vec<String> {
    let mut notes = bounds(all);
    for one in all {
        let figure = &one.figure;
        if figure.family == Family::Tail && figure.samples.is_empty() {
            notes.push(format!(
                "{}no events in {} of observation",
                name(&one.figure),
                format::duration(figure.duration_ns as f64)
            ));
        }
        if matches!(one.steadiness, SteadyState::No { .. }) {
            notes.push(format!("{}not steady: the level kept changing", name(&one.figure)));
        }
        if figure.dropped > 0 {
            notes.push(format!(
                "{}{} samples did not fit into memory and are missing",
                name(&one.figure),
                figure.dropped
            ));
        }
    }
    notes.extend(flags(all));
    merge(&mut notes);
    let short = all.iter().any(|one| {
        one.figure.family == Family::Tail && (1..P999_SAMPLES).contains(&one.figure.samples.len())
    });
    if short {
        notes.push(format!(
            "p99.9 needs {} samples; increase --seconds or --blocks",
            format::count(P999_SAMPLES as u64)
        ));
    }
    notes
}

/// Upper bounds from the absence of long samples: one line for each CPU, regardless of the number
/// of figures.
fn bounds(all: &[Pooled]) -> Vec<String> {
    let mut found: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for one in all.iter().filter(|one| one.figure.family == Family::Tail) {
        let bound = tail(&one.figure).exceedances.last().and_then(|over| over.upper_bound);
        if let Some(bound) = bound.filter(|_| one.figure.unit == Unit::Nanoseconds) {
            found.entry(name(&one.figure)).or_default().push(bound);
        }
    }
    let reported = found.into_iter().map(|(who, bounds)| {
        let several = match bounds.len() {
            1 => String::new(),
            many => format!(" (in {many} figures)"),
        };
        let most = format::percent(bounds.into_iter().fold(0.0, f64::max));
        format!("{who}no sample over 1 ms{several}: upper bound {most} (95 %, rule of three)")
    });
    reported.collect()
}

/// The flags of all figures; for those with a number, the range.
fn flags(all: &[Pooled]) -> Vec<String> {
    let mut ranges: BTreeMap<(String, &str), (u64, u64)> = BTreeMap::new();
    let mut plain = BTreeSet::new();
    for one in all {
        for flag in &one.figure.flags {
            let number = flag.rsplit_once(' ').and_then(|(word, n)| Some((word, n.parse().ok()?)));
            match number {
                Some((word, number)) => {
                    let word = flag_text(word);
                    let range = ranges.entry((name(&one.figure), word)).or_insert((number, number));
                    *range = (range.0.min(number), range.1.max(number));
                }
                None => {
                    plain.insert(format!("{}{flag}", name(&one.figure)));
                }
            }
        }
    }
    let reported = ranges.into_iter().map(|((who, word), (least, most))| {
        if least == most {
            format!("{who}{word} {least}")
        } else {
            format!("{who}{word} {least} to {most}")
        }
    });
    plain.into_iter().chain(reported).collect()
}

/// A flag with a number, as text for the user.
fn flag_text(flag: &str) -> &str {
    match flag {
        "stolen" => "ticks of 10 ms that the hypervisor stole:",
        "stolen-windows" => "windows excluded for a stolen tick:",
        other => other,
    }
}

/// Merges notes that apply to several CPUs.
fn merge(notes: &mut Vec<String>) {
    let mut said: Vec<(String, Vec<String>)> = Vec::new();
    for note in notes.drain(..) {
        let (who, what) = match note.split_once(": ") {
            Some((who, what)) if who.starts_with("CPU ") => (who.to_owned(), what.to_owned()),
            Some(_) | None => (String::new(), note.clone()),
        };
        match said.iter_mut().find(|(text, _)| *text == what) {
            Some((_, all)) => all.push(who),
            None => said.push((what, vec![who])),
        }
    }
    notes.extend(said.into_iter().map(|(what, mut all)| {
        all.retain(|who| !who.is_empty());
        all.dedup();
        let numbers: Vec<&str> = all.iter().filter_map(|who| who.strip_prefix("CPU ")).collect();
        if numbers.is_empty() { what } else { format!("CPU {}: {what}", numbers.join(", ")) }
    }));
}

/// `CPU 1: `, or nothing.
fn name(figure: &Figure) -> String {
    figure.cpu.map_or_else(String::new, |cpu| format!("CPU {cpu}: "))
}

fn pictures(all: &[Pooled], picture: Picture) -> Vec<String> {
    if let Picture::Lines { x, series, of } = picture
        && let Some(drawn) = lines(all, x, series, of)
    {
        return vec![drawn];
    }
    let mut pictures = Vec::new();
    let tails: Vec<&Pooled> = all.iter().filter(|one| one.figure.family == Family::Tail).collect();
    let shared = common(tails.iter().map(|one| words(&one.figure)));
    for one in all.iter().filter(|one| one.figure.family == Family::Tail).take(MOST_PICTURES) {
        let figure = &one.figure;
        let own = own_words(words(figure), &shared).join(", ");
        let who = if own.is_empty() { name(figure) } else { format!("{}{own}: ", name(figure)) };
        let (title, drawn) = match picture {
            Picture::OverTime => (
                "in order of time, the longest of each column",
                terminal::over_time(&figure.samples, figure.unit, width()),
            ),
            Picture::Percentiles | Picture::Bars | Picture::Lines { .. } => {
                let points: Vec<(f64, f64)> = quantile_curve(&figure.samples)
                    .into_iter()
                    .map(|point| (point.quantile, point.value))
                    .collect();
                ("percentiles", terminal::percentiles(&points, figure.unit, width()))
            }
            Picture::Gaps => {
                let shortest =
                    figure.samples.iter().copied().fold(f64::INFINITY, f64::min).max(1.0);
                let curve = gap_curve(&figure.samples, figure.duration_ns, shortest, GAP_POINTS);
                let points: Vec<(f64, f64)> = curve
                    .into_iter()
                    .map(|point| (point.wait_ns, point.arrival_probability))
                    .collect();
                (
                    "probability that an arrival at a random moment waits longer",
                    terminal::arrivals(&points, figure.unit, width()),
                )
            }
        };
        if let Some(drawn) = drawn {
            pictures.push(format!("{who}{title}\n{drawn}"));
        }
    }
    pictures
}

/// The medians of figures with the label `of`: a line for each value of `series`, over the numbers
/// of `x`. `None` if there is nothing to show.
fn lines(all: &[Pooled], x: &str, series: &str, of: (&str, &str)) -> Option<String> {
    let (key, value) = of;
    let mut found: BTreeMap<u64, Vec<(f64, f64)>> = BTreeMap::new();
    let mut unit = None;
    for one in all {
        let number = |name: &str| {
            one.figure
                .labels
                .get(name)
                .map(String::as_str)
                .and_then(|text| text.parse::<u32>().ok())
        };
        if one.figure.labels.get(key).map(String::as_str) != Some(value) {
            continue;
        }
        let (Some(place), Some(line), Some(median)) = (number(x), number(series), middle(one))
        else {
            continue;
        };
        unit = Some(one.figure.unit);
        found.entry(u64::from(line)).or_default().push((f64::from(place), median));
    }
    found.values_mut().for_each(|points| points.sort_by(|a, b| a.0.total_cmp(&b.0)));
    let found: Vec<(String, Vec<(f64, f64)>)> =
        found.into_iter().map(|(line, points)| (format!("{series} {line}"), points)).collect();
    let drawn = terminal::lines(&found, unit?, width())?;
    Some(format!("median by {x}, {key} {value}\n{drawn}"))
}

/// The machine in two lines.
fn origin(measurement: &Measurement) -> String {
    let origin = &measurement.origin;
    let below = origin
        .hypervisor
        .as_deref()
        .map_or_else(String::new, |name| format!(" (itself a virtual machine of {name})"));
    let guest = match origin.accelerator {
        Accelerator::Native => String::new(),
        other @ (Accelerator::Kvm | Accelerator::TcgMulti | Accelerator::TcgSingle) => {
            format!(", guest under {other}")
        }
    };
    format!(
        "{}{below}, Linux {}{guest}\nhost {}, seed {}",
        origin.cpu_model,
        origin.kernel,
        origin.fingerprint.get(..12).unwrap_or(&origin.fingerprint),
        origin.seed
    )
}

/// Disturbances of the measurement as a whole, for standard error.
pub fn warnings(measurement: &Measurement) -> Vec<String> {
    let mut warnings = Vec::new();
    let around = || measurement.blocks.iter().map(|block| &block.surroundings);
    let stolen = StealTime::from_blocks(&measurement.blocks);
    if stolen.contaminated > 0 {
        warnings.push(format!(
            "warning: stolen time: the hypervisor ran something else on the measured CPUs: \
             {stolen}; {KEPT}"
        ));
    }
    if around().any(|one| one.pressure_us.is_none()) {
        warnings.push(
            "note: this kernel does not report how long tasks waited for a CPU (no PSI)".to_owned(),
        );
    }
    let waited: u64 = around().filter_map(|one| one.pressure_us).sum();
    let looked: u64 = measurement
        .blocks
        .iter()
        .flat_map(|block| &block.figures)
        .map(|f| f.duration_ns)
        .max()
        .unwrap_or(0);
    let looked = looked.saturating_mul(measurement.blocks.len() as u64);
    // A tenth of the time: other tasks run on these CPUs.
    if waited.saturating_mul(10_000) > looked && looked > 0 {
        warnings.push(format!(
            "warning: neighbours: some task of this machine waited for a CPU for {} during the \
             measurement",
            format::duration(waited as f64 * 1e3)
        ));
    }
    fn is_flagged(word: &str, measurement: &Measurement) -> bool {
        measurement
            .blocks
            .iter()
            .flat_map(|block| &block.figures)
            .any(|figure| figure.flags.iter().any(|flag| flag.contains(word)))
    }
    if is_flagged("fifo-refused", measurement) {
        warnings.push(
            "warning: fifo refused: the kernel did not permit a real-time policy, so the probe ran \
             at normal priority; run it as root; `pinfold doctor` shows which rights are missing"
                .to_owned(),
        );
    }
    if is_flagged("migrated", measurement) {
        warnings.push("warning: migrated: the probe's thread was moved to another CPU".to_owned());
    }
    warnings
}

/// Number of columns of a bar: fewer on a narrow terminal.
fn bar_columns() -> usize {
    if width() < 100 { BAR / 2 } else { BAR }
}

/// Number of columns of a chart.
fn width() -> usize {
    usize::from(screen::width().min(120))
}
