//! What a derive of `serde` does not give: sets of CPUs as text in the kernel's list format, bytes
//! as text where they are printable, and values that must be valid.
//!
//! The crates that write documents have golden files of each version: these forms do not change.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{CpuSet, ROLES, Role, RoleKind, Speed, escape};

impl Serialize for CpuSet {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'d> Deserialize<'d> for CpuSet {
    fn deserialize<D: Deserializer<'d>>(from: D) -> Result<Self, D::Error> {
        CpuSet::parse_list(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

impl Serialize for Role {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'d> Deserialize<'d> for Role {
    fn deserialize<D: Deserializer<'d>>(from: D) -> Result<Self, D::Error> {
        let text = plain(from)?;
        Role::parse(&text).ok_or_else(|| {
            let known = ROLES.map(RoleKind::syntax).join(", ");
            D::Error::custom(format!("{text:?} is not a role; roles are {known}"))
        })
    }
}

impl Serialize for Speed {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u32(self.millionths())
    }
}

impl<'d> Deserialize<'d> for Speed {
    fn deserialize<D: Deserializer<'d>>(from: D) -> Result<Self, D::Error> {
        let millionths = u32::deserialize(from)?;
        Speed::from_millionths(millionths)
            .ok_or_else(|| D::Error::custom(format!("{millionths} is out of range (1 to 1000000)")))
    }
}

/// Reads a name that is printed unchanged.
///
/// # Errors
/// If it has a line break or another control character.
pub fn plain<'d, D: Deserializer<'d>>(from: D) -> Result<String, D::Error> {
    let text = String::deserialize(from)?;
    if escape::is_plain(&text) {
        return Ok(text);
    }
    let name = escape::name(&text);
    Err(D::Error::custom(format!("\"{name}\" has a line break or another control character")))
}

/// Reads a sentence as one line, so that it cannot imitate other output of Pinfold.
///
/// # Errors
/// If it is not a text.
pub fn line<'d, D: Deserializer<'d>>(from: D) -> Result<String, D::Error> {
    Ok(escape::name(&String::deserialize(from)?).into_owned())
}

/// Reads a sentence that may be missing; see [`line()`].
///
/// # Errors
/// If it is neither a text nor null.
pub(crate) fn optional_line<'d, D: Deserializer<'d>>(from: D) -> Result<Option<String>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    Ok(text.map(|text| escape::name(&text).into_owned()))
}

/// Writes a size in bytes that is null if it is not known.
pub(crate) fn serialize_nonzero<S: Serializer>(bytes: &u64, to: S) -> Result<S::Ok, S::Error> {
    Some(bytes).filter(|bytes| **bytes > 0).serialize(to)
}

/// Bytes, as text where they are printable, else in base 16.
pub mod bytes {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case", deny_unknown_fields)]
    pub(super) enum Bytes {
        Text(String),
        Base16(String),
    }

    impl Bytes {
        pub(super) fn new(bytes: &[u8]) -> Self {
            match std::str::from_utf8(bytes) {
                Ok(text)
                    if text.chars().all(|c: char| c == '\n' || c == '\t' || !c.is_control()) =>
                {
                    Self::Text(text.to_owned())
                }
                Ok(_) | Err(_) => {
                    Self::Base16(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
                }
            }
        }

        pub(super) fn into_vec(self) -> Result<Vec<u8>, &'static str> {
            match self {
                Self::Text(text) => Ok(text.into_bytes()),
                Self::Base16(text) if !text.len().is_multiple_of(2) => {
                    Err("hexadecimal data needs an even number of digits")
                }
                Self::Base16(text) => text.as_bytes().chunks(2).map(byte).collect(),
            }
        }
    }

    fn byte(pair: &[u8]) -> Result<u8, &'static str> {
        let digits = std::str::from_utf8(pair).ok();
        digits.and_then(|text| u8::from_str_radix(text, 16).ok()).ok_or("not hexadecimal")
    }

    /// Writes bytes.
    ///
    /// # Errors
    /// Those of the serialiser.
    pub fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        Bytes::new(bytes).serialize(to)
    }

    /// Reads bytes.
    ///
    /// # Errors
    /// If the text is not base 16.
    pub fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Vec<u8>, D::Error> {
        Bytes::deserialize(from)?.into_vec().map_err(D::Error::custom)
    }
}

/// Bytes that may be missing; see [`bytes`].
pub(crate) mod optional_bytes {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

