//! Tunes with computed stalls, no machine: `cargo run -p pinfold-study --example tune`

#![expect(clippy::print_stdout, reason = "the example prints its result")]

use pinfold_host::{Clock as _, LiveHost, SystemClock};
use pinfold_model::{Metric, Request, Series, VcpuCount};
use pinfold_study::store::{CellResult, Store};
use pinfold_study::tune::{self, Candidate, Costs, Goal, StartRequest, StartResult, TrialError};

/// The more CPUs a vCPU may use, the longer the stall.
struct Simulated(Vec<Candidate>);

impl tune::Starter for Simulated {
    fn start(&mut self, request: &StartRequest) -> Result<StartResult, TrialError> {
        let vnodes = &self.0[request.candidate].plan.vnodes;
        let cpus: usize =
            vnodes.iter().flat_map(|vnode| vnode.vcpus()).map(|vcpu| vcpu.pus.len()).sum();
        let stall_ns = 10_000.0 * cpus as f64;
        let series = Series::new(Metric::SpinGap, 1_000_000_000, vec![stall_ns]);
        Ok(StartResult {
            cells: request
                .load_states
                .iter()
                .map(|&load| CellResult::new(load, vec![series.clone()]))
                .collect(),
        })
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let host = LiveHost::new()?;
    let topology = pinfold_topology::read_input(&host, "package:1 l3:1 core:4 pu:2")?;
    let request = Request::vm("guest", VcpuCount::Exactly(2));
    let plan = |name| {
        pinfold_plan::plan(name, &topology, &request)
            .map(|plan| Candidate::new(plan, pinfold_plan::schema::to_json))
    };
    let candidates = vec![plan("none")?, plan("balanced")?];
    let costs = Costs { start_s: 1.0, state_s: 1.0, per_observed_s: 1.0 };
    let config = tune::TuneConfig::new(Goal::Latency, 600.0, 1, costs);
    let origin = pinfold_topology::origin(&host, &topology, config.seed)?;
    let (mut store, now) = (Store::in_memory()?, SystemClock.unix_seconds());
    let run = tune::create(&mut store, &config, &candidates, &origin, now)?.run;
    let (runner, progress) = (&mut Simulated(candidates), &mut |_: &tune::Update<'_>| {});
    let (clock, stop, node) = (&SystemClock, &std::sync::atomic::AtomicBool::new(false), "");
    let mut environment = tune::Environment { runner, clock, progress, stop, node };
    tune::run(&mut store, run, &mut environment)?;
    println!("winner: {}", tune::analyse(&store, run.id())?.winner.ok_or("no winner")?.name);
    Ok(())
}
