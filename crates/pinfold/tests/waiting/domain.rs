//! From a person's domain file to a running domain and back, with a real libvirt daemon: the plan
//! is merged in, libvirt takes it and gives it back, and the review reads both file and machine.

use crate::common::{Checked as _, PINFOLD, run};
use crate::daemon::Daemon;
use pinfold_host::process::{find_program, own_pid};
use pinfold_host::{Host as _, LiveHost, files};

const NAME: &str = "pinfold-round-trip";
const DESKTOP: &str = "package:1 l3:1 core:4 pu:2(indexes=0,4,1,5,2,6,3,7)";

/// Runs the binary with the daemon as libvirt's default: exit code, output, talk.
fn pinfold(daemon: Option<&Daemon>, words: &[&str]) -> (Option<i32>, String, String) {
    let uri = daemon.map_or_else(String::new, Daemon::uri);
    let uri = format!("LIBVIRT_DEFAULT_URI={uri}");
    run("env", [&[&uri, PINFOLD], words].concat()).parts()
}

/// Asserts the exit code, and returns output and talk.
#[track_caller]
fn expect(code: i32, daemon: Option<&Daemon>, words: &[&str]) -> (String, String) {
    let (found, printed, said) = pinfold(daemon, words);
    assert_eq!(found, Some(code), "{printed}{said}");
    (printed, said)
}

fn domain_xml() -> String {
    format!(
        "<!-- mine -->\n<domain type='qemu'>\n  <name>{NAME}</name>\n  <memory unit='MiB'>32</memory>\n  \
         <vcpu>6</vcpu>\n  <iothreads>1</iothreads>\n  <cputune>\n    <shares>512</shares>\n    \
         <vcpupin vcpu='0' cpuset='0'/> <!-- why? -->\n  </cputune>\n  \
         <os><type arch='x86_64' machine='q35'>hvm</type></os>\n  <devices><emulator>{}</emulator></devices>\n\
         </domain>\n",
        find_program("qemu-system-x86_64").unwrap()
    )
}

/// The pins and the topology of a domain file, a line each, sorted.
fn placement(xml: &str) -> Vec<String> {
    let words = [
        "<vcpu>",
        "<vcpupin",
        "<emulatorpin",
        "<iothreadpin",
        "<topology",
        "<shares",
        "<iothreads",
    ];
    let lines =
        xml.lines().map(|line| line.trim().replace('"', "'").replace(" placement='static'", ""));
    let ours = lines.filter(|line| words.iter().any(|word| line.starts_with(word)));
    let mut ours: Vec<String> = ours
        .map(|line| line.split(" <!--").next().unwrap_or_default().replace(" clusters='1'", ""))
        .collect();
    ours.sort();
    ours
}

#[test]
fn libvirt_takes_a_merged_file_and_gives_it_back() {
    let Some(daemon) = Daemon::start(NAME) else { return };
    let file = format!("{}/mine.xml", daemon.folder.path().display());
    files::write_atomic(&file, domain_xml().as_bytes()).unwrap();
    let (said, _) = expect(1, None, &["plan", "--check", &file, "--input", DESKTOP]);
    assert!(said.contains("half-pinned") && said.contains("mine.xml:9 "), "{said}");

    let plan = ["plan", "-s", "balanced", "--input", DESKTOP];
    let words = [&plan[..], &["--emit", "libvirt", "--into", &file]].concat();
    let (merged, _) = expect(0, None, &words);
    assert!(merged.starts_with("<!-- mine -->") && merged.contains("<!-- why? -->"), "{merged}");
    files::write_atomic(&file, merged.as_bytes()).unwrap();
    daemon.virsh(&["define", &file, "--validate"]).unwrap();
    let dumped = daemon.virsh(&["dumpxml", NAME]).unwrap();
    assert_eq!(placement(&dumped), placement(&merged), "{dumped}");
    expect(0, None, &["plan", "--check", &file, "--input", DESKTOP]);

    // The script of commands brings another placement, of this host (virsh takes no other CPUs).
    let words = ["plan", "-s", "compact", "--vcpus", "6", "--name", NAME, "--emit"];
    let (_, script, _) = pinfold(None, &[&words[..], &["virsh"]].concat());
    let (_, fragment, _) = pinfold(None, &[&words[..], &["libvirt"]].concat());
    let uri = format!("LIBVIRT_DEFAULT_URI={}", daemon.uri());
    let output = run("env", [&uri, "sh", "-c", &script, "script", "--config"]);
    assert!(output.status.success(), "{}\n{script}", output.stderr_text());
    let found = placement(&daemon.virsh(&["dumpxml", NAME, "--inactive"]).unwrap());
    let wanted = placement(&fragment);
    let pins: Vec<&String> = wanted.iter().filter(|line| line.starts_with("<vcpupin")).collect();
    assert_eq!(pins.len(), 6);
    assert!(pins.iter().all(|pin| found.contains(pin)), "{found:?}\n{script}");
    daemon.virsh(&["undefine", NAME]).unwrap();
}

