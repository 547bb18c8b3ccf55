//! A parsed QEMU command line: which arguments are QEMU's, and how they define the machine.
//!
//! ```text
//! sudo -u vm numactl -m 0   qemu-system-x86_64   -smp 4 -m 4G …
//! └─ wrapper ────────────┘  └─ program ───────┘  └─ options ─┘
//! ```
//! Only options after the program are QEMU's: `-m 0` above is numactl's. [`crate::parse`]
//! parses the text; options in a `-readconfig` file are not included.

use std::collections::{BTreeMap, BTreeSet};

use pinfold_model::{Accelerator, CellSpec, CpuSet, MachineSpec, NodeId, PuId};

/// One option of a QEMU command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QemuOption {
    /// Its name without dashes; empty for a disk image, which QEMU takes without an option.
    pub name: String,
    /// Its arguments as written: `["-smp", "4"]`.
    pub words: Vec<String>,
    /// The `key=value` pairs of its value, with the implied key spelled out: `cpus` = `4`.
    pub keys: Vec<(String, String)>,
}

impl QemuOption {
    /// Its value as written.
    pub fn value(&self) -> Option<&str> {
        self.words.get(1).map(String::as_str)
    }

    /// The last value of a key.
    #[must_use]
    pub fn key(&self, wanted: &str) -> Option<&str> {
        self.keys.iter().rev().find(|(key, _)| key == wanted).map(|(_, value)| value.as_str())
    }

    /// Host nodes of a memory backend; empty if the kernel chooses.
    fn host_nodes(&self) -> Vec<NodeId> {
        self.set("host-nodes").iter().map(|PuId(node)| NodeId(node)).collect()
    }

    /// A set of numbers; QEMU takes one range per occurrence of the key.
    fn set(&self, wanted: &str) -> CpuSet {
        let mut set = CpuSet::new();
        for (_, text) in self.keys.iter().filter(|(key, _)| key == wanted) {
            set.add(&CpuSet::parse_list(text).unwrap_or_default());
        }
        set
    }
}

/// A parsed QEMU command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QemuCommand {
    /// All arguments as given; in `wrapper`, the string of `env -S` is split.
    pub given: Vec<String>,
    /// The arguments before the program: other programs that start it, with their options.
    pub wrapper: Vec<String>,
    /// QEMU's program as written; empty if the command line has none.
    pub program: String,
    /// Its options in order.
    pub options: Vec<QemuOption>,
}

/// The levels of `-smp`; their product is the number of vCPUs.
const LEVELS: [&str; 8] =
    ["drawers", "books", "sockets", "dies", "clusters", "modules", "cores", "threads"];

impl QemuCommand {
    /// The machine that it describes.
    pub fn machine_spec(&self) -> MachineSpec {
        MachineSpec {
            name: self.name().map(str::to_owned),
            vcpus: self.vcpus(),
            max_vcpus: self.max_vcpus(),
            iothreads: self.iothreads(),
            memory_bytes: self.memory_bytes(),
            memory_nodes: self.memory_nodes(),
            has_cells: self.has("numa"),
            cells: self.cells(),
            unread: self.has("readconfig").then_some("the file of -readconfig"),
            accelerator: self.accelerator(),
            without_kvm: self.translator(),
        }
    }

    /// All arguments, as written.
    pub fn words(&self) -> Vec<String> {
        let program = Some(&self.program).filter(|program| !program.is_empty());
        let options = self.options.iter().flat_map(|option| &option.words);
        self.wrapper.iter().chain(program).chain(options).cloned().collect()
    }

    /// The options with this name.
    pub fn all<'c>(&'c self, name: &'c str) -> impl DoubleEndedIterator<Item = &'c QemuOption> {
        self.options.iter().filter(move |option| option.name == name)
    }

    /// True if there is an option with this name.
    pub fn has(&self, name: &str) -> bool {
        self.all(name).next().is_some()
    }

    /// The `-machine` options, also spelled `-M`.
    fn machine(&self) -> impl DoubleEndedIterator<Item = &QemuOption> {
        self.options.iter().filter(|option| matches!(option.name.as_str(), "machine" | "M"))
    }

    /// The machine's name; the last one counts.
    pub fn name(&self) -> Option<&str> {
        self.all("name").rev().find_map(|option| option.key("guest"))
    }

    /// The machine's UUID; the last one counts.
    #[must_use]
    pub fn uuid(&self) -> Option<&str> {
        self.all("uuid").next_back()?.value()
    }

    /// The machine type: the last type of `-machine`.
    pub fn board(&self) -> Option<&str> {
        self.machine().rev().find_map(|option| option.key("type"))
    }

