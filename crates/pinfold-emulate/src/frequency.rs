//! Hardware frequencies: frequency domains, their levels, and conflicts between vnodes.

use std::collections::BTreeMap;

use pinfold_host::{Host, HostError, HostMut, paths};
use pinfold_model::text::cpus_text;
use pinfold_model::{Change, CpuSet, PuId, Speed, Step, Undo};

use crate::SpeedError;
use crate::node::Node;

/// The governor that accepts a frequency from user space.
const USERSPACE: &str = "userspace";
/// Unit of shares: billionths.
pub(crate) const WHOLE: u64 = 1_000_000_000;

/// CPUs whose frequency changes together: a cpufreq policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Domain {
    policy: String,
    /// All its CPUs, including those of other vnodes.
    pub(crate) pus: CpuSet,
    /// Supported frequencies, ascending.
    pub(crate) khz: Vec<u64>,
    /// True if the driver accepts any frequency between the first and the last.
    is_continuous: bool,
    /// Measured speed by frequency, in millionths of full speed; empty if not measured.
    pub(crate) measured: BTreeMap<u64, u32>,
}

/// A frequency and its speed in billionths of full speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Level {
    pub(crate) khz: u64,
    pub(crate) share: u64,
}

impl Domain {
    /// Its levels in ascending order of speed; with a driver that accepts any frequency, also that
    /// of the wanted speed.
    pub(crate) fn levels(&self, wanted: Speed) -> Vec<Level> {
        let most = self.khz.last().copied().unwrap_or(1).max(1);
        let mut khz = self.khz.clone();
        if self.is_continuous {
            let between = most * u64::from(wanted.millionths()) / 1_000_000;
            khz.push(between.clamp(self.khz.first().copied().unwrap_or(0), most));
        }
        let level = |khz: u64| {
            let by_ratio = khz * WHOLE / most;
            let measured =
                self.measured.get(&khz).map(|share| u64::from(*share) * (WHOLE / 1_000_000));
            Level { khz, share: measured.unwrap_or(by_ratio) }
        };
        let mut levels: Vec<Level> = khz.into_iter().map(level).collect();
        levels.sort_by_key(|level| level.share);
        levels.dedup();
        levels
    }

    /// Why its frequency cannot be set; `None` if it can.
    pub(crate) fn refusal(&self, host: &dyn Host) -> Result<Option<String>, HostError> {
        let path = paths::cpufreq_policy_file(&self.policy, "scaling_governor");
        let governor = host.read_text(&path)?;
        let governor = governor.trim();
        Ok((governor != USERSPACE).then(|| {
            format!("{path} is {governor} and cannot be set to {USERSPACE}: is it read-only?")
        }))
    }

    /// Sets the frequency.
    pub(crate) fn set(&self, host: &dyn HostMut, khz: u64) -> Result<(), HostError> {
        let path = paths::cpufreq_policy_file(&self.policy, "scaling_setspeed");
        host.write(&path, khz.to_string().as_bytes())
    }

    /// A description of the measured speeds; `None` if they were not measured.
    pub(crate) fn note(&self) -> Option<String> {
        let all: Vec<String> = self
            .measured
            .iter()
            .map(|(khz, millionths)| {
                format!("{} MHz {:.1}%", khz / 1000, f64::from(*millionths) / 10_000.0)
            })
            .collect();
        (!all.is_empty()).then(|| format!("{} measured: {}", cpus_text(&self.pus), all.join(", ")))
    }

    /// Sets the highest frequency.
    pub(crate) fn set_full(&self, host: &dyn HostMut) -> Result<(), HostError> {
        self.khz.last().map_or(Ok(()), |khz| self.set(host, *khz))
    }
}

/// The frequency domains of these CPUs; empty on a host without cpufreq.
pub(crate) fn domains(host: &dyn Host, pus: &CpuSet) -> Result<Vec<Domain>, HostError> {
    let Ok(mut policies) = host.list(&paths::cpufreq_dir()) else { return Ok(Vec::new()) };
    policies.retain(|name| name.starts_with("policy"));
    let mut domains = Vec::new();
    for policy in policies {
        let related = numbers(&read(host, &policy, "related_cpus")?);
        let related: CpuSet =
            related.into_iter().filter_map(|pu| u32::try_from(pu).ok().map(PuId)).collect();
        if related.is_disjoint(pus) {
            continue;
        }
        let listed = paths::cpufreq_policy_file(&policy, "scaling_available_frequencies");
        let is_continuous = !host.exists(&listed);
        let text = if is_continuous {
            format!(
                "{} {}",
                read(host, &policy, "cpuinfo_min_freq")?,
                read(host, &policy, "cpuinfo_max_freq")?
            )
        } else {
            read(host, &policy, "scaling_available_frequencies")?
        };
        let mut khz = numbers(&text);
        khz.sort_unstable();
        domains.push(Domain {
            policy,
            pus: related,
            khz,
            is_continuous,
            measured: BTreeMap::new(),
        });
    }
    domains.sort_by_key(|domain| domain.pus.iter().next());
    Ok(domains)
}

