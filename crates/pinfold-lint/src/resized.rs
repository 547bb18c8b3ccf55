//! A layout with another number of vCPUs, as a user would write it when following such advice.

use pinfold_emit::Edits;
use pinfold_model::Role;
use pinfold_plan::domain_file::{Place, parse};
use pinfold_plan::layout::{Layout, Pin, SourceFormat};

/// The layout with `count` vCPUs; `None` if other parts of its file contain the number too.
pub(super) fn with_count(layout: &Layout, count: u32) -> Option<Layout> {
    if layout.language == SourceFormat::Libvirt {
        let text = rewritten(layout.text.as_deref()?, layout, count)?;
        return Layout::of_text(&text, &layout.source).ok();
    }
    let others = layout.pins.iter().filter(|pin| !pin.role.is_vcpu()).cloned();
    let pins = (0..count)
        .map(|index| {
            let role = Role::Vcpu(index);
            let new = Pin { role: role.clone(), pus: None, policy: None, place: Place::default() };
            layout.pin(&role).cloned().unwrap_or(new)
        })
        .chain(others)
        .collect();
    Some(Layout { vcpus: count, pins, guest: None, wrong_product: None, ..layout.clone() })
}

/// The file with `<vcpu>` and `<topology>` changed, and without pins of removed vCPUs.
fn rewritten(xml: &str, layout: &Layout, count: u32) -> Option<String> {
    let document = parse(xml).ok()?;
    let root = document.root_element();
    let child = |name: &'static str| root.children().find(|child| child.has_tag_name(name));
    if !layout.cells.is_empty() || !layout.reserve.is_empty() {
        return None;
    }
    let mut edits = Edits::new(xml);
    let vcpu = format!("<vcpu placement='static'>{count}</vcpu>");
    match child("vcpu") {
        Some(node) => edits.replace(node, &[vcpu]),
        None => edits.insert_into(root, &[vcpu]),
    }
    let tunes = root.children().filter(|child| child.has_tag_name("cputune"));
    tunes
        .flat_map(|tune| tune.children())
        .filter(|node| {
            let index = node.attribute("vcpu").and_then(|text| text.trim().parse::<u32>().ok());
            node.has_tag_name("vcpupin") && index.is_some_and(|index| index >= count)
        })
        .for_each(|node| edits.remove(node));
    let shape =
        child("cpu").and_then(|cpu| cpu.children().find(|child| child.has_tag_name("topology")));
    if let Some(node) = shape {
        let threads = layout.guest.as_ref().map_or(1, |guest| guest.threads.max(1));
        let threads = if count.is_multiple_of(threads) { threads } else { 1 };
        let cores = count / threads;
        let line = format!("<topology sockets='1' cores='{cores}' threads='{threads}'/>");
        edits.replace(node, &[line]);
    }
    Some(edits.apply())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_whose_cells_hold_the_vcpus_has_no_other_number() {
        let smaller = resize("<topology sockets='1' cores='7' threads='1'/>").expect("a layout");
        assert_eq!(smaller.vcpus, 6);
        let cells = "<numa><cell id='0' cpus='0' memory='262144'/>\
                     <cell id='1' cpus='1-6' memory='262144'/></numa>";
        assert!(resize(cells).is_none());
    }

    fn resize(cpu: &str) -> Option<Layout> {
        let xml = format!(
            "<domain type='kvm'><name>vm</name><memory unit='MiB'>512</memory><vcpu>7</vcpu>\
                 <cputune><vcpupin vcpu='6' cpuset='6'/></cputune><cpu>{cpu}</cpu></domain>"
        );
        let layout = Layout::of_text(&xml, "vm.xml").expect("a domain file");
        with_count(&layout, 6)
    }
}
