//! Requests: a TOML file, or `key=value` words on the command line.
//!
//! Both use the same keys; `docs/requests.md` lists them. An error in a file has line and column;
//! an unknown key is reported with the most similar known key.
//!
//! ```toml
//! isolate = "host"
//! [[vm]]
//! name = "web"
//! vcpus = 4
//! ```

pub(crate) mod locate;
mod pins;
mod policies;
pub(crate) mod tunables;

use std::collections::BTreeSet;

use pinfold_model::{
    CpuSet, Device, EmulatorRequest, FreeCpus, IsolationScope, MemoryRequest, NodeId, PinRequest,
    Preference, Request, SmtRequest, Speed, VcpuCount, VmRequest, VnodeRequest, closest,
};

use crate::ConfigError;
use crate::fault::Fault;
use crate::keys::Keys;
use crate::value::{self, Value, ValueKind, decimal, unit_bytes};

pub use locate::{place_of, place_of_key};
pub use tunables::set_tunable;

const REQUEST: &[&str] =
    &["vm", "group", "host", "avoid", "isolate", "emulator", "interrupts", "prefer"];
const HOST: &[&str] = &["free", "pus"];
const VNODE: &[&str] = &["name", "memory", "huge-pages", "devices", "priority", "policies", "pins"];
const VM: &[&str] = &["vcpus", "iothreads", "vhosts", "smt"];
const GROUP: &[&str] = &["cores", "speed"];

/// Parses a request file.
///
/// ```
/// use pinfold_config::requests;
///
/// let request = requests::from_toml("[[vm]]\nname = \"web\"\nvcpus = 4\n")?;
/// assert_eq!(request.vnodes[0].name, "web");
/// let error = requests::from_toml("[[vm]]\nname = \"web\"\nvcpu = 4\n").unwrap_err();
/// assert!(error.to_string().contains("line 3"), "{error}");
/// # Ok::<(), pinfold_config::ConfigError>(())
/// ```
///
/// # Errors
/// [`ConfigError`] with line and column: not TOML, an unknown or missing key, a value of the wrong
/// type or out of range, a duplicate name.
pub fn from_toml(text: &str) -> Result<Request, ConfigError> {
    value::parse_toml(text)
        .and_then(|root| request(keys_of(root, "the request", REQUEST)?))
        .map_err(|fault| ConfigError::in_file(text, fault))
}

/// Parses a virtual machine from words such as `name=web,vcpus=4,iothreads=disk+net`, separated by
/// commas or blanks.
///
/// # Errors
/// [`ConfigError`] as [`from_toml`], without a position.
pub fn parse_vm_spec(words: &str) -> Result<VnodeRequest, ConfigError> {
    let lists = &["iothreads", "devices", "policies", "pins"];
    let read = value::parse_words(words, lists).and_then(vm);
    Ok(read.map_err(|fault| fault.or_hint("for example: name=web,vcpus=4"))?)
}

/// Parses a process group from words such as `name=slow,cores=2,speed=40%`.
///
/// # Errors
/// [`ConfigError`] as [`from_toml`], without a position.
pub fn parse_group_spec(words: &str) -> Result<VnodeRequest, ConfigError> {
    let read = value::parse_words(words, &["devices", "policies", "pins"]).and_then(group);
    Ok(read.map_err(|fault| fault.or_hint("for example: name=build,cores=2"))?)
}

/// Parses the share kept free: a number of CPUs such as `4`, or a part such as `25%`.
///
/// # Errors
/// [`ConfigError`] if it is neither.
pub fn free_share(text: &str) -> Result<FreeCpus, ConfigError> {
    Ok(free(&Value::infer(text, 0))?)
}

/// Reads the CPUs that stay free for the host: `0,8`.
///
/// # Errors
/// [`ConfigError`] if it is no list, or an empty one; `option` is named in it.
pub fn free_pus(option: &str, text: &str) -> Result<FreeCpus, ConfigError> {
    Ok(FreeCpus::These(host_pus(option, text, 0)?))
}

