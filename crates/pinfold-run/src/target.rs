//! The virtual machine of a command, and how its threads are found again later.

use std::collections::BTreeMap;

use pinfold_apply::{ManagedSetting, Record, Roles, Rules, Target};
use pinfold_host::{Host, LiveHost, process};
use pinfold_model::text::count_noun;
use pinfold_model::{
    Change, CpuSet, Finding, Lifetime, MemoryPlan, Plan, PuId, Role, Setting, SettingManager,
    TaskId, ThreadPlan, Tid, Topology, VcpuCount, VmRequest, VnodePlan, VnodeRequest, Work, escape,
};
use pinfold_vm::hypervisors::VmProcess;
use pinfold_vm::libvirt::{Domain, Libvirt, LibvirtError, NUMATUNE, PinTarget, Pins, memory_value};
use pinfold_vm::{DiscoveredVm, Hypervisor, Monitor, VmError, VmSelector, hypervisors, threads};

use crate::message::say;
use crate::vcpus::Vcpus;
use crate::{Exit, Failure, inputs, plans};

const MONITOR_TIMEOUT_NS: u64 = 5_000_000_000;
const VIRSH_TIMEOUT_NS: u64 = 20_000_000_000;

/// Ends a sentence about machines that were not found: without root, processes of others may be
/// hidden.
#[must_use]
pub fn visibility_note() -> &'static str {
    if process::is_root() { "" } else { ", among the processes that you can see" }
}

/// The failure where no machine can be examined: none runs, or only those of other users.
#[must_use]
pub fn no_machine_runs(host: &LiveHost) -> Failure {
    let hidden = match hypervisors::list_hidden_machines(host) {
        Ok(hidden) => hidden,
        Err(error) => return Failure::from(error),
    };
    let names: Vec<String> = hidden
        .iter()
        .map(|machine| format!("{} (process {})", machine.name_or_pid(), machine.pid))
        .collect();
    match names.as_slice() {
        [] => {
            let bound = visibility_note();
            Failure::new(Exit::Vm, format!("no virtual machine is running on this host{bound}"))
        }
        names => {
            let count = count_noun(names.len(), "virtual machine");
            let verb = if names.len() == 1 { "runs" } else { "run" };
            let text = format!(
                "{count} of other users {verb} on this host, which only root can examine: {}",
                names.join(", ")
            );
            Failure::new(Exit::Host, text).with_hint("run it as root")
        }
    }
}

/// The machine that was found, as a target for a plan.
pub fn to_target(found: &DiscoveredVm) -> Target {
    Target { known_threads: found.roll.clone(), ..Target::new(found.pid, found.tasks()) }
}

/// Reports a machine of all that run as not checked, unless it has ended meanwhile.
pub fn report_unchecked(host: &LiveHost, pid: Tid, failure: &Failure) {
    if hypervisors::machine_of(host, pid).is_some() {
        say(&format!("warning: process {pid} was not checked: {failure}"));
    }
}

/// A machine that was found.
///
/// ```no_run
/// use pinfold_run::{host, target::Vm};
///
/// for vm in Vm::find_all(&host::live()?)? {
///     println!("{}: {} vCPUs", vm.name, vm.found.vcpus);
/// }
/// # Ok::<(), pinfold_run::Failure>(())
/// ```
pub struct Vm {
    /// Name of the machine.
    pub name: String,
    /// The arguments of the command line that select it: `--qmp SOCKET`.
    pub asked: String,
    /// Threads of the machine.
    pub found: DiscoveredVm,
    /// The source of their roles; without one, only the names of the threads are.
    pub monitor: Option<Box<dyn Monitor>>,
    /// Findings about it.
    pub findings: Vec<Finding>,
    /// The domain, if libvirt manages it.
    pub domain: Option<ManagedDomain>,
}

/// A domain of libvirt, which has its own pinning.
pub struct ManagedDomain {
    libvirt: Libvirt,
    domain: Domain,
    pins: Pins,
    xml: String,
}

