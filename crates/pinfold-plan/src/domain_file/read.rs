//! Parser of domain files: elements to values, each with its position, or an error.

use std::collections::BTreeSet;

use pinfold_model::{CpuSet, NodeId, Policy, PuId};
use roxmltree::{Document, Node, ParsingOptions};

use super::{
    Binding, Cell, Domain, DomainError, Located, Memnode, Place, STRICT, Shape, Target,
    TopologyLevels, list, most_sockets,
};
use crate::strategies::definition::{NAMESPACE, StrategyRecord};

/// Maximum number of XML nodes, more than any domain has; limits the cost of a malicious file.
const MAX_NODES: u32 = 200_000;
/// Maximum nesting of elements; libvirt's parser, libxml2, refuses deeper ones
/// (`xmlParserMaxDepth`).
const MAX_DEPTH: usize = 256;
/// Maximum length of an element's text in a message.
const LONGEST_SNIPPET: usize = 100;
/// libvirt's limit of CPU numbers, `VIR_DOMAIN_CPUMASK_LEN`.
const MAX_LIBVIRT_PU: u32 = 16_384;
/// Maximum number of vCPUs, iothreads and nodes, more than any libvirt domain has.
const MAX_COUNT: u32 = 16_384;

/// The elements of placement, each of which stands once in a domain.
const SINGLE: [&str; 6] = ["vcpu", "iothreads", "cputune", "numatune", "cpu", "memoryBacking"];

/// What to do about a value that libvirt would refuse too.
const CORRECT_IT: &str =
    "correct it in the file; `virt-xml-validate FILE` shows what libvirt expects there";

/// Parses XML without a document type.
///
/// # Errors
/// [`DomainError`] with the position of the fault.
pub fn parse(xml: &str) -> Result<Document<'_>, DomainError> {
    let options = ParsingOptions { allow_dtd: false, nodes_limit: MAX_NODES, ..Default::default() };
    let document = Document::parse_with_options(xml, options).map_err(|error| {
        let pos = error.pos();
        let is_dtd = matches!(error, roxmltree::Error::DtdDetected);
        let why = if is_dtd {
            "the file has a document type (<!DOCTYPE>), which could define an unlimited number of \
             entities"
                .into()
        } else {
            format!("this is not well-formed XML: {error}")
        };
        let hint = if is_dtd {
            "remove the <!DOCTYPE …>; libvirt's own files have none"
        } else {
            "pass a complete domain file, as `virsh dumpxml NAME` prints it"
        };
        let hint = Some(hint);
        DomainError { line: pos.row, column: pos.col, why, hint }
    })?;
    match too_deep(&document) {
        Some(node) => Err(error_at(
            node,
            format!("elements are nested more than {MAX_DEPTH} deep, which libvirt rejects too"),
        )),
        None => Ok(document),
    }
}

/// The first element that exceeds the nesting limit.
fn too_deep<'a, 'input>(document: &'a Document<'input>) -> Option<Node<'a, 'input>> {
    let (mut node, mut depth) = (document.root_element(), 1_usize);
    loop {
        if depth > MAX_DEPTH {
            return Some(node);
        }
        if let Some(child) = node.first_element_child() {
            node = child;
            depth += 1;
            continue;
        }
        while node.next_sibling_element().is_none() {
            node = node.parent_element()?;
            depth -= 1;
        }
        node = node.next_sibling_element()?;
    }
}

/// An error at an element.
pub fn error_at(node: Node<'_, '_>, why: impl Into<String>) -> DomainError {
    let pos = node.document().text_pos_at(node.range().start);
    DomainError { line: pos.row, column: pos.col, why: why.into(), hint: Some(CORRECT_IT) }
}

pub(super) fn domain(xml: &str) -> Result<Domain, DomainError> {
    let document = parse(xml)?;
    domain_element(document.root_element())
}

