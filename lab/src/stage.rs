//! The state of the host before Pinfold runs: mounted cgroups, bystanders of many kinds, two
//! machines.
//!
//! ```text
//! v1          / init, kernel threads, root shell    /services (batch, narrow mask, real-time)
//!             /guests the machine, another machine, a shell
//!             /containers (a service) /a (1-2) /tiny (3: no CPU for the host's tasks)
//! v2, plain   / init, kernel threads, the machine   /system.slice   (the controller is unused)
//! v2, used    /init.scope  /system.slice  /user.slice (0-2)  /machine.slice/{vm,other}.scope
//! ```
//!
//! The shells fork on demand, a child and an orphan each, and reply when that is done.

use std::collections::BTreeMap;

use pinfold_model::CpuSet;

use crate::error::LabError;
use crate::guest::Guest;
use crate::snapshot::Snapshot;

/// A cgroup hierarchy and its use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cgroups {
    /// Version 1.
    V1,
    /// Version 2, with the cpuset controller not enabled for any group.
    V2Plain,
    /// Version 2, with the controller enabled and used, as by systemd.
    V2Used,
}

impl Cgroups {
    /// Name for tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Cgroups::V1 => "cgroup v1",
            Cgroups::V2Plain => "cgroup v2, cpuset unused",
            Cgroups::V2Used => "cgroup v2, cpuset in use",
        }
    }

    /// Mount point of the hierarchy with the controller.
    pub(crate) fn root(self) -> &'static str {
        match self {
            Cgroups::V1 => "/sys/fs/cgroup/cpuset",
            Cgroups::V2Plain | Cgroups::V2Used => "/sys/fs/cgroup",
        }
    }

    pub(crate) fn is_v1(self) -> bool {
        match self {
            Cgroups::V1 => true,
            Cgroups::V2Plain | Cgroups::V2Used => false,
        }
    }

    fn make(self) -> &'static str {
        match self {
            Cgroups::V1 => {
                "mount -t tmpfs none /sys/fs/cgroup; mkdir /sys/fs/cgroup/cpuset
                 mount -t cgroup -o cpuset none /sys/fs/cgroup/cpuset; cd /sys/fs/cgroup/cpuset
                 group() { mkdir $1; echo 0 > $1/cpuset.mems; echo $2 > $1/cpuset.cpus; }
                 group services 0-3; group guests 0-3
                 group containers 0-3; group containers/a 1-2; group containers/tiny 3"
            }
            Cgroups::V2Plain => {
                "mount -t cgroup2 none /sys/fs/cgroup; cd /sys/fs/cgroup; mkdir system.slice"
            }
            Cgroups::V2Used => {
                "mount -t cgroup2 none /sys/fs/cgroup; cd /sys/fs/cgroup
                 mkdir init.scope system.slice user.slice machine.slice
                 mkdir machine.slice/vm.scope machine.slice/other.scope
                 echo 1 > init.scope/cgroup.procs
                 echo +cpuset > cgroup.subtree_control
                 echo 0-2 > user.slice/cpuset.cpus"
            }
        }
    }

    /// Groups (below the root) of the machine, the other machine, and the bystanders by name.
    fn places(self) -> HostPaths {
        match self {
            Cgroups::V1 => HostPaths {
                vm: "guests",
                other: "guests",
                shells: [".", "guests"],
                services: &["services", "containers", "containers/a", "containers/tiny"],
            },
            Cgroups::V2Plain => HostPaths {
                vm: ".",
                other: "system.slice",
                shells: [".", "system.slice"],
                services: &["system.slice"],
            },
            Cgroups::V2Used => HostPaths {
                vm: "machine.slice/vm.scope",
                other: "machine.slice/other.scope",
                shells: ["init.scope", "user.slice"],
                services: &["system.slice"],
            },
        }
    }

    /// Groups for which undo restores the list with explicit CPUs where it was empty, because a
    /// kernel before 7.0 accepts no empty list for a group with tasks while the controller is in
    /// use.
    pub(crate) fn near_after_undo(self, release: &str) -> &'static [&'static str] {
        let major = release.split('.').next().and_then(|text| text.parse::<u32>().ok());
        match self {
            Cgroups::V1 | Cgroups::V2Plain => &[],
            Cgroups::V2Used if major.is_some_and(|major| major >= 7) => &[],
            Cgroups::V2Used => &["init.scope", "system.slice"],
        }
    }
}

const TRY_V1: &str =
    "mkdir /tmp/v1 && mount -t cgroup -o cpuset none /tmp/v1 && umount /tmp/v1 && rmdir /tmp/v1";

struct HostPaths {
    vm: &'static str,
    other: &'static str,
    /// Groups of the [`SHELLS`].
    shells: [&'static str; 2],
    services: &'static [&'static str],
}

/// Maximum number of snapshots while the host does not settle.
const LOOKS: usize = 5;

/// Monitor socket of the machine that is placed.
pub(crate) const MONITOR: &str = "/tmp/vm.qmp";

/// A prepared host under test, with its initial snapshot.
#[derive(Debug)]
pub(crate) struct LabHost {
    pub(crate) guest: Guest,
    pub(crate) cgroups: Cgroups,
    pub(crate) before: Snapshot,
    /// The machine's process.
    pub(crate) vm: u32,
    /// The CPUs that it will have exclusively.
    pub(crate) alone: CpuSet,
}

impl LabHost {
    /// A booted guest without the processes of the stage.
    pub(crate) fn new(guest: Guest, cgroups: Cgroups, alone: CpuSet) -> Self {
        Self { guest, cgroups, before: Snapshot::default(), vm: 0, alone }
    }

