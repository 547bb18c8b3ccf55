//! The subjects: the methods that work here with their variants, other tools, and none.

use pinfold_host::process::Spawn;
use pinfold_model::CpuSet;
use serde_json::Value;

use super::load::{Load, Reading};
use super::platform::{Platform, Tools};
use super::rival::{self, Quota};
use crate::arguments::Failure;

/// A subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// None: two runs at full speed, treated as if one were slowed.
    Nobody,
    /// A method of `pinfold emulate`.
    Method {
        /// Name of the method.
        name: String,
        /// As published by its authors.
        as_published: bool,
        /// The length of its period, if not the default.
        period: Option<&'static str>,
    },
    /// `cpulimit -l` on the running process; its path.
    Cpulimit(String),
    /// One quota of 100 ms for the group.
    PlainQuota,
}

/// Methods that are also compared in their published form: the paper reports that the first fails
/// with several tasks.
const PUBLISHED: [&str; 2] = ["fracas", "hogs"];
/// Methods, and lengths of their period.
const TURNS: [(&str, &str); 6] = [
    ("stall", "200us"),
    ("stall", "1ms"),
    ("hogs", "500us"),
    ("hogs", "2ms"),
    ("hogs", "10ms"),
    ("hogs", "100ms"),
];
/// The first replays a load and has no speed; the second needs frequencies at the requested speeds.
const WITHOUT_SPEED: [(&str, &str); 2] = [
    ("inject", "it replays a recorded load and has no speed of its own"),
    ("freq", "it has only the levels of the hardware, none of which is a speed asked here"),
];

impl Subject {
    /// Name in tables.
    pub fn label(&self) -> String {
        match self {
            Subject::Nobody => "none (A/A)".to_owned(),
            Subject::Method { name, as_published: true, .. } => format!("{name} as published"),
            Subject::Method { name, period: Some(period), .. } => format!("{name}, {period}"),
            Subject::Method { name, .. } => name.clone(),
            Subject::Cpulimit(_) => "cpulimit -l".to_owned(),
            Subject::PlainQuota => "cgroup quota 100 ms".to_owned(),
        }
    }

    /// True for a method of `pinfold emulate`.
    pub fn is_ours(&self) -> bool {
        matches!(self, Subject::Method { .. })
    }

    /// True for a published variant, which is measured only where it matters.
    pub fn is_published(&self) -> bool {
        matches!(self, Subject::Method { as_published: true, .. })
    }

    /// Lines of a `[[vnode]]` with this method.
    pub fn vnode(&self, name: &str, cores: u32, speed: f64) -> String {
        let Subject::Method { name: method, as_published, period } = self else {
            return String::new();
        };
        let variant = if *as_published { "variant = \"as-published\"\n" } else { "" };
        let period = period.map(|period| format!("period = \"{period}\"\n")).unwrap_or_default();
        format!(
            "[[vnode]]\nname = \"{name}\"\ncores = {cores}\nspeed = {speed:?}\nmethod = \"{method}\"\n{variant}{period}"
        )
    }

    /// The same method with periods of other lengths; empty for a method whose periods are not
    /// compared.
    pub fn in_turns(&self) -> Vec<Subject> {
        let Subject::Method { name, as_published: false, .. } = self else { return Vec::new() };
        let turns = TURNS.iter().filter(|(method, _)| method == name);
        turns
            .map(|(_, period)| Subject::Method {
                name: name.clone(),
                as_published: false,
                period: Some(period),
            })
            .collect()
    }
}

/// A method that is not measured, and why.
pub type Refused = (String, String);

/// The subjects that can be measured here, and why the others cannot.
pub fn find(methods: &Value) -> Result<(Vec<Subject>, Vec<Refused>), Failure> {
    let (mut here, mut refused) = (Vec::new(), Vec::new());
    for one in methods["methods"].as_array().ok_or("no list of methods")? {
        let name = one["method"].as_str().ok_or("a method without a name")?.to_owned();
        if let Some(why) = one["refused_here"].as_str() {
            refused.push((name, why.to_owned()));
            continue;
        }
        if let Some((_, why)) = WITHOUT_SPEED.iter().find(|(at, _)| *at == name) {
            refused.push((name, (*why).to_owned()));
            continue;
        }
        if PUBLISHED.contains(&name.as_str()) {
            here.push(Subject::Method { name: name.clone(), as_published: true, period: None });
        }
        here.push(Subject::Method { name, as_published: false, period: None });
    }
    Ok((here, refused))
}

/// A subject's turn.
pub struct CoreShare<'t> {
    tools: Tools<'t>,
    /// The CPUs that it slows.
    pub pus: CpuSet,
    how: How<'t>,
}

enum How<'t> {
    Nobody,
    Platform(Platform<'t>),
    Cpulimit { program: String, speed: Option<f64> },
    Quota(Quota),
}

const VNODE: &str = "bench";

