//! Lints the pins of a libvirt domain file for a host of four cores with two threads each.
//!
//! `cargo run -p pinfold-lint --example lint_domain -- [FILE]`

#![expect(clippy::print_stdout, reason = "the example prints its result")]

use pinfold_host::{LiveHost, files};
use pinfold_lint::{counts, lint};
use pinfold_plan::layout::Layout;
use pinfold_topology::read_input;

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/examples/desktop.xml");

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).unwrap_or_else(|| EXAMPLE.to_owned());
    let topology = read_input(&LiveHost::new()?, "package:1 l3:1 core:4 pu:2")?;
    let layout = Layout::of_text(&files::read_text(&path)?, &path)?;
    let diagnostics = lint(&[layout], &topology);
    for diagnostic in &diagnostics {
        println!("{} [{}]: {}", diagnostic.severity, diagnostic.name, diagnostic.what);
        for place in &diagnostic.places {
            println!("  {}:{}: {}", place.file, place.line.unwrap_or(1), place.text);
        }
        println!("  cost: {}", diagnostic.cost);
        for line in &diagnostic.instead {
            println!("  instead: {line}");
        }
    }
    println!("{}", counts(&diagnostics));
    Ok(())
}
