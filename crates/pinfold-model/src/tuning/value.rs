//! The values of tunables: their syntax, their limits, and what the kernel's file takes.

use std::fmt;

use super::types::{CpuQuota, HugePagePool, ResourceShare};
use crate::{CpuSet, NodeId, Policy};

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// CPUs.
    Cpus(CpuSet),
    /// On or off.
    Switch(bool),
    /// One of the tunable's words.
    Word(&'static str),
    /// A number.
    Number(u64),
    /// A name that the kernel knows.
    Name(String),
    /// A pool of huge pages.
    Pool(HugePagePool),
    /// A share of a cache or of memory bandwidth.
    Share(ResourceShare),
    /// A limit on CPU time.
    Quota(CpuQuota),
    /// A scheduling policy.
    Policy(Policy),
}

impl Value {
    /// True for the switch in the position *on*.
    pub fn is_on(&self) -> bool {
        *self == Self::Switch(true)
    }
}

/// The value in the syntax of the command line.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpus(pus) => write!(f, "{pus}"),
            Self::Switch(on) => f.write_str(if *on { "on" } else { "off" }),
            Self::Word(word) => f.write_str(word),
            Self::Number(number) => write!(f, "{number}"),
            Self::Name(name) => f.write_str(name),
            Self::Pool(HugePagePool { node, page_bytes, pages }) => {
                write!(f, "{node}:{}:{pages}", page_bytes >> 10)
            }
            Self::Share(share) => write!(f, "{share}"),
            Self::Quota(CpuQuota { quota_us, period_us }) => write!(f, "{quota_us}/{period_us}"),
            Self::Policy(policy) => f.write_str(&policy.argument()),
        }
    }
}

