//! The options that several commands share, as a request.

use pinfold_config::requests;
use pinfold_host::{Host, LiveHost};
use pinfold_model::{FreeCpus, Request, Topology, VnodeRequest};
use pinfold_plan::command;
use pinfold_run::claims::{self, Claims};
use pinfold_run::inputs::{name_option, pus, require_known};
use pinfold_run::{Exit, Failure, profile};
use pinfold_vm::{VmSelector, hypervisors};

use crate::cli::{Isolate, PlacementArgs, VmArgs};
use crate::output::print_message;

/// The machine that the command line selects.
pub fn vm(arguments: &VmArgs) -> Result<VmSelector, Failure> {
    arguments.selector().ok_or_else(no_machine)
}

/// The command line selects none.
pub fn no_machine() -> Failure {
    Failure::new(Exit::Input, "no virtual machine was given").with_hint(format!(
        "give its name, or select it with {}, --libvirt or --pid",
        hypervisors::options()
    ))
}

/// The request from the shared options.
pub fn request(
    arguments: &PlacementArgs,
    vnodes: Vec<VnodeRequest>,
    topology: &Topology,
) -> Result<Request, Failure> {
    let avoid = pus("--avoid", &arguments.avoid)?;
    require_known("--avoid", &avoid, topology)?;
    let mut request = Request::from_vnodes(vnodes);
    for text in &arguments.pins {
        let pin_requests = name_option("--pin", requests::pins(text))?;
        match request.vnodes.as_mut_slice() {
            [only] => only.pins.extend(pin_requests),
            _ => {
                return Err(Failure::new(Exit::Input, "--pin needs a plan for one vnode")
                    .with_hint("write pins=ROLE=CPUS among the keys of --vm or --group"));
            }
        }
    }
    request.avoid = avoid;
    request.isolation = arguments.isolate.into();
    request.free = match (&arguments.free, &arguments.host_pus) {
        (Some(share), _) => Some(name_option("--free", requests::free_share(share))?),
        (None, Some(list)) => {
            let free = name_option("--host-cpus", requests::free_pus("--host-cpus", list))?;
            if let FreeCpus::These(pus) = &free {
                require_known("--host-cpus", pus, topology)?;
            }
            Some(free)
        }
        (None, None) => None,
    };
    request.emulator =
        name_option("--emulator", requests::parse_emulator_request(&arguments.emulator))?;
    if let Some(text) = &arguments.prefer {
        request.prefer = name_option("--prefer", requests::preference(text))?;
    }
    Ok(request)
}

/// The tunables of the command line, with those of its profile that the host has; `host` is `None`
/// for a plan for another machine.
pub fn tunables(
    arguments: &PlacementArgs,
    host: Option<&LiveHost>,
    topology: &Topology,
    has_vcpus: bool,
) -> Result<Vec<String>, Failure> {
    let Some(name) = &arguments.profile else { return Ok(arguments.tunables.clone()) };
    let scope = profile::Scope {
        host: host.map(|host| host as &dyn Host),
        online: &topology.online(),
        isolates: arguments.isolate == Isolate::Host,
        has_vcpus,
    };
    let (tunables, note) =
        profile::merge_tunables(profile::find_profile(name)?, &arguments.tunables, scope);
    note.iter().for_each(|note| print_message(&note.to_string()));
    Ok(tunables)
}

/// The claims that a new plan for this host respects, unless the options ignore them.
pub fn claims(
    arguments: &PlacementArgs,
    host: &LiveHost,
    state: Option<&str>,
) -> Result<Claims, Failure> {
    if arguments.ignore_claims { Ok(Claims::default()) } else { claims::for_plan(host, state) }
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
