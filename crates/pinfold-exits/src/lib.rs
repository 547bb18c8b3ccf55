//! VM exits: number, type, duration, and the accessed addresses.
//!
//! Stability: none; a part of the program, which may change in each release.
//!
//! The table is that of Crăciun 2016: for each type of exit the count, rate, shortest, longest,
//! mean and total time, standard deviation and share, together with the time in the guest and the
//! time without a CPU. The source of the data is its *level*. It is chosen by which events fire,
//! not by which exist:
//!
//! | level | source | content |
//! |---|---|---|
//! | A | `kvm_exit`, `kvm_entry` | each exit of the processor |
//! | B | `kvm_userspace_exit`, `kvm_fpu` | exits to user space (the emulator) |
//! | C | QMP `query-stats` | counts, no times |
//!
//! A [`EventSurvey`] determines the level, a [`Watch`] records the table ([`table`]). The kernel
//! pairs and sums the events ([`pinfold_host::ExitCounter`]); [`cost`] measures the overhead. The
//! time that the processor itself needs to leave and enter the guest is outside of both events and
//! in no number.

pub mod cost;
mod error;
pub mod expected;
mod figures;
mod level;
mod names;
mod statistics;
pub mod table;
mod watch;

pub use error::ExitsError;
pub use figures::figures;
pub use level::{Level, VIRT_DISTRIBUTOR, VcpuThread, from_source};
pub use names::{Architecture, name};
pub use statistics::{Statistics, table_between};
pub use table::{AddressRow, ExitTable, Kind, Row, Times, Vcpu};
pub use watch::{EventSurvey, Watch, detect_exit_source};

#[cfg(test)]
mod tests;
