//! Asks the planner whether a command that is proposed against a cause fits this host.

use std::cell::RefCell;
use std::collections::BTreeMap;

use clap::Parser as _;
use pinfold_model::command::split_words;

use super::gaps::Planner;
use crate::cli::{Cli, Command};
use crate::commands::apply;

/// The planner of this host, which is asked once for each command.
pub struct HostPlanner<'a> {
    state: Option<&'a str>,
    known: RefCell<BTreeMap<String, bool>>,
}

impl<'a> HostPlanner<'a> {
    /// With this state directory.
    pub fn new(state: Option<&'a str>) -> Self {
        Self { state, known: RefCell::default() }
    }
}

impl Planner for HostPlanner<'_> {
    fn accepts(&self, command: &str) -> bool {
        if let Some(known) = self.known.borrow().get(command) {
            return *known;
        }
        let parsed = Cli::try_parse_from(split_words(command));
        let accepts = match parsed.map(|line| line.command) {
            // A refusal, and a machine that has ended, are the same here.
            Ok(Some(Command::Apply(arguments))) => {
                apply::is_useful(&arguments, self.state).unwrap_or(false)
            }
            Ok(_) | Err(_) => false,
        };
        self.known.borrow_mut().insert(command.to_owned(), accepts);
        accepts
    }
}

/// For records: the machine may be one of another host.
pub struct Unasked;

impl Planner for Unasked {
    fn accepts(&self, _: &str) -> bool {
        true
    }
}
