//! Platform files: a machine divided into virtual nodes of given speeds.
//!
//! The input is a TOML file, or `key=value` words for one vnode on the command line;
//! `docs/platforms.md` lists the keys. [`profile`] and [`load`] read time series for playback.
//!
//! ```toml
//! [[vnode]]
//! name = "slow"
//! cores = 2
//! speed = "40%"
//! ```

mod attach;
mod csv;
mod disk;
mod locate;
mod speeds;

use std::collections::BTreeSet;

use pinfold_model::text::count_noun;
use pinfold_model::{
    Attach, Command, CpuSet, Method, NodeId, Platform, PlatformVnode, ProfileReference, Speed,
    SpeedRequest, Variant,
};

use crate::ConfigError;
use crate::fault::Fault;
use crate::keys::Keys;
use crate::requests::{at_least_one, one_of};
use crate::value::{self, Value, ValueKind};
pub use csv::{load, profile, to_csv};
pub use locate::{place_of, place_of_key};

/// The keys of a platform file.
pub const PLATFORM: &[&str] = &["share-housekeeping", "method", "vnode"];
/// The keys of a `[[vnode]]`.
pub const VNODE: &[&str] = &[
    "name",
    "cores",
    "speed",
    "like",
    "kind",
    "own",
    "memory-node",
    "method",
    "variant",
    "period",
    "calibrate",
    "attach",
    "profile",
    "disk",
    "iops",
    "disk-path",
];
/// Names are used in directory names, which are limited to 255 bytes.
const LONGEST_NAME: usize = 64;

/// Parses a platform file.
///
/// ```
/// use pinfold_config::platforms;
///
/// let platform = platforms::from_toml("[[vnode]]\nname = \"slow\"\ncores = 2\nspeed = \"40%\"\n")?;
/// assert_eq!(platform.vnodes[0].name, "slow");
/// # Ok::<(), pinfold_config::ConfigError>(())
/// ```
///
/// # Errors
/// [`ConfigError`] with line and column: not TOML, an unknown or missing key, a value of the wrong
/// type or out of range, a duplicate name or group.
pub fn from_toml(text: &str) -> Result<Platform, ConfigError> {
    value::parse_toml(text)
        .and_then(|root| platform(Keys::new(root, "the platform", PLATFORM)?))
        .map_err(|fault| ConfigError::in_file(text, fault))
}

/// Parses a vnode from words such as `name=a,cores=2,speed=40%+60%,method=hogs`.
///
/// # Errors
/// [`ConfigError`] as [`from_toml`], without a position.
pub fn parse_vnode_spec(words: &str) -> Result<PlatformVnode, ConfigError> {
    let mut table = value::parse_words(words, &["speed"]).map_err(example)?;
    // One speed is for all cores, as in a file that holds no list.
    if let ValueKind::Table(entries) = &mut table.what {
        for (_, _, value) in entries {
            if let ValueKind::List(items) = &mut value.what
                && items.len() == 1
                && let Some(only) = items.pop()
            {
                *value = only;
            }
        }
    }
    Ok(vnode(table, None).map_err(example)?)
}

fn example(fault: Fault) -> Fault {
    fault.or_hint("for example: name=slow,cores=2,speed=40%")
}

/// Parses a speed: `40%`, `0.4`, `2.1 GHz`, `800 MHz`.
///
/// # Errors
/// [`ConfigError`] if it is invalid, not above 0, or above full speed.
pub fn speed(text: &str) -> Result<SpeedRequest, ConfigError> {
    Ok(speeds::speed_request(&Value { at: 0, what: ValueKind::Text(text.to_owned()) })?)
}

