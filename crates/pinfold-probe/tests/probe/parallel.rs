//! The parallel programs: results, limits and places, never speed.

use crate::common::{
    PATIENCE, Program, eventually, further_threads, is_full_size, own_pus, program,
};
use pinfold_host::process::capture;
use pinfold_host::{Host as _, LiveHost};
use pinfold_model::{CpuSet, PuId};
use pinfold_probe::cpu_speed::SpeedBenchmark as _;
use pinfold_probe::loads::Placement;
use pinfold_probe::parallel::{Affinity, Catalogue, Parallel, Run, Size, ThreadRule};

fn run(program: &Program, settings: &Parallel) -> Run {
    let figures = settings.instrument().run_on_host(&program.pinload, &Placement::default());
    // Both parts, their labels and T_roi <= T_full are checked here.
    Run::read(settings, &figures.unwrap()).unwrap()
}

fn checksum(program: &Program, name: &str, threads: u32) -> String {
    run(program, &Parallel::new(name, threads, Size::Small)).checksum
}

#[test]
fn a_result_does_not_depend_on_the_number_of_threads() {
    let program = program();
    let catalogue = Catalogue::from_pinload(&program.pinload).unwrap();
    assert_eq!(catalogue.programs.len(), 15);
    let numbers: &[u32] = if is_full_size() { &[2, 3, 4, 7, 8, 16] } else { &[4, 7] };
    for listed in &catalogue.programs {
        let one = checksum(&program, &listed.name, 1);
        for threads in numbers.iter().copied() {
            if listed.allows(threads, Size::Small) {
                let many = checksum(&program, &listed.name, threads);
                assert_eq!(one, many, "{} with {threads} threads", listed.name);
            }
        }
        let mut other = Parallel::new(&listed.name, 2, Size::Small);
        other.seed = 2;
        assert_ne!(run(&program, &other).checksum, one, "{} of another seed", listed.name);
    }
}

#[test]
fn the_page_reports_every_program_with_its_sizes_and_limits() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/programs.md");
    let page = pinfold_host::files::read_text(page).unwrap();
    for listed in Catalogue::from_pinload(&program().pinload).unwrap().programs {
        let sizes: Vec<&str> = listed.sizes.iter().map(|size| size.about.as_str()).collect();
        let threads = match listed.threads {
            ThreadRule::Any => "any",
            ThreadRule::PowerOfTwo => "power of two",
        };
        let row = format!("| {} | {} | {threads} |", listed.name, sizes.join(" | "));
        assert!(page.contains(&row), "docs/programs.md lacks {row}");
        assert!(listed.sizes.iter().all(|size| size.most_threads == 1024), "{}", listed.name);
    }
}

#[test]
fn programs_that_differ_in_their_ways_only_have_one_result() {
    let program = program();
    for (one, other) in
        [("lu-contiguous", "lu-non-contiguous"), ("water-nsquared", "water-spatial")]
    {
        assert_eq!(checksum(&program, one, 2), checksum(&program, other, 3), "{one}, {other}");
    }
}

#[test]
fn a_thousand_threads_are_not_too_many() {
    let program = program();
    for name in ["cholesky", "ferret", "fft", "fluidanimate", "freqmine", "swaptions"] {
        assert_eq!(checksum(&program, name, 1024), checksum(&program, name, 1), "{name}");
    }
}

#[test]
fn numbers_of_threads_are_refused_and_never_rounded() {
    let program = program();
    for listed in Catalogue::from_pinload(&program.pinload).unwrap().programs {
        let run = |threads| Parallel::new(&listed.name, threads, Size::Small);
        if listed.threads == ThreadRule::PowerOfTwo {
            let expected = format!(
                "--threads: {}, size small, runs with a power of two (1, 2, 4, ...) up to 1024 \
                 threads, not with 3",
                listed.name
            );
            refused(&run(3), &expected, &program);
            refused(&run(1000), "not with 1000", &program);
        }
        refused(&run(0), "--threads: \"0\" is not an integer from 1 to 1024", &program);
        refused(&run(1025), "--threads: \"1025\" is not an integer from 1 to 1024", &program);
    }
    refused(
        &Parallel::new("raytrace", 1, Size::Small),
        "\"raytrace\" is not a parallel program",
        &program,
    );
    let pu = own_pus().first().unwrap();
    let mut crowded = Parallel::new("radix", 2, Size::Small);
    crowded.affinity = Some(Affinity::EachItsOwn(vec![pu]));
    refused(&crowded, "--affinity: 1 CPUs for 2 threads; list one for each, or go round", &program);
    crowded.affinity = Some(Affinity::EachItsOwn(vec![pu, pu]));
    refused(&crowded, "is listed twice", &program);
    crowded.affinity = Some(Affinity::EachItsOwn(vec![PuId(8191), pu]));
    refused(&crowded, "--affinity: CPU 8191 is offline or not ours", &program);
}

fn refused(settings: &Parallel, expected: &str, program: &Program) {
    let argv = settings.instrument().argv();
    let output = capture(&program.pinload.path(), &argv, PATIENCE).unwrap();
    let text = output.stderr_text();
    assert_eq!(output.status.code(), Some(2), "{argv:?}: {text}");
    assert!(text.contains(expected), "{argv:?}: {text}");
    assert!(output.stdout.is_empty(), "{argv:?}");
}

#[test]
fn threads_run_where_the_list_says_in_its_order() {
    let program = program();
    let host = LiveHost::new().unwrap();
    let mut list: Vec<PuId> = own_pus().iter().collect();
    list.reverse();
    let threads = u32::try_from(list.len()).unwrap() + 1;
    let mut settings = Parallel::new("swaptions", threads, Size::Large);
    settings.affinity = Some(Affinity::RoundRobin(list.clone()));
    let mut child = program.start(&settings.instrument().argv().join(" "));
    assert!(eventually(|| further_threads(&host, child.pid()).len() == threads as usize));
    let mut tids = further_threads(&host, child.pid());
    tids.sort_unstable(); // the order in which they were made
    let wanted: Vec<_> =
        list.iter().cycle().take(tids.len()).map(|pu| CpuSet::single(*pu)).collect();
    let found: Vec<_> = tids.iter().map(|tid| host.affinity(*tid).unwrap()).collect();
    assert_eq!(found, wanted);
    child.kill().unwrap();
}