/// Reads a device: a PCI address such as `0000:05:00.0`, or `node:1`.
///
/// # Errors
/// [`ConfigError`] if it is neither.
pub fn device(text: &str) -> Result<Device, ConfigError> {
    Ok(device_of(text, 0)?)
}

/// Parses pins by hand such as `vcpu3=7`, `vcpu0-3=8-11` or `emulator=0,8`.
///
/// # Errors
/// [`ConfigError`] if role or CPUs are invalid.
pub fn pins(text: &str) -> Result<Vec<PinRequest>, ConfigError> {
    Ok(pins::pin_requests(text, 0)?)
}

/// Parses the requested placement of the emulator: `usual`, `real-time` or `apart`.
///
/// # Errors
/// [`ConfigError`] if it is none of them.
pub fn parse_emulator_request(text: &str) -> Result<EmulatorRequest, ConfigError> {
    Ok(emulator_request(text, 0)?)
}

/// Parses the name of a vnode.
///
/// # Errors
/// [`ConfigError`] if it is empty or has a blank, `=`, `,`, `/` or a control character.
pub fn vnode_name(text: &str) -> Result<String, ConfigError> {
    check_name(text, 0)?;
    Ok(text.to_owned())
}

/// Blanks, `=` and `,` would make a name ambiguous on the command line; libvirt refuses `/`.
fn check_name(name: &str, at: usize) -> Result<(), Fault> {
    let why = match name.chars().find(|c| is_wrong(*c)) {
        None if name.is_empty() => "it is empty".to_owned(),
        None => return Ok(()),
        Some(c) if c.is_whitespace() && !c.is_control() => "it contains white space".to_owned(),
        Some(c) if c.is_control() => "it contains a control character".to_owned(),
        Some(c) => format!("it has the character {c:?}"),
    };
    Err(Fault::new(at, format!("invalid name {name:?}: {why}"))
        .with_hint("use letters, digits, `-`, `_` and `.`"))
}

fn is_wrong(c: char) -> bool {
    c.is_whitespace() || c.is_control() || "=,/".contains(c)
}

/// Parses a preference for cores: `cache`, `frequency`, `efficiency` or `none`.
///
/// # Errors
/// [`ConfigError`] if it is none of them.
pub fn preference(text: &str) -> Result<Preference, ConfigError> {
    Ok(parse_preference(text, 0)?)
}

fn request(mut keys: Keys) -> Result<Request, Fault> {
    let mut vnodes: Vec<(usize, VnodeRequest)> = Vec::new();
    for table in keys.tables("vm")? {
        vnodes.push((table.at, vm(table)?));
    }
    for table in keys.tables("group")? {
        vnodes.push((table.at, group(table)?));
    }
    vnodes.sort_by_key(|(at, _)| *at);
    let mut names = BTreeSet::new();
    for (at, vnode) in &vnodes {
        if !names.insert(vnode.name.clone()) {
            return Err(Fault::new(*at, format!("the name {:?} is given twice", vnode.name)));
        }
    }
    if vnodes.is_empty() {
        return Err(Fault::new(0, "the request names neither a [[vm]] nor a [[group]]".to_owned()));
    }
    let mut request = Request::from_vnodes(vnodes.into_iter().map(|(_, vnode)| vnode).collect());
    if let Some((text, at)) = keys.text("avoid")? {
        request.avoid = pus("avoid", &text, at)?;
    }
    if let Some((text, at)) = keys.text("isolate")? {
        request.isolation = isolation(&text, at)?;
    }
    if let Some((text, at)) = keys.text("emulator")? {
        request.emulator = emulator_request(&text, at)?;
    }
    if let Some((text, at)) = keys.text("prefer")? {
        request.prefer = parse_preference(&text, at)?;
    }
    request.interrupts = devices(keys.texts("interrupts")?)?;
    if let Some(table) = keys.take("host") {
        request.free = host(keys_of(table, "host", HOST)?)?;
    }
    Ok(request)
}

