//! libvirt's domain XML: `<vcpu>`, `<iothreads>`, `<cputune>`, `<cpu>`.
//!
//! A fragment to put into `<domain>` (`virsh edit NAME`), in the words of
//! <https://libvirt.org/formatdomain.html#cpu-tuning>. libvirt numbers iothreads
//! from 1, so an id of QEMU's becomes its place in the plan; a comment tells which.
//! The CPU mode `host-passthrough` is that of a `<domain type='kvm'>`.

use pinfold_model::{IsolationScope, NotSingle, Plan, Policy, Role, ThreadPlan, VnodePlan};

/// The plan as a fragment of libvirt's domain XML, with the reason of each pin.
///
/// # Errors
/// [`NotSingle`] if the plan does not place exactly one vnode.
pub fn libvirt(plan: &Plan) -> Result<String, NotSingle> {
    let vnode = plan.single()?;
    let mut xml = Xml::default();
    let vcpus = vnode.vcpus().count();
    xml.comment(&format!("Pinfold: {} for {}", plan.strategy, vnode.name));
    if vcpus == 0 {
        xml.comment("no vCPU is planned: there is nothing for libvirt to pin");
        return Ok(xml.text);
    }
    xml.line(&format!("<vcpu placement='static'>{vcpus}</vcpu>"));
    let iothreads = vnode.threads.iter().filter(|thread| iothread(thread).is_some());
    let iothreads = iothreads.count();
    if iothreads > 0 {
        xml.line(&format!("<iothreads>{iothreads}</iothreads>"));
    }
    cputune(&mut xml, (plan, vnode));
    cpu(&mut xml, vnode);
    Ok(xml.text)
}

fn cputune(xml: &mut Xml, (plan, vnode): (&Plan, &VnodePlan)) {
    xml.open("<cputune>");
    // One number per iothread, in the plan's order.
    let mut number = 0_u32;
    let numbered: Vec<(&ThreadPlan, Option<Place>)> = vnode
        .threads
        .iter()
        .map(|thread| {
            number += u32::from(iothread(thread).is_some());
            (thread, Place::of(&thread.role, number))
        })
        .collect();
    for (thread, place) in &numbered {
        pin(xml, thread, place.as_ref());
    }
    // The schedulers after all pins: a real-time thread is never unpinned on its way.
    for (thread, place) in &numbered {
        if let (Some(policy), Some(place)) = (thread.policy, place) {
            scheduler(xml, policy, place);
        }
    }
    if !plan.exclusive.is_empty() {
        let scope = match plan.isolation {
            IsolationScope::None | IsolationScope::Own => "own",
            IsolationScope::Host => "host",
        };
        xml.comment(&format!(
            "The plan keeps other tasks off {}; libvirt cannot. \
             `pinfold apply` on the running domain with the isolation scope {scope} does",
            plan.exclusive
        ));
    }
    xml.close("</cputune>");
}

fn pin(xml: &mut Xml, thread: &ThreadPlan, place: Option<&Place>) {
    let number = match place {
        Some(Place::Iothread(number)) => format!(", libvirt's number {number}"),
        Some(Place::Vcpu(_) | Place::Emulator) | None => String::new(),
    };
    xml.comment(&format!("{}{number}: {}", thread.role, thread.reason));
    let pus = &thread.pus;
    match place {
        Some(Place::Vcpu(index)) => {
            xml.line(&format!("<vcpupin vcpu='{index}' cpuset='{pus}'/>"));
        }
        Some(Place::Emulator) => xml.line(&format!("<emulatorpin cpuset='{pus}'/>")),
        Some(Place::Iothread(number)) => {
            xml.line(&format!("<iothreadpin iothread='{number}' cpuset='{pus}'/>"));
        }
        None => xml.comment(&format!(
            "libvirt has no pin for {}: it runs where the emulator does, the plan wants {pus}",
            thread.role
        )),
    }
}

fn scheduler(xml: &mut Xml, policy: Policy, place: &Place) {
    let attributes = match policy {
        Policy::Fifo { priority } => format!("scheduler='fifo' priority='{priority}'"),
        Policy::RoundRobin { priority } => format!("scheduler='rr' priority='{priority}'"),
        Policy::Batch { nice: 0 } => "scheduler='batch'".to_owned(),
        Policy::Idle => "scheduler='idle'".to_owned(),
        // libvirt leaves threads in this state.
        Policy::Other { nice: 0 } => return,
        Policy::Other { .. }
        | Policy::Batch { .. }
        | Policy::Deadline { .. }
        | Policy::Unknown(_) => {
            xml.comment(&format!("libvirt cannot express the policy {policy} of the plan"));
            return;
        }
    };
    xml.line(&match place {
        Place::Vcpu(index) => format!("<vcpusched vcpus='{index}' {attributes}/>"),
        Place::Emulator => format!("<emulatorsched {attributes}/>"),
        Place::Iothread(number) => format!("<iothreadsched iothreads='{number}' {attributes}/>"),
    });
}

fn cpu(xml: &mut Xml, vnode: &VnodePlan) {
    let Some(guest) = &vnode.guest else {
        return;
    };
    xml.comment(&format!("guest topology: {}", guest.reason));
    xml.open("<cpu mode='host-passthrough'>");
    xml.line(&format!(
        "<topology sockets='{}' cores='{}' threads='{}'/>",
        guest.sockets, guest.cores, guest.threads
    ));
    if guest.threads > 1 {
        xml.comment(
            "On an AMD host add <feature policy='require' name='topoext'/> here: without it QEMU \
             hides the threads from the guest. On an Intel host it would not start",
        );
    }
    xml.close("</cpu>");
}

/// A role that libvirt has a pin for.
enum Place {
    Vcpu(u32),
    Emulator,
    Iothread(u32),
}

impl Place {
    fn of(role: &Role, iothread: u32) -> Option<Self> {
        match role {
            Role::Vcpu(index) => Some(Self::Vcpu(*index)),
            Role::Emulator => Some(Self::Emulator),
            Role::Iothread(_) => Some(Self::Iothread(iothread)),
            Role::Vhost(_) | Role::Worker | Role::Task => None,
        }
    }
}

fn iothread(thread: &ThreadPlan) -> Option<&str> {
    match &thread.role {
        Role::Iothread(id) => Some(id),
        Role::Vcpu(_) | Role::Emulator | Role::Vhost(_) | Role::Worker | Role::Task => None,
    }
}

/// Indented lines of XML.
#[derive(Default)]
struct Xml {
    text: String,
    depth: usize,
}

impl Xml {
    fn line(&mut self, line: &str) {
        self.text.push_str(&"  ".repeat(self.depth));
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn open(&mut self, tag: &str) {
        self.line(tag);
        self.depth += 1;
    }

    fn close(&mut self, tag: &str) {
        self.depth = self.depth.saturating_sub(1);
        self.line(tag);
    }

    fn comment(&mut self, text: &str) {
        self.line(&format!("<!-- {} -->", comment_text(text)));
    }
}

/// XML allows neither `--` in a comment nor `-` at its end, and not every character.
fn comment_text(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '-' if safe.ends_with('-') => safe.push_str(" -"),
            '\u{fffe}' | '\u{ffff}' => safe.push(char::REPLACEMENT_CHARACTER),
            other if other.is_control() => safe.push(' '),
            other => safe.push(other),
        }
    }
    safe
}
