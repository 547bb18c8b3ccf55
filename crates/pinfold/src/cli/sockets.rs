//! The options that take the control sockets of machines: one for each hypervisor of the table.

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use pinfold_vm::Hypervisor;
use pinfold_vm::hypervisors::HYPERVISORS;

/// A control socket with its hypervisor.
pub type Socket = (&'static dyn Hypervisor, String);

/// At most one socket, as a member of the group that selects a machine.
#[derive(Debug)]
pub struct OneSocket(pub Option<Socket>);

/// Any number of sockets.
#[derive(Debug)]
pub struct ManySockets(pub Vec<Socket>);

impl Args for OneSocket {
    fn augment_args(command: Command) -> Command {
        command.args(HYPERVISORS.map(|hypervisor| {
            let texts = hypervisor.display_strings();
            let help = format!("Select a {} by its {}", texts.name, texts.socket);
            option(hypervisor).group("VmArgs").help(help)
        }))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for OneSocket {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self(sockets_of(matches).pop()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for ManySockets {
    fn augment_args(command: Command) -> Command {
        command.args(HYPERVISORS.map(|hypervisor| {
            let texts = hypervisor.display_strings();
            let help = format!("Select a {} by its {}; may be repeated", texts.name, texts.socket);
            option(hypervisor).action(ArgAction::Append).help(help)
        }))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ManySockets {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self(sockets_of(matches)))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The names of all options, without dashes.
pub fn names() -> impl Iterator<Item = &'static str> {
    HYPERVISORS.into_iter().map(name)
}

/// The name of the option of a hypervisor, without dashes.
fn name(hypervisor: &dyn Hypervisor) -> &'static str {
    hypervisor.display_strings().option.trim_start_matches('-')
}

fn option(hypervisor: &dyn Hypervisor) -> Arg {
    Arg::new(name(hypervisor)).long(name(hypervisor)).value_name("SOCKET")
}

/// The sockets on the command line.
fn sockets_of(matches: &ArgMatches) -> Vec<Socket> {
    HYPERVISORS
        .into_iter()
        .flat_map(|hypervisor| {
            let sockets = matches.get_many::<String>(name(hypervisor)).unwrap_or_default();
            sockets.map(move |socket| (hypervisor, socket.clone()))
        })
        .collect()
}
