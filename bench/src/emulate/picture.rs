//! Pictures: when a thread ran and stopped under each method, and speed inside bursts. Pure.

use pinfold_probe::cpu_speed::Stop;

const WIDTH: f64 = 960.0;
const LEFT: f64 = 20.0;
const RIGHT: f64 = 20.0;
/// Colours that most people can distinguish (Okabe and Ito), in both colour schemes.
const COLOURS: [&str; 10] = [
    "#222222", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a7a7a",
    "#8b5a2b", "#a51e4c",
];
const MARKS: [&str; 4] = ["circle", "square", "diamond", "triangle"];

const STYLE: &str = "<style>text{font:14px sans-serif;fill:#222}.small{font-size:12px}.grid{stroke:#bbb;stroke-width:1}.asked{stroke:#222;stroke-width:1.5;stroke-dasharray:6 4}.ran{fill:#0072b2}.stopped{fill:#e9e2d0}.page{fill:#fff}</style>";

/// A drawing with a description.
fn drawing(height: f64, title: &str, description: &str, body: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n<title>{}</title>\n<desc>{}</desc>\n{STYLE}\n<rect class=\"page\" width=\"{WIDTH}\" height=\"{height}\"/>\n{body}</svg>\n",
        escape(title),
        escape(description)
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn text(class: &str, anchor: &str, x: f64, y: f64, words: &str) -> String {
    format!(
        "<text class=\"{class}\" text-anchor=\"{anchor}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>\n",
        escape(words)
    )
}

/// Minimum span of a timeline; if a stop is longer than a tenth of it, a timeline of ten times the
/// length is added.
const SPAN_NS: u64 = 20_000_000;

/// When a thread ran, from its stops since `from_ns`.
pub fn timeline(name: &str, stops: &[Stop], from_ns: u64) -> String {
    let title = format!("{name}: one spinning thread at 50 %");
    let mut body = text("", "start", LEFT, 22.0, &title);
    body.push_str("<rect class=\"ran\" x=\"700\" y=\"11\" width=\"14\" height=\"14\"/>\n");
    body.push_str(&text("small", "start", 720.0, 22.0, "ran"));
    body.push_str("<rect class=\"stopped\" x=\"780\" y=\"11\" width=\"14\" height=\"14\"/>\n");
    body.push_str(&text("small", "start", 800.0, 22.0, "stopped"));
    let is_coarse = stops.iter().any(|stop| stop.length_ns > SPAN_NS / 10);
    let spans = if is_coarse { vec![SPAN_NS, SPAN_NS * 10] } else { vec![SPAN_NS] };
    let mut top = 34.0;
    for span in &spans {
        body.push_str(&strip(stops, from_ns, from_ns + span, top));
        top += 70.0;
    }
    let description = "When the thread ran and when it was stopped, as it has seen by itself";
    drawing(top, &title, description, &body)
}

fn strip(stops: &[Stop], from_ns: u64, to_ns: u64, top: f64) -> String {
    let tall = 36.0;
    let span = to_ns.saturating_sub(from_ns).max(1);
    let place = |ns: u64| {
        let inside = ns.clamp(from_ns, to_ns) - from_ns;
        LEFT + inside as f64 / span as f64 * (WIDTH - LEFT - RIGHT)
    };
    let bar = |class: &str, from: f64, to: f64| {
        let width = to - from;
        format!(
            "<rect class=\"{class}\" x=\"{from:.2}\" y=\"{top}\" width=\"{width:.2}\" height=\"{tall}\"/>\n"
        )
    };
    let mut body = bar("ran", place(from_ns), place(to_ns));
    for stop in stops {
        let (from, to) =
            (place(stop.start_ns), place(stop.start_ns.saturating_add(stop.length_ns)));
        if to > from {
            body.push_str(&bar("stopped", from, to));
        }
    }
    for tick in 0..=10 {
        let x = place(from_ns + span / 10 * tick);
        let (low, high) = (top + tall, top + tall + 6.0);
        body.push_str(&format!(
            "<line class=\"grid\" x1=\"{x:.1}\" y1=\"{low}\" x2=\"{x:.1}\" y2=\"{high}\"/>\n"
        ));
        let anchor = match tick {
            0 => "start",
            10 => "end",
            _ => "middle",
        };
        let at = format!("{} ms", (span / 10 * tick) as f64 / 1e6);
        body.push_str(&text("small", anchor, x, top + tall + 20.0, &at));
    }
    body
}

/// A line of the picture of bursts.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Name of the subject.
    pub name: String,
    /// Length of the bursts (ms) and the speed inside them.
    pub points: Vec<(f64, f64)>,
}

/// Speed inside bursts over their length, one line for each subject; one panel for each speed.
pub fn bursts(panels: &[(f64, Vec<Line>)]) -> String {
    let (top, tall, gap) = (56.0, 330.0, 70.0);
    let names: Vec<&str> = panels
        .first()
        .map(|(_, lines)| lines.iter().map(|line| line.name.as_str()).collect())
        .unwrap_or_default();
    let legend = 190.0;
    let wide = (WIDTH - 60.0 - legend - gap) / 2.0;
    let mut body =
        text("", "start", LEFT, 24.0, "Speed inside bursts of work, each after a sleep as long");
    for ((asked, lines), left) in panels.iter().zip([60.0, 60.0 + wide + gap]) {
        body.push_str(&panel(*asked, lines, &names, &Area { left, top, wide, tall }));
    }
    for (index, name) in names.iter().enumerate() {
        let y = top + 14.0 + index as f64 * 24.0;
        let x = WIDTH - legend + 16.0;
        body.push_str(&mark(index, x, y - 5.0));
        body.push_str(&text("small", "start", x + 14.0, y, name));
    }
    let y = top + 14.0 + names.len() as f64 * 24.0;
    let x = WIDTH - legend;
    body.push_str(&format!(
        "<line class=\"asked\" x1=\"{x:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"/>\n",
        y - 5.0,
        x + 26.0,
        y - 5.0
    ));
    body.push_str(&text("small", "start", x + 30.0, y, "asked"));
    let description = "A slower CPU is as slow in a short burst as in a long one; a method that meters a budget is not.";
    drawing(top + tall + 64.0, "Speed inside bursts", description, &body)
}

