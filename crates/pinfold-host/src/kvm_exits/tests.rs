//! Tests of field offsets, and of the exits of a live guest.

use super::*;
use crate::{LiveHost, MicroGuest, Work, process};

fn format(id: u64, fields: &[(&str, u32, u32)]) -> String {
    let lines = fields.iter().map(|(name, offset, size)| {
        format!("\tfield:u{} {name};\toffset:{offset};\tsize:{size};\tsigned:0;\n", size * 8)
    });
    format!("name: x\nID: {id}\nformat:\n{}", lines.collect::<String>())
}

fn find(events: &[(&str, String)]) -> Result<EventOffsets, HostError> {
    EventOffsets::find(
        &|event: &str| {
            let text = events.iter().find(|(name, _)| *name == event);
            Ok(text.map(|(_, text)| Format::parse(text).unwrap()))
        },
        scope(ExitSource::Hardware, true),
    )
}

fn scope(source: ExitSource, addresses: bool) -> ExitScope {
    ExitScope { source, addresses, distributor: 0 }
}

#[test]
fn an_exit_without_its_address_has_only_the_events_that_time_it() {
    let userspace = ["kvm_userspace_exit", "kvm_fpu", "sched_switch"];
    check(ExitSource::Userspace, false, &userspace);
    let accessed = ["kvm_pio", "kvm_mmio", "kvm_fast_mmio", "kvm_msr", "kvm_sys_access"];
    check(ExitSource::Userspace, true, &[&userspace[..], &accessed].concat());
    let timed = ["kvm_exit", "kvm_entry", "sched_switch"];
    let marks = ["kvm_apic_ipi", "kvm_hv_send_ipi", "kvm_hv_send_ipi_ex", "kvm_hypercall"];
    let devices = ["kvm_mmio", "kvm_fast_mmio", "kvm_sys_access"];
    check(ExitSource::Hardware, false, &[&timed[..], &devices, &marks].concat());
    check(ExitSource::Hardware, true, &[&timed[..], &accessed, &marks].concat());
}

fn check(source: ExitSource, addresses: bool, expected: &[&str]) {
    let places = EventOffsets::find(
        &|event: &str| {
            // The order of fields is tested below; here each event has the requested fields.
            let hooks =
                ExitSource::Hardware.hooks().into_iter().chain(ExitSource::Userspace.hooks());
            let hook = hooks.chain(HOOKS).find(|hook| hook.event == event).unwrap();
            let names: Vec<&str> = match hook.way {
                AttachKind::Arguments(names) => names.to_vec(),
                AttachKind::Record(fields) => fields.iter().map(|(_, field)| *field).collect(),
                AttachKind::Reason => vec!["exit_reason", "isa"],
            };
            let fields: Vec<(&str, u32, u32)> =
                names.iter().zip(1..).map(|(name, at)| (*name, at * 8, 8)).collect();
            Ok(Some(Format::parse(&format(1, &fields)).unwrap()))
        },
        scope(source, addresses),
    )
    .unwrap();
    let events = places.hooks.iter().map(|(hook, _)| hook.event.split_once('/').unwrap().1);
    assert_eq!(events.collect::<Vec<_>>(), expected, "{source:?}, addresses: {addresses}");
}

#[test]
fn the_fields_of_each_processor_are_found() {
    fn check(exit: &[(&str, u32, u32)], expected: &[(&str, u32)]) {
        let switch = format(3, &[("prev_state", 32, 8), ("next_pid", 56, 4)]);
        let places = find(&[
            ("kvm/kvm_exit", format(1, exit)),
            ("kvm/kvm_entry", format(2, &[("vcpu_pc", 8, 8)])),
            ("sched/sched_switch", switch),
        ])
        .unwrap();
        let hooks: Vec<(&str, u64)> =
            places.hooks.iter().map(|(hook, id)| (hook.program, *id)).collect();
        assert_eq!(hooks, [("leave", 1), ("enter", 2), ("switched", 3)]);
        for (name, place) in expected {
            assert_eq!(places.constants.get(name), Some(place), "{name} of {exit:?}");
        }
    }

    check(
        &[("exit_reason", 8, 4), ("guest_rip", 16, 8), ("isa", 24, 4)],
        &[("reason_at", 8), ("reason_is_long", 0), ("detail_at", 24)],
    );
    check(
        &[("ret", 8, 4), ("esr_ec", 12, 4), ("vcpu_pc", 16, 8)],
        &[("reason_at", 8), ("reason_is_long", 0), ("detail_at", 12)],
    );
    check(&[("sepc", 8, 8), ("scause", 16, 8)], &[("reason_at", 16), ("reason_is_long", 1)]);
}

