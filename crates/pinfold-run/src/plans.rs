//! What every use of a plan checks: that it is for one machine, and for this host.

use pinfold_model::{Plan, VnodePlan};

use crate::{Exit, Failure};

/// The only vnode of a plan.
pub fn single(plan: &Plan) -> Result<&VnodePlan, Failure> {
    plan.single_vnode().map_err(|error| {
        let failure = Failure::from_error(Exit::Input, &error, None);
        let names: Vec<&str> = plan.vnodes.iter().map(|vnode| vnode.name.as_str()).collect();
        match names.as_slice() {
            [] => failure,
            [first, ..] => failure
                .with_hint(format!("choose one of {}, as in `--vnode {first}`", names.join(", "))),
        }
    })
}

/// The vnode of a plan with this name.
pub fn find_vnode<'p>(plan: &'p Plan, name: &str) -> Result<&'p VnodePlan, Failure> {
    plan.vnodes.iter().find(|vnode| vnode.name == name).ok_or_else(|| {
        let names: Vec<&str> = plan.vnodes.iter().map(|vnode| vnode.name.as_str()).collect();
        Failure::new(Exit::Input, format!("--vnode: the plan does not contain {name:?}"))
            .with_hint(format!("it places {}", names.join(", ")))
    })
}

/// The refusal of a plan that was made for another host; `name` is the name of the plan.
pub fn another_host(name: &str, differences: &[String]) -> Failure {
    let why = match differences {
        [] => String::new(),
        _ => format!(": {}", differences.join("; ")),
    };
    Failure::new(Exit::Input, format!("{name} was created for another machine{why}"))
}
