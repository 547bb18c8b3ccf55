//! Profiles of machines: the output of `pinload profile`, possibly from another machine.
//!
//! The first line describes the machine, each further line is a figure with the label `kind`:
//!
//! ```text
//! {"format":"pinfold-profile/1","pinload":"0.1.0","compiler":"12.2.0","architecture":"x86_64",
//!  "cpu_model":"AMD EPYC","cores":2,"clock_mhz":2445.4,"clock_source":"tsc",
//!  "caches":"L1d 32K, L2 512K, L3 32768K","simd":"avx2","scores":10}
//! {"probe":"profile","unit":"per-second",…,"labels":{"kind":"integer"},"samples":[53587.7,53126.9]}
//! ```
//!
//! A profile comes from another machine, so each line is checked, and an error names it.

use pinfold_model::escape;
use serde::Deserialize;

use crate::benchmarks::BenchmarkError;
use crate::cpu_speed::SpeedBenchmark;
use crate::figures;

/// The format of the first line.
pub const FORMAT: &str = "pinfold-profile/1";
/// Longest file and text (bytes), most samples of a score, most cores.
const LONGEST: usize = 1 << 16;
const LONGEST_TEXT: usize = 256;
const MOST_SAMPLES: usize = 64;
const MOST_CORES: u32 = 1 << 16;

/// A kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Lists, matrices, state machines and CRC.
    Integer,
    /// Branches that cannot be predicted.
    Branches,
    /// Scalar additions, products, divisions and roots.
    FloatingPoint,
    /// Vectors in the first cache.
    Simd,
    /// Start and end of processes.
    Processes,
    /// Dependent loads from the first cache.
    CacheL1,
    /// Dependent loads from the second cache.
    CacheL2,
    /// Dependent loads from the third cache.
    CacheL3,
    /// Dependent loads from memory.
    MemoryLatency,
    /// Bandwidth of the memory.
    Stream,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 10] = [
        Kind::Integer,
        Kind::Branches,
        Kind::FloatingPoint,
        Kind::Simd,
        Kind::Processes,
        Kind::CacheL1,
        Kind::CacheL2,
        Kind::CacheL3,
        Kind::MemoryLatency,
        Kind::Stream,
    ];

    /// Its name in files and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Integer => "integer",
            Kind::Branches => "branches",
            Kind::FloatingPoint => "floating-point",
            Kind::Simd => "simd",
            Kind::Processes => "processes",
            Kind::CacheL1 => "cache-l1",
            Kind::CacheL2 => "cache-l2",
            Kind::CacheL3 => "cache-l3",
            Kind::MemoryLatency => "memory-latency",
            Kind::Stream => "stream",
        }
    }

    /// The kind of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// True if the memory limits it, and not the CPU.
    #[must_use]
    pub fn is_memory(self) -> bool {
        matches!(self, Kind::MemoryLatency | Kind::Stream)
    }
}

/// The score of a machine in one kind of work.
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    /// The kind.
    pub kind: Kind,
    /// Units of work per second, one value for each repetition; at least two.
    pub per_second: Vec<f64>,
}

/// What a machine does of each kind of work.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// `x86_64`, `aarch64`.
    pub architecture: String,
    /// Name of the processor.
    pub cpu_model: String,
    /// CPUs on which the profile could run.
    pub cores: u32,
    /// Widest vectors of the processor.
    pub simd: String,
    /// Version of the compiler of `pinload`.
    pub compiler: String,
    /// The scores, at least one, each kind once.
    pub scores: Vec<Score>,
}

impl Profile {
    /// The repetitions of one kind.
    #[must_use]
    pub fn per_second(&self, kind: Kind) -> Option<&[f64]> {
        let found = self.scores.iter().find(|score| score.kind == kind);
        found.map(|score| score.per_second.as_slice())
    }
}

/// A profile that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct ProfileError {
    /// Line, from 1.
    pub line: usize,
    /// What is wrong there.
    pub why: String,
}

#[derive(Deserialize)]
struct Machine {
    format: String,
    pinload: String,
    compiler: String,
    architecture: String,
    cpu_model: String,
    cores: u32,
    simd: String,
    scores: usize,
}

