//! The calibrated costs of methods in the state directory, measured since the last boot.
//!
//! ```text
//! {"format":"pinfold-calibration/1","machine":"97a2…","kernel":"6.18.1","boot_id":"0f4c…",
//!  "calibrations":[{"method":"stall","period_ns":200000,"together":"1","measured_ns":812000000000,
//!    "brief":false,
//!    "costs":[{"cpu":1,"extra_ns":[4100,4000,3900,3900,3900],"entry_ns":7000,
//!              "free_millionths":994000}]}]}
//! ```
//!
//! `measured_ns` is `CLOCK_MONOTONIC`. A file of another machine, kernel or boot is not valid; a
//! foreign or incomplete file is ignored, and this is reported. Two supervisors may write at the
//! same time: the file is replaced atomically, and lost entries are measured again. A thread writes
//! them: a start, and the heartbeats of vnodes, do not wait for the disk.

use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use crate::Failure;
use pinfold_emulate::{Calibration, Calibrations, Cost};
use pinfold_host::files::StateDir;
use pinfold_host::{Host, HostError, paths, with_causes};
use pinfold_model::{CpuSet, Method, PuId, Topology};
use serde::{Deserialize, Serialize};

use crate::message::say;

/// Name of the file in the state directory.
const FILE: &str = "calibration.json";
const FORMAT: &str = "pinfold-calibration/1";
/// Maximum length of the file (bytes).
const LONGEST: usize = 1 << 20;

/// The costs stored for this machine.
pub struct StoredCosts<'s> {
    state: &'s StateDir,
    key: Key,
    /// What writes the newest costs, after all earlier ones.
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// The conditions under which the costs are valid.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
struct Key {
    machine: String,
    kernel: String,
    boot_id: String,
}

#[derive(Deserialize, Serialize)]
struct Document {
    format: String,
    #[serde(flatten)]
    key: Key,
    calibrations: Vec<Entry>,
}

#[derive(Deserialize, Serialize)]
struct Entry {
    method: String,
    period_ns: u64,
    together: String,
    measured_ns: u64,
    /// Measured at one share only; older versions always measured all.
    #[serde(default)]
    brief: bool,
    costs: Vec<CostOf>,
}

#[derive(Deserialize, Serialize)]
struct CostOf {
    cpu: u32,
    extra_ns: [i64; 5],
    entry_ns: u64,
    free_millionths: u32,
}

impl<'s> StoredCosts<'s> {
    /// The costs for this host, kept in this state directory.
    pub fn from_host(
        host: &dyn Host,
        state: &'s StateDir,
        topology: &Topology,
    ) -> Result<Self, HostError> {
        let line = |path: String| Ok(host.read_text(&path)?.trim().to_owned());
        let key = Key {
            machine: topology.fingerprint.clone(),
            kernel: line(paths::kernel_release())?,
            boot_id: line(paths::boot_id())?,
        };
        Ok(Self { state, key, writer: Mutex::default() })
    }

    /// Reads all costs; an unusable file is reported.
    pub fn load(&self) -> Calibrations {
        self.read().unwrap_or_else(|why| {
            let path = self.state.path_of(FILE);
            say(&format!("{path} is ignored, and the costs are measured again: {why}"));
            Calibrations::default()
        })
    }

    /// Adds one in the background. A failed write is not fatal: the costs are measured again at the
    /// next start.
    pub fn add(&self, new: &Calibration) {
        let (path, key, new) = (self.state.path().to_owned(), self.key.clone(), new.clone());
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let earlier = writer.take();
        let thread = Builder::new().name("costs".to_owned()).spawn(move || {
            wait_for(earlier);
            let added = StateDir::open(&path)
                .map_err(|error| with_causes(&error))
                .and_then(|state| add_to(&state, key, &new));
            if let Err(why) = added {
                say(&format!("cannot store the measured cost: {why}"));
            }
        });
        match thread {
            Ok(thread) => *writer = Some(thread),
            Err(error) => say(&format!("cannot store the measured cost: {error}")),
        }
    }

