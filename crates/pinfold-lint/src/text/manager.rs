//! A domain file that another program writes.

use pinfold_plan::domain_file::Manager;

use super::{Fault, Words};

/// The program that writes the file.
pub(crate) struct Managed(pub Manager);

impl Fault for Managed {
    fn words(&self) -> Words {
        let manager = self.0;
        Words::new(
            "file-managed",
            format!("{} writes this file", manager.name()),
            "changes to the file are lost when the machine starts again",
        )
        .with_replacement([manager.with_replacement()])
    }
}
