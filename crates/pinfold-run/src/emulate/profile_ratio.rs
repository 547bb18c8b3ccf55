//! Speeds of other machines: their profile divided by that of this machine.
//!
//! A ratio for each kind of work comes from the repetitions on both machines. Without a kind the
//! speed is the mean over the kinds, and the interval is where a program of unknown kind lies if it
//! differs from the mean as the kinds do, and from run to run as their repetitions do. The speed of
//! the memory is not emulated, so nothing is said about work that it limits, unless the memory of
//! the other machine is slower by the same factor as its CPU; nor about other programs than the
//! benchmarks on another architecture, where the same source is other instructions.

use pinfold_host::LiveHost;
use pinfold_host::files::{self, StateDir};
use pinfold_model::text::count_noun;
use pinfold_model::{ProfileReference, Speed, Topology, escape};
use pinfold_probe::cpu_speed::SpeedBenchmark as _;
use pinfold_probe::loads::Placement;
use pinfold_probe::pinload::Pinload;
use pinfold_probe::profile::{self, Kind, Profile, Profiling};
use pinfold_stats::{Interval, predict_further_ratio, predict_next_ratio, widen};

use crate::message::say;
use crate::{Exit, Failure, inputs};

/// Probability with which a program lies in the interval.
const PROBABILITY: f64 = 0.9;
/// A machine that is faster by less is emulated at full speed: profiles repeat no better.
const AS_FAST: f64 = 1.02;
/// Fewer kinds give no interval over kinds.
const LEAST_KINDS: usize = 3;
/// An interval of a kind from a disturbed machine: its ends differ by more than this factor.
const DISTURBED: f64 = 2.0;
const NO_MEMORY: &str = "Pinfold does not emulate the speed of the memory";

/// The speed of a vnode like another machine, and what it predicts.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// The speed to set.
    pub speed: Speed,
    /// Where the speed of a program on the other machine lies, relative to this machine; nothing
    /// is known of programs for another architecture.
    pub interval: Option<Interval>,
    /// What is known of each kind of work.
    pub kinds: Vec<KindRatio>,
    /// The other machine and the meaning of the interval.
    pub summary: String,
}

/// The ratio of two machines in one kind of work, or why it cannot be said.
#[derive(Clone, Debug, PartialEq)]
pub struct KindRatio {
    /// The kind.
    pub kind: Kind,
    /// The ratio.
    pub ratio: Result<Interval, String>,
}

impl Prediction {
    /// The summary, then a line for each kind.
    #[must_use]
    pub fn to_lines(&self) -> Vec<String> {
        let kinds = self.kinds.iter().map(|KindRatio { kind, ratio }| match ratio {
            Ok(ratio) => format!("{}: {}", kind.name(), range(ratio)),
            Err(why) => format!("{}: cannot compare: {why}", kind.name()),
        });
        [self.summary.clone()].into_iter().chain(kinds).collect()
    }
}

/// The speed of a vnode that is to be like the machine of a profile, on this host.
///
/// # Errors
/// [`Failure`]: a file that cannot be read or is no profile, a machine with more cores than this
/// one or faster than it, a kind of work that cannot be predicted, a failed measurement.
pub fn speed_like(like: &ProfileReference, host: &LiveHost) -> Result<Prediction, Failure> {
    let theirs = read(&like.file)?;
    let kind = like.kind.as_deref().map(kind).transpose()?;
    let topology = inputs::topology(host, None)?;
    let here = topology.online().len();
    if usize::try_from(theirs.cores).is_ok_and(|cores| cores > here) {
        let cores = theirs.cores;
        let text = format!("{}: that machine has {cores} cores, this one {here}", like.file);
        let hint = "take its profile on fewer CPUs: taskset -c 0 pinload profile";
        return Err(Failure::new(Exit::Input, text).with_hint(hint));
    }
    let ours = match &like.own {
        Some(path) => read(path)?,
        None => load_profile(&topology)?,
    };
    predict(&theirs, &ours, kind).map_err(|failure| Failure {
        message: format!("{}: {}", like.file, failure.message),
        ..failure
    })
}

fn kind(name: &str) -> Result<Kind, Failure> {
    Kind::from_name(name).ok_or_else(|| {
        let known = Kind::ALL.map(Kind::name).join(", ");
        Failure::new(
            Exit::Input,
            format!("kind: there is no kind of work {:?}", escape::name(name)),
        )
        .with_hint(format!("kinds: {known}; without one the mean over the kinds is set"))
    })
}