/// The domain of an element.
///
/// # Errors
/// [`DomainError`] with the position of the fault.
pub(super) fn domain_element(root: Node<'_, '_>) -> Result<Domain, DomainError> {
    if !root.has_tag_name("domain") {
        let why = format!("the file's element is <{}>, not <domain>", root.tag_name().name());
        let mut error = error_at(root, why);
        error.hint = Some("pass the output of `virsh dumpxml NAME`");
        return Err(error);
    }
    let kind = attribute(root, "type")?;
    if !["kvm", "qemu"].contains(&kind) {
        let mut error = error_at(root, format!("type='{kind}' is not a QEMU machine"));
        error.hint = Some(
            "only domains of type='kvm' and type='qemu' have the threads that Pinfold places; pin \
             others with their own tools",
        );
        return Err(error);
    }
    for name in SINGLE {
        reject_duplicate(root, name)?;
    }
    let (vcpus, default) = vcpu_element(root)?;
    let enabled_vcpus = enabled_vcpus(root, vcpus.value)?;
    let iothreads = iothreads(root)?;
    let mut found = Domain {
        name: text_of(child(root, "name")).unwrap_or_default(),
        kind: kind.to_owned(),
        board: board(root),
        vcpus,
        enabled_vcpus,
        is_placed_by_numad: default.is_none()
            && child(root, "vcpu").and_then(|vcpu| vcpu.attribute("placement")) == Some("auto"),
        default,
        iothreads,
        pins: Vec::new(),
        schedulers: Vec::new(),
        most_sockets: most_sockets(root),
        shape: None,
        cells: Vec::new(),
        memory: None,
        memnodes: Vec::new(),
        memory_bytes: child(root, "memory").map(bytes).transpose()?,
        memory_place: child(root, "memory").map(place).unwrap_or_default(),
        is_in_huge_pages: huge_pages(root).is_some(),
        page_bytes: page_bytes(root)?,
        mark: mark(root),
    };
    let lines = Lines::new(root.document().input_text());
    for tune in children(root, "cputune") {
        cputune(tune, &lines, &mut found)?;
    }
    for cpu in children(root, "cpu") {
        guest(cpu, &lines, &mut found)?;
    }
    for tune in children(root, "numatune") {
        numatune(tune, &lines, &mut found)?;
    }
    Ok(found)
}

/// Refuses an element that stands twice: libvirt takes the first or both, by element.
fn reject_duplicate(root: Node<'_, '_>, name: &'static str) -> Result<(), DomainError> {
    match children(root, name).nth(1) {
        None => Ok(()),
        Some(second) => {
            let mut error = error_at(second, format!("a second <{name}>"));
            error.hint = Some(
                "merge them into one element first; `virsh edit` shows how libvirt reads them",
            );
            Err(error)
        }
    }
}

/// The board of the guest's architecture; libvirt's own default is that of the host.
fn board(root: Node<'_, '_>) -> TopologyLevels {
    let arch = child(root, "os").and_then(|os| child(os, "type"));
    match arch.and_then(|kind| kind.attribute("arch")) {
        None | Some("x86_64" | "i686") => TopologyLevels::X86,
        Some("s390x" | "s390") => TopologyLevels::WithoutThreads,
        Some("riscv64" | "riscv32") => TopologyLevels::WithoutCpu,
        Some(_) => TopologyLevels::Other,
    }
}

/// The strategy mark in `<metadata>`; `None` if missing or unknown.
fn mark(root: Node<'_, '_>) -> Option<StrategyRecord> {
    let mut marks = children(root, "metadata").flat_map(|metadata| metadata.children());
    let mark = marks.find(|child| child.has_tag_name((NAMESPACE, "placement")))?;
    StrategyRecord::read(mark.attribute("strategy")?, mark.attribute("pins")?)
}

fn huge_pages<'a, 'input>(root: Node<'a, 'input>) -> Option<Node<'a, 'input>> {
    child(root, "memoryBacking").and_then(|backing| child(backing, "hugepages"))
}

/// The size of the first kind of huge pages.
///
/// # Errors
/// [`DomainError`] with the position of the fault.
pub fn page_bytes(root: Node<'_, '_>) -> Result<Option<u64>, DomainError> {
    let page = huge_pages(root).and_then(|pages| child(pages, "page"));
    let Some(page) = page else { return Ok(None) };
    let text = attribute(page, "size")?;
    amount(page, text, "unit").map(|bytes| Some(bytes).filter(|bytes| *bytes > 0))
}

fn vcpu_element(
    root: Node<'_, '_>,
) -> Result<(Located<u32>, Option<Located<CpuSet>>), DomainError> {
    let Some(vcpu) = child(root, "vcpu") else {
        // libvirt's default.
        return Ok((Located { value: 1, place: Place::default() }, None));
    };
    let text = text_of(Some(vcpu)).unwrap_or_default();
    let count = match text.parse() {
        Ok(count @ 1..=MAX_COUNT) => count,
        Ok(0..) | Err(_) => {
            return Err(error_at(vcpu, format!("<vcpu>{text}</vcpu>: not a number of vCPUs")));
        }
    };
    if let Some(online) = vcpu.attribute("current")
        && !online.trim().parse::<u32>().is_ok_and(|online| (1..=count).contains(&online))
    {
        let why = format!("current='{online}' of <vcpu> is not a number from 1 to {count}");
        return Err(error_at(vcpu, why));
    }
    let default = match vcpu.attribute("cpuset") {
        Some(list) => Some(Located { value: cpuset(vcpu, "cpuset", list)?, place: place(vcpu) }),
        None => None,
    };
    Ok((Located { value: count, place: place(vcpu) }, default))
}