/// The rectangle of a panel.
struct Area {
    left: f64,
    top: f64,
    wide: f64,
    tall: f64,
}

fn panel(asked: f64, lines: &[Line], names: &[&str], area: &Area) -> String {
    let Area { left, top, wide, tall } = *area;
    let lengths: Vec<f64> =
        lines.iter().flat_map(|line| line.points.iter().map(|(at, _)| *at)).collect();
    let (low, high) =
        lengths.iter().fold((f64::MAX, f64::MIN), |(low, high), at| (low.min(*at), high.max(*at)));
    let across = |at: f64| {
        let part = if high > low { (at / low).ln() / (high / low).ln() } else { 0.5 };
        left + 12.0 + part * (wide - 24.0)
    };
    let up = |speed: f64| top + tall - speed.clamp(0.0, 1.05) / 1.05 * tall;
    let mut body = String::new();
    let level = |class: &str, speed: f64| {
        let y = up(speed);
        format!(
            "<line class=\"{class}\" x1=\"{left:.1}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\"/>\n",
            left + wide
        )
    };
    for speed in [0.0, 0.25, 0.5, 0.75, 1.0] {
        body.push_str(&level("grid", speed));
        body.push_str(&text(
            "small",
            "end",
            left - 6.0,
            up(speed) + 4.0,
            &format!("{} %", speed * 100.0),
        ));
    }
    body.push_str(&level("asked", asked));
    let mut seen: Vec<f64> = lengths;
    seen.sort_unstable_by(f64::total_cmp);
    seen.dedup();
    for at in &seen {
        let label = format!("{at} ms");
        body.push_str(&text("small", "middle", across(*at), top + tall + 20.0, &label));
    }
    body.push_str(&text(
        "small",
        "middle",
        left + wide / 2.0,
        top + tall + 42.0,
        &format!("length of a burst; {} % asked", asked * 100.0),
    ));
    for line in lines {
        let index = names.iter().position(|name| *name == line.name).unwrap_or(0);
        let points: Vec<(f64, f64)> =
            line.points.iter().map(|(at, speed)| (across(*at), up(*speed))).collect();
        let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        body.push_str(&format!(
            "<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"2\" points=\"{}\"/>\n",
            colour(index),
            path.join(" ")
        ));
        for point in points {
            body.push_str(&mark(index, point.0, point.1));
        }
    }
    body
}

fn colour(index: usize) -> &'static str {
    COLOURS[index % COLOURS.len()]
}

/// A mark whose shape identifies the line too.
fn mark(index: usize, x: f64, y: f64) -> String {
    let fill = colour(index);
    let shape = MARKS[(index + index / COLOURS.len()) % MARKS.len()];
    let points = |offsets: &[(f64, f64)]| {
        let points: Vec<String> =
            offsets.iter().map(|(dx, dy)| format!("{:.1},{:.1}", x + dx, y + dy)).collect();
        format!("<polygon fill=\"{fill}\" points=\"{}\"/>\n", points.join(" "))
    };
    match shape {
        "square" => points(&[(-4.0, -4.0), (4.0, -4.0), (4.0, 4.0), (-4.0, 4.0)]),
        "diamond" => points(&[(0.0, -6.0), (6.0, 0.0), (0.0, 6.0), (-6.0, 0.0)]),
        "triangle" => points(&[(0.0, -6.0), (6.0, 5.0), (-6.0, 5.0)]),
        _ => format!("<circle fill=\"{fill}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.5\"/>\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeline_shows_the_stops_inside_its_span() {
        fn ms(start: u64, length: u64) -> Stop {
            Stop { start_ns: start * 1_000_000, length_ns: length * 1_000_000 }
        }
        // The first starts before the span, the third ends after it.
        let fine = timeline("a<b", &[ms(5, 2), ms(10, 2), ms(25, 2)], 6_000_000);
        assert_eq!(fine.matches("class=\"stopped\"").count(), 4, "three and the legend");
        assert!(
            fine.contains("a&lt;b") && fine.contains("x=\"20.00\" y=\"34\" width=\"46.00\""),
            "{fine}"
        );
        assert!(fine.contains(">20 ms<") && !fine.contains(">200 ms<"), "{fine}");
        let coarse = timeline("c", &[ms(10, 50)], 0);
        assert_eq!(coarse.matches("class=\"stopped\"").count(), 3, "in both spans, and the legend");
        assert!(coarse.contains(">200 ms<"), "{coarse}");
    }

    #[test]
    fn bursts_have_a_line_for_each() {
        fn line(name: &str) -> Line {
            Line { name: name.to_owned(), points: vec![(0.5, 0.5), (200.0, 1.0)] }
        }
        let panels = [(0.5, vec![line("a"), line("b")]), (0.25, vec![line("a"), line("b")])];
        let picture = bursts(&panels);
        assert_eq!(picture.matches("<polyline").count(), 4);
        assert_eq!(picture.matches("class=\"asked\"").count(), 3);
        assert!(!bursts(&[]).contains("<polyline"));
    }
}