    /// Starts the processes, and takes the initial snapshot.
    pub(crate) fn set(&mut self) -> Result<(), LabError> {
        (self.before, self.vm) = prepare(&mut self.guest, self.cgroups)?;
        Ok(())
    }

    /// Takes another snapshot.
    pub(crate) fn look(&mut self) -> Result<Snapshot, LabError> {
        Snapshot::take(&mut self.guest, self.cgroups.root(), self.cgroups.is_v1())
    }

    /// Makes each shell fork a child and an orphan.
    pub(crate) fn fork(&mut self) -> Result<(), LabError> {
        fork(&mut self.guest)
    }

    /// Ends the processes created by [`LabHost::fork`].
    pub(crate) fn reap(&mut self) -> Result<(), LabError> {
        reap(&mut self.guest)
    }
}

/// Names of the shells that fork on demand.
pub(crate) const SHELLS: [&str; 2] = ["root", "beside"];

/// Starts one of [`SHELLS`], which first runs `first`. The end of a child interrupts the open(2) of
/// a pipe: then the shell retries.
pub(crate) fn forks_on_demand(guest: &mut Guest, name: &str, first: &str) -> Result<(), LabError> {
    guest.shell(&format!("mkfifo /tmp/{name}.ask /tmp/{name}.done"))?;
    guest.background(&format!(
        "{first}; while true; do read what < /tmp/{name}.ask || continue; /bin/sleep 99999 & \
         (/bin/sleep 99999 &); echo done > /tmp/{name}.done; done"
    ))?;
    Ok(())
}

/// Makes each shell fork a child and an orphan.
pub(crate) fn fork(guest: &mut Guest) -> Result<(), LabError> {
    guest.shell(&format!(
        "for s in {}; do echo fork > /tmp/$s.ask; read done < /tmp/$s.done; done",
        SHELLS.join(" ")
    ))?;
    Ok(())
}

/// Ends the processes created by [`fork`].
pub(crate) fn reap(guest: &mut Guest) -> Result<(), LabError> {
    guest.shell("killall -9 sleep 2>/dev/null || true")?;
    Ok(())
}

/// The first snapshot that equals the next one: a machine that has just started is not settled.
fn wait_until_settled(guest: &mut Guest, root: &str, is_v1: bool) -> Result<Snapshot, LabError> {
    let mut before = Snapshot::take(guest, root, is_v1)?;
    for _ in 0..LOOKS {
        let next = Snapshot::take(guest, root, is_v1)?;
        if next.differences(&before, &BTreeMap::new()).is_empty() {
            break;
        }
        before = next;
    }
    Ok(before)
}

fn prepare(guest: &mut Guest, cgroups: Cgroups) -> Result<(Snapshot, u32), LabError> {
    if cgroups.is_v1() && !guest.run(&["/bin/busybox", "sh", "-c", TRY_V1])?.success() {
        let what = format!("cpuset of cgroup v1 in {}", guest.release);
        let hint = "its configuration has no CONFIG_CPUSETS_V1".to_owned();
        return Err(LabError::Missing { what, hint });
    }
    guest.shell(cgroups.make())?;
    let places = cgroups.places();
    let root = cgroups.root();
    let enter = |group: &str| format!("echo $$ > {root}/{group}/cgroup.procs; ");
    let machine = guest.machine();
    let qemu = |name: &str| {
        format!(
            "exec {machine} -accel tcg,thread=multi -smp 2 -name {name},debug-threads=on \
             -qmp unix:/tmp/{name}.qmp,server=on,wait=off -pidfile /tmp/{name}.pid"
        )
    };
    guest.background(&format!("{}{}", enter(places.vm), qemu("vm")))?;
    guest.background(&format!("{}{}", enter(places.other), qemu("other")))?;
    for (name, group) in SHELLS.into_iter().zip(places.shells) {
        // One of them has its own mask, which its children inherit.
        let own = if name == "root" { "taskset -p e $$ >/dev/null" } else { "true" };
        forks_on_demand(guest, name, &format!("{}{own}", enter(group)))?;
    }
    let kinds = ["", "taskset 8 ", "taskset 6 ", "chrt -b 0 ", "chrt -f 5 "];
    for group in places.services {
        // A mask outside of the group is refused; for such groups the plain ones suffice.
        let many = if *group == places.services[0] { kinds.len() } else { 1 };
        for kind in &kinds[..many] {
            guest.background(&format!(
                "{}exec {kind}/bin/busybox tail -f /dev/null",
                enter(group)
            ))?;
        }
    }
    guest.shell(
        "for f in /tmp/vm.pid /tmp/other.pid; do until [ -s $f ]; do usleep 50000; done; done
         until [ $(ls /proc/$(cat /tmp/other.pid)/task | wc -l) -ge 3 ]; do usleep 50000; done
         until [ $(ls /proc/$(cat /tmp/vm.pid)/task | wc -l) -ge 3 ]; do usleep 50000; done
         for t in $(ls /proc/$(cat /tmp/other.pid)/task | tail -n 1); do taskset -p 4 $t; done",
    )?;
    let vm = guest.shell("cat /tmp/vm.pid")?;
    let vm = vm.trim().parse().map_err(|_| LabError::wrong("pid of the machine", vm.clone()))?;
    let before = wait_until_settled(guest, root, cgroups.is_v1())?;
    let expected = 4 + places.services.len() + 4;
    let users = before.tasks.values().filter(|task| !task.is_kernel_thread()).count();
    if users >= expected {
        Ok((before, vm))
    } else {
        Err(LabError::wrong("the stage", format!("only {users} tasks are on it")))
    }
}
