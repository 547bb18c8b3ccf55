//! QEMU command lines: parsing them, and rebuilding them with another topology.
//!
//! QEMU's options begin after QEMU's program; the arguments before it belong to a wrapper (`numactl
//! -m 0`, `sudo -S`, `env -S "…"`), see `wrappers`. An option is an argument that begins with `-`
//! (or `--`, QEMU accepts both). All options take one value except those of a fixed list
//! (`qemu-options.hx`, those without `HAS_ARG`). The parser uses that list, so that `-append "-S"`
//! is not mistaken for `-S`. Values are `key=value,key=value`, where a comma inside a value is
//! doubled (`,,`) and the first key may be implied; some options also accept JSON.
//!
//! Options in a `-readconfig` file are not seen.

use pinfold_model::GuestTopology;

use crate::command::{QemuCommand, QemuOption};
use crate::wrappers;

/// Options without a value, of all QEMU versions since 2.0; removed ones do no harm.
const WITHOUT_VALUE: [&str; 50] = [
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
    "perfmap",
    "jitdump",
    "localtime",
];

/// True if the service manager would start QEMU (`systemd-run` without `--scope`). QEMU is then no
/// child of the process that runs the command line, and does not end with it.
#[must_use]
pub fn is_handed_over(command: &QemuCommand) -> bool {
    wrappers::hands_over(&command.wrapper)
}

/// The implied key of a value's first part without `=`, by option.
const IMPLIED: [(&str, &str); 12] = [
    ("smp", "cpus"),
    ("machine", "type"),
    ("M", "type"),
    ("m", "size"),
    ("name", "guest"),
    ("accel", "accel"),
    ("object", "qom-type"),
    ("numa", "type"),
    ("cpu", "model"),
    ("device", "driver"),
    ("netdev", "type"),
    ("drive", "file"),
];

/// Splits a command line into the wrapper, QEMU's program and its options.
///
/// The program is the first argument that is neither a known wrapper (`sudo`, `numactl`, `env`, …)
/// nor one of its arguments. If that program has another name than QEMU, QEMU's name is searched
/// among the remaining arguments. If none of them is QEMU, the program is assumed to be a script
/// that passes its arguments on.
///
/// ```
/// let words = "qemu-system-x86_64 -accel kvm -smp 4 -m 2G -name web";
/// let argv: Vec<String> = words.split(' ').map(str::to_owned).collect();
/// let command = pinfold_qemu::parse(&argv);
/// assert_eq!((command.vcpus(), command.name()), (Some(4), Some("web")));
/// assert_eq!(command.memory_bytes(), Some(2 << 30));
/// ```
pub fn parse(argv: &[String]) -> QemuCommand {
    let mut words = argv.to_vec();
    let at = wrappers::program_at(&mut words);
    let options = words.split_off((at + 1).min(words.len()));
    let program = if at < words.len() { words.pop() } else { None };
    QemuCommand {
        given: argv.to_vec(),
        wrapper: words,
        program: program.unwrap_or_default(),
        options: read(options),
    }
}

fn read(words: Vec<String>) -> Vec<QemuOption> {
    let mut options = Vec::new();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let name = word.strip_prefix("--").or_else(|| word.strip_prefix('-')).unwrap_or("");
        let name = name.to_owned();
        let takes_value = !name.is_empty() && !WITHOUT_VALUE.contains(&name.as_str());
        let value = if takes_value { words.next() } else { None };
        let implied = IMPLIED.iter().find(|(option, _)| *option == name);
        let keys = value.as_deref().map(|value| pairs(value, implied.map_or("", |pair| pair.1)));
        let words = [Some(word), value].into_iter().flatten().collect();
        options.push(QemuOption { name, words, keys: keys.unwrap_or_default() });
    }
    options
}

/// Replaces the guest topology by that of a plan: one `-smp` replaces every `-smp` (and the `smp.…`
/// keys of `-machine`). The number for hotplug (`maxcpus`) is removed too, because a topology
/// describes exactly its vCPUs.
pub fn set_smp(command: &QemuCommand, guest: &GuestTopology) -> Vec<String> {
    let wanted = format!(
        "{},sockets={},cores={},threads={}",
        guest.vcpus(),
        guest.sockets,
        guest.cores,
        guest.threads
    );
    let smp = QemuOption {
        name: "smp".to_owned(),
        keys: pairs(&wanted, "cpus"),
        words: vec!["-smp".to_owned(), wanted],
    };
    let mut command = without_machine_smp(command.clone());
    let first = command.options.iter().position(|option| option.name == "smp");
    let place = first.unwrap_or(command.options.len());
    command.options.retain(|option| option.name != "smp");
    command.options.insert(place, smp);
    command.words()
}

/// Removes the `smp.…` keys of `-machine`; everything else stays as written.
pub fn without_machine_smp(mut command: QemuCommand) -> QemuCommand {
    let machines = command.options.iter_mut();
    for option in machines.filter(|option| matches!(option.name.as_str(), "machine" | "M")) {
        option.keys.retain(|(key, _)| !key.starts_with("smp."));
        if let Some(value) = option.words.get_mut(1) {
            *value = without_smp_keys(value);
        }
    }
    command
}

/// `key=value` pairs of an option's value. A first part without `=` gets the key `implied`, a later
/// one is a switch (`key` → `on`).
fn pairs(text: &str, implied: &str) -> Vec<(String, String)> {
    if text.trim_start().starts_with('{') {
        return members(text);
    }
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

/// The members of a JSON object; a list gives one pair for each element.
fn members(text: &str) -> Vec<(String, String)> {
    let Ok(serde_json::Value::Object(object)) = serde_json::from_str(text) else {
        return Vec::new();
    };
    object
        .iter()
        .flat_map(|(key, value)| {
            let elements = value.as_array().cloned().unwrap_or_else(|| vec![value.clone()]);
            elements
                .iter()
                .map(|element| {
                    (
                        key.clone(),
                        element.as_str().map_or_else(|| element.to_string(), str::to_owned),
                    )
                })
                .collect::<Vec<_>>()
        })
        .collect()
}

/// Splits at single commas; a doubled comma stands for one comma in the value.
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

/// A `-machine` value without its `smp.…` keys; everything else as written.
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