/// Only the format, of which later versions may have other keys.
#[derive(Deserialize)]
struct Version {
    format: String,
}

/// Parses a profile.
///
/// # Errors
/// [`ProfileError`]: not a profile, one of another version, cut off, or with impossible values.
pub fn parse(text: &str) -> Result<Profile, ProfileError> {
    if text.len() > LONGEST {
        let why = format!("the file has {} bytes, more than a profile can have", text.len());
        return Err(ProfileError { line: 1, why });
    }
    let mut lines = text.lines().enumerate();
    let (_, first) = lines.next().unwrap_or_default();
    let machine = machine(first).map_err(|why| ProfileError { line: 1, why })?;
    let mut profile = Profile {
        architecture: machine.architecture,
        cpu_model: machine.cpu_model,
        cores: machine.cores,
        simd: machine.simd,
        compiler: machine.compiler,
        scores: Vec::new(),
    };
    for (index, line) in lines {
        let score = score(line, &profile);
        profile.scores.push(score.map_err(|why| ProfileError { line: index + 1, why })?);
    }
    let found = profile.scores.len();
    if found == machine.scores && found > 0 && text.ends_with('\n') {
        return Ok(profile);
    }
    let why = if found == 0 {
        "the profile has no scores".to_owned()
    } else if found > machine.scores {
        format!("the profile has {found} scores, and its first line says {}", machine.scores)
    } else {
        format!("the file is cut off after {found} of {} scores", machine.scores)
    };
    Err(ProfileError { line: found + 1, why })
}

fn machine(line: &str) -> Result<Machine, String> {
    let version: Version =
        serde_json::from_str(line).map_err(|error| format!("is not a profile: {error}"))?;
    if version.format != FORMAT {
        let format = escape::shorten(&version.format);
        return Err(format!("the format is {format:?}; this pinfold reads {FORMAT}"));
    }
    let machine: Machine =
        serde_json::from_str(line).map_err(|error| format!("is not a profile: {error}"))?;
    let Machine { format, pinload, compiler, architecture, cpu_model, simd, .. } = &machine;
    let texts = [format, pinload, compiler, architecture, cpu_model, simd];
    if let Some(text) = texts.iter().find(|text| text.len() > LONGEST_TEXT) {
        return Err(format!("a text has {} bytes, more than {LONGEST_TEXT}", text.len()));
    }
    if !(1..=MOST_CORES).contains(&machine.cores) {
        return Err(format!("cores: {} is not between 1 and {MOST_CORES}", machine.cores));
    }
    Ok(machine)
}

fn score(line: &str, profile: &Profile) -> Result<Score, String> {
    let figure = figures::figure(line)?;
    let name = figure.labels.get("kind").map_or("", String::as_str);
    let shown = escape::shorten(name);
    let kind = Kind::from_name(name).ok_or_else(|| format!("unknown kind of work {shown:?}"))?;
    if profile.per_second(kind).is_some() {
        return Err(format!("{name} is listed twice"));
    }
    let count = figure.samples.len();
    if !(2..=MOST_SAMPLES).contains(&count) {
        return Err(format!("{name}: {count} samples, not 2 to {MOST_SAMPLES}"));
    }
    if let Some(sample) = figure.samples.iter().find(|one| !(1e-3..=1e15).contains(*one)) {
        return Err(format!("{name}: {sample} per second is out of range (1e-3 to 1e15)"));
    }
    Ok(Score { kind, per_second: figure.samples })
}

/// A run of `pinload profile` on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profiling {
    /// A second instead of a minute.
    pub is_quick: bool,
}

impl SpeedBenchmark for Profiling {
    /// The text, which is the file.
    type Outcome = String;

