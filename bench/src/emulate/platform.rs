//! A platform of `pinfold emulate up`, for the turn of a method.
//!
//! The supervisor is a child of this process, so that it ends with it. Only one platform is active
//! at a time: a method that wakes a burner every half millisecond, even at 100 %, would slow all
//! others.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use pinfold_host::files;
use pinfold_host::process::{self, Child, Spawn, Stdio};
use pinfold_host::{Clock as _, Host as _, LiveHost, SystemClock, paths, proc_stat, schedstat};
use pinfold_model::{CpuSet, PuId, Tid};
use serde_json::{Value, json};

use super::load::{Load, PATIENCE_NS, Reading};
use crate::arguments::Failure;

const READY_NS: u64 = 60_000_000_000;
const LOOK_NS: u64 = 20_000_000;
const COMMAND_NS: u64 = 60_000_000_000;
/// A change of speed takes effect within two periods; the lead of a run covers the longest.
const SETTLE_NS: u64 = 20_000_000;
/// Name prefix of the supervisor's threads that are the stolen share itself.
const BURNER: &str = "hog-";

/// The programs, and the folder of the platform's file and state.
#[derive(Clone, Copy, Debug)]
pub struct Tools<'t> {
    /// Path of `pinfold`.
    pub pinfold: &'t str,
    /// Path of `pinload`.
    pub pinload: &'t str,
    /// Path of the folder.
    pub folder: &'t str,
}

/// An active platform.
pub struct Platform<'t> {
    tools: Tools<'t>,
    state: String,
    supervisor: Child,
}

impl<'t> Platform<'t> {
    /// Starts the platform of this file's text; returns when its vnodes are ready.
    pub fn up(tools: Tools<'t>, name: &str, toml: &str) -> Result<Self, Failure> {
        Self::up_with(tools, name, toml, &[])
    }

    /// The same with these options of `emulate up`.
    pub fn up_with(
        tools: Tools<'t>,
        name: &str,
        toml: &str,
        options: &[&str],
    ) -> Result<Self, Failure> {
        let file = format!("{}/{name}.toml", tools.folder);
        files::write_atomic(&file, toml.as_bytes())?;
        let state = format!("{}/{name}", tools.folder);
        let supervisor = Spawn::new(tools.pinfold)
            .args(["--state-dir", &state, "emulate", "up", "--foreground", &file])
            .args(options)
            .stdin(Stdio::Null)
            .stdout(Stdio::Null)
            .stderr(Stdio::Pipe)
            .die_with_parent(true)
            .start()?;
        let mut platform = Self { tools, state, supervisor };
        let end = SystemClock.now_ns().saturating_add(READY_NS);
        while SystemClock.now_ns() < end {
            if platform.status().is_ok() {
                return Ok(platform);
            }
            if platform.supervisor.try_wait()?.is_some() {
                let said = platform.read_output()?;
                return Err(format!("pinfold emulate up: {said}").into());
            }
            SystemClock.sleep_ns(LOOK_NS);
        }
        Err("the vnodes did not start within a minute".into())
    }

    fn command(&self, words: &[&str]) -> Spawn {
        Spawn::new(self.tools.pinfold).args(["--state-dir", &self.state, "emulate"]).args(words)
    }

    fn ask(&self, words: &[&str]) -> Result<String, Failure> {
        let output = self.command(words).capture(COMMAND_NS)?;
        if !output.status.success() {
            return Err(format!(
                "pinfold emulate {}: {}",
                words.join(" "),
                output.stderr_text().trim()
            )
            .into());
        }
        Ok(output.stdout_text())
    }

    fn status(&self) -> Result<Value, Failure> {
        Ok(serde_json::from_str(&self.ask(&["status", "--json"])?)?)
    }

    /// Its state directory.
    pub fn state(&self) -> &str {
        &self.state
    }

    /// The CPUs of a vnode.
    pub fn pus(&self, vnode: &str) -> Result<CpuSet, Failure> {
        let status = self.status()?;
        let vnodes = status["vnodes"].as_array().ok_or("a status without vnodes")?;
        let found = vnodes.iter().find(|one| one["vnode"] == vnode).ok_or("no such vnode")?;
        let cores = found["cores"].as_array().ok_or("a vnode without cores")?;
        Ok(cores
            .iter()
            .filter_map(|core: &Value| core["pu"].as_u64().and_then(|pu| u32::try_from(pu).ok()))
            .map(PuId)
            .collect())
    }

