//! Settings of the memory benchmarks, as arguments of `pinload`.
//!
//! These are [`Bandwidth`] by block size, the four loops of STREAM ([`StreamVariant`]), the latency
//! of a single load ([`Chase`]), alone and while other threads copy, and the 64 MB loop of Kuehn
//! and Baum ([`Loop64`]). Each becomes an [`Instrument`], whose figures [`crate::figures`] parses.
//! `pinload` refuses what a CPU or a host does not have (a vector width, a node, enough memory),
//! and the reason is returned as
//! [`BenchmarkError::Failed`](crate::benchmarks::BenchmarkError::Failed).

use pinfold_model::{NodeId, PuId};

use crate::figures::Instrument;

/// Requested page size; the label `pages` of a figure is the page size that was obtained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pages {
    /// The kernel's base pages.
    #[default]
    Small,
    /// Transparent huge pages.
    Huge,
}

/// Where a benchmark runs and where its memory is allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The CPU to run on; `None` for any.
    pub pu: Option<PuId>,
    /// The NUMA node of the memory; `None` for the node of the CPU.
    pub node: Option<NodeId>,
    /// Requested page size.
    pub pages: Pages,
}

/// Number and length of the windows of each figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Number of windows, 30 to 100,000.
    pub count: u32,
    /// Length of a window (µs), 100 to 5,000.
    pub length_us: u32,
}

impl Default for Windows {
    fn default() -> Self {
        Self { count: 200, length_us: 2_000 }
    }
}

impl Windows {
    fn duration_ns(self, figures: u64) -> u64 {
        // Up to four times as many windows may pass before enough are kept.
        figures.saturating_mul(u64::from(self.count) * u64::from(self.length_us) * 4_000)
    }
}

/// Sizes of a sweep (bytes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The smallest (bytes).
    pub from: u64,
    /// The largest (bytes).
    pub to: u64,
    /// Number of sizes per doubling, 1 to 8: with 2, 16 KiB is followed by 24 KiB.
    pub steps: u32,
}

impl Sizes {
    /// A single size.
    pub fn one(bytes: u64) -> Self {
        Self { from: bytes, to: bytes, steps: 1 }
    }

    pub(crate) fn count(self) -> u64 {
        let doublings = (self.to / self.from.max(1)).max(1).ilog2() + 1;
        u64::from(doublings) * u64::from(self.steps)
    }

    fn words(self) -> [(&'static str, String); 3] {
        [
            ("--from", self.from.to_string()),
            ("--to", self.to.to_string()),
            ("--steps", self.steps.to_string()),
        ]
    }
}

/// Width of the vectors that access memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Width {
    /// The widest that the CPU supports.
    #[default]
    Auto,
    /// 64-bit words.
    Scalar,
    /// 128 bits, as Kuehn and Baum: SSE2, NEON.
    Bits128,
    /// x86-64, 256 bits.
    Avx2,
    /// x86-64, 512 bits.
    Avx512,
    /// Arm, 128 bits.
    Neon,
    /// RISC-V, of the CPU's vector length.
    Rvv,
}

impl Width {
    /// Name on the command line and in the label `width`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Width::Auto => "auto",
            Width::Scalar => "scalar",
            Width::Bits128 => "128",
            Width::Avx2 => "avx2",
            Width::Avx512 => "avx512",
            Width::Neon => "neon",
            Width::Rvv => "rvv",
        }
    }
}

/// What a benchmark does with a block of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Loads each word.
    Read,
    /// Stores each word.
    Write,
    /// Copies one half to the other.
    Copy,
    /// Stores that bypass the caches (non-temporal).
    WriteNonTemporal,
    /// Copies with non-temporal stores.
    CopyNonTemporal,
    /// Loads one 32-bit word of each 16 or 32 bytes: `rd` of lmbench.
    ReadPartial,
    /// Stores one 32-bit word of each 16 or 32 bytes: `wr`.
    WritePartial,
    /// Loads and stores one 32-bit word of each 16 or 32 bytes: `rdwr`.
    ModifyPartial,
    /// Copies one 32-bit word of each 16 or 32 bytes: `cp`.
    CopyPartial,
    /// `memset` of the C library: `bzero`.
    Fill,
}

impl Operation {
    /// Name on the command line and in the label `operation`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Operation::Read => "read",
            Operation::Write => "write",
            Operation::Copy => "copy",
            Operation::WriteNonTemporal => "write-nt",
            Operation::CopyNonTemporal => "copy-nt",
            Operation::ReadPartial => "read-partial",
            Operation::WritePartial => "write-partial",
            Operation::ModifyPartial => "modify-partial",
            Operation::CopyPartial => "copy-partial",
            Operation::Fill => "fill",
        }
    }
}

/// Bandwidth by block size: one figure for each size and operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bandwidth {
    /// Block sizes, from 4 KiB.
    pub sizes: Sizes,
    /// Operations, in this order for each size, without duplicates.
    pub operations: Vec<Operation>,
    /// Vector width of the operations that are neither partial nor `fill`.
    pub width: Width,
    /// CPU, node and pages.
    pub place: Place,
    /// Windows of each figure.
    pub windows: Windows,
}