    fn probe(&self) -> &'static str {
        "profile"
    }

    fn argv(&self) -> Vec<String> {
        let quick = self.is_quick.then(|| "--quick".to_owned());
        [self.probe().to_owned()].into_iter().chain(quick).collect()
    }

    fn timeout_ns(&self) -> u64 {
        600_000_000_000
    }

    fn parse(&self, output: &str) -> Result<String, BenchmarkError> {
        match parse(output) {
            Ok(_) => Ok(output.to_owned()),
            Err(error) => {
                Err(BenchmarkError::Line { probe: "profile", line: error.line, why: error.why })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loads::Placement;
    use crate::pinload::Pinload;
    use pinfold_host::{Host as _, LiveHost, process};

    const GOOD: &str = include_str!("profile-epyc.jsonl");

    #[test]
    fn a_profile_of_a_real_machine_is_read() {
        let profile = parse(GOOD).unwrap();
        assert_eq!((profile.architecture.as_str(), profile.cores), ("x86_64", 2));
        let kinds: Vec<Kind> = profile.scores.iter().map(|score| score.kind).collect();
        assert_eq!(kinds, Kind::ALL);
        assert_eq!(profile.per_second(Kind::Stream).unwrap().len(), 10);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let second = GOOD.lines().nth(1).unwrap();
        let cases = [
            (String::new(), 1, "is not a profile"),
            ("\u{7f}ELF\0\0".to_owned(), 1, "is not a profile"),
            ("[".repeat(20_000), 1, "is not a profile"),
            (" ".repeat(70_000), 1, "70000 bytes"),
            (GOOD.replace("profile/1", "profile/2"), 1, "the format is \"pinfold-profile/2\""),
            (GOOD.replace("\"cores\":2", "\"cores\":0"), 1, "cores: 0 is not between"),
            (GOOD.replace("\"cores\":2", "\"cores\":-1"), 1, "is not a profile"),
            (GOOD.replace("AMD", &"A".repeat(300)), 1, "more than 256"),
            (GOOD.replace("\"integer\"", "\"magic\\u001b[2J\""), 2, "unknown kind of work"),
            (GOOD.replace("\"integer\"", "\"branches\""), 3, "branches is listed twice"),
            (GOOD.replace("\"samples\":[", "\"samples\":[0,"), 2, "integer: 0 per second"),
            (GOOD.replace("\"samples\":[", "\"samples\":[1e300,"), 2, "is out of range"),
            (GOOD.replace("\"samples\":[", "\"samples\":[-5,"), 2, "holds the sample -5"),
            (GOOD.replace("\"samples\":[", "\"samples\":[NaN,"), 2, "is not a figure"),
            (GOOD.replace("\"samples\":[", "\"samples\":[1e999,"), 2, "is not a figure"),
            (GOOD.repeat(2000), 1, "more than a profile can have"),
            (GOOD.replace(second, "{}"), 2, "is not a figure"),
            (GOOD.replace(second, ""), 2, "is not a figure"),
            (GOOD.lines().take(4).map(|line| format!("{line}\n")).collect(), 4, "after 3 of 10"),
            (GOOD.trim_end().to_owned(), 11, "cut off"),
            (GOOD[..GOOD.len() - 30].to_owned(), 11, "is not a figure"),
            (GOOD.lines().take(1).map(|line| format!("{line}\n")).collect(), 1, "no scores"),
            (GOOD.replace("\"scores\":10", "\"scores\":9"), 11, "has 10 scores"),
        ];
        for (text, line, expected) in cases {
            let error = parse(&text).unwrap_err();
            assert_eq!(error.line, line, "{error}");
            assert!(error.to_string().contains(expected), "{error}, not {expected}");
            assert!(!error.to_string().contains('\u{1b}'));
        }
    }

    #[test]
    fn pinload_prints_a_profile_of_this_machine() {
        let pinload = Pinload::install().unwrap();
        let quick = Profiling { is_quick: true };
        let text = quick.run_on_host(&pinload, &Placement::default()).unwrap();
        let profile = parse(&text).unwrap();
        assert_eq!(profile.architecture, std::env::consts::ARCH);
        let allowed = LiveHost::new().unwrap().affinity(process::own_tid()).unwrap();
        assert_eq!(usize::try_from(profile.cores).unwrap(), allowed.len(), "not of the pinned one");
        assert!(profile.per_second(Kind::Integer).is_some());
    }
}