    /// The vnodes, and the speed of each.
    pub fn speeds(&self) -> Result<Vec<(String, f64)>, Failure> {
        let status = self.status()?;
        let vnodes = status["vnodes"].as_array().ok_or("a status without vnodes")?;
        let speeds: Option<Vec<_>> = vnodes
            .iter()
            .map(|vnode| {
                Some((vnode["vnode"].as_str()?.to_owned(), vnode["cores"][0]["asked"].as_f64()?))
            })
            .collect();
        Ok(speeds.ok_or("a vnode without a name or a speed")?)
    }

    /// Changes a vnode's speed: sends the request of `pinfold emulate set` to the supervisor,
    /// without a process each time, which would affect the measurement.
    pub fn set(&self, vnode: &str, speed: f64) -> Result<(), Failure> {
        let share = format!("{speed:.6}");
        let line = json!({ "set": { "vnode": vnode, "speed": share, "pu": null } });
        let mut stream = UnixStream::connect(format!("{}/emulate.sock", self.state))?;
        stream.write_all(format!("{line}\n").as_bytes())?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let answer: Value = serde_json::from_str(&text)?;
        match answer["refused"]["why"].as_str() {
            None => Ok(()),
            Some(why) => Err(format!("{vnode} at {share}: {why}").into()),
        }
    }

    /// Waits until a change has taken effect.
    pub fn settle(&self) {
        SystemClock.sleep_ns(SETTLE_NS);
    }

    /// Runs a command in a vnode, and returns what it printed.
    pub fn print_in(&self, vnode: &str, command: &[&str]) -> Result<String, Failure> {
        self.ask(&[&["exec", vnode, "--"], command].concat())
    }

    /// `pinload` with these arguments in a vnode, ready to be started.
    pub fn command_in(&self, vnode: &str, argv: &[String]) -> Spawn {
        self.command(&["exec", vnode, "--", self.tools.pinload]).args(argv)
    }

    /// A load in a vnode, ready to be started.
    pub fn entering(&self, vnode: &str, load: Load) -> Spawn {
        self.command_in(vnode, &load.argv())
    }

    /// Runs a load in a vnode.
    pub fn run(&self, vnode: &str, load: Load) -> Result<Reading, Failure> {
        let output = self.entering(vnode, load).capture(PATIENCE_NS)?;
        if !output.status.success() {
            let how = process::describe(output.status);
            return Err(format!(
                "{} in {vnode}: {how}: {}",
                load.name(),
                output.stderr_text().trim()
            )
            .into());
        }
        Ok(load.read(&output.stdout_text())?)
    }

    /// CPU time of the supervisor's threads (ns), without those that are the stolen share.
    pub fn supervisor_cpu_ns(&self, host: &LiveHost) -> Result<u64, Failure> {
        let pid = self.supervisor.pid();
        let mut sum = 0;
        for name in host.list(&paths::task_dir(pid))? {
            let tid = Tid(name.parse()?);
            let path = paths::task_stat(pid, tid);
            let stat =
                proc_stat::parse(&host.read_text(&path)?).map_err(|error| error.at(&path))?;
            if stat.comm.starts_with(BURNER) {
                continue;
            }
            let path = paths::task_schedstat(pid, tid);
            let text = host.read_text(&path)?;
            sum += schedstat::parse(&text).map_err(|error| error.at(&path))?.run_ns;
        }
        Ok(sum)
    }

    /// Ends the platform.
    pub fn down(mut self) -> Result<(), Failure> {
        let ended = self.ask(&["down"]).map(|_| ());
        match self.supervisor.wait_for(&SystemClock, COMMAND_NS)? {
            Some(_) => {
                let said = self.read_output()?;
                ended.map_err(|error| format!("{error}; its supervisor said: {said}").into())
            }
            None => Err("the supervisor did not end when the platform was down".into()),
        }
    }

    /// The output of the supervisor until its end.
    fn read_output(&mut self) -> Result<String, Failure> {
        let mut text = String::new();
        if let Some(mut pipe) = self.supervisor.stderr() {
            pipe.read_to_string(&mut text)?;
        }
        Ok(text.trim().to_owned())
    }
}

impl Drop for Platform<'_> {
    fn drop(&mut self) {
        // After `down` there is nothing to end or undo; otherwise the platform is ended here, so
        // that the next one finds its groups unused.
        let ended = self.supervisor.terminate().is_ok()
            && self.supervisor.wait_for(&SystemClock, COMMAND_NS).is_ok();
        let words = ["--state-dir", &self.state, "undo", "--all"];
        if ended && process::capture(self.tools.pinfold, words, COMMAND_NS).is_err() {}
    }
}