fn platform(mut keys: Keys) -> Result<Platform, Fault> {
    let share_housekeeping =
        take_bool(&mut keys, "share-housekeeping")?.is_some_and(|(yes, _)| yes);
    let usual = keys.text("method")?.map(|(text, at)| method(&text, at)).transpose()?;
    let mut vnodes: Vec<PlatformVnode> = Vec::new();
    let mut names = BTreeSet::new();
    for table in keys.tables("vnode")? {
        let at = table.at;
        let one = vnode(table, usual)?;
        if !names.insert(one.name.clone()) {
            return Err(Fault::new(at, format!("the name {:?} is given twice", one.name))
                .with_hint("give each vnode a name of its own"));
        }
        let twice = vnodes.iter().find(|other| attach::overlap(other, &one));
        if let (Some(other), Some(what)) = (twice, &one.attach) {
            let what = attach::text(what);
            return Err(Fault::new(
                at,
                format!("{what} cannot be {:?}: it overlaps with {:?}", one.name, other.name),
            )
            .with_hint("a task has one speed: attach groups that do not contain each other"));
        }
        vnodes.push(one);
    }
    if vnodes.is_empty() {
        return Err(Fault::new(0, "the platform names no [[vnode]]".to_owned())
            .with_hint("write [[vnode]] with a name and a number of cores"));
    }
    Ok(Platform { vnodes, share_housekeeping, avoid: CpuSet::new() })
}

fn vnode(table: Value, usual: Option<Method>) -> Result<PlatformVnode, Fault> {
    let mut keys = Keys::new(table, "vnode", VNODE)?;
    let (name, at) = keys.take_required("name")?.into_text("name")?;
    let name = safe_name(name, at)?;
    let cores = at_least_one("cores", &keys.take_required("cores")?, "")?;
    let method = keys.text("method")?.map(|(text, at)| method(&text, at)).transpose()?.or(usual);
    let memory_node = keys.take("memory-node").map(|node| node.count("memory-node")).transpose()?;
    let like = like(&mut keys, method)?;
    Ok(PlatformVnode {
        name,
        cores,
        speeds: speeds(&mut keys, cores, method)?,
        like,
        memory_node: memory_node.map(NodeId),
        method,
        variant: variant(&mut keys, method)?,
        period_ns: period(&mut keys, method)?,
        calibrate: calibrate(&mut keys, method)?,
        attach: attach(&mut keys)?,
        profile: profile_file(&mut keys, at, method)?,
        disk: disk::limit(&mut keys)?,
    })
}

fn safe_name(name: String, at: usize) -> Result<String, Fault> {
    let why = match name.as_str() {
        "" => "it is empty",
        "." | ".." => "every directory has this entry",
        _ if name.len() > LONGEST_NAME => "it is longer than 64 characters",
        _ if !name.chars().all(|letter: char| {
            letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.')
        }) =>
        {
            "it contains other characters"
        }
        _ => return Ok(name),
    };
    Err(Fault::new(at, format!("name: {name:?} cannot be part of a cgroup's name: {why}"))
        .with_hint("use letters (a-z, A-Z), digits, - _ and ., at most 64 in total"))
}

fn method(text: &str, at: usize) -> Result<Method, Fault> {
    one_of("method", text, at, &Method::ALL.map(|method| (method.name(), method)))
}

fn speeds(keys: &mut Keys, cores: u32, method: Option<Method>) -> Result<Vec<SpeedRequest>, Fault> {
    let Some(value) = keys.take("speed") else {
        return Ok(vec![SpeedRequest::Share(Speed::FULL)]);
    };
    if method.is_some_and(Method::replays_load) {
        return Err(value
            .kind_fault(
                "speed",
                "possible with inject: the recorded load determines what is left of each core",
            )
            .with_hint("omit the speed, or use another method"));
    }
    match &value.what {
        ValueKind::List(items) if u32::try_from(items.len()) != Ok(cores) => Err(Fault::new(
            value.at,
            format!(
                "speed: the list has {} for {}",
                count_noun(items.len(), "speed"),
                count_noun(cores, "core")
            ),
        )
        .with_hint("write one speed for all cores, or a list of one for each")),
        ValueKind::List(items) => items.iter().map(speeds::speed_request).collect(),
        ValueKind::Text(_)
        | ValueKind::Number(_)
        | ValueKind::Fraction(_)
        | ValueKind::Truth(_)
        | ValueKind::Table(_)
        | ValueKind::Date => Ok(vec![speeds::speed_request(&value)?]),
    }
}

