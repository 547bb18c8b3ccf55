//! The formats that have no tool here, and those that have one, by golden files that were read.

use pinfold_host::process;

use super::machine::i7_4790k;
use super::{auto, golden, one};
use crate::emit;
use crate::plan;

const SECOND: u64 = 1_000_000_000;

/// The machine of the golden files: three cores with siblings, the first left to the host.
fn balanced() -> pinfold_model::Plan {
    let mut request = auto();
    request.vnodes[0].name = "win-10 'x'".to_owned();
    *super::iothreads(&mut request) = vec!["iothread1".to_owned()];
    plan("balanced", &i7_4790k().build(), &request).unwrap()
}

#[test]
fn golden_files() {
    let layout = balanced();
    golden("balanced.virsh.sh", &emit::virsh(one(&layout)));
    golden("balanced.cmdline", &emit::cmdline(&layout));
    golden("balanced.systemd", &emit::systemd(one(&layout)));
    golden("balanced.tuned.conf", &emit::tuned(&layout));
    golden("balanced.proxmox.sh", &emit::proxmox(one(&layout)));
    golden("balanced.kubevirt.yaml", &emit::kubevirt(one(&layout)));
    golden("balanced.nova.sh", &emit::nova(one(&layout)));
}

/// Siblings are isolated too, FIFO is on vCPUs only, and tuned builds on its own profile.
#[test]
fn a_real_time_plan_in_every_format() {
    let topology = i7_4790k().build();
    let layout = plan("realtime", &topology, &auto()).unwrap();
    golden("realtime.tuned.conf", &emit::tuned(&layout));
    let cmdline = emit::cmdline(&layout);
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
        emit::virsh(one(&layout)),
        emit::systemd(one(&layout)),
        emit::proxmox(one(&layout)),
        emit::kubevirt(one(&layout)),
        emit::nova(one(&layout)),
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
    let layout = plan("max-performance", &i7_4790k().build(), &auto()).unwrap();
    for text in [emit::cmdline(&layout), emit::tuned(&layout), emit::systemd(one(&layout))] {
        assert!(text.contains("shares"), "{text}");
        assert!(!text.contains("isolcpus="), "{text}");
    }
}

/// A temporary folder, and the program, if it is installed.
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
    let layout = balanced();
    let Some((shell, folder)) = tool("sh") else { return };
    for script in [emit::virsh(one(&layout)), emit::proxmox(one(&layout)), emit::nova(one(&layout))]
    {
        let file = format!("{}/script.sh", folder.path().display());
        pinfold_host::user::write_atomic(&file, script.as_bytes()).unwrap();
        let output = process::capture(&shell, ["-n", file.as_str()], 5 * SECOND).unwrap();
        assert!(output.status.success(), "{}\n{script}", output.stderr_text());
    }
}

/// systemd's own check of the units, each in the place that its `# FILE:` line names.
#[test]
fn systemd_takes_the_units() {
    let Some((analyze, folder)) = tool("systemd-analyze") else { return };
    let root = folder.path().display().to_string();
    let units = format!("{root}/etc/systemd/system");
    let text = emit::systemd(one(&balanced()));
    let mut names = Vec::new();
    for file in text.split("# FILE: ").skip(1) {
        let (path, content) = file.split_once('\n').unwrap();
        let folder = path.rsplit_once('/').unwrap().0;
        pinfold_host::user::make_dirs(&format!("{root}{folder}")).unwrap();
        pinfold_host::user::write_atomic(&format!("{root}{path}"), content.as_bytes()).unwrap();
        names.push(path.to_owned());
    }
    assert_eq!(names.len(), 5);
    // The units that the drop-ins belong to.
    let service = "[Service]\nExecStart=/bin/true\n";
    let unit = |name: &str, content: &str| {
        pinfold_host::user::write_atomic(&format!("{units}/{name}"), content.as_bytes()).unwrap();
    };
    unit("pinfold-win_10__x_.service", service);
    unit("system.slice", "[Unit]\nDescription=System\n");
    unit("user.slice", "[Unit]\nDescription=User\n");
    let verify = |names: &[&str]| {
        let mut words =
            vec!["verify".to_owned(), "--man=no".to_owned(), "--recursive-errors=no".to_owned()];
        words.extend(names.iter().map(|name| format!("{units}/{name}")));
        let output = process::capture(&analyze, &words, 30 * SECOND).unwrap();
        (output.status.success(), output.stderr_text())
    };
    let names =
        ["pinfold-win_10__x_.slice", "pinfold-win_10__x_.service", "system.slice", "user.slice"];
    let (fine, said) = verify(&names);
    assert!(fine && said.is_empty(), "{said}");
    // The check is one that can fail.
    let dropin = format!("{units}/system.slice.d/50-pinfold.conf");
    pinfold_host::user::write_atomic(&dropin, b"[Slice]\nAllowedCPUs=many\n").unwrap();
    let (_, said) = verify(&["system.slice"]);
    assert!(said.contains("'many'"), "{said}");
}
