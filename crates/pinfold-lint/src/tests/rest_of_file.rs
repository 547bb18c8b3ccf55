//! Settings of a domain file other than placement: each finding in a minimal file, and no finding
//! in a correct file.

use pinfold_model::{Request, Severity, Topology};
use pinfold_plan::layout::Layout;
use pinfold_samples::machine::{Machine, i7_4790k};

use crate::{Diagnostic, fix, lint};

const PINS: &str =
    "<vcpupin vcpu='0' cpuset='1'/><vcpupin vcpu='1' cpuset='5'/><emulatorpin cpuset='0,4'/>";
const ENLIGHTENED: &str = "<features><hyperv mode='custom'><relaxed state='on'/><vapic state='on'/>\
     <vpindex state='on'/><runtime state='on'/><synic state='on'/><stimer state='on'/>\
     <frequencies state='on'/><tlbflush state='on'/><ipi state='on'/></hyperv></features>";
const WINDOWS_CLOCK: &str = "<clock offset='localtime'><timer name='hpet' present='no'/>\
     <timer name='hypervclock' present='yes'/></clock>";
const GPU: &str = "<hostdev mode='subsystem' type='pci' managed='yes'/>";

/// A KVM domain with two vCPUs on one core of the i7-4790K, with additions in `<cputune>` and next
/// to it.
fn domain(tune: &str, rest: &str) -> String {
    let cpu = if rest.contains("<cpu ") {
        ""
    } else {
        "<cpu mode='host-passthrough'><topology sockets='1' cores='1' threads='2'/></cpu>"
    };
    format!(
        "<domain type='kvm'><name>a</name><memory unit='GiB'>1</memory><vcpu>2</vcpu>\
         <cputune>{PINS}{tune}</cputune><os><type arch='x86_64' machine='q35'>hvm</type></os>{cpu}{rest}\
         </domain>"
    )
}

fn devices(inside: &str) -> String {
    format!("<devices>{inside}</devices>")
}

fn diagnostics(topology: &Topology, xml: &str) -> Vec<Diagnostic> {
    lint(&[Layout::of_text(xml, "domain.xml").unwrap()], topology)
}

/// The finding of this name on the i7-4790K.
fn diagnostics_of(xml: &str, name: &str) -> Diagnostic {
    let found = diagnostics(&i7_4790k().build(), xml);
    found.into_iter().find(|diagnostic| diagnostic.name == name).unwrap()
}

/// The findings other than those of placement; everything worse than a note is fixed, and stays
/// fixed.
#[track_caller]
fn check_on(topology: &Topology, xml: &str, expected: &[&str]) {
    let found = diagnostics(topology, xml);
    let known = ["not-isolated", "sibling-left-to-host", "not-pinned"];
    let names: Vec<&str> = found
        .iter()
        .map(|diagnostic| diagnostic.name)
        .filter(|name| !known.contains(name))
        .collect();
    assert_eq!(names, expected, "{xml}");
    for diagnostic in &found {
        assert!(
            !diagnostic.cost.is_empty() || diagnostic.name == "no-housekeeping",
            "{}: no cost",
            diagnostic.name
        );
    }
    let fixed = fix(xml, "domain.xml", topology, &Request::from_vnodes(Vec::new())).unwrap();
    assert_eq!(fixed.left, [], "{xml}");
    let left = diagnostics(topology, &fixed.text);
    let worse = left.iter().find(|diagnostic| diagnostic.severity > Severity::Note);
    assert_eq!(worse, None, "{}", fixed.text);
}

#[track_caller]
fn check(tune: &str, rest: &str, expected: &[&str]) {
    check_on(&i7_4790k().build(), &domain(tune, rest), expected);
}

#[test]
fn timers() {
    check("", "", &[]);
    check("", &clock("<timer name='hpet' present='no'/>"), &[]);
    check("", &clock("<timer name='hpet' present='yes'/>"), &["timer-hpet"]);
    check("", &clock("<timer name='kvmclock' present='yes'/>"), &[]);
    // Windows with all recommended enlightenments, and without some of them.
    check("", &format!("{ENLIGHTENED}{WINDOWS_CLOCK}"), &[]);
    check(
        "",
        &format!("{ENLIGHTENED}{}", clock("<timer name='hypervclock' present='yes'/>")),
        &["timer-hpet"],
    );
    check(
        "",
        &format!("{ENLIGHTENED}{}", clock("<timer name='hpet' present='no'/>")),
        &["timer-hypervclock"],
    );
    let catchup = "<timer name='rtc' tickpolicy='catchup'/>";
    let clock = WINDOWS_CLOCK.replace("</clock>", &format!("{catchup}</clock>"));
    check("", WINDOWS_CLOCK, &["hyperv-missing", "timer-ticks"]);
    check("", &clock, &["hyperv-missing"]);
}

