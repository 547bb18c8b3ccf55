//! What commands take: CPUs, requests, plans and their files, checked against the host.

use std::collections::BTreeSet;

use pinfold_config::{ConfigError, requests};
use pinfold_host::{HostError, LiveHost, files};
use pinfold_model::text::cpus_text;
use pinfold_model::{
    CpuSet, FreeCpus, Plan, Request, Severity, Topology, VcpuCount, VmRequest, VnodeRequest,
};
use pinfold_plan::domain_file::Domain;
use pinfold_plan::{HostMatch, PlanError, command};
use pinfold_topology::TopologyError;

use crate::claims::Claims;
use crate::vcpus::Vcpus;
use crate::{Exit, Failure, planning, plans};

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
    Err(Failure::new(Exit::Input, format!("{option}: this machine has no {}", cpus_text(&strange)))
        .with_hint(format!("its CPUs are {known}; `pinfold topo` shows them")))
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
pub fn name_option<T>(option: &str, read: Result<T, ConfigError>) -> Result<T, Failure> {
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
        return Failure::new(Exit::Input, format!("{path} is a directory, not a file"))
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
        let request = name_option(&self.path, requests::from_toml(&self.text))?;
        self.require_key(&["avoid"], &request.avoid, topology)?;
        if let Some(FreeCpus::These(pus)) = &request.free {
            self.require_key(&["host", "pus"], pus, topology)?;
        }
        Ok(request)
    }

    fn require_key(&self, key: &[&str], pus: &CpuSet, topology: &Topology) -> Result<(), Failure> {
        let place = requests::place_of_key(&self.text, key);
        require_known(&format!("{}{}", self.place(place), key.join(".")), pus, topology)
    }

    /// Makes a plan for the request around the claims of others.
    pub fn plan(
        &self,
        strategy: Option<&str>,
        topology: &Topology,
        claims: &Claims,
    ) -> Result<Plan, Failure> {
        let request = self.request(topology)?;
        planning::plan(claims, strategy, topology, &request).map_err(|error| {
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

/// Makes a plan with the given strategy, or with `auto`, around the claims of others.
pub fn make_plan(
    strategy: Option<&str>,
    topology: &Topology,
    request: &Request,
    claims: &Claims,
) -> Result<Plan, Failure> {
    planning::plan(claims, strategy, topology, request).map_err(|error| plan_failure(&error))
}

/// Plans as many machines like the one of a request as fit, around the claims of others.
pub fn fill(
    strategy: Option<&str>,
    topology: &Topology,
    request: &Request,
    claims: &Claims,
) -> Result<Plan, Failure> {
    planning::fill(claims, strategy, topology, request).map_err(|error| plan_failure(&error))
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

/// The plan in a file, or the part for its vnode of this name.
pub fn read_part(path: &str, vnode: Option<&str>) -> Result<Plan, Failure> {
    let plan = read_plan(path)?;
    match vnode {
        Some(name) => Ok(plan.extract_vnode(plans::find_vnode(&plan, name)?)),
        None => Ok(plan),
    }
}

/// A plan from a file, or the part for its vnode of this name or of the machine with one of these
/// names, checked against this host and the vCPUs of the machine.
pub fn plan_for_host(
    path: &str,
    vnode: Option<&str>,
    names: &[&str],
    topology: &Topology,
    vcpus: &Vcpus,
) -> Result<Plan, Failure> {
    let whole = read_plan(path)?;
    let plan = match vnode {
        Some(name) => whole.extract_vnode(plans::find_vnode(&whole, name)?),
        None => whole.part_for(names),
    };
    let plan = fitting_host(path, plan, topology)?;
    vcpus.require_in(path, &plan, &whole)?;
    Ok(plan)
}

/// A plan that was read from a file, if it fits this host and the vCPUs of a machine.
pub fn fitting(
    path: &str,
    plan: Plan,
    topology: &Topology,
    vcpus: &Vcpus,
) -> Result<Plan, Failure> {
    let plan = fitting_host(path, plan, topology)?;
    vcpus.require_in(path, &plan, &plan)?;
    Ok(plan)
}

/// A plan that was read from a file, if it fits this host.
fn fitting_host(path: &str, plan: Plan, topology: &Topology) -> Result<Plan, Failure> {
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
    if let HostMatch::Other(differences) = pinfold_plan::fit(&plan, topology) {
        let failure = plans::another_host(path, &differences);
        // Without a record of its CPUs, the offline ones may be the only difference.
        let offline = wrong.iter().find(|finding| finding.subject == "offline");
        let offline = offline.filter(|_| plan.cpus.is_none());
        return Err(
            match offline.and_then(|finding| Some((&finding.text, finding.hint.as_ref()?))) {
                Some((text, hint)) => Failure::new(Exit::Input, format!("{path}: {text}"))
                    .with_hint(format!("{hint}, and apply it again")),
                None => failure.with_hint(format!(
                    "create it again on this host: `{}`",
                    command::plan_command(&plan)
                )),
            },
        );
    }
    Ok(plan)
}

/// The option that sets a tunable.
const TUNABLE: &str = "--tunable";

/// A plan around the claims of others, with tunables from the command line and findings about the
/// claims. If the tunables are refused only because of the claims, the claims give way: they are a
/// warning and never prevent a placement.
///
/// # Errors
/// Those of `plan`, and of [`set_tunables`], without the claims.
pub fn plan_with_tunables(
    claims: &Claims,
    tunables: &[String],
    topology: &Topology,
    plan: impl Fn(&Claims) -> Result<Plan, Failure>,
) -> Result<Plan, Failure> {
    let mut around = plan(claims)?;
    if let Err(failure) = set_tunables(TUNABLE, &mut around, tunables, topology) {
        if claims.all().is_empty() {
            return Err(failure);
        }
        let Ok(alone) = plan(&Claims::default()) else { return Err(failure) };
        around = alone;
        set_tunables(TUNABLE, &mut around, tunables, topology)?;
    }
    planning::report_in(claims, &mut around);
    Ok(around)
}

/// Adds tunables of this option of the command line to a plan, with findings about those that have
/// no effect.
pub fn set_tunables(
    option: &str,
    plan: &mut Plan,
    tunables: &[String],
    topology: &Topology,
) -> Result<(), Failure> {
    let mut keys = BTreeSet::new();
    for words in tunables {
        // Pools of huge pages and shares have a place in their value: `0:1048576:48`, `L3:0=f`.
        let (key, value) = words.split_once('=').unwrap_or((words, ""));
        let place = value.rsplit_once([':', '=']).map(|(place, _)| place);
        if !keys.insert((key.trim(), place)) {
            return Err(Failure::new(Exit::Input, format!("{option}: {key} is given twice"))
                .with_hint("give each tunable once"));
        }
        name_option(option, requests::set_tunable(plan, words))?;
    }
    let wrong = pinfold_plan::validate(plan, topology);
    let problem = wrong.iter().find(|finding| finding.severity == Severity::Problem);
    if !tunables.is_empty() {
        let mut weak = pinfold_model::tunables::validate_tunables(plan, topology);
        weak.retain(|finding| {
            finding.severity < Severity::Problem && !plan.findings.contains(finding)
        });
        plan.findings.extend(weak);
    }
    match problem.filter(|_| !tunables.is_empty()) {
        Some(finding) => {
            let text = format!("{option}: {}: {}", finding.subject, finding.text);
            let hint = finding.hint.as_deref();
            Err(Failure::new(Exit::Input, text)
                .with_hint(hint.unwrap_or("docs/tunables.md has the values of each tunable")))
        }
        None => Ok(()),
    }
}
