//! The code of each method: what the host lacks for it, its start, its text.
//!
//! What a method needs of a vnode before it starts is in the table of methods, which vnodes use.

use pinfold_model::Method;

use super::{Facts, MethodContext, burner, fracas, freq, gov, hogs, inject, lim, quota, stall};
use crate::SpeedError;
use crate::emulation::Emulation;
use crate::node::Node;
use crate::vnode_cgroup::VnodeCgroup;

/// The functions of a method.
pub(super) struct MethodCode {
    method: Method,
    /// Why a host does not support it, even for root; `None` if it does.
    pub(super) refuse: fn(&Facts) -> Option<String>,
    /// Starts it at full speed.
    pub(super) start: StartMethod,
    /// What it starts and writes while its vnode is active, one line each.
    pub(super) describe: fn(&Node, &VnodeCgroup) -> Vec<String>,
}

type StartMethod =
    for<'h> fn(&MethodContext<'h, '_>) -> Result<Box<dyn Emulation + 'h>, SpeedError>;

/// A row for each method, in the order of [`super::METHODS`].
pub(super) static CODES: [MethodCode; Method::ALL.len()] = [
    MethodCode {
        method: Method::Stall,
        refuse: stall::refuse,
        start: |context| Ok(Box::new(stall::start(context)?)),
        describe: stall::describe,
    },
    MethodCode {
        method: Method::Hogs,
        refuse: burner::refuse,
        start: |context| Ok(Box::new(hogs::start(context)?)),
        describe: burner::describe,
    },
    MethodCode {
        method: Method::Fracas,
        refuse: super::refuse_cpu_groups,
        start: |context| Ok(Box::new(fracas::start(context)?)),
        describe: fracas::describe,
    },
    MethodCode {
        method: Method::Quota,
        refuse: super::refuse_cpu_groups,
        start: |context| Ok(Box::new(quota::start(context)?)),
        describe: quota::describe,
    },
    MethodCode {
        method: Method::Gov,
        refuse: gov::refuse,
        start: |context| Ok(Box::new(gov::start(context)?)),
        describe: gov::describe,
    },
    MethodCode {
        method: Method::Freq,
        refuse: freq::refuse,
        start: |context| Ok(Box::new(freq::start(context)?)),
        describe: freq::describe,
    },
    MethodCode {
        method: Method::Lim,
        refuse: super::refuse_freezer,
        start: |context| Ok(Box::new(lim::start(context)?)),
        describe: lim::describe,
    },
    MethodCode {
        method: Method::Inject,
        refuse: burner::refuse,
        start: |context| Ok(Box::new(inject::start(context)?)),
        describe: burner::describe,
    },
];

/// The code of a method.
pub(super) fn code(method: Method) -> &'static MethodCode {
    CODES.iter().find(|code| code.method == method).unwrap_or(&CODES[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_has_its_code_in_the_order_of_the_table() {
        assert_eq!(CODES.each_ref().map(|code| code.method), Method::ALL);
    }
}