/// The keys of a table of a request. The strategy is not included: one request can be planned with
/// several.
fn keys_of(table: Value, name: &'static str, known: &[&'static str]) -> Result<Keys, Fault> {
    if let ValueKind::Table(entries) = &table.what
        && let Some((_, at, _)) = entries.iter().find(|(key, _, _)| key == "strategy")
    {
        return Err(Fault::new(*at, format!("{name} has no key \"strategy\""))
            .with_hint("name the strategy on the command line: --strategy NAME"));
    }
    Keys::new(table, name, known)
}

fn host(mut keys: Keys) -> Result<Option<FreeCpus>, Fault> {
    let share = keys.take("free").map(|value| free(&value)).transpose()?;
    match (share, keys.text("pus")?) {
        (Some(_), Some((_, at))) => Err(Fault::new(
            at,
            "host.pus and host.free exclude each other: give a list or a number of CPUs".to_owned(),
        )),
        (None, Some((text, at))) => Ok(Some(FreeCpus::These(host_pus("host.pus", &text, at)?))),
        (share, None) => Ok(share),
    }
}

fn vm(table: Value) -> Result<VnodeRequest, Fault> {
    let mut keys = keys_of(table, "vm", &[VNODE, VM].concat())?;
    let vcpus = match keys.take("vcpus") {
        None => VcpuCount::Auto,
        Some(Value { what: ValueKind::Text(text), .. }) if text == "auto" => VcpuCount::Auto,
        Some(value) => VcpuCount::Exactly(at_least_one("vcpus", &value, " or \"auto\"")?),
    };
    let iothreads = keys.texts("iothreads")?;
    let mut ids = BTreeSet::new();
    for (id, at) in &iothreads {
        if !ids.insert(id) {
            return Err(Fault::new(*at, format!("the iothread {id:?} is given twice")));
        }
    }
    let iothreads = iothreads.into_iter().map(|(id, _)| id).collect();
    let vhosts = keys.take("vhosts").map(|value| value.count("vhosts")).transpose()?.unwrap_or(0);
    let smt = match keys.take("smt") {
        None => SmtRequest::Auto,
        Some(Value { what: ValueKind::Truth(true), .. }) => SmtRequest::Shown,
        Some(Value { what: ValueKind::Truth(false), .. }) => SmtRequest::Hidden,
        Some(Value { what: ValueKind::Text(text), .. }) if text == "auto" => SmtRequest::Auto,
        Some(value) => return Err(value.kind_fault("smt", "true, false or \"auto\"")),
    };
    let vm = VmRequest { iothreads, vhosts, smt, ..VmRequest::from_vcpus(vcpus) };
    common(keys, |name| VnodeRequest::vm(name, vm))
}

fn group(table: Value) -> Result<VnodeRequest, Fault> {
    let mut keys = keys_of(table, "group", &[VNODE, GROUP].concat())?;
    let cores = keys.take_required("cores")?;
    let cores = at_least_one("cores", &cores, "")?;
    let speed = keys.take("speed").map(|value| speed(&value)).transpose()?.unwrap_or(Speed::FULL);
    common(keys, |name| VnodeRequest::processes(name, cores, speed))
}

/// Parses the keys that all vnodes have.
fn common(mut keys: Keys, make: impl FnOnce(&str) -> VnodeRequest) -> Result<VnodeRequest, Fault> {
    let name = keys.take_required("name")?;
    let (name, at) = name.into_text("name")?;
    check_name(&name, at)?;
    let mut vnode = make(&name);
    let page = keys.take("huge-pages");
    let memory = keys.take("memory").map(|value| size("memory", &value)).transpose()?;
    vnode.memory = match (memory, page) {
        (Some(bytes), page) => Some(MemoryRequest {
            bytes,
            page_bytes: page.map(|value| huge_page_bytes(&value)).transpose()?,
        }),
        (None, Some(page)) => {
            return Err(Fault::new(
                page.at,
                "huge-pages is the page size, memory the amount, which is missing".to_owned(),
            ));
        }
        (None, None) => None,
    };
    vnode.devices = devices(keys.texts("devices")?)?;
    let policies = keys.texts("policies")?;
    vnode.policies = policies
        .iter()
        .map(|(text, at)| policies::policy_request(text, *at))
        .collect::<Result<_, _>>()?;
    for (text, at) in keys.texts("pins")? {
        vnode.pins.extend(pins::pin_requests(&text, at)?);
    }
    if let Some(value) = keys.take("priority") {
        let ValueKind::Number(number) = value.what else {
            return Err(value.kind_fault("priority", "a whole number (higher is placed first)"));
        };
        vnode.priority = i32::try_from(number)
            .map_err(|_| value.kind_fault("priority", "a number of at most nine digits"))?;
    }
    Ok(vnode)
}

