//! The cost of a method in addition to the stolen share, its effect on a neighbour, and two vnodes
//! at the same time.

use std::sync::atomic::{AtomicBool, Ordering};

use pinfold_host::process::Stdio;
use pinfold_host::{Clock as _, LiveHost, SystemClock};
use pinfold_model::CpuSet;
use pinfold_probe::cpu_speed::Workers;
use serde_json::{Value, json};

use super::load::{Load, Reading};
use super::platform::{Platform, Tools};
use super::subject::{CoreShare, Subject, shared_platform};
use super::trial::{self, Run, Trial, TrialPosition, TrialRequest};
use crate::arguments::Failure;

/// The platform file of the guide.
const EXAMPLE: &str = include_str!("../../../docs/examples/two-vnodes.toml");

/// Interval between two changes of the neighbour's speed.
const CHANGE_NS: u64 = 50_000_000;
const ONE: Workers = Workers::Threads(1);

/// How often something is measured, and for how long each time.
#[derive(Clone, Copy, Debug)]
pub struct Rounds {
    /// Number of rounds.
    pub count: u32,
    /// Milliseconds of a run.
    pub ms: u32,
}

/// CPU time of the controller, as a share of a CPU for each CPU of the vnode.
#[derive(Clone, Debug, PartialEq)]
pub struct Cost {
    /// Name of the subject.
    pub subject: String,
    /// With no process in the vnode.
    pub idle: f64,
    /// With one spinning thread for each CPU.
    pub busy: f64,
}

impl Cost {
    /// As JSON.
    pub fn to_json(&self) -> Value {
        json!({ "subject": self.subject, "idle": self.idle, "busy": self.busy })
    }
}

/// Measures it for this number of milliseconds each, at half speed.
pub fn cost(
    host: &LiveHost,
    turn: &mut CoreShare<'_>,
    subject: &Subject,
    ms: u32,
) -> Result<Option<Cost>, Failure> {
    turn.set(0.5)?;
    let Some((platform, vnode)) = turn.platform() else { return Ok(None) };
    let pus = u32::try_from(turn.pus.len())?;
    let share = |work: &dyn Fn() -> Result<(), Failure>| -> Result<f64, Failure> {
        let (begin, before) = (SystemClock.now_ns(), platform.supervisor_cpu_ns(host)?);
        work()?;
        let (end, after) = (SystemClock.now_ns(), platform.supervisor_cpu_ns(host)?);
        let elapsed = end.saturating_sub(begin).max(1) as f64;
        Ok(after.saturating_sub(before) as f64 / elapsed / f64::from(pus))
    };
    let idle = share(&|| {
        SystemClock.sleep_ns(u64::from(ms) * 1_000_000);
        Ok(())
    })?;
    let busy = share(&|| platform.run(vnode, Load::Work(Workers::Threads(pus), ms)).map(|_| ()))?;
    Ok(Some(Cost { subject: subject.label(), idle, busy }))
}

/// Result of one round with a neighbour: rates of vnode `b`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Felt {
    /// Name of the subject.
    pub subject: String,
    /// At full speed, before and after.
    pub full: [f64; 2],
    /// While `a` keeps its speed, twice.
    pub steady: [f64; 2],
    /// While `a` changes it.
    pub changing: f64,
    /// Largest steal share of the CPUs.
    pub steal: f64,
    /// Number of repetitions of the round because of steal time.
    pub repeats: u32,
}

impl Felt {
    /// Change of `b` while `a` changed, in points of full speed.
    pub fn change(&self) -> f64 {
        (self.changing - f64::midpoint(self.steady[0], self.steady[1])) * 100.0 / self.whole()
    }

    /// The difference of two runs while nothing changed.
    pub fn floor(&self) -> f64 {
        (self.steady[1] - self.steady[0]) * 100.0 / self.whole()
    }

    fn whole(&self) -> f64 {
        f64::midpoint(self.full[0], self.full[1])
    }

    /// As JSON.
    pub fn to_json(&self) -> Value {
        json!({
            "subject": self.subject, "full_per_second": self.full,
            "steady_per_second": self.steady, "changing_per_second": self.changing,
            "steal": self.steal, "repeats": self.repeats,
        })
    }
}

/// Two vnodes of a core, `a` and `b`, at half speed, each with a spinning thread; `a` changes
/// between 10 and 90 % twenty times a second, or does not.
pub fn neighbour(
    host: &LiveHost,
    pus: &CpuSet,
    tools: Tools<'_>,
    subject: &Subject,
    rounds: Rounds,
) -> Result<Vec<Felt>, Failure> {
    let Rounds { count, ms } = rounds;
    let platform = Platform::up(
        tools,
        "neighbours",
        &shared_platform(&format!("{}{}", subject.vnode("a", 1, 0.5), subject.vnode("b", 1, 0.5))),
    )?;
    // It ends when it is killed; repetitions take time too.
    let all_ms = ((ms + 400) * 5 * count + 2_000).saturating_mul(4);
    let mut other = platform
        .entering("a", Load::Work(ONE, all_ms))
        .stdin(Stdio::Null)
        .stdout(Stdio::Null)
        .own_group()
        .die_with_parent(true)
        .start()?;
    let mut felt = Vec::new();
    for round in 0..count {
        let run = trial::run_undisturbed(host, pus, || one_round(&platform, round, ms))?;
        let subject = subject.label();
        felt.push(Felt { subject, steal: run.steal, repeats: run.repeats, ..run.gave });
    }
    other.kill()?;
    platform.down()?;
    Ok(felt)
}