/// The vCPUs that exist at the start: those that `<vcpus>` enables; without it the first ones, as
/// many as `current` says.
fn enabled_vcpus(root: Node<'_, '_>, count: u32) -> Result<CpuSet, DomainError> {
    let current = child(root, "vcpu").and_then(|vcpu| vcpu.attribute("current"));
    let current = current.and_then(|text| text.trim().parse::<u32>().ok()).unwrap_or(count);
    let mut enabled = CpuSet::first_n(current);
    for node in children(root, "vcpus").flat_map(|vcpus| children(vcpus, "vcpu")) {
        let id = number(node, "id")?;
        if id >= count {
            return Err(error_at(node, format!("vCPU {id} does not exist: <vcpu> has {count}")));
        }
        match node.attribute("enabled") {
            Some("yes") => enabled.insert(PuId(id)),
            Some("no") => enabled.remove(PuId(id)),
            Some(_) | None => continue,
        };
    }
    if enabled.is_empty() {
        let at = child(root, "vcpus").unwrap_or(root);
        return Err(error_at(at, "no vCPU is enabled"));
    }
    Ok(enabled)
}

/// The listed IDs, then the lowest free ones, as libvirt assigns them.
fn iothreads(root: Node<'_, '_>) -> Result<Vec<u32>, DomainError> {
    let mut numbers = BTreeSet::new();
    for listed in children(root, "iothreadids").flat_map(|ids| children(ids, "iothread")) {
        let number = number(listed, "id")?;
        if number == 0 || !numbers.insert(number) {
            return Err(error_at(listed, format!("the iothread id {number} is 0 or not unique")));
        }
    }
    let Some(count) = child(root, "iothreads") else {
        return Ok(numbers.into_iter().collect());
    };
    let text = text_of(Some(count)).unwrap_or_default();
    let total: usize = match text.parse::<u32>() {
        Ok(total) if total <= MAX_COUNT => total as usize,
        Ok(_) | Err(_) => {
            let why = format!("<iothreads>{text}</iothreads>: not a number of iothreads");
            return Err(error_at(count, why));
        }
    };
    let mut next = 1;
    while numbers.len() < total {
        numbers.insert(next);
        next += 1;
    }
    Ok(numbers.into_iter().collect())
}

fn cputune(tune: Node<'_, '_>, lines: &Lines, found: &mut Domain) -> Result<(), DomainError> {
    let mut pinned: BTreeSet<Target> = found.pins.iter().map(|pin| pin.value.0).collect();
    let mut scheduled: BTreeSet<Target> =
        found.schedulers.iter().map(|entry| entry.value.0).collect();
    for node in tune.children().filter(Node::is_element) {
        let target = match node.tag_name().name() {
            "vcpupin" => Target::Vcpu(number(node, "vcpu")?),
            "emulatorpin" => Target::Emulator,
            "iothreadpin" => Target::Iothread(number(node, "iothread")?),
            "vcpusched" | "emulatorsched" | "iothreadsched" => {
                scheduler(node, lines, &mut scheduled, found)?;
                continue;
            }
            _ => continue,
        };
        if !pinned.insert(target) {
            return Err(error_at(node, format!("{} is pinned a second time", name(target))));
        }
        let pus = cpuset(node, "cpuset", attribute(node, "cpuset")?)?;
        found.pins.push(Located { value: (target, pus), place: lines.place(node) });
    }
    Ok(())
}

fn scheduler(
    node: Node<'_, '_>,
    lines: &Lines,
    scheduled: &mut BTreeSet<Target>,
    found: &mut Domain,
) -> Result<(), DomainError> {
    let policy = match attribute(node, "scheduler")? {
        "batch" => Policy::Batch { nice: 0 },
        "idle" => Policy::Idle,
        "fifo" => Policy::Fifo { priority: priority(node)? },
        "rr" => Policy::RoundRobin { priority: priority(node)? },
        other => {
            return Err(error_at(
                node,
                format!("scheduler={other:?} is not one of batch, idle, fifo, rr"),
            ));
        }
    };
    let targets: Vec<Target> = match node.tag_name().name() {
        "vcpusched" => indexes("vcpus", node)?.iter().map(|index| Target::Vcpu(index.0)).collect(),
        "iothreadsched" => {
            indexes("iothreads", node)?.iter().map(|index| Target::Iothread(index.0)).collect()
        }
        _ => vec![Target::Emulator],
    };
    let place = lines.place(node);
    for target in targets {
        if !scheduled.insert(target) {
            let why = format!("{} is given a scheduler a second time", name(target));
            return Err(error_at(node, why));
        }
        found.schedulers.push(Located { value: (target, policy), place: place.clone() });
    }
    Ok(())
}