pub(crate) fn at_least_one(key: &str, value: &Value, or: &str) -> Result<u32, Fault> {
    match value.count(key)? {
        0 => Err(value.kind_fault(key, &format!("a number of at least 1{or}"))),
        count => Ok(count),
    }
}

pub(crate) fn pus(key: &str, text: &str, at: usize) -> Result<CpuSet, Fault> {
    CpuSet::parse_list(text).map_err(|error| {
        Fault::new(at, format!("{key}: {error}"))
            .with_hint("write OS indexes, such as 0-3,8; `pinfold topo` shows them as P#")
    })
}

/// The CPUs that stay free: at least one.
fn host_pus(key: &str, text: &str, at: usize) -> Result<CpuSet, Fault> {
    match pus(key, text, at)? {
        set if set.is_empty() => Err(Fault::new(at, format!("{key}: the list names no CPU"))
            .with_hint("name the CPUs that stay free, such as 0,8, or omit the list")),
        set => Ok(set),
    }
}

fn free(value: &Value) -> Result<FreeCpus, Fault> {
    fn is_wrong(value: &Value) -> Fault {
        value.kind_fault("free", "a number of CPUs such as 4, or a part such as \"25%\", 1 to 99")
    }

    match &value.what {
        ValueKind::Number(_) => match value.count("free")? {
            0 => Err(is_wrong(value)),
            count => Ok(FreeCpus::Pus(count)),
        },
        ValueKind::Text(text) => {
            let percent = text.strip_suffix('%').and_then(|percent| percent.parse().ok());
            percent
                .filter(|percent| (1..100).contains(percent))
                .map(FreeCpus::Percent)
                .ok_or_else(|| is_wrong(value))
        }
        ValueKind::Fraction(_)
        | ValueKind::Truth(_)
        | ValueKind::List(_)
        | ValueKind::Table(_)
        | ValueKind::Date => Err(is_wrong(value)),
    }
}

fn devices(texts: Vec<(String, usize)>) -> Result<Vec<Device>, Fault> {
    texts.iter().map(|(text, at)| device_of(text, *at)).collect()
}

fn device_of(text: &str, at: usize) -> Result<Device, Fault> {
    if let Some(node) = text.strip_prefix("node:").and_then(|node| node.parse().ok()) {
        return Ok(Device::Node(NodeId(node)));
    }
    // domain:bus:device.function, in hexadecimal; the domain is often omitted.
    let address =
        if text.matches(':').count() == 1 { format!("0000:{text}") } else { text.to_owned() };
    let address = address.to_ascii_lowercase();
    let parts: Vec<&str> = address.split([':', '.']).collect();
    match parts.as_slice() {
        [domain, bus, device, function]
            if hex(domain, 4) && hex(bus, 2) && hex(device, 2) && hex(function, 1) =>
        {
            Ok(Device::Pci(address))
        }
        _ => Err(Fault::new(at, format!("{text:?} is neither a PCI address nor a node"))
            .with_hint("write 0000:05:00.0 or node:1")),
    }
}

fn hex(part: &str, digits: usize) -> bool {
    part.len() == digits && part.bytes().all(|byte| byte.is_ascii_hexdigit())
}

pub(crate) fn emulator_request(text: &str, at: usize) -> Result<EmulatorRequest, Fault> {
    one_of(
        "emulator",
        text,
        at,
        &[
            ("usual", EmulatorRequest::Usual),
            ("real-time", EmulatorRequest::RealTime),
            ("apart", EmulatorRequest::Apart),
        ],
    )
}

