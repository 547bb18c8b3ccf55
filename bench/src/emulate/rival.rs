//! Other tools: `cpulimit`, and a quota as with `systemd-run -p CPUQuota=`.

use pinfold_host::mountinfo::{self, Version};
use pinfold_host::process::{self, Child, Spawn, Stdio};
use pinfold_host::{Host as _, HostMut as _, LiveHost, paths};
use pinfold_model::CpuSet;

use super::load::{Load, PATIENCE_NS, Reading};
use crate::arguments::Failure;

/// systemd's period, which is the kernel's default.
const PERIOD_US: u64 = 100_000;
/// `cpulimit` stops a process that has just started for some 400 ms, then regulates it.
const SETTLE_MS: u32 = 800;
const GROUP: &str = "pinfold-bench-quota";

/// A cgroup with a common quota for all its tasks.
pub struct Quota {
    host: LiveHost,
    group: String,
    version: Version,
}

impl Quota {
    /// Creates the group, without a limit.
    pub fn make() -> Result<Self, Failure> {
        let host = LiveHost::new()?;
        let at = mountinfo::controller(&host, "cpu")?.ok_or("there is no cgroup with cpu")?;
        let root = at.mount.path.trim_end_matches('/').to_owned();
        if at.version == Version::V2 {
            host.write(&paths::cgroup_subtree_control(&root), b"+cpu")?;
        }
        let group = paths::cgroup_file(&root, GROUP);
        if !host.exists(&group) {
            host.make_dir(&group)?;
        }
        Ok(Self { host, group, version: at.version })
    }

    /// Sets the quota in units of CPUs; `None`: no limit.
    pub fn set(&self, share: Option<f64>) -> Result<(), Failure> {
        let quota = share.map(|share| (share * PERIOD_US as f64).round().to_string());
        match self.version {
            Version::V1 => {
                let period = PERIOD_US.to_string();
                self.host.write(&paths::cpu_cfs_period(&self.group), period.as_bytes())?;
                let quota = quota.unwrap_or_else(|| "-1".to_owned());
                self.host.write(&paths::cpu_cfs_quota(&self.group), quota.as_bytes())?;
            }
            Version::V2 => {
                let line = format!("{} {PERIOD_US}", quota.as_deref().unwrap_or("max"));
                self.host.write(&paths::cpu_max(&self.group), line.as_bytes())?;
            }
        }
        Ok(())
    }

    /// Runs a load in it.
    pub fn run(&self, pinload: &str, pus: &CpuSet, load: Load) -> Result<Reading, Failure> {
        let entry = paths::cgroup_procs(&self.group);
        let spawn = Spawn::new(pinload).args(load.argv()).cgroup_files(vec![entry]);
        run(spawn.affinity(pus.clone()), load)
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        // An empty group that remains is used by the next run.
        match self.host.remove_dir(&self.group) {
            Ok(()) | Err(_) => {}
        }
    }
}

/// Runs a load to its end.
pub fn run(spawn: Spawn, load: Load) -> Result<Reading, Failure> {
    let output = spawn.capture(PATIENCE_NS)?;
    if !output.status.success() {
        let how = process::describe(output.status);
        return Err(format!("{}: {how}: {}", load.name(), output.stderr_text().trim()).into());
    }
    Ok(load.read(&output.stdout_text())?)
}

/// Runs a load that `cpulimit` controls from its start; the share is of one CPU. The counted part
/// starts when it has settled.
pub fn under_cpulimit(
    cpulimit: &str,
    pinload: &str,
    pus: &CpuSet,
    share: f64,
    load: Load,
) -> Result<Reading, Failure> {
    let load = load.after(SETTLE_MS);
    let mut child = Spawn::new(pinload)
        .args(load.argv())
        .affinity(pus.clone())
        .stdin(Stdio::Null)
        .stdout(Stdio::Pipe)
        .own_group()
        .die_with_parent(true)
        .start()?;
    let police = police(cpulimit, &child, share, load)?;
    let mut text = String::new();
    if let Some(mut pipe) = child.stdout() {
        std::io::Read::read_to_string(&mut pipe, &mut text)?;
    }
    let status = child.wait()?;
    drop(police);
    if !status.success() {
        return Err(format!("{} under cpulimit: {}", load.name(), process::describe(status)).into());
    }
    Ok(load.read_after(&text, SETTLE_MS)?)
}

fn police(cpulimit: &str, child: &Child, share: f64, load: Load) -> Result<Child, Failure> {
    let percent = (share * 100.0).round().to_string();
    let pid = child.pid().0.to_string();
    let mut words = vec!["-q", "-z", "-l", &percent, "-p", &pid];
    if load.has_children() {
        words.push("-m");
    }
    let police = Spawn::new(cpulimit)
        .args(words)
        .stdin(Stdio::Null)
        .stdout(Stdio::Null)
        .stderr(Stdio::Null)
        .die_with_parent(true)
        .start()?;
    Ok(police)
}
