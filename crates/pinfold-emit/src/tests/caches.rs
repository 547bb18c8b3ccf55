//! Caches, siblings and dies in the guest topology; checked with libvirt's schema and with QEMU.

use crate::Merged;
use pinfold_host::process;
use pinfold_model::{Plan, Topology};
use pinfold_plan::domain_file::Domain;
use pinfold_plan::plan;
use pinfold_qemu::parse;
use pinfold_samples::machine::two_complexes;
use pinfold_samples::{auto, exactly};

use super::qemu::{SECOND_NS, words};
use crate as emit;

/// Two L3 domains of four cores with two threads each.
fn host_with(model: Option<&str>) -> Topology {
    let mut topology = two_complexes().build();
    topology.model = model.map(str::to_owned);
    topology
}

const AMD: Option<&str> = Some("AMD Ryzen 7 1700");
const INTEL: Option<&str> = Some("Intel(R) Core(TM) i7");

/// The lines of `<cpu>` without comments.
fn cpu_lines(layout: &Plan, topology: &Topology) -> Vec<String> {
    let xml = emit::libvirt(layout, topology).unwrap();
    let lines = xml.lines().map(|line| line.trim().to_owned());
    let inside = lines.skip_while(|line| !line.starts_with("<cpu ")).skip(1);
    inside.take_while(|line| line != "</cpu>").filter(|line| !line.starts_with("<!--")).collect()
}

#[test]
fn flags_follow_the_pins_and_the_vendor() {
    const PASSTHROUGH: &str = "<cache mode='passthrough'/>";
    const TOPOEXT: &str = "<feature policy='require' name='topoext'/>";
    // The guest is the whole host: its L3 domains are dies, and the host's cache data are valid.
    let whole = "<topology sockets='1' dies='2' cores='4' threads='2'/>";
    check("max-performance", AMD, &[whole, PASSTHROUGH, TOPOEXT]);
    check("max-performance", INTEL, &[whole, PASSTHROUGH]);
    check("max-performance", None, &["<topology sockets='1' cores='8' threads='2'/>"]);
    // One of two L3 domains, without the host core: all vCPUs share it, whatever their number.
    check(
        "l3-exclusive",
        AMD,
        &["<topology sockets='1' cores='4' threads='2'/>", PASSTHROUGH, TOPOEXT],
    );
    // Three cores in one domain and four in the other are no dies, and shared caches cannot be
    // shown.
    check("balanced", AMD, &["<topology sockets='1' cores='7' threads='2'/>", TOPOEXT]);
    // A guest without siblings on a host with siblings: its neighbours share no L2.
    check("low-latency", AMD, &["<topology sockets='1' cores='7' threads='1'/>"]);
}

fn check(strategy: &str, model: Option<&str>, expected: &[&str]) {
    let topology = host_with(model);
    let layout = plan(strategy, &topology, &auto()).unwrap();
    assert_eq!(cpu_lines(&layout, &topology), expected, "{strategy} on {model:?}");
}

#[test]
fn an_l2_that_cores_share_is_the_guests_whole_or_not_shown() {
    let mut topology = host_with(INTEL);
    assert!(pass(&topology, "balanced", 6));
    // Pairs of cores share an L2: the guest's three cores are one and a half pairs.
    let pair = |first: usize| topology.cores[first].pus.union(&topology.cores[first + 1].pus);
    topology.l2_domains = [0, 2, 4, 6].map(pair).to_vec();
    assert!(!pass(&topology, "balanced", 6));
    assert!(pass(&topology, "balanced", 8));
    // One pair shares an L2 and the other cores do not: no one description is true for both.
    let mixed =
        [0, 2, 4, 6].map(|first| Topology { l2_domains: vec![pair(first)], ..topology.clone() });
    let shown = mixed.map(|topology| pass(&topology, "balanced", 8));
    assert_eq!(shown.into_iter().filter(|shown| !shown).count(), 2, "{shown:?}");
}

fn pass(topology: &Topology, strategy: &str, vcpus: u32) -> bool {
    let layout = plan(strategy, topology, &exactly(vcpus)).unwrap();
    cpu_lines(&layout, topology).iter().any(|line| line.contains("passthrough"))
}

#[test]
fn a_hand_made_half_of_each_cache_is_dies_but_not_the_hosts() {
    let topology = host_with(AMD);
    let mut layout = plan("max-performance", &topology, &auto()).unwrap();
    let vnode = &mut layout.vnodes[0];
    // vCPUs 0-3 of the first L3 and 8-11 of the second, renumbered from 0.
    let vcpus: Vec<_> = vnode.vcpus().cloned().collect();
    let half = vcpus.iter().enumerate().filter(|(index, _)| index % 8 < 4);
    vnode.threads = half
        .zip(0..)
        .map(|((_, thread), number)| pinfold_model::ThreadPlan {
            role: pinfold_model::Role::Vcpu(number),
            ..thread.clone()
        })
        .collect();
    let guest = vnode.guest.as_mut().unwrap();
    guest.cores = 4;
    let lines = cpu_lines(&layout, &topology);
    assert_eq!(lines[0], "<topology sockets='1' dies='2' cores='2' threads='2'/>");
    assert!(!lines.iter().any(|line| line.contains("passthrough")), "{lines:?}");
}

