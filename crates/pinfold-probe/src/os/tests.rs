//! Arguments, as tables.

use pinfold_model::{CpuSet, PuId};

use super::*;
use crate::cpu_speed::SpeedBenchmark as _;

fn check(instrument: &Instrument, expected: &str) {
    assert_eq!(instrument.argv().join(" "), expected);
}

#[test]
fn arguments_of_the_rings() {
    let mut switch = Switch::new(&[2, 96], &[0, 16], 1_000_000_000);
    check(
        &switch.instrument(),
        "switch --seconds 1.000000000 --cpus all --processes 2,96 --kib 0,16 --placement one-pu --policy other",
    );
    switch.cpus = Some(CpuSet::first_n(2));
    switch.placement = SwitchPlacement::Balanced;
    switch.policy = SchedPolicy::Fifo(7);
    let instrument = switch.instrument();
    check(
        &instrument,
        "switch --seconds 1.000000000 --cpus 0-1 --processes 2,96 --kib 0,16 --placement balanced --policy fifo:7",
    );
    // Four rings, each with its overhead.
    assert_eq!(instrument.duration_ns, 8_000_000_000);
    switch.placement = SwitchPlacement::Unique;
    assert!(switch.instrument().arguments.contains(&"unique".to_owned()));
    let plot = Switch::scaling(1);
    assert_eq!((plot.processes.first(), plot.processes.last()), (Some(&2), Some(&96)));
    assert_eq!(plot.instrument().duration_ns, 32);
}

#[test]
fn arguments_of_what_lies_between_processes() {
    let mut bandwidth = IpcBandwidth::new(500_000_000);
    check(
        &bandwidth.instrument(),
        "ipc-bandwidth --seconds 0.500000000 --transports pipe,unix,file,file-open,mmap,mmap-open --chunk-kib 64 --from 8388608 --to 8388608 --steps 1",
    );
    bandwidth.transports = vec![Transport::Mmap];
    bandwidth.cpus = Some(CpuSet::single(PuId(3)));
    bandwidth.directory = Some("/var/tmp".to_owned());
    check(
        &bandwidth.instrument(),
        "ipc-bandwidth --seconds 0.500000000 --transports mmap --cpus 3 --chunk-kib 64 --from 8388608 --to 8388608 --steps 1 --directory /var/tmp",
    );
}

#[test]
fn arguments_of_the_operations() {
    let mut latency = OsLatency::new(20);
    assert_eq!(latency.instrument().duration_ns, 20 * 20);
    latency.operations = vec![Operation::Poll, Operation::ForkExit];
    latency.rss_mib = 64;
    check(
        &latency.instrument(),
        "os-latency --seconds 0.000000020 --operations poll,fork-exit --descriptors 10,100 --rss-mib 64",
    );
    latency.cpus = Some(CpuSet::single(PuId(1)));
    latency.directory = Some("/dev/shm".to_owned());
    check(
        &latency.instrument(),
        "os-latency --seconds 0.000000020 --operations poll,fork-exit --cpus 1 --descriptors 10,100 --rss-mib 64 --directory /dev/shm",
    );
}

#[test]
fn arguments_of_the_scores() {
    let scores = |cpus| Intmix { cpus, duration_ns: 1 }.instrument();
    check(&scores(None), "intmix --seconds 0.000000001 --cpus all");
    check(&scores(Some(CpuSet::single(PuId(9)))), "intmix --seconds 0.000000001 --cpus 9");
    assert_eq!(scores(None).duration_ns, 5);
}
