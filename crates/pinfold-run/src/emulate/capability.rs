//! The capability of a host to make CPUs appear slower.

use pinfold_emulate::{Facts, METHODS};
use pinfold_host::LiveHost;
use pinfold_model::Method;
use pinfold_topology::{Capability, Verdict};

/// Whether CPUs can be made to appear slower, and how.
pub fn slower_cpus(host: &LiveHost) -> Capability {
    let facts = match Facts::find(host) {
        Ok(facts) => facts,
        Err(error) => return capability(Verdict::No, error.to_string(), error.hint()),
    };
    let works: Vec<&str> = METHODS
        .iter()
        .filter(|info| pinfold_emulate::refusal(info.method, &facts).is_none())
        .map(|info| info.method.name())
        .collect();
    let hint = "`pinfold emulate methods` shows what each needs".to_owned();
    match (works.as_slice(), pinfold_emulate::refusal(Method::Stall, &facts)) {
        ([], why) => capability(Verdict::No, why.unwrap_or_default(), Some(hint)),
        (works, None) => capability(Verdict::Yes, format!("by {}", works.join(", ")), None),
        (works, Some(why)) => {
            let text = format!("by {}, but not by stall: {why}", works.join(", "));
            capability(Verdict::Partly, text, Some(hint))
        }
    }
}

fn capability(verdict: Verdict, why: String, hint: Option<String>) -> Capability {
    Capability { name: "slower CPUs (pinfold emulate)", verdict, why, hint, required: false }
}