impl Vm {
    /// Finds a machine by the control socket of its hypervisor, its libvirt domain, its process ID
    /// or its name.
    pub fn find(host: &LiveHost, by: &VmSelector) -> Result<Self, Failure> {
        match by {
            VmSelector::Socket(hypervisor, socket) => Self::by_socket(host, *hypervisor, socket),
            VmSelector::Libvirt(domain) => Self::by_libvirt(host, domain),
            VmSelector::Pid(pid) => Self::by_pid(host, *pid),
            VmSelector::Name(name) => Self::by_name(host, name),
        }
    }

    /// Finds all machines that run on this host, by process ID. One that cannot be examined is
    /// reported and left out, unless it has ended.
    pub fn find_all(host: &LiveHost) -> Result<Vec<Self>, Failure> {
        let mut all = Vec::new();
        for machine in hypervisors::list_vm_processes(host)? {
            match Self::by_process(host, &machine) {
                Ok(vm) => all.push(vm),
                Err(failure) => report_unchecked(host, machine.pid, &failure),
            }
        }
        Ok(all)
    }

    /// The machine of a process: by its libvirt domain, its control socket or the process ID.
    fn by_process(host: &LiveHost, machine: &VmProcess) -> Result<Self, Failure> {
        if let Some(name) = machine.plain_name() {
            let found =
                Libvirt::new(None, VIRSH_TIMEOUT_NS).and_then(|libvirt| libvirt.find(host, name));
            // Without libvirt, or of another process: no domain of this machine.
            if found.is_ok_and(|domain| domain.pid == machine.pid) {
                return Self::by_libvirt(host, name);
            }
        }
        match &machine.socket {
            Some(socket) => Self::by_socket(host, machine.hypervisor, socket),
            None => Self::by_pid(host, machine.pid),
        }
    }

    /// Finds a domain of libvirt, or a running machine that libvirt does not manage.
    fn by_name(host: &LiveHost, name: &str) -> Result<Self, Failure> {
        let libvirt = Libvirt::new(None, VIRSH_TIMEOUT_NS);
        let missing = match libvirt.and_then(|libvirt| libvirt.find(host, name)) {
            Ok(_) => return Self::by_libvirt(host, name),
            Err(error) => error,
        };
        if missing.downcast_driver().is_none_or(|error| {
            matches!(
                error,
                LibvirtError::NotRunning { .. }
                    | LibvirtError::Foreign { .. }
                    | LibvirtError::Silent { .. }
            )
        }) {
            return Err(missing.into());
        }
        let mut named = hypervisors::list_vm_processes(host)?;
        named.retain(|machine| machine.spec.name.as_deref() == Some(name));
        match named.as_slice() {
            [only] => Self::by_process(host, only),
            [] => {
                let mut hidden = hypervisors::list_hidden_machines(host)?.into_iter();
                let hidden = hidden.find(|machine| machine.spec.name.as_deref() == Some(name));
                Err(hidden.map_or_else(
                    || is_not_running(name, &missing),
                    |machine| is_of_another_user(name, machine.pid),
                ))
            }
            many => {
                let pids: Vec<String> = many.iter().map(|one| one.pid.to_string()).collect();
                let text =
                    format!("{} machines are named {}", many.len(), escape::short_name(name));
                Err(Failure::new(Exit::Input, text)
                    .with_hint(format!("name one with --pid: {}", pids.join(", "))))
            }
        }
    }

    fn by_socket(
        host: &LiveHost,
        hypervisor: &dyn Hypervisor,
        socket: &str,
    ) -> Result<Self, Failure> {
        let mut monitor = hypervisor.connect(socket, MONITOR_TIMEOUT_NS)?;
        let found = threads::find(host, &mut *monitor)?;
        Ok(Self {
            name: name_of(host, found.pid),
            asked: format!("{} {socket}", hypervisor.display_strings().option),
            findings: found.findings.clone(),
            found,
            monitor: Some(monitor),
            domain: None,
        })
    }

