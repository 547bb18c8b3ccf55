//! Domain files with random faults on every host of `fixtures/hosts`: check, fix, check again. By
//! default a few files on each; `PINFOLD_TEST_SIZE=full` takes more, and larger hosts.

use pinfold_lint::{fix, lint};
use pinfold_model::{Request, Severity, Topology};
use pinfold_plan::layout::Layout;
use pinfold_samples::hosts;

use crate::by_size;

const GIB: u64 = 1 << 30;

/// The same numbers at every run (a linear congruential generator of Knuth's).
struct Numbers(u64);

impl Numbers {
    fn draw_below(&mut self, bound: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % bound.max(1)
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.draw_below(count) == 0
    }

    fn pick<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[self.draw_below(choices.len())]
    }
}

/// A CPU list: one of the host's CPUs, a few of them, or one that it lacks.
fn list(numbers: &mut Numbers, known: &[u32]) -> String {
    let one = known[numbers.draw_below(known.len())];
    match numbers.draw_below(12) {
        0 => format!("{one},{}", known[numbers.draw_below(known.len())]),
        1 => "9999".to_owned(),
        _ => one.to_string(),
    }
}

/// The content of `<cputune>`.
fn tune(numbers: &mut Numbers, known: &[u32], vcpus: usize, iothreads: usize) -> String {
    let mut tune = String::new();
    let style = numbers.draw_below(3);
    let from = numbers.draw_below(known.len());
    for vcpu in 0..vcpus {
        let pin = match style {
            0 => known[(from + vcpu) % known.len()].to_string(),
            1 => list(numbers, known),
            _ if numbers.one_in(3) => continue,
            _ => known[vcpu % known.len()].to_string(),
        };
        tune.push_str(&format!("    <vcpupin vcpu='{vcpu}' cpuset='{pin}'/>\n"));
    }
    if numbers.one_in(2) {
        tune.push_str(&format!("    <emulatorpin cpuset='{}'/>\n", list(numbers, known)));
    }
    if iothreads > 0 && numbers.one_in(2) {
        let pin = list(numbers, known);
        tune.push_str(&format!("    <iothreadpin iothread='1' cpuset='{pin}'/>\n"));
    }
    if numbers.one_in(6) {
        tune.push_str(&format!("    <vcpupin vcpu='{}' cpuset='0'/>\n", vcpus + 3));
    }
    tune.push_str(numbers.pick(&[
        "",
        "",
        "    <quota>50000</quota>\n",
        "    <emulator_quota>2000</emulator_quota>\n",
    ]));
    tune
}

/// A file that somebody might have written for another host, or without one.
fn domain(numbers: &mut Numbers, topology: &Topology) -> String {
    let known: Vec<u32> = topology.pus.iter().map(|pu| pu.os.0).collect();
    let vcpus = 1 + numbers.draw_below(known.len().min(12));
    let iothreads = numbers.draw_below(3);
    let tune = tune(numbers, &known, vcpus, iothreads);
    let nodes = topology.nodes.len();
    let numatune = match numbers.draw_below(3) {
        0 => format!(
            "  <numatune><memory mode='strict' nodeset='{}'/></numatune>\n",
            numbers.draw_below(nodes + 1)
        ),
        _ => String::new(),
    };
    let shape = match numbers.draw_below(4) {
        0 => String::new(),
        1 if vcpus.is_multiple_of(2) => {
            format!("<topology sockets='1' cores='{}' threads='2'/>", vcpus / 2)
        }
        2 => format!("<topology sockets='{vcpus}' cores='1' threads='1'/>"),
        _ => format!("<topology sockets='1' cores='{vcpus}' threads='1'/>"),
    };
    let features = numbers.pick(&[
        "",
        "<features><acpi/></features>",
        "<features><hyperv><relaxed state='on'/></hyperv></features>",
        "<features><ioapic driver='qemu'/></features>",
    ]);
    let clock = numbers.pick(&[
        "",
        "<clock offset='localtime'/>",
        "<clock offset='utc'><timer name='hpet' present='yes'/></clock>",
        "<clock offset='localtime'><timer name='hypervclock' present='no'/></clock>",
    ]);
    let cache = numbers.pick(&["", "", "<cache mode='passthrough'/>"]);
    let devices = numbers.pick(&[
        "",
        "<devices><hostdev mode='subsystem' type='pci'/><memballoon model='virtio'/></devices>",
    ]);
    let limit =
        numbers.pick(&["", "", "  <memtune><hard_limit unit='GiB'>2</hard_limit></memtune>\n"]);
    format!(
        "<domain type='kvm'>\n  <name>a</name>\n  <memory unit='b'>{}</memory>\n{limit}  \
         <vcpu placement='static'>{vcpus}</vcpu>\n  <iothreads>{iothreads}</iothreads>\n  <cputune>\n{tune}  \
         </cputune>\n{numatune}  <os><type arch='x86_64' machine='q35'>hvm</type></os>\n  {features}\n  \
         <cpu mode='host-passthrough'>{shape}{cache}</cpu>\n  {clock}\n  {devices}\n</domain>\n",
        4 * GIB
    )
}

fn wrong(xml: &str, topology: &Topology) -> Vec<String> {
    let layout =
        Layout::of_text(xml, "domain.xml").unwrap_or_else(|error| panic!("{error}\n{xml}"));
    let found = lint(&[layout], topology);
    let worse = found.iter().filter(|diagnostic| diagnostic.severity > Severity::Note);
    worse.map(|diagnostic| format!("{}: {}", diagnostic.name, diagnostic.what)).collect()
}

#[test]
fn what_is_fixed_is_clean_and_what_is_clean_stays() {
    let conditions = Request::from_vnodes(Vec::new());
    let fixed = |xml: &str, topology: &Topology| {
        fix(xml, "domain.xml", topology, &conditions)
            .unwrap_or_else(|error| panic!("{error}\n{xml}"))
    };
    let (mut clean, mut better) = (0, 0);
    for (number, (name, topology)) in hosts()
        .into_iter()
        .filter(|host: &(String, Topology)| host.1.pus.len() <= by_size(128, 64))
        .enumerate()
    {
        let mut numbers = Numbers(u64::try_from(number).expect("few hosts"));
        for _ in 0..by_size(24, 8) {
            let xml = domain(&mut numbers, &topology);
            let bad = wrong(&xml, &topology);
            let done = fixed(&xml, &topology);
            assert_eq!(fixed(&done.text, &topology).text, done.text, "{name}: fixed twice\n{xml}");
            let left = wrong(&done.text, &topology);
            if bad.is_empty() {
                assert_eq!(done.text, xml, "{name}: a clean file stays");
            } else if done.left.is_empty() {
                assert_eq!(left, Vec::<String>::new(), "{name}:\n{xml}\n{}", done.text);
                clean += 1;
            } else {
                // More vCPUs than fast cores, than one node has, or than leave the host a CPU.
                assert!(
                    done.left.iter().all(|diagnostic| diagnostic.is_final),
                    "{name}: {:?}\n{xml}",
                    done.left
                );
                assert!(left.len() <= bad.len(), "{name}: {bad:?} {left:?}\n{xml}\n{}", done.text);
                better += 1;
            }
        }
    }
    assert!(clean >= 2 * better && better > 0, "{clean} clean, {better} not wholly");
}
