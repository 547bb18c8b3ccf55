//! A writer of SVG elements: escapes text, rounds coordinates, closes elements.
//!
//! Charts contain no colours: they have CSS classes, and the page's style sheet defines their light
//! and dark colours.

use std::fmt::Write as _;

/// A drawing that is being written.
pub(crate) struct Svg {
    body: String,
}

/// Alignment of a text to its point.
#[derive(Clone, Copy)]
pub(crate) enum TextAnchor {
    Start,
    Middle,
    End,
}

impl Svg {
    /// Opens a drawing with a title and a description for screen readers. `id` must be unique on
    /// the page.
    pub(crate) fn open(id: &str, size: (f64, f64), title: &str, description: &str) -> Self {
        let (width, height) = (number(size.0), number(size.1));
        let body = format!(
            "<svg viewBox=\"0 0 {width} {height}\" \
             role=\"img\" aria-labelledby=\"{id}-t {id}-d\">\
             <title id=\"{id}-t\">{}</title><desc id=\"{id}-d\">{}</desc>\n",
            escape(title),
            escape(description)
        );
        Self { body }
    }

    pub(crate) fn close(mut self) -> String {
        self.body.push_str("</svg>");
        self.body
    }

    pub(crate) fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let [x1, y1, x2, y2] = [from.0, from.1, to.0, to.1].map(number);
        self.put(format_args!(
            "<line class=\"{class}\" x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\"/>\n"
        ));
    }

    pub(crate) fn rect(&mut self, class: &str, at: (f64, f64), size: (f64, f64)) {
        let [x, y, width, height] = [at.0, at.1, size.0, size.1].map(number);
        self.put(format_args!(
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"/>\n"
        ));
    }

    pub(crate) fn text(&mut self, class: &str, anchor: TextAnchor, at: (f64, f64), text: &str) {
        let anchor = match anchor {
            TextAnchor::Start => "start",
            TextAnchor::Middle => "middle",
            TextAnchor::End => "end",
        };
        let ([x, y], text) = ([at.0, at.1].map(number), escape(text));
        self.put(format_args!(
            "<text class=\"{class}\" text-anchor=\"{anchor}\" x=\"{x}\" y=\"{y}\">{text}</text>\n"
        ));
    }

    /// A text that rises to the right and ends at its point.
    pub(crate) fn slant_text(&mut self, class: &str, at: (f64, f64), text: &str) {
        let ([x, y], text) = ([at.0, at.1].map(number), escape(text));
        self.put(format_args!(
            "<text class=\"{class}\" text-anchor=\"end\" x=\"{x}\" y=\"{y}\" \
             transform=\"rotate(-45 {x} {y})\">{text}</text>\n"
        ));
    }

    /// A line through points; nothing for fewer than two points.
    pub(crate) fn polyline(&mut self, class: &str, points: &[(f64, f64)]) {
        if points.len() < 2 {
            return;
        }
        let points: Vec<String> =
            points.iter().map(|(x, y)| format!("{},{}", number(*x), number(*y))).collect();
        self.put(format_args!("<polyline class=\"{class}\" points=\"{}\"/>\n", points.join(" ")));
    }

    /// A path in coordinates relative to `at`.
    pub(crate) fn path(&mut self, class: &str, at: (f64, f64), data: &str) {
        let [x, y] = [at.0, at.1].map(number);
        self.put(format_args!("<path class=\"{class}\" d=\"M{x} {y}{data}\"/>\n"));
    }

    pub(crate) fn open_group(&mut self, class: &str, title: Option<&str>) {
        self.put(format_args!("<g class=\"{class}\">"));
        if let Some(title) = title {
            self.put(format_args!("<title>{}</title>", escape(title)));
        }
    }

    pub(crate) fn close_group(&mut self) {
        self.body.push_str("</g>\n");
    }

    fn put(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        self.body.write_fmt(text).unwrap_or(());
    }
}

/// A coordinate with one decimal; a value that is not finite becomes 0, so that it stays visible.
pub(crate) fn number(coordinate: f64) -> String {
    let rounded = (coordinate * 10.0).round() / 10.0;
    if rounded.is_finite() { (rounded + 0.0).to_string() } else { "0".to_owned() }
}

/// Escapes text for element content and quoted attributes.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in crate::format::clean(text).chars() {
        match letter {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            _ => escaped.push(letter),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coordinates_are_short_and_finite() {
        check(12.345, "12.3");
        check(12.0, "12");
        check(-0.01, "0");
        check(f64::NAN, "0");
        check(f64::INFINITY, "0");
    }

    fn check(coordinate: f64, text: &str) {
        assert_eq!(number(coordinate), text)
    }

    #[test]
    fn hostile_texts() {
        fn check(text: &str, expected: &str) {
            assert_eq!(escape(text), expected)
        }

        check("<script>\"'&]]>", "&lt;script&gt;&quot;&#39;&amp;]]&gt;");
        check("a\u{0}b", "a\u{fffd}b");
    }
}
