//! One file per command.

pub mod advise;
pub mod apply;
pub mod check;
pub mod claims;
pub mod doctor;
pub mod emit;
pub mod emulate;
pub mod exits;
pub mod group;
pub mod help;
pub mod journal;
pub mod libvirt_hook;
pub mod overview;
pub mod plan;
pub mod quiet;
pub mod report;
pub mod run;
pub mod status;
pub mod top;
pub mod topo;
pub mod undo;
pub mod watch;
