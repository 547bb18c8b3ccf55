//! Common functions of the commands: the host, its topology, requests, the state directory.

use std::io::Read as _;
use std::sync::mpsc;

use pinfold_config::requests::{self, RequestError};
use pinfold_host::files::{self, StateDir};
use pinfold_host::{HostError, LiveHost, Systemd, process};
use pinfold_model::{
    CpuSet, Free, Origin, Plan, Request, Severity, Topology, VcpuCount, VmRequest, VnodePlan,
    VnodeRequest,
};
use pinfold_plan::domain_file::Domain;
use pinfold_plan::{Fit, PlanError, command};
use pinfold_topology::TopologyError;
use pinfold_vm::libvirt::LibvirtBackend;

use crate::apply_session;
use crate::cli::PlacementArgs;
use crate::failure::{Exit, Failure};
use crate::vcpus::Vcpus;

/// Timeout for systemd and libvirt when a setting is made through them (ns).
const KEEPER_NS: u64 = 20_000_000_000;

/// The running machine.
pub fn host() -> Result<LiveHost, Failure> {
    host_within(KEEPER_NS)
}

/// As [`host`], with another timeout for systemd and libvirt (ns).
pub fn host_within(keeper_ns: u64) -> Result<LiveHost, Failure> {
    let host = LiveHost::new().map_err(|error| host_failure(&error))?;
    Ok(host
        .with_setting_backend(Systemd::new(keeper_ns))
        .with_setting_backend(LibvirtBackend::new(keeper_ns)))
}

/// True for a process that a signal or a debugger has stopped.
pub fn is_stopped(pid: pinfold_model::Tid) -> bool {
    let stat = host().map(|host| pinfold_host::proc_stat::of(&host, pid));
    matches!(stat, Ok(Ok(Some(stat))) if matches!(stat.state, 'T' | 't'))
}

/// A failure of access to the kernel, with a hint if the error number suggests one.
pub fn host_failure(error: &HostError) -> Failure {
    const EPERM: i32 = 1;
    const EACCES: i32 = 13;
    const ENOSPC: i32 = 28;
    let hint = if matches!(error, HostError::Kept { .. }) { error.hint() } else { None };
    let failure = Failure::from_error(Exit::Host, error, hint);
    match error.errno() {
        Some(EPERM | EACCES) if !process::is_root() => {
            failure.with_hint("run it as root; `pinfold doctor` lists which rights are missing")
        }
        Some(EPERM | EACCES) => {
            failure.with_hint("`pinfold doctor` lists which rights are missing")
        }
        Some(ENOSPC) => {
            failure.with_hint("make room on that file system, or use another with --state-dir")
        }
        Some(_) | None => failure,
    }
}

/// The topology of this machine, or of the one that `input` names.
pub fn topology(host: &LiveHost, input: Option<&str>) -> Result<Topology, Failure> {
    let found = match input {
        Some(text) => pinfold_topology::read_input(host, text),
        None => pinfold_topology::discover(host),
    };
    found.map_err(|error: TopologyError| {
        let exit = if input.is_some() { Exit::Input } else { Exit::Host };
        Failure::from_error(exit, &error, error.hint())
    })
}

/// A list of CPUs from the command line.
pub fn pus(option: &str, text: &str) -> Result<CpuSet, Failure> {
    CpuSet::parse_list(text).map_err(|error| {
        Failure::new(Exit::Input, format!("{option}: {error}"))
            .with_hint("write OS indexes, such as 0-3,8; `pinfold topo` shows them as P#")
    })
}

/// Checks that CPUs from the command line exist on this machine.
pub fn require_known(option: &str, pus: &CpuSet, topology: &Topology) -> Result<(), Failure> {
    let known = topology.online().union(&topology.offline);
    let strange = pus.difference(&known);
    if strange.is_empty() {
        return Ok(());
    }
    Err(Failure::new(Exit::Input, format!("{option}: this machine has no PU {strange}"))
        .with_hint(format!("its PUs are {known}; `pinfold topo` shows them")))
}

/// The request from the shared options.
pub fn request(
    arguments: &PlacementArgs,
    vnodes: Vec<VnodeRequest>,
    topology: &Topology,
) -> Result<Request, Failure> {
    let avoid = pus("--avoid", &arguments.avoid)?;
    require_known("--avoid", &avoid, topology)?;
    let mut request = Request::of(vnodes);
    for text in &arguments.pins {
        let wishes = asked("--pin", requests::pins(text))?;
        match request.vnodes.as_mut_slice() {
            [only] => only.pins.extend(wishes),
            _ => {
                return Err(Failure::new(Exit::Input, "--pin needs a plan for one vnode")
                    .with_hint("write pins=ROLE=PUS among the words of --vm or --group"));
            }
        }
    }
    request.avoid = avoid;
    request.isolation = arguments.isolate.into();
    request.free = match (&arguments.free, &arguments.host_pus) {
        (Some(share), _) => Some(asked("--free", requests::free_share(share))?),
        (None, Some(list)) => {
            let free = asked("--host-pus", requests::free_pus("--host-pus", list))?;
            if let Free::These(pus) = &free {
                require_known("--host-pus", pus, topology)?;
            }
            Some(free)
        }
        (None, None) => None,
    };
    request.emulator = asked("--emulator", requests::emulator_wish(&arguments.emulator))?;
    if let Some(text) = &arguments.prefer {
        request.prefer = asked("--prefer", requests::preference(text))?;
    }
    Ok(request)
}

