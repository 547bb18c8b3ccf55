//! The progress bar with the time that is left; a line per block where nobody watches.

use indicatif::{ProgressBar, ProgressStyle};
use pinfold_model::{Accelerator, Finding};
use pinfold_study::tune::{Created, Event, Progress, Update};

use crate::output::{has_person, say};
use crate::time;

/// Says what will be done and how long it will take, before it begins.
pub fn announce(created: &Created, accelerator: Accelerator, findings: &[Finding]) {
    let prediction = &created.prediction;
    for finding in findings {
        say(&finding.to_string());
    }
    for (name, other) in &created.same_as {
        say(&format!("note: {name} places this machine as {other} does: measured once"));
    }
    let screening = match prediction.screening_starts {
        0 => "all of them in every block".to_owned(),
        starts => format!("a race of {starts} starts or less"),
    };
    say(&format!(
        "Run {}: {} placement(s) against none, under {accelerator}: {screening}, then {} blocks of {} starts \
         ({:.2} s of gaps in each load state). Predicted: {}.",
        created.run.id(),
        prediction.candidates,
        prediction.confirm_blocks,
        prediction.block_starts(),
        prediction.observation_s,
        seconds(prediction.seconds()),
    ));
}

/// The bar.
pub struct Bar {
    bar: Option<ProgressBar>,
    block: Option<(String, u32)>,
}

impl Bar {
    /// A bar if a person watches.
    pub fn new() -> Self {
        let bar = has_person().then(|| {
            let bar = ProgressBar::new(0);
            if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}") {
                bar.set_style(style.progress_chars("█▉▊▋▌▍▎▏ "));
            }
            bar
        });
        Self { bar, block: None }
    }

    /// Takes the bar away.
    pub fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    fn tell(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| say(line)),
            None => say(line),
        }
    }
}

impl Progress for Bar {
    fn update(&mut self, update: &Update<'_>) {
        let where_now = format!("{} block {}", update.phase, update.block + 1);
        let left = seconds(update.left_s);
        match &update.event {
            Event::Begins | Event::Done => {}
            Event::Retries { message } => {
                self.tell(&format!("{}: {message}; trying once more", update.name));
            }
            Event::Failed { message } => self.tell(&format!("{}: {message}", update.name)),
            Event::Dropped { leader, ratio } => {
                let name = update.name;
                self.tell(&format!(
                    "{name}: dropped after {where_now}, it cannot win any more: {ratio:.2} times the \
                     number of {leader}"
                ));
                return;
            }
            Event::Kept { names } => {
                self.tell(&format!("goes on with {}", names.join(", ")));
                return;
            }
        }
        match &self.bar {
            Some(bar) => {
                bar.set_length(u64::from(update.total));
                bar.set_position(u64::from(update.done));
                bar.set_message(format!("{where_now}: {}, {left} left", update.name));
            }
            None => {
                let block = (update.phase.to_string(), update.block);
                if self.block.as_ref() != Some(&block) {
                    say(&format!(
                        "{}/{} starts, {where_now}, {left} left",
                        update.done, update.total
                    ));
                    self.block = Some(block);
                }
            }
        }
    }
}

/// Seconds in words.
pub fn seconds(seconds: f64) -> String {
    let time = std::time::Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default();
    time::wait(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}