impl Bandwidth {
    /// The `pinload` command with these settings.
    pub fn instrument(&self) -> Instrument {
        let names: Vec<&str> = self.operations.iter().map(|operation| operation.name()).collect();
        let mut words = self.sizes.words().to_vec();
        words.push(("--operations", names.join(",")));
        words.push(("--width", self.width.name().to_owned()));
        let figures = self.sizes.count() * self.operations.len() as u64;
        instrument("bandwidth", words, self.place, self.windows, figures)
    }
}

/// Copy, scale, add and triad, with normal and with non-temporal stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamVariant {
    /// Size of each of the three arrays (MiB); `None` for four times the last-level cache.
    pub array_mib: Option<u32>,
    /// Vector width.
    pub width: Width,
    /// CPU, node and pages.
    pub place: Place,
    /// Windows of each figure.
    pub windows: Windows,
}

impl StreamVariant {
    /// The `pinload` command with these settings.
    pub fn instrument(&self) -> Instrument {
        let mut words = vec![("--width", self.width.name().to_owned())];
        words.extend(self.array_mib.map(|mib| ("--array-mib", mib.to_string())));
        instrument("stream-variant", words, self.place, self.windows, 8)
    }
}

/// Order in which a pointer chase visits its cache lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// One random cycle through all lines.
    Random,
    /// In ascending order.
    Linear,
    /// One figure for each order.
    Both,
}

impl Order {
    fn name(self) -> &'static str {
        match self {
            Order::Random => "random",
            Order::Linear => "linear",
            Order::Both => "both",
        }
    }
}

/// Threads that copy memory during a pointer chase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loads {
    /// Number of threads, 1 to 256.
    pub threads: u32,
    /// Their CPUs; if empty, all except that of the chase.
    pub pus: Vec<PuId>,
    /// The NUMA node of their memory; `None` for the node of their CPUs.
    pub node: Option<NodeId>,
    /// Memory of each thread (MiB).
    pub mib: u32,
    /// Pauses after each 64 KiB (ns), at most 16, without duplicates. For each of them the latency
    /// and the copy bandwidth are measured.
    pub delays_ns: Vec<u64>,
}

/// Pointer chase: latency of a dependent load, by size of the memory area.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chase {
    /// Sizes of the area, from 1 KiB.
    pub sizes: Sizes,
    /// Order of the lines.
    pub order: Order,
    /// Concurrent memory traffic, if any.
    pub loads: Option<Loads>,
    /// CPU, node and pages.
    pub place: Place,
    /// Windows of each figure.
    pub windows: Windows,
}

impl Chase {
    /// The `pinload` command with these settings.
    pub fn instrument(&self) -> Instrument {
        let mut words = self.sizes.words().to_vec();
        words.push(("--order", self.order.name().to_owned()));
        let mut figures = self.sizes.count() * 2;
        if let Some(loads) = &self.loads {
            words.push(("--loads", loads.threads.to_string()));
            words.push(("--load-mib", loads.mib.to_string()));
            words.push(("--delays-ns", list(&loads.delays_ns)));
            if !loads.pus.is_empty() {
                words.push(("--load-cpus", list(loads.pus.iter().map(|pu| pu.0))));
            }
            words.extend(loads.node.map(|node| ("--load-node", node.0.to_string())));
            figures *= loads.delays_ns.len() as u64;
        }
        let mut instrument = instrument("chase", words, self.place, self.windows, figures);
        // All cycles of the sweep together are about twice the last one per step: build, walk and
        // warm-up take some 200 ns per line.
        let lines = self.sizes.to / 64 * u64::from(self.sizes.steps) * 2;
        instrument.duration_ns =
            instrument.duration_ns.saturating_add(lines.saturating_mul(3 * 200 * 2));
        instrument
    }
}

/// A thread that disturbs the 64 MB loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interferer {
    /// Reads, writes or copies.
    pub operation: InterfererOperation,
    /// Its CPU; `None` for one that is not the loop's.
    pub pu: Option<PuId>,
    /// The NUMA node of its memory; `None` for the node of its CPU.
    pub node: Option<NodeId>,
}

/// The operation of an interferer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterfererOperation {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Copies.
    Copy,
}

impl InterfererOperation {
    /// Name on the command line and in the label `interferer`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            InterfererOperation::Read => "read",
            InterfererOperation::Write => "write",
            InterfererOperation::Copy => "copy",
        }
    }
}

/// The 64 MB loop of Kuehn and Baum, without the masking of interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loop64 {
    /// Duration (ns), 10 ms to one day.
    pub duration_ns: u64,
    /// Priority of `SCHED_FIFO` (1 to 99), used for half of the time; `None` for `SCHED_OTHER`.
    pub fifo: Option<u32>,
    /// The interferer; the loop runs alternately without and with it.
    pub interferer: Option<Interferer>,
    /// CPU, node and pages.
    pub place: Place,
}

