//! What the methods start outside: witnesses and burners, both `pinload`.

use std::time::Duration;

use pinfold_host::process::{self, Child, Spawn, Stdio};
use pinfold_model::{CpuSet, PuId, Tid};
use pinfold_probe::pinload::Pinload;
use pinfold_probe::rulers::{Cpus, Kind, Ruler};
use pinfold_speed::{Burner, Gaps, Outside, SpeedError};

/// Programs from the copy of `pinload` that this process has installed.
pub struct Programs {
    pinload: Pinload,
}

impl Programs {
    pub fn new(pinload: Pinload) -> Self {
        Self { pinload }
    }
}

/// A ruler that spins all the time and tells every gap from a length on.
fn witness(pus: &CpuSet, (duration_ns, floor_ns): (u64, u64)) -> Ruler {
    let mut ruler = Ruler::spin_gap(duration_ns).on(Cpus::These(pus.clone()));
    ruler.kind = Kind::SpinGap { duty_percent: 100, period_us: 10_000, floor_ns };
    ruler
}

impl Outside for Programs {
    fn gaps(
        &self,
        entries: &[String],
        pus: &CpuSet,
        window_ns: (u64, u64),
    ) -> Result<Gaps, SpeedError> {
        let failed = |why: String| SpeedError::Outside { what: "the witness", why };
        let ruler = witness(pus, window_ns);
        let output = Spawn::new(&self.pinload.path())
            .args(ruler.argv())
            .cgroup_files(entries.to_vec())
            .capture(ruler.patience_ns())?;
        if !output.status.success() {
            let how = process::describe(output.status);
            return Err(failed(format!("{how}: {}", output.stderr_text().trim())));
        }
        let series =
            ruler.parse(&output.stdout_text()).map_err(|error| failed(error.to_string()))?;
        let whole = |samples: &[f64]| samples.iter().copied().map(whole_ns).collect();
        Ok(series.iter().map(|one| (PuId(one.cpu), whole(&one.samples))).collect())
    }

    fn burn(&self, entries: &[String], pu: PuId) -> Result<Box<dyn Burner>, SpeedError> {
        let child = Spawn::new(&self.pinload.path())
            .args(["load", "cpu", "--threads", "1", "--seconds", "86400"])
            .cgroup_files(entries.to_vec())
            .affinity(CpuSet::single(pu))
            .stdin(Stdio::Null)
            .stdout(Stdio::Null)
            .stderr(Stdio::Null)
            .die_with_parent(true)
            .own_group()
            .start()?;
        Ok(Box::new(Burning { child }))
    }
}

/// A sample, which the ruler has read from a clock of whole nanoseconds.
fn whole_ns(sample: f64) -> u64 {
    let time = Duration::try_from_secs_f64(sample / 1e9).unwrap_or_default();
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

struct Burning {
    child: Child,
}

impl Burner for Burning {
    fn pid(&self) -> Tid {
        self.child.pid()
    }
}
