//! A domain file that another program writes.

use pinfold_plan::domain_file::Manager;

use super::{Fault, FaultText};

/// The program that writes the file.
pub(crate) struct Managed(pub Manager);

impl Fault for Managed {
    fn words(&self) -> FaultText {
        let manager = self.0;
        FaultText::new(
            "file-managed",
            format!("{} writes this file", manager.name()),
            "changes to the file are lost when the machine starts again",
        )
        .with_replacement([manager.with_replacement()])
    }
}
