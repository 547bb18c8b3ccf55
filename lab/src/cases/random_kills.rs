//! Kills of commands of Pinfold at random times, drawn from their durations in the guest.
//!
//! Pinfold runs without `strace`, so a kill also stops it between system calls.

use crate::error::LabError;
use crate::guest::Guest;

/// Attempts for each kill: a command that ends early is not killed.
const TRIES: usize = 3;
/// Exit status of the shell for `SIGKILL`.
const KILLED: &str = "137";

/// A command of Pinfold that is killed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Victim<'a> {
    pub(super) arguments: &'a [&'a str],
    /// A script that prints the other processes that are killed at the same moment.
    pub(super) others: &'a str,
}

impl<'a> Victim<'a> {
    /// Only the command itself is killed.
    pub(super) fn alone(arguments: &'a [&'a str]) -> Self {
        Self { arguments, others: "" }
    }
}

/// One attempt to kill a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attempt {
    /// The number of attempts before it.
    pub(super) number: usize,
    /// The place of the command among the victims.
    pub(super) victim: usize,
    /// The time from its start (µs).
    pub(super) us: u64,
    /// False if the command ended before, as in the run in which it is timed.
    pub(super) came: bool,
}

/// What precedes and follows each kill.
pub(super) trait Rounds {
    /// Brings the host into the state in which a victim is started.
    fn prepare(&mut self, guest: &mut Guest, victim: usize) -> Result<(), LabError>;

    /// Reverts what the command left, and fails unless the host is as before.
    fn check(&mut self, guest: &mut Guest, attempt: Attempt) -> Result<(), LabError>;
}

/// The kills so far, over all boots.
#[derive(Debug)]
pub(super) struct Kills {
    attempts: usize,
    /// Those that came, by victim.
    came: Vec<usize>,
    moments: Moments,
}

impl Kills {
    pub(super) fn new() -> Self {
        Self { attempts: 0, came: Vec::new(), moments: Moments(1) }
    }

    /// Number of attempts so far, to detect progress.
    pub(super) fn count_attempts(&self) -> usize {
        self.attempts
    }

    /// Number of kills of a victim.
    pub(super) fn of(&self, victim: usize) -> usize {
        self.came.get(victim).copied().unwrap_or(0)
    }

    /// Kills the victims in turn until `wanted` kills have come, and returns the duration of each
    /// victim (ms).
    pub(super) fn continue_to(
        &mut self,
        wanted: usize,
        guest: &mut Guest,
        victims: &[Victim<'_>],
        rounds: &mut dyn Rounds,
    ) -> Result<Vec<u64>, LabError> {
        self.came.resize(victims.len(), 0);
        let mut durations = Vec::with_capacity(victims.len());
        for (at, victim) in victims.iter().enumerate() {
            rounds.prepare(guest, at)?;
            let us = time_us(guest, victim.arguments)?;
            rounds.check(guest, Attempt { number: 0, victim: at, us, came: false })?;
            durations.push(us);
        }
        while self.came.iter().sum::<usize>() < wanted {
            if self.attempts > wanted * TRIES {
                let found = format!("{:?} of {} came", self.came, self.attempts);
                return Err(LabError::wrong("random kills", found));
            }
            let number = self.attempts;
            let at = number % victims.len();
            rounds.prepare(guest, at)?;
            let us = self.moments.below_end_of(durations[at]);
            let came = kill_after(guest, &victims[at], us)?;
            // A command that ended before was slower when it was timed, on a host with other work.
            durations[at] = if came { durations[at] } else { durations[at].min(us) };
            rounds.check(guest, Attempt { number, victim: at, us, came })?;
            self.attempts += 1;
            self.came[at] += usize::from(came);
        }
        Ok(durations.into_iter().map(|us| us / 1_000).collect())
    }
}

/// Duration of a command of Pinfold in the guest.
pub(super) fn time_us(guest: &mut Guest, arguments: &[&str]) -> Result<u64, LabError> {
    let script = format!(
        "read a b < /proc/uptime; /usr/bin/pinfold {} > /tmp/timed.txt 2>&1; \
         read c d < /proc/uptime; echo $a $c",
        arguments.join(" ")
    );
    let text = guest.shell(&script)?;
    // Hundredths of a second.
    let numbers: Option<Vec<u64>> =
        text.split_whitespace().map(|number| number.replace('.', "").parse().ok()).collect();
    match numbers.as_deref() {
        Some([first, last]) if first < last => Ok((last - first) * 10_000),
        _ => Err(LabError::wrong("uptime", text.clone())),
    }
}

/// True if it was killed; false if it ended successfully before.
pub(super) fn kill_after(
    guest: &mut Guest,
    victim: &Victim<'_>,
    us: u64,
) -> Result<bool, LabError> {
    let Victim { arguments, others } = victim;
    let others = if others.is_empty() { String::new() } else { format!("$({others})") };
    // The others are found before: that takes time.
    let script = format!(
        "o={others}; /usr/bin/pinfold {} > /tmp/killed.txt 2>&1 & p=$!; usleep {us}; \
         kill -9 $p $o || true; code=0; wait $p || code=$?; echo $code",
        arguments.join(" ")
    );
    let text = guest.shell(&script)?;
    // The shell itself may print "Killed" after it.
    match text.lines().next() {
        Some(KILLED) => Ok(true),
        Some("0") => Ok(false),
        _ => {
            let said = guest.shell("cat /tmp/killed.txt")?;
            Err(LabError::wrong(format!("{} ended with {text}", arguments.join(" ")), said))
        }
    }
}

/// Times that are the same in each run: a linear congruential generator (Knuth's MMIX).
#[derive(Debug)]
pub(super) struct Moments(pub(super) u64);

impl Moments {
    /// A time up to slightly after the end of a command with this duration.
    pub(super) fn below_end_of(&mut self, us: u64) -> u64 {
        self.below(us + us / 10)
    }

    /// A number below `limit`.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

#[cfg(test)]
mod tests {
    use super::Moments;

    #[test]
    fn moments_are_spread_over_the_whole_run() {
        let mut moments = Moments(1);
        let mut tenths = [0; 11];
        for _ in 0..200 {
            let moment = usize::try_from(moments.below_end_of(1_000)).unwrap();
            tenths[moment / 100] += 1;
        }
        assert!(tenths.iter().all(|count| (4..=36).contains(count)), "{tenths:?}");
    }
}