#[test]
fn kernels_without_the_events_are_reported() {
    assert!(find_error(&[]).is_gone());
    let exit = ("kvm/kvm_exit", format(1, &[("exit_reason", 8, 4), ("isa", 24, 4)]));
    let entry = ("kvm/kvm_entry", format(2, &[]));
    assert!(find_error(&[exit, entry.clone()]).to_string().contains("sched_switch"));
    let strange = ("kvm/kvm_exit", format(1, &[("why", 8, 4)]));
    assert!(find_error(&[strange, entry.clone()]).to_string().contains("none of the fields"));
    let half = ("kvm/kvm_exit", format(1, &[("exit_reason", 8, 4)]));
    assert!(find_error(&[half, entry]).to_string().contains("no field isa"));
}

fn find_error(events: &[(&str, String)]) -> HostError {
    find(events).map(|_| ()).unwrap_err()
}

#[test]
fn arguments_are_in_the_order_of_the_record() {
    fn check(fields: &[(&str, u32, u32)], expected: &[&str], is_fine: bool) {
        let format = Format::parse(&format(1, fields)).unwrap();
        assert_eq!(in_order("kvm/x", &format, expected).is_ok(), is_fine, "{fields:?}");
    }

    let fields = [("common_pid", 4, 4), ("type", 8, 4), ("len", 12, 4), ("gpa", 16, 8)];
    check(&fields, &["type", "_", "gpa"], true);
    check(&fields, &[], true);
    check(&fields, &["type", "gpa"], false);
    check(&[("gpa", 8, 8), ("type", 16, 4)], &["type"], false);
    check(&[], &["nr"], false);
}

#[test]
fn squares_have_128_bits() {
    let sums = Sums { count: 1, square_low: 5, square_high: 2, ..Sums::default() };
    assert_eq!(DurationStats::from(sums).squares, (2_u128 << 64) + 5);
}

/// Runs the micro-guest on this machine's KVM with each of the event sources.
#[test]
fn exits_of_a_guest_are_counted_one_by_one() {
    if !process::is_root() {
        println!("skipped: BPF takes root");
        return;
    }
    let host = LiveHost::new().unwrap();
    let mut guest = match MicroGuest::new() {
        Ok(guest) => guest,
        Err(error) => {
            println!("skipped: no KVM here: {error}");
            return;
        }
    };
    let work = Work { cpuid: 50, rdmsr: 60, out: 700, mmio: 80 };
    let mut fired = 0;
    for source in [ExitSource::Hardware, ExitSource::Userspace] {
        let opened = ExitCounter::open(&host, scope(source, true), &[process::own_tid()]);
        let mut counter = match opened {
            Ok(counter) => counter,
            Err(error) if error.errno().is_some() => {
                println!("skipped: {source:?}: {error} ({:?})", error.errno());
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        // Nothing is counted before the start.
        guest.run(work).unwrap();
        counter.start(&host).unwrap();
        guest.run(work).unwrap();
        counter.stop().unwrap();
        guest.run(work).unwrap();
        let (_, seen) = counter.read().unwrap().remove(0);
        assert_eq!(count_of(&seen, Address::Port(Work::PORT.into()), true), Some(700), "{seen:?}");
        assert_eq!(count_of(&seen, Address::Mmio(Work::MMIO), true), Some(80), "{seen:?}");
        assert_eq!((seen.unpaired, seen.no_room, seen.no_address), (0, 0, 0), "{seen:?}");
        let counts: Vec<u64> = seen.exits.values().map(|sums| sums.count).collect();
        if counts.is_empty() {
            assert_eq!(source, ExitSource::Hardware, "{seen:?}");
            println!("{source:?}: its events do not fire here");
            continue;
        }
        fired += 1;
        assert!(counts.contains(&700) && counts.contains(&80), "{seen:?}");
        for sums in seen.exits.values() {
            assert!(sums.shortest_ns <= sums.longest_ns, "{sums:?}");
            assert!(sums.sum_ns <= sums.longest_ns * sums.count, "{sums:?}");
            assert!(sums.sum_ns >= sums.shortest_ns * sums.count, "{sums:?}");
            // The mean of squares is at least the square of the mean.
            assert!(sums.squares * u128::from(sums.count) >= u128::from(sums.sum_ns).pow(2));
        }
    }
    println!("{fired} kind(s) of events fire here");
}

fn count_of(seen: &ThreadExits, address: Address, written: bool) -> Option<u64> {
    seen.addresses.get(&(address, written)).copied()
}
