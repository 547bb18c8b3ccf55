//! Reads the topology of this host, or that of a capture, an hwloc file or a description.
//!
//! `cargo run -p pinfold-topology --example read_topology -- ["package:2 l3:2 core:4 pu:2"]`

#![expect(clippy::print_stdout, reason = "the example prints its result")]

use pinfold_host::LiveHost;
use pinfold_model::text::cpus_text;
use pinfold_topology::{describe_source, discover, read_input, render_tree};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let host = LiveHost::new()?;
    let topology = match std::env::args().nth(1) {
        Some(input) => read_input(&host, &input)?,
        None => discover(&host)?,
    };
    let (cpus, cores) = (topology.pus.len(), topology.cores.len());
    println!("{}: {cpus} CPUs, {cores} cores", describe_source(&topology));
    for node in &topology.nodes {
        let cpus = cpus_text(&node.pus);
        println!("NUMA node {}: {cpus}, {} MiB", node.id, node.memory_bytes >> 20);
    }
    for l3 in &topology.l3 {
        println!("L3 domain {}: {}, {} KiB", l3.id, cpus_text(&l3.pus), l3.size_bytes >> 10);
    }
    for finding in &topology.findings {
        println!("{}: {}", finding.severity, finding.text);
    }
    print!("\n{}", render_tree(&topology));
    Ok(())
}
