//! The checksums of all parallel programs in all sizes, as they are on every machine.
//!
//! A change of them is a change of what a program computes: it is told in the changelog, because
//! results of before are not to be compared with those after. Small ones are always made, and the
//! medium ones of a few programs, among them those whose proof needs many frames to mean much;
//! `PINFOLD_TEST_SIZE=full cargo test -p pinfold-probe checksums::` makes all of them (a quarter of
//! an hour). `cross.rs` holds Arm and RISC-V against this machine.

use crate::common::{Program, is_full_size, program};
use pinfold_probe::cpu_speed::SpeedBenchmark as _;
use pinfold_probe::loads::Placement;
use pinfold_probe::parallel::{Catalogue, Parallel, Run, Size};

type Row = (&'static str, u64, u64, Option<u64>);

/// Program, small, medium, large; seed 1.
#[rustfmt::skip]
const CHECKSUMS: [Row; 15] = [
    ("barnes", 0xbace_cc92_f724_837a, 0xd592_ee5f_45c2_329d, Some(0xcd27_5661_19d0_8002)),
    ("blackscholes", 0xb90b_b1a5_fa0b_9749, 0x9bf9_2466_9b65_9c5b, Some(0xbbef_25ed_5d66_a93a)),
    ("bodytrack", 0xccc5_24b9_9057_5bb6, 0x6549_d523_5fb1_bdcb, Some(0x81da_8ca2_d423_9709)),
    ("cholesky", 0xaa4f_d7af_c1b3_d78b, 0x9482_2d6b_4dbf_cf16, Some(0xeda8_b419_3a94_7795)),
    ("ferret", 0x8c23_d611_85e4_80f6, 0x80b7_0bc8_6512_8cc3, Some(0x065e_bfd5_0464_640a)),
    ("fft", 0xf502_216c_15dd_4cd7, 0x050d_bb1c_fe37_2670, Some(0x77a0_6112_511d_c561)),
    ("fluidanimate", 0x869d_2a32_7f8d_8dd4, 0xf9ff_be9e_ccf5_489e, Some(0x9a12_723b_9242_6c62)),
    ("freqmine", 0xef8e_3c4d_2c66_410d, 0xeeca_5efc_6ef2_c9a4, Some(0x7456_0361_cedd_4598)),
    ("lu-contiguous", 0x2ee1_813e_e544_e0d1, 0x71aa_ef7e_2de2_5d73, Some(0xa4f1_566f_ad3b_8189)),
    ("lu-non-contiguous", 0x2ee1_813e_e544_e0d1, 0x71aa_ef7e_2de2_5d73, Some(0xa4f1_566f_ad3b_8189)),
    ("ocean", 0xf55a_96e1_c467_c528, 0x5c0b_bb2f_e2f0_240c, Some(0x30e4_080d_88cc_436a)),
    ("radix", 0x7512_83cb_9925_9bf4, 0xfd51_e4f3_2f24_0e26, Some(0x2bc1_0b3d_7359_320d)),
    ("swaptions", 0x292d_458d_0588_5741, 0x323f_b93b_eb11_ead5, Some(0x4033_411b_cd29_98bc)),
    ("water-nsquared", 0xf483_437b_2121_f600, 0xe196_9519_6f10_ee07, Some(0x01fc_769d_7073_d5af)),
    ("water-spatial", 0xf483_437b_2121_f600, 0xada7_2588_0505_f0ef, Some(0x50a6_cfcd_82f3_b808)),
];

/// Programs whose medium size is always run.
const ALWAYS: [&str; 4] = ["bodytrack", "cholesky", "fluidanimate", "water-nsquared"];

fn check(program: &Program, name: &str, size: Size, expected: u64) {
    let settings = Parallel::new(name, 2, size);
    let figures = settings.instrument().run_on_host(&program.pinload, &Placement::default());
    let run = Run::read(&settings, &figures.unwrap()).unwrap();
    assert_eq!(run.checksum, format!("{expected:016x}"), "{name}, size {}", size.name());
}

#[test]
fn every_program_has_a_row() {
    let catalogue = Catalogue::from_pinload(&program().pinload).unwrap();
    let listed: Vec<&str> = catalogue.programs.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(listed, CHECKSUMS.map(|(name, ..)| name));
}

#[test]
fn checksums_are_those_of_every_machine() {
    let program = program();
    let full = is_full_size();
    for (name, small, medium, large) in CHECKSUMS {
        check(&program, name, Size::Small, small);
        if full || ALWAYS.contains(&name) {
            check(&program, name, Size::Medium, medium);
        }
        if let Some(large) = large.filter(|_| full) {
            check(&program, name, Size::Large, large);
        }
    }
}