/// The machine that a domain file, or the XML of a running domain, describes.
pub fn vnode_of_domain(domain: &Domain, topology: &Topology) -> VnodeRequest {
    let vnode = VnodeRequest::vm(&domain.name, domain.request(topology));
    VnodeRequest { memory: domain.memory_request(topology), ..vnode }
}

/// Sets another number of vCPUs. The guest's NUMA cells are removed, because they are for the
/// former number.
pub fn set_vcpus(vm: &mut VmRequest, vcpus: VcpuCount) {
    if vcpus != vm.vcpus {
        vm.cells.clear();
    }
    vm.vcpus = vcpus;
}

/// What an option asks, with the option's name in front of what is wrong with it: once, where the
/// reader names its key too.
pub fn asked<T>(option: &str, read: Result<T, RequestError>) -> Result<T, Failure> {
    read.map_err(|error| {
        let failure = Failure::from_error(Exit::Input, &error, error.hint());
        let key = option.trim_start_matches('-');
        let named = [option.to_owned(), key.to_owned(), format!("{key}s")];
        let bare = named.iter().find_map(|name| failure.message.strip_prefix(&format!("{name}: ")));
        let message = format!("{option}: {}", bare.unwrap_or(&failure.message));
        Failure { message, ..failure }
    })
}

/// An input file that cannot be read.
pub fn input_failure(error: &HostError) -> Failure {
    if let HostError::File { path, source, .. } = error
        && source.kind() == std::io::ErrorKind::IsADirectory
    {
        return Failure::new(Exit::Input, format!("{path} is a folder, not a file"))
            .with_hint("name a file in it");
    }
    let hint = error.hint().filter(|_| matches!(error, HostError::Encoding { .. }));
    Failure::from_error(Exit::Input, error, hint)
}

/// A request file; its name and position are put before errors.
pub struct RequestFile {
    path: String,
    text: String,
}

impl RequestFile {
    /// Reads the file.
    pub fn read(path: &str) -> Result<Self, Failure> {
        let text = files::read_text(path).map_err(|error| input_failure(&error))?;
        Ok(Self { path: path.to_owned(), text })
    }

    /// The request for a machine.
    pub fn request(&self, topology: &Topology) -> Result<Request, Failure> {
        let request = asked(&self.path, requests::from_toml(&self.text))?;
        let known = |key: &[&str], pus: &CpuSet| {
            let place = requests::place_of_key(&self.text, key);
            require_known(&format!("{}{}", self.place(place), key.join(".")), pus, topology)
        };
        known(&["avoid"], &request.avoid)?;
        if let Some(Free::These(pus)) = &request.free {
            known(&["host", "pus"], pus)?;
        }
        Ok(request)
    }

    /// Makes a plan for the request.
    pub fn plan(&self, strategy: Option<&str>, topology: &Topology) -> Result<Plan, Failure> {
        let request = self.request(topology)?;
        pinfold_plan::plan(strategy.unwrap_or("auto"), topology, &request).map_err(|error| {
            let failure = plan_failure(&error);
            if matches!(error, PlanError::UnknownStrategy { .. }) {
                return failure;
            }
            let place = error.field().and_then(|field| requests::place_of(&self.text, &field));
            let place = self.place(place);
            Failure { message: format!("{place}{}", failure.message), ..failure }
        })
    }

    fn place(&self, place: Option<(usize, usize)>) -> String {
        match place {
            Some((line, column)) => format!("{}: line {line}, column {column}: ", self.path),
            None => format!("{}: ", self.path),
        }
    }
}

fn plan_failure(error: &PlanError) -> Failure {
    Failure::from_error(Exit::Input, error, error.hint())
}

/// Makes a plan with the given strategy, or with `auto`.
pub fn make_plan(
    strategy: Option<&str>,
    topology: &Topology,
    request: &Request,
) -> Result<Plan, Failure> {
    pinfold_plan::plan(strategy.unwrap_or("auto"), topology, request)
        .map_err(|error| plan_failure(&error))
}

/// The only vnode of a plan.
pub fn single(plan: &Plan) -> Result<&VnodePlan, Failure> {
    plan.single().map_err(|error| {
        let failure = Failure::from_error(Exit::Input, &error, None);
        match plan.vnodes.first() {
            Some(first) => {
                let command = command::again(&plan.alone(first), None);
                failure.with_hint(format!("plan for one of them: `{command}`"))
            }
            None => failure,
        }
    })
}

