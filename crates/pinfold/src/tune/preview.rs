//! Prints the size and duration of a run before it starts.

use pinfold_model::text::count_noun;
use pinfold_model::{Accelerator, Finding};
use pinfold_run::time;
use pinfold_study::tune::Created;

use crate::output::print_message;

/// Prints what will be done and how long it will take.
pub fn announce(created: &Created, accelerator: Accelerator, findings: &[Finding]) {
    let prediction = &created.prediction;
    for finding in findings {
        print_message(&finding.to_string());
    }
    for (name, other) in &created.same_as {
        print_message(&format!("note: {name} gives the same placement as {other}: measured once"));
    }
    let screening = match prediction.screening_starts {
        0 => "all of them in every block".to_owned(),
        starts => format!("a race of {starts} starts or less"),
    };
    print_message(&format!(
        "Run {}: {} against none, under {accelerator}: {screening}, then {} blocks of {} starts \
         ({:.2} s of gaps in each load state). Predicted: {}.",
        created.run.id(),
        count_noun(prediction.candidates, "placement"),
        prediction.confirm_blocks,
        prediction.block_starts(),
        prediction.observation_s,
        time::seconds(prediction.seconds()),
    ));
}