fn clock(timers: &str) -> String {
    format!("<clock offset='utc'>{timers}</clock>")
}

#[test]
fn enlightenments() {
    check("", "<clock offset='localtime'/>", &["timer-hypervclock", "hyperv-missing"]);
    check("", &metadata_of("http://debian.org/debian/12"), &[]);
    let windows = metadata_of("http://microsoft.com/win/11");
    check("", &windows, &["timer-hypervclock", "hyperv-missing", "timer-hpet", "timer-ticks"]);
    // If only few are missing it is a note.
    let few = ENLIGHTENED.replace("<ipi state='on'/>", "<ipi state='off'/>");
    let found = diagnostics(&i7_4790k().build(), &domain("", &format!("{few}{WINDOWS_CLOCK}")));
    let missing = found.iter().find(|diagnostic| diagnostic.name == "hyperv-missing").unwrap();
    assert_eq!(missing.severity, Severity::Note);
    assert_eq!(missing.instead, ["within <features> <hyperv>:", "<ipi state='on'/>"]);
    // All passed through, or all explicitly disabled.
    check("", &format!("<features><hyperv mode='passthrough'/></features>{WINDOWS_CLOCK}"), &[]);
    check("", "<features><hyperv><relaxed state='off'/></hyperv></features>", &[]);
}

fn metadata_of(system: &str) -> String {
    format!(
        "<metadata><l:libosinfo xmlns:l='http://libosinfo.org/xmlns/libvirt/domain/1.0'>\
             <l:os id='{system}'/></l:libosinfo></metadata><clock offset='localtime'/>"
    )
}

#[test]
fn quotas_of_pinned_threads() {
    check("<quota>50000</quota>", "", &["vcpu-quota"]);
    check("<period>50000</period><quota>50000</quota>", "", &[]);
    check("<quota>-1</quota><emulator_quota>0</emulator_quota>", "", &[]);
    check("<emulator_quota>1000</emulator_quota>", "", &["emulator-quota"]);
    check("<global_quota>150000</global_quota>", "", &["global-quota"]);
    check("<global_quota>200000</global_quota>", "", &[]);
    let iothread = "<iothreadpin iothread='1' cpuset='0'/><iothread_quota>5000</iothread_quota>";
    let disk = "<disk type='block' device='disk'><driver name='qemu' iothread='1'/>\
                <target dev='vda' bus='virtio'/></disk>";
    let rest = format!("<iothreads>1</iothreads>{}", devices(disk));
    check(iothread, &rest, &["iothread-quota"]);
    // Without pins a quota is a normal way to share CPUs.
    let floating = domain("<quota>50000</quota>", "").replace(PINS, "");
    check_on(&i7_4790k().build(), &floating, &[]);
    let found = diagnostics(&i7_4790k().build(), &domain("<quota>50000</quota>", ""));
    assert_eq!(found[0].what, "each vCPU may run for 50 ms of each 100 ms");
    assert_eq!(found[0].instead, ["remove <quota>"]);
}

#[test]
fn threads_and_caches_of_the_processor() {
    let mut amd = i7_4790k().build();
    amd.model = Some("AMD Ryzen 5 2500X Quad-Core Processor".to_owned());
    let mut intel = amd.clone();
    intel.model = Some("Intel(R) Core(TM) i7-4790K CPU @ 4.00GHz".to_owned());
    let (cache, topoext) =
        ("<cache mode='passthrough'/>", "<feature policy='require' name='topoext'/>");
    check_on(&intel, &cpu(cache), &[]);
    check_on(&intel, &cpu(""), &["cache-unknown"]);
    check_on(&amd, &cpu(&format!("{cache}{topoext}")), &[]);
    check_on(&amd, &cpu(cache), &["topoext-missing"]);
    let disabled = "<feature policy='disable' name='topoext'/>";
    check_on(&amd, &cpu(&format!("{cache}{disabled}")), &["topoext-missing"]);
    // One thread per core: the host's cache data would make neighbours siblings.
    let apart = domain("", &format!(
        "<cpu mode='host-passthrough'><topology sockets='1' cores='2' threads='1'/>{cache}</cpu>"
    ))
    .replace("cpuset='5'", "cpuset='2'");
    check_on(&intel, &apart, &["cache-untrue"]);
}

fn cpu(inside: &str) -> String {
    let shape = "<topology sockets='1' cores='1' threads='2'/>";
    domain("", &format!("<cpu mode='host-passthrough'>{shape}{inside}</cpu>"))
}

