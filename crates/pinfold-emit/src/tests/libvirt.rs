//! The libvirt XML: read by another parser, and compared exactly with sources.

use pinfold_host::process;
use pinfold_model::{Policy, Role};
use pinfold_plan::plan;
use pinfold_samples::machine::i7_4790k;
use pinfold_samples::{auto, exactly, set};

use crate as emit;

pub fn libvirt(layout: &pinfold_model::Plan) -> Result<String, pinfold_model::NotSingleVnode> {
    emit::libvirt(layout, &i7_4790k().build())
}

/// Parses the fragment inside a domain; panics if it is not XML.
pub fn parse(fragment: &str) -> Vec<String> {
    let domain = format!("<domain type='qemu'>{fragment}</domain>");
    let document = roxmltree::Document::parse(&domain).unwrap_or_else(|error| {
        panic!("{error}:\n{domain}");
    });
    document
        .descendants()
        .filter(roxmltree::Node::is_element)
        .skip(1)
        .map(|node| {
            let attributes = node.attributes();
            let attributes = attributes.map(|a| format!(" {}={}", a.name(), a.value()));
            format!("{}{}", node.tag_name().name(), attributes.collect::<String>())
        })
        .collect()
}

#[test]
fn lindroth_to_the_character() {
    check(
        "low-latency",
        &[
            "<vcpu placement='static'>3</vcpu>",
            "<cputune>",
            "<vcpupin vcpu='0' cpuset='1'/>",
            "<vcpupin vcpu='1' cpuset='2'/>",
            "<vcpupin vcpu='2' cpuset='3'/>",
            "<emulatorpin cpuset='5-7'/>",
            "</cputune>",
            "<cpu mode='host-passthrough'>",
            "<topology sockets='1' cores='3' threads='1'/>",
            "</cpu>",
        ],
    );
    check(
        "balanced",
        &[
            "<vcpu placement='static'>6</vcpu>",
            "<cputune>",
            "<vcpupin vcpu='0' cpuset='1'/>",
            "<vcpupin vcpu='1' cpuset='5'/>",
            "<vcpupin vcpu='2' cpuset='2'/>",
            "<vcpupin vcpu='3' cpuset='6'/>",
            "<vcpupin vcpu='4' cpuset='3'/>",
            "<vcpupin vcpu='5' cpuset='7'/>",
            "<emulatorpin cpuset='0,4'/>",
            "</cputune>",
            "<cpu mode='host-passthrough'>",
            "<topology sockets='1' cores='3' threads='2'/>",
            "</cpu>",
        ],
    );
}

fn check(strategy: &str, expected: &[&str]) {
    let layout = plan(strategy, &i7_4790k().build(), &auto()).unwrap();
    let xml = libvirt(&layout).unwrap();
    let lines: Vec<&str> =
        xml.lines().map(str::trim).filter(|line| !line.starts_with("<!--")).collect();
    assert_eq!(lines, expected, "{strategy}");
}

/// A plan with iothreads, policies and texts that are invalid in XML.
fn hostile() -> pinfold_model::Plan {
    let mut request = exactly(2);
    request.vnodes[0].name = "a--b<c>&'\"-".to_owned();
    *pinfold_samples::iothreads(&mut request) = vec!["disk --> <x>".to_owned(), "net".to_owned()];
    let mut layout = plan("low-latency", &i7_4790k().build(), &request).unwrap();
    for thread in &mut layout.vnodes[0].threads {
        thread.reason = "--> <evil/> <!-- -".to_owned();
        thread.policy = match &thread.role {
            Role::Vcpu(0) => Some(Policy::Fifo { priority: 1 }),
            Role::Vcpu(_) => Some(Policy::Other { nice: -5 }),
            Role::Iothread(id) if id == "net" => Some(Policy::Batch { nice: 0 }),
            Role::Iothread(_) => None,
            Role::Emulator => Some(Policy::RoundRobin { priority: 2 }),
            Role::Vhost(_) | Role::Worker | Role::Task => unreachable!(),
        };
    }
    let mut worker = layout.vnodes[0].threads[0].clone();
    worker.role = Role::Worker;
    layout.vnodes[0].threads.push(worker);
    layout
}

#[test]
fn iothreads_are_numbered_and_policies_are_given() {
    let xml = libvirt(&hostile()).unwrap();
    assert_eq!(
        parse(&xml),
        [
            "vcpu placement=static",
            "iothreads",
            "cputune",
            "vcpupin vcpu=0 cpuset=1",
            "vcpupin vcpu=1 cpuset=2",
            "emulatorpin cpuset=5-6",
            "iothreadpin iothread=1 cpuset=5-6",
            "iothreadpin iothread=2 cpuset=5-6",
            "vcpusched vcpus=0 scheduler=fifo priority=1",
            "emulatorsched scheduler=rr priority=2",
            "iothreadsched iothreads=2 scheduler=batch",
            "memoryBacking",
            "nosharepages",
            "locked",
            "cpu mode=host-passthrough",
            "topology sockets=1 cores=2 threads=1",
        ]
    );
    assert!(xml.contains("libvirt cannot express the policy other nice -5"));
    assert!(xml.contains("libvirt has no pin for worker"));
    assert!(xml.contains("iothread(net), libvirt's number 2"));
    assert!(!xml.contains("evil/> <!--"), "comments hold no comment");
}

#[test]
fn libvirts_own_schema_accepts_it() {
    let Some(validator) = process::find_program("virt-xml-validate") else {
        eprintln!("skipped: virt-xml-validate is not installed");
        return;
    };
    let layouts = [
        super::tunables::everything().0,
        hostile(),
        plan("balanced", &i7_4790k().build(), &auto()).unwrap(),
        plan("none", &i7_4790k().build(), &auto()).unwrap(),
    ];
    let folder = format!("/tmp/pinfold-plan-test-{}", process::own_pid());
    pinfold_host::files::make_dirs(&folder).unwrap();
    for layout in layouts {
        let domain = format!(
            "<domain type='kvm'><name>vm</name><memory>1048576</memory>{}\
             <os><type arch='x86_64' machine='pc'>hvm</type></os></domain>",
            libvirt(&layout).unwrap()
        );
        let file = format!("{folder}/domain.xml");
        pinfold_host::files::write_atomic(&file, domain.as_bytes()).unwrap();
        let output = process::capture(&validator, [&file, "domain"], 20_000_000_000).unwrap();
        assert!(output.status.success(), "{}\n{domain}", output.stderr_text());
    }
    let removed = process::capture("rm", ["-r", &folder], 5_000_000_000).unwrap();
    assert!(removed.status.success());
}

#[test]
fn a_group_of_processes_is_no_domain() {
    let mut layout = plan("none", &i7_4790k().build(), &exactly(1)).unwrap();
    layout.vnodes[0].threads.retain(|thread| thread.role == Role::Emulator);
    layout.vnodes[0].guest = None;
    assert_eq!(parse(&libvirt(&layout).unwrap()), Vec::<String>::new());
    assert_eq!(layout.vnodes[0].pus(), set("0-7"));
}
