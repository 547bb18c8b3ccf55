//! Stands in for the programs that the binary starts: notes what was started, and what ended.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use pinfold_emulate::{Burner, Cleanup, HelperSpawner, SpeedError, Throughput, Watchdog};
use pinfold_model::{CpuSet, PuId};

/// What was noted, and whether burners have ended since somebody asked.
#[derive(Clone, Default)]
pub struct Notes(pub Arc<Mutex<Vec<String>>>, pub Arc<AtomicBool>);

impl Notes {
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().expect("a lock"))
    }

    fn note(&self, text: String) {
        self.0.lock().expect("a lock").push(text);
    }
}

struct Started(Notes, String);

impl Drop for Started {
    fn drop(&mut self) {
        self.0.note(format!("end {}", self.1));
    }
}

impl Burner for Started {
    fn check(&self) -> Result<(), SpeedError> {
        if self.0.1.swap(false, Ordering::Relaxed) {
            Err(SpeedError::HelperSpawner {
                what: "a burner",
                why: "killed by signal 9".to_owned(),
            })
        } else {
            Ok(())
        }
    }
}

impl Watchdog for Started {
    fn beat(&mut self) -> Result<(), SpeedError> {
        self.0.note("beat".to_owned());
        Ok(())
    }
}

impl HelperSpawner for Notes {
    fn report(&self, message: &str) {
        self.note(format!("report {message}"));
    }

    fn measure_throughput(
        &self,
        _: &[String],
        _: &CpuSet,
        _: u64,
    ) -> Result<Throughput, SpeedError> {
        Ok(Throughput::new())
    }

    fn spawn_burner(&self, entries: &[String], pu: PuId) -> Result<Box<dyn Burner>, SpeedError> {
        self.note(format!("burn on {pu} in {}", entries.join(" ")));
        Ok(Box::new(Started(self.clone(), format!("burner on {pu}"))))
    }

    fn spawn_watchdog(&self, what: Cleanup) -> Result<Box<dyn Watchdog>, SpeedError> {
        self.note(format!("sentinel {what:?}"));
        Ok(Box::new(Started(self.clone(), "sentinel".to_owned())))
    }
}
