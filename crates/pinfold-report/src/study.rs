//! The page of a study: its answer, the deciding chart, the costs, plots and tables, and the
//! method.
//!
//! The binary fills a [`StudyPage`] from the analysis of a study and passes it to [`render_study`].
//! No statistics are computed here.

mod answer;
mod brackets;
mod labels;
mod markdown;
mod model;
mod plot;
mod rules;
mod tables;

use pinfold_model::PlotKind;

use askama::Template;

pub use self::brackets::{Brackets, INTERVAL_BLOCKS};
pub use self::markdown::{StudyMarkdown, study_markdown};
pub use self::model::{
    AaPair, Absence, Agreement, ChartPoint, ClaimRow, Line, MeasuredFigure, PageTable, Panel,
    Picture, Scale, SourceMark, Spread, StudyPage,
};
pub use self::rules::contradictions;
use crate::error::ReportError;
use crate::format;
use crate::headline::Figure;

const STYLE: &str = include_str!("../assets/page.css");
/// Longer tables are folded.
const MOST_OPEN_ROWS: usize = 24;

#[derive(Template)]
#[template(path = "study.html")]
struct StudyDocument<'a> {
    style: &'static str,
    page: &'a StudyPage,
    answer: String,
    figures: Vec<Figure>,
    deciding: Option<Drawn>,
    costs: Vec<answer::Cost>,
    costs_words: String,
    tables: Vec<(&'a PageTable, bool)>,
    others: Vec<Drawn>,
    evidence: Vec<PageTable>,
    absences: Vec<Absence>,
}

/// A chart as markup.
struct Drawn {
    name: String,
    title: String,
    note: String,
    /// Key and name.
    legend: Vec<(String, String)>,
    panels: Vec<(String, String)>,
    /// The labels that numbers on the axis stand for.
    numbered: Vec<String>,
}

/// Renders the page as one self-contained HTML document, without scripts and external requests.
///
/// # Errors
/// [`ReportError::Template`] if the template engine fails, which no data can cause.
pub fn render_study(page: &StudyPage) -> Result<String, ReportError> {
    let mut drawings = page.pictures.iter().filter(|picture| !picture.panels.is_empty());
    let deciding = drawings.next();
    let document = StudyDocument {
        style: STYLE,
        page,
        answer: answer::sentence(page),
        figures: answer::figures(page),
        deciding: deciding.map(draw),
        costs: answer::costs(page),
        costs_words: answer::costs_words(page),
        tables: page
            .tables
            .iter()
            .filter(|it| !it.rows.is_empty())
            .map(|it| (it, it.rows.len() <= MOST_OPEN_ROWS))
            .collect(),
        others: drawings.map(draw).collect(),
        evidence: tables::evidence(page),
        absences: page.absences(),
    };
    Ok(format::clean(&document.render()?))
}

fn draw(picture: &Picture) -> Drawn {
    let whiskers = if picture.joined {
        "Whiskers span several cells, whose median is drawn".to_owned()
    } else {
        format!("Whiskers are {}", picture.brackets.text())
    };
    let mut note = match picture.kind {
        PlotKind::Lines => format!("{whiskers}."),
        PlotKind::Bars => format!("{whiskers}; the number is the bar’s."),
        PlotKind::Percentiles => {
            "All samples of all starts; each line ends at its largest sample.".to_owned()
        }
        PlotKind::Sequence => {
            "The samples of one trial each, the first. Of many samples the line is the median of each piece, the band reaches from its smallest to its largest."
                .to_owned()
        }
    };
    if let Scale::Ratio(to) = picture.scale {
        note.insert_str(0, &format!("Each number is the {to}. "));
    }
    if picture.panels.iter().any(|panel| !panel.ideal.is_empty()) {
        note.push_str(" The grey dashed line is the requested value.");
    }
    if let Some((what, mark)) = &picture.mark {
        note.push_str(&format!(" The dotted line stands at {what} = {mark}."));
    }
    let has_source = picture.panels.iter().any(|panel| !panel.source.is_empty());
    if has_source {
        note.push_str(" A hollow mark is the source’s value, on its own machine.");
    }
    if !picture.only.is_empty() {
        note.push_str(&format!(" {}.", picture.only));
    }
    let plot::Panels { panels, numbered } = plot::panels(picture);
    // A single line without a name needs no legend.
    let names = picture.names.iter().enumerate().filter(|(_, name)| !name.is_empty());
    let lines = names.map(|(index, name)| (plot::key(picture.kind, index), name.clone()));
    let source = has_source.then(|| (plot::source_key(), "source".to_owned()));
    Drawn {
        name: picture.name.clone(),
        title: picture.title.clone(),
        note,
        legend: lines.chain(source).collect(),
        panels,
        numbered,
    }
}

#[cfg(test)]
mod tests;