/// The profile of a machine instead of a speed.
fn like(keys: &mut Keys, method: Option<Method>) -> Result<Option<ProfileReference>, Fault> {
    let file = file_name(keys, "like")?;
    let (kind, own) = (keys.text("kind")?, file_name(keys, "own")?);
    let Some((file, at)) = file else {
        let first = kind.map(|(_, at)| ("kind", at)).or(own.map(|(_, at)| ("own", at)));
        return match first {
            Some((key, at)) => Err(Fault::new(at, format!("{key} needs the key \"like\""))
                .with_hint("name the profile of a machine: like = \"laptop.jsonl\"")),
            None => Ok(None),
        };
    };
    if keys.has("speed") || method.is_some_and(Method::replays_load) {
        let text = "like: the vnode has a speed already".to_owned();
        return Err(Fault::new(at, text)
            .with_hint("use either speed or like; inject takes its speed from a recorded load"));
    }
    Ok(Some(ProfileReference {
        file,
        kind: kind.map(|(kind, _)| kind),
        own: own.map(|(own, _)| own),
    }))
}

fn file_name(keys: &mut Keys, key: &'static str) -> Result<Option<(String, usize)>, Fault> {
    match keys.text(key)? {
        Some((file, at)) if file.is_empty() || file.contains('\0') => {
            Err(Fault::new(at, format!("{key}: {file:?} is not a file name"))
                .with_hint("name a file, or omit the key"))
        }
        found => Ok(found),
    }
}

fn variant(keys: &mut Keys, method: Option<Method>) -> Result<Variant, Fault> {
    let Some((text, at)) = keys.text("variant")? else { return Ok(Variant::default()) };
    let known = Variant::ALL.map(|variant| (variant.name(), variant));
    let variant = one_of("variant", &text, at, &known)?;
    let Some(method) = method.filter(|method| !method.variants().contains(&variant)) else {
        return Ok(variant);
    };
    Err(Fault::new(at, format!("variant: {method} has no variant {}", variant.name()))
        .with_hint(format!("variants of {method}: {}", variant_list(method.variants()))))
}

fn variant_list(variants: &[Variant]) -> String {
    variants.iter().map(|variant| variant.name()).collect::<Vec<_>>().join(", ")
}

fn period(keys: &mut Keys, method: Option<Method>) -> Result<Option<u64>, Fault> {
    keys.take("period").map(|value| speeds::period(&value, method)).transpose()
}

fn calibrate(keys: &mut Keys, method: Option<Method>) -> Result<bool, Fault> {
    match take_bool(keys, "calibrate")? {
        Some((true, at)) if !method.is_some_and(Method::sets_frequency) => {
            Err(Fault::new(at, "calibrate: only gov and freq set hardware frequencies".to_owned())
                .with_hint("omit it: stall and hogs measure their own cost"))
        }
        found => Ok(found.is_some_and(|(yes, _)| yes)),
    }
}

/// A boolean with its position; on the command line it is a text.
fn take_bool(keys: &mut Keys, name: &str) -> Result<Option<(bool, usize)>, Fault> {
    match keys.take(name) {
        None => Ok(None),
        Some(Value { what: ValueKind::Truth(yes), at }) => Ok(Some((yes, at))),
        Some(Value { what: ValueKind::Text(text), at }) if text == "true" || text == "false" => {
            Ok(Some((text == "true", at)))
        }
        Some(value) => {
            Err(value.kind_fault(name, "true or false").with_hint("write it without quotes"))
        }
    }
}

fn attach(keys: &mut Keys) -> Result<Option<Attach>, Fault> {
    keys.text("attach")?.map(|(text, at)| attach::read(&text, at)).transpose()
}

fn profile_file(
    keys: &mut Keys,
    at: usize,
    method: Option<Method>,
) -> Result<Option<String>, Fault> {
    match keys.text("profile")? {
        Some((file, at)) if file.is_empty() || file.contains('\0') => {
            Err(Fault::new(at, format!("profile: {file:?} is not a file name"))
                .with_hint("name a CSV file, or omit the profile"))
        }
        Some((file, _)) => Ok(Some(file)),
        None if method.is_some_and(Method::replays_load) => {
            Err(Fault::new(at, "inject needs the key \"profile\": the load to replay".to_owned())
                .with_hint(format!(
                    "record one with `{}`, then set `profile` to that file",
                    Command::new("emulate record")
                )))
        }
        None => Ok(None),
    }
}
