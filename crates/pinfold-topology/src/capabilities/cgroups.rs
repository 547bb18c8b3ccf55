//! Control groups: the location of each controller, and the features of cpuset.
//! <https://docs.kernel.org/admin-guide/cgroup-v2.html>

use pinfold_host::mountinfo::Version;
use pinfold_host::{osrelease, paths};

use super::{Capability, Context, LinuxCapability};

/// Controllers that Pinfold can use, each with its name in v1.
const CONTROLLERS: [(&str, &str); 5] = [
    ("cpuset", "cpuset"),
    ("cpu", "cpu"),
    ("memory", "memory"),
    ("io", "blkio"),
    ("freezer", "freezer"),
];

/// First kernel version with `isolated` partitions.
const PARTITIONS_SINCE: (u32, u32) = (6, 1);

/// Which controllers are mounted, each with its version.
pub(super) fn controllers(context: &Context<'_>) -> Capability {
    const NAME: &str = "cgroups";
    let groups = match &context.groups {
        Ok(groups) => groups,
        Err(error) => return Capability::unread(NAME, error),
    };
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for (v2_name, v1_name) in CONTROLLERS {
        // In v2 the freezer is part of the core and not a controller.
        let own = groups.own(v1_name).or_else(|| groups.own(v2_name));
        match own.map(|own| own.at.version) {
            Some(Version::V1) => found.push(format!("{v1_name} v1")),
            Some(Version::V2) => found.push(format!("{v2_name} v2")),
            None if v2_name == "freezer" && context.find_mount("cgroup2").is_some() => {
                found.push("freezer v2".to_owned());
            }
            None => missing.push(v2_name),
        }
    }
    if found.is_empty() {
        return Capability::no(NAME, "no control group hierarchy is mounted")
            .hint("boot with systemd, or mount one: `mount -t cgroup2 none DIRECTORY`");
    }
    let unified = found.iter().all(|one| one.ends_with("v2"));
    let beside = if !unified && context.find_mount("cgroup2").is_some() {
        "; v2 is mounted next to v1"
    } else {
        ""
    };
    if missing.is_empty() {
        Capability::yes(NAME, format!("{}{beside}", found.join(", ")))
    } else {
        Capability::partly(
            NAME,
            format!("{}{beside}; not there: {}", found.join(", "), missing.join(", ")),
        )
    }
}

/// Restricting tasks to CPUs with cpuset, and permission to do so.
pub(super) fn cpuset(context: &Context<'_>) -> Capability {
    const NAME: &str = "cgroup cpuset";
    let groups = match &context.groups {
        Ok(groups) => groups,
        Err(error) => return Capability::unread(NAME, error),
    };
    let Some(own) = groups.own("cpuset") else {
        return Capability::no(NAME, "no mounted hierarchy has the cpuset controller")
            .hint("--isolate none needs no cpuset; else boot without cgroup_disable=cpuset");
    };
    let version = version_word(own.at.version);
    let Some(directory) = own.directory else {
        return Capability::partly(
            NAME,
            format!(
                "cpuset {version}, but the cgroup of this process is outside the mounted hierarchy"
            ),
        )
        .hint("run outside the container, or give the container its own cgroup mount");
    };
    if own.at.mount.is_read_only() {
        return Capability::partly(NAME, format!("cpuset {version}, mounted read-only"))
            .hint("run outside the container to isolate CPUs; --isolate none works here");
    }
    if !context.has(LinuxCapability::SysAdmin) {
        return Capability::partly(
            NAME,
            format!("cpuset {version} at {directory}, but creating groups there needs root"),
        )
        .hint("run as root to isolate CPUs; --isolate none works without");
    }
    Capability::yes(NAME, format!("cpuset {version}, own group {directory}"))
}

/// Isolating CPUs from the scheduler without a reboot.
pub(super) fn partitions(context: &Context<'_>) -> Capability {
    const NAME: &str = "isolated partitions";
    let release = match context.text(&paths::kernel_release()) {
        Ok(release) => release.unwrap_or_default(),
        Err(error) => return Capability::unread(NAME, &error),
    };
    let groups = match &context.groups {
        Ok(groups) => groups,
        Err(error) => return Capability::unread(NAME, error),
    };
    let (major, minor) = PARTITIONS_SINCE;
    match (groups.own("cpuset").map(|own| own.at.version), osrelease::version(&release)) {
        (Some(Version::V2), Some(version)) if version >= PARTITIONS_SINCE => {
            Capability::yes(NAME, format!("cpuset v2 on Linux {release}"))
        }
        (Some(Version::V2), Some(_)) => Capability::no(
            NAME,
            format!("Linux {release} is older than {major}.{minor}"),
        )
        .hint("isolcpus=domain,managed_irq,LIST at boot does the same"),
        (Some(Version::V2), None) => {
            Capability::partly(NAME, format!("the kernel release {release:?} has no version"))
        }
        (Some(Version::V1), _) => Capability::no(
            NAME,
            "cpuset is on cgroup v1, which has exclusive groups but no isolated partitions",
        )
        .hint("boot with systemd.unified_cgroup_hierarchy=1 (cgroup_no_v1=all), or isolate with isolcpus="),
        (None, _) => Capability::no(NAME, "there is no cpuset controller"),
    }
}

fn version_word(version: Version) -> &'static str {
    match version {
        Version::V1 => "v1",
        Version::V2 => "v2",
    }
}
