//! The example of the documentation: three hosts of mininet run etcd at the speeds of three vnodes.
//! A put takes longer with slower links and with a slower leader, and when the fast host is stopped
//! another one leads.
//!
//! The program and the platform are those of the documentation, except for the timeouts of etcd and
//! the method: under the emulator, periods of 100 ms are long enough for a fair share. The program
//! runs in a root of its own with the packages of Debian 12, and reaches the Pinfold of the guest
//! through the root of its init.

use super::vnodes::{HostState, UP, mount, put, same};
use crate::error::{LabError, expect_none};
use crate::guest::Guest;
use crate::guest_files::{MODULES, NETWORK};

const NODES: &str = include_str!("../../../docs/examples/etcd-nodes.toml");
const PROGRAM: &str = include_str!("../../../docs/examples/etcd-nodes.py");
const TIMEOUTS: &str = "HEARTBEAT_MS, ELECTION_MS = 200, 2000";
const LONGER: &str = "HEARTBEAT_MS, ELECTION_MS = 1000, 10000";
/// The root of mininet and etcd. mininet makes the mounts below it private: it must be one itself.
const INSIDE: &str = "/lab/network";
const PREPARE: &str =
    "for module in llc stp bridge veth sch_netem; do insmod MODULES/$module.ko; done
    mkdir -p INSIDE /dev/pts; mount -t devpts none /dev/pts; mount -t tmpfs none INSIDE
    tar -xf ARCHIVE -C INSIDE; rm ARCHIVE
    for folder in proc sys dev run; do
        mkdir -p INSIDE/$folder; mount --rbind /$folder INSIDE/$folder; done
    ln -s which.debianutils INSIDE/usr/bin/which
    printf '#!/bin/sh\\nexec chroot /proc/1/root /usr/bin/pinfold \"$@\"\\n' \
        > INSIDE/usr/bin/pinfold
    chmod +x INSIDE/usr/bin/pinfold";
const RUN: &str = "chroot INSIDE env PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root \
    python3 /root/etcd-nodes.py > /tmp/etcd 2>&1 && r=0 || r=$?; echo $r > /tmp/etcd.exit";
/// Waits some minutes for its end, and prints the exit code if it has ended.
const ENDED: &str =
    "n=0; until [ -s /tmp/etcd.exit ] || [ $n = 200 ]; do n=$((n + 1)); sleep 1; done
    cat /tmp/etcd.exit 2> /dev/null || true";
const WAITS: usize = 10;
/// Interfaces and members of the cluster.
const LEFT: &str = "ls /sys/class/net; pidof etcd bash python3 || true";

pub(super) fn follow_link_and_speed(guest: &mut Guest) -> Result<String, LabError> {
    mount(guest)?;
    let script = PREPARE.replace("INSIDE", INSIDE).replace("MODULES", MODULES);
    guest.shell(&script.replace("ARCHIVE", NETWORK))?;
    let program = PROGRAM.replace(TIMEOUTS, LONGER);
    guest.shell(&format!("cat > {INSIDE}/root/etcd-nodes.py <<'END'\n{program}END"))?;
    let (before, left) = (HostState::take(guest)?, guest.shell(LEFT)?);
    put(
        guest,
        &NODES.replace("cores = 1\n", "cores = 1\nmethod = \"hogs\"\nperiod = \"100ms\"\n"),
    )?;
    guest.pinfold(&UP)?;
    guest.background(&RUN.replace("INSIDE", INSIDE))?;
    let mut exit = String::new();
    for _ in 0..WAITS {
        exit = guest.shell(ENDED)?;
        if !exit.is_empty() {
            break;
        }
    }
    let text = guest.shell("cat /tmp/etcd")?;
    if exit.trim() != "0" {
        let logs = guest.shell(&format!("tail -n 20 {INSIDE}/tmp/etcd-*.log"))?;
        return Err(LabError::wrong(format!("exit code {exit:?} of the example"), text + &logs));
    }
    same(guest, &before, "the example left a trace")?;
    let now = guest.shell(LEFT)?;
    if now != left {
        return Err(LabError::wrong("the example left interfaces or processes", now));
    }
    check(&text)
}