    fn by_libvirt(host: &LiveHost, wanted: &str) -> Result<Self, Failure> {
        let libvirt = Libvirt::new(None, VIRSH_TIMEOUT_NS)?;
        let domain = libvirt.find(host, wanted)?;
        let mut monitor = libvirt.monitor(&domain);
        let found = threads::discover(host, domain.pid, Some(&mut monitor))?;
        let xml = libvirt.xml(&domain)?;
        let pins = Pins::from_xml(&xml).map_err(VmError::from)?;
        Ok(Self {
            name: domain.name.clone(),
            asked: format!("--libvirt {wanted}"),
            findings: found.findings.clone(),
            found,
            monitor: Some(Box::new(monitor)),
            domain: Some(ManagedDomain { libvirt, domain, pins, xml }),
        })
    }

    fn by_pid(host: &LiveHost, pid: Tid) -> Result<Self, Failure> {
        let found = threads::discover(host, pid, None)?;
        Ok(Self {
            name: name_of(host, pid),
            asked: format!("--pid {pid}"),
            findings: found.findings.clone(),
            found,
            monitor: None,
            domain: None,
        })
    }
}

impl Vm {
    /// The request for its threads as they run: their number, and for a domain what its file says.
    ///
    /// # Errors
    /// [`Failure`] if the file of its domain cannot be parsed.
    pub fn request(&self, topology: &Topology) -> Result<VnodeRequest, Failure> {
        let iothreads = self.found.threads.iter();
        let iothreads =
            iothreads.filter_map(|thread| thread.role.iothread().map(str::to_owned)).collect();
        let described = self.domain.as_ref().map(|domain| domain.request(topology)).transpose()?;
        let count = VcpuCount::Exactly(Vcpus::from_found(&self.found).count());
        let mut vnode =
            described.unwrap_or_else(|| VnodeRequest::vm(&self.name, VmRequest::from_vcpus(count)));
        if let Work::Vm(asked) = &mut vnode.work {
            // The running threads are those to be placed.
            inputs::set_vcpus(asked, count);
            asked.iothreads = iothreads;
        }
        Ok(vnode)
    }

    /// The target of a plan for it, with the settings to make through libvirt, and findings on what
    /// libvirt does not support.
    ///
    /// # Errors
    /// [`Failure`] if libvirt does not answer, or the plan has several vnodes.
    pub fn target(
        &self,
        plan: &Plan,
        definition: Definition,
    ) -> Result<(Target, Vec<Finding>), Failure> {
        let mut target = to_target(&self.found);
        let Some(domain) = &self.domain else { return Ok((target, Vec::new())) };
        let (kept, findings) = domain.managed_settings(plans::single(plan)?, definition)?;
        target.kept = kept;
        Ok((target, findings))
    }
}

/// The failure for a name that no machine has. `missing` is why libvirt has no such domain.
fn is_not_running(name: &str, missing: &VmError) -> Failure {
    let (programs, named) = (hypervisors::names(), escape::short_name(name));
    let bound = visibility_note();
    let text = match missing.downcast_driver() {
        Some(LibvirtError::Virsh { .. }) => {
            format!("no running {programs} is named {named}{bound}, and libvirt: {missing}")
        }
        Some(_) | None => {
            format!("no libvirt domain and no running {programs} is named {named}{bound}")
        }
    };
    Failure::new(Exit::Vm, text).with_hint(
        "`virsh list --all` lists the domains, `pinfold` without arguments the running machines",
    )
}

/// The failure for a machine whose executable file this process may not see.
fn is_of_another_user(name: &str, pid: Tid) -> Failure {
    let named = escape::short_name(name);
    let text = format!("{named} (process {pid}) belongs to another user; only root can examine it");
    let hint = if process::is_root() {
        format!("give this process the capability CAP_SYS_PTRACE, or use --pid {pid}")
    } else {
        "run it as root".to_owned()
    };
    Failure::new(Exit::Host, text).with_hint(hint)
}

/// The name in a machine's command line, or one with its process ID.
fn name_of(host: &LiveHost, pid: Tid) -> String {
    let machine = hypervisors::machine_of(host, pid);
    machine.map_or_else(|| format!("vm-{pid}"), |machine| machine.name_or_pid())
}

