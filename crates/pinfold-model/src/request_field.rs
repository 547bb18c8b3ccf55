//! The part of a request or platform that an error is about.
//!
//! Requests do not store positions: the reader of the file finds line and column of such a part.

/// A part of a request or platform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestField {
    /// A device near which something is placed, in its text form.
    Device(String),
    /// The iothread with this ID.
    Iothread(String),
    /// What stays free for the host.
    Free,
    /// The placement of the emulator.
    Emulator,
    /// The CPUs to avoid.
    Avoid,
    /// The size of the vnode with the most CPUs.
    LargestVnode,
    /// A property of the vnode with this name.
    Vnode(String, VnodeField),
}

/// A property of a vnode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VnodeField {
    /// The vnode as a whole.
    Whole,
    /// Its name.
    Name,
    /// Its number of vCPUs or cores.
    Count,
    /// Its number of vhost threads.
    Vhosts,
    /// Its memory size.
    Memory,
    /// The size of its huge pages.
    HugePages,
    /// Whether the guest has SMT.
    GuestSmt,
    /// Its scheduling policies.
    Policies,
    /// Its pins by hand.
    Pins,
    /// Its speed.
    Speed,
    /// The node of its memory.
    MemoryNode,
    /// Its method of slowing.
    Method,
}
