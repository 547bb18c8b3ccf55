//! The guests of a study: prepares the images of each instruction set before the first trial, and
//! determines which guests cannot run here and why.

use std::collections::{BTreeMap, BTreeSet};

use pinfold_config::requests;
use pinfold_host::{Host as _, LiveHost, SystemClock, files, paths};
use pinfold_model::{
    Accelerator, CpuSet, EmulatorRequest, Isa, IsolationScope, NodeId, Origin, Plan, Request,
    Severity, Topology, VcpuCount, VnodePlan,
};
use pinfold_probe::pinload::Pinload;
use pinfold_study::study::{
    Cell, Cells, FactorEffect, GuestRequest, NONE, Program, SAME_PROGRAM, Study,
};
use pinfold_topology::Verdict;
use pinfold_vm::guest::{MOST_VCPUS, REAL_TIME_FLAVOUR, emulator_version, flavour_of};

use super::NAME;
use super::cell_context::{CellLevels, HostFacts};
use super::interference::memory_node;
use crate::guest::{GuestImage, Scratch, Shape, Subject, VmStarter, lacking};
use crate::message::say;
use crate::{Failure, Session};

/// Least memory of a guest: enough for the largest input of `pinload parallel` in addition to its
/// initramfs.
pub const MEMORY_MIB: u32 = 1024;
/// Timeout for the HELLO of a guest under KVM, after which KVM counts as not working.
const KVM_HELLO_NS: u64 = 60_000_000_000;

/// A guest with its placement.
#[derive(Clone)]
pub struct GuestSetup {
    pub plan: Plan,
    pub isa: Isa,
    pub accelerator: Accelerator,
    pub vcpus: u32,
    /// Number of guests at the same time, including this one.
    pub machines: u32,
    /// Whether its kernel is one with PREEMPT_RT.
    pub real_time: bool,
    /// True if all of them run the measured program.
    pub same_program: bool,
    /// The NUMA node of its memory; `None` leaves that to the kernel.
    pub memory: Option<NodeId>,
    pub memory_mib: u32,
    /// Levels of its page tables; `None` leaves them to its kernel.
    pub page_table_levels: Option<u32>,
}

impl GuestSetup {
    /// The guest of a cell.
    ///
    /// # Errors
    /// Why this host does not support it.
    pub fn new(
        levels: CellLevels<'_>,
        guest_request: GuestRequest,
        tunables: &[String],
        HostFacts { host, topology, .. }: HostFacts<'_>,
    ) -> Result<Self, String> {
        let isa = guest_request.isa.or_else(Isa::of_host);
        let isa =
            isa.ok_or("there is no guest for this host's instruction set: name one in isa")?;
        if guest_request.vcpus > MOST_VCPUS {
            return Err(format!(
                "it needs {} vCPUs, but guests can have at most {MOST_VCPUS}, the limit of the \
                 riscv64 kernel",
                guest_request.vcpus
            ));
        }
        refuse_host_levels(levels)?;
        if let (Accelerator::Kvm, Some(why)) = (guest_request.accelerator, kvm_refusal(isa, host)) {
            return Err(why);
        }
        if let Some(failure) = lacking(isa) {
            return Err(describe(&failure));
        }
        let strategy =
            levels.acting(&FactorEffect::Strategy).map_or(NONE, |level| level.text.as_str());
        let emulator = match levels.acting(&FactorEffect::Emulator).map(|level| level.text.as_str())
        {
            Some("real-time") => EmulatorRequest::RealTime,
            Some("apart") => EmulatorRequest::Apart,
            Some(_) | None => EmulatorRequest::Usual,
        };
        let machines =
            levels.acting(&FactorEffect::Machines).map_or(Ok(1), |level| level.text.parse());
        let machines = machines.map_err(|_| "machines is not a whole number".to_owned())?;
        let mut plan = plan(strategy, emulator, guest_request.vcpus, topology)?;
        let asked = memory_node(levels.acting(&FactorEffect::MemoryNode), &plan.pus(), topology)?;
        let memory = bound_from_start(&mut plan, asked, topology);
        let plan = with_tunables(plan, tunables, topology)?;
        let same_program = levels
            .acting(&FactorEffect::OtherMachines)
            .is_some_and(|level| level.text == SAME_PROGRAM);
        let pins = places(&plan);
        if guest_request.accelerator == Accelerator::TcgSingle
            && guest_request.vcpus > 1
            && pins.is_some()
        {
            return Err("one thread runs all vCPUs, so they cannot be placed separately".to_owned());
        }
        let real_time = levels.study.real_time_guest();
        if real_time && isa != Isa::X86 {
            return Err(format!("real_time_guest: Pinfold has no such kernel for {isa}"));
        }
        Ok(Self {
            plan,
            isa,
            accelerator: guest_request.accelerator,
            vcpus: guest_request.vcpus,
            machines,
            real_time,
            same_program,
            memory,
            memory_mib: MEMORY_MIB,
            page_table_levels: page_table_levels(levels, isa, guest_request.accelerator, host)?,
        })
    }

