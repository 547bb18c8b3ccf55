//! A guest under test: prepared, started under a plan, measured in each load state, ended.

mod boot_priority;
mod image;
pub(crate) mod loads;
mod measure;
mod scratch;
mod starter;
mod subject;

pub use self::image::{GuestImage, Shape, lacking};
pub use self::measure::{PER_OBSERVED_S, PER_STATE_S, Running};
pub use self::scratch::Scratch;
pub use self::starter::{Facts, StartCoordination, VmStarter};
pub use self::subject::{GuestAccess, Subject, UserGuest};
