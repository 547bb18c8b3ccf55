//! A plan while it is being written: the parts that all strategies share.
//!
//! A strategy says which PUs each vCPU and the emulator get, and why; the draft
//! adds the iothreads, the host's share and the findings that hold whatever the
//! strategy, and checks the request before anything else.

use pinfold_model::{
    CpuSet, Finding, GuestTopology, IsolationScope, Plan, PuId, Request, Role, ThreadPlan,
    Topology, VcpuCount, VnodeKind, VnodePlan,
};

use crate::PlanError;
use crate::ground::Ground;
use crate::select::Count;
use crate::spread;

/// No strategy gives more vCPUs: KVM's own limit (`KVM_MAX_NR_VCPUS`) is at most 4096 on x86.
pub(crate) const MAX_VCPUS: u32 = 4096;

/// What limits a strategy's number of vCPUs.
pub(crate) struct Limits {
    /// How many `auto` gives.
    pub auto: usize,
    /// How many it can give at all.
    pub most: usize,
    /// Why not more.
    pub why: String,
}

impl Limits {
    /// A strategy that puts several vCPUs on a PU when they run out: only KVM's limit holds.
    pub fn wrapping(auto: usize) -> Self {
        let why = "no hypervisor on Linux runs a virtual machine with more".to_owned();
        Self { auto, most: MAX_VCPUS as usize, why }
    }
}

/// A plan without its end.
pub(crate) struct Draft<'a> {
    pub ground: &'a Ground<'a>,
    strategy: &'static str,
    request: &'a Request,
    threads: Vec<ThreadPlan>,
    findings: Vec<Finding>,
}

/// What is kept for the vnode alone.
pub(crate) struct Reserve {
    /// PUs from which other tasks are to be kept away.
    pub exclusive: CpuSet,
    /// Why the host got the rest.
    pub reason: String,
}

/// Checks the request's own values.
///
/// # Errors
/// [`PlanError::NoVcpus`] and [`PlanError::BadIothread`].
pub(crate) fn check_request(request: &Request) -> Result<(), PlanError> {
    if request.vm.vcpus == VcpuCount::Exactly(0) {
        return Err(PlanError::NoVcpus);
    }
    for (place, id) in request.vm.iothreads.iter().enumerate() {
        let why = match id.as_str() {
            "" => "it is empty",
            id if id.chars().any(char::is_control) => "it has a control character",
            id if request.vm.iothreads.iter().take(place).any(|other| other == id) => {
                "it is given twice"
            }
            _ => continue,
        };
        return Err(PlanError::BadIothread { id: id.clone(), why });
    }
    Ok(())
}

impl<'a> Draft<'a> {
    /// An empty plan of `strategy`.
    pub fn new(strategy: &'static str, ground: &'a Ground<'a>, request: &'a Request) -> Self {
        let mut draft =
            Self { ground, strategy, request, threads: Vec::new(), findings: Vec::new() };
        if !ground.avoided_in_vain.is_empty() {
            draft.finding(Finding::note(
                "avoid",
                format!(
                    "{} to be avoided {} not online on this host",
                    pus_text(&ground.avoided_in_vain),
                    verb(&ground.avoided_in_vain, "is", "are")
                ),
            ));
        }
        draft
    }

    /// How many vCPUs are to be placed.
    ///
    /// # Errors
    /// [`PlanError::TooFewPus`] if the strategy cannot give one,
    /// [`PlanError::TooManyVcpus`] if it cannot give as many as asked.
    pub fn vcpu_count(&self, limits: Limits) -> Result<usize, PlanError> {
        let strategy = self.strategy.to_owned();
        let most = limits.most.min(MAX_VCPUS as usize);
        if most == 0 {
            let usable = self.ground.usable.clone();
            return Err(PlanError::TooFewPus { strategy, usable, why: limits.why, nearest: None });
        }
        match self.request.vm.vcpus {
            VcpuCount::Auto => Ok(limits.auto.clamp(1, most)),
            VcpuCount::Exactly(asked) if asked as usize <= most => Ok(asked as usize),
            VcpuCount::Exactly(asked) => Err(PlanError::TooManyVcpus {
                strategy,
                asked,
                most: u32::try_from(most).unwrap_or(MAX_VCPUS),
                why: limits.why,
                nearest: None,
            }),
        }
    }

    /// Places the next vCPU.
    pub fn vcpu(&mut self, pus: CpuSet, reason: impl Into<String>) {
        let index = u32::try_from(self.threads.len()).unwrap_or(u32::MAX);
        self.threads.push(thread(Role::Vcpu(index), pus, reason.into()));
    }