    /// The guest's architecture in QEMU's spelling (`x86_64`); `None` if the program's name does
    /// not contain it (`qemu-kvm`).
    #[must_use]
    pub fn architecture(&self) -> Option<&str> {
        // Distributions add suffixes: `qemu-system-x86_64-spice`, `qemu-system-x86_64.real`.
        let name = self.program.rsplit('/').next()?.strip_prefix("qemu-system-")?;
        let architecture = name.split(['-', '.']).next()?;
        Some(architecture).filter(|architecture| !architecture.is_empty())
    }

    /// The keys of `-smp` and the `smp.` keys of `-machine`, with their values.
    fn smp_keys(&self) -> impl DoubleEndedIterator<Item = (&str, &str)> {
        self.options.iter().flat_map(|option| {
            let prefix = match option.name.as_str() {
                "smp" => Some(""),
                "machine" | "M" => Some("smp."),
                _ => None,
            };
            option
                .keys
                .iter()
                .filter_map(move |(key, value)| Some((key.strip_prefix(prefix?)?, value.as_str())))
        })
    }

    /// The last number of a key of `-smp`, or of `smp.KEY` of `-machine`.
    pub fn smp(&self, wanted: &str) -> Option<u32> {
        self.smp_keys().rev().find_map(
            |(key, value)| {
                if key == wanted { number(value) } else { None }
            },
        )
    }

    /// True if a shell runs a text (`sh -c "qemu-system-x86_64 …"`): the text contains QEMU's
    /// options and does not pass on (`"$@"`) the arguments after it.
    pub fn is_shell_text(&self) -> bool {
        let name = self.program.rsplit('/').next().unwrap_or_default();
        let is_shell = name.chars().rev().take(2).eq(['h', 's']) && name != "ssh";
        let mut options = self.options.iter().take_while(|option| !option.name.is_empty());
        is_shell
            && options.any(|option| {
                option.name.ends_with('c')
                    && !option.value().is_some_and(|text| text.contains("$@"))
            })
    }

    /// The error with which QEMU would refuse the numbers of `-smp`, if any.
    #[must_use]
    pub fn smp_error(&self) -> Option<String> {
        let (key, value) = self.smp_keys().find(|(key, value)| {
            let is_count = LEVELS.contains(key) || ["cpus", "maxcpus"].contains(key);
            is_count && number(value).is_none_or(|number| number == 0)
        })?;
        Some(format!("-smp {key}={value}: must be a positive integer"))
    }

    /// Number of vCPUs at start; `None` if the command line does not give it (QEMU's default,
    /// nearly always 1) or it cannot be parsed. Evaluated as in QEMU: several `-smp` add up to one
    /// set of keys, the last value of a key counts, and without `cpus` the count is `maxcpus`, or
    /// the product of the topology.
    pub fn vcpus(&self) -> Option<u32> {
        if let Some(cpus) = self.smp("cpus").or_else(|| self.smp("maxcpus")) {
            return Some(cpus).filter(|cpus| *cpus > 0);
        }
        if LEVELS.iter().all(|level| self.smp(level).is_none()) {
            return None;
        }
        LEVELS
            .iter()
            .try_fold(1_u32, |product, level| product.checked_mul(self.smp(level).unwrap_or(1)))
    }

    /// Number of vCPUs including those that can be hot-plugged; never less than [`Self::vcpus`].
    pub fn max_vcpus(&self) -> Option<u32> {
        let vcpus = self.vcpus()?;
        Some(self.smp("maxcpus").unwrap_or(vcpus).max(vcpus))
    }

    /// IDs of the iothreads, in command-line order.
    #[must_use]
    pub fn iothreads(&self) -> Vec<String> {
        self.all("object")
            .filter(|object| object.key("qom-type") == Some("iothread"))
            .filter_map(|object| object.key("id").map(str::to_owned))
            .collect()
    }

    /// The machine's memory in bytes (`-m`); `None` if the command line does not give it.
    pub fn memory_bytes(&self) -> Option<u64> {
        self.all("m").rev().find_map(|option| bytes(option.key("size")?, 1 << 20))
    }

    /// The guest's NUMA nodes, in command-line order.
    #[must_use]
    pub fn cells(&self) -> Vec<CellSpec> {
        let nodes = self.all("numa").filter(|option| option.key("type") == Some("node"));
        let mut cells: BTreeMap<u32, CellSpec> = BTreeMap::new();
        for (option, number) in nodes.zip(0_u32..) {
            let id = option.key("nodeid").and_then(|id| id.parse().ok()).unwrap_or(number);
            let backend = option.key("memdev").and_then(|id| self.backend(id));
            let size = backend.and_then(|backend| bytes(backend.key("size")?, 1));
            let own = option.key("mem").and_then(|text| bytes(text, 1 << 20));
            let cell = CellSpec {
                vcpus: option.set("cpus"),
                memory_bytes: size.or(own),
                host_nodes: backend.map(QemuOption::host_nodes).unwrap_or_default(),
            };
            cells.insert(id, cell);
        }
        cells.into_values().collect()
    }

