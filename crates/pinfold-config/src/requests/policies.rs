//! Scheduling policies of requests: `vcpu=fifo:1`.

use pinfold_model::{Policy, PolicyRequest};

use super::knobs;
use crate::fault::Fault;

/// The roles that can have a policy.
pub(super) const ROLES: &str =
    "roles are vcpu, vcpu(N), emulator, iothread, iothread(ID), vhost, vhost(N), worker and task";

/// Parses `ROLE=POLICY`.
pub(super) fn wish(text: &str, at: usize) -> Result<PolicyRequest, Fault> {
    let Some((role, words)) = text.split_once('=') else {
        return Err(Fault::new(at, format!("policies: {text:?} is not written ROLE=POLICY"))
            .with_hint("such as vcpu=fifo:1 or emulator=other:-5"));
    };
    let policy =
        Policy::parse(words.trim()).map_err(|invalid| Fault { at, ..knobs::fault(invalid) })?;
    Ok(PolicyRequest { role: role.trim().to_owned(), policy })
}