    /// Places the emulator, and the iothreads with it.
    pub fn emulator(&mut self, pus: &CpuSet, reason: impl Into<String>) {
        self.threads.push(thread(Role::Emulator, pus.clone(), reason.into()));
        let vcpus = self.threads.iter().filter(|thread| matches!(thread.role, Role::Vcpu(_)));
        let apart = vcpus.clone().all(|vcpu| vcpu.pus.is_disjoint(pus));
        for id in &self.request.vm.iothreads {
            let reason = match apart {
                true => format!(
                    "iothread {id} runs where the emulator runs, on {}: its I/O then never takes \
                     a vCPU's PU",
                    pus_text(pus)
                ),
                false => format!(
                    "iothread {id} runs where the emulator runs: {} reserves no PU for I/O, so it \
                     competes with the vCPUs",
                    self.strategy
                ),
            };
            self.threads.push(thread(Role::Iothread(id.clone()), pus.clone(), reason));
        }
    }

    /// Notes something that the user should know.
    pub fn finding(&mut self, finding: Finding) {
        self.findings.push(finding);
    }

    /// Notes several.
    pub fn all_findings(&mut self, findings: impl IntoIterator<Item = Finding>) {
        self.findings.extend(findings);
    }

    /// The plan of a strategy that leaves all PUs to the host as well.
    pub fn shared(mut self, guest: GuestTopology) -> Plan {
        if self.request.isolation != IsolationScope::None {
            self.finding(Finding::note(
                "isolation",
                format!(
                    "{} shares all PUs with the host, so the isolation scope {} has nothing to keep \
                     other tasks off",
                    self.strategy, self.request.isolation
                ),
            ));
        }
        let reason = format!(
            "{} isolates nothing: the host's tasks may run wherever the virtual machine does",
            self.strategy
        );
        self.finish(guest, Reserve { exclusive: CpuSet::new(), reason })
    }

    /// The plan of a strategy that keeps other tasks off the vCPUs' PUs, if the request lets it.
    pub fn isolating(mut self, guest: GuestTopology, reserve: Reserve) -> Plan {
        if self.request.isolation != IsolationScope::None {
            return self.finish(guest, reserve);
        }
        self.finding(
            Finding::note(
                "isolation",
                format!(
                    "the isolation scope is none: other tasks may still run on {}, which {} would \
                     keep for the virtual machine",
                    pus_text(&reserve.exclusive),
                    self.strategy
                ),
            )
            .with_hint("use `--isolate own` or `--isolate host`"),
        );
        let reason = "the isolation scope is none, so the host's tasks keep all PUs".to_owned();
        self.finish(guest, Reserve { exclusive: CpuSet::new(), reason })
    }

    fn finish(mut self, guest: GuestTopology, reserve: Reserve) -> Plan {
        let common = spread::findings(self.ground, &self.threads);
        self.findings.extend(common);
        let isolation = match reserve.exclusive.is_empty() {
            true => IsolationScope::None,
            false => self.request.isolation,
        };
        let Self { ground, strategy, request, threads, findings } = self;
        Plan {
            strategy: strategy.to_owned(),
            fingerprint: ground.topology.fingerprint.clone(),
            vnode: VnodePlan {
                name: request.vm.name.clone(),
                kind: VnodeKind::VirtualMachine,
                threads,
                guest: Some(guest),
            },
            housekeeping: ground.hostable.difference(&reserve.exclusive),
            exclusive: reserve.exclusive,
            isolation,
            housekeeping_reason: reserve.reason,
            findings,
        }
    }
}

/// The ground for a request that has been checked.
///
/// # Errors
/// As [`check_request`] and [`Ground::new`].
pub(crate) fn ground<'a>(
    topology: &'a Topology,
    request: &Request,
) -> Result<Ground<'a>, PlanError> {
    check_request(request)?;
    Ground::new(topology, request)
}

/// `PU 3` or `the PUs 1-3`.
pub(crate) fn pus_text(pus: &CpuSet) -> String {
    match pus.len() {
        1 => format!("PU {pus}"),
        _ => format!("the PUs {pus}"),
    }
}

/// The verb that goes with [`pus_text`].
pub(crate) fn verb<'a>(pus: &CpuSet, of_one: &'a str, of_many: &'a str) -> &'a str {
    if pus.len() == 1 { of_one } else { of_many }
}

/// `1 core` or `3 cores`.
pub(crate) fn counted(count: usize, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    }
}

/// The first `need` PUs of `cores` in order, as many of each core as are counted.
pub(crate) fn pins(cores: &[crate::ground::Spot], need: usize, count: Count) -> Vec<PuId> {
    let of_core = |spot: &crate::ground::Spot| -> Vec<PuId> {
        spot.pus.iter().copied().take(count.of(spot)).collect()
    };
    cores.iter().flat_map(of_core).take(need).collect()
}

fn thread(role: Role, pus: CpuSet, reason: String) -> ThreadPlan {
    ThreadPlan { role, pus, policy: None, reason }
}
