//! A study's results as Markdown, with its charts as SVG files: for a repository or a paper.

use super::model::{Agreement, ClaimRow, PageTable, Picture, StudyPage};
use super::{STYLE, draw};
use crate::svg::escape;

/// Width of the drawing of a panel (user units of SVG).
const PANEL: f64 = 440.0;
/// Height of a line of text.
const LINE: f64 = 18.0;
/// Space around panels.
const GAP: f64 = 14.0;
/// Width of a character of the legend, at most.
const LETTER: f64 = 6.2;

/// A study's results as text, and the files that the text shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StudyMarkdown {
    /// The text.
    pub text: String,
    /// Names and contents of the charts.
    pub charts: Vec<(String, String)>,
}

/// Renders the results: the answer, the claims of the source, charts, tables, and
/// what was not measured. Charts are files in `folder`, a path relative to the text; `facts` are
/// added to the description of the run.
pub fn study_markdown(page: &StudyPage, folder: &str, facts: &[(String, String)]) -> StudyMarkdown {
    let mut text = format!("# {}\n\n", line(&page.title));
    for one in page.banner.iter().chain([&page.question]).filter(|text| !text.is_empty()) {
        text.push_str(&format!("{}\n\n", line(one)));
    }
    let mut answer = line(&super::answer::sentence(page));
    if let Some(first) = answer.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    text.push_str(&format!("**{answer}.**\n\n"));
    let (first, later) = if page.settles_a_statement() {
        (String::new(), lab(page))
    } else {
        (lab(page), String::new())
    };
    text.push_str(&first);
    text.push_str(&run(page, facts));
    text.push_str(&claims(page));
    text.push_str(&later);
    let full: Vec<&Picture> =
        page.pictures.iter().filter(|picture| !picture.panels.is_empty()).collect();
    if !full.is_empty() {
        text.push_str("## Charts\n\n");
    }
    let mut charts = Vec::new();
    for picture in full {
        let (file, drawing) = (format!("{}.svg", picture.name), chart(picture));
        let title = line(&picture.title);
        text.push_str(&format!("**{title}.** {}\n\n", line(&draw(picture).note)));
        text.push_str(&format!("![{title}]({folder}/{file})\n\n"));
        charts.push((file, drawing));
    }
    text.push_str(&tables(&page.tables));
    let absences =
        page.absences().into_iter().map(|one| vec![one.reason, one.cells, one.titles.join("; ")]);
    let header = ["reason", "cells", "charts and tables without numbers"];
    text.push_str(&section("Not measured", &header, absences));
    text.push_str(&section("Failed", &["cell", "message"], pairs(&page.failed)));
    let findings = page.findings.iter().map(|finding| vec![finding.clone()]);
    text.push_str(&section("Findings", &["finding"], findings));
    StudyMarkdown { text: format!("{}\n", text.trim_end()), charts }
}

fn pairs(pairs: &[(String, String)]) -> Vec<Vec<String>> {
    pairs.iter().map(|(one, other)| vec![one.clone(), other.clone()]).collect::<Vec<_>>()
}

/// Command, machine and method.
fn run(page: &StudyPage, facts: &[(String, String)]) -> String {
    let mut rows = vec![
        vec!["command".to_owned(), format!("`{}`", page.repeat)],
        vec!["date".to_owned(), page.date.clone()],
        vec!["Pinfold".to_owned(), page.version.clone()],
    ];
    let noise = super::answer::noise(page);
    rows.push(vec![noise.label, format!("{}; {}", noise.value, noise.note)]);
    let others = facts.iter().chain(&page.how);
    rows.extend(others.map(|(label, value)| vec![label.clone(), value.clone()]));
    section("The run", &["", ""], rows)
}

/// What the lab shows functionally.
fn lab(page: &StudyPage) -> String {
    let rows = page.lab.iter().map(|(case, shows)| vec![case.clone(), shows.clone()]);
    section("Shown functionally, in the lab", &["row of docs/lab.md", "what it shows"], rows)
}

fn claims(page: &StudyPage) -> String {
    fn row(claim: &ClaimRow) -> Vec<String> {
        let verdict = match &claim.agree {
            Agreement::Agrees => "agrees".to_owned(),
            Agreement::Differs => "differs".to_owned(),
            Agreement::NotSettled(why) => format!("not settled: {why}"),
        };
        vec![claim.source.clone(), claim.place.clone(), claim.see.clone(), verdict]
    }

    let mut text = String::new();
    for (is_own, title, said) in [
        (false, "The source's statements", "the source says"),
        (true, "Statements that are not in the source", "statement"),
    ] {
        let (measured, others): (Vec<_>, Vec<_>) =
            page.claims_of(is_own).into_iter().partition(|claim| claim.is_measured);
        let header = [said, "where", "we see", "verdict"];
        text.push_str(&section(title, &header, measured.into_iter().map(row)));
        let title = format!("{title}: not measured here");
        text.push_str(&section(
            &title,
            &[said, "where"],
            others
                .into_iter()
                .map(|claim: &ClaimRow| vec![claim.source.clone(), claim.place.clone()]),
        ));
    }
    text
}

fn tables(tables: &[PageTable]) -> String {
    let mut text = String::new();
    for table in tables.iter().filter(|table| !table.rows.is_empty()) {
        let header: Vec<&str> = table.header.iter().map(String::as_str).collect();
        let heading = format!("### {}", line(&table.title));
        text.push_str(&rows(&heading, &header, table.rows.iter().cloned()));
        if !table.note.is_empty() {
            text.push_str(&format!("{}\n\n", line(&table.note)));
        }
    }
    if text.is_empty() { text } else { format!("## Tables\n\n{text}") }
}

