//! A plan merged into a domain file: every byte that is not placement-related stays.

use pinfold_model::{IsolationScope, Plan, Policy, Request, Topology};
use pinfold_plan::domain_file::Domain;
use pinfold_plan::plan;
use pinfold_samples::machine::{Machine, i7_4790k};
use pinfold_samples::{auto, exactly};

use crate::merge_libvirt_domain;

/// A typical file: comments, both kinds of quotes, other tuning, a namespace.
const OURS: &str = r#"<?xml version="1.0"?>
<!-- my machine, do not touch -->
<domain xmlns:qemu="http://libvirt.org/schemas/domain/qemu/1.0" type='kvm'>
	<name>win10</name>
  <memory unit='GiB'>8</memory>
  <vcpu placement='static' current="2">4</vcpu>
  <iothreads>1</iothreads>
  <cputune>
    <shares>2048</shares>
    <!-- from the forum -->
    <vcpupin vcpu='0' cpuset='0'/>
    <vcpupin   vcpu="1"  cpuset="1"
       />
    <!-- why is this here? -->
    <emulatorpin cpuset='0-7'/>
    <cachetune vcpus='0-1'><cache id='0' level='3' type='both' size='3' unit='MiB'/></cachetune>
  </cputune>
  <os><type arch='x86_64'>hvm</type></os>
  <cpu mode='host-passthrough' check='none'>
    <topology sockets='4' cores='1' threads='1'/> <!-- Windows -->
    <feature policy='disable' name='hypervisor'/>
  </cpu>
  <description><![CDATA[a < b & <vcpu>9</vcpu>]]></description>
  <qemu:commandline><qemu:arg value='-S'/></qemu:commandline>
</domain>
<!-- the end -->
"#;

const THEIRS: &str = r#"<?xml version="1.0"?>
<!-- my machine, do not touch -->
<domain xmlns:qemu="http://libvirt.org/schemas/domain/qemu/1.0" type='kvm'>
	<name>win10</name>
  <memory unit='GiB'>8</memory>
  <!-- Pinfold: the plan has another number of vCPUs; before: <vcpu placement='static' current="2">4</vcpu> -->
  <vcpu placement='static' current='2'>6</vcpu>
  <iothreads>1</iothreads>
  <cputune>
    <shares>2048</shares>
    <!-- from the forum -->
    <vcpupin vcpu='0' cpuset='1'/>
    <vcpupin vcpu='1' cpuset='5'/>
    <vcpupin vcpu='2' cpuset='2'/>
    <vcpupin vcpu='3' cpuset='6'/>
    <vcpupin vcpu='4' cpuset='3'/>
    <vcpupin vcpu='5' cpuset='7'/>
    <emulatorpin cpuset='0,4'/>
    <iothreadpin iothread='1' cpuset='0,4'/>
    <!-- why is this here? -->
    <cachetune vcpus='0-1'><cache id='0' level='3' type='both' size='3' unit='MiB'/></cachetune>
  </cputune>
  <os><type arch='x86_64'>hvm</type></os>
  <cpu mode='host-passthrough' check='none'>
    <!-- Pinfold: the guest's topology follows the pins; before: <topology sockets='4' cores='1' threads='1'/> -->
    <topology sockets='1' dies='1' cores='3' threads='2'/> <!-- Windows -->
    <feature policy='disable' name='hypervisor'/>
  </cpu>
  <description><![CDATA[a < b & <vcpu>9</vcpu>]]></description>
  <qemu:commandline><qemu:arg value='-S'/></qemu:commandline>
</domain>
<!-- the end -->
"#;

#[track_caller]
fn merge(xml: &str, strategy: &str, vcpus: u32) -> String {
    let topology = i7_4790k().build();
    let layout = plan(strategy, &topology, &exactly(vcpus)).unwrap();
    let text =
        merge_libvirt_domain(xml, &layout, layout.single_vnode().unwrap(), &topology).unwrap().text;
    let again = merge_libvirt_domain(&text, &layout, layout.single_vnode().unwrap(), &topology)
        .unwrap()
        .text;
    assert_eq!(again, text, "merging twice is merging once");
    let domain = Domain::read(&text).unwrap();
    assert_eq!(domain.vcpus.value, vcpus);
    for thread in layout.vnodes[0].vcpus() {
        let index = thread.role.short().parse().unwrap();
        assert_eq!(
            domain.pin(pinfold_plan::domain_file::Target::Vcpu(index)).unwrap().0,
            &thread.pus
        );
    }
    text
}