impl ManagedDomain {
    /// The domain's UUID.
    #[must_use]
    pub fn uuid(&self) -> &str {
        &self.domain.uuid
    }

    /// The request that follows from the domain, like from its file: its memory with the nodes, the
    /// NUMA cells of its guest.
    pub fn request(&self, topology: &Topology) -> Result<VnodeRequest, Failure> {
        let domain = pinfold_plan::domain_file::Domain::read(&self.xml).map_err(|error| {
            let hint = error.hint;
            let message = format!("cannot parse the XML of domain {}: {error}", self.domain.name);
            let failure = Failure::new(Exit::Vm, message);
            hint.into_iter().fold(failure, Failure::with_hint)
        })?;
        Ok(inputs::vnode_of_domain(&domain, topology))
    }

    /// Mode and nodes of the memory of the running domain, if libvirt binds it.
    pub fn memory_nodes(&self) -> Option<(&str, &CpuSet)> {
        self.pins.memory.as_ref().map(|(mode, nodes)| (mode.as_str(), nodes))
    }

    /// The settings of a plan to make through libvirt: pinning and memory nodes of the running
    /// domain, and optionally of its definition. Also returns findings on what libvirt does not
    /// support.
    pub fn managed_settings(
        &self,
        vnode: &VnodePlan,
        definition: Definition,
    ) -> Result<(Vec<ManagedSetting>, Vec<Finding>), Failure> {
        let (mut kept, mut findings) = (Vec::new(), Vec::new());
        for lifetime in definition.lifetimes() {
            for thread in &vnode.threads {
                // Other roles share the emulator's pinning; Pinfold sets their masks itself.
                let Ok(target) = PinTarget::from_role(&thread.role) else { continue };
                kept.push(pin(thread, self.setting(&target.key(), *lifetime)?));
            }
            // libvirt cannot prefer nodes in a domain that runs, and its pages stay where they are.
            let is_kept =
                |memory: &&MemoryPlan| !memory.is_preferred || *lifetime == Lifetime::Lasting;
            if let Some(memory) = vnode.memory.as_ref().filter(is_kept) {
                match self.memory(memory, *lifetime)? {
                    Ok(one) => kept.push(one),
                    Err(finding) => findings.push(finding),
                }
            }
        }
        Ok((kept, findings))
    }

    fn memory(
        &self,
        plan: &MemoryPlan,
        lifetime: Lifetime,
    ) -> Result<Result<ManagedSetting, Finding>, Failure> {
        let nodes: CpuSet = plan.nodes.iter().map(|node| PuId(node.0)).collect();
        let mode = self.pins.memory.as_ref().map(|(mode, _)| mode.as_str());
        let (mode, rules) = match (lifetime, mode) {
            (Lifetime::Lasting, _) if plan.is_preferred && plan.nodes.len() == 1 => {
                ("preferred", Rules::NextStart)
            }
            (Lifetime::Lasting, _) if plan.is_preferred => ("interleave", Rules::NextStart),
            (Lifetime::Lasting, _) => ("strict", Rules::NextStart),
            // libvirt can move the memory of a running domain only in this mode.
            (Lifetime::Running, Some("restrictive")) => ("restrictive", Rules::Memory),
            (Lifetime::Running, _) => {
                let text = "libvirt does not move the memory of a running domain whose <numatune> is not in mode restrictive";
                return Ok(Err(Finding::warning("libvirt", text)
                    .with_hint("add --config: then the next start binds it")));
            }
        };
        Ok(Ok(ManagedSetting {
            setting: self.setting(NUMATUNE, lifetime)?,
            value: memory_value(mode, &nodes),
            rules,
            reason: format!("memory: {}", plan.reason),
        }))
    }

    fn setting(&self, key: &str, lifetime: Lifetime) -> Result<Setting, Failure> {
        self.libvirt.setting(&self.domain, key, lifetime).map_err(Failure::from)
    }
}

