//! The tunables of a profile that a host has, as `--tunable` takes them.

use pinfold_host::{Host, osrelease, paths};
use pinfold_model::profile::{self, PROFILES, Profile, ProfileRow};
use pinfold_model::tunables::Tunable;
use pinfold_model::{CpuSet, Finding, PuId, closest};

use crate::{Exit, Failure};

/// What decides which tunables of a profile are set.
#[derive(Clone, Copy)]
pub struct Scope<'a> {
    /// The host; `None` for a plan for another machine, which may have all.
    pub host: Option<&'a dyn Host>,
    /// The online CPUs.
    pub online: &'a CpuSet,
    /// Whether the plan leaves only some CPUs to the host's tasks.
    pub isolates: bool,
    /// Whether it may place vCPUs.
    pub has_vcpus: bool,
}

/// The profile with this name.
///
/// # Errors
/// [`Failure`] lists the names.
pub fn find_profile(name: &str) -> Result<&'static Profile, Failure> {
    profile::by_name(name).ok_or_else(|| {
        let names: Vec<&str> = PROFILES.iter().map(|one| one.name).collect();
        let meant = closest(name, names.iter().copied());
        let meant = meant.map_or_else(String::new, |one| format!("did you mean {one}? "));
        Failure::new(Exit::Input, format!("--profile: there is no profile {name:?}"))
            .with_hint(format!("{meant}profiles are {}", names.join(", ")))
    })
}

/// The tunables of a profile and those of the user, which have priority, with one note about what
/// the profile sets, why, and what is left out.
#[must_use]
pub fn merge_tunables(
    profile: &Profile,
    given: &[String],
    scope: Scope<'_>,
) -> (Vec<String>, Option<Finding>) {
    if profile.rows.is_empty() {
        return (given.to_vec(), None);
    }
    let mut all: Vec<String> = Vec::new();
    let (mut reasons, mut lacking) = (Vec::new(), Vec::new());
    for row in profile.rows.iter().filter(|row| !is_given(row.key(), given)) {
        let name = row.key().split(':').next().unwrap_or_default();
        let Some(tunable) = Tunable::by_key(name) else { continue };
        if !scope.has_vcpus && !tunable.of.is_empty() {
            continue;
        }
        if has(tunable, scope) && is_new_enough(row, scope.host) {
            all.push(row.words.to_owned());
            reasons.push(format!("{} ({})", row.words, row.reason));
        } else if scope.isolates || !tunable.values.is_of_host() {
            lacking.push(row.key());
        }
    }
    all.extend(given.iter().cloned());
    let mut text = format!("sets {}", reasons.join(", "));
    if !lacking.is_empty() {
        text.push_str(&format!("; this host lacks {}", lacking.join(", ")));
    }
    let mut finding = Finding::note(format!("profile {}", profile.name), text);
    if !scope.isolates {
        finding = finding.with_hint("with --isolate host it also moves kernel work off these CPUs");
    }
    (all, Some(finding))
}

/// True if the user sets this tunable.
fn is_given(key: &str, given: &[String]) -> bool {
    given.iter().any(|words| words.split('=').next().is_some_and(|own| own.trim() == key))
}

/// True if the tunable has its file on the host, and CPUs of the host to name.
fn has(tunable: &Tunable, scope: Scope<'_>) -> bool {
    if tunable.values.is_of_host() && !scope.isolates {
        return false;
    }
    let (Some(host), Some(kernel)) = (scope.host, tunable.kernel) else { return true };
    // The first CPU lacks some files on most machines.
    let last = scope.online.iter().last().unwrap_or(PuId(0));
    host.exists(&kernel.path(last))
}

/// False if the kernel is known to be too old for a tunable.
pub(crate) fn is_new_enough(row: &ProfileRow, host: Option<&dyn Host>) -> bool {
    let (Some(since), Some(host)) = (row.since, host) else { return true };
    let release = host.read_text(&paths::kernel_release()).unwrap_or_default();
    osrelease::version(&release) >= Some(since)
}

#[cfg(test)]
mod tests {
    use pinfold_host::SnapshotHost;
    use pinfold_model::profile::PROFILES;

    use super::*;

    #[test]
    fn a_profile_has_known_tunables_and_gives_way_to_the_user() {
        let online = CpuSet::first_n(4);
        for profile in PROFILES.iter().filter(|profile| !profile.rows.is_empty()) {
            for row in profile.rows {
                let name = row.key().split(':').next().expect(row.words);
                let tunable = Tunable::by_key(name).expect(row.words);
                let (_, value) = row.words.split_once('=').expect(row.words);
                assert!(tunable.values.parse(tunable.key, value, &online).is_ok(), "{}", row.words);
            }
            let given = ["timer-migration=on".to_owned()];
            let scope = Scope { host: None, online: &online, isolates: true, has_vcpus: true };
            let (all, _) = merge_tunables(profile, &given, scope);
            assert!(!all.contains(&"timer-migration=off".to_owned()), "{all:?}");
            assert_eq!(all.len(), profile.rows.len());
            let nothing = SnapshotHost::new();
            let (all, note) = merge_tunables(profile, &[], Scope { host: Some(&nothing), ..scope });
            let note = note.expect("a note").text;
            assert!(all.is_empty() && note.contains("this host lacks new-irqs"), "{note}");
            assert!(note.ends_with("governor, policy:vcpu"), "{note}");
            let scope = Scope { has_vcpus: false, ..scope };
            let (all, _) = merge_tunables(profile, &[], scope);
            assert_eq!(all.len(), profile.rows.len() - 1);
        }
        let failure = find_profile("latensy").expect_err("there is none");
        assert!(failure.hint.is_some_and(|hint| hint.contains("did you mean latency?")));
    }
}