fn read(host: &dyn Host, policy: &str, name: &str) -> Result<String, HostError> {
    host.read_text(&paths::cpufreq_policy_file(policy, name))
}

fn numbers(text: &str) -> Vec<u64> {
    text.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// The steps that set the governor of a vnode's domains to `userspace`.
pub(crate) fn steps(host: &dyn Host, node: &Node) -> Result<Vec<Step>, SpeedError> {
    if !node.method.sets_frequency() {
        return Ok(Vec::new());
    }
    let domains = domains(host, &node.pus())?;
    if domains.is_empty() && node.method.works_without_frequencies() == Some(false) {
        let why = "the kernel has no cpufreq driver for these CPUs".to_owned();
        return Err(fail_unavailable(node, why, "use another method: `pinfold emulate methods`"));
    }
    let mut steps = Vec::new();
    for domain in domains {
        let path = |name: &str| paths::cpufreq_policy_file(&domain.policy, name);
        let known = host.read_text(&path("scaling_available_governors"))?;
        if !known.split_ascii_whitespace().any(|word| word == USERSPACE) {
            let why = format!(
                "{} has no governor {USERSPACE}, only {}",
                domain.policy,
                known.split_ascii_whitespace().collect::<Vec<_>>().join(", ")
            );
            let hint = "load cpufreq_userspace; on Intel boot with intel_pstate=passive";
            return Err(fail_unavailable(node, why, hint));
        }
        let path = path("scaling_governor");
        let original = host.read(&path)?;
        if original.trim_ascii() == USERSPACE.as_bytes() {
            steps.extend(step_from_report(host, node, &domain)?);
            continue;
        }
        steps.push(Step {
            change: Change::WriteFile { path: path.clone(), value: USERSPACE.as_bytes().to_vec() },
            undo: Undo::WriteFile { path, original },
            reason: format!("{} sets the frequency of vnode {}", node.method, node.name),
        });
    }
    Ok(steps)
}

fn fail_unavailable(node: &Node, why: String, hint: &str) -> SpeedError {
    SpeedError::Unavailable {
        vnode: node.name.clone(),
        method: node.method,
        why,
        hint: hint.to_owned(),
    }
}

/// A step for a domain whose frequency another program has set: undo restores that frequency.
/// Otherwise restoring the governor is enough, because it sets the frequency.
fn step_from_report(
    host: &dyn Host,
    node: &Node,
    domain: &Domain,
) -> Result<Option<Step>, HostError> {
    let path = paths::cpufreq_policy_file(&domain.policy, "scaling_setspeed");
    let original = host.read(&path)?;
    let Some(most) = domain.khz.last() else { return Ok(None) };
    // No frequency was set yet, for example directly after a step for another vnode of the domain.
    if numbers(&String::from_utf8_lossy(&original)).is_empty() {
        return Ok(None);
    }
    Ok(Some(Step {
        change: Change::WriteFile { path: path.clone(), value: most.to_string().into_bytes() },
        undo: Undo::WriteFile { path, original },
        reason: format!("{} sets the frequency of vnode {} from here on", node.method, node.name),
    }))
}

/// Checks that all CPUs of a domain have the same frequency, whichever vnodes they belong to.
///
/// # Errors
/// [`SpeedError::OutOfReach`] with the first two that differ.
pub(crate) fn agree(host: &dyn Host, nodes: &[&Node]) -> Result<(), SpeedError> {
    let setting = || nodes.iter().filter(|node| node.method.sets_frequency());
    let pus = setting().fold(CpuSet::new(), |all, node| all.union(&node.pus()));
    if pus.is_empty() {
        return Ok(());
    }
    for domain in domains(host, &pus)? {
        let mut first: Option<(&Node, PuId, Speed)> = None;
        for node in setting() {
            for (pu, speed) in node.cores.iter().filter(|(pu, _)| domain.pus.contains(*pu)) {
                let (other, other_pu, asked) = *first.get_or_insert((node, *pu, *speed));
                if asked == *speed {
                    continue;
                }
                return Err(SpeedError::OutOfReach {
                    vnode: node.name.clone(),
                    method: node.method,
                    speed: *speed,
                    why: format!(
                        "CPU {pu} shares its frequency with CPU {other_pu} of vnode {}, which has \
                         the speed {asked}",
                        other.name
                    ),
                    hint: format!(
                        "give both the same speed, place them in different domains (CPUs {} are \
                         one domain), or use another method",
                        domain.pus
                    ),
                });
            }
        }
    }
    Ok(())
}
