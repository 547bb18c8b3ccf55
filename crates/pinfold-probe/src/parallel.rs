//! Parallel programs with T_full and T_roi: `pinload parallel`.
//!
//! [`Parallel`] holds the settings of one run. The run gives two figures, `part` = `full` and `roi`
//! (ns), which [`Run::read`] combines. [`Catalogue`] is the output of `pinload parallel --list`:
//! the programs with their sizes and valid numbers of threads. The caller leaves out invalid
//! numbers of threads and never rounds them. `docs/programs.md` describes the programs.

use pinfold_host::process::capture;
use pinfold_model::{Figure, PuId, Unit};
use serde::Deserialize;

use crate::benchmarks::BenchmarkError;
use crate::figures::Instrument;
use crate::pinload::Pinload;

const PROBE: &str = "parallel";
const SECOND: u64 = 1_000_000_000;

/// Size of a program's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Size {
    /// About 0.1 s of one core.
    Small,
    /// About 1 s.
    Medium,
    /// About 10 s.
    Large,
}

impl Size {
    /// All sizes.
    pub const ALL: [Size; 3] = [Size::Small, Size::Medium, Size::Large];

    /// Name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Size::Small => "small",
            Size::Medium => "medium",
            Size::Large => "large",
        }
    }
}

/// CPUs of the threads: thread i runs on the i-th CPU of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Affinity {
    /// At least one CPU for each thread, or `pinload` refuses.
    EachItsOwn(Vec<PuId>),
    /// The list is repeated as often as necessary.
    RoundRobin(Vec<PuId>),
}

/// The settings of one run of a parallel program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parallel {
    /// Name of the program, as in [`Catalogue`].
    pub program: String,
    /// Number of threads.
    pub threads: u32,
    /// Size of the input.
    pub size: Size,
    /// Seed of the input.
    pub seed: u64,
    /// CPUs of the threads; `None` for any.
    pub affinity: Option<Affinity>,
    /// Approximate duration (ns); more under an emulator.
    pub expected_ns: u64,
}

impl Parallel {
    /// Settings with seed 1, no affinity, and a timeout that suffices for a CPU thirty times slower
    /// than a fast one.
    pub fn new(program: &str, threads: u32, size: Size) -> Parallel {
        let expected_ns = match size {
            Size::Small => 3 * SECOND,
            Size::Medium => 30 * SECOND,
            Size::Large => 300 * SECOND,
        };
        Parallel {
            program: program.to_owned(),
            threads,
            size,
            seed: 1,
            affinity: None,
            expected_ns,
        }
    }

    /// The `pinload` command with these settings.
    pub fn instrument(&self) -> Instrument {
        let values = [
            ("--threads", self.threads.to_string()),
            ("--size", self.size.name().to_owned()),
            ("--seed", self.seed.to_string()),
        ];
        let mut arguments = vec![self.program.clone()];
        arguments.extend(values.into_iter().flat_map(|(name, value)| [name.to_owned(), value]));
        if let Some(affinity) = &self.affinity {
            let (Affinity::EachItsOwn(pus) | Affinity::RoundRobin(pus)) = affinity;
            let list: Vec<String> = pus.iter().map(ToString::to_string).collect();
            arguments.extend(["--affinity".to_owned(), list.join(",")]);
            if matches!(affinity, Affinity::RoundRobin(_)) {
                arguments.push("--wrap".to_owned());
            }
        }
        Instrument { command: PROBE, arguments, duration_ns: self.expected_ns }
    }
}

/// Result of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// From the start of `main` to the verified result (ns).
    pub full_ns: u64,
    /// The parallel phase (ns): from the moment that all threads are ready to the end of the last
    /// one.
    pub roi_ns: u64,
    /// Checksum of the result; it depends only on program, size and seed.
    pub checksum: String,
}