    /// The CPUs of its vCPUs.
    pub fn vcpu_pus(&self) -> CpuSet {
        let mut all = CpuSet::new();
        let vcpus = self.plan.vnodes.iter().flat_map(VnodePlan::vcpus);
        vcpus.for_each(|thread| all.add(&thread.pus));
        all
    }
}

/// The NUMA node to which a guest's memory is bound from its start, by the memory policy that all
/// threads of QEMU inherit: the requested one, else that of its plan. The plan then leaves the
/// memory alone, so it needs no cgroup for it.
fn bound_from_start(plan: &mut Plan, asked: Option<NodeId>, topology: &Topology) -> Option<NodeId> {
    if topology.nodes.len() < 2 {
        return None;
    }
    let memory = plan.vnodes.first().and_then(|vnode| vnode.memory.as_ref());
    let planned = match memory.map(|memory| memory.nodes.as_slice()) {
        Some([only]) => Some(*only),
        Some(_) | None => None,
    };
    let node = asked.or(planned)?;
    plan.vnodes.iter_mut().for_each(|vnode| vnode.memory = None);
    Some(node)
}

/// Why KVM does not run guests of an instruction set on this host, as far as that is known without
/// a boot.
fn kvm_refusal(isa: Isa, host: &LiveHost) -> Option<String> {
    if let Some(own) = Isa::of_host().filter(|own| *own != isa) {
        return Some(format!("KVM runs only this host's instruction set, {own}, not {isa}"));
    }
    if !host.exists(&paths::kvm_device()) {
        return Some(format!(
            "there is no {}: load the module kvm_intel or kvm_amd, or enable virtualisation in the \
             firmware",
            paths::kvm_device()
        ));
    }
    let kvm = pinfold_topology::kvm_capability(host);
    if kvm.verdict == Verdict::Yes {
        return None;
    }
    Some(match kvm.hint {
        Some(hint) => format!("{} ({hint})", kvm.why),
        None => kvm.why,
    })
}

/// The levels of page tables that a cell asks for.
///
/// # Errors
/// Why its guest cannot have them here.
fn page_table_levels(
    levels: CellLevels<'_>,
    isa: Isa,
    accelerator: Accelerator,
    host: &LiveHost,
) -> Result<Option<u32>, String> {
    let Some(level) = levels.acting(&FactorEffect::PageTableLevels) else { return Ok(None) };
    let Ok(wanted) = level.text.parse() else { return Ok(None) };
    if isa != Isa::X86 {
        return Err(format!("page_table_levels: fixed by the kernel of {isa} guests"));
    }
    let has_five = pinfold_topology::cpu_has_flag(host, "la57").map_err(|e| e.to_string())?;
    if wanted == 5 && accelerator == Accelerator::Kvm && !has_five {
        return Err(format!(
            "under KVM a guest has 5 levels of page tables only if its host has la57, which {} \
             does not list: the processor lacks it, or the kernel was booted with no5lvl",
            paths::cpuinfo()
        ));
    }
    Ok(Some(wanted))
}

/// A failure with its hint, as the reason of a skipped cell.
fn describe(failure: &Failure) -> String {
    match &failure.hint {
        Some(hint) => format!("{} ({hint})", failure.message),
        None => failure.message.clone(),
    }
}