/// The note about isolation names the plan's strategy: without it `apply` selects another one.
#[test]
fn the_command_that_isolates_repeats_the_strategy() {
    let topology = i7_4790k().build();
    for strategy in ["realtime", "balanced"] {
        let request = Request { isolation: IsolationScope::Host, ..exactly(2) };
        let layout = plan(strategy, &topology, &request).unwrap();
        let notes =
            merge_libvirt_domain(THEIRS, &layout, layout.single_vnode().unwrap(), &topology)
                .unwrap()
                .notes;
        let apply = format!("--strategy {strategy} --isolate host` on the running domain");
        assert!(notes.iter().any(|note| note.contains(&apply)), "{notes:?}");
    }
}

#[test]
fn every_other_byte_stays() {
    assert_eq!(merge(OURS, "balanced", 6), THEIRS);
    assert_eq!(merge(&dos(OURS), "balanced", 6), dos(THEIRS), "line ends of the file");
}

fn dos(text: &str) -> String {
    text.replace('\n', "\r\n")
}

#[test]
fn what_is_missing_is_put_where_it_is_looked_for() {
    let bare = "<domain type='qemu'>\n <name>x</name>\n <vcpu>2</vcpu>\n</domain>";
    assert_eq!(
        merge(bare, "low-latency", 2),
        "<domain type='qemu'>\n <name>x</name>\n <vcpu>2</vcpu>\n <cputune>\n   <vcpupin vcpu='0' cpuset='1'/>\n   \
         <vcpupin vcpu='1' cpuset='2'/>\n   <emulatorpin cpuset='5-6'/>\n </cputune>\n <cpu>\n   \
         <topology sockets='1' dies='1' cores='2' threads='1'/>\n </cpu>\n</domain>"
    );
    // All on one line, self-closing parents, no <vcpu> element.
    let line = "<domain type='kvm'><name>x</name><cputune/><cpu mode='host-passthrough'/></domain>";
    let text = merge(line, "low-latency", 1);
    assert!(text.contains("<cpu mode='host-passthrough'>\n  <topology"), "{text}");
    assert!(text.contains("<vcpu placement='static'>1</vcpu>"), "{text}");
    let empty = "<domain type='qemu'><cputune>\n</cputune></domain>";
    assert!(merge(empty, "low-latency", 1).contains("<emulatorpin cpuset='5'/>\n</cputune>"));
}

#[test]
fn an_element_without_content_is_opened_once() {
    let text = merge("<domain type='kvm' id='2'/>", "low-latency", 3);
    assert_eq!(text.matches("</domain>").count(), 1, "{text}");
    assert!(
        text.starts_with("<domain type='kvm' id='2'>\n  <vcpu placement='static'>3</vcpu>\n"),
        "{text}"
    );
    assert_eq!(text.matches("<cputune>").count(), 1, "{text}");
}

#[test]
fn schedulers_of_the_file_stay_unless_the_plan_names_some() {
    let xml = "<domain type='qemu'><vcpu>2</vcpu><cputune><vcpusched vcpus='0-1' scheduler='fifo' priority='1'/></cputune></domain>";
    assert!(merge(xml, "low-latency", 2).contains("<vcpusched vcpus='0-1'"));
    let gone = merge(xml, "low-latency", 1);
    let why = "<!-- Pinfold: the number of vCPUs differs, and the plan has no policy; before: ";
    let old = "<vcpusched vcpus='0-1' scheduler='fifo' priority='1'/>";
    assert!(gone.contains(&format!("{why}{old} -->")), "{gone}");
    assert_eq!(gone.matches("vcpusched").count(), 1, "for vCPUs that are gone: {gone}");
    let topology = i7_4790k().build();
    let mut layout = plan("low-latency", &topology, &exactly(2)).unwrap();
    layout.vnodes[0].threads[0].policy = Some(Policy::RoundRobin { priority: 2 });
    let text =
        merge_libvirt_domain(xml, &layout, layout.single_vnode().unwrap(), &topology).unwrap().text;
    assert!(text.contains("<vcpusched vcpus='0' scheduler='rr' priority='2'/>"), "{text}");
    let why = "<!-- Pinfold: the plan defines its own policies; before: ";
    assert!(text.contains(&format!("{why}{old} -->")), "{text}");
    assert_eq!(text.matches("fifo").count(), 1, "{text}");
}

