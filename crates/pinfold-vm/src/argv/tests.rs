//! Command lines as tables.

use super::*;

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn counts_vcpus_as_qemu_does() {
    let check = |line: &str, expected: Option<u32>| {
        assert_eq!(smp_of(&words(line)), expected, "{line}");
    };
    check("qemu", None);
    check("qemu -smp 3", Some(3));
    check("qemu --smp 3", Some(3));
    check("qemu -smp cpus=4,sockets=1,cores=2,threads=2", Some(4));
    check("qemu -smp sockets=2,cores=3,threads=2", Some(12));
    check("qemu -smp sockets=1,dies=2,cores=2", Some(4));
    check("qemu -smp 2,maxcpus=8", Some(2));
    check("qemu -smp maxcpus=8", Some(8));
    check("qemu -smp 2 -smp 5", Some(5));
    check("qemu -M q35,smp.cpus=6", Some(6));
    check("qemu -machine q35", None);
    check("qemu -append -smp -m 1", None);
    check("qemu -smp", None);
    check("qemu -smp many", None);
    check("qemu -smp sockets=4000000000,cores=4000000000", None);
}

#[test]
fn tells_what_executes_the_guest() {
    use Accelerator::{Kvm, TcgMulti, TcgSingle};
    let check = |line: &str, expected: Option<Accelerator>| {
        assert_eq!(accelerator_of(&words(line)), expected, "{line}");
    };
    check("qemu -accel kvm", Some(Kvm));
    check("qemu -enable-kvm -machine q35,accel=kvm", Some(Kvm));
    check("qemu -accel tcg,thread=multi -cpu kvm64", Some(TcgMulti));
    check("qemu -accel tcg,thread=single", Some(TcgSingle));
    check("qemu -accel accel=tcg -icount shift=1", Some(TcgSingle));
    check("qemu -M microvm,accel=tcg", Some(TcgMulti));
    // QEMU tries one after the other, and its own default is not the same everywhere.
    check("qemu -machine q35,accel=kvm:tcg", None);
    check("qemu -accel kvm -accel tcg", None);
    check("qemu -append -enable-kvm -cpu kvm64", None);
    assert_eq!(translator_of(&words("qemu")), TcgMulti);
}

#[test]
fn sets_the_guest_topology() {
    let guest = GuestTopology { sockets: 1, cores: 3, threads: 2, reason: String::new() };
    let check = |line: &str, expected: &str| {
        assert_eq!(set_smp(&words(line), &guest), words(expected), "{line}");
    };
    let smp = "-smp 6,sockets=1,cores=3,threads=2";
    check("qemu", &format!("qemu {smp}"));
    check("qemu -smp 2 -m 1G", &format!("qemu {smp} -m 1G"));
    check("qemu -smp 2,maxcpus=4 -S -smp 3", &format!("qemu {smp} -S"));
    check("qemu -M q35,smp.cpus=2,usb=on", &format!("qemu -M q35,usb=on {smp}"));
    check("qemu -append -smp", &format!("qemu -append -smp {smp}"));
    check("qemu -m 1G -smp", &format!("qemu -m 1G {smp}"));
}

#[test]
fn reads_names_uuids_and_iothreads() {
    let check = |line: &str, name: Option<&str>| {
        assert_eq!(name_of(&words(line)).as_deref(), name, "{line}");
    };
    check("qemu", None);
    check("qemu -name a", Some("a"));
    check("qemu -name guest=a,,b,debug-threads=on", Some("a,b"));
    check("qemu -name a -name debug-threads=on", Some("a"));
    check("qemu -name a -name b", Some("b"));

    let iothreads = |line: &str, expected: &[&str]| {
        assert_eq!(iothreads_of(&words(line)), expected, "{line}");
    };
    iothreads("qemu -object iothread,id=io0 -object rng-random,id=r", &["io0"]);
    iothreads("qemu -object qom-type=iothread,id=a,poll-max-ns=0", &["a"]);
    iothreads(r#"qemu -object {"qom-type":"iothread","id":"j"}"#, &["j"]);
    iothreads("qemu -object {broken -object iothread", &[]);
    assert_eq!(uuid_of(&words("qemu -uuid u")).as_deref(), Some("u"));
}

#[test]
fn tells_options_from_values() {
    let check = |line: &str, flag: &str, expected: bool| {
        assert_eq!(has_flag(&words(line), flag), expected, "{line}");
    };
    check("qemu -S", "S", true);
    check("qemu --S", "S", true);
    check("qemu -append -S", "S", false);
    check("qemu -nodefaults -S", "S", true);
    check("qemu -daemonize", "daemonize", true);
    check("qemu -name -daemonize", "daemonize", false);
    check("qemu disk.img -S", "S", true);
    check("-S", "S", false);
}
