//! For how long quotas stopped a machine.

use pinfold_host::{Host, OpenKernelFile, cpu_groups, mountinfo, paths};
use pinfold_model::Tid;

/// The cgroups of a machine that count how long a quota stopped them.
#[derive(Default)]
pub struct Quotas(Vec<Quota>);

struct Quota {
    dir: String,
    file: OpenKernelFile,
    throttled_ns: u64,
}

impl Quotas {
    /// Those of a process; groups that were known before keep what was read of them.
    pub fn open(host: &dyn Host, pid: Tid, before: &Self) -> Self {
        let mounts = host.read_text(&paths::own_mountinfo()).ok();
        let mounts = mounts.and_then(|text| mountinfo::parse(&text).ok());
        let (Some(mounts), Some(text)) =
            (mounts, host.read_text(&paths::task_file(pid, pid, "cgroup")).ok())
        else {
            return Self(Vec::new());
        };
        let mount = mountinfo::v1_mount(&mounts, "cpu").or_else(|| mountinfo::v2_mount(&mounts));
        let dirs = mount.map(|mount| cpu_groups::dirs(&mount, &text)).unwrap_or_default();
        let quotas = dirs.into_iter().filter_map(|dir| {
            let file = OpenKernelFile::open(&format!("{dir}/cpu.stat")).ok()?;
            let now_ns = cpu_groups::throttling(&file.read().ok()?)?.ns;
            let known = before.0.iter().find(|quota| quota.dir == dir);
            // A group that was made anew counts from 0.
            let throttled_ns = known.map_or(now_ns, |quota| quota.throttled_ns.min(now_ns));
            Some(Quota { dir, file, throttled_ns })
        });
        Self(quotas.collect())
    }

    /// For how long they stopped it since the last time: that of the group that stopped it longest;
    /// `None` without a group. A group that stops it makes its threads wait: of a machine that has
    /// not waited nothing is read.
    pub fn read(&mut self, has_waited: bool) -> Option<u64> {
        if !has_waited {
            return (!self.0.is_empty()).then_some(0);
        }
        let mut longest = None;
        self.0.retain_mut(|quota| {
            let text = quota.file.read().ok();
            let Some(now) = text.and_then(|text| cpu_groups::throttling(&text)) else {
                return false;
            };
            let stopped = now.ns.saturating_sub(quota.throttled_ns);
            quota.throttled_ns = now.ns;
            longest = longest.max(Some(stopped));
            true
        });
        longest
    }
}