    use super::bytes::Bytes;

    pub fn serialize<S: Serializer>(bytes: &Option<Vec<u8>>, to: S) -> Result<S::Ok, S::Error> {
        bytes.as_deref().map(Bytes::new).serialize(to)
    }

    pub fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Option<Vec<u8>>, D::Error> {
        let read = Option::<Bytes>::deserialize(from)?;
        read.map(Bytes::into_vec).transpose().map_err(D::Error::custom)
    }
}

/// Tasks with their affinity masks.
pub mod masks {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::{CpuSet, TaskId};

    #[derive(Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Mask {
        task: TaskId,
        mask: CpuSet,
    }

    /// Writes masks.
    ///
    /// # Errors
    /// Those of the serialiser.
    pub fn serialize<S: Serializer>(masks: &[(TaskId, CpuSet)], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(masks.iter().map(|(task, mask)| Mask { task: *task, mask: mask.clone() }))
    }

    /// Reads masks.
    ///
    /// # Errors
    /// If a mask is not a list of CPUs.
    pub fn deserialize<'d, D: Deserializer<'d>>(
        from: D,
    ) -> Result<Vec<(TaskId, CpuSet)>, D::Error> {
        let read = Vec::<Mask>::deserialize(from)?;
        Ok(read.into_iter().map(|Mask { task, mask }| (task, mask)).collect())
    }
}

/// NUMA nodes, which use the same list format as CPUs.
pub(crate) mod nodes {
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::{CpuSet, NodeId, PuId};

    pub fn serialize<S: Serializer>(nodes: &[NodeId], to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&nodes.iter().map(|node| PuId(node.0)).collect::<CpuSet>())
    }

    pub fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Vec<NodeId>, D::Error> {
        Ok(CpuSet::deserialize(from)?.iter().map(|number| NodeId(number.0)).collect())
    }
}

/// The policy of a thread in a plan, which `sched(7)` must allow.
pub(crate) mod planned_policy {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

    use crate::Policy;
    use crate::policy::SLICES_NS;

    #[derive(Serialize, Deserialize)]
    #[serde(remote = "Policy", rename_all = "kebab-case", deny_unknown_fields)]
    enum Planned {
        Other { nice: i8 },
        Batch { nice: i8 },
        Idle,
        Fifo { priority: u8 },
        RoundRobin { priority: u8 },
        Deadline { runtime_ns: u64, deadline_ns: u64, period_ns: u64 },
        Slice { nice: Option<i8>, slice_ns: u64 },
        Unknown { number: u32 },
    }

    #[derive(Serialize, Deserialize)]
    struct Wrapped(#[serde(with = "Planned")] Policy);

    pub fn serialize<S: Serializer>(policy: &Option<Policy>, to: S) -> Result<S::Ok, S::Error> {
        policy.map(Wrapped).serialize(to)
    }

    pub fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Option<Policy>, D::Error> {
        let policy = Option::<Wrapped>::deserialize(from)?.map(|wrapped| wrapped.0);
        policy.and_then(find_fault).map_or(Ok(policy), |why| Err(D::Error::custom(why)))
    }

    /// Why `sched(7)` does not allow a policy.
    fn find_fault(policy: Policy) -> Option<String> {
        match policy {
            Policy::Slice { slice_ns, .. } if !SLICES_NS.contains(&slice_ns) => {
                let (least, most) = (SLICES_NS.start(), SLICES_NS.end());
                Some(format!("the slice {slice_ns} ns is not in {least} to {most} ns"))
            }
            Policy::Other { nice }
            | Policy::Batch { nice }
            | Policy::Slice { nice: Some(nice), .. } => (!(-20..=19).contains(&nice))
                .then(|| format!("the nice value {nice} is not in -20 to 19")),
            Policy::Fifo { priority } | Policy::RoundRobin { priority } => (!(1..=99)
                .contains(&priority))
            .then(|| format!("the real-time priority {priority} is out of range (1 to 99)")),
            Policy::Deadline { runtime_ns, deadline_ns, period_ns } => {
                let order = [0, runtime_ns, deadline_ns, period_ns];
                let is_allowed = runtime_ns > 0 && order.is_sorted();
                (!is_allowed)
                    .then(|| "it must hold 0 < runtime_ns <= deadline_ns <= period_ns".to_owned())
            }
            Policy::Slice { nice: None, .. } | Policy::Idle | Policy::Unknown { .. } => None,
        }
    }
}
