//! The tunables that a plan sets, in addition to the placement of tasks: values by key.
//!
//! What a key means is in the table of [`crate::tunables`].

mod policy;
pub(crate) mod types;
pub(crate) mod value;

use std::collections::BTreeMap;

use value::Value;

/// The tunables that a plan sets; those without a value stay unchanged. Policies, interrupts of
/// single devices and memory nodes have their own parts of the plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    /// The values by key.
    pub(crate) values: BTreeMap<&'static str, Vec<Value>>,
    /// Whether the plan is not applied if the host lacks or refuses a tunable.
    pub required: bool,
}