/// The speed that a profile has relative to this machine's.
///
/// # Errors
/// [`Failure`]: the other machine is faster, or nothing can be said about the kind.
pub fn predict(
    theirs: &Profile,
    ours: &Profile,
    kind: Option<Kind>,
) -> Result<Prediction, Failure> {
    let kinds = ratios(theirs, ours);
    let (interval, of_what) = match kind {
        Some(kind) => (ratio_of_kind(&kinds, kind)?, format!("work of the kind {}", kind.name())),
        None => {
            let known: Vec<Interval> =
                kinds.iter().filter_map(|one| one.ratio.clone().ok()).collect();
            let ratios: Vec<f64> = known.iter().map(|one| one.ratio).collect();
            let many =
                predict_further_ratio(&ratios, PROBABILITY).filter(|_| known.len() >= LEAST_KINDS);
            let text =
                format!("cannot compare: the profiles have only {} kinds in common", known.len());
            let hint = "record both with the same version of pinload";
            let interval = many.ok_or_else(|| Failure::new(Exit::Input, text).with_hint(hint))?;
            let of_what = format!("a program of unknown kind ({} kinds)", known.len());
            (widen(interval, &known), of_what)
        }
    };
    let machine = escape::name(&theirs.cpu_model).into_owned();
    if interval.low > AS_FAST {
        let text = format!(
            "{machine} is faster than this machine: {of_what} runs there at {} of its speed here",
            range(&interval)
        );
        let hint = "only slower CPUs can be emulated; emulate this machine on that one";
        return Err(Failure::new(Exit::Input, text).with_hint(hint));
    }
    let speed = round_speed(interval.ratio);
    let other = other_architecture(theirs, ours);
    let predicted = match &other {
        Some(why) => format!(
            "cannot predict how fast programs run there: {why}, where the same source is other \
             instructions; these are the benchmarks of pinload:"
        ),
        None => format!(
            "{of_what} runs there at {} of its speed here, with {:.0} % probability{}",
            range(&interval),
            PROBABILITY * 100.0,
            reservations(theirs, ours, &kinds)
        ),
    };
    let summary = format!("speed {speed}, like {machine}: {predicted}");
    Ok(Prediction { speed, interval: Some(interval).filter(|_| other.is_none()), kinds, summary })
}

/// What makes a prediction worse.
fn reservations(theirs: &Profile, ours: &Profile, kinds: &[KindRatio]) -> String {
    let mut text = String::new();
    if kinds.iter().any(|one| one.kind.is_memory() && one.ratio.is_err()) {
        text.push_str("; cannot predict a program that the memory limits");
    }
    if theirs.compiler != ours.compiler {
        text.push_str("; the profiles come from different compilers");
    }
    let known = kinds.iter().filter_map(|one| one.ratio.as_ref().ok());
    let busy = known.filter(|ratio| ratio.high / ratio.low > DISTURBED).count();
    if busy > 0 {
        let kinds = count_noun(busy, "kind");
        text.push_str(&format!(
            "; the repetitions of {kinds} differ too much: record both profiles on idle machines"
        ));
    }
    text
}

/// `that machine is aarch64, this one x86_64`, if it is another architecture.
fn other_architecture(theirs: &Profile, ours: &Profile) -> Option<String> {
    let (that, this) = (escape::name(&theirs.architecture), escape::name(&ours.architecture));
    (that != this).then(|| format!("that machine is {that}, this one {this}"))
}

/// All kinds that one of the two machines has.
fn ratios(theirs: &Profile, ours: &Profile) -> Vec<KindRatio> {
    let mut kinds: Vec<KindRatio> = Kind::ALL
        .into_iter()
        .filter(|kind| theirs.per_second(*kind).or(ours.per_second(*kind)).is_some())
        .map(|kind| KindRatio { kind, ratio: ratio(theirs, ours, kind) })
        .collect();
    let of_cpu: Vec<f64> = kinds
        .iter()
        .filter(|one| !one.kind.is_memory())
        .filter_map(|one| Some(one.ratio.as_ref().ok()?.ratio))
        .collect();
    let cpu = predict_further_ratio(&of_cpu, PROBABILITY);
    for one in kinds.iter_mut().filter(|one| one.kind.is_memory()) {
        if let (Ok(memory), Some(cpu)) = (&one.ratio, &cpu)
            && (memory.low > cpu.high || memory.high < cpu.low)
        {
            let (memory, cpu) = (range(memory), range(cpu));
            one.ratio = Err(format!(
                "the other machine has {memory} of this one's memory speed and {cpu} of its CPU \
                 speed; {NO_MEMORY}"
            ));
        }
    }
    kinds
}