fn one_round(platform: &Platform<'_>, round: u32, ms: u32) -> Result<Felt, Failure> {
    let full = || {
        platform.set("a", 1.0)?;
        platform.set("b", 1.0)?;
        let rate = rate_of_b(ms, platform)?;
        platform.set("a", 0.5)?;
        platform.set("b", 0.5)?;
        platform.settle();
        Ok::<f64, Failure>(rate)
    };
    let before = full()?;
    let first = rate_of_b(ms, platform)?;
    // Every other round starts with the change, so that drift does not count as an effect.
    let (steady, changing) = if round.is_multiple_of(2) {
        let steady = rate_of_b(ms, platform)?;
        (steady, while_changing(platform, ms)?)
    } else {
        let changing = while_changing(platform, ms)?;
        (rate_of_b(ms, platform)?, changing)
    };
    let after = full()?;
    Ok(Felt { full: [before, after], steady: [first, steady], changing, ..Felt::default() })
}

fn rate_of_b(ms: u32, platform: &Platform<'_>) -> Result<f64, Failure> {
    Ok::<f64, Failure>(platform.run("b", Load::Work(ONE, ms))?.rate)
}

/// Both vnodes of the example platform at work at the same time, at the speeds of its file, between
/// two runs at full speed.
pub fn example(
    host: &LiveHost,
    pus: &CpuSet,
    tools: Tools<'_>,
    rounds: Rounds,
) -> Result<Vec<Trial>, Failure> {
    let Rounds { count, ms } = rounds;
    let load = Load::Work(ONE, ms);
    let platform = Platform::up(tools, "example", &shared_platform(EXAMPLE))?;
    let speeds = platform.speeds()?;
    let at_once = |share: &dyn Fn(f64) -> f64| -> Result<Run<Vec<Reading>>, Failure> {
        for (vnode, speed) in &speeds {
            platform.set(vnode, share(*speed))?;
        }
        platform.settle();
        trial::run_undisturbed(host, pus, || all_at_once(&platform, &speeds, load))
    };
    let mut trials = Vec::new();
    for block in 0..count {
        let runs = [at_once(&|_| 1.0)?, at_once(&|speed| speed)?, at_once(&|_| 1.0)?];
        for (index, (vnode, speed)) in speeds.iter().enumerate() {
            let mut mine = Vec::new();
            for run in &runs {
                let Run { gave, steal, repeats } =
                    run.part(|all: &Vec<Reading>| all.get(index).cloned());
                mine.push(Run { gave: gave.ok_or("a vnode did not work")?, steal, repeats });
            }
            let [before, slowed, after] = &mine[..] else { return Err("not three runs".into()) };
            let place = TrialPosition { experiment: "example", subject: vnode.clone(), block };
            let request = TrialRequest { place, load, speed: *speed };
            trials.push(trial::judge_runs(request, [slowed, before, after]));
        }
    }
    platform.down()?;
    Ok(trials)
}

fn all_at_once(
    platform: &Platform<'_>,
    vnodes: &[(String, f64)],
    load: Load,
) -> Result<Vec<Reading>, Failure> {
    std::thread::scope(|scope| {
        let running: Vec<_> = vnodes
            .iter()
            .map(|(vnode, _)| scope.spawn(move || with_text_error(platform.run(vnode, load))))
            .collect();
        let joined = running.into_iter().map(|one| one.join());
        joined.map(|one| Ok(one.map_err(|_| "a run panicked")??)).collect()
    })
}

/// For another thread.
fn with_text_error<T>(result: Result<T, Failure>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}

/// The rate of `b` while `a` changes.
fn while_changing(platform: &Platform<'_>, ms: u32) -> Result<f64, Failure> {
    let is_over = AtomicBool::new(false);
    let rate = std::thread::scope(|scope| {
        let changes = scope.spawn(|| -> Result<(), String> {
            let mut speeds = [0.1, 0.9].into_iter().cycle();
            let mut at = SystemClock.now_ns();
            while !is_over.load(Ordering::Relaxed) {
                let speed = speeds.next().unwrap_or(0.5);
                with_text_error(platform.set("a", speed))?;
                at = at.saturating_add(CHANGE_NS).max(SystemClock.now_ns());
                SystemClock.sleep_until(at);
            }
            Ok(())
        });
        let rate = platform.run("b", Load::Work(ONE, ms)).map(|reading| reading.rate);
        is_over.store(true, Ordering::Relaxed);
        let changed = changes.join().unwrap_or_else(|_| Err("the changes panicked".to_owned()));
        changed.map_err(Failure::from).and(rate)
    })?;
    platform.set("a", 0.5)?;
    platform.settle();
    Ok(rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_against_the_mean_of_both_steady_runs() {
        let felt = Felt {
            subject: "x".to_owned(),
            full: [190.0, 210.0],
            steady: [100.0, 102.0],
            changing: 99.0,
            ..Felt::default()
        };
        assert!((felt.change() + 1.0).abs() < 1e-9);
        assert!((felt.floor() - 1.0).abs() < 1e-9);
    }
}
