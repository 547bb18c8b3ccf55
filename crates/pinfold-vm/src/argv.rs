//! QEMU command lines: the options that Pinfold must know, read and changed as text.
//!
//! An option is a word that begins with `-` (or `--`, QEMU takes both); all options take one
//! value except those of a fixed list (`qemu-options.hx`, those without `HAS_ARG`). Walking by
//! that list is what keeps `-append "-S"` from looking like `-S`. Values are
//! `key=value,key=value`, where a comma inside a value is doubled (`,,`) and the first key may
//! be implied; `-object` also takes JSON.
//!
//! Options hidden in a `-readconfig` file are not seen.

use pinfold_model::{Accelerator, GuestTopology};

/// Options without a value, of all QEMU versions since 2.0; removed ones harm nothing.
const WITHOUT_VALUE: [&str; 47] = [
    "h",
    "help",
    "version",
    "S",
    "s",
    "snapshot",
    "no-fd-bootchk",
    "full-screen",
    "nographic",
    "curses",
    "sdl",
    "no-frame",
    "alt-grab",
    "ctrl-grab",
    "no-quit",
    "portrait",
    "win2k-hack",
    "rtc-td-hack",
    "tdf",
    "no-acpi",
    "no-hpet",
    "no-reboot",
    "no-shutdown",
    "daemonize",
    "enable-kvm",
    "no-kvm",
    "no-kvm-irqchip",
    "no-kvm-pit",
    "no-kvm-pit-reinjection",
    "xen-attach",
    "xen-create",
    "xen-domid-restrict",
    "mem-prealloc",
    "singlestep",
    "one-insn-per-tb",
    "preconfig",
    "no-user-config",
    "nodefconfig",
    "nodefaults",
    "only-migratable",
    "usb",
    "semihosting",
    "old-param",
    "enable-sync-profile",
    "show-cursor",
    "enable-fips",
    "async-teardown",
];

/// One option of a command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flag<'a> {
    /// Its name without dashes.
    pub name: &'a str,
    /// Its value, if it takes one and has one.
    pub value: Option<&'a str>,
    /// Index of its first word in the command line.
    at: usize,
}

/// The options of a QEMU command line; word 0 is the program.
#[must_use]
pub fn flags(argv: &[String]) -> Vec<Flag<'_>> {
    let mut found = Vec::new();
    let mut at = 1;
    while let Some(word) = argv.get(at) {
        let name = word.strip_prefix("--").or_else(|| word.strip_prefix('-')).unwrap_or("");
        let takes_value = !name.is_empty() && !WITHOUT_VALUE.contains(&name);
        if !name.is_empty() {
            let value = argv.get(at + 1).filter(|_| takes_value).map(String::as_str);
            found.push(Flag { name, value, at });
        }
        at += if takes_value { 2 } else { 1 };
    }
    found
}

/// True if the command line has this option (name without dashes).
#[must_use]
pub fn has_flag(argv: &[String], name: &str) -> bool {
    flags(argv).iter().any(|flag| flag.name == name)
}

/// Number of vCPUs that the command line asks for; `None` if it says nothing (QEMU's default,
/// nearly always 1) or nothing that can be read. Read as QEMU does: several `-smp` add up to
/// one set of keys, the last value of a key counts, and without `cpus` the count is the
/// product of the topology, or `maxcpus`.
#[must_use]
pub fn smp_of(argv: &[String]) -> Option<u32> {
    let mut keys: Vec<(String, u32)> = Vec::new();
    for flag in flags(argv) {
        let (implied, prefix) = match flag.name {
            "smp" => ("cpus", ""),
            "machine" | "M" => ("type", "smp."),
            _ => continue,
        };
        for (key, value) in pairs(flag.value.unwrap_or(""), implied) {
            if let (Some(key), Ok(value)) = (key.strip_prefix(prefix), value.parse()) {
                keys.push((key.to_owned(), value));
            }
        }
    }
    let last = |wanted: &str| keys.iter().rev().find(|(key, _)| key == wanted).map(|pair| pair.1);
    if let Some(cpus) = last("cpus").or_else(|| last("maxcpus")) {
        return Some(cpus);
    }
    let levels = ["drawers", "books", "sockets", "dies", "clusters", "modules", "cores", "threads"];
    if levels.iter().all(|level| last(level).is_none()) {
        return None;
    }
    levels.iter().try_fold(1_u32, |product, level| product.checked_mul(last(level).unwrap_or(1)))
}

