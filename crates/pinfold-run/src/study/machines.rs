//! The machines of a start other than the measured one: equal ones under load or with the measured
//! program, and a neighbour that fills the memory bandwidth of a node.
//!
//! Each is started, placed by its own plan, and ended as the measured one is: its plan is in the
//! journal, and the kernel kills its QEMU if Pinfold ends first.

use pinfold_model::{CpuSet, EmulatorRequest, NodeId, Plan, Topology};
use pinfold_probe::agent::{Agent, AgentError};
use pinfold_probe::loads::LoadSpec;
use pinfold_study::study::NONE;

use super::guests::{self, GuestSetup, MEMORY_MIB};
use super::interference::Neighbours;
use crate::guest::Running;
use crate::guest::loads::GuestLoads;
use crate::{Exit, Failure};

/// Memory of a guest in addition to that of its load.
const REST_MIB: u32 = 256;

/// What a machine runs next to the measured one.
enum MachineLoad {
    /// A spinner for each vCPU, and a memory streamer.
    Loaded,
    /// Only this.
    Only(LoadSpec),
    /// The measured program, started by each trial.
    Program,
}

/// A machine to start next to the measured one.
pub struct OtherMachine {
    /// The guest, with its own plan.
    pub setup: GuestSetup,
    /// The number of its files.
    pub index: u32,
    load: MachineLoad,
}

/// A machine that runs next to the measured one.
#[derive(Clone, Copy)]
pub struct RunningMachine<'a> {
    /// The connection to it.
    pub agent: &'a Agent,
    /// Its loads; `None` if it runs the measured program.
    pub side: Option<&'a GuestLoads>,
}

impl OtherMachine {
    /// All machines that run next to a guest; `mib` is the memory of each neighbour.
    pub fn all(
        guest: &GuestSetup,
        beside: &Neighbours,
        mib: u32,
        topology: &Topology,
    ) -> Result<Vec<Self>, String> {
        let mut all = Vec::new();
        for index in 1..guest.machines {
            let (plan, memory, load) = if guest.same_program {
                (guest.plan.clone(), guest.memory, MachineLoad::Program)
            } else {
                let floating = guests::plan(NONE, EmulatorRequest::Usual, guest.vcpus, topology)?;
                (floating, None, MachineLoad::Loaded)
            };
            let setup = GuestSetup { plan, memory, ..guest.clone() };
            all.push(Self { setup, index, load });
        }
        if let Some(room) = &beside.guest_room {
            let load = beside.load(mib);
            let setup = GuestSetup {
                plan: neighbour_plan(room, load.threads, topology)?,
                vcpus: load.threads,
                memory: node_of_several(beside, topology),
                memory_mib: (mib * load.threads + REST_MIB).max(MEMORY_MIB),
                ..guest.clone()
            };
            all.push(Self { setup, index: guest.machines, load: MachineLoad::Only(load) });
        }
        Ok(all)
    }

    /// Starts the loads of the running machine, lets `work` run next to it, and ends them.
    pub fn run_with_loads(
        &self,
        running: &Running<'_>,
        work: &mut dyn FnMut(RunningMachine<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let Some(agent) = running.agent.as_deref() else {
            return Err(Failure::new(Exit::Vm, "the guest has no agent"));
        };
        fn guest_failure(error: &AgentError) -> Failure {
            Failure::from_error(Exit::Vm, error, error.hint())
        }
        let side = match &self.load {
            MachineLoad::Loaded => Some(GuestLoads::start(agent, running.vcpus, None)),
            MachineLoad::Only(spec) => Some(GuestLoads::new(agent, std::slice::from_ref(spec))),
            MachineLoad::Program => None,
        };
        let side = side.transpose().map_err(|error| guest_failure(&error))?;
        let worked = work(RunningMachine { agent, side: side.as_ref() });
        if let Some(side) = side {
            side.stop(agent).map_err(|error| guest_failure(&error))?;
        }
        worked
    }
}

impl RunningMachine<'_> {
    /// True if its loads still run.
    pub fn is_loaded(&self) -> bool {
        self.side.is_none_or(|side| side.all_run(self.agent))
    }
}

/// The plan of a neighbour guest, whose threads use these CPUs only: each vCPU its own core, the
/// emulator all of them.
fn neighbour_plan(room: &CpuSet, vcpus: u32, topology: &Topology) -> Result<Plan, String> {
    let allowed = topology.allowed.intersection(room);
    let there = Topology { allowed, ..topology.clone() };
    guests::plan("compact-cores", EmulatorRequest::Usual, vcpus, &there)
}

/// The node of the neighbours, on a host with several.
fn node_of_several(beside: &Neighbours, topology: &Topology) -> Option<NodeId> {
    beside.node(topology).filter(|_| topology.nodes.len() > 1)
}

#[cfg(test)]
mod tests {
    use pinfold_model::{Accelerator, Isa};

    use super::*;

    /// A guest of one vCPU on two nodes of three cores with two CPUs each, and its neighbours.
    fn others(same_program: bool, room: Option<&str>) -> (GuestSetup, Vec<OtherMachine>) {
        let host = crate::host::live().unwrap();
        let topology = crate::inputs::topology(&host, Some("numa:2 core:3 pu:2")).unwrap();
        let guest = GuestSetup {
            real_time: false,
            plan: guests::plan("low-latency", EmulatorRequest::Usual, 1, &topology).unwrap(),
            isa: Isa::X86,
            accelerator: Accelerator::TcgMulti,
            vcpus: 1,
            machines: 2,
            same_program,
            memory: Some(NodeId(1)),
            memory_mib: MEMORY_MIB,
            page_table_levels: None,
        };
        let guest_room = room.map(|list| CpuSet::parse_list(list).unwrap());
        let firsts: Vec<_> =
            guest_room.iter().flat_map(CpuSet::iter).filter(|pu| pu.0 % 2 == 0).collect();
        let neighbours = firsts.into_iter().collect();
        let beside = Neighbours { memory: None, neighbours, guest_room };
        let others = OtherMachine::all(&guest, &beside, 700, &topology).unwrap();
        (guest, others)
    }

    #[test]
    fn other_machines_float_or_share_the_placement() {
        let (_, loaded) = others(false, None);
        assert_eq!(loaded.len(), 1);
        assert_eq!(loaded[0].setup.vcpu_pus().to_string(), "0-11");
        assert_eq!((loaded[0].setup.memory, loaded[0].index), (None, 1));
        let (guest, same) = others(true, None);
        assert_eq!(same.len(), 1);
        assert_eq!((&same[0].setup.plan, same[0].setup.memory), (&guest.plan, guest.memory));
    }

    #[test]
    fn a_neighbour_guest_stays_in_its_room_with_its_memory() {
        let (_, machines) = others(true, Some("8-11"));
        let neighbour = &machines[1];
        let setup = &neighbour.setup;
        assert_eq!(setup.vcpu_pus().to_string(), "8,10");
        assert!(setup.plan.pus().is_subset(&CpuSet::parse_list("8-11").unwrap()));
        assert_eq!((setup.vcpus, neighbour.index, setup.memory), (2, 2, Some(NodeId(1))));
        assert_eq!(setup.memory_mib, 2 * 700 + REST_MIB);
        let (_, machines) = others(true, Some("2-3"));
        assert_eq!((machines[1].setup.memory, machines[1].setup.vcpus), (Some(NodeId(0)), 1));
    }
}
