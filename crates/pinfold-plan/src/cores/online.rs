//! Messages about offline CPUs, which may be requested by name. Pure functions.
//!
//! A compute service may take idle dedicated CPUs offline and bring them online with the next guest
//! (Nova's `cpu_power_management`), so an offline CPU in a file or a request is no error.

use pinfold_model::CpuSet;
use pinfold_model::text::pus_text;

use crate::text::verb;

/// Longer lists are written as a shell loop.
const WRITTEN_OUT: usize = 4;

/// `CPU 5 is offline, usable once online: …` with the command.
pub(crate) fn usable_once(offline: &CpuSet) -> String {
    format!(
        "{} {}, usable once online: `{}`",
        pus_text(offline),
        verb(offline, "is offline", "are offline"),
        command(offline)
    )
}

/// The shell command that brings these CPUs online.
pub fn command(offline: &CpuSet) -> String {
    let numbers: Vec<String> = offline.iter().map(|pu| pu.to_string()).collect();
    match numbers.len() {
        0..=WRITTEN_OUT => numbers.iter().map(|pu| line(pu)).collect::<Vec<_>>().join("; "),
        _ => format!("for cpu in {}; do {}; done", numbers.join(" "), line("$cpu")),
    }
}

fn line(pu: &str) -> String {
    format!("echo 1 > /sys/devices/system/cpu/cpu{pu}/online")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_brings_each_of_them_online() {
        check("5", "echo 1 > /sys/devices/system/cpu/cpu5/online");
        check(
            "5,7",
            "echo 1 > /sys/devices/system/cpu/cpu5/online; \
             echo 1 > /sys/devices/system/cpu/cpu7/online",
        );
        check(
            "3-7",
            "for cpu in 3 4 5 6 7; do echo 1 > /sys/devices/system/cpu/cpu$cpu/online; done",
        );
    }

    fn check(pus: &str, expected: &str) {
        assert_eq!(command(&CpuSet::parse_list(pus).unwrap()), expected);
    }
}
