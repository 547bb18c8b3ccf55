//! Interference during a measurement: steal time and CPU pressure.
//!
//! Both are monotonic counters, read before and after. A monitor that runs during the measurement
//! would not run while a real-time task occupies its CPU, and would disturb the measurement.
//! `/proc/stat` has a line per CPU, whose eighth number is the steal time in ticks;
//! `/proc/pressure/cpu` has the time for which some task waited:
//!
//! ```text
//! cpu1 4705 150 1120 16250856 520 0 17 9 0 0
//! some avg10=0.12 avg60=0.02 avg300=0.00 total=157656722
//! ```

use pinfold_host::{Host, HostError, paths};
use pinfold_model::{CpuSet, SystemNoise};

/// Position of `steal` after the name of the CPU.
const STEAL: usize = 7;

/// Both counters at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterferenceSample(SystemNoise);

/// Reads both counters for these CPUs.
///
/// # Errors
/// [`HostError`] if a file exists but cannot be read or parsed. A kernel without pressure
/// accounting is not an error.
pub fn now(host: &dyn Host, pus: &CpuSet) -> Result<InterferenceSample, HostError> {
    let path = paths::kernel_stat();
    let stat = host.read_text(&path)?;
    let steal_ticks =
        steal(&stat, pus).ok_or_else(|| unexpected_content(&path, "has no line of a CPU"))?;
    let path = paths::cpu_pressure();
    let pressure_us = match host.read_text(&path) {
        Ok(text) => {
            Some(pressure(&text).ok_or_else(|| unexpected_content(&path, "has no total of some"))?)
        }
        // PSI is not built in, or is disabled at boot: then the read fails with `EOPNOTSUPP`.
        Err(_) => None,
    };
    Ok(InterferenceSample(SystemNoise { steal_ticks: Some(steal_ticks), pressure_us }))
}

fn unexpected_content(path: &str, why: &str) -> HostError {
    HostError::Unexpected { path: path.to_owned(), why: why.to_owned() }
}

impl InterferenceSample {
    /// The difference between `before` and this moment.
    pub fn since(&self, before: &InterferenceSample) -> SystemNoise {
        SystemNoise {
            steal_ticks: growth(self.0.steal_ticks, before.0.steal_ticks),
            pressure_us: growth(self.0.pressure_us, before.0.pressure_us),
        }
    }
}

fn growth(later: Option<u64>, sooner: Option<u64>) -> Option<u64> {
    later.zip(sooner).map(|(later, sooner)| later.saturating_sub(sooner))
}

/// Stolen ticks of these CPUs; `None` if one has no line.
fn steal(stat: &str, pus: &CpuSet) -> Option<u64> {
    pus.iter()
        .map(|pu| {
            let name = format!("cpu{}", pu.0);
            let line = stat.lines().find(|line| line.split(' ').next() == Some(&name))?;
            line.split_whitespace().nth(STEAL + 1)?.parse::<u64>().ok()
        })
        .sum()
}

fn pressure(text: &str) -> Option<u64> {
    let some = text.lines().find(|line| line.starts_with("some "))?;
    some.split(' ').find_map(|word| word.strip_prefix("total="))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use pinfold_host::SnapshotHost;

    use super::*;

    const STAT: &str = "cpu  9 0 0 0 0 0 0 12 0 0\ncpu0 4 0 0 0 0 0 0 7 0 0\ncpu1 5 0 0 0 0 0 0 5 0 0\ncpu10 5 0 0 0 0 0 0 90 0 0\nintr 3\n";

    #[test]
    fn counters_are_read_for_the_pus_that_were_measured() {
        assert_eq!(steal(STAT, &pus("0-1")), Some(12));
        assert_eq!(steal(STAT, &pus("1")), Some(5));
        assert_eq!(steal(STAT, &pus("2")), None, "an offline CPU has no line");
        let text = "some avg10=0.12 avg60=0.02 avg300=0.00 total=157656722\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
        assert_eq!(pressure(text), Some(157_656_722));
        assert_eq!(pressure("some avg10=0.00\n"), None);
    }

    fn pus(text: &str) -> CpuSet {
        CpuSet::parse_list(text).unwrap()
    }

    #[test]
    fn a_host_without_the_files_says_so() {
        let error = now(&SnapshotHost::new(), &CpuSet::parse_list("0").unwrap()).unwrap_err();
        assert!(error.to_string().contains("stat"), "{error}");
    }

    #[test]
    fn this_machine_has_them() {
        let host = pinfold_host::LiveHost::new().unwrap();
        let pus = host.affinity(pinfold_model::Tid(0)).unwrap();
        let before = now(&host, &pus).unwrap();
        let between = now(&host, &pus).unwrap().since(&before);
        assert!(between.steal_ticks.is_some());
    }
}
