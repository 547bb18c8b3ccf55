//! Resolves addresses of a process to file, symbol and offset.
//!
//! The mappings give the file that contains an address, the file's ELF symbol table gives the
//! symbol. A stripped program has only its exported symbols, if any, so its internal functions have
//! no names, unless its debug symbols are installed: a file that its build id names.
//! [`Symbols::table`] reports which symbols a file has.

use std::collections::BTreeMap;

use object::{Object as _, ObjectSegment as _, ObjectSymbol as _, SymbolKind};
use pinfold_host::{Host, HostError, maps, paths};
use pinfold_model::Tid;

/// Which symbols a file has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Table {
    /// The full symbol table (`.symtab`).
    Whole,
    /// Only the exported symbols (`.dynsym`): the file was stripped.
    DynamicOnly,
    /// None, for this reason.
    Absent(String),
}

/// The location of an address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CodeLocation {
    /// Path of the file.
    pub file: String,
    /// The symbol that contains the address, and the offset in it.
    pub symbol: Option<(String, u64)>,
    /// The address in the file's own address space, for `addr2line`.
    pub in_file: u64,
}

impl std::fmt::Display for CodeLocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = self.file.rsplit('/').next().unwrap_or(&self.file);
        match &self.symbol {
            Some((symbol, 0)) => f.write_str(symbol),
            Some((symbol, distance)) => write!(f, "{symbol}+{distance:#x}"),
            None => write!(f, "{name}+{:#x}", self.in_file),
        }
    }
}

#[derive(Clone, Debug)]
struct Segment {
    offset: u64,
    file_bytes: u64,
    address: u64,
    bytes: u64,
}

#[derive(Clone, Debug)]
struct File {
    table: Table,
    segments: Vec<Segment>,
    /// Address, size and name, by ascending address.
    symbols: Vec<(u64, u64, String)>,
    /// In hexadecimal digits; empty without one.
    build_id: String,
}

/// The mappings of one process, and the symbol tables of its files, which are read on demand.
#[derive(Clone, Debug)]
pub struct Symbols {
    mappings: Vec<maps::Mapping>,
    files: BTreeMap<String, File>,
    /// Why the files cannot be read, if that is so.
    elsewhere: Option<String>,
}

impl Symbols {
    /// Reads the mappings of a process now, because it may end later.
    ///
    /// # Errors
    /// [`HostError`] if they cannot be read.
    pub fn read(host: &dyn Host, process: Tid) -> Result<Self, HostError> {
        let path = paths::process_maps(process);
        let mappings = maps::parse(&host.read_text(&path)?).map_err(|error| error.at(&path))?;
        let own = host.link(&paths::process_mount_namespace(pinfold_host::process::own_pid()))?;
        let its = host.link(&paths::process_mount_namespace(process))?;
        let root = host.link(&paths::process_root(process))?;
        let elsewhere = (own != its || root != "/")
            .then(|| "the process sees other files than this program".to_owned());
        Ok(Self { mappings, files: BTreeMap::new(), elsewhere })
    }

    /// Adds the mappings of a later moment to the known ones.
    pub fn refresh(&mut self, later: Symbols) {
        for mapping in later.mappings {
            if !self.mappings.contains(&mapping) {
                self.mappings.push(mapping);
            }
        }
    }

    /// True if the address is in executable memory.
    pub fn is_code(&self, address: u64) -> bool {
        self.mappings.iter().any(|one| one.executable && one.start <= address && address < one.end)
    }

    /// The file that contains the address.
    #[must_use]
    pub fn file_of(&self, address: u64) -> Option<&str> {
        self.mapping(address)?.file.as_deref()
    }

    fn mapping(&self, address: u64) -> Option<&maps::Mapping> {
        self.mappings.iter().find(|one| one.start <= address && address < one.end)
    }

    /// The location of an address; `None` if it is in no file.
    pub fn place(&mut self, host: &dyn Host, address: u64) -> Option<CodeLocation> {
        let mapping = self.mapping(address)?;
        // An anonymous mapping after a file's data is its `.bss`.
        let of = match &mapping.file {
            Some(_) => mapping.clone(),
            None => {
                let before = self.mappings.iter().filter(|one| one.end <= address);
                let nearest = before.filter(|one| one.file.is_some()).max_by_key(|one| one.end)?;
                nearest.clone()
            }
        };
        let name = of.file.clone()?;
        let is_in_file = mapping.file.is_some();
        let file = self.file(host, &name);
        let in_file = file.address_of(&of, address);
        match in_file {
            Some(in_file) => {
                Some(CodeLocation { symbol: file.symbol(in_file), in_file, file: name })
            }
            None if is_in_file => {
                let in_file = address - of.start + of.offset;
                Some(CodeLocation { file: name, symbol: None, in_file })
            }
            None => None,
        }
    }

    /// Which symbols a file has.
    pub fn table(&mut self, host: &dyn Host, file: &str) -> Table {
        self.file(host, file).table.clone()
    }

    /// The build id of a file in hexadecimal digits, which names its debug symbols; empty without
    /// one.
    pub fn build_id(&mut self, host: &dyn Host, file: &str) -> &str {
        &self.file(host, file).build_id
    }

