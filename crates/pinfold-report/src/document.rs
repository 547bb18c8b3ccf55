//! The data of the template: each field is one part of `templates/page.html`.

use askama::Template;

use crate::charts::placement::{self, Scale};
use crate::error::ReportError;
use crate::format;
use crate::headline::{self, Figure, Headline};
use crate::page::{ExportedPlan, Page};
use crate::sections::facts::{self, Fact};
use crate::sections::latency::{self, DecidingChart, Multiples};
use crate::sections::limitations::{self, Failed, FindingText};
use crate::sections::placements::{self, Picture};
use crate::sections::ranking::{self, Cost, Group, Matrix, Table};
use crate::sections::{Name, roles};

/// The style sheet, in a separate file for editors.
const STYLE: &str = include_str!("../assets/page.css");

#[derive(Template)]
#[template(path = "page.html")]
struct Document<'a> {
    style: &'static str,
    page: &'a Page,
    headline: Headline,
    /// The claim with non-breaking hyphens.
    large_print: String,
    figures: Vec<Figure>,
    asked: Vec<Fact>,
    host_line: String,
    scale: &'static str,
    folds: bool,
    asides: Vec<String>,
    pictures: Vec<Picture>,
    legend: Vec<Name>,
    percentiles: Vec<Multiples>,
    dots: Vec<Multiples>,
    convincing: Option<DecidingChart>,
    costs: Vec<Cost>,
    costs_words: String,
    deciding: Option<Table>,
    matrix: Option<Matrix>,
    groups: Vec<Group>,
    roles: Vec<roles::Table>,
    emitted: &'a [ExportedPlan],
    limits: Vec<String>,
    findings: Vec<FindingText>,
    failed: Vec<Failed>,
    failed_words: String,
    origin: Vec<Fact>,
}

/// Renders the page as one self-contained HTML document, without scripts and external requests.
///
/// ```
/// fn write(page: &pinfold_report::Page, path: &std::path::Path) -> std::io::Result<()> {
///     let html = pinfold_report::render(page).map_err(std::io::Error::other)?;
///     std::fs::write(path, html)
/// }
/// ```
///
/// # Errors
/// [`ReportError::Template`] if the template engine fails, which no data can cause.
pub fn render(page: &Page) -> Result<String, ReportError> {
    let headline = headline::headline(page);
    let document = Document {
        style: STYLE,
        page,
        large_print: headline.claim.replace('-', "\u{2011}"),
        headline,
        figures: headline::figures(page),
        asked: facts::request(page),
        host_line: facts::host_line(&page.topology),
        scale: Scale::from_topology(&page.topology).class(),
        folds: Scale::from_topology(&page.topology).folds(),
        asides: placement::asides(&page.topology),
        pictures: placements::pictures(page),
        legend: latency::legend(page),
        percentiles: latency::percentiles(page),
        dots: latency::block_dots(page),
        convincing: latency::deciding_chart(page),
        costs: ranking::costs(page),
        costs_words: headline::losses_words(page),
        deciding: ranking::deciding(page),
        matrix: ranking::matrix(page),
        groups: ranking::groups(page),
        roles: roles::tables(page),
        emitted: &page.emitted,
        limits: limitations::limits(page),
        findings: limitations::findings(page),
        failed: limitations::failed_starts(page),
        failed_words: limitations::failed_words(page),
        origin: facts::origin(page),
    };
    Ok(format::clean(&document.render()?))
}