    /// Waits until all costs are written.
    fn finish(&self) {
        wait_for(self.writer.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    fn read(&self) -> Result<Calibrations, String> {
        self.finish();
        read_from(self.state, &self.key)
    }
}

impl Drop for StoredCosts<'_> {
    fn drop(&mut self) {
        self.finish();
    }
}

fn wait_for(writer: Option<JoinHandle<()>>) {
    // One that panicked has lost its cost, which is measured again.
    match writer.map(JoinHandle::join) {
        None | Some(Ok(()) | Err(_)) => {}
    }
}

fn add_to(state: &StateDir, key: Key, new: &Calibration) -> Result<(), String> {
    let mut all = read_from(state, &key).unwrap_or_default();
    all.add(new.clone());
    let calibrations = all.0.iter().map(entry).collect();
    let document = Document { format: FORMAT.to_owned(), key, calibrations };
    let text = serde_json::to_vec(&document).map_err(|error| error.to_string())?;
    state.replace(FILE, &text).map_err(|error| with_causes(&error))
}

fn read_from(state: &StateDir, key: &Key) -> Result<Calibrations, String> {
    if !state.contains(FILE) {
        return Ok(Calibrations::default());
    }
    let bytes = state.read(FILE).map_err(|error| with_causes(&error))?;
    if bytes.len() > LONGEST {
        return Err(format!("it has {} bytes", bytes.len()));
    }
    let document: Document = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
    if document.format != FORMAT {
        return Err(format!("its format is {:?}, not {FORMAT}", document.format));
    }
    if document.key != *key {
        return Ok(Calibrations::default());
    }
    let all: Option<Vec<_>> = document.calibrations.into_iter().map(calibration).collect();
    all.map(Calibrations).ok_or_else(|| "it contains an impossible cost".to_owned())
}

/// Removes the costs; false if there were none.
pub fn forget(state: &StateDir) -> Result<bool, Failure> {
    match state.remove(FILE) {
        Ok(()) => Ok(true),
        Err(error) if error.is_gone() => Ok(false),
        Err(error) => Err(Failure::from(error)),
    }
}

fn entry(one: &Calibration) -> Entry {
    Entry {
        method: one.method.name().to_owned(),
        period_ns: one.period_ns,
        together: one.together.to_string(),
        measured_ns: one.measured_ns,
        brief: one.is_brief,
        costs: one
            .costs
            .iter()
            .map(|(pu, cost)| CostOf {
                cpu: pu.0,
                extra_ns: cost.extra_ns,
                entry_ns: cost.entry_ns,
                free_millionths: cost.free,
            })
            .collect(),
    }
}

/// `None` for values that no reference run can give.
fn calibration(entry: Entry) -> Option<Calibration> {
    let method = Method::from_name(&entry.method)?;
    let together = CpuSet::parse_list(&entry.together).ok()?;
    let costs = entry
        .costs
        .into_iter()
        .map(|one| {
            let CostOf { cpu, extra_ns, entry_ns, free_millionths: free } = one;
            let cost = Cost { extra_ns, entry_ns, free };
            (cost.is_plausible() && together.contains(PuId(cpu))).then_some((PuId(cpu), cost))
        })
        .collect::<Option<_>>()?;
    method.periods_ns().contains(&entry.period_ns).then_some(Calibration {
        method,
        period_ns: entry.period_ns,
        together,
        measured_ns: entry.measured_ns,
        is_brief: entry.brief,
        costs,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn one() -> Calibration {
        let cost = Cost { extra_ns: [4_100, 4_000, 3_900, -20, 0], entry_ns: 7_000, free: 994_000 };
        Calibration {
            method: Method::Stall,
            period_ns: 200_000,
            together: CpuSet::first_n(2),
            measured_ns: 812,
            is_brief: true,
            costs: BTreeMap::from([(PuId(1), cost)]),
        }
    }

    fn kept<'s>(state: &'s StateDir, boot_id: &str) -> StoredCosts<'s> {
        let key = Key { machine: word("97a2"), kernel: word("6.18"), boot_id: word(boot_id) };
        StoredCosts { state, key, writer: Mutex::default() }
    }

    fn word(text: &str) -> String {
        text.to_owned()
    }

    #[test]
    fn costs_are_kept_for_one_boot_and_can_be_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::open(&folder.path().join("state").to_string_lossy()).unwrap();
        assert_eq!(kept(&state, "a").read(), Ok(Calibrations::default()));
        kept(&state, "a").add(&one());
        assert_eq!(kept(&state, "a").read(), Ok(Calibrations(vec![one()])));
        assert_eq!(kept(&state, "b").read(), Ok(Calibrations::default()));
        kept(&state, "b").add(&one());
        assert_eq!(kept(&state, "a").read(), Ok(Calibrations::default()), "a boot is over");
        assert_eq!((forget(&state).unwrap(), forget(&state).unwrap()), (true, false));
        assert_eq!(kept(&state, "b").read(), Ok(Calibrations::default()));
    }

    #[test]
    fn costs_that_are_added_at_once_are_all_written() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::open(&folder.path().join("state").to_string_lossy()).unwrap();
        let periods = [100_000, 150_000, 200_000, 250_000];
        let all = periods.map(|period_ns| Calibration { period_ns, ..one() });
        let writing = kept(&state, "a");
        all.iter().for_each(|one| writing.add(one));
        drop(writing);
        assert_eq!(kept(&state, "a").read(), Ok(Calibrations(all.to_vec())));
    }

    #[test]
    fn a_file_that_cannot_be_used_is_ignored_and_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::open(&folder.path().join("state").to_string_lossy()).unwrap();
        let kept = kept(&state, "a");
        kept.add(&one());
        kept.finish();
        let good = String::from_utf8(state.read(FILE).unwrap()).unwrap();
        let long = format!("{good}{}", " ".repeat(LONGEST));
        for bad in [
            "",
            "{",
            "[]",
            &"[".repeat(10_000),
            &long,
            &good.replace("calibration/1", "calibration/9"),
            &good.replace("stall", "staple"),
            &good.replace("\"0-1\"", "\"0\""),
            &good.replace("4100", "4100000"),
            &good.replace("994000", "1994000"),
            &good.replace("200000", "2"),
        ] {
            state.replace(FILE, bad.as_bytes()).unwrap();
            assert!(kept.read().is_err(), "{}", &bad[..bad.len().min(80)]);
            assert_eq!(kept.load(), Calibrations::default());
            kept.add(&one());
            assert_eq!(kept.read(), Ok(Calibrations(vec![one()])));
        }
        // A file that other users can write to is not trusted.
        state.remove(FILE).unwrap();
        let path = state.path_of(FILE);
        pinfold_host::files::write_atomic(&path, good.as_bytes()).unwrap();
        let words = ["666", path.as_str()];
        pinfold_host::process::capture("chmod", words, 10_000_000_000).unwrap();
        assert!(kept.read().unwrap_err().contains("written by others"));
    }
}