/// Rejects levels that cannot be combined with a guest.
fn refuse_host_levels(levels: CellLevels<'_>) -> Result<(), String> {
    if has_non_default_level(FactorEffect::Method, NONE, levels)
        || has_non_default_level(FactorEffect::Speed, "1", levels)
    {
        return Err("only processes can run on slow cores, not guests".to_owned());
    }
    if levels.acting(&FactorEffect::Cores).is_some() {
        return Err("cores is only for processes: use n_vcpu for a guest".to_owned());
    }
    let CellLevels { study, cell } = levels;
    match &cell.workload(study).program {
        Program::Pinload(_) => Ok(()),
        Program::Command(_) => match cell.guest_program(study)? {
            None => {
                Err("its command is a program of the host: name a static program for the guest \
                     with guest-program"
                    .to_owned())
            }
            Some(path) if !files::exists(&path) => {
                Err(format!("the program for the guest, {path}, does not exist"))
            }
            Some(_) => Ok(()),
        },
    }
}

fn has_non_default_level(acts: FactorEffect, plain: &str, levels: CellLevels<'_>) -> bool {
    levels.acting(&acts).is_some_and(|level| level.text != plain)
}

/// The plan of a guest. Its isolation excludes the loads that Pinfold started, and Pinfold itself.
pub fn plan(
    strategy: &str,
    emulator: EmulatorRequest,
    vcpus: u32,
    topology: &Topology,
) -> Result<Plan, String> {
    let vm = Request::vm(NAME, VcpuCount::Exactly(vcpus));
    let request = Request { isolation: IsolationScope::Own, emulator, ..vm };
    pinfold_plan::plan(strategy, topology, &request).map_err(|error| error.to_string())
}

/// Adds tunables of the host to a plan, and checks it. All of them are required: a cell is about
/// its tunables, so a trial without one must fail.
pub fn with_tunables(
    mut plan: Plan,
    tunables: &[String],
    topology: &Topology,
) -> Result<Plan, String> {
    for words in tunables {
        requests::set_tunable(&mut plan, words).map_err(|error| error.to_string())?;
    }
    plan.tuning.required = !tunables.is_empty();
    let wrong = pinfold_plan::validate(&plan, topology);
    match wrong.iter().find(|finding| finding.severity == Severity::Problem) {
        Some(finding) => Err(format!("{}: {}", finding.subject, finding.text)),
        None => Ok(plan),
    }
}

/// The CPUs of the vCPUs, in order; `None` if one may run on several.
pub fn places(plan: &Plan) -> Option<Vec<pinfold_model::PuId>> {
    let vnode = plan.single_vnode().ok()?;
    vnode
        .vcpus()
        .map(|thread| (thread.pus.len() == 1).then(|| thread.pus.first()).flatten())
        .collect()
}

/// The prepared images.
#[derive(Default)]
pub struct Guests {
    guest_images: BTreeMap<Isa, GuestImage>,
    /// By instruction set, and whether only under KVM.
    refused: BTreeMap<(Isa, bool), String>,
    versions: BTreeSet<String>,
    // Dropped last: it contains the files of the images.
    scratch: Option<Scratch>,
}

impl Guests {
    /// Why none of these guests can be started, as found by the preparation.
    pub fn refusal(&self, setup: &GuestSetup) -> Option<String> {
        let all = self.refused.get(&(setup.isa, false));
        let kvm = self.refused.get(&(setup.isa, true));
        all.or(kvm.filter(|_| setup.accelerator == Accelerator::Kvm)).cloned()
    }

    /// Prepares the images for these guests.
    pub fn prepare(&mut self, guests: &[GuestSetup], host: &LiveHost) -> Result<(), Failure> {
        for setup in guests {
            let isa = setup.isa;
            if self.guest_images.contains_key(&isa) || self.refused.contains_key(&(isa, false)) {
                continue;
            }
            let scratch = match self.scratch.take() {
                Some(scratch) => scratch,
                None => Scratch::new(host)?,
            };
            let flavour = if setup.real_time { REAL_TIME_FLAVOUR } else { flavour_of(isa) };
            match GuestImage::prepare(isa, &flavour, &scratch) {
                Ok(kit) => {
                    self.versions.extend(emulator_version(isa));
                    self.guest_images.insert(isa, kit);
                }
                Err(failure) => {
                    self.refused.insert((isa, false), describe(&failure));
                }
            }
            self.scratch = Some(scratch);
        }
        Ok(())
    }