#[test]
fn interrupt_controller_and_idling() {
    check("", "<features><ioapic driver='kvm'/></features>", &[]);
    check("", "<features><ioapic driver='qemu'/></features>", &["ioapic-split"]);
    let remapped = "<features><ioapic driver='qemu'/></features>\
                    <devices><iommu model='intel'><driver intremap='on'/></iommu></devices>";
    check("", remapped, &[]);
    let board = domain("", "").replace("'q35'", "'pc-q35-4.0'");
    check_on(&i7_4790k().build(), &board, &["ioapic-split"]);
    let poll = "<features><kvm><poll-control state='on'/></kvm></features>";
    check("", poll, &["poll-control-unused"]);
    let dedicated = poll.replace("</kvm>", "<hint-dedicated state='on'/></kvm>");
    check("", &dedicated, &[]);
    let shared = domain("", &dedicated).replace(PINS, "");
    check_on(&i7_4790k().build(), &shared, &["hint-dedicated-shared"]);
    check(
        "",
        &format!("{poll}<clock offset='localtime'/>"),
        &["timer-hypervclock", "hyperv-missing", "poll-control-unused"],
    );
    let cpu_pm = "<q:commandline xmlns:q='http://libvirt.org/schemas/domain/qemu/1.0'>\
                  <q:arg value='-overcommit'/><q:arg value='cpu-pm=on'/></q:commandline>";
    check("", cpu_pm, &[]);
    let floating = domain("", cpu_pm).replace(PINS, "");
    check_on(&i7_4790k().build(), &floating, &["cpu-pm-shared"]);
    let fifo = "<vcpusched vcpus='0-1' scheduler='fifo' priority='1'/>";
    check(fifo, cpu_pm, &["memory-not-locked"]);
    check(fifo, "<memoryBacking><locked/></memoryBacking>", &["cpu-pm-off"]);
}

#[test]
fn emulated_devices() {
    check("", &devices(&disk("disk", "sata")), &["disk-emulated"]);
    check("", &devices(&disk("cdrom", "sata")), &[]);
    // The advice can be applied: no duplicate name, no drive address on virtio.
    let two = "<disk type='file' device='disk'><target dev='vda' bus='virtio'/></disk>\
               <disk type='file' device='disk'><target dev='sda' bus='sata'/>\
               <address type='drive' controller='0'/></disk>";
    let found = diagnostics_of(&domain("", &devices(two)), "disk-emulated");
    assert_eq!(
        found.instead[1..],
        ["<target dev='vdb' bus='virtio'/>", "and remove its <address type='drive' …/>"]
    );
    let both = "<controller type='usb' index='0' model='qemu-xhci'/>\
                <controller type='usb' index='1' model='piix3-uhci'/>";
    let found = diagnostics_of(&domain("", &devices(both)), "usb-not-xhci");
    assert!(found.instead[0].starts_with("remove them"), "{found:?}");
    check("", &devices(&disk("disk", "virtio")), &["disk-without-iothread"]);
    check("", &devices("<controller type='usb' model='ich9-ehci1'/>"), &["usb-not-xhci"]);
    check("", &devices("<controller type='usb' model='qemu-xhci'/>"), &[]);
    check(
        "",
        &devices("<interface type='network'><model type='e1000e'/></interface>"),
        &["network-emulated"],
    );
    check("", &devices("<interface type='network'><model type='virtio'/></interface>"), &[]);
    // An Arm board has neither.
    let arm = domain("", &devices(&disk("disk", "sata"))).replace("x86_64", "aarch64");
    check_on(&i7_4790k().build(), &arm, &[]);
    // Under TCG the rules do not apply.
    let tcg = domain("", &devices(&disk("disk", "sata"))).replace("'kvm'", "'qemu'");
    check_on(&i7_4790k().build(), &tcg, &[]);
}

fn disk(device: &str, bus: &str) -> String {
    format!("<disk type='file' device='{device}'><target dev='x' bus='{bus}'/></disk>")
}

#[test]
fn iothreads_and_their_disks() {
    fn disk(driver: &str) -> String {
        format!(
            "<disk type='file' device='disk'><driver name='qemu'{driver}/><target dev='vda' bus='virtio'/></disk>"
        )
    }

    let pin = "<iothreadpin iothread='1' cpuset='0'/>";
    check(pin, &build(&disk(" iothread='1'")), &[]);
    check(pin, &build(&disk("")), &["iothread-idle"]);
    check(pin, &build(""), &["iothread-idle"]);
    let two = format!("{}{}", disk(" iothread='1'"), disk(""));
    check(pin, &build(&two), &["disk-without-iothread"]);
    let scsi = "<controller type='scsi' model='virtio-scsi'><driver iothread='1'/></controller>";
    check(pin, &build(scsi), &[]);
    // Without a pin it runs where the vCPUs do.
    check("", &build(&disk(" iothread='1'")), &["iothread-on-vcpu"]);
}

fn build(inside: &str) -> String {
    format!("<iothreads>1</iothreads>{}", devices(inside))
}

