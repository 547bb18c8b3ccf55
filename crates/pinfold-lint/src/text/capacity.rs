//! More memory than nodes have, and more vCPUs than CPUs.

use pinfold_model::NodeId;
use pinfold_model::text::count_noun;

use super::{Fault, FaultText};
use crate::descriptions::describe_nodes;
use pinfold_plan::capacity::{Demand, Excess};
use pinfold_plan::guest_numa::node_list;
use pinfold_plan::text::mib;

pub(crate) enum RoomFault<'a> {
    /// One machine has more memory than its nodes; `elsewhere` have enough.
    TooLarge { excess: &'a Excess, demands: &'a [Demand], elsewhere: Option<Vec<NodeId>> },
    /// Machines have more memory together; one can move to a node.
    Overcommitted { machines: String, excess: &'a Excess, moved: Option<(NodeId, &'a str)> },
    /// Machines have more vCPUs together than the host has CPUs.
    VcpusOvercommitted { machines: String, vcpus: usize, cpus: usize },
}

impl Fault for RoomFault<'_> {
    fn words(&self) -> FaultText {
        match self {
            RoomFault::TooLarge { excess, demands, elsewhere } => {
                let elsewhere = elsewhere.as_ref().map(|nodes| {
                    format!(
                        "or bind it to {}, which {} enough",
                        describe_nodes(nodes),
                        match nodes.len() {
                            1 => "has",
                            _ => "have",
                        }
                    )
                });
                let less = "give the machine less memory".to_owned();
                FaultText::new(
                    "memory-too-large",
                    excess.of_one(demands),
                    "it does not start, or the kernel kills it when it uses its memory",
                )
                .with_replacement(std::iter::once(less).chain(elsewhere))
            }
            RoomFault::Overcommitted { machines, excess, moved } => {
                let at = match &excess.nodes {
                    Some(nodes) => {
                        format!("bound to node {}, where this host has", node_list(nodes))
                    }
                    None => "and this host has".to_owned(),
                };
                let (bytes, room) = (mib(excess.bytes), mib(excess.room));
                FaultText::new(
                    "memory-overcommitted",
                    format!("the machines {machines} have {bytes} of memory together, {at} {room}"),
                    "if the memory is reserved (huge pages, locked), the last of them does not \
                     start; otherwise the kernel swaps, or kills one of them when they use it",
                )
                .with_replacement([match moved {
                    Some((node, name)) => {
                        format!("node {node} has room for the memory of {name:?}: place it there")
                    }
                    None => "give them less memory, or put one of them on another host".to_owned(),
                }])
            }
            RoomFault::VcpusOvercommitted { machines, vcpus, cpus } => FaultText::new(
                "vcpus-overcommitted",
                format!(
                    "the machines {machines} have {} together, and this host has {} for them",
                    count_noun(*vcpus, "vCPU"),
                    count_noun(*cpus, "CPU")
                ),
                "vCPUs share CPUs when all machines are busy: each sees stolen time, and a vCPU \
                 that holds a guest lock may not be running while another spins for the lock",
            )
            .with_replacement(["give them fewer vCPUs, or put one of them on another host"]),
        }
    }
}