/// The values that a tunable takes.
#[derive(Clone, Copy, Debug)]
pub enum Values {
    /// CPUs on which something of the host runs: online ones, or the word `housekeeping`.
    HostCpus,
    /// CPUs.
    Cpus {
        /// What the kernel's file of each takes.
        raw: &'static str,
    },
    /// On or off.
    Switch {
        /// What the kernel's file takes for *off* and *on*.
        raw: [&'static str; 2],
    },
    /// Words, each with what the kernel's file takes.
    Words(&'static [(&'static str, &'static str)]),
    /// A number within limits.
    Number {
        /// The smallest.
        least: u64,
        /// The largest.
        most: u64,
        /// Its form in help: the unit, or the range.
        form: &'static str,
        /// What the kernel's file takes for 0.
        zero: &'static str,
    },
    /// A name of letters, digits and `_`, with its kind and article.
    Name(&'static str),
    /// A pool of huge pages; may be set for several sizes and nodes.
    Pool,
    /// A share of a cache or of memory bandwidth; may be set for several.
    Share,
    /// A limit on CPU time.
    Quota,
    /// A scheduling policy.
    Policy,
}

/// Why a text is no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// The fault, as a sentence without full stop.
    pub why: String,
    /// What the user can do, if known.
    pub hint: Option<String>,
}

impl Invalid {
    fn new(key: &str, text: &str, wanted: &str) -> Self {
        Self { why: format!("{key}: {text:?} is not {wanted}"), hint: None }
    }

    fn with_hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

impl Values {
    /// Syntax of the values, as help and messages show it; alternatives are separated by `|`.
    #[must_use]
    pub fn syntax(self) -> String {
        match self {
            Self::HostCpus => "PUS|housekeeping".to_owned(),
            Self::Cpus { .. } => "CPUS".to_owned(),
            Self::Switch { .. } => "on|off".to_owned(),
            Self::Words(words) => words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join("|"),
            Self::Number { form, .. } => form.to_owned(),
            Self::Name(_) => "NAME".to_owned(),
            Self::Pool => "NODE:SIZE_KIB:PAGES".to_owned(),
            Self::Share => "RESOURCE:DOMAIN=AMOUNT".to_owned(),
            Self::Quota => "QUOTA_US/PERIOD_US".to_owned(),
            Self::Policy => Policy::FORMS.to_owned(),
        }
    }

    /// True for CPUs on which something of the host runs.
    #[must_use]
    pub fn is_of_host(self) -> bool {
        matches!(self, Self::HostCpus)
    }

    /// True if a plan may set several values.
    #[must_use]
    pub fn are_several(self) -> bool {
        matches!(self, Self::Pool | Self::Share)
    }

    /// Parses a value; `key` is the part before `=`, for messages.
    ///
    /// # Errors
    /// [`Invalid`] with the values that are valid.
    pub fn parse(self, key: &str, text: &str, housekeeping: &CpuSet) -> Result<Value, Invalid> {
        let wrong = |wanted: &str| Invalid::new(key, text, wanted);
        let such_as = |example: &str| wrong(&format!("{}, such as {example}", self.syntax()));
        match self {
            Self::HostCpus if text == "housekeeping" => Ok(Value::Cpus(housekeeping.clone())),
            Self::HostCpus => {
                cpus(key, text, "write OS indexes, such as 0-3,8, or the word housekeeping")
            }
            Self::Cpus { .. } => cpus(key, text, "write OS indexes, such as 5,7"),
            Self::Switch { .. } => match text {
                "on" | "off" => Ok(Value::Switch(text == "on")),
                _ => Err(wrong("one of on, off")),
            },
            Self::Words(_) => self
                .word(text)
                .map(Value::Word)
                .ok_or_else(|| wrong(&format!("one of {}", self.syntax().replace('|', ", ")))),
            Self::Number { .. } => Ok(Value::Number(number(key, text)?)),
            Self::Name(_) => Ok(Value::Name(text.to_owned())),
            Self::Pool => {
                let parts: Vec<&str> = text.split(':').collect();
                let [node, kib, pages] = parts.as_slice() else {
                    return Err(such_as("0:2048:512"));
                };
                let bytes = number::<u64>(key, kib)?.checked_mul(1024);
                Ok(Value::Pool(HugePagePool {
                    node: NodeId(number(key, node)?),
                    page_bytes: bytes.ok_or_else(|| wrong("a valid page size"))?,
                    pages: number(key, pages)?,
                }))
            }
            Self::Share => ResourceShare::parse(text).map(Value::Share).ok_or_else(|| {
                let resources = ResourceShare::RESOURCES.join(", ");
                such_as("L3:0=ff0 or MB:0=50").with_hint(format!("resources are {resources}"))
            }),
            Self::Quota => {
                let Some((quota, period)) = text.split_once('/') else {
                    return Err(such_as("50000/100000"));
                };
                let (quota_us, period_us) = (number(key, quota)?, number(key, period)?);
                Ok(Value::Quota(CpuQuota { quota_us, period_us }))
            }
            Self::Policy => Policy::parse(text).map(Value::Policy),
        }
    }

    /// The tunable's word with this text.
    #[must_use]
    pub fn word(self, text: &str) -> Option<&'static str> {
        let Self::Words(words) = self else { return None };
        words.iter().map(|(word, _)| *word).find(|word| *word == text)
    }

    /// A value that no kernel accepts: the part of the value (empty for the whole) and the fault.
    #[must_use]
    pub fn find_violation(self, value: &Value) -> Option<(&'static str, String)> {
        match (self, value) {
            (_, Value::Cpus(pus)) if pus.is_empty() => whole("no CPU is left for them".to_owned()),
            (Self::Number { least, most, .. }, Value::Number(number))
                if !(least..=most).contains(number) =>
            {
                whole(format!("{number} is out of range ({least} to {most})"))
            }
            (Self::Name(what), Value::Name(name))
                if name.is_empty()
                    || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') =>
            {
                whole(format!("{name:?} is not a valid name of {what}"))
            }
            // CPUFREQ_NAME_LEN (16) counts the final zero.
            (Self::Name(what), Value::Name(name)) if name.len() > 15 => whole(format!(
                "{name:?} is not a valid name of {what}: it has more than 15 characters"
            )),
            (_, Value::Pool(pool)) if pool.page_bytes % 1024 != 0 => {
                whole(format!("{} bytes is not a page size", pool.page_bytes))
            }
            (_, Value::Quota(quota)) => quota.fault(),
            _ => None,
        }
    }

    /// What the kernel's file takes for a value.
    #[must_use]
    pub fn raw(self, value: &Value) -> String {
        match (self, value) {
            (Self::HostCpus, Value::Cpus(pus)) => pus.to_mask(),
            (Self::Cpus { raw }, _) => raw.to_owned(),
            (Self::Switch { raw }, Value::Switch(on)) => raw[usize::from(*on)].to_owned(),
            (Self::Words(words), Value::Word(word)) => {
                let found = words.iter().find(|(known, _)| known == word);
                found.map_or(*word, |(_, raw)| *raw).to_owned()
            }
            (Self::Number { zero, .. }, Value::Number(0)) => zero.to_owned(),
            (_, Value::Pool(pool)) => pool.pages.to_string(),
            (_, value) => value.to_string(),
        }
    }
}

fn whole(why: String) -> Option<(&'static str, String)> {
    Some(("", why))
}

fn cpus(key: &str, text: &str, hint: &str) -> Result<Value, Invalid> {
    match CpuSet::parse_list(text) {
        Ok(set) if set.is_empty() => {
            Err(Invalid::new(key, text, "at least one CPU").with_hint(hint))
        }
        Ok(set) => Ok(Value::Cpus(set)),
        Err(error) => Err(Invalid { why: format!("{key}: {error}"), hint: Some(hint.to_owned()) }),
    }
}

fn number<T: std::str::FromStr>(key: &str, text: &str) -> Result<T, Invalid> {
    text.parse().map_err(|_| Invalid::new(key, text, "a whole number within range"))
}