impl Run {
    /// Combines the two figures of a run.
    ///
    /// # Errors
    /// [`BenchmarkError::Output`] if they are not those of this run, have different checksums, or
    /// the parallel phase is longer than the whole run.
    pub fn read(settings: &Parallel, figures: &[Figure]) -> Result<Run, BenchmarkError> {
        let ((full_ns, checksum), (roi_ns, other)) =
            (part_of("full", figures, settings)?, part_of("roi", figures, settings)?);
        if checksum != other {
            return Err(wrong(format!("has the checksums {checksum} and {other}")));
        }
        if roi_ns > full_ns {
            return Err(wrong(format!("reports {roi_ns} ns of {full_ns} ns as parallel")));
        }
        Ok(Run { full_ns, roi_ns, checksum })
    }
}

fn part_of(
    name: &str,
    figures: &[Figure],
    settings: &Parallel,
) -> Result<(u64, String), BenchmarkError> {
    let wanted = [
        ("part", name.to_owned()),
        ("program", settings.program.clone()),
        ("threads", settings.threads.to_string()),
        ("size", settings.size.name().to_owned()),
        ("seed", settings.seed.to_string()),
    ];
    let figure = figures
        .iter()
        .find(|figure| {
            figure.probe == PROBE
                && figure.unit == Unit::Nanoseconds
                && wanted.iter().all(|(key, value)| figure.labels.get(*key) == Some(value))
        })
        .ok_or_else(|| wrong(format!("lacks the figure {wanted:?}")))?;
    let checksum = figure.labels.get("checksum").cloned();
    let checksum = checksum.ok_or_else(|| wrong(format!("has no checksum of {name}")))?;
    Ok((figure.duration_ns, checksum))
}

fn wrong(why: String) -> BenchmarkError {
    BenchmarkError::Output { probe: PROBE, why }
}

/// The numbers of threads that a program can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum ThreadRule {
    /// Any from 1 to the maximum of the size.
    #[serde(rename = "any")]
    Any,
    /// Powers of two up to the maximum of the size.
    #[serde(rename = "power of two")]
    PowerOfTwo,
}

/// One size of a program in the catalogue.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ListedSize {
    /// `small`, `medium` or `large`.
    pub name: String,
    /// Maximum number of threads.
    pub most_threads: u32,
    /// Description of the input.
    pub about: String,
}

/// One program in the catalogue.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct CatalogueEntry {
    /// Name of the program.
    pub name: String,
    /// What it computes, and how its threads cooperate.
    pub about: String,
    /// The numbers of threads that it can have.
    pub threads: ThreadRule,
    /// Its sizes.
    pub sizes: Vec<ListedSize>,
}

impl CatalogueEntry {
    /// True if the program can run with this number of threads.
    pub fn allows(&self, threads: u32, size: Size) -> bool {
        let size = self.sizes.iter().find(|listed| listed.name == size.name());
        size.is_some_and(|size| (1..=size.most_threads).contains(&threads))
            && (self.threads == ThreadRule::Any || threads.is_power_of_two())
    }
}

/// All programs of a `pinload`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Catalogue {
    /// The programs, by name.
    pub programs: Vec<CatalogueEntry>,
}

impl Catalogue {
    /// Runs `pinload parallel --list` on the host.
    ///
    /// # Errors
    /// [`BenchmarkError`].
    pub fn from_pinload(pinload: &Pinload) -> Result<Catalogue, BenchmarkError> {
        let output = capture(&pinload.path(), ["parallel", "--list"], 60 * SECOND)?;
        Catalogue::parse(&output.stdout_text())
    }

    /// Parses the output of `pinload parallel --list`.
    ///
    /// # Errors
    /// [`BenchmarkError::Output`].
    pub fn parse(output: &str) -> Result<Catalogue, BenchmarkError> {
        let programs: Vec<CatalogueEntry> = serde_json::from_str(output)
            .map_err(|error| wrong(format!("is not a list of programs: {error}")))?;
        match programs.iter().find(|program| !are_known(&program.sizes)) {
            Some(program) => Err(wrong(format!("lists other sizes of {}", program.name))),
            None => Ok(Catalogue { programs }),
        }
    }

