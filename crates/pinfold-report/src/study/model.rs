//! The view model of a study's page, as plain data.

use pinfold_model::{PlotKind, Unit};

use super::brackets::Brackets;
use crate::format;
use crate::page::Comparison;

/// The kind of numbers in a chart or table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Values with a unit.
    Of(Unit),
    /// Ratios, and to what.
    Ratio(&'static str),
    /// Percentage points.
    Points,
}

impl Scale {
    /// Formats a number.
    #[must_use]
    pub fn show(self, number: f64) -> String {
        match self {
            Scale::Of(unit) => format::value(number, unit),
            Scale::Ratio(_) => format::significant(number),
            Scale::Points if number.is_finite() => format!("{number:.1}"),
            Scale::Points => format::MISSING.to_owned(),
        }
    }

    /// Formats a number as a tick label, without trailing zeros.
    #[must_use]
    pub fn tick(self, number: f64) -> String {
        match self {
            Scale::Of(unit) => format::tick(number, unit),
            Scale::Ratio(_) => format::tick(number, Unit::Count),
            Scale::Points => self.show(number),
        }
    }

    /// The kind of numbers, if their unit does not show it.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Scale::Of(_) => "",
            Scale::Ratio(to) => to,
            Scale::Points => "points",
        }
    }
}

/// One point of a chart.
#[derive(Clone, Debug, PartialEq)]
pub struct ChartPoint {
    /// Position on the x axis, as text.
    pub x: String,
    /// The value of the point.
    pub value: f64,
    /// The interval of the value.
    pub range: Option<(f64, f64)>,
}

/// One line of a chart, or one group of bars.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Name of the line.
    pub name: String,
    /// Its points, along the x axis.
    pub spots: Vec<ChartPoint>,
}

/// A value of the source in a chart.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceMark {
    /// Name of the line or group of bars to which it belongs.
    pub line: String,
    /// Position on the x axis, as text.
    pub x: String,
    /// The value.
    pub value: f64,
}

/// One panel of a chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    /// Title of the panel.
    pub title: String,
    /// Its lines; each has the appearance of its index in [`Picture::names`].
    pub lines: Vec<Line>,
    /// Expected values, by the text on the x axis.
    pub ideal: Vec<(String, f64)>,
    /// Values of the source.
    pub source: Vec<SourceMark>,
}

/// A chart of the report.
#[derive(Clone, Debug, PartialEq)]
pub struct Picture {
    /// Its name, unique on the page.
    pub name: String,
    /// Title of the chart.
    pub title: String,
    /// Kind of the chart.
    pub kind: PlotKind,
    /// The kind of its numbers.
    pub scale: Scale,
    /// Title of the x axis.
    pub x: String,
    /// Unit of the x axis, if its texts are numbers with a unit.
    pub x_unit: Option<Unit>,
    /// The texts on the x axis, in order.
    pub along: Vec<String>,
    /// Names of its lines, in the order of their appearance.
    pub names: Vec<String>,
    /// True for logarithmic axes: x, y.
    pub log: (bool, bool),
    /// A horizontal line: its name and value.
    pub mark: Option<(String, f64)>,
    /// True if points stand for several cells.
    pub joined: bool,
    /// What the whiskers of single cells are.
    pub brackets: Brackets,
    /// Which part of the comparison alone was measured; empty if more than one was.
    pub only: String,
    /// The panels of the chart.
    pub panels: Vec<Panel>,
    /// Why it has no panels; empty if it has some.
    pub missing: Vec<String>,
}

/// A reason why something was not measured, with all that it is the reason of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absence {
    /// The reason.
    pub reason: String,
    /// The skipped cells, as text.
    pub cells: String,
    /// Titles of the charts and tables without numbers.
    pub titles: Vec<String>,
}

impl StudyPage {
    /// What was not measured, each reason once.
    pub fn absences(&self) -> Vec<Absence> {
        let skipped = self.skipped.iter().map(|(reason, cells)| Absence {
            reason: reason.clone(),
            cells: cells.clone(),
            titles: Vec::new(),
        });
        let mut absences: Vec<Absence> = skipped.collect();
        let pictures = self.pictures.iter().map(|one| (&one.title, &one.missing));
        let tables = self.tables.iter().map(|one| (&one.title, &one.missing));
        for (title, reasons) in pictures.chain(tables) {
            for reason in reasons {
                match absences.iter_mut().find(|known| known.reason == *reason) {
                    Some(known) => known.titles.push(title.clone()),
                    None => absences.push(Absence {
                        reason: reason.clone(),
                        cells: String::new(),
                        titles: vec![title.clone()],
                    }),
                }
            }
        }
        absences
    }

    /// True if the run settles a statement of the source.
    pub fn settles_a_statement(&self) -> bool {
        let of_source = self.claims_of(false);
        of_source.iter().any(|claim| !matches!(claim.agree, Agreement::NotSettled(_)))
    }

    /// The statements of the study itself, or those of the source.
    #[must_use]
    pub fn claims_of(&self, own: bool) -> Vec<&ClaimRow> {
        self.claims.iter().filter(|claim| claim.is_own == own).collect()
    }
}