pub(crate) fn isolation(text: &str, at: usize) -> Result<IsolationScope, Fault> {
    one_of(
        "isolate",
        text,
        at,
        &[
            ("none", IsolationScope::None),
            ("own", IsolationScope::Own),
            ("host", IsolationScope::Host),
        ],
    )
}

pub(crate) fn parse_preference(text: &str, at: usize) -> Result<Preference, Fault> {
    let known =
        [Preference::Cache, Preference::Frequency, Preference::Efficiency, Preference::None];
    let names = known.map(|preference| preference.to_string());
    let words: Vec<(&str, Preference)> = names.iter().map(String::as_str).zip(known).collect();
    one_of("prefer", text, at, &words)
}

/// Parses one of several words; a fault lists them with the most similar one.
pub(crate) fn one_of<T: Copy>(
    key: &str,
    text: &str,
    at: usize,
    known: &[(&str, T)],
) -> Result<T, Fault> {
    known.iter().find(|(name, _)| *name == text).map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        let words = names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
        let fault = Fault::new(at, format!("{key}: {text:?} is not one of {words}"));
        match closest(text, names.into_iter()) {
            Some(nearest) => fault.with_hint(format!("did you mean {nearest}?")),
            None => fault,
        }
    })
}

/// `40%`, `12.5%`, or a fraction such as 0.4.
fn speed(value: &Value) -> Result<Speed, Fault> {
    fn is_wrong(value: &Value) -> Fault {
        value.kind_fault(
            "speed",
            "a part of full speed such as \"40%\" or 0.4, above 0 and at most 1",
        )
    }

    let (digits, shift) = match &value.what {
        ValueKind::Text(text) => {
            (text.strip_suffix('%').ok_or_else(|| is_wrong(value))?.to_owned(), 4)
        }
        ValueKind::Fraction(text) => (text.clone(), 6),
        ValueKind::Number(number) => (number.to_string(), 6),
        ValueKind::Truth(_) | ValueKind::List(_) | ValueKind::Table(_) | ValueKind::Date => {
            return Err(is_wrong(value));
        }
    };
    let millionths = decimal(&digits, shift).and_then(|number| u32::try_from(number).ok());
    millionths.and_then(Speed::from_millionths).ok_or_else(|| is_wrong(value))
}

fn size(key: &str, value: &Value) -> Result<u64, Fault> {
    /// A smaller number of memory is one of GiB or MiB without its unit.
    const LEAST_WITHOUT_UNIT: u64 = 4096;
    let bytes = match &value.what {
        ValueKind::Number(number) => u64::try_from(*number)
            .ok()
            .filter(|bytes| key != "memory" || *bytes >= LEAST_WITHOUT_UNIT),
        ValueKind::Text(text) => {
            let digits = text.trim_end_matches(|letter: char| !letter.is_ascii_digit());
            let unit = text.get(digits.len()..).and_then(|unit| unit_bytes(unit.trim()));
            let number = digits.parse::<u64>().ok();
            number.zip(unit).and_then(|(number, unit)| number.checked_mul(unit))
        }
        ValueKind::Fraction(_)
        | ValueKind::Truth(_)
        | ValueKind::List(_)
        | ValueKind::Table(_)
        | ValueKind::Date => None,
    };
    bytes.filter(|bytes| *bytes > 0).ok_or_else(|| {
        let forms = "a size with its unit, such as \"16GiB\" or \"16G\" (B, K, M, G, T)";
        value.kind_fault(key, forms)
    })
}

/// The size of huge pages from the command line: `2MiB`, `1GiB`.
///
/// # Errors
/// [`ConfigError`] if it is no such size.
pub fn page_size(text: &str) -> Result<u64, ConfigError> {
    Ok(huge_page_bytes(&Value::infer(text, 0))?)
}

fn huge_page_bytes(value: &Value) -> Result<u64, Fault> {
    let bytes = size("huge-pages", value)?;
    if bytes.is_power_of_two() && bytes >= 4096 {
        Ok(bytes)
    } else {
        Err(value.kind_fault("huge-pages", "a size of pages such as \"2MiB\" or \"1GiB\""))
    }
}