    /// The host nodes to which the command line binds memory.
    pub fn memory_nodes(&self) -> Vec<NodeId> {
        let main = self.machine().rev().find_map(|option| option.key("memory-backend"));
        let main = main.and_then(|id| self.backend(id)).map(QemuOption::host_nodes);
        let cells = self.cells().into_iter().flat_map(|cell| cell.host_nodes);
        let all: BTreeSet<NodeId> = main.into_iter().flatten().chain(cells).collect();
        all.into_iter().collect()
    }

    /// The memory backend with this ID.
    #[must_use]
    pub fn backend(&self, id: &str) -> Option<&QemuOption> {
        self.all("object").find(|object| {
            object.key("id") == Some(id)
                && object.key("qom-type").is_some_and(|kind| kind.starts_with("memory-backend"))
        })
    }

    /// The accelerator that the command line selects; `None` if QEMU chooses, or if there are
    /// several candidates.
    pub fn accelerator(&self) -> Option<Accelerator> {
        let mut asked: Vec<&str> = Vec::new();
        for option in &self.options {
            match option.name.as_str() {
                "enable-kvm" => asked.push("kvm"),
                "accel" | "machine" | "M" => {
                    asked.extend(option.key("accel").into_iter().flat_map(|names| names.split(':')))
                }
                _ => {}
            }
        }
        asked.dedup();
        match asked.as_slice() {
            ["kvm"] => Some(Accelerator::Kvm),
            ["tcg"] => Some(self.translator()),
            [..] => None,
        }
    }

    /// The thread mode of TCG, if TCG executes the guest: one thread for all vCPUs if the command
    /// line says so or counts instructions, else one thread per vCPU.
    pub fn translator(&self) -> Accelerator {
        let is_single = self.has("icount")
            || self.all("accel").any(|option| option.key("thread") == Some("single"));
        if is_single { Accelerator::TcgSingle } else { Accelerator::TcgMulti }
    }
}

/// Parses a number as QEMU does: decimal, `0x` hexadecimal, or octal after a leading 0.
fn number(text: &str) -> Option<u32> {
    let (digits, radix) = match (text.strip_prefix("0x").or(text.strip_prefix("0X")), text) {
        (Some(digits), _) => (digits, 16),
        (None, octal) if octal.len() > 1 && octal.starts_with('0') => (octal, 8),
        (None, decimal) => (decimal, 10),
    };
    u32::from_str_radix(digits, radix).ok()
}

/// Parses a size as QEMU does: a number with `B`, `K`, `M`, `G`, `T`, `P` or `E`, else in `unit`;
/// `None` if it is not a whole number of bytes.
fn bytes(text: &str, unit: u64) -> Option<u64> {
    let (digits, factor) = match text.char_indices().next_back() {
        Some((at, suffix)) if suffix.is_ascii_alphabetic() => {
            let power = "BKMGTPE".find(suffix.to_ascii_uppercase())?;
            (&text[..at], 1_u64 << (10 * power))
        }
        _ => (text, unit),
    };
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    let whole = whole.parse::<u64>().ok()?.checked_mul(factor)?;
    if part.is_empty() {
        return Some(whole);
    }
    let places = u32::try_from(part.len()).ok()?;
    let part = part.parse::<u64>().ok()?.checked_mul(factor)?;
    let divisor = 10_u64.checked_pow(places)?;
    part.is_multiple_of(divisor).then(|| whole.checked_add(part / divisor))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_qemu_reads_them() {
        check("4", Some(4));
        check("0", Some(0));
        check("0x10", Some(16));
        check("010", Some(8));
        check("09", None);
        check("4.5", None);
        check("abc", None);
        check("", None);
    }

    fn check(text: &str, expected: Option<u32>) {
        assert_eq!(number(text), expected, "{text}")
    }

    #[test]
    fn sizes_are_read_as_qemu_reads_them() {
        fn check(text: &str, expected: Option<u64>) {
            assert_eq!(bytes(text, 1 << 20), expected, "{text}");
        }

        check("64", Some(64 << 20));
        check("64M", Some(64 << 20));
        check("1.5g", Some(3 << 29));
        check("4096B", Some(4096));
        check("2T", Some(2 << 40));
        check("1.3G", None);
        check("99999999999T", None);
        check("much", None);
        check("", None);
    }
}
