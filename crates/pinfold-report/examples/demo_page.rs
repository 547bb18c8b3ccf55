//! Writes a report page with made-up data to the standard output.
//!
//! `cargo run -p pinfold-report --example demo_page -- [PUS] > page.html`, where PUS
//! is 1, 2, 8, 64 or 256. The numbers are examples and the page says so.

use std::io::Write as _;

#[path = "../tests/demo/mod.rs"]
mod demo;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pus = std::env::args().nth(1);
    let (shape, vcpus) = match pus.as_deref() {
        Some("1") => ([1, 1, 1, 1, 1], 1),
        Some("8") => ([1, 1, 1, 4, 2], 3),
        Some("64") => ([2, 1, 2, 8, 2], 12),
        Some("256") => ([2, 4, 2, 8, 2], 32),
        _ => ([1, 1, 1, 2, 1], 1),
    };
    let page = pinfold_report::render(&demo::page(shape, vcpus))?;
    std::io::stdout().write_all(page.as_bytes())?;
    Ok(())
}