#[test]
fn iothreads_keep_their_numbers() {
    let xml = "<domain type='qemu'><vcpu>1</vcpu><iothreads>2</iothreads><iothreadids><iothread id='7'/></iothreadids></domain>";
    let topology = i7_4790k().build();
    let mut request = exactly(1);
    *pinfold_samples::iothreads(&mut request) = vec!["disk".to_owned(), "iothread7".to_owned()];
    let layout = plan("low-latency", &topology, &request).unwrap();
    let merged =
        merge_libvirt_domain(xml, &layout, layout.single_vnode().unwrap(), &topology).unwrap();
    assert!(merged.text.contains("<iothreadpin iothread='1'"), "{}", merged.text);
    assert!(merged.text.contains("<iothreadpin iothread='7'"), "{}", merged.text);
    assert!(
        merged
            .notes
            .contains(&"libvirt's iothread 1 corresponds to iothread(disk) of the plan".to_owned())
    );
    // More than the file has: the number is increased.
    *pinfold_samples::iothreads(&mut request) = ["a", "b", "c"].map(str::to_owned).to_vec();
    let layout = plan("low-latency", &topology, &request).unwrap();
    let text =
        merge_libvirt_domain(xml, &layout, layout.single_vnode().unwrap(), &topology).unwrap().text;
    assert!(text.contains("<iothreads>3</iothreads>"), "{text}");
}

/// A replaced element is in a comment right before its replacement, and in a note.
#[track_caller]
fn gave_way(merged: &crate::Merged, why: &str, old: &str, new: &str) {
    let text = &merged.text;
    let comment = format!("<!-- Pinfold: {why}; before: {old} -->");
    let (_, after) = text.split_once(&comment).unwrap_or_else(|| panic!("no {comment} in\n{text}"));
    assert!(after.trim_start().starts_with(new), "{new} is not behind {comment} in\n{text}");
    assert_eq!(text.matches(old).count(), 1, "in the comment alone:\n{text}");
    let note = format!("{old} was replaced: {why}");
    assert!(merged.notes.iter().any(|one| one.ends_with(&note)), "{:?}", merged.notes);
}

#[test]
fn a_comment_holds_the_number_of_iothreads_that_gave_way() {
    let topology = i7_4790k().build();
    let mut request = exactly(1);
    *pinfold_samples::iothreads(&mut request) = ["a", "b"].map(str::to_owned).to_vec();
    let layout = plan("low-latency", &topology, &request).unwrap();
    let xml =
        "<domain type='qemu'>\n  <vcpu>1</vcpu>\n  <iothreads>1</iothreads>\n</domain>".to_owned();
    let merged =
        merge_libvirt_domain(&xml, &layout, layout.single_vnode().unwrap(), &topology).unwrap();
    let old = "<iothreads>1</iothreads>";
    gave_way(&merged, "the plan has more iothreads", old, "<iothreads>2</iothreads>");
    // The same number as in the plan: nothing is replaced, and there is no note.
    let xml = xml.replace(">1</iothreads>", ">2</iothreads>");
    let merged =
        merge_libvirt_domain(&xml, &layout, layout.single_vnode().unwrap(), &topology).unwrap();
    assert!(!merged.text.contains("more iothreads"), "{}", merged.text);
}

