//! The page of a study: the source's figures and tables, what we see, and how it was measured.
//!
//! The binary fills a [`StudyPage`] from a study's analysis and hands it to [`render_study`].
//! Nothing here computes statistics.

mod plot;

use askama::Template;
use pinfold_model::Unit;

use crate::error::ReportError;
use crate::format;

const STYLE: &str = include_str!("../assets/page.css");

/// What the numbers of a picture or table are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Values of a unit.
    Of(Unit),
    /// Ratios to the baseline.
    Ratio,
    /// Points of 100.
    Points,
}

impl Scale {
    /// A number as people read it.
    #[must_use]
    pub fn show(self, number: f64) -> String {
        match self {
            Scale::Of(unit) => format::value(number, unit),
            Scale::Ratio => format::significant(number),
            Scale::Points if number.is_finite() => format!("{number:.1}"),
            Scale::Points => format::MISSING.to_owned(),
        }
    }

    /// The same at a tick of an axis: without needless zeros.
    #[must_use]
    pub fn tick(self, number: f64) -> String {
        match self {
            Scale::Of(unit) => format::tick(number, unit),
            Scale::Ratio => format::tick(number, Unit::Count),
            Scale::Points => self.show(number),
        }
    }

    /// The words of an axis.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Scale::Of(_) => "",
            Scale::Ratio => "ratio to the baseline",
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
    /// That cannot be told, and why.
    CannotTell(String),
}

/// A sentence of the source beside what we see.
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

/// A study's page.
#[derive(Clone, Debug, PartialEq)]
pub struct StudyPage {
    /// Its title.
    pub title: String,
    /// The question.
    pub question: String,
    /// Whose experiment it repeats.
    pub source: String,
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
    /// Comparisons with their verdicts, and the A/A pairs.
    pub evidence: Vec<PageTable>,
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

#[derive(Template)]
#[template(path = "study.html")]
struct StudyDocument<'a> {
    style: &'static str,
    page: &'a StudyPage,
    pictures: Vec<Drawn>,
}

/// A picture as markup.
struct Drawn {
    name: String,
    title: String,
    note: String,
    /// Key and name.
    legend: Vec<(String, String)>,
    panels: Vec<(String, String)>,
}

/// The page as one self-contained HTML document: no script, no request.
///
/// # Errors
/// [`ReportError::Template`] if the template engine stops, which no data can cause.
pub fn render_study(page: &StudyPage) -> Result<String, ReportError> {
    let pictures = page.pictures.iter().map(drawn).collect();
    Ok(format::clean(&StudyDocument { style: STYLE, page, pictures }.render()?))
}

fn drawn(picture: &Picture) -> Drawn {
    let panels = picture
        .panels
        .iter()
        .enumerate()
        .map(|(index, panel)| (panel.title.clone(), plot::draw(picture, panel, index)));
    let whiskers = match picture.joined {
        true => "Whiskers span several cells, whose median is drawn",
        false => "Whiskers are 95 % intervals",
    };
    let mut note = match picture.kind {
        PictureKind::Lines => format!("{whiskers}."),
        PictureKind::Bars => format!("{whiskers}; the number is the bar's."),
        PictureKind::Percentiles => {
            "All samples of all starts; each line ends at its largest sample.".to_owned()
        }
    };
    if picture.panels.iter().any(|panel| !panel.ideal.is_empty()) {
        note.push_str(" The grey dashed line is what was asked.");
    }
    if let Some((what, mark)) = &picture.mark {
        note.push_str(&format!(" The dotted line stands at {what} = {mark}."));
    }
    Drawn {
        name: picture.name.clone(),
        title: picture.title.clone(),
        note,
        legend: picture
            .names
            .iter()
            .enumerate()
            .map(|(index, name)| (plot::key(index), name.clone()))
            .collect(),
        panels: panels.collect(),
    }
}

#[cfg(test)]
mod tests;
