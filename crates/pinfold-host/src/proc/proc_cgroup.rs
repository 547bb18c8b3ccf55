//! `/proc/PID/cgroup`: one line per hierarchy.
//!
//! ```text
//! 3:cpuset:/machine/vm1
//! 1:name=systemd:/user.slice
//! 0::/user.slice/session-1.scope
//! ```
//!
//! Hierarchy 0 without controllers is cgroup v2. A path may contain colons: only the first two
//! separate fields. A removed group has the suffix ` (deleted)`.
//! <https://docs.kernel.org/admin-guide/cgroup-v2.html#processes>

use super::ProcError;

/// Membership of a task in one hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// Hierarchy number; 0 is v2.
    pub hierarchy: u32,
    /// Controllers of a v1 hierarchy (`cpuset`; `name=systemd` for a named one); empty for v2.
    pub controllers: Vec<String>,
    /// Path of the group below the hierarchy's root.
    pub path: String,
}

/// Parses the file.
///
/// # Errors
/// [`ProcError`] if a line does not have three fields.
pub fn parse(text: &str) -> Result<Vec<Membership>, ProcError> {
    text.lines()
        .map(|line| {
            let (hierarchy, rest) = line.split_once(':').ok_or_else(|| fail(line))?;
            let (controllers, path) = rest.split_once(':').ok_or_else(|| fail(line))?;
            if !path.starts_with('/') {
                return Err(fail(line));
            }
            Ok(Membership {
                hierarchy: hierarchy.parse().map_err(|_| fail(line))?,
                controllers: controllers
                    .split(',')
                    .filter(|name| !name.is_empty())
                    .map(str::to_owned)
                    .collect(),
                path: path.to_owned(),
            })
        })
        .collect()
}

fn fail(line: &str) -> ProcError {
    ProcError::new("a line of a task's cgroup file", line)
}

/// Path of a task's group in the hierarchy with a v1 controller.
pub fn v1_path<'m>(memberships: &'m [Membership], controller: &str) -> Option<&'m str> {
    memberships
        .iter()
        .find(|membership| membership.controllers.iter().any(|name| name == controller))
        .map(|membership| membership.path.as_str())
}

/// Path of a task's group in cgroup v2.
#[must_use]
pub fn v2_path(memberships: &[Membership]) -> Option<&str> {
    memberships
        .iter()
        .find(|membership| membership.hierarchy == 0 && membership.controllers.is_empty())
        .map(|membership| membership.path.as_str())
}
