//! The style sheet's colours: WCAG AA contrast in the light and in the dark scheme.

const STYLE: &str = include_str!("../../assets/page.css");

/// The value of a variable in the light (first) or dark (second) scheme.
fn colour(name: &str, scheme: usize) -> [f64; 3] {
    let definition = format!("--{name}: #");
    let hex = STYLE
        .match_indices(&definition)
        .nth(scheme)
        .map(|(at, _)| &STYLE[at + definition.len()..][..6])
        .unwrap_or_else(|| panic!("--{name} has no colour in scheme {scheme}"));
    [0, 2, 4].map(|at| {
        f64::from(
            u8::from_str_radix(&hex[at..at + 2], 16).unwrap_or_else(|why| panic!("{hex}: {why}")),
        ) / 255.0
    })
}

/// Relative luminance (WCAG 2.2).
fn luminance(colour: [f64; 3]) -> f64 {
    let [red, green, blue] = colour.map(|channel| {
        if channel <= 0.040_45 { channel / 12.92 } else { ((channel + 0.055) / 1.055).powf(2.4) }
    });
    0.2126 * red + 0.7152 * green + 0.0722 * blue
}

fn contrast(a: [f64; 3], b: [f64; 3]) -> f64 {
    let (a, b) = (luminance(a), luminance(b));
    (a.max(b) + 0.05) / (a.min(b) + 0.05)
}

#[test]
fn texts_and_lines_stand_out_in_both_schemes() {
    fn check(scheme: usize, name: &str, text: &str, background: &str) {
        let found = contrast(colour(text, scheme), colour(background, scheme));
        assert!(found >= 4.5, "{text} on {background} in the {name} scheme: {found:.2}");
    }

    let texts = [
        "ink", "soft", "accent", "warm", "good", "bad", "unsure", "s0", "s1", "s2", "s3", "s4",
        "s5", "s6", "base",
    ];
    for (scheme, name) in ["light", "dark"].into_iter().enumerate() {
        for text in texts {
            check(scheme, name, text, "bg");
            check(scheme, name, text, "surface");
        }
        for background in ["tint", "seat", "helper", "idle"] {
            check(scheme, name, "ink", background);
        }
        for text in ["good", "bad", "unsure", "soft", "s0", "s1", "s2", "s3"] {
            check(scheme, name, text, "tint");
        }
    }
}

#[test]
fn the_reference_values_of_wcag() {
    check([0.0; 3], [1.0; 3], 21.0);
    check([1.0; 3], [1.0; 3], 1.0);
    check([119.0 / 255.0; 3], [1.0; 3], 4.48);
}

fn check(a: [f64; 3], b: [f64; 3], expected: f64) {
    assert!((contrast(a, b) - expected).abs() < 0.01);
}

#[test]
fn colours_are_variables_only() {
    let after = STYLE.find("* { box-sizing").unwrap();
    assert!(!STYLE[after..].contains('#'), "a colour outside the two schemes");
}
