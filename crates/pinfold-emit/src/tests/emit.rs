//! All formats, by checked golden files and, if installed, by the tools that read them.

use pinfold_host::process;
use pinfold_plan::plan;
use pinfold_samples::auto;
use pinfold_samples::machine::i7_4790k;

use super::golden;
use super::tunables::file_name;
use crate as emit;

const SECOND: u64 = 1_000_000_000;

/// The machine of the golden files: three cores with siblings, the first left to the host.
fn plan_balanced() -> pinfold_model::Plan {
    let mut request = auto();
    request.vnodes[0].name = "win-10 'x'".to_owned();
    *pinfold_samples::iothreads(&mut request) = vec!["iothread1".to_owned()];
    plan("balanced", &i7_4790k().build(), &request).unwrap()
}

#[test]
fn golden_files() {
    let (layout, topology) = (plan_balanced(), i7_4790k().build());
    for format in emit::FORMATS {
        let text = format.text(&layout, &topology, &pinfold_qemu::QemuCommand::default());
        golden(&format!("balanced.{}", file_name(format.name)), &text.unwrap());
    }
}

fn cloud_hypervisor(layout: &pinfold_model::Plan) -> String {
    let format = emit::format("cloud-hypervisor").unwrap();
    format.text(layout, &i7_4790k().build(), &pinfold_qemu::QemuCommand::default()).unwrap()
}

/// Siblings are isolated too, only vCPUs have FIFO, and the tuned profile includes tuned's own.
#[test]
fn a_real_time_plan_in_every_format() {
    let topology = i7_4790k().build();
    let layout = plan("realtime", &topology, &auto()).unwrap();
    golden("realtime.tuned.conf", &emit::tuned_profile(&layout, &topology));
    let cmdline = emit::cmdline(&layout, &topology);
    let line =
        "isolcpus=managed_irq,domain,1-3,5-7 nohz_full=1-3,5-7 rcu_nocbs=1-3,5-7 irqaffinity=0,4";
    assert!(cmdline.lines().any(|found| found == line), "{cmdline}");
    let xml = emit::libvirt(&layout, &topology).unwrap();
    for vcpu in 0..3 {
        let line = format!("<vcpusched vcpus='{vcpu}' scheduler='fifo' priority='1'/>");
        assert!(xml.contains(&line), "{xml}");
    }
    assert!(
        xml.contains("<emulatorpin cpuset='0,4'/>") && !xml.contains("<emulatorsched"),
        "{xml}"
    );
    assert!(xml.contains("<memory mode='strict' nodeset='0'/>"), "{xml}");
    let others = [
        emit::virsh(&layout).unwrap(),
        emit::systemd(&layout).unwrap(),
        emit::proxmox(&layout, &i7_4790k().build()).unwrap(),
        emit::kubevirt(&layout, &i7_4790k().build()).unwrap(),
        emit::nova(&layout, &i7_4790k().build()).unwrap(),
    ];
    for text in others {
        assert!(
            text.contains("fifo 1") || text.contains("realtime") || text.contains("--plan"),
            "{text}"
        );
    }
}

#[test]
fn a_plan_that_shares_everything_says_so() {
    let topology = i7_4790k().build();
    let layout = plan("max-performance", &topology, &auto()).unwrap();
    let host = [emit::cmdline(&layout, &topology), emit::tuned_profile(&layout, &topology)];
    for text in host.into_iter().chain([emit::systemd(&layout).unwrap()]) {
        assert!(text.contains("shares"), "{text}");
        assert!(!text.contains("isolcpus="), "{text}");
    }
}

/// A temporary directory and the program's path, if it is installed.
fn tool(name: &str) -> Option<(String, tempfile::TempDir)> {
    match process::find_program(name) {
        Some(program) => Some((program, tempfile::tempdir().unwrap())),
        None => {
            eprintln!("skipped: {name} is not installed");
            None
        }
    }
}

