//! Where the data about exits comes from, and the threads that are observed.

use pinfold_host::{ExitScope, ExitSource};
use pinfold_model::TaskId;

/// Guest-physical address of the distributor of a GICv2 in QEMU's machine `virt`.
pub const VIRT_DISTRIBUTOR: u64 = 0x0800_0000;

/// Source of the data about exits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// `kvm_exit` and `kvm_entry`.
    A,
    /// `kvm_userspace_exit` and `kvm_fpu`.
    B,
    /// QMP `query-stats`.
    C,
}

impl Level {
    /// Letter of the level.
    #[must_use]
    pub fn letter(self) -> &'static str {
        match self {
            Level::A => "A",
            Level::B => "B",
            Level::C => "C",
        }
    }

    /// What the level includes and lacks, as a sentence.
    #[must_use]
    pub fn meaning(self) -> &'static str {
        match self {
            Level::A => {
                "each exit of the processor, from kvm_exit to kvm_entry; what the processor itself \
                 takes to leave and enter the guest is not seen"
            }
            Level::B => {
                "exits that reach the emulator, from kvm_userspace_exit to the next kvm_fpu; exits \
                 that KVM answers itself are within GUEST_AND_KVM, because kvm_exit does not fire here"
            }
            Level::C => {
                "counts of KVM's own statistics (QMP query-stats), without any times, because no \
                 tracepoint fires here or may be used"
            }
        }
    }
}

impl From<ExitSource> for Level {
    fn from(source: ExitSource) -> Self {
        match source {
            ExitSource::Hardware => Level::A,
            ExitSource::Userspace => Level::B,
        }
    }
}

/// A vCPU that is observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VcpuThread {
    /// Index of the vCPU.
    pub vcpu: u32,
    /// Thread of the vCPU.
    pub task: TaskId,
}

/// Only exits and their times, which has the lowest overhead.
pub fn from_source(source: ExitSource) -> ExitScope {
    ExitScope { source, addresses: false, distributor: VIRT_DISTRIBUTOR }
}
