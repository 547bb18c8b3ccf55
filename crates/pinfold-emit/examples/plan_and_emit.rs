//! Plans a virtual machine of four vCPUs, explains the plan and emits it as libvirt XML.
//!
//! `cargo run -p pinfold-emit --example plan_and_emit -- [STRATEGY]`, `balanced` by default

#![expect(clippy::print_stdout, reason = "the example prints its result")]

use pinfold_host::LiveHost;
use pinfold_model::text::cpus_text;
use pinfold_model::{CpuSet, Request, VcpuCount};
use pinfold_plan::{explain, plan};
use pinfold_topology::read_input;

const COLUMNS: usize = 80;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let strategy = std::env::args().nth(1).unwrap_or_else(|| "balanced".to_owned());
    // A plan is a pure function of its input: the host may be another one.
    // `pinfold_topology::discover` gives the topology of this host.
    let topology = read_input(&LiveHost::new()?, "package:1 l3:2 core:4 pu:2")?;
    let mut request = Request::vm("guest", VcpuCount::Exactly(4));
    request.avoid = CpuSet::parse_list("0-1")?;

    let plan = plan(&strategy, &topology, &request)?;
    for (vnode, thread) in plan.threads() {
        println!("{} {}: {}", vnode.name, thread.role, cpus_text(&thread.pus));
    }
    println!("\n{}", explain(&plan, &topology, COLUMNS));
    print!("{}", pinfold_emit::libvirt(&plan, &topology)?);
    Ok(())
}