#[test]
fn shells_can_read_the_scripts() {
    let layout = plan_balanced();
    let Some((shell, folder)) = tool("sh") else { return };
    for script in [
        emit::virsh(&layout).unwrap(),
        cloud_hypervisor(&layout),
        emit::proxmox(&layout, &i7_4790k().build()).unwrap(),
        emit::nova(&layout, &i7_4790k().build()).unwrap(),
    ] {
        let file = format!("{}/script.sh", folder.path().display());
        pinfold_host::files::write_atomic(&file, script.as_bytes()).unwrap();
        let output = process::capture(&shell, ["-n", file.as_str()], 5 * SECOND).unwrap();
        assert!(output.status.success(), "{}\n{script}", output.stderr_text());
    }
}

/// systemd's own check of the units, each at the path in its `# FILE:` line.
#[test]
fn systemd_takes_the_units() {
    let Some((analyze, folder)) = tool("systemd-analyze") else { return };
    let root = folder.path().display().to_string();
    let units = format!("{root}/etc/systemd/system");
    let mut layout = plan_balanced();
    for words in ["cpu-weight=200", "cpu-quota=33333/100000"] {
        pinfold_config::requests::set_tunable(&mut layout, words).unwrap();
    }
    let text = emit::systemd(&layout).unwrap();
    let mut names = Vec::new();
    for file in text.split("# FILE: ").skip(1) {
        let (path, content) = file.split_once('\n').unwrap();
        let folder = path.rsplit_once('/').unwrap().0;
        pinfold_host::files::make_dirs(&format!("{root}{folder}")).unwrap();
        pinfold_host::files::write_atomic(&format!("{root}{path}"), content.as_bytes()).unwrap();
        names.push(path.to_owned());
    }
    assert_eq!(names.len(), 5);
    // The units that the drop-ins belong to.
    let service = "[Service]\nExecStart=/bin/true\n";
    unit(&units, "pinfold-win_10__x_.service", service);
    unit(&units, "system.slice", "[Unit]\nDescription=System\n");
    unit(&units, "user.slice", "[Unit]\nDescription=User\n");
    let names =
        ["pinfold-win_10__x_.slice", "pinfold-win_10__x_.service", "system.slice", "user.slice"];
    let (fine, said) = verify(&units, &analyze, &names);
    assert!(fine && said.is_empty(), "{said}");
    // The check fails for an invalid unit.
    let dropin = format!("{units}/system.slice.d/50-pinfold.conf");
    pinfold_host::files::write_atomic(&dropin, b"[Slice]\nAllowedCPUs=many\n").unwrap();
    let (_, said) = verify(&units, &analyze, &["system.slice"]);
    assert!(said.contains("'many'"), "{said}");
}

fn verify(units: &str, analyze: &str, names: &[&str]) -> (bool, String) {
    let mut words =
        vec!["verify".to_owned(), "--man=no".to_owned(), "--recursive-errors=no".to_owned()];
    words.extend(names.iter().map(|name| format!("{units}/{name}")));
    let output = process::capture(analyze, &words, 30 * SECOND).unwrap();
    (output.status.success(), output.stderr_text())
}

fn unit(units: &str, name: &str, content: &str) {
    pinfold_host::files::write_atomic(&format!("{units}/{name}"), content.as_bytes()).unwrap();
}

/// A server with two sockets whose guest has huge pages on both nodes, in each format.
#[test]
fn two_nodes_are_two_nodes_in_every_format() {
    let topology = pinfold_samples::machine::dual_e5_2670().build();
    let mut request = pinfold_samples::exactly(28);
    request.vnodes[0].memory =
        Some(pinfold_model::MemoryRequest { bytes: 1 << 30, page_bytes: Some(2 << 20) });
    let layout = plan("balanced", &topology, &request).unwrap();
    has(
        &emit::proxmox(&layout, &topology).unwrap(),
        &[
            "--memory 1024 --hugepages 2 \\\n",
            "    --numa0 'cpus=0-13,hostnodes=0,memory=",
            "    --numa1 'cpus=14-27,hostnodes=1,memory=",
            ",policy=bind'\n",
        ],
    );
    has(
        &emit::nova(&layout, &topology).unwrap(),
        &[
            "hw:numa_nodes=2\n",
            "hw:numa_cpus.0=0-13\n",
            "hw:numa_cpus.1=14-27\n",
            "hw:numa_mem.1=",
            "hw:mem_page_size=2048\n",
            "hw:cpu_thread_policy=require\n",
            "28 vCPUs and 1024 MiB of memory",
        ],
    );
    has(
        &emit::kubevirt(&layout, &topology).unwrap(),
        &[
            "        guestMappingPassthrough: {}\n",
            "    memory:\n      guest: 1Gi\n      hugepages:\n        pageSize: 2Mi\n",
            "--topology-manager-policy=restricted\n",
        ],
    );
}