/// Agreement of the results with a claim of the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Agreement {
    /// The whole interval agrees.
    Agrees,
    /// The whole interval contradicts it.
    Differs,
    /// Undecided, for this reason.
    NotSettled(String),
}

/// A claim of the source with the result of this study.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRow {
    /// Text of the claim.
    pub source: String,
    /// True if it is one of this study, not of the source; such claims are not counted.
    pub is_own: bool,
    /// Where the source makes it.
    pub place: String,
    /// The result of this study.
    pub see: String,
    /// True if all that its rule asks for was measured.
    pub is_measured: bool,
    /// Agreement of the result with the claim.
    pub agree: Agreement,
    /// The rule that decides it.
    pub rule: String,
}

/// A table of the page, with formatted values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageTable {
    /// Its name, unique on the page.
    pub name: String,
    /// Title of the table.
    pub title: String,
    /// Remarks on the table.
    pub note: String,
    /// Why it has no rows; empty if it has some.
    pub missing: Vec<String>,
    /// Number of its columns that are names; the others are numbers.
    pub names: usize,
    /// Its column headers.
    pub header: Vec<String>,
    /// Rows of the table.
    pub rows: Vec<Vec<String>>,
}

impl PageTable {
    /// A table with this number of columns that are names.
    pub fn new<S: AsRef<str>>(
        name: &str,
        title: &str,
        names: usize,
        header: &[S],
        rows: Vec<Vec<String>>,
    ) -> Self {
        let header = header.iter().map(|text| text.as_ref().to_owned()).collect();
        let (name, title) = (name.to_owned(), title.to_owned());
        Self { name, title, note: String::new(), missing: Vec::new(), names, header, rows }
    }

    /// Adds a remark.
    #[must_use]
    pub fn with_note(self, note: impl Into<String>) -> Self {
        Self { note: note.into(), ..self }
    }
}

/// The estimate of one figure in one cell.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredFigure {
    /// The cell's levels.
    pub cell: String,
    /// The figure with its labels.
    pub figure: String,
    /// Unit of its values.
    pub unit: Unit,
    /// Number of blocks.
    pub blocks: u32,
    /// Median of the blocks.
    pub median: f64,
    /// Its 95 % interval; below [`INTERVAL_BLOCKS`](super::INTERVAL_BLOCKS) the range of the
    /// blocks.
    pub interval: Option<(f64, f64)>,
    /// The source's own summary, if it is another one.
    pub summary: Option<(f64, Spread)>,
    /// The comparison with the baseline.
    pub comparison: Option<Comparison>,
}

/// The uncertainty of a summary.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Spread {
    /// Unknown, for example for a single value.
    Unknown,
    /// Standard deviation.
    Deviation(f64),
    /// 95 % interval.
    Interval(f64, f64),
}

/// A cell that was measured twice in each block.
#[derive(Clone, Debug, PartialEq)]
pub struct AaPair {
    /// The cell's levels.
    pub cell: String,
    /// The figure with its labels.
    pub figure: String,
    /// Unit of its values.
    pub unit: Unit,
    /// Number of blocks.
    pub blocks: u32,
    /// The second measurement compared with the first.
    pub comparison: Comparison,
}

/// The page of a study.
#[derive(Clone, Debug, PartialEq)]
pub struct StudyPage {
    /// Title of the study.
    pub title: String,
    /// Question of the study.
    pub question: String,
    /// The experiment that it repeats.
    pub source: String,
    /// The baseline's levels, if the study has one.
    pub baseline: Option<String>,
    /// A banner across the top: what the reader must know first.
    pub banner: Option<String>,
    /// End of the run, as text.
    pub date: String,
    /// Version of Pinfold.
    pub version: String,
    /// Claims of the source, with the results.
    pub claims: Vec<ClaimRow>,
    /// Charts of the page.
    pub pictures: Vec<Picture>,
    /// Tables of the page.
    pub tables: Vec<PageTable>,
    /// All estimates, by cell and figure.
    pub measured: Vec<MeasuredFigure>,
    /// The name of [`MeasuredFigure::summary`]: `mean`, `mean [95 %]`.
    pub summary_name: String,
    /// The A/A pairs: a baseline cell compared with itself.
    pub pairs: Vec<AaPair>,
    /// Why there are no A/A pairs; empty if there are some.
    pub no_pairs: String,
    /// Further tables with data.
    pub evidence: Vec<PageTable>,
    /// Number of trials that were measured, and that failed.
    pub trials: (u64, u64),
    /// Number of skipped cells.
    pub skipped_cells: usize,
    /// What executed the workloads: `native`, `TCG`.
    pub executed_by: Vec<String>,
    /// What the lab shows functionally: case, and what.
    pub lab: Vec<(String, String)>,
    /// What was not measured: reason, and cells.
    pub skipped: Vec<(String, String)>,
    /// What failed: cell, and error message.
    pub failed: Vec<(String, String)>,
    /// Further findings about the study.
    pub findings: Vec<String>,
    /// The method: label and text.
    pub how: Vec<(String, String)>,
    /// The command that repeats the study.
    pub repeat: String,
    /// The study file.
    pub file: String,
}