fn indexes(attribute_name: &str, node: Node<'_, '_>) -> Result<CpuSet, DomainError> {
    cpuset(node, attribute_name, attribute(node, attribute_name)?)
}

/// The priority as given: libvirt accepts any, the kernel 1 to 99; the check reports others.
fn priority(node: Node<'_, '_>) -> Result<u8, DomainError> {
    let text = attribute(node, "priority")?;
    match text.trim().parse::<i32>() {
        Ok(priority) => Ok(u8::try_from(priority.clamp(0, 255)).unwrap_or(0)),
        Err(_) => Err(error_at(node, format!("priority={text:?} is not a number"))),
    }
}

fn guest(cpu: Node<'_, '_>, lines: &Lines, found: &mut Domain) -> Result<(), DomainError> {
    if let Some(node) = child(cpu, "topology") {
        let optional = |name: &str| match node.attribute(name) {
            Some(_) => number(node, name),
            None => Ok(1),
        };
        let shape = Shape {
            sockets: number(node, "sockets")?,
            dies: optional("dies")?,
            clusters: optional("clusters")?,
            cores: number(node, "cores")?,
            threads: number(node, "threads")?,
        };
        if shape.vcpus().is_none_or(|vcpus| vcpus == 0) {
            return Err(error_at(node, "a part of the topology is 0, or their product too large"));
        }
        found.shape = Some(Located { value: shape, place: place(node) });
    }
    let cells = children(cpu, "numa").flat_map(|numa| children(numa, "cell"));
    for (node, place_in_order) in cells.zip(0_u32..) {
        let id = match node.attribute("id") {
            Some(_) => number(node, "id")?,
            None => place_in_order,
        };
        let vcpus = match node.attribute("cpus") {
            Some(list) => cpuset(node, "cpus", list)?,
            None => CpuSet::new(),
        };
        let bytes = match node.attribute("memory") {
            Some(text) => Some(amount(node, text, "unit")?),
            None => None,
        };
        found.cells.push(Located { value: Cell { id, vcpus, bytes }, place: lines.place(node) });
    }
    Ok(())
}

fn numatune(tune: Node<'_, '_>, lines: &Lines, found: &mut Domain) -> Result<(), DomainError> {
    if let Some(node) = child(tune, "memory") {
        let nodes = match node.attribute("nodeset") {
            Some(list) => Some(nodeset(node, list)?),
            None => None,
        };
        let mode = mode_of(node);
        found.memory = Some(Located { value: Binding { mode, nodes }, place: place(node) });
    }
    for node in children(tune, "memnode") {
        let cell = number(node, "cellid")?;
        let nodes = nodeset(node, attribute(node, "nodeset")?)?;
        let value = Memnode { cell, mode: mode_of(node), nodes };
        found.memnodes.push(Located { value, place: lines.place(node) });
    }
    Ok(())
}

/// The mode of a binding; libvirt's default is `strict`.
fn mode_of(node: Node<'_, '_>) -> String {
    node.attribute("mode").unwrap_or(STRICT).to_owned()
}

fn nodeset(node: Node<'_, '_>, list: &str) -> Result<Vec<NodeId>, DomainError> {
    Ok(cpuset(node, "nodeset", list)?.iter().map(|index| NodeId(index.0)).collect())
}

/// A list parsed as by libvirt; never empty.
fn cpuset(node: Node<'_, '_>, attribute: &str, list: &str) -> Result<CpuSet, DomainError> {
    list::parse(list, MAX_LIBVIRT_PU)
        .map_err(|why| error_at(node, format!("{attribute}={list:?}: {why}")))
}

/// Size of the domain's `<memory>` in bytes.
///
/// # Errors
/// [`DomainError`] with the position of the fault.
pub fn bytes(node: Node<'_, '_>) -> Result<u64, DomainError> {
    let text = text_of(Some(node)).unwrap_or_default();
    amount(node, &text, "unit")
}