#[test]
fn a_comment_holds_the_page_size_that_gave_way() {
    let topology = i7_4790k().build();
    let mut request = exactly(1);
    let memory = pinfold_model::MemoryRequest { bytes: 1 << 30, page_bytes: Some(1 << 30) };
    request.vnodes[0].memory = Some(memory);
    let layout = plan("low-latency", &topology, &request).unwrap();
    let old = "<page size='2048' unit='KiB'/>";
    let xml = format!(
        "<domain type='qemu'>\n  <memory unit='GiB'>1</memory>\n  <memoryBacking>\n    \
         <hugepages>\n      {old}\n    </hugepages>\n    <locked/>\n  </memoryBacking>\n  \
         <vcpu>1</vcpu>\n</domain>"
    );
    let merged =
        merge_libvirt_domain(&xml, &layout, layout.single_vnode().unwrap(), &topology).unwrap();
    gave_way(&merged, "the request asks for this page size", old, "<page size='1048576'");
    assert!(merged.text.contains("<locked/>"), "{}", merged.text);
}

#[test]
fn a_comment_holds_the_scheduler_that_gave_way() {
    let topology = i7_4790k().build();
    let mut layout = plan("low-latency", &topology, &exactly(1)).unwrap();
    layout.vnodes[0].threads[0].policy = Some(Policy::Fifo { priority: 3 });
    let old = "<emulatorsched scheduler='rr' priority='9'/>";
    let xml = format!(
        "<domain type='qemu'>\n  <vcpu>1</vcpu>\n  <cputune>\n    {old}\n  </cputune>\n</domain>"
    );
    let merged =
        merge_libvirt_domain(&xml, &layout, layout.single_vnode().unwrap(), &topology).unwrap();
    gave_way(&merged, "the plan defines its own policies", old, "<vcpupin vcpu='0'");
    assert!(merged.text.contains("<vcpusched vcpus='0' scheduler='fifo' priority='3'/>"));
}

#[test]
fn siblings_on_amd_need_a_feature() {
    let mut topology = Machine::new([1, 1, 1, 4, 2], |place| place.core + 4 * place.thread).build();
    topology.model = Some("AMD Ryzen 7 5800X 8-Core Processor".to_owned());
    let layout = plan("balanced", &topology, &auto()).unwrap();
    let xml = "<domain type='kvm'><vcpu>6</vcpu><cpu mode='host-passthrough'></cpu></domain>";
    let text =
        merge_libvirt_domain(xml, &layout, layout.single_vnode().unwrap(), &topology).unwrap().text;
    assert!(text.contains("<feature policy='require' name='topoext'/>"), "{text}");
    let again = merge_libvirt_domain(&text, &layout, layout.single_vnode().unwrap(), &topology)
        .unwrap()
        .text;
    assert_eq!(again, text);
}

#[test]
fn refusals_name_line_and_column() {
    let topology = i7_4790k().build();
    let layout = plan("low-latency", &topology, &exactly(2)).unwrap();
    let dtd = "<!DOCTYPE domain [<!ENTITY a \"b\">]>\n<domain/>";
    check_merge(
        dtd,
        "line 1, column 1: the file has a document type (<!DOCTYPE>), which could define an \
         unlimited number of entities",
        &layout,
        &topology,
    );
    check_merge(
        "<domain>&a;</domain>",
        "line 1, column 9: this is not well-formed XML: unknown entity reference 'a' at 1:9",
        &layout,
        &topology,
    );
    check_merge(
        "<network/>",
        "line 1, column 1: the file's element is <network>, not <domain>",
        &layout,
        &topology,
    );
    check_merge(
        "<domain type='qemu'>\n <vcpu>many</vcpu></domain>",
        "line 2, column 2: <vcpu>many</vcpu>: not a number of vCPUs",
        &layout,
        &topology,
    );
}

fn check_merge(xml: &str, reported: &str, layout: &Plan, topology: &Topology) {
    let error = merge_libvirt_domain(xml, layout, layout.single_vnode().unwrap(), topology)
        .unwrap_err()
        .to_string();
    assert_eq!(error, reported, "{xml}");
}

