//! A sample of the lab: this binary isolates, is killed, and restores hosts under test.
//!
//! `cargo xtask lab` tries everything, under more kernels: also power cuts, several machines on one
//! host, groups whose cpusets no one uses, and kills before every call.

#![expect(clippy::panic, reason = "a case that fails ends its test")]
#![expect(clippy::print_stdout, reason = "a test that cannot run says so")]

use pinfold_lab::cases::{FLAVOURS, Flavour, LONGEST, Lab};
use pinfold_lab::{Case, Cgroups, Extent, Verdict};

const PINFOLD: &str = env!("CARGO_BIN_EXE_pinfold");
const FOLDER: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/lab");
/// It boots fastest.
const FLAVOUR: Flavour = FLAVOURS[0].0;

fn check(case: Case) {
    check_under(&FLAVOUR, FOLDER, case);
}

fn check_under(flavour: &Flavour, folder: &str, case: Case) {
    let lab = match Lab::open(PINFOLD, flavour, folder, Extent::Sample) {
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
fn a_host_with_cgroup_v2_whose_cpusets_are_in_use_is_seen_as_lscpu_sees_it_and_restored() {
    check(Case::Host(Cgroups::V2Used));
}

#[test]
fn the_longest_plan_is_killed_at_random() {
    check_under(&LONGEST, &format!("{FOLDER}/longest"), Case::Longest);
}

#[test]
fn a_host_that_systemd_runs() {
    check(Case::Systemd);
}
