//! Scheduling policies of requests: `vcpu=fifo:1`.

use pinfold_model::{Policy, PolicyRequest, ROLES};

use crate::fault::Fault;

/// The roles that can have a policy: `roles are vcpu, vcpu(N), emulator, …`.
pub(super) fn roles() -> String {
    let mut forms: Vec<String> =
        ROLES.into_iter().flat_map(|kind| [kind.name.to_owned(), kind.syntax()]).collect();
    forms.dedup();
    format!("roles are {}", list(&forms))
}

/// `a, b and c`.
pub(super) fn list(words: &[String]) -> String {
    match words.split_last() {
        Some((last, before)) if !before.is_empty() => format!("{} and {last}", before.join(", ")),
        Some((last, _)) => last.clone(),
        None => String::new(),
    }
}

/// Parses `ROLE=POLICY`.
pub(super) fn policy_request(text: &str, at: usize) -> Result<PolicyRequest, Fault> {
    let Some((role, words)) = text.split_once('=') else {
        return Err(Fault::new(at, format!("policies: expected ROLE=POLICY, got {text:?}"))
            .with_hint("for example: vcpu=fifo:1 or emulator=other:-5"));
    };
    let policy =
        Policy::parse(words.trim()).map_err(|invalid| Fault { at, ..Fault::from(invalid) })?;
    Ok(PolicyRequest { role: role.trim().to_owned(), policy })
}
