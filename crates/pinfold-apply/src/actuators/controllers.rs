//! Values of `cgroup.subtree_control`, which takes `+name` or `-name` and shows names.

use crate::cpusets::CPUSET;

/// Value that [`pinfold_model::Change::WriteFile`] writes to enable the controller for the
/// children.
pub(crate) const ENABLE: &[u8] = b"+cpuset";
pub(super) const DISABLE: &[u8] = b"-cpuset";
pub(super) const CPU: &[u8] = b"cpu";
pub(super) const IO: &[u8] = b"io";
pub(super) const MEMORY: &[u8] = b"memory";

/// True if a list of controllers contains cpuset.
pub(crate) fn has_cpuset(bytes: &[u8]) -> bool {
    has_controller(bytes, CPUSET.as_bytes())
}

pub(super) fn has_controller(bytes: &[u8], name: &[u8]) -> bool {
    bytes.split(u8::is_ascii_whitespace).any(|at| at == name)
}

/// The controller that `+NAME` enables.
pub(super) fn controller(value: &[u8]) -> &[u8] {
    value.strip_prefix(b"+").unwrap_or(value).trim_ascii()
}