impl Loop64 {
    /// The `pinload` command with these settings.
    pub fn instrument(&self) -> Instrument {
        let mut words = vec![("--seconds", crate::benchmarks::seconds(self.duration_ns))];
        words.extend(self.fifo.map(|priority| ("--policy", format!("fifo:{priority}"))));
        if let Some(interferer) = &self.interferer {
            words.push(("--interferer", interferer.operation.name().to_owned()));
            words.extend(interferer.pu.map(|pu| ("--interferer-cpu", pu.0.to_string())));
            words.extend(interferer.node.map(|node| ("--interferer-node", node.0.to_string())));
        }
        words.extend(place_words(self.place));
        Instrument {
            command: "loop64",
            arguments: flat(words),
            duration_ns: self.duration_ns.saturating_mul(2),
        }
    }
}

type Word = (&'static str, String);

fn instrument(
    command: &'static str,
    mut words: Vec<Word>,
    place: Place,
    windows: Windows,
    figures: u64,
) -> Instrument {
    words.extend(place_words(place));
    words.push(("--windows", windows.count.to_string()));
    words.push(("--window-us", windows.length_us.to_string()));
    Instrument { command, arguments: flat(words), duration_ns: windows.duration_ns(figures) }
}

fn place_words(place: Place) -> Vec<Word> {
    let pages = match place.pages {
        Pages::Small => "4k",
        Pages::Huge => "huge",
    };
    let mut words = vec![("--pages", pages.to_owned())];
    words.extend(place.pu.map(|pu| ("--cpu", pu.0.to_string())));
    words.extend(place.node.map(|node| ("--node", node.0.to_string())));
    words
}

fn flat(words: Vec<Word>) -> Vec<String> {
    words.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
}

fn list<T: ToString>(values: impl IntoIterator<Item = T>) -> String {
    values.into_iter().map(|value| value.to_string()).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(instrument: &Instrument, expected: &str) {
        let words = [instrument.command.to_owned()].into_iter().chain(instrument.arguments.clone());
        assert_eq!(words.collect::<Vec<_>>().join(" "), expected);
        assert!(instrument.duration_ns > 0);
    }

    #[test]
    fn settings_become_arguments() {
        let place = Place { pu: Some(PuId(3)), node: Some(NodeId(1)), pages: Pages::Huge };
        let windows = Windows { count: 30, length_us: 100 };
        let sizes = Sizes { from: 4096, to: 65_536, steps: 2 };
        check(
            &Bandwidth {
                sizes,
                operations: vec![Operation::Read, Operation::CopyNonTemporal],
                width: Width::Bits128,
                place,
                windows,
            }
            .instrument(),
            "bandwidth --from 4096 --to 65536 --steps 2 --operations read,copy-nt --width 128 \
             --pages huge --cpu 3 --node 1 --windows 30 --window-us 100",
        );
        check(
            &StreamVariant { array_mib: Some(2), ..StreamVariant::default() }.instrument(),
            "stream-variant --width auto --array-mib 2 --pages 4k --windows 200 --window-us 2000",
        );
        let loads = Loads {
            threads: 2,
            pus: vec![PuId(0), PuId(2)],
            node: Some(NodeId(0)),
            mib: 4,
            delays_ns: vec![0, 500],
        };
        let mut chase = Chase {
            sizes: Sizes::one(1 << 20),
            order: Order::Both,
            loads: None,
            place: Place::default(),
            windows,
        };
        check(
            &chase.instrument(),
            "chase --from 1048576 --to 1048576 --steps 1 --order both --pages 4k --windows 30 \
             --window-us 100",
        );
        chase.loads = Some(loads);
        check(
            &chase.instrument(),
            "chase --from 1048576 --to 1048576 --steps 1 --order both --loads 2 --load-mib 4 \
             --delays-ns 0,500 --load-cpus 0,2 --load-node 0 --pages 4k --windows 30 \
             --window-us 100",
        );
    }

    #[test]
    fn settings_of_the_64_mb_loop_become_arguments() {
        let interferer = Interferer {
            operation: InterfererOperation::Write,
            pu: Some(PuId(1)),
            node: Some(NodeId(0)),
        };
        check(
            &Loop64 {
                duration_ns: 1_500_000_000,
                fifo: Some(10),
                interferer: Some(interferer),
                place: Place::default(),
            }
            .instrument(),
            "loop64 --seconds 1.500000000 --policy fifo:10 --interferer write --interferer-cpu 1 \
             --interferer-node 0 --pages 4k",
        );
    }

    #[test]
    fn sizes_are_counted() {
        assert_eq!(Sizes::one(4096).count(), 1);
        assert_eq!(Sizes { from: 4096, to: 1 << 30, steps: 2 }.count(), 38);
        assert_eq!(Sizes { from: 0, to: 0, steps: 1 }.count(), 1);
    }
}
