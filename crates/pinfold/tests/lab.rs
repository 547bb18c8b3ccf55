//! A fixed part of the lab: this binary isolates, is killed, and restores hosts under test.
//!
//! `cargo xtask lab` tries everything, under more kernels.

#![expect(clippy::panic, reason = "a case that fails ends its test")]
#![expect(clippy::print_stdout, reason = "a test that cannot run says so")]

use pinfold_lab::cases::{FLAVOURS, Flavour, LONGEST, Lab, SMALL};
use pinfold_lab::{Case, Cgroups, Extent, Verdict};

const PINFOLD: &str = env!("CARGO_BIN_EXE_pinfold");
const FOLDER: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/lab");
/// It boots fastest.
const FLAVOUR: Flavour = FLAVOURS[0].0;

fn check(case: Case) {
    check_under(&FLAVOUR, FOLDER, case);
}

fn check_under(flavour: &Flavour, folder: &str, case: Case) {
    let lab = match Lab::open(PINFOLD, flavour, folder, Extent::Fixed) {
        Ok(lab) => lab,
        Err(error) if error.is_skip() => return println!("skipped: lab: {error}"),
        Err(error) => panic!("{error}"),
    };
    for (name, kernel, verdict) in case.run(&lab) {
        match verdict {
            Verdict::Passed(what) => println!("{name} ({kernel}): {what}"),
            Verdict::Skipped(why) => println!("skipped: {name}: {why}"),
            Verdict::Failed(why) => panic!("{name} ({kernel}): {why}"),
        }
    }
}

#[test]
fn a_host_with_cgroup_v1() {
    check(Case::Host(Cgroups::V1));
}

#[test]
fn a_host_with_cgroup_v2_whose_cpusets_no_one_uses() {
    check(Case::Host(Cgroups::V2Plain));
}

#[test]
fn a_host_with_cgroup_v2_whose_cpusets_are_in_use() {
    check(Case::Host(Cgroups::V2Used));
}

#[test]
fn the_longest_plan_is_killed_at_some_changes_and_at_random() {
    check_under(&LONGEST, &format!("{FOLDER}/longest"), Case::Longest);
}

#[test]
fn a_host_that_loses_its_power_during_an_apply_or_an_undo_recovers_at_its_next_boot() {
    check_under(&LONGEST, &format!("{FOLDER}/power"), Case::PowerCuts);
}

#[test]
fn three_machines_on_one_host_share_no_cpu() {
    check(Case::Several);
}

#[test]
fn a_host_that_systemd_runs() {
    check(Case::Systemd);
}

#[test]
fn a_shaped_host_is_seen_as_lscpu_sees_it() {
    check(Case::Topology(SMALL));
}