fn ratio(theirs: &Profile, ours: &Profile, kind: Kind) -> Result<Interval, String> {
    if kind == Kind::Simd
        && let Some(why) = other_architecture(theirs, ours)
    {
        return Err(why);
    }
    if kind == Kind::Simd && theirs.simd != ours.simd {
        let (that, this) = (escape::name(&theirs.simd), escape::name(&ours.simd));
        return Err(format!("that machine has {that}, this one {this}"));
    }
    match (theirs.per_second(kind), ours.per_second(kind)) {
        (Some(theirs), Some(ours)) => predict_next_ratio(theirs, ours, PROBABILITY)
            .ok_or_else(|| "too few repetitions".to_owned()),
        (Some(_), None) => Err("this machine has no score".to_owned()),
        (None, Some(_)) | (None, None) => Err("that machine has no score".to_owned()),
    }
}

fn ratio_of_kind(kinds: &[KindRatio], kind: Kind) -> Result<Interval, Failure> {
    let found = kinds.iter().find(|one| one.kind == kind).map(|one| one.ratio.clone());
    found.unwrap_or_else(|| Err("the profiles have no score".to_owned())).map_err(|why| {
        Failure::new(
            Exit::Input,
            format!("cannot predict the speed of {} there: {why}", kind.name()),
        )
        .with_hint("select another kind, or none for the mean over the kinds")
    })
}

/// `45.2% (43.9% to 46.1%)`
fn range(interval: &Interval) -> String {
    let [middle, low, high] = [interval.ratio, interval.low, interval.high].map(|one| one * 100.0);
    format!("{middle:.1}% ({low:.1}% to {high:.1}%)")
}

/// In hundredths of a percent; at most full speed.
fn round_speed(ratio: f64) -> Speed {
    (1..=10_000_u32)
        .rev()
        .find(|hundredths| f64::from(*hundredths) <= (ratio * 10_000.0).round().max(1.0))
        .and_then(|hundredths| Speed::from_millionths(hundredths * 100))
        .unwrap_or(Speed::FULL)
}

fn read(path: &str) -> Result<Profile, Failure> {
    let text = files::read_text(path).map_err(|error| inputs::input_failure(&error))?;
    profile::parse(&text).map_err(|error| {
        Failure::new(Exit::Input, format!("{path}: {error}"))
            .with_hint("make it on that machine: pinload profile > FILE")
    })
}

