//! What a strategy gives to the threads of a machine, as far as it is the same for each plan.

/// A row of each strategy has all of them.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// True if each vCPU has a core without another vCPU: new plans after changes keep that.
    pub(crate) has_own_cores: bool,
    /// True if a request may choose the emulator's CPUs.
    pub(crate) takes_emulator_request: bool,
    /// Why a vCPU is on an isolated CPU.
    pub(crate) isolated: Isolated,
}

/// Why a vCPU is on an isolated CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Isolated {
    /// The order of the CPUs contains it.
    ImpliedByOrder,
    /// The strategy prefers such CPUs.
    Preferred,
    /// The strategy needs such CPUs, which its other reasons describe.
    Required,
}

impl Isolated {
    /// The end of the reason of such a vCPU.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Isolated::ImpliedByOrder => "; it is isolated",
            Isolated::Preferred => {
                "; chosen because it is isolated: the kernel moves no other task there"
            }
            Isolated::Required => "",
        }
    }
}
