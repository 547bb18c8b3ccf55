//! Tests of the page of studies.

use super::*;

fn picture(name: &str, kind: PictureKind) -> Picture {
    let spot = |x: &str, value: f64| Spot {
        x: x.to_owned(),
        value,
        range: Some((value - 0.01, value + 0.02)),
    };
    let line = |name: &str, up: f64| Line {
        name: name.to_owned(),
        spots: vec![spot("0.25", 0.25 + up), spot("0.5", 0.5 + up)],
    };
    Picture {
        name: name.to_owned(),
        title: "Speed <of> all".to_owned(),
        kind,
        scale: Scale::Ratio,
        x: "speed".to_owned(),
        x_unit: None,
        along: vec!["0.25".to_owned(), "0.5".to_owned()],
        names: vec!["stall".to_owned(), "quota & more".to_owned()],
        log: (false, false),
        mark: Some(("half".to_owned(), 0.3)),
        joined: false,
        panels: vec![Panel {
            title: "cpu".to_owned(),
            lines: vec![line("stall", 0.0), line("quota & more", 0.1)],
            ideal: vec![("0.25".to_owned(), 0.25), ("0.5".to_owned(), 0.5)],
        }],
    }
}

fn percentiles() -> Picture {
    Picture {
        scale: Scale::Of(Unit::Nanoseconds),
        along: Vec::new(),
        names: vec!["stall".to_owned()],
        log: (false, true),
        mark: None,
        panels: vec![Panel {
            title: "gaps".to_owned(),
            lines: vec![Line {
                name: "stall".to_owned(),
                spots: [(0.0, 1e3), (0.9, 2e3), (0.99, 3e4), (0.999, 5e6)]
                    .map(|(share, value)| Spot { x: share.to_string(), value, range: None })
                    .to_vec(),
            }],
            ideal: Vec::new(),
        }],
        ..picture("percentiles", PictureKind::Percentiles)
    }
}

fn page() -> StudyPage {
    StudyPage {
        title: "How true?".to_owned(),
        question: "Is it?".to_owned(),
        source: "A paper".to_owned(),
        banner: Some("quick form".to_owned()),
        date: "2026-11-22".to_owned(),
        version: "0.1.0".to_owned(),
        claims: vec![ClaimRow {
            source: "It \"is\" so".to_owned(),
            place: "Fig. 5".to_owned(),
            see: "0.5".to_owned(),
            agree: Agreement::CannotTell("no cell was measured".to_owned()),
            rule: "ratio(rate) < 1".to_owned(),
        }],
        pictures: vec![
            picture("figure-5", PictureKind::Lines),
            picture("figure-6", PictureKind::Bars),
            percentiles(),
            Picture { panels: Vec::new(), ..picture("empty", PictureKind::Lines) },
        ],
        tables: vec![PageTable {
            name: "errors".to_owned(),
            title: "Errors".to_owned(),
            note: "in points".to_owned(),
            names: 1,
            header: vec!["method".to_owned(), "cpu".to_owned()],
            rows: vec![vec!["<script>".to_owned(), "0.1".to_owned()]],
        }],
        evidence: Vec::new(),
        skipped: vec![("too small".to_owned(), "8 cores".to_owned())],
        failed: vec![("cell".to_owned(), "exit code 1".to_owned())],
        findings: vec!["the kernel changed".to_owned()],
        how: vec![("blocks".to_owned(), "3".to_owned())],
        repeat: "pinfold study run x.toml".to_owned(),
        file: "name = \"x\"\n".to_owned(),
    }
}

#[test]
fn the_page_is_one_file_of_well_formed_markup() {
    let html = render_study(&page()).unwrap();
    let body = html.split_once("<html").map(|(_, rest)| format!("<html{rest}")).unwrap();
    let parsed = roxmltree::Document::parse(&body).unwrap();
    let count = |name: &str| parsed.descendants().filter(|node| node.has_tag_name(name)).count();
    assert_eq!(count("script"), 0);
    assert!(!html.contains("http://") && !html.contains("https://"));
    for word in [
        "quota &amp; more",
        ">99.9 %</text>",
        ">1 ms</text>",
        "Nothing of it was measured here",
        "&lt;script&gt;",
        "pinfold study run x.toml",
        "too small",
        "exit code 1",
        "the kernel changed",
        "cannot tell: no cell was measured",
        "ratio(rate) &lt; 1",
    ] {
        assert!(
            html.contains(word)
                || html.contains(
                    &word
                        .replace("&amp;", "&#38;")
                        .replace("&lt;", "&#60;")
                        .replace("&gt;", "&#62;")
                ),
            "{word}"
        );
    }
    // Four bars, four whiskers of three strokes each in either picture.
    let class = |wanted: &str| {
        parsed.descendants().filter(|node| node.attribute("class") == Some(wanted)).count()
    };
    assert_eq!(class("leader"), 2 * 4 * 3);
    assert_eq!(parsed.descendants().filter(|n| n.has_tag_name("rect")).count(), 4);
}