/// The profile of this machine, which is measured if there is none yet.
fn load_profile(topology: &Topology) -> Result<Profile, Failure> {
    let folder = StateDir::open(&format!("{}/profiles", files::cache_dir()?))?;
    let name = format!("{}.jsonl", topology.fingerprint);
    if folder.contains(&name) {
        let text = folder.read(&name).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        match profile::parse(&text?) {
            Ok(profile) => return Ok(profile),
            Err(error) => say(&format!("{} is measured again: {error}", folder.path_of(&name))),
        }
    }
    say(&format!(
        "measures this machine once, for about a minute: leave it idle; the profile is kept in {}",
        folder.path_of(&name)
    ));
    let pinload = Pinload::install()?;
    let profiling = Profiling { is_quick: false };
    let text = profiling
        .run_on_host(&pinload, &Placement::default())
        .map_err(|error| Failure::from_error(Exit::Host, &error, None))?;
    folder.replace(&name, text.as_bytes())?;
    read(&folder.path_of(&name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinfold_probe::profile::Score;

    fn machine(scores: &[(Kind, f64)]) -> Profile {
        // Repetitions 1 % around the value.
        Profile {
            architecture: "x86_64".to_owned(),
            cpu_model: "Test CPU".to_owned(),
            cores: 1,
            simd: "avx2".to_owned(),
            compiler: "12".to_owned(),
            scores: scores
                .iter()
                .map(|(kind, value)| Score {
                    kind: *kind,
                    per_second: vec![value * 0.99, *value, value * 1.01, *value],
                })
                .collect(),
        }
    }

    fn all(value: f64) -> Profile {
        machine(&Kind::ALL.map(|kind| (kind, value)))
    }

    fn with(mut profile: Profile, kind: Kind, value: f64) -> Profile {
        profile.scores.retain(|score| score.kind != kind);
        profile.scores.extend(machine(&[(kind, value)]).scores);
        profile
    }

    #[test]
    fn the_speed_is_the_ratio_and_the_interval_holds_the_kinds() {
        let mut other = all(50.0);
        other = with(with(other, Kind::CacheL3, 40.0), Kind::Integer, 60.0);
        let found = interval(&other, None);
        assert!((0.47..0.53).contains(&found.ratio), "{found:?}");
        assert!(found.low < 0.45 && found.high > 0.55, "{found:?}");
        assert_eq!(predict(&other, &all(100.0), None).unwrap().kinds.len(), 10);
        let integer = predict(&other, &all(100.0), Some(Kind::Integer)).unwrap();
        assert_eq!(integer.speed.to_string(), "60%");
        let found = interval(&other, Some(Kind::Integer));
        assert!(found.low > 0.56 && found.high < 0.64, "{found:?}");
    }

    #[test]
    fn kinds_that_agree_give_an_interval_as_wide_as_their_repetitions() {
        let (all_kinds, one) = (interval(&all(50.0), None), interval(&all(50.0), Some(Kind::Simd)));
        assert!(one.low < 0.49 && one.high > 0.51, "{one:?}");
        assert!((all_kinds.low - one.low).abs() < 1e-9, "{all_kinds:?} {one:?}");
        assert!((all_kinds.high - one.high).abs() < 1e-9, "{all_kinds:?} {one:?}");
    }

    #[test]
    fn profiles_of_busy_machines_are_named() {
        let mut other = all(50.0);
        for score in &mut other.scores[..3] {
            score.per_second = vec![25.0, 50.0, 80.0, 50.0];
        }
        let found = predict(&other, &all(100.0), None).unwrap().summary;
        assert!(found.contains("; the repetitions of 3 kinds differ too much"), "{found}");
        let found = predict(&all(50.0), &all(100.0), None).unwrap().summary;
        assert!(found.ends_with(" % probability"), "{found}");
    }

    #[test]
    fn what_cannot_be_emulated_is_said() {
        let slow_memory = with(with(all(50.0), Kind::Stream, 90.0), Kind::MemoryLatency, 49.0);
        let found = interval(&slow_memory, None);
        assert!((found.ratio - 0.5).abs() < 0.01, "without the memory: {found:?}");
        let lines = predict(&slow_memory, &all(100.0), None).unwrap().to_lines().join("\n");
        assert!(lines.contains("; cannot predict a program that the memory limits\n"), "{lines}");
        assert!(lines.contains("stream: cannot compare: the other machine has 90.0%"), "{lines}");
        assert!(lines.contains("memory-latency: 49.0% ("), "{lines}");
        assert_refused(
            &slow_memory,
            Some(Kind::Stream),
            "does not emulate the speed of the memory",
        );

        let other = Profile { architecture: "aarch64".to_owned(), ..all(50.0) };
        assert_refused(&other, Some(Kind::Simd), "that machine is aarch64, this one x86_64");
        for kind in [None, Some(Kind::Integer)] {
            let found = predict(&other, &all(100.0), kind).unwrap();
            assert_eq!((found.speed.to_string().as_str(), found.interval), ("50%", None));
            let text = "cannot predict how fast programs run there: that machine is aarch64, this";
            assert!(found.summary.contains(text), "{}", found.summary);
        }
        let narrow = Profile { simd: "128".to_owned(), ..all(50.0) };
        assert_refused(&narrow, Some(Kind::Simd), "that machine has 128, this one avx2");

        assert_refused(&all(150.0), None, "Test CPU is faster than this machine");
        assert_refused(&all(150.0), Some(Kind::Integer), "is faster");
        let few = machine(&[(Kind::Integer, 5.0), (Kind::Branches, 5.0)]);
        assert_refused(&few, None, "have only 2 kinds in common");
        assert_refused(&few, Some(Kind::CacheL1), "that machine has no score");
    }

    #[test]
    fn the_same_machine_is_at_full_speed() {
        assert_eq!(predict(&all(100.4), &all(100.0), None).unwrap().speed, Speed::FULL);
        let noisy = with(with(all(100.0), Kind::Integer, 97.0), Kind::Branches, 104.0);
        assert_eq!(predict(&noisy, &all(100.0), None).unwrap().speed, Speed::FULL);
        assert_eq!(round_speed(0.0), Speed::from_millionths(100).unwrap());
        assert_eq!(round_speed(0.432_149).to_string(), "43.21%");
    }

    fn interval(other: &Profile, kind: Option<Kind>) -> Interval {
        predict(other, &all(100.0), kind).unwrap().interval.unwrap()
    }

    #[track_caller]
    fn assert_refused(other: &Profile, kind: Option<Kind>, expected: &str) {
        let failure = predict(other, &all(100.0), kind).unwrap_err();
        assert!(failure.message.contains(expected), "{}", failure.message);
        assert!(failure.hint.is_some());
    }
}
