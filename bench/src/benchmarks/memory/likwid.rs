//! Runs of likwid-bench: with a volume that takes about 0.3 s, and at most 0.8 s if possible.
//!
//! Under a real-time policy, throttling takes 5 % of each second, which would slow a long run of
//! likwid-bench and never the fast windows of ours.

use super::Bench;
use crate::arguments::Failure;

/// Longer runs are repeated with fewer iterations.
const MOST_S: f64 = 0.8;

impl Bench {
    /// Bytes per second of a kernel, from its cycles and our rate of the counter.
    pub(super) fn likwid(&self, test: &str, bytes: u64, volume: u64) -> Result<f64, Failure> {
        let mut iterations = (volume / bytes).max(1);
        loop {
            let count = iterations.to_string();
            let words = ["-t", test, "-w", &work_group(bytes), "-i", &count];
            let text = self.output(&self.likwid, &words.map(str::to_owned))?;
            let took = value(&text, "Cycles:")? / self.tsc_hz;
            if let Some(less) = fewer(iterations, took) {
                iterations = less;
                continue;
            }
            let (least, most) = self.likwid_runs.get().unwrap_or((took, took));
            self.likwid_runs.set(Some((least.min(took), most.max(took))));
            return Ok(value(&text, "Data volume (Byte):")? / took);
        }
    }

    pub(super) fn likwid_version(&self) -> Result<String, Failure> {
        let text = self.output(&self.likwid, &["-h".to_owned()])?;
        let version = text.split("Version").nth(1).and_then(|rest| rest.split_whitespace().next());
        Ok(format!("likwid-bench {}", version.unwrap_or("of an unknown version")))
    }
}

/// The area of a thread. likwid-bench reads at most 2³¹ − 1 bytes and interprets KiB as bytes, so
/// larger areas are given in kB, a few bytes more.
fn work_group(bytes: u64) -> String {
    match i32::try_from(bytes) {
        Ok(bytes) => format!("N:{bytes}B:1"),
        Err(_) => format!("N:{}kB:1", bytes.div_ceil(1_000)),
    }
}

/// A remark on the duration of its runs.
pub(super) fn remark((least, most): (f64, f64)) -> String {
    let long = if most > MOST_S {
        ", the longest of one pass only, in which the kernel may have taken up to 5 % for others"
    } else {
        ""
    };
    format!(" likwid-bench gives the mean of a run, which took {least:.2} to {most:.2} s{long};")
}

/// The number of iterations that takes half of the maximum time, if these took longer than the
/// maximum; `None` if they did not, or cannot be fewer.
fn fewer(iterations: u64, took: f64) -> Option<u64> {
    if took <= MOST_S || iterations == 1 {
        return None;
    }
    let (half_ms, took_ms) = (400, std::time::Duration::from_secs_f64(took).as_millis());
    let less = u128::from(iterations) * half_ms / took_ms.max(1);
    Some(u64::try_from(less).unwrap_or(1).clamp(1, iterations - 1))
}

/// The number after a key in the output of likwid-bench.
fn value(text: &str, key: &str) -> Result<f64, Failure> {
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    let word = line.and_then(|rest| rest.split_whitespace().next());
    Ok(word.ok_or_else(|| format!("likwid-bench printed no {key:?}"))?.parse()?)
}

#[cfg(test)]
mod tests {
    use super::{fewer, remark, value, work_group};

    #[test]
    fn likwid_bench_is_read() {
        // Output of version 5.2.2.
        let text = "Cycles:\t\t\t2877860336\nCPU Clock:\t\t2596015097\nData volume (Byte):\t68719476736\nMByte/s:\t\t61989.39\n";
        assert_eq!(value(text, "Cycles:").unwrap(), 2_877_860_336.0);
        assert_eq!(value(text, "Data volume (Byte):").unwrap(), 68_719_476_736.0);
        let reported = value(text, "Time:").unwrap_err().to_string();
        assert_eq!(reported, "likwid-bench printed no \"Time:\"");
    }

    #[test]
    fn an_area_is_reported_so_that_likwid_bench_understands_it() {
        assert_eq!(work_group(24_576), "N:24576B:1");
        assert_eq!(work_group(2_147_483_647), "N:2147483647B:1");
        // Version 5.2.2 rejects "N:2147483648B:1": "Stream size cannot be read".
        assert_eq!(work_group(2_147_483_648), "N:2147484kB:1");
    }

    #[test]
    fn a_run_that_takes_too_long_has_fewer_iterations() {
        assert_eq!(fewer(100, 0.8), None);
        assert_eq!(fewer(100, 1.6), Some(25));
        assert_eq!(fewer(2, 0.9), Some(1));
        assert_eq!(fewer(2, 100.0), Some(1));
        assert_eq!(fewer(1, 3.0), None, "there is no shorter one");
        assert!(remark((0.1, 0.8)).ends_with("took 0.10 to 0.80 s;"));
        assert!(remark((0.1, 0.81)).contains("0.81 s, the longest of one pass only"));
    }
}
