//! `pinfold advise`, and numad's command line: the NUMA nodes for a machine.

use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use pinfold_plan::node_advice::NodeDemand;
use pinfold_run::advise::{NUMAD, answer_as_numad};
use pinfold_run::{Exit, Failure};
use serde_json::json;

use crate::cli::AdviseArgs;
use crate::output;

/// Prints the nodes; the reason goes to standard error.
pub fn advise(arguments: &AdviseArgs, state: Option<&str>) -> Result<(), Failure> {
    let demand = NodeDemand {
        vcpus: arguments.vcpus,
        memory_bytes: arguments.memory << 20,
        page_bytes: arguments.huge_pages,
    };
    let input = arguments.input.as_deref();
    let advice = pinfold_run::advise::advise(demand, input, state, !arguments.ignore_claims)?;
    if arguments.json {
        let nodes: Vec<u32> = advice.nodes.iter().map(|node| node.0).collect();
        output::print_data(&format!(
            "{:#}\n",
            json!({
                "format": "pinfold-advice/1",
                "nodes": nodes,
                "fits": advice.is_fitting,
                "reason": advice.reason,
            })
        ));
    } else {
        output::print_data(&format!("{}\n", advice.node_set()));
        output::print_message(&advice.reason);
    }
    Ok(())
}

/// The arguments, if this program was started under the name of numad.
pub fn numad_arguments() -> Option<Vec<String>> {
    let mut words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    let program = words.next()?;
    (Path::new(&program).file_name()? == NUMAD).then(|| words.collect())
}

/// What `-h` and `-V` print, which numad has too; `None` for other arguments.
fn describe_numad(words: &[String]) -> Option<String> {
    let word = words.iter().find(|word| ["-h", "-V"].contains(&word.as_str()))?;
    let version = env!("CARGO_PKG_VERSION");
    Some(if word == "-V" {
        format!("numad version: answered by pinfold {version}")
    } else {
        "Usage: numad -w VCPUS[:MIB]\n\
         Prints the NUMA nodes for a machine with VCPUS vCPUs and MIB MiB of memory.\n\
         -h  Print this help\n\
         -V  Print the version\n\
         Pinfold answers in the place of numad; it needs no daemon and moves no processes: see \
         `pinfold help advise`"
            .to_owned()
    })
}

/// Answers as numad does: only a list of nodes on standard output.
pub fn run_as_numad(words: &[String]) -> ExitCode {
    if let Some(text) = describe_numad(words) {
        output::print_data(&text);
        return ExitCode::SUCCESS;
    }
    match answer_as_numad(words) {
        Ok(nodes) => {
            // An answer that cannot be written is no reason to fail.
            let (Ok(()) | Err(_)) = io::stdout().write_all(format!("{nodes}\n").as_bytes());
            ExitCode::SUCCESS
        }
        Err(reason) => {
            output::print_message(&reason);
            ExitCode::from(Exit::Input.code())
        }
    }
}