#[test]
fn qemus_own_model_gets_what_it_lacks() {
    fn check(strategy: &str, model: Option<&str>, own: &str, expected: &str) {
        let topology = host_with(model);
        let layout = plan(strategy, &topology, &auto()).unwrap();
        let argv = words(&["qemu-system-x86_64", "-cpu", own, "-smp", "2"]);
        let script = emit::qemu(&layout, &topology, &parse(&argv)).unwrap();
        assert!(script.contains(expected), "{expected} is not in\n{script}");
    }

    let all = "-cpu host,topoext=on,host-cache-info=on \\\n    -smp 16,sockets=1,dies=2,cores=4,threads=2";
    check("max-performance", AMD, "host", all);
    check("max-performance", INTEL, "host", "-cpu host,host-cache-info=on \\\n");
    check(
        "max-performance",
        AMD,
        "host,topoext=off",
        "-cpu host,topoext=off,host-cache-info=on \\\n",
    );
    check("low-latency", AMD, "host", "-cpu host \\\n    -smp 7,sockets=1,cores=7,threads=1");
    check("max-performance", AMD, "EPYC", "-cpu EPYC \\\n");
    check("max-performance", AMD, "EPYC", "describes caches of its own");
    // The program's name determines the board if the host's model is unknown.
    let all = "-cpu host,host-cache-info=on \\\n    -smp 16,sockets=1,dies=2,cores=4,threads=2";
    check("max-performance", None, "host", all);
}

#[test]
fn a_domain_file_gets_dies_and_keeps_its_own_cache() {
    let topology = host_with(AMD);
    let layout = plan("max-performance", &topology, &exactly(16)).unwrap();
    let new = merge(&layout, &topology, &file("kvm", "")).text;
    assert!(
        new.contains("<cpu>\n  <topology sockets='1' dies='2' cores='4'")
            && !new.contains("<cache"),
        "{new}"
    );
    assert_eq!(merge(&layout, &topology, &new).text, new, "twice is the same as once");
    let tcg = merge(&layout, &topology, &file("qemu", "")).text;
    assert!(tcg.contains("dies='2'") && !tcg.contains("<cache"), "{tcg}");
    let own = "<cpu mode='host-passthrough'><cache level='3' mode='emulate'/></cpu>";
    let kept = merge(&layout, &topology, &file("kvm", own)).text;
    assert!(kept.contains("level='3'") && !kept.contains("mode='passthrough'"), "{kept}");
    // A passed-through cache in a guest that differs from the host is reported.
    let small = plan("low-latency", &topology, &exactly(4)).unwrap();
    let own = "<cpu mode='host-passthrough'><cache mode='passthrough'/></cpu>";
    let text = file("kvm", own).replace("16", "4");
    let merge = emit::merge_libvirt_domain(&text, &small, &small.vnodes[0], &topology).unwrap();
    assert!(merge.notes.iter().any(|note| note.contains("not the host's")), "{:?}", merge.notes);
    assert_eq!(Domain::read(&new).unwrap().shape.unwrap().value.vcpus(), Some(16));
}

fn merge(layout: &Plan, topology: &Topology, text: &str) -> Merged {
    emit::merge_libvirt_domain(text, layout, &layout.vnodes[0], topology).unwrap()
}

fn file(kind: &str, cpu: &str) -> String {
    format!("<domain type='{kind}'><vcpu>16</vcpu>{cpu}</domain>")
}

#[test]
fn libvirts_schema_and_qemu_take_dies_and_caches() {
    let topology = host_with(AMD);
    let layout = plan("max-performance", &topology, &auto()).unwrap();
    match process::find_program("virt-xml-validate") {
        None => eprintln!("skipped: virt-xml-validate is not installed"),
        Some(validator) => {
            let domain = format!(
                "<domain type='kvm'><name>vm</name><memory>1048576</memory>{}\
                 <os><type arch='x86_64' machine='q35'>hvm</type></os></domain>",
                emit::libvirt(&layout, &topology).unwrap()
            );
            let file = format!("/tmp/pinfold-plan-caches-{}.xml", process::own_pid());
            pinfold_host::files::write_atomic(&file, domain.as_bytes()).unwrap();
            let output = process::capture(&validator, [&file, "domain"], 20 * SECOND_NS);
            process::capture("rm", [&file], SECOND_NS).unwrap();
            let output = output.unwrap();
            assert!(output.status.success(), "{}\n{domain}", output.stderr_text());
        }
    }
    let Some(program) = process::find_program("qemu-system-x86_64") else {
        eprintln!("skipped: qemu-system-x86_64 is not installed");
        return;
    };
    let script = emit::qemu(&layout, &topology, &parse(&words(&["qemu"]))).unwrap();
    let smp = script.lines().find_map(|line| line.trim().strip_prefix("-smp ")).unwrap();
    let smp = smp.trim_end_matches(" \\");
    let line = format!(
        "printf 'info hotpluggable-cpus\\nquit\\n' | {program} -M q35 -accel tcg -nodefaults \
         -display none -S -monitor stdio -smp {smp}"
    );
    let output = process::capture("sh", ["-c", &line], 60 * SECOND_NS).unwrap();
    let said = output.stdout_text();
    assert!(output.status.success(), "{}", output.stderr_text());
    assert_eq!(
        (count_dies(&said, "0"), count_dies(&said, "1"), count_dies(&said, "2")),
        (8, 8, 0),
        "{said}"
    );
}

fn count_dies(said: &str, id: &str) -> usize {
    said.matches(&format!("die-id: \"{id}\"")).count()
}
