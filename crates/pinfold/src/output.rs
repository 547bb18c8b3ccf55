//! Where text goes: data to standard output, talk to standard error.
//!
//! A reader that goes away (`pinfold topo | head`) is not an error of ours.

use std::io::{self, IsTerminal, Write};

/// Prints data.
pub fn data(text: &str) {
    ignore_closed_pipe(write_all(&mut io::stdout().lock(), text));
}

/// Says something to the person at the terminal.
pub fn say(text: &str) {
    ignore_closed_pipe(write_all(&mut io::stderr().lock(), text));
}

/// True if a person looks at standard error.
pub fn has_person() -> bool {
    io::stderr().is_terminal()
}

fn write_all(stream: &mut dyn Write, text: &str) -> io::Result<()> {
    stream.write_all(text.as_bytes())?;
    if !text.ends_with('\n') {
        stream.write_all(b"\n")?;
    }
    stream.flush()
}

/// Output that nobody reads any more has no one to be told about it.
fn ignore_closed_pipe(result: io::Result<()>) {
    if let Err(error) = result {
        if error.kind() != io::ErrorKind::BrokenPipe {
            std::process::exit(i32::from(crate::failure::Exit::Host.code()));
        }
        std::process::exit(0);
    }
}

/// A table that fits the terminal, or 110 columns where there is none.
pub fn table() -> comfy_table::Table {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::UTF8_HORIZONTAL_ONLY);
    table.set_content_arrangement(comfy_table::ContentArrangement::Dynamic);
    if !io::stdout().is_terminal() {
        table.set_width(110);
    }
    table
}