    /// The program with this name.
    pub fn find(&self, name: &str) -> Option<&CatalogueEntry> {
        self.programs.iter().find(|program| program.name == name)
    }
}

fn are_known(sizes: &[ListedSize]) -> bool {
    sizes.iter().map(|size| size.name.as_str()).eq(Size::ALL.map(Size::name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures;

    #[test]
    fn arguments() {
        let mut run = Parallel::new("fft", 4, Size::Medium);
        assert_eq!(argv(&run), "fft --threads 4 --size medium --seed 1");
        run.seed = 7;
        run.affinity = Some(Affinity::EachItsOwn(vec![PuId(4), PuId(0), PuId(5)]));
        assert_eq!(argv(&run), "fft --threads 4 --size medium --seed 7 --affinity 4,0,5");
        run.affinity = Some(Affinity::RoundRobin(vec![PuId(1)]));
        assert_eq!(argv(&run), "fft --threads 4 --size medium --seed 7 --affinity 1 --wrap");
    }

    fn argv(run: &Parallel) -> String {
        run.instrument().arguments.join(" ")
    }

    const ROI: &str = r#"{"probe":"parallel","unit":"ns","family":"capacity","duration_ns":50,"dropped":0,"disturbed":0,"labels":{"part":"roi","program":"fft","size":"small","threads":"2","seed":"1","checksum":"ab"},"flags":[],"samples":[50]}"#;

    fn read(output: &str) -> Result<Run, BenchmarkError> {
        Run::read(&Parallel::new("fft", 2, Size::Small), &figures::parse(PROBE, output)?)
    }

    #[test]
    fn the_two_times_of_a_run_belong_together() {
        let full = ROI.replace("roi", "full").replace("50", "60");
        let good = read(&format!("{full}\n{ROI}")).unwrap();
        assert_eq!(good, Run { full_ns: 60, roi_ns: 50, checksum: "ab".to_owned() });
        let cases = [
            (ROI.to_owned(), "lacks the figure [(\"part\", \"full\")"),
            (format!("{}\n{ROI}", full.replace("fft", "radix")), "lacks the figure"),
            (format!("{}\n{ROI}", full.replace("60", "40")), "50 ns of 40 ns as parallel"),
            (format!("{}\n{ROI}", full.replace("\"ab\"", "\"ac\"")), "checksums ac and ab"),
            (format!("{full}\n{}", ROI.replace("\"seed\":\"1\"", "\"seed\":\"2\"")), "\"roi\""),
        ];
        for (output, expected) in cases {
            let reported = read(&output).unwrap_err().to_string();
            assert!(reported.contains(expected), "{reported}");
        }
    }

    #[test]
    fn numbers_of_threads_are_allowed_or_not() {
        let text = r#"[{"name":"fft","about":"","threads":"power of two","sizes":[
            {"name":"small","most_threads":8,"about":""},{"name":"medium","most_threads":64,"about":""},
            {"name":"large","most_threads":64,"about":""}]}]"#;
        let catalogue = Catalogue::parse(text).unwrap();
        let fft = catalogue.find("fft").unwrap();
        let allowed =
            |size| (0..20).filter(|threads| fft.allows(*threads, size)).collect::<Vec<_>>();
        assert_eq!(allowed(Size::Small), [1, 2, 4, 8]);
        assert_eq!(allowed(Size::Medium), [1, 2, 4, 8, 16]);
        let any = Catalogue::parse(&text.replace("power of two", "any")).unwrap();
        assert!(any.find("fft").unwrap().allows(3, Size::Small));
        assert!(!any.find("fft").unwrap().allows(9, Size::Small));
        for (from, to) in [("power of two", "odd"), ("medium", "middle")] {
            assert!(Catalogue::parse(&text.replace(from, to)).is_err(), "{to}");
        }
    }
}