fn has(text: &str, parts: &[&str]) {
    parts.iter().for_each(|part| assert!(text.contains(part), "{part} is not in\n{text}"));
}

/// Real-time vCPUs in each format that supports them.
#[test]
fn real_time_vcpus_are_real_time_in_every_format() {
    let topology = i7_4790k().build();
    let mut request = pinfold_samples::exactly(2);
    request.vnodes[0].memory =
        Some(pinfold_model::MemoryRequest { bytes: 1 << 30, page_bytes: Some(1 << 30) });
    let mut layout = plan("low-latency", &topology, &request).unwrap();
    pinfold_config::requests::set_tunable(&mut layout, "policy:vcpu(1)=fifo:1").unwrap();
    let nova = emit::nova(&layout, &topology).unwrap();
    assert!(nova.contains("hw:cpu_realtime=yes\n"), "{nova}");
    assert!(nova.contains("'hw:cpu_realtime_mask=^0'\n"), "{nova}");
    assert!(nova.contains("# realtime_scheduler_priority = 1\n"), "{nova}");
    let kubevirt = emit::kubevirt(&layout, &topology).unwrap();
    assert!(kubevirt.contains("      realtime:\n        mask: \"1\"\n"), "{kubevirt}");
    assert!(kubevirt.contains("a node with SMT off"), "{kubevirt}");
}

/// Pages of a real-time guest stay in memory, in a new file and in one that exists.
#[test]
fn the_pages_of_real_time_vcpus_are_locked() {
    let topology = i7_4790k().build();
    let old = "<domain type='kvm'>\n  <name>vm</name>\n  <vcpu>2</vcpu>\n  <memoryBacking>\n    \
               <locked/>\n  </memoryBacking>\n</domain>\n";
    for (strategy, count) in [("realtime", 1), ("low-latency", 0)] {
        let layout = plan(strategy, &topology, &pinfold_samples::exactly(2)).unwrap();
        let text = emit::libvirt(&layout, &topology).unwrap();
        for element in ["<nosharepages/>", "<locked/>"] {
            assert_eq!(text.matches(element).count(), count, "{strategy}: {text}");
        }
        let merged =
            crate::merge_libvirt_domain(old, &layout, layout.single_vnode().unwrap(), &topology)
                .unwrap()
                .text;
        assert_eq!(merged.matches("<nosharepages/>").count(), count, "{strategy}: {merged}");
        assert_eq!(merged.matches("<locked/>").count(), 1, "{strategy}: {merged}");
        let again = crate::merge_libvirt_domain(
            &merged,
            &layout,
            layout.single_vnode().unwrap(),
            &topology,
        )
        .unwrap()
        .text;
        assert_eq!(again, merged);
    }
    let tuned = emit::tuned_profile(
        &plan("realtime", &topology, &pinfold_samples::exactly(2)).unwrap(),
        &topology,
    );
    let isolating = tuned.contains("sched_rt_runtime_us");
    assert_eq!(isolating, tuned.contains("stopped for 50 ms in each second"), "{tuned}");
}