/// Memory on two nodes in huge pages, with a cell for each: defined by libvirt, dumped, valid.
#[test]
fn libvirt_takes_memory_nodes_cells_and_huge_pages() {
    const TWO_NODES: &str = "node:2 core:2 pu:1";
    let Some(daemon) = Daemon::start(NAME) else { return };
    let file = format!("{}/mine.xml", daemon.folder.path().display());
    let mine = domain_xml().replace("<memory unit='MiB'>32<", "<memory unit='MiB'>64<");
    let mine = mine.replace("<vcpu>6<", "<vcpu>4<");
    files::write_atomic(&file, mine.as_bytes()).unwrap();
    let vm = format!("name={NAME},vcpus=4,iothreads=iothread1,memory=64MiB,huge-pages=2MiB");
    let words =
        ["plan", "-s", "sequential", "--input", TWO_NODES, "--vm", &vm, "--emit", "libvirt"];
    let (merged, _) = expect(0, None, &[&words[..], &["--into", &file]].concat());
    files::write_atomic(&file, merged.as_bytes()).unwrap();
    daemon.virsh(&["define", &file, "--validate"]).unwrap();
    let dumped = daemon.virsh(&["dumpxml", NAME]).unwrap();
    let memory = |xml: &str| -> Vec<String> {
        let words = ["<memory mode", "<memnode", "<cell ", "<page "];
        let lines = xml.lines().map(|line| line.trim().replace('"', "'"));
        lines.filter(|line| words.iter().any(|word| line.starts_with(word))).collect()
    };
    let wanted = [
        "<memory mode='strict' nodeset='0-1'/>",
        "<memnode cellid='0' mode='strict' nodeset='0'/>",
        "<memnode cellid='1' mode='strict' nodeset='1'/>",
        "<cell id='0' cpus='0-1' memory='32768' unit='KiB'/>",
        "<cell id='1' cpus='2-3' memory='32768' unit='KiB'/>",
        "<page size='2048' unit='KiB'/>",
    ];
    for xml in [&merged, &dumped] {
        let mut found = memory(xml);
        found.sort_by_key(|line| wanted.iter().position(|one| one == line));
        assert_eq!(found, wanted, "{xml}");
    }
    assert_eq!(placement(&dumped), placement(&merged), "{dumped}");
    files::write_atomic(&file, dumped.as_bytes()).unwrap();
    match find_program("virt-xml-validate") {
        None => eprintln!("skipped: virt-xml-validate is not installed"),
        Some(validator) => {
            let output = run(&validator, [&file, "domain"]);
            assert!(output.status.success(), "{}\n{dumped}", output.stderr_text());
        }
    }
    // What libvirt gives back is read again, and nothing of its memory is wrong.
    let (_, said, _) = pinfold(None, &["plan", "--check", &file, "--input", TWO_NODES]);
    assert!(!said.contains("memory-") && !said.contains("nodes-"), "{said}");
    daemon.virsh(&["undefine", NAME]).unwrap();
}

#[test]
fn a_running_domain_is_checked_thread_by_thread() {
    let Some(daemon) = Daemon::start(NAME) else { return };
    let own = LiveHost::new().unwrap().affinity(own_pid()).unwrap();
    let (Some(first), true) = (own.first(), own.len() > 1) else {
        eprintln!("skipped: this process may use one CPU only");
        return;
    };
    let file = format!("{}/mine.xml", daemon.folder.path().display());
    // Both vCPUs on one CPU, and the emulator with them.
    let tune = format!(
        "<vcpu>2</vcpu><cputune><vcpupin vcpu='0' cpuset='{first}'/><vcpupin vcpu='1' cpuset='{first}'/>\
         <emulatorpin cpuset='{first}'/></cputune>"
    );
    let xml = domain_xml();
    let (head, rest) = xml.split_once("  <vcpu>").unwrap();
    let (_, tail) = rest.split_once("</cputune>").unwrap();
    files::write_atomic(&file, format!("{head}{tune}{tail}").as_bytes()).unwrap();
    daemon.virsh(&["define", &file]).unwrap();
    daemon.virsh(&["start", NAME, "--paused"]).unwrap();
    let (said, hint) = expect(1, Some(&daemon), &["plan", "--check", "--libvirt", NAME]);
    for name in ["vcpus-share-pu", "emulator-on-vcpu"] {
        assert!(said.contains(name), "{name} is not in\n{said}");
    }
    assert!(hint.contains(&format!("pinfold apply --libvirt {NAME}")), "{hint}");
    let (json, _) = expect(1, Some(&daemon), &["plan", "--check", "--libvirt", NAME, "--json"]);
    assert!(json.contains("\"format\": \"pinfold-review/1\""), "{json}");
    daemon.virsh(&["destroy", NAME]).unwrap();
    daemon.virsh(&["undefine", NAME]).unwrap();
}