/// An amount of memory in bytes, with the unit of an attribute: libvirt's units in any case, KiB if
/// none is given (`virScaleInteger`).
fn amount(node: Node<'_, '_>, text: &str, unit: &str) -> Result<u64, DomainError> {
    let unit = node.attribute(unit).filter(|unit| !unit.is_empty()).unwrap_or("KiB");
    let product = text.trim().parse::<u64>().ok().zip(factor(unit));
    let product = product.and_then(|(count, unit)| count.checked_mul(unit));
    product.ok_or_else(|| error_at(node, format!("{text:?} {unit:?} is not a memory size")))
}

/// Bytes of a unit: `b`, `byte`, `bytes`; `k`, `KiB`, … to `E`, `EiB` by 1024; `KB`, … to `EB` by
/// 1000.
fn factor(unit: &str) -> Option<u64> {
    let unit = unit.to_ascii_lowercase();
    if ["b", "byte", "bytes"].contains(&unit.as_str()) {
        return Some(1);
    }
    let mut letters = unit.chars();
    let power = 1 + "kmgtpe".find(letters.next()?)?;
    let base: u64 = match letters.as_str() {
        "" | "ib" => 1024,
        "b" => 1000,
        _ => return None,
    };
    base.checked_pow(u32::try_from(power).ok()?)
}

fn name(target: Target) -> String {
    match target {
        Target::Vcpu(index) => format!("vCPU {index}"),
        Target::Emulator => "the emulator".to_owned(),
        Target::Iothread(number) => format!("iothread {number}"),
    }
}

fn attribute<'a>(node: Node<'a, '_>, name: &str) -> Result<&'a str, DomainError> {
    node.attribute(name)
        .ok_or_else(|| error_at(node, format!("<{}> has no {name}", node.tag_name().name())))
}

fn number(node: Node<'_, '_>, name: &str) -> Result<u32, DomainError> {
    let text = attribute(node, name)?;
    match text.parse() {
        Ok(number) if number <= MAX_COUNT => Ok(number),
        Ok(_) | Err(_) => Err(error_at(
            node,
            format!("<{}> {name}={text:?}: not a valid number", node.tag_name().name()),
        )),
    }
}

pub(super) fn child<'a, 'input>(
    node: Node<'a, 'input>,
    name: &'static str,
) -> Option<Node<'a, 'input>> {
    children(node, name).next()
}

fn children<'a, 'input>(
    node: Node<'a, 'input>,
    name: &'static str,
) -> impl Iterator<Item = Node<'a, 'input>> {
    node.children().filter(move |child| is_libvirt_element(child, name))
}

/// True for libvirt's element of this name; elements of other namespaces do not match.
pub fn is_libvirt_element(node: &Node<'_, '_>, name: &str) -> bool {
    node.is_element() && node.tag_name().namespace().is_none() && node.tag_name().name() == name
}

/// All text of an element, also around comments, like XPath's `string()`; `None` if there is none.
#[must_use]
pub fn text_of(node: Option<Node<'_, '_>>) -> Option<String> {
    let parts = node?.children().filter(Node::is_text).filter_map(|part| part.text());
    let text: String = parts.collect();
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// The line and the opening tag of an element.
pub fn place(node: Node<'_, '_>) -> Place {
    let line = node.document().text_pos_at(node.range().start).row;
    Place { line: Some(line), text: opening_tag(node), ..Place::default() }
}

/// The ends of all lines of a text. [`place`] counts the lines before its element, so that the
/// places of all pins of a large file would take a time that grows with the square of its size.
struct Lines(Vec<usize>);

impl Lines {
    fn new(text: &str) -> Self {
        Self(text.match_indices('\n').map(|(at, _)| at).collect())
    }

    /// The same as [`place`].
    fn place(&self, node: Node<'_, '_>) -> Place {
        let start = node.range().start;
        let before = self.0.partition_point(|end| *end < start);
        let line = u32::try_from(before + 1).ok();
        Place { line, text: opening_tag(node), ..Place::default() }
    }
}

/// The opening tag of an element, shortened.
fn opening_tag(node: Node<'_, '_>) -> String {
    let source = node.document().input_text().get(node.range()).unwrap_or_default();
    let opening = source.split_inclusive('>').next().unwrap_or_default();
    let words: Vec<&str> = opening.split_whitespace().collect();
    let mut text = words.join(" ");
    if text.chars().count() > LONGEST_SNIPPET {
        text = text.chars().take(LONGEST_SNIPPET).collect::<String>() + "…";
    }
    text
}