/// The command line with the guest topology of a plan: every `-smp` (and `smp.…` key of
/// `-machine`) is replaced by one. A reserve for hotplug (`maxcpus`) goes with them, because
/// a topology describes exactly its vCPUs.
#[must_use]
pub fn set_smp(argv: &[String], guest: &GuestTopology) -> Vec<String> {
    let wanted = format!(
        "{},sockets={},cores={},threads={}",
        guest.vcpus(),
        guest.sockets,
        guest.cores,
        guest.threads
    );
    let mut words: Vec<Option<String>> = argv.iter().cloned().map(Some).collect();
    let mut place = None;
    for flag in flags(argv) {
        match (flag.name, flag.value) {
            ("smp", value) => {
                place.get_or_insert(flag.at);
                words[flag.at] = None;
                if value.is_some() {
                    words[flag.at + 1] = None;
                }
            }
            ("machine" | "M", Some(value)) => {
                words[flag.at + 1] = Some(without_smp_keys(value));
            }
            _ => {}
        }
    }
    let smp = ["-smp".to_owned(), wanted];
    let mut changed = Vec::with_capacity(words.len() + 2);
    for (at, word) in words.into_iter().enumerate() {
        if place == Some(at) {
            changed.extend(smp.clone());
        }
        changed.extend(word);
    }
    if place.is_none() {
        changed.extend(smp);
    }
    changed
}

/// The virtual machine's name (`-name NAME` or `-name guest=NAME,…`), the last one given.
#[must_use]
pub fn name_of(argv: &[String]) -> Option<String> {
    flags(argv)
        .iter()
        .filter(|flag| flag.name == "name")
        .flat_map(|flag| pairs(flag.value.unwrap_or(""), "guest"))
        .rfind(|(key, _)| key == "guest")
        .map(|(_, value)| value)
}

/// What the command line has the guest executed by; `None` if it leaves that to QEMU, or names
/// several to be tried.
#[must_use]
pub fn accelerator_of(argv: &[String]) -> Option<Accelerator> {
    let mut asked: Vec<String> = Vec::new();
    for flag in flags(argv) {
        let implied = match flag.name {
            "accel" => "accel",
            "machine" | "M" => "type",
            "enable-kvm" => {
                asked.push("kvm".to_owned());
                continue;
            }
            _ => continue,
        };
        let named = pairs(flag.value.unwrap_or(""), implied).into_iter();
        let named = named.filter(|(key, _)| key == "accel");
        asked.extend(
            named.flat_map(|(_, names)| names.split(':').map(str::to_owned).collect::<Vec<_>>()),
        );
    }
    asked.dedup();
    match asked.as_slice() {
        [one] if one == "kvm" => Some(Accelerator::Kvm),
        [one] if one == "tcg" => Some(translator_of(argv)),
        [..] => None,
    }
}

/// How the translator runs the vCPUs, if it is what executes the guest: in one thread if the
/// command line says so or counts instructions, else each in its own.
#[must_use]
pub fn translator_of(argv: &[String]) -> Accelerator {
    let is_single = flags(argv).iter().any(|flag| match flag.name {
        "icount" => true,
        "accel" => pairs(flag.value.unwrap_or(""), "accel")
            .contains(&("thread".to_owned(), "single".to_owned())),
        _ => false,
    });
    if is_single { Accelerator::TcgSingle } else { Accelerator::TcgMulti }
}

/// The machine's UUID (`-uuid`), the last one given.
#[must_use]
pub fn uuid_of(argv: &[String]) -> Option<String> {
    flags(argv).iter().rfind(|flag| flag.name == "uuid")?.value.map(str::to_owned)
}

/// Ids of the iothreads that the command line makes, in its order.
#[must_use]
pub fn iothreads_of(argv: &[String]) -> Vec<String> {
    flags(argv)
        .iter()
        .filter(|flag| flag.name == "object")
        .filter_map(|flag| iothread_id(flag.value?))
        .collect()
}

fn iothread_id(value: &str) -> Option<String> {
    if value.trim_start().starts_with('{') {
        let object: serde_json::Value = serde_json::from_str(value).ok()?;
        let is_iothread = object.get("qom-type")?.as_str()? == "iothread";
        return is_iothread.then(|| object.get("id")?.as_str().map(str::to_owned)).flatten();
    }
    let keys = pairs(value, "qom-type");
    let last = |wanted: &str| keys.iter().rev().find(|(key, _)| key == wanted).map(|pair| &pair.1);
    (last("qom-type")? == "iothread").then(|| last("id").cloned()).flatten()
}

/// `key=value` pairs of an option's value; a first part without `=` belongs to `implied`, a
/// later one is a switch (`key` → `on`).
fn pairs(text: &str, implied: &str) -> Vec<(String, String)> {
    split_commas(text)
        .into_iter()
        .enumerate()
        .filter(|(_, part)| !part.is_empty())
        .map(|(place, part)| match part.split_once('=') {
            Some((key, value)) => (key.to_owned(), value.to_owned()),
            None if place == 0 => (implied.to_owned(), part),
            None => (part, "on".to_owned()),
        })
        .collect()
}

/// Splits at single commas; a doubled comma is one comma of the value.
fn split_commas(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut rest = text.chars().peekable();
    while let Some(letter) = rest.next() {
        if letter == ',' && rest.next_if_eq(&',').is_none() {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(letter);
        }
    }
    parts
}

/// A `-machine` value without its `smp.…` keys, everything else as written.
fn without_smp_keys(value: &str) -> String {
    split_commas(value)
        .into_iter()
        .filter(|part| !part.starts_with("smp."))
        .map(|part| part.replace(',', ",,"))
        .collect::<Vec<_>>()
        .join(",")
}

#[cfg(test)]
mod tests;