    /// The guest for the check whether KVM works.
    pub fn kvm_subject(&self, setup: &GuestSetup) -> Option<Subject> {
        let is_kvm = setup.accelerator == Accelerator::Kvm;
        let subject = is_kvm.then(|| self.subject(setup, 0).ok()).flatten()?;
        Some(Subject { hello_ns: KVM_HELLO_NS, ..subject })
    }

    /// Records that KVM does not work.
    pub fn refuse_kvm(&mut self, isa: Isa, why: &Failure) {
        let words = why.message.lines().map(str::trim).collect::<Vec<_>>().join(" ");
        let why = format!("KVM does not work here: {words}");
        say(&why);
        self.refused.insert((isa, true), why);
    }

    /// Name of the kernel of an instruction set, with its version and tick rate.
    pub fn kernel(&self, isa: Isa) -> String {
        let Some(kit) = self.guest_images.get(&isa) else { return String::new() };
        let kernel = kit.kernel();
        let hz = kernel.limits.hz.map_or_else(String::new, |hz| format!(", HZ {hz}"));
        format!("{} {}{hz}", kernel.package, kernel.version)
    }

    /// The guest of an environment: 0 is the measured one, others have separate files.
    pub fn subject(&self, setup: &GuestSetup, index: u32) -> Result<Subject, String> {
        let kit = self.guest_images.get(&setup.isa).ok_or_else(|| {
            let known = self.refused.get(&(setup.isa, false)).cloned();
            known.unwrap_or_else(|| format!("the {} guest was not prepared", setup.isa))
        })?;
        let GuestSetup { vcpus, accelerator, memory_mib, page_table_levels, .. } = *setup;
        let scratch = self.scratch.as_ref().filter(|_| index > 0);
        let other = scratch.map(|scratch| kit.other(scratch, index)).transpose();
        let other = other.map_err(|failure| describe(&failure))?;
        let kit = other.as_ref().unwrap_or(kit);
        Ok(kit.subject(NAME, Shape { vcpus, accelerator, memory_mib, page_table_levels }))
    }

    /// The origin of the numbers, with the guests.
    pub fn origin(&self, origin: Origin) -> Origin {
        fn join_texts(texts: Vec<String>) -> Option<String> {
            (!texts.is_empty()).then(|| texts.join("; "))
        }
        Origin {
            qemu: join_texts(self.versions.iter().cloned().collect()),
            guest_kernel: join_texts(
                self.guest_images
                    .iter()
                    .map(|(isa, kit)| {
                        let kernel = kit.kernel();
                        format!(
                            "{isa}: {} (HZ {}, at most {} CPUs)",
                            kernel.origin(),
                            number(kernel.limits.hz),
                            number(kernel.limits.cpus)
                        )
                    })
                    .collect(),
            ),
            ..origin
        }
    }
}

fn number(value: Option<u32>) -> String {
    value.map_or("?".to_owned(), |it| it.to_string())
}

/// The guests of a study's cells that are not skipped.
pub fn wanted_guests(
    study: &Study,
    cells: &Cells,
    setup: &dyn Fn(&Cell) -> Option<GuestSetup>,
) -> Vec<GuestSetup> {
    let mut seen = BTreeSet::new();
    let mut guests = Vec::new();
    for (_, cell) in cells.running() {
        let Ok(Some(guest_request)) = cell.guest(study) else { continue };
        let key = (guest_request.isa, guest_request.accelerator == Accelerator::Kvm);
        if !seen.contains(&key)
            && let Some(setup) = setup(cell)
        {
            seen.insert(key);
            guests.push(setup);
        }
    }
    guests
}

/// The starter of a guest.
pub fn starter<'a>(
    HostFacts { host, topology, .. }: HostFacts<'a>,
    Session { state, program }: Session<'a>,
    pinload: &'a Pinload,
    subject: &'a Subject,
    memory_node: Option<NodeId>,
) -> Result<VmStarter<'a>, Failure> {
    let io_directory = files::cache_dir()?;
    files::make_dirs(&io_directory)?;
    Ok(VmStarter {
        host,
        clock: &SystemClock,
        state,
        program,
        subject,
        plans: Vec::new(),
        pinload,
        pus: u32::try_from(topology.allowed.len()).unwrap_or(u32::MAX),
        io_directory,
        memory_node,
        order: None,
    })
}
