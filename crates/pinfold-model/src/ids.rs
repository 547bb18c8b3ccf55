//! Identifiers, one type each, so that an OS index cannot be used in place of a logical index.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        pub struct $name(pub u32);

        impl $name {
            /// The number as an index into a slice.
            #[must_use]
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// A CPU by its *OS index*: the number that Linux writes (`cpuN`, masks, `taskset`).
    PuId
}
id! {
    /// A CPU by hwloc's *logical index*: its position in the topology (`L#`).
    LogicalPu
}
id! {
    /// A core by hwloc's logical index.
    CoreId
}
id! {
    /// An L3 domain (the CPUs that share one level-3 cache) by hwloc's logical index.
    L3Id
}
id! {
    /// A NUMA node by its OS index (`nodeN`).
    NodeId
}
id! {
    /// A package (socket) by hwloc's logical index.
    PackageId
}
id! {
    /// A host thread, by its Linux thread ID.
    Tid
}
