//! The shared types of Pinfold.
//!
//! Stability: for other programs; semantic versioning, checked by `cargo semver-checks`.
//!
//! The stages (topology → plan → apply → probe → study → report) exchange only values of this
//! crate. It does no I/O, reads no clock and uses no randomness. With the feature `serde` its leaf
//! types are serialised as in the formats of Pinfold (journal, store, `--json`); the documents and
//! their versions are in the crates that read and write them.

pub mod command;
mod cpuset;
mod emulation;
pub mod escape;
mod figure;
mod finding;
pub mod fold;
mod ids;
mod isa;
mod machine;
mod measure;
mod natural;
mod parameters;
mod plan;
pub mod policy;
pub mod profile;
mod request;
mod request_field;
mod role;
#[cfg(feature = "serde")]
pub mod serde_formats;
mod setting;
mod speed;
mod step;
mod suggest;
mod table;
pub mod text;
mod topology;
pub mod tunables;
mod tuning;
mod vendor;

pub use command::Command;
pub use cpuset::{CpuSet, CpuSetError, MAX_PUS, MAX_WORDS, set_operations};
pub use emulation::{
    Attach, AttachKind, DiskLimit, EmulatedVnode, EmulationPlan, LoadRow, Method, Platform,
    PlatformVnode, ProfileReference, RecordedLoad, SpeedChange, SpeedProfile, SpeedRequest,
    Variant,
};
pub use figure::{Family, Figure, GAP_FLOOR_NS, Statistic, SystemNoise};
pub use finding::{Finding, Severity};
pub use ids::{CoreId, L3Id, LogicalPu, NodeId, PackageId, PuId, Tid};
pub use isa::Isa;
pub use machine::{CellSpec, MachineSpec};
pub use measure::{Accelerator, LoadState, Metric, Origin, RoleStats, Series, Unit};
pub use natural::{natural_labels, natural_order};
pub use parameters::{filter_boot_parameters, shown_parameters};
pub use plan::{
    GuestTopology, IrqPlan, MemoryPlan, NotSingleVnode, Plan, PlannedCache, PlannedCpus,
    PlannedNode, STRATEGY_NAMES, ThreadPlan, VnodeKind, VnodePlan, describe_pins,
};
pub use policy::{IsolationScope, Policy};
pub use request::{
    CellRequest, Device, EmulatorRequest, FreeCpus, Load, MAX_VCPUS, MemoryRequest, PinRequest,
    PolicyRequest, Preference, Request, SmtRequest, VcpuCount, VmRequest, VnodeRequest, Work,
};
pub use request_field::{RequestField, VnodeField};
pub use role::{ROLES, Role, RoleArgument, RoleClass, RoleKind};
pub use setting::{Lifetime, Setting, SettingManager};
pub use speed::Speed;
pub use step::{Change, SettingsFile, Step, TaskId, TaskState, Undo};
pub use suggest::closest;
pub use table::{ColumnKind, DataTable, Datum, PlotKind};
pub use topology::{
    Core, CoreKind, HugePages, L3Domain, NumaNode, Package, PciDevice, Pu, Smt, Source, Topology,
};
pub use tuning::Tuning;
pub use vendor::Vendor;