/// A section with one table; nothing without rows.
fn section(title: &str, header: &[&str], rows_of: impl IntoIterator<Item = Vec<String>>) -> String {
    rows(&format!("## {title}"), header, rows_of)
}

fn rows(heading: &str, header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let body: String = rows.into_iter().map(row).collect();
    if body.is_empty() {
        return body;
    }
    let header = row(header.iter().map(|cell| (*cell).to_owned()).collect());
    let rule = "|---".repeat(header.replace("\\|", "").matches('|').count() - 1);
    format!("{heading}\n\n{header}{rule}|\n{body}\n")
}

fn row(cells: Vec<String>) -> String {
    let cells: Vec<String> = cells.iter().map(|cell| line(cell).replace('|', "\\|")).collect();
    format!("| {} |\n", cells.join(" | "))
}

/// A text as one line of Markdown, without markup of its own except code.
fn line(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    text.replace('<', "&lt;").replace('*', "\\*")
}

/// A chart as one file: legend, then panels, two in a row.
fn chart(picture: &Picture) -> String {
    let drawn = draw(picture);
    let across = drawn.panels.len().clamp(1, 2);
    let width = across as f64 * (PANEL + GAP) + GAP;
    let mut body = String::new();
    let mut y = GAP;
    for part in wrap(&picture.title, width - 2.0 * GAP) {
        y += LINE;
        text(&mut body, (GAP, y), &part);
    }
    y += LINE;
    let mut x = GAP;
    let mut keys = String::new();
    for (key, name) in &drawn.legend {
        let wide = 40.0 + name.chars().count() as f64 * LETTER + 20.0;
        if x > GAP && x + wide > width {
            (x, y) = (GAP, y + LINE);
        }
        keys.push_str(&place(key, x, y - 11.0, 34.0, 14.0));
        text(&mut body, (x + 40.0, y), name);
        x += wide;
    }
    if !drawn.legend.is_empty() {
        y += LINE;
    }
    let mut panels = String::new();
    for row in drawn.panels.chunks(across) {
        let mut tallest: f64 = 0.0;
        for (index, (title, svg)) in row.iter().enumerate() {
            let x = GAP + index as f64 * (PANEL + GAP);
            if *title != picture.title {
                text(&mut body, (x, y), title);
            }
            let height = height(svg);
            panels.push_str(&place(svg, x, y + 4.0, PANEL, height));
            tallest = tallest.max(height);
        }
        y += tallest + LINE + GAP;
    }
    for (index, name) in drawn.numbered.iter().enumerate() {
        text(&mut body, (GAP, y), &format!("{} {name}", index + 1));
        y += LINE;
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {y}\" role=\"img\">\n\
         <title>{}</title>\n<style>{}rect.paper {{ fill: var(--surface); }}</style>\n\
         <rect class=\"paper\" width=\"{width}\" height=\"{y}\"/>\n{body}{keys}{panels}</svg>\n",
        escape(&picture.title),
        style(),
    )
}

fn text(body: &mut String, at: (f64, f64), text: &str) {
    body.push_str(&format!("<text x=\"{}\" y=\"{}\">{}</text>\n", at.0, at.1, escape(text)));
}

/// The text in lines that are at most this wide, broken at spaces.
fn wrap(text: &str, width: f64) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_ascii_whitespace() {
        let last = lines
            .last_mut()
            .filter(|line| line.is_empty() || fits(width, &format!("{line} {word}")));
        match last {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) => line.push_str(&format!(" {word}")),
            None => lines.push(word.to_owned()),
        }
    }
    lines
}

fn fits(width: f64, line: &str) -> bool {
    line.chars().count() as f64 * LETTER <= width
}

/// A drawing at a place of another one.
fn place(svg: &str, x: f64, y: f64, width: f64, height: f64) -> String {
    let at = format!("<svg x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"");
    format!("{}\n", svg.replacen("<svg", &at, 1))
}

/// The height of a drawing, from its view box.
fn height(svg: &str) -> f64 {
    let (_, rest) = svg.split_once("viewBox=\"").unwrap_or_default();
    let (view, _) = rest.split_once('"').unwrap_or_default();
    view.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or(PANEL / 2.0)
}

/// The variables and the rules for charts of the page's style sheet.
fn style() -> String {
    part("*/", "* {") + &part("/* Charts */", "/* Verdicts */")
}

fn part(from: &str, to: &str) -> String {
    let rest = STYLE.split_once(from).map_or("", |(_, rest)| rest);
    rest.split_once(to).map_or(rest, |(part, _)| part).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_style_has_the_variables_and_the_charts_only() {
        let style = style();
        assert!(style.contains("prefers-color-scheme: dark") && style.contains("--s6"));
        assert!(style.contains("svg .grid") && !style.contains(".sheet"));
        assert!(style.len() < 8_000, "{}", style.len());
    }

    #[test]
    fn a_title_is_broken_at_spaces_and_not_cut_off() {
        assert_eq!(wrap("one two three", 7.0 * LETTER), ["one two", "three"]);
        assert_eq!(wrap("one", 1000.0), ["one"]);
        assert_eq!(wrap("incomprehensible one", 4.0 * LETTER), ["incomprehensible", "one"]);
    }

    #[test]
    fn text_cannot_leave_its_cell() {
        let table = section("T", &["a|b", "c"], [vec!["x | y\nz".to_owned(), "<b>".to_owned()]]);
        assert_eq!(table, "## T\n\n| a\\|b | c |\n|---|---|\n| x \\| y z | &lt;b> |\n\n");
    }
}