    fn file(&mut self, host: &dyn Host, name: &str) -> &File {
        let elsewhere = &self.elsewhere;
        self.files.entry(name.to_owned()).or_insert_with(|| match elsewhere {
            Some(why) => File::absent(why),
            None if name.ends_with(" (deleted)") => File::absent("the file was deleted"),
            None => match host.read(name) {
                Ok(bytes) => File::parse(&bytes).with_debug_symbols(host),
                Err(error) => File::absent(&error.to_string()),
            },
        })
    }
}

/// The file with the debug symbols of a program with this build id (hexadecimal digits, at least
/// three), where distributions install it.
pub(crate) fn debug_file(build_id: &str) -> String {
    let (folder, file) = build_id.split_at(2);
    format!("/usr/lib/debug/.build-id/{folder}/{file}.debug")
}

impl File {
    fn absent(why: &str) -> Self {
        let table = Table::Absent(why.to_owned());
        Self { table, segments: Vec::new(), symbols: Vec::new(), build_id: String::new() }
    }

    /// With the symbols of its debug file, if it was stripped and that file is installed.
    fn with_debug_symbols(self, host: &dyn Host) -> Self {
        if self.table == Table::Whole || self.build_id.len() < 3 {
            return self;
        }
        match host.read(&debug_file(&self.build_id)) {
            Ok(bytes) => self.with_debug_file(&bytes),
            Err(_) => self,
        }
    }

    fn with_debug_file(self, bytes: &[u8]) -> Self {
        let debug = Self::parse(bytes);
        match debug.table {
            // Its segments have no bytes in the file.
            Table::Whole => Self { table: Table::Whole, symbols: debug.symbols, ..self },
            Table::DynamicOnly | Table::Absent(_) => self,
        }
    }

    fn parse(bytes: &[u8]) -> Self {
        let file = match object::File::parse(bytes) {
            Ok(file) => file,
            Err(error) => return Self::absent(&format!("it is not an ELF file: {error}")),
        };
        let segments = file.segments().map(|segment| {
            let (offset, file_bytes) = segment.file_range();
            Segment { offset, file_bytes, address: segment.address(), bytes: segment.size() }
        });
        let whole = name_symbols(file.symbols());
        let (table, mut symbols) = if whole.is_empty() {
            let offered = name_symbols(file.dynamic_symbols());
            let table = if offered.is_empty() {
                Table::Absent("it has no symbols".to_owned())
            } else {
                Table::DynamicOnly
            };
            (table, offered)
        } else {
            (Table::Whole, whole)
        };
        symbols.sort();
        let build_id = file.build_id().ok().flatten().unwrap_or(&[]);
        let build_id = build_id.iter().map(|byte| format!("{byte:02x}")).collect();
        Self { table, segments: segments.collect(), symbols, build_id }
    }

    /// Translates an address in the process to the file's address space, with one of the file's
    /// mappings.
    fn address_of(&self, mapping: &maps::Mapping, address: u64) -> Option<u64> {
        // A mapping starts at the page in which its segment starts; the previous segment may end in
        // that page.
        let segment = self
            .segments
            .iter()
            .filter(|one| {
                page(one) <= mapping.offset
                    && mapping.offset < one.offset.saturating_add(one.file_bytes)
            })
            .max_by_key(page)?;
        let first = segment.address.wrapping_add(mapping.offset).wrapping_sub(segment.offset);
        let in_file = address.wrapping_sub(mapping.start).wrapping_add(first);
        self.segments
            .iter()
            .any(|one: &Segment| one.address <= in_file && in_file - one.address < one.bytes)
            .then_some(in_file)
    }

    fn symbol(&self, in_file: u64) -> Option<(String, u64)> {
        let behind = self.symbols.partition_point(|(address, _, _)| *address <= in_file);
        // Aliases share an address; the last symbol that covers the address is taken.
        let candidates = self.symbols[..behind].iter().rev().take(8);
        candidates
            .into_iter()
            .find(|(address, size, _)| in_file < address.saturating_add(*size))
            .map(|(address, _, name)| (name.clone(), in_file - address))
    }
}

fn name_symbols(symbols: object::SymbolIterator<'_, '_>) -> Vec<(u64, u64, String)> {
    symbols
        .filter(|symbol| {
            symbol.is_definition()
                && matches!(
                    symbol.kind(),
                    SymbolKind::Text | SymbolKind::Data | SymbolKind::Unknown
                )
        })
        .filter_map(|one| Some((one.address(), one.size(), one.name().ok()?.to_owned())))
        .filter(|(address, _, name)| *address > 0 && !name.is_empty())
        .collect()
}

fn page(segment: &&Segment) -> u64 {
    segment.offset - segment.offset % 4096
}

#[cfg(test)]
mod tests {
    use pinfold_host::{LiveHost, files};

    use super::*;

