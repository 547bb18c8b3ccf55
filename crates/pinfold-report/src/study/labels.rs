//! Labels of an axis, never truncated. They are horizontal where they fit, else broken into lines,
//! else slanted; labels that are too long for that are replaced by numbers, with a list below.

use crate::svg::{Svg, TextAnchor};

/// Width of a letter, with the larger font of narrow screens.
const LETTER: f64 = 6.2;
/// Minimum gap between two labels.
const GAP: f64 = 5.0;
/// Height of a line of a label.
const LINE: f64 = 11.5;
const MOST_LINES: usize = 3;
/// Minimum distance of slanted labels.
const SLANT_PITCH: f64 = 15.0;
/// Width and height of a slanted letter, at 45 degrees.
const SLANT_LETTER: f64 = LETTER * std::f64::consts::FRAC_1_SQRT_2;

/// Positions and labels.
type Ticks = Vec<(f64, String)>;

/// How the labels of an axis are drawn.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Labels {
    /// Horizontal, in one or more lines.
    Level(Vec<(f64, Vec<String>)>),
    /// Slanted, rising to the right.
    Slanting(Ticks),
    /// Numbers in place of these labels.
    Numbered(Ticks, Vec<String>),
}

fn width(text: &str) -> f64 {
    text.chars().count() as f64 * LETTER
}

/// Numbers on a scale: those that would touch the previous one are left out; the tick marks show
/// their positions.
pub(super) fn of_scale(ticks: Ticks) -> Labels {
    Labels::Level(thin(ticks).into_iter().map(|(x, text)| (x, vec![text])).collect())
}

fn thin(ticks: Ticks) -> Ticks {
    let mut right = f64::MIN;
    ticks
        .into_iter()
        .filter(|(x, text)| {
            let half = width(text) / 2.0;
            let free = x - half >= right;
            if free {
                right = x + half + GAP;
            }
            free
        })
        .collect()
}

/// Names, each with this width: none is left out or truncated.
pub(super) fn of_names(ticks: Ticks, room: f64) -> Labels {
    let broken: Option<Vec<(f64, Vec<String>)>> =
        ticks.iter().map(|(x, text)| Some((*x, break_lines(text, room - GAP)?))).collect();
    if let Some(lines) = broken {
        return Labels::Level(lines);
    }
    if room >= SLANT_PITCH && ticks.iter().all(|(x, text)| reaches(*x, text)) {
        return Labels::Slanting(ticks);
    }
    let (places, names): (Vec<f64>, Vec<String>) = ticks.into_iter().unzip();
    let numbers = places.into_iter().zip(1_u32..).map(|(x, number)| (x, number.to_string()));
    Labels::Numbered(thin(numbers.collect()), names)
}

fn reaches(x: f64, text: &str) -> bool {
    x - text.chars().count() as f64 * SLANT_LETTER >= 0.0
}

/// A text in lines of this width, broken after spaces and punctuation; `None` if a word is wider or
/// there are too many lines.
fn break_lines(text: &str, room: f64) -> Option<Vec<String>> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_inclusive([' ', '-', '_', '/', ':', ',', '=']) {
        if width(word.trim_end()) > room {
            return None;
        }
        match lines.last_mut() {
            Some(line) if width(line) + width(word.trim_end()) <= room => line.push_str(word),
            _ => lines.push(word.to_owned()),
        }
    }
    (lines.len() <= MOST_LINES)
        .then(|| lines.into_iter().map(|line| line.trim_end().to_owned()).collect())
}

impl Labels {
    /// Height that they take below the axis.
    pub(super) fn height(&self) -> f64 {
        match self {
            Labels::Level(ticks) => {
                let lines = ticks.iter().map(|(_, lines)| lines.len()).max().unwrap_or(1);
                3.5 + LINE * lines.max(1) as f64
            }
            Labels::Slanting(ticks) => {
                let letters = ticks.iter().map(|(_, text)| text.chars().count()).max();
                16.0 + SLANT_LETTER * letters.unwrap_or(0) as f64
            }
            Labels::Numbered(..) => 3.5 + LINE,
        }
    }

    /// The labels that the numbers stand for.
    pub(super) fn numbered_names(&self) -> Vec<String> {
        match self {
            Labels::Numbered(_, names) => names.clone(),
            Labels::Level(_) | Labels::Slanting(_) => Vec::new(),
        }
    }

    /// Draws the labels below an axis at this height.
    pub(super) fn draw(&self, svg: &mut Svg, floor: f64) {
        match self {
            Labels::Level(ticks) => {
                for (x, lines) in ticks {
                    for (line, text) in lines.iter().enumerate() {
                        let y = floor + 3.5 + LINE * (line + 1) as f64;
                        svg.text("tick", TextAnchor::Middle, (*x, y), text);
                    }
                }
            }
            Labels::Slanting(ticks) => {
                for (x, text) in ticks {
                    svg.slant_text("tick", (*x + 3.0, floor + 12.0), text);
                }
            }
            Labels::Numbered(ticks, _) => {
                for (x, text) in ticks {
                    svg.text("tick", TextAnchor::Middle, (*x, floor + 3.5 + LINE), text);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(names: &[&str], room: f64) -> Ticks {
        names
            .iter()
            .enumerate()
            .map(|(index, name)| (place(room, index), (*name).to_owned()))
            .collect()
    }

    fn place(room: f64, index: usize) -> f64 {
        62.0 + room * (index as f64 + 0.5)
    }

    #[test]
    fn names_break_slant_or_are_numbered_but_stay_whole() {
        check(&["none", "quota"], 60.0, &["none", "quota"]);
        check(
            &["balanced-shared", "max performance"],
            75.0,
            &["balanced-|shared", "max|performance"],
        );
        check(&["low-latency-rt", "compact"], 30.0, &["slanting low-latency-rt"]);
        let long = "a-name-of-more-letters-than-any-axis-has-room-for";
        check(&[long, "b"], 30.0, &[&format!("1 is {long}")]);
        let many: Vec<String> = (0..40).map(|node| format!("node-{node:02}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        check(&many, 9.0, &["1 is node-00"]);
    }

    fn check(names: &[&str], room: f64, expected: &[&str]) {
        assert_eq!(lines(names, room), expected, "{names:?} in {room}");
    }

    fn lines(names: &[&str], room: f64) -> Vec<String> {
        match of_names(ticks(names, room), room) {
            Labels::Level(ticks) => ticks.into_iter().map(|(_, lines)| lines.join("|")).collect(),
            Labels::Slanting(ticks) => vec![format!("slanting {}", ticks[0].1)],
            Labels::Numbered(ticks, names) => vec![format!("{} is {}", ticks[0].1, names[0])],
        }
    }

    #[test]
    fn numbers_of_a_scale_do_not_touch() {
        let all = (0..50).map(|n| (62.0 + 4.0 * f64::from(n), n.to_string())).collect();
        let Labels::Level(ticks) = of_scale(all) else { panic!("level") };
        assert!(ticks.len() > 5 && ticks.windows(2).all(|pair| pair[1].0 - pair[0].0 > LETTER));
    }
}
