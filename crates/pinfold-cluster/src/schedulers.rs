//! The batch systems of this program.

use pinfold_run::{Exit, Failure};

use crate::documents::Options;
use crate::scheduler::Kind;
use crate::slurm;

/// All batch systems.
pub const KINDS: &[Kind] = &[slurm::KIND];

/// The batch system of a run; a store that names none is for the first one.
///
/// # Errors
///
/// [`Failure`] if this version does not know the batch system.
pub fn kind_of(options: &Options) -> Result<&'static Kind, Failure> {
    let Some(name) = &options.scheduler else { return Ok(&KINDS[0]) };
    KINDS.iter().find(|kind| kind.name == *name).ok_or_else(|| {
        let known: Vec<&str> = KINDS.iter().map(|kind| kind.name).collect();
        Failure::new(Exit::Input, format!("this run belongs to the unknown batch system {name:?}"))
            .with_hint(format!(
                "this version knows {}; continue it with the version that started it",
                known.join(", ")
            ))
    })
}

/// The batch system that started this process; the first one if none did.
#[must_use]
pub fn kind_here() -> &'static Kind {
    KINDS.iter().find(|kind| (kind.is_here)()).unwrap_or(&KINDS[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_of_an_unknown_batch_system_is_refused() {
        let mut options = Options::new(String::new());
        options.scheduler = None;
        assert_eq!(kind_of(&options).unwrap().name, KINDS[0].name);
        options.scheduler = Some("torque9".to_owned());
        let text = kind_of(&options).err().unwrap().to_string();
        assert!(text.contains("unknown batch system \"torque9\""), "{text}");
    }
}
