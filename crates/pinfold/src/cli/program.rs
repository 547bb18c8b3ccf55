//! Arguments of the commands about the program itself.

use clap::Args;

/// `pinfold help`.
#[derive(Debug, Args)]
pub struct HelpArgs {
    /// Describe this command, such as `emulate up`, or this topic
    #[arg(value_name = "COMMAND|TOPIC")]
    pub words: Vec<String>,
}

/// `pinfold version`.
#[derive(Debug, Args)]
pub struct VersionArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `pinfold completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// Print the completions for this shell
    #[arg(value_name = "SHELL")]
    pub shell: clap_complete::Shell,
}

/// `pinfold man`.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Write the pages to DIR
    #[arg(value_name = "DIR")]
    pub folder: String,
}
