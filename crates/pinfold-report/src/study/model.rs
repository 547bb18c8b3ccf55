//! The view model of a study's page, as plain data.

use pinfold_model::Unit;

use crate::format;
use crate::page::Comparison;

/// What the numbers of a picture or table are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Values of a unit.
    Of(Unit),
    /// Ratios, and to what.
    Ratio(&'static str),
    /// Points of 100.
    Points,
}

impl Scale {
    /// A number as people read it.
    #[must_use]
    pub fn show(self, number: f64) -> String {
        match self {
            Scale::Of(unit) => format::value(number, unit),
            Scale::Ratio(_) => format::significant(number),
            Scale::Points if number.is_finite() => format!("{number:.1}"),
            Scale::Points => format::MISSING.to_owned(),
        }
    }

    /// The same at a tick of an axis: without needless zeros.
    #[must_use]
    pub fn tick(self, number: f64) -> String {
        match self {
            Scale::Of(unit) => format::tick(number, unit),
            Scale::Ratio(_) => format::tick(number, Unit::Count),
            Scale::Points => self.show(number),
        }
    }

    /// What the numbers are, where their unit does not say it.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Scale::Of(_) => "",
            Scale::Ratio(to) => to,
            Scale::Points => "points",
        }
    }
}

/// How a picture is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PictureKind {
    /// Lines with intervals.
    Lines,
    /// Bars with intervals.
    Bars,
    /// Samples by their percentile: along lie shares from 0 to 1, each nine as wide as the one
    /// before.
    Percentiles,
}

/// One number of a picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Spot {
    /// Where along the axis, by its text.
    pub x: String,
    /// The number.
    pub value: f64,
    /// Its interval.
    pub range: Option<(f64, f64)>,
}

/// One line of a picture, or one kind of bar.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Its name.
    pub name: String,
    /// Its numbers, along the axis.
    pub spots: Vec<Spot>,
}

/// One of the small pictures of a picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    /// Its title.
    pub title: String,
    /// Its lines; each has the look of its place in [`Picture::names`].
    pub lines: Vec<Line>,
    /// What should be, by the axis's texts.
    pub ideal: Vec<(String, f64)>,
}

/// A figure of the report.
#[derive(Clone, Debug, PartialEq)]
pub struct Picture {
    /// Its name, unique on the page.
    pub name: String,
    /// Its title.
    pub title: String,
    /// How it is drawn.
    pub kind: PictureKind,
    /// What its numbers are.
    pub scale: Scale,
    /// What the axis along is.
    pub x: String,
    /// Its unit, where its texts are numbers that have one.
    pub x_unit: Option<Unit>,
    /// The texts along the axis, in order.
    pub along: Vec<String>,
    /// Names of its lines, in the order of their looks.
    pub names: Vec<String>,
    /// Whether the axes are logarithmic: along, up.
    pub log: (bool, bool),
    /// A line across the axis: what it is, and its number.
    pub mark: Option<(String, f64)>,
    /// Whether points stand for several cells.
    pub joined: bool,
    /// The small pictures.
    pub panels: Vec<Panel>,
}

/// Whether we agree with the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Agreement {
    /// We see it too.
    Yes,
    /// We do not.
    No,
    /// Unknown, and why.
    CannotTell(String),
}

/// A statement of the source next to the result here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRow {
    /// What the source says.
    pub source: String,
    /// Where.
    pub place: String,
    /// What we see.
    pub see: String,
    /// Whether we agree.
    pub agree: Agreement,
    /// The rule that says so.
    pub rule: String,
}

/// A table of the page: its values as people read them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageTable {
    /// Its name, unique on the page.
    pub name: String,
    /// Its title.
    pub title: String,
    /// What is to be known of it.
    pub note: String,
    /// How many of its columns are names; the others are numbers.
    pub names: usize,
    /// Its columns.
    pub header: Vec<String>,
    /// Its rows.
    pub rows: Vec<Vec<String>>,
}

/// What a cell gave of one figure.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredFigure {
    /// The cell's levels.
    pub cell: String,
    /// The figure with its labels.
    pub figure: String,
    /// Unit of its values.
    pub unit: Unit,
    /// Blocks behind it.
    pub blocks: u32,
    /// Median of the blocks.
    pub median: f64,
    /// Its 95 % interval.
    pub interval: Option<(f64, f64)>,
    /// The source's own summary, where it is another.
    pub summary: Option<(f64, Spread)>,
    /// Against the baseline.
    pub comparison: Option<Comparison>,
}

/// How far a summary is from its values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Spread {
    /// Not known, as of one value.
    Unknown,
    /// Standard deviation.
    Deviation(f64),
    /// Interval of 95 %.
    Interval(f64, f64),
}

/// The same cell measured twice in each block.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair {
    /// The cell's levels.
    pub cell: String,
    /// The figure with its labels.
    pub figure: String,
    /// Unit of its values.
    pub unit: Unit,
    /// Blocks behind it.
    pub blocks: u32,
    /// The second measurement against the first.
    pub comparison: Comparison,
}

/// A study's page.
#[derive(Clone, Debug, PartialEq)]
pub struct StudyPage {
    /// Its title.
    pub title: String,
    /// The question.
    pub question: String,
    /// Whose experiment it repeats.
    pub source: String,
    /// The baseline's levels, if the study has one.
    pub baseline: Option<String>,
    /// A line across the top: what the reader must know first.
    pub banner: Option<String>,
    /// When it ended, in words.
    pub date: String,
    /// Pinfold's version.
    pub version: String,
    /// What the source says, and we see.
    pub claims: Vec<ClaimRow>,
    /// Its figures.
    pub pictures: Vec<Picture>,
    /// Its tables.
    pub tables: Vec<PageTable>,
    /// Every cell and figure that was measured.
    pub measured: Vec<MeasuredFigure>,
    /// What [`MeasuredFigure::summary`] is: `mean`, `mean [95 %]`.
    pub summary_name: String,
    /// The A/A pairs: a cell of the baseline against itself.
    pub pairs: Vec<Pair>,
    /// Further tables behind the numbers.
    pub evidence: Vec<PageTable>,
    /// Trials that were measured, and that failed.
    pub trials: (u64, u64),
    /// Cells that were skipped.
    pub skipped_cells: usize,
    /// What executed the workloads: `native`, `TCG`.
    pub executed_by: Vec<String>,
    /// What was not measured: reason, and which cells.
    pub skipped: Vec<(String, String)>,
    /// What failed: cell, and the message.
    pub failed: Vec<(String, String)>,
    /// What else is to be known.
    pub findings: Vec<String>,
    /// How it was measured: label and text.
    pub how: Vec<(String, String)>,
    /// The command that repeats it.
    pub repeat: String,
    /// The study file.
    pub file: String,
}