/// The puts of one line: `links of 5 ms, fast leads: put 40.2 ms, at least 25.1 ms`.
struct Puts<'t> {
    when: &'t str,
    leader: &'t str,
    median_ms: f64,
    least_ms: f64,
}

impl<'t> Puts<'t> {
    fn parse(line: &'t str) -> Option<Self> {
        let (when, rest) = line.split_once(", ")?;
        let (leader, rest) = rest.split_once(" leads: put ")?;
        let (median, least) = rest.strip_suffix(" ms")?.split_once(" ms, at least ")?;
        Some(Self { when, leader, median_ms: median.parse().ok()?, least_ms: least.parse().ok()? })
    }

    /// A put waits for one round trip: two links in each direction.
    fn round_trip_ms(&self) -> Option<f64> {
        let delay: f64 = self.when.strip_prefix("links of ")?.strip_suffix(" ms")?.parse().ok()?;
        Some(4.0 * delay)
    }
}

fn check(text: &str) -> Result<String, LabError> {
    let all: Vec<Puts<'_>> = text.lines().filter_map(Puts::parse).collect();
    let find = |when: &str, leader: &str| {
        all.iter().find(|puts| puts.when == when && puts.leader.contains(leader))
    };
    let elected = text.lines().find_map(|line| {
        line.strip_prefix("fast is stopped: ")?.split_once(" leads after ").map(|(new, _)| new)
    });
    let (
        Some(fast),
        Some(slow),
        Some(near),
        Some(far),
        Some(next),
        Some(free),
        Some(new @ ("medium" | "slow")),
    ) = (
        find("links of 0 ms", "fast"),
        find("links of 0 ms", "slow"),
        find("links of 5 ms", "fast"),
        find("links of 50 ms", "fast"),
        find("without fast", ""),
        find("at full speed", ""),
        elected,
    )
    else {
        return Err(LabError::wrong("the example's output", text));
    };
    let early = all.iter().filter(|puts| puts.round_trip_ms().is_some_and(|ms| puts.least_ms < ms));
    let mut wrong: Vec<String> = early
        .map(|puts| {
            format!("{}: a put of {} ms is shorter than a round trip", puts.when, puts.least_ms)
        })
        .collect();
    if far.median_ms <= fast.median_ms {
        wrong.push("puts do not follow the links".to_owned());
    }
    if slow.median_ms <= fast.median_ms {
        wrong.push("puts do not follow the speed of the leader".to_owned());
    }
    expect_none("the puts", wrong.into_iter().map(|why| format!("{why}\n{text}")).collect())?;
    Ok(format!(
        "a put takes {:.0} ms without delay, {:.0} with links of 5 ms (round trip 20 ms), {:.0} \
         with links of 50 ms, and {:.0} without delay if the slow host leads; the fast one is \
         stopped, {new} leads, and a put takes {:.0} ms, after `down` {:.0}; nothing is left",
        fast.median_ms,
        near.median_ms,
        far.median_ms,
        slow.median_ms,
        next.median_ms,
        free.median_ms
    ))
}

#[cfg(test)]
mod tests {
    use super::check;

    const OUTPUT: &str = "mininet h1 is part of vnode fast until `pinfold emulate down`
links of 0 ms, fast leads: put 60.6 ms, at least 21.4 ms
links of 0 ms, slow leads: put 290.0 ms, at least 22.7 ms
links of 50 ms, fast leads: put 260.6 ms, at least 201.4 ms
links of 5 ms, fast leads: put 96.9 ms, at least 43.3 ms
fast is stopped: medium leads after 11.8 s
without fast, medium leads: put 200.9 ms, at least 40.8 ms
at full speed, medium leads: put 56.0 ms, at least 35.0 ms
";

    #[test]
    fn puts_must_follow_links_and_speed() {
        assert!(check(OUTPUT).is_ok());
        for (text, other) in [
            ("put 260.6", "put 60.6"),
            ("put 290.0", "put 60.6"),
            ("at least 43.3", "at least 19.9"),
            ("stopped: medium", "stopped: fast"),
            ("at full speed", "links of 5 ms"),
        ] {
            assert!(check(&OUTPUT.replace(text, other)).is_err(), "{text}");
        }
    }
}