impl<'t> CoreShare<'t> {
    /// Starts it, at full speed.
    pub fn begin(subject: &Subject, tools: Tools<'t>, pus: &CpuSet) -> Result<Self, Failure> {
        let how = match subject {
            Subject::Nobody => How::Nobody,
            Subject::Method { .. } => {
                let cores = u32::try_from(pus.len())?;
                let vnode = subject.vnode(VNODE, cores, 1.0);
                let platform = Platform::up(tools, VNODE, &shared_platform(&vnode))?;
                let got = platform.pus(VNODE)?;
                if got != *pus {
                    let label = subject.label();
                    return Err(format!("{label} was placed on {got}, all others on {pus}").into());
                }
                How::Platform(platform)
            }
            Subject::Cpulimit(program) => How::Cpulimit { program: program.clone(), speed: None },
            Subject::PlainQuota => How::Quota(Quota::make()?),
        };
        Ok(Self { tools, pus: pus.clone(), how })
    }

    /// The platform, if it has one, with the vnode's name.
    pub fn platform(&self) -> Option<(&Platform<'t>, &'static str)> {
        match &self.how {
            How::Platform(platform) => Some((platform, VNODE)),
            How::Nobody | How::Cpulimit { .. } | How::Quota(_) => None,
        }
    }

    /// Sets a speed; 1 is full speed.
    pub fn set(&mut self, speed: f64) -> Result<(), Failure> {
        let slower = (speed < 1.0).then_some(speed * self.pus.len() as f64);
        match &mut self.how {
            How::Nobody => Ok(()),
            How::Platform(platform) => {
                platform.set(VNODE, speed)?;
                platform.settle();
                Ok(())
            }
            How::Cpulimit { speed, .. } => {
                *speed = slower;
                Ok(())
            }
            How::Quota(quota) => quota.set(slower),
        }
    }

    /// Runs a load at the speed that was set.
    pub fn run(&self, load: Load) -> Result<Reading, Failure> {
        match &self.how {
            How::Platform(platform) => platform.run(VNODE, load),
            How::Quota(quota) => quota.run(self.tools.pinload, &self.pus, load),
            How::Cpulimit { program, speed: Some(share) } => {
                rival::under_cpulimit(program, self.tools.pinload, &self.pus, *share, load)
            }
            How::Nobody | How::Cpulimit { speed: None, .. } => self.baseline(load),
        }
    }

    /// Runs it outside the vnode on the same CPUs.
    pub fn baseline(&self, load: Load) -> Result<Reading, Failure> {
        let spawn = Spawn::new(self.tools.pinload).args(load.argv());
        rival::run(spawn.affinity(self.pus.clone()), load)
    }

    /// Ends the turn.
    pub fn end(self) -> Result<(), Failure> {
        match self.how {
            How::Platform(platform) => platform.down(),
            How::Nobody | How::Cpulimit { .. } | How::Quota(_) => Ok(()),
        }
    }
}

/// A platform whose burners may run everywhere, because the machine has no other work.
pub fn shared_platform(vnodes: &str) -> String {
    format!("share-housekeeping = true\n{vnodes}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_refused_is_reported_and_the_rest_is_measured() {
        let methods = json!({"methods": [
            {"method": "stall", "refused_here": null},
            {"method": "freq", "refused_here": "no driver"},
            {"method": "fracas", "refused_here": null},
            {"method": "inject", "refused_here": null},
        ]});
        let (here, refused) = find(&methods).unwrap();
        let labels: Vec<String> = here.iter().map(Subject::label).collect();
        assert_eq!(labels, ["stall", "fracas as published", "fracas"]);
        assert_eq!(refused[0], ("freq".to_owned(), "no driver".to_owned()));
        assert_eq!((refused.len(), refused[1].0.as_str()), (2, "inject"));
        assert!(find(&json!({})).is_err());
    }

    #[test]
    fn a_vnode_is_what_a_platform_file_takes() {
        let subject =
            Subject::Method { name: "fracas".to_owned(), as_published: true, period: None };
        let text = shared_platform(&subject.vnode("bench", 2, 1.0));
        let platform = pinfold_config::platforms::from_toml(&text).unwrap();
        assert!(platform.share_housekeeping);
        assert_eq!((platform.vnodes.len(), platform.vnodes[0].cores), (1, 2));
    }

    #[test]
    fn turns_of_other_lengths_are_what_a_platform_file_takes() {
        let hogs = Subject::Method { name: "hogs".to_owned(), as_published: false, period: None };
        let turns = hogs.in_turns();
        let labels: Vec<String> = turns.iter().map(Subject::label).collect();
        assert_eq!(labels, ["hogs, 500us", "hogs, 2ms", "hogs, 10ms", "hogs, 100ms"]);
        let text = shared_platform(&turns[3].vnode("bench", 1, 0.5));
        let platform = pinfold_config::platforms::from_toml(&text).unwrap();
        assert_eq!(platform.vnodes[0].period_ns, Some(100_000_000));
        assert!(Subject::PlainQuota.in_turns().is_empty());
    }
}