#[test]
fn memory_of_guests_with_devices_of_the_host() {
    fn build(migratable: &str, more: &str, inside: &str) -> String {
        large(&domain("", &format!("{migratable}{more}{}", devices(&format!("{GPU}{inside}")))))
    }

    let host = i7_4790k().build();
    let migratable = "<cpu mode='host-passthrough' migratable='off'>\
                      <topology sockets='1' cores='1' threads='2'/></cpu>";
    let (none, pages) =
        ("<memballoon model='none'/>", "<memoryBacking><hugepages/></memoryBacking>");
    check_on(&host, &build(migratable, pages, none), &[]);
    check_on(&host, &build(migratable, "", none), &["no-huge-pages"]);
    check_on(
        &host,
        &build(migratable, pages, "<memballoon model='virtio'/>"),
        &["balloon-useless"],
    );
    check_on(&host, &build(migratable, pages, ""), &["balloon-useless"]);
    check_on(&host, &build(migratable, &limit(pages, 8), none), &["locked-limit"]);
    check_on(&host, &build(migratable, &limit(pages, 9), none), &[]);
    let migrates = build(migratable, pages, none).replace(" migratable='off'", "");
    check_on(&host, &migrates, &["tsc-not-invariant"]);
    // If no device locks memory, the limit is only a limit.
    check_on(&host, &large(&domain("", &limit(pages, 8))), &[]);
}

fn limit(pages: &str, gib: u32) -> String {
    format!("{pages}<memtune><hard_limit unit='GiB'>{gib}</hard_limit></memtune>")
}

fn large(xml: &str) -> String {
    xml.replace("<memory unit='GiB'>1<", "<memory unit='GiB'>8<")
}

/// A complete file, as commonly copied from forums.
#[test]
fn a_gamers_file() {
    let xml = format!(
        "<domain type='kvm'><name>win</name><memory unit='GiB'>8</memory><vcpu>2</vcpu>\
         <iothreads>1</iothreads><cputune>{PINS}<iothreadpin iothread='1' cpuset='0'/></cputune>\
         <os><type arch='x86_64' machine='q35'>hvm</type></os><features><acpi/></features>\
         <cpu mode='host-passthrough'><topology sockets='1' cores='1' threads='2'/></cpu>\
         <clock offset='localtime'><timer name='hpet' present='yes'/>\
         <timer name='hypervclock' present='no'/></clock><devices>\
         <disk type='file' device='disk'><target dev='sda' bus='sata'/></disk>\
         <controller type='usb' index='0' model='ich9-ehci1'/><memballoon model='virtio'/>{GPU}</devices>\
         </domain>"
    );
    check_on(
        &i7_4790k().build(),
        &xml,
        &[
            "timer-hpet",
            "timer-hypervclock",
            "hyperv-missing",
            "timer-ticks",
            "tsc-not-invariant",
            "disk-emulated",
            "usb-not-xhci",
            "balloon-useless",
            "iothread-idle",
            "no-huge-pages",
        ],
    );
}

#[test]
fn cells_of_the_guest_on_nodes_of_the_host() {
    let host = Machine::new([2, 1, 1, 4, 1], |place| 4 * place.package + place.core);
    let host = host.build();
    assert_eq!(names(&host, &domain_with_cells([1, 2, 5, 6])), Vec::<&str>::new());
    assert_eq!(
        names(&host, &domain_with_cells([1, 5, 2, 6])),
        ["cell-crosses-nodes", "cell-crosses-nodes"]
    );
    assert_eq!(names(&host, &domain_with_cells([1, 2, 3, 0])), ["cells-on-one-node"]);
    // Each cell moves to a separate node, as a whole.
    let crossed = domain_with_cells([1, 5, 2, 6]);
    let fixed = fix(&crossed, "domain.xml", &host, &Request::from_vnodes(Vec::new())).unwrap();
    assert_eq!(fixed.left, [], "{}", fixed.text);
}

fn domain_with_cells(lists: [u32; 4]) -> String {
    let pins: String = (0..)
        .zip(lists)
        .map(|(vcpu, pu): (u32, u32)| format!("<vcpupin vcpu='{vcpu}' cpuset='{pu}'/>"))
        .collect();
    format!(
        "<domain type='kvm'><name>a</name><memory unit='GiB'>4</memory><vcpu>4</vcpu><cputune>{pins}\
             <emulatorpin cpuset='0'/></cputune><numatune><memory mode='strict' nodeset='0-1'/></numatune>\
             <cpu><topology sockets='1' cores='4' threads='1'/><numa>\
             <cell id='0' cpus='0-1' memory='2' unit='GiB'/><cell id='1' cpus='2-3' memory='2' unit='GiB'/>\
             </numa></cpu></domain>"
    )
}

fn names(host: &Topology, xml: &str) -> Vec<&'static str> {
    let found = diagnostics(host, xml);
    found.iter().map(|diagnostic| diagnostic.name).filter(|name| name.starts_with("cell")).collect()
}
