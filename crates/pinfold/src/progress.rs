//! Progress of the trials: a bar on a terminal, occasional lines in a log.

use indicatif::{ProgressBar, ProgressStyle};
use pinfold_run::time;
use pinfold_study::study::{Event, Progress, Update};

use crate::output::{is_stderr_terminal, print_message};

/// A progress bar.
pub struct Bar {
    /// The unit that is counted: `trials`, `starts`.
    what: &'static str,
    bar: Option<ProgressBar>,
    reported: Option<(u32, u64)>,
}

impl Bar {
    /// A bar if standard error is a terminal.
    pub fn new(what: &'static str) -> Self {
        let bar = is_stderr_terminal().then(|| {
            let bar = ProgressBar::new(0);
            if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}") {
                bar.set_style(style.progress_chars("█▉▊▋▌▍▎▏ "));
            }
            bar
        });
        Self { what, bar, reported: None }
    }

    fn report(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| print_message(line)),
            None => print_message(line),
        }
    }
}

impl Progress for Bar {
    fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    fn update(&mut self, update: &Update<'_>) {
        let left = time::seconds(update.left_s);
        match &update.event {
            Event::Done => {}
            Event::Retries { message } => {
                self.report(&format!("{}: {message}; trying again", update.name));
            }
            Event::Failed { message } => {
                self.report(&format!("{}: {message}; recorded as failed", update.name));
            }
            Event::Dropped { reason } => {
                let name = update.name;
                self.report(&format!("{name}: dropped, it can no longer win: {reason}"));
            }
            Event::Kept { names } => self.report(&format!("continues with {}", names.join(", "))),
            Event::Ends { reason } => self.report(&format!("no further block: {reason}")),
        }
        match &self.bar {
            Some(bar) => {
                bar.set_length(update.total);
                bar.set_position(update.done);
                bar.set_message(format!("block {}, {left} left", update.block + 1));
            }
            None => {
                // Once per block, and per twentieth of the whole.
                let part = update.done * 20 / update.total.max(1);
                if self.reported != Some((update.block, part)) {
                    let (done, total) = (update.done, update.total);
                    let block = update.block + 1;
                    let what = self.what;
                    print_message(&format!("{done}/{total} {what}, block {block}, {left} left"));
                    self.reported = Some((update.block, part));
                }
            }
        }
    }
}