    #[test]
    fn a_function_of_this_program_has_its_name() {
        let host = LiveHost::new().unwrap();
        let mut symbols = Symbols::read(&host, pinfold_host::process::own_pid()).unwrap();
        let address = a_function_of_this_program_has_its_name as fn() as usize as u64;
        assert!(symbols.is_code(address));
        let place = symbols.place(&host, address + 1).unwrap();
        let file = place.file.clone();
        assert_eq!(symbols.file_of(address), Some(file.as_str()));
        assert_eq!(symbols.table(&host, &file), Table::Whole);
        let (name, distance) = place.symbol.clone().unwrap();
        assert!(name.contains("a_function_of_this_program_has_its_name"), "{name}");
        assert_eq!((distance, place.to_string()), (1, format!("{name}+0x1")));
    }

    #[test]
    fn addresses_without_a_file_and_files_that_are_none() {
        let host = LiveHost::new().unwrap();
        let mut symbols = Symbols::read(&host, pinfold_host::process::own_pid()).unwrap();
        let on_the_stack = 0_u8;
        assert_eq!(symbols.place(&host, (&raw const on_the_stack) as usize as u64), None);
        assert_eq!(symbols.place(&host, 1), None);
        let no_file = symbols.table(&host, "/a/b/c (deleted)");
        assert_eq!(no_file, Table::Absent("the file was deleted".to_owned()));
        let Table::Absent(why) = symbols.table(&host, "/etc/hostname-that-is-not-there") else {
            panic!("there is one");
        };
        assert!(why.contains("cannot read /etc/hostname-that-is-not-there"), "{why}");
        let Table::Absent(why) = File::parse(b"#!/bin/true\n").table else { panic!("an ELF file") };
        assert!(why.starts_with("it is not an ELF file"), "{why}");
    }

    /// A program, stripped, with its debug symbols in the file that its build id names.
    #[test]
    fn a_stripped_program_has_the_names_of_its_debug_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let [source, program, debug] = ["lock.c", "lock", "lock.debug"].map(path);
        let text = b"static int hidden_lock[4];\nint main(int n, char **v)\n{ (void)v; \
            hidden_lock[n & 3]++; return hidden_lock[1]; }\n";
        files::write_atomic(&source, text).unwrap();
        run("cc", &["-g", "-O0", "-Wl,--build-id", "-o", &program, &source]);
        run("objcopy", &["--only-keep-debug", &program, &debug]);
        run("objcopy", &["--strip-all", &program]);
        let [stripped, symbols] = [&program, &debug].map(|path| files::read(path).unwrap());
        let file = File::parse(&stripped);
        assert_ne!(file.table, Table::Whole);
        assert!(file.symbols.iter().all(|(_, _, name)| name != "hidden_lock"));
        assert!(file.build_id.len() >= 16, "{:?}", file.build_id);
        assert_eq!(
            debug_file("72f7488c"),
            "/usr/lib/debug/.build-id/72/f7488c.debug",
            "as gdb and debuginfod name it"
        );
        let named = file.with_debug_file(&symbols);
        assert_eq!(named.table, Table::Whole);
        let (address, ..) =
            named.symbols.iter().find(|(_, _, name)| name == "hidden_lock").unwrap().clone();
        assert_eq!(named.symbol(address + 4), Some(("hidden_lock".to_owned(), 4)));
    }

    fn run(command: &str, words: &[&str]) {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        let ran = pinfold_host::process::capture(command, &words, 60_000_000_000).unwrap();
        assert!(ran.status.success(), "{command}: {}", String::from_utf8_lossy(&ran.stderr));
    }

    #[test]
    fn an_address_in_a_file_is_found_by_its_mapping() {
        let file = File {
            table: Table::Whole,
            // The first segment ends in the page in which the second one starts.
            segments: vec![
                Segment { offset: 0, file_bytes: 0x1e00, address: 0, bytes: 0x1e00 },
                Segment { offset: 0x1f00, file_bytes: 0x200, address: 0x2f00, bytes: 0x900 },
            ],
            symbols: vec![
                (0x100, 0x10, "first".to_owned()),
                (0x3000, 8, "data".to_owned()),
                (0x3400, 8, "zero".to_owned()),
            ],
            build_id: String::new(),
        };
        let at = |offset, address| {
            let in_file = file.address_of(
                &maps::Mapping {
                    start: 0x7000_0000,
                    end: 0x7000_2000,
                    executable: false,
                    offset,
                    file: Some("/x".to_owned()),
                },
                address,
            )?;
            Some((in_file, file.symbol(in_file)))
        };
        assert_eq!(at(0, 0x7000_0104), Some((0x104, Some(("first".to_owned(), 4)))));
        assert_eq!(at(0, 0x7000_0110), Some((0x110, None)));
        // The mapping of the second segment starts at its page: 0x1000 in the file, 0x2000 in its
        // address space.
        assert_eq!(at(0x1000, 0x7000_1004), Some((0x3004, Some(("data".to_owned(), 4)))));
        // After the bytes from the file, in the zero-initialised part.
        assert_eq!(at(0x1000, 0x7000_1400), Some((0x3400, Some(("zero".to_owned(), 0)))));
        assert_eq!(at(0x1000, 0x7000_9000), None);
        assert_eq!(at(0x9000, 0x7000_0000), None);
    }
}
