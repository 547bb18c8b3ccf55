//! How long the vCPU threads waited for a CPU, window by window, as seen from the host alone.
//!
//! For each thread the kernel sums the time in which it was runnable but did not run
//! (`/proc/PID/task/TID/schedstat`, field 2). The sum grows when the wait ends, so a wait that
//! spans several windows is counted in the last: the largest sample is at most one window shorter
//! than the longest wait. This needs no support in the guest. It does not include what QEMU does
//! between the vCPU thread and the code of the guest.
//! <https://docs.kernel.org/scheduler/sched-stats.html>

use pinfold_host::{Clock, Host, HostError, paths, schedstat};
use pinfold_model::{Metric, Role, Series, TaskId, Tid};

/// Durations of an observation.
pub struct ObservationTimes<'w> {
    /// Total duration (ns).
    pub duration_ns: u64,
    /// Length of one window (ns), which gives one sample.
    pub window_ns: u64,
    /// Called before each window; if it returns false, the series end there.
    pub goes_on: &'w dyn Fn() -> bool,
}

/// Observes the vCPUs: one series for each, one sample per window.
///
/// # Errors
/// [`HostError`] if a thread ends or its statistics cannot be read.
pub fn series(
    host: &dyn Host,
    clock: &dyn Clock,
    threads: &[(TaskId, Role)],
    watch: &ObservationTimes<'_>,
) -> Result<Vec<Series>, HostError> {
    let vcpus: Vec<(u32, Tid)> =
        threads.iter().filter_map(|(task, role)| Some((role.vcpu()?, task.tid))).collect();
    let began = clock.now_ns();
    let mut before = read(host, &vcpus)?;
    let mut samples: Vec<Vec<f64>> = vec![Vec::new(); vcpus.len()];
    let mut next = began;
    while clock.now_ns().saturating_sub(began) < watch.duration_ns && (watch.goes_on)() {
        next = next.saturating_add(watch.window_ns);
        clock.sleep_ns(next.saturating_sub(clock.now_ns()));
        let now = read(host, &vcpus)?;
        for ((of_vcpu, now), before) in samples.iter_mut().zip(&now).zip(&before) {
            of_vcpu.push(now.saturating_sub(*before) as f64);
        }
        before = now;
    }
    let duration_ns = clock.now_ns().saturating_sub(began);
    Ok(vcpus
        .into_iter()
        .zip(samples)
        .map(|((cpu, _), samples)| Series {
            metric: Metric::RunDelay,
            cpu,
            duration_ns,
            observed_ns: duration_ns,
            dropped: 0,
            samples,
            flags: Vec::new(),
        })
        .collect())
}

/// Run delay of each thread so far (ns).
fn read(host: &dyn Host, vcpus: &[(u32, Tid)]) -> Result<Vec<u64>, HostError> {
    vcpus
        .iter()
        .map(|(_, tid)| {
            let path = paths::task_schedstat(*tid, *tid);
            let text = host.read_text(&path)?;
            schedstat::parse(&text).map(|stat| stat.delay_ns).map_err(|error| error.at(&path))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use pinfold_host::{SimClock, SnapshotHost};

    use super::*;

    #[test]
    fn one_sample_per_window_and_vcpu() {
        let files = [("/proc/7/task/7/schedstat", "100 200 3\n")];
        let host = SnapshotHost::from_files(
            files.map(|(path, text)| (path.to_owned(), text.as_bytes().to_vec())),
        );
        let clock = SimClock::at(0);
        let threads = [
            (TaskId { tid: Tid(7), start_time: 1 }, Role::Vcpu(0)),
            (TaskId { tid: Tid(8), start_time: 1 }, Role::Emulator),
        ];
        let watch = ObservationTimes { duration_ns: 50, window_ns: 10, goes_on: &|| true };
        let found = series(&host, &clock, &threads, &watch).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].samples, [0.0; 5]);
        assert!(series(&host, &clock, &[(threads[1].0, Role::Vcpu(1))], &watch).is_err());
        let began = clock.now_ns();
        let watch = ObservationTimes { goes_on: &|| clock.now_ns() < began + 20, ..watch };
        assert_eq!(series(&host, &clock, &threads, &watch).unwrap()[0].samples, [0.0; 2]);
    }
}
