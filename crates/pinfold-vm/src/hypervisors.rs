//! The table of hypervisors, and which of them a program or a command line belongs to.

use crate::hypervisor::{Hypervisor, MachineCommand};
use crate::qemu::Qemu;

/// All hypervisors. The first one is assumed for a command line that names none of them, which may
/// be a script that starts it.
pub const HYPERVISORS: [&dyn Hypervisor; 1] = [&Qemu];

/// Their names in a sentence: `QEMU`.
#[must_use]
pub fn names() -> String {
    HYPERVISORS.map(|hypervisor| hypervisor.texts().name).join(" or ")
}

/// The options of `pinfold` that take their control sockets: `--qmp`.
#[must_use]
pub fn options() -> String {
    HYPERVISORS.map(|hypervisor| hypervisor.texts().option).join(", ")
}

/// True if an argument suggests that a command line is meant for one of them.
#[must_use]
pub fn is_mentioned_in(argument: &str) -> bool {
    HYPERVISORS.iter().any(|hypervisor| hypervisor.is_mentioned_in(argument))
}

/// The hypervisor whose program has this file name.
pub(crate) fn of_program(name: &str) -> Option<&'static dyn Hypervisor> {
    HYPERVISORS.into_iter().find(|hypervisor| hypervisor.is_program(name))
}

/// Parses a command line as that of the hypervisor that it starts; of the first one in the table if
/// its program belongs to none.
#[must_use]
pub fn parse(words: &[String]) -> Box<dyn MachineCommand> {
    let [first, others @ ..] = HYPERVISORS;
    let command = first.parse(words);
    if starts_own_program(&*command) {
        return command;
    }
    let mut others = others.into_iter().map(|other: &dyn Hypervisor| other.parse(words));
    others.find(|other| starts_own_program(&**other)).unwrap_or(command)
}

fn starts_own_program(command: &dyn MachineCommand) -> bool {
    let name = command.program().rsplit('/').next().unwrap_or_default();
    command.hypervisor().is_program(name)
}