/// A compute node has one list of dedicated CPUs for all of its machines.
#[test]
fn several_machines_have_one_nova_conf() {
    let topology = pinfold_samples::machine::dual_e5_2670().build();
    let mut request = pinfold_model::Request::from_vnodes(vec![four_vcpus("a"), four_vcpus("b")]);
    request.isolation = pinfold_model::IsolationScope::Host;
    let layout = plan("balanced", &topology, &request).unwrap();
    let format = emit::FORMATS.iter().find(|format| format.name == "nova").unwrap();
    let text = format.text_for_all(&layout);
    let held = layout.vnodes.iter().flat_map(|vnode| vnode.vcpus()).map(|thread| &thread.pus);
    let held = held.collect::<pinfold_model::CpuSet>();
    assert_eq!(held.len(), 8);
    assert!(text.contains(&format!("# cpu_dedicated_set = {held}\n")), "{text}");
    let shared = layout.housekeeping.difference(&held);
    assert!(text.contains(&format!("# cpu_shared_set = {shared}\n")), "{text}");
    let others = emit::FORMATS.iter().filter(|format| format.name != "nova");
    others.for_each(|format| assert_eq!(format.text_for_all(&layout), "", "{}", format.name));
}

fn four_vcpus(name: &str) -> pinfold_model::VnodeRequest {
    let vm = pinfold_model::VmRequest::from_vcpus(pinfold_model::VcpuCount::Exactly(4));
    pinfold_model::VnodeRequest::vm(name, vm)
}

/// The kubelet has a CPU for the emulator next to those of the vCPUs, and the host keeps some.
#[test]
fn the_kubelet_reserves_no_cpu_that_the_machine_needs() {
    for topology in [i7_4790k().build(), pinfold_samples::machine::dual_e5_2670().build()] {
        for (strategy, vcpus) in [("low-latency", 2), ("balanced", 4), ("balanced", 2)] {
            let mut request = pinfold_samples::exactly(vcpus);
            request.isolation = pinfold_model::IsolationScope::Host;
            let layout = plan(strategy, &topology, &request).unwrap();
            let text = emit::kubevirt(&layout, &topology).unwrap();
            assert!(text.contains("isolateEmulatorThread: true"), "{text}");
            let (_, rest) = text.split_once("--reserved-cpus=").unwrap();
            let list = rest.split_whitespace().next().unwrap();
            let reserved = pinfold_model::CpuSet::parse_list(list).unwrap();
            let vnode = &layout.vnodes[0];
            let held = vnode.vcpus().map(|it| &it.pus).collect::<pinfold_model::CpuSet>();
            assert!(!reserved.is_empty() && reserved.is_disjoint(&held), "{text}");
            let home = topology.nodes.iter().find(|node| held.is_subset(&node.pus)).unwrap();
            let threads = vnode.guest.as_ref().unwrap().threads as usize;
            let there = home.pus.difference(&reserved).len();
            assert!(there >= vcpus as usize + threads, "{strategy}, {vcpus}: {text}");
        }
    }
}

/// A process group has no domain, pod or flavor; systemd has a service for it.
#[test]
fn a_process_group_is_a_service_and_nothing_else() {
    let topology = i7_4790k().build();
    let speed = pinfold_model::Speed::from_millionths(400_000).unwrap();
    let vnode = pinfold_model::VnodeRequest::processes("slow", 2, speed);
    let request = pinfold_model::Request::from_vnodes(vec![vnode]);
    let mut layout = plan("vnodes", &topology, &request).unwrap();
    pinfold_config::requests::set_tunable(&mut layout, "policy:task=batch:5").unwrap();
    let units = emit::systemd(&layout).unwrap();
    for part in ["\nCPUSchedulingPolicy=batch\nNice=5\n", "cannot express the speed 40%"] {
        assert!(units.contains(part), "{part} is not in\n{units}");
    }
    assert!(!units.contains("QEMU"), "{units}");
    for text in [
        emit::virsh(&layout).unwrap(),
        emit::proxmox(&layout, &topology).unwrap(),
        emit::kubevirt(&layout, &topology).unwrap(),
        emit::nova(&layout, &topology).unwrap(),
    ] {
        assert!(text.starts_with("# slow is a process group"), "{text}");
    }
}