#[test]
fn half_a_cputune_is_refused() {
    let topology = i7_4790k().build();
    let layout = plan("low-latency", &topology, &exactly(2)).unwrap();
    let check_tune =
        |inside: &str, reported: &str| check_merge(&tune(inside), reported, &layout, &topology);
    check_tune("<vcpupin vcpu='0'/>", "line 4, column 3: <vcpupin> has no cpuset");
    check_tune("<vcpupin cpuset='0'/>", "line 4, column 3: <vcpupin> has no vcpu");
    check_tune(
        "<vcpupin vcpu='x' cpuset='0'/>",
        "line 4, column 3: <vcpupin> vcpu=\"x\": not a valid number",
    );
    check_tune(
        "<vcpupin vcpu='0' cpuset='0'/>\n  <vcpupin vcpu='0' cpuset='1'/>",
        "line 5, column 3: vCPU 0 is pinned a second time",
    );
    check_tune("<emulatorpin cpuset=''/>", "line 4, column 3: cpuset=\"\": the list is empty");
    check_tune(
        "<emulatorpin cpuset='0-7:2'/>",
        "line 4, column 3: cpuset=\"0-7:2\": libvirt does not support a step in a list",
    );
    for list in ["8-3", "^2", "2147483648", "0-", "a", "20000"] {
        let error = merge_libvirt_domain(
            &tune(&format!("<emulatorpin cpuset='{list}'/>")),
            &layout,
            layout.single_vnode().unwrap(),
            &topology,
        );
        let error = error.unwrap_err();
        assert_eq!((error.line, error.column), (4, 3));
        assert!(error.why.contains(&format!("cpuset={list:?}: ")), "{error}");
    }
    check_tune(
        "<vcpusched vcpus='0' scheduler='fifo'/>",
        "line 4, column 3: <vcpusched> has no priority",
    );
    check_merge(
        "<domain type='qemu'><vcpu>2</vcpu>\n<cputune/>\n<cputune/></domain>",
        "line 3, column 1: a second <cputune>",
        &layout,
        &topology,
    );
    // The check reads it as the merge does.
    let twice = "<domain type='kvm'><vcpu>2</vcpu>\n<cputune/>\n<cputune/></domain>";
    let error = Domain::read(twice).unwrap_err();
    assert_eq!(error.to_string(), "line 3, column 1: a second <cputune>");
    check_merge(
        "<domain type='qemu'><vcpu>1</vcpu>\n<vcpus><vcpu id='0' enabled='yes'/></vcpus></domain>",
        "line 2, column 1: <vcpus> lists 1 single vCPUs, the plan has 2",
        &layout,
        &topology,
    );
    check_merge(
        "<domain type='qemu'><vcpu>4</vcpu><cpu><numa>\n<cell id='0' cpus='0-3' memory='1'/></numa></cpu></domain>",
        "line 2, column 1: the guest's NUMA cells have 4 vCPUs, the plan has 2",
        &layout,
        &topology,
    );
}

fn tune(inside: &str) -> String {
    format!("<domain type='qemu'>\n <vcpu>2</vcpu>\n <cputune>\n  {inside}\n </cputune>\n</domain>")
}

/// Blank lines between pins that are replaced go with them.
#[test]
fn blank_lines_between_pins_are_not_left_over() {
    let topology = i7_4790k().build();
    for eol in ["\n", "\r\n"] {
        for gap in ["", "\n", "  \n\n"] {
            let pins: String = (0..3)
                .map(|vcpu| format!("{gap}    <vcpupin vcpu='{vcpu}' cpuset='0'/>\n"))
                .collect();
            let xml = format!(
                "<domain type='kvm'>\n  <name>vm</name>\n  <vcpu>3</vcpu>\n  <cputune>\n{pins}\n  \
                 </cputune>\n  <os><type arch='x86_64'>hvm</type></os>\n</domain>\n"
            )
            .replace('\n', eol);
            let made = plan("low-latency", &topology, &exactly(3)).unwrap();
            let merged =
                merge_libvirt_domain(&xml, &made, &made.vnodes[0], &topology).unwrap().text;
            let start = merged.find("<vcpupin").unwrap();
            let end = merged.rfind("<vcpupin").unwrap();
            let blank =
                merged[start..end].trim_end().lines().filter(|line| line.trim().is_empty()).count();
            assert_eq!(blank, 0, "{merged}");
            let tail = merged[end..].split("</cputune>").next().unwrap();
            assert!(tail.lines().filter(|line| line.trim().is_empty()).count() <= 2, "{merged}");
        }
    }
}