/// The setting to make through libvirt for the threads of a role.
fn pin(thread: &ThreadPlan, setting: Setting) -> ManagedSetting {
    ManagedSetting {
        value: thread.pus.to_string(),
        rules: match setting.lifetime {
            Lifetime::Running => Rules::Masks(thread.role.clone()),
            Lifetime::Lasting => Rules::NextStart,
        },
        reason: format!("{}: {}", thread.role, thread.reason),
        setting,
    }
}

/// The settings of an active placement in libvirt: the masks of all roles for which libvirt has
/// pinning, if the journal has a domain. vCPUs that are plugged in later are included.
///
/// If libvirt had all planned settings already, nothing was changed through it and the result is
/// empty: corrections then equal what libvirt has.
pub fn kept_since(plan: &Plan, record: &Record) -> Vec<ManagedSetting> {
    let domain = record.steps().find_map(|(_, step)| {
        let Change::WriteSetting { setting, .. } = &step.change else { return None };
        matches!(setting.keeper, SettingManager::Libvirt { .. }).then_some(setting)
    });
    let Some(domain) = domain else { return Vec::new() };
    let kept = plan.threads().filter_map(|(_, thread)| {
        let key = PinTarget::from_role(&thread.role).ok()?.key();
        let lifetime = Lifetime::Running;
        Some(pin(thread, Setting { key, lifetime, ..Setting::clone(domain) }))
    });
    kept.collect()
}

/// The settings of an active placement in libvirt for a plan that replaces its present one: the
/// masks, and what the journal has for the memory and for the next start.
pub fn kept_after(plan: &Plan, record: &Record) -> Vec<ManagedSetting> {
    let mut kept = kept_since(plan, record);
    let steps = record.steps().filter(|(index, _)| !record.is_void(*index));
    let mut others: Vec<ManagedSetting> = Vec::new();
    for (_, step) in steps {
        let Change::WriteSetting { setting, value, .. } = &step.change else { continue };
        if !matches!(setting.keeper, SettingManager::Libvirt { .. }) {
            continue;
        }
        let rules = match setting.lifetime {
            Lifetime::Lasting => Rules::NextStart,
            Lifetime::Running if setting.key == NUMATUNE => Rules::Memory,
            Lifetime::Running => continue,
        };
        others.retain(|other| other.setting != **setting);
        let (setting, value) = (Setting::clone(setting), value.clone());
        others.push(ManagedSetting { setting, value, rules, reason: step.reason.clone() });
    }
    kept.extend(others);
    kept
}

/// The threads that were set to the CPUs of a role, with this role.
pub fn threads_by_journal(plan: &Plan, record: &Record) -> Vec<(TaskId, Role)> {
    let role_of = |mask: &CpuSet| {
        let thread = plan.threads().find(|(_, thread)| thread.pus == *mask);
        thread.map_or(Role::Emulator, |(_, thread)| thread.role.clone())
    };
    // The last mask of a thread is that of the present plan.
    let masks: BTreeMap<TaskId, &CpuSet> =
        record.steps().filter_map(|(_, step)| step.change.as_set_affinity()).collect();
    masks.into_iter().map(|(task, mask)| (task, role_of(mask))).collect()
}

/// Whether a domain's definition is changed in addition to the running domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Definition {
    /// It is not changed.
    Untouched,
    /// It is changed too.
    Changed,
}

impl Definition {
    fn lifetimes(self) -> &'static [Lifetime] {
        match self {
            Definition::Untouched => &[Lifetime::Running],
            Definition::Changed => &[Lifetime::Running, Lifetime::Lasting],
        }
    }
}

/// Queries the roles again, for the watcher.
pub struct RoleRefresh<'a> {
    /// The monitor to query.
    pub monitor: Option<&'a mut dyn Monitor>,
}

impl Roles for RoleRefresh<'_> {
    fn roles(&mut self, host: &dyn Host, pid: Tid) -> Result<Vec<(TaskId, Role)>, String> {
        let monitor = self.monitor.as_mut().map(|monitor| &mut **monitor as &mut dyn Monitor);
        threads::discover(host, pid, monitor)
            .map(|found| found.tasks())
            .map_err(|error| error.to_string())
    }
}