/// A plan from a file made by `pinfold plan --json`.
pub fn read_plan(path: &str) -> Result<Plan, Failure> {
    let bytes = files::read(path).map_err(|error| input_failure(&error))?;
    parse_plan(path, bytes)
}

/// Parses the contents of a plan file.
pub fn parse_plan(path: &str, bytes: Vec<u8>) -> Result<Plan, Failure> {
    let text = files::text(path, bytes).map_err(|error| input_failure(&error))?;
    pinfold_plan::schema::from_json(&text).map_err(|error| {
        let failure = Failure::from_error(Exit::Input, &error, error.hint());
        Failure { message: format!("{path}: {}", failure.message), ..failure }
    })
}

/// The directory of the journals and locks.
pub fn state(path: Option<&str>) -> Result<StateDir, Failure> {
    let path = match path {
        // The path is recorded for other processes, which have other working directories.
        Some(path) => std::path::absolute(path)
            .map_or_else(|_| path.to_owned(), |path| path.to_string_lossy().into_owned()),
        None => files::default_state_dir().map_err(|error| host_failure(&error))?,
    };
    StateDir::open(&path).map_err(|error| host_failure(&error))
}

/// A plan from a file, checked against this host and the vCPUs of a machine.
pub fn plan_for_host(path: &str, topology: &Topology, vcpus: &Vcpus) -> Result<Plan, Failure> {
    fitting(path, read_plan(path)?, topology, vcpus)
}

/// A plan that was read from a file, if it fits this host and the vCPUs of a machine.
pub fn fitting(
    path: &str,
    plan: Plan,
    topology: &Topology,
    vcpus: &Vcpus,
) -> Result<Plan, Failure> {
    let wrong = pinfold_plan::validate(&plan, topology);
    let problem = wrong.iter().find(|finding| finding.severity == Severity::Problem);
    if let Some(finding) = problem {
        let failure =
            Failure::new(Exit::Input, format!("{path}: {}: {}", finding.subject, finding.text));
        return Err(match &finding.hint {
            Some(hint) => failure.with_hint(hint),
            None => failure,
        });
    }
    // A plan with offline CPUs can only be checked when they are online.
    if let Fit::Other(differences) = pinfold_plan::fit(&plan, topology) {
        let failure = apply_session::another_host(path, &differences);
        // Without a record of its CPUs, the offline ones may be the only difference.
        let offline = wrong.iter().find(|finding| finding.subject == "offline");
        let offline = offline.filter(|_| plan.cpus.is_none());
        return Err(
            match offline.and_then(|finding| Some((&finding.text, finding.hint.as_ref()?))) {
                Some((text, hint)) => Failure::new(Exit::Input, format!("{path}: {text}"))
                    .with_hint(format!("{hint}, and apply it again")),
                None => failure
                    .with_hint(format!("make it again here: `{}`", command::again(&plan, None))),
            },
        );
    }
    vcpus.require_in(path, &plan)?;
    Ok(plan)
}

/// Adds tunables from the command line to a plan.
pub fn set_knobs(plan: &mut Plan, knobs: &[String], topology: &Topology) -> Result<(), Failure> {
    for words in knobs {
        asked("--knob", requests::knob(plan, words))?;
    }
    let wrong = pinfold_plan::validate(plan, topology);
    let problem = wrong.iter().find(|finding| finding.severity == Severity::Problem);
    match problem.filter(|_| !knobs.is_empty()) {
        Some(finding) => {
            let text = format!("--knob: {}: {}", finding.subject, finding.text);
            let hint = finding.hint.as_deref();
            Err(Failure::new(Exit::Input, text)
                .with_hint(hint.unwrap_or("`pinfold topo` shows the PUs of this machine")))
        }
        None => Ok(()),
    }
}

/// Bytes on standard input, each a heartbeat of the parent; the channel closes at the end of the
/// input.
pub fn beats() -> mpsc::Receiver<u8> {
    let (received, beats) = mpsc::channel();
    std::thread::spawn(move || {
        let mut byte = [0];
        while let Ok(1) = std::io::stdin().read(&mut byte) {
            if received.send(byte[0]).is_err() {
                return;
            }
        }
    });
    beats
}

/// The origin of numbers of this host, without a guest.
pub fn origin(host: &LiveHost, topology: &Topology, seed: u64) -> Result<Origin, Failure> {
    pinfold_topology::origin(host, topology, seed).map_err(|error| host_failure(&error))
}

/// The command line as it was typed, with quotes where needed.
pub fn command_line() -> String {
    let mut words: Vec<String> = std::env::args().collect();
    if let Some(program) = words.first_mut() {
        *program = "pinfold".to_owned();
    }
    let quoted: Vec<String> = words.iter().map(|word| command::quote(word)).collect();
    quoted.join(" ")
}
