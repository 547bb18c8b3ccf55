//! The NUMA nodes for a machine that another program binds to whole nodes, as numad answers it.

mod libvirt_domains;
mod machine_cpuset;

use std::collections::BTreeMap;
use std::panic::catch_unwind;
use std::sync::mpsc;
use std::time::Duration;

use pinfold_claims::{Claims, Exclusivity, OwnerCategory};
use pinfold_host::{Clock as _, Host, LiveHost, SystemClock, log, paths, process};
use pinfold_model::{CpuSet, NodeId, Topology};
use pinfold_plan::node_advice::{
    NodeAdvice, NodeDemand, NodeDistances, NodeState, advise_for_each, advise_nodes,
};

use crate::{Failure, claims, host, inputs, time};
use libvirt_domains::AskingDomains;

/// Name of the program in whose place Pinfold answers, and of its entries in the log.
pub const NUMAD: &str = "numad";
const MIB: u64 = 1 << 20;
/// libvirt waits for the answer as long as it takes: numad itself needs two seconds.
const LIMIT: Duration = Duration::from_secs(2);

/// The nodes for a machine on this host, or on the one that `input` names.
///
/// # Errors
/// [`Failure`] if the host cannot be read.
pub fn advise(
    demand: NodeDemand,
    input: Option<&str>,
    state: Option<&str>,
    with_claims: bool,
) -> Result<NodeAdvice, Failure> {
    let live = host::live()?;
    let (topology, nodes) = read_nodes(&live, input, state, with_claims)?;
    Ok(advise_nodes(&topology, &nodes, demand))
}

/// The machine, and what is known about its nodes.
fn read_nodes(
    live: &LiveHost,
    input: Option<&str>,
    state: Option<&str>,
    with_claims: bool,
) -> Result<(Topology, NodeState), Failure> {
    let topology = inputs::topology(live, input)?;
    let known = match input {
        _ if !with_claims => Claims::default(),
        Some(input) => claims::of_input(live, input),
        None => claims::of_existing(live, state)?,
    };
    let mut nodes = NodeState { unbalanced: topology.isolated.clone(), ..NodeState::default() };
    if input.is_none() {
        nodes.distances = read_distances(live, &topology);
        machine_cpuset::exclude(live, &topology, &mut nodes);
    }
    // A machine that is defined but does not run uses nothing.
    for claim in known.all().iter().filter(|claim| claim.active) {
        if claim.owner.kind.sort == OwnerCategory::Partition {
            nodes.unbalanced.add(&claim.cpus);
        } else if claim.exclusivity.is_exclusive() {
            nodes.exclusive.add(&claim.cpus);
        } else if claim.exclusivity == Exclusivity::Shared {
            nodes.shared.add(&claim.cpus);
        }
    }
    Ok((topology, nodes))
}

/// In the environment of libvirtd: `true` to answer as if the host had no other owners of CPUs.
const IGNORE_CLAIMS: &str = "PINFOLD_IGNORE_CLAIMS";

/// Answers the command line of numad, as libvirt calls it: `-w VCPUS` or `-w VCPUS:MIB`. The
/// answer is a node list in any case, because libvirt does not start a machine without one; the
/// reason goes to the log. `Err` with a sentence for what only numad itself can do.
///
/// # Errors
/// The reason why this command line has no answer.
pub fn answer_as_numad(words: &[String]) -> Result<CpuSet, String> {
    // Other options, as of a wrapper, change nothing; the last of several requests counts.
    let request = match words.iter().rposition(|word| word.starts_with("-w")) {
        Some(at) if words[at] == "-w" => words.get(at + 1).map_or("", String::as_str),
        Some(at) => &words[at][2..],
        None => {
            return Err("only `numad -w VCPUS[:MIB]` is answered by Pinfold, which needs no \
                 daemon and moves no processes: see `pinfold help advise`"
                .to_owned());
        }
    };
    let begin = SystemClock.now_ns();
    let (nodes, reason) = answer_in_time(request);
    let ms = SystemClock.now_ns().saturating_sub(begin) / 1_000_000;
    let date = time::date(SystemClock.unix_seconds());
    log::write(NUMAD, &date, &format!("-w {request}: node {nodes}: {reason} ({ms} ms)"));
    Ok(nodes)
}

/// All nodes after a panic, and if the host cannot be read in time: neither may prevent the start of
/// a machine.
fn answer_in_time(request: &str) -> (CpuSet, String) {
    let (sender, receiver) = mpsc::channel();
    let owned = request.to_owned();
    std::thread::spawn(move || {
        // The receiver is gone after its timeout.
        let (Ok(()) | Err(_)) = sender.send(catch_unwind(|| numad_answer(&owned)));
    });
    let why = match receiver.recv_timeout(LIMIT) {
        Ok(Ok(answer)) => return answer,
        Ok(Err(_)) | Err(mpsc::RecvTimeoutError::Disconnected) => {
            "all nodes: an internal error, which is a bug in Pinfold".to_owned()
        }
        Err(mpsc::RecvTimeoutError::Timeout) => {
            format!("all nodes: the host could not be read within {} s", LIMIT.as_secs())
        }
    };
    (online_nodes(), why)
}

fn numad_answer(request: &str) -> (CpuSet, String) {
    let demand = match demand_of(request) {
        Ok(demand) => demand,
        Err(reason) => return (online_nodes(), format!("all nodes: {reason}")),
    };
    match advise_for_libvirt(demand) {
        Ok((advice, note)) if advice.nodes.is_empty() => {
            (online_nodes(), "all nodes".to_owned() + &note)
        }
        Ok((advice, note)) => (advice.node_set(), advice.reason + &note),
        Err(failure) => (online_nodes(), format!("all nodes: {}", failure.message)),
    }
}

/// The nodes for a machine of libvirt, with a note for the log.
fn advise_for_libvirt(demand: NodeDemand) -> Result<(NodeAdvice, String), Failure> {
    let live = host::live()?;
    let mut note = String::new();
    let ignores_claims = std::env::var(IGNORE_CLAIMS).is_ok_and(|value| value == "true");
    let (topology, nodes) = match read_nodes(&live, None, None, !ignores_claims) {
        Ok(found) => found,
        Err(failure) => {
            note = format!(" (the owners of CPUs are not known: {})", failure.message);
            read_nodes(&live, None, None, false)?
        }
    };
    let folder = libvirt_domains::definitions(process::own_uid(), &|key| std::env::var(key).ok());
    let asking = folder.map(|folder| libvirt_domains::asking(&live, &folder, demand));
    let AskingDomains { by_page_size: asking, unread } = asking.unwrap_or_default();
    if let Some(first) = unread.first() {
        let others = match unread.len() - 1 {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        note.push_str(&format!("; definitions that were not read: {first}{others}"));
    }
    let demands: Vec<NodeDemand> =
        asking.keys().map(|page_bytes| NodeDemand { page_bytes: *page_bytes, ..demand }).collect();
    if !demands.is_empty() {
        let names: Vec<String> = asking.into_values().flatten().collect();
        note.push_str(&format!("; for domain {}", names.join(" or ")));
    }
    let advice = advise_for_each(&topology, &nodes, &demands);
    Ok((advice.unwrap_or_else(|| advise_nodes(&topology, &nodes, demand)), note))
}

/// `VCPUS` or `VCPUS:MIB`.
fn demand_of(text: &str) -> Result<NodeDemand, String> {
    let (vcpus, memory) = text.split_once(':').unwrap_or((text, "0"));
    let vcpus = vcpus.trim().parse().map_err(|_| format!("{vcpus:?} is not a number of vCPUs"))?;
    if vcpus == 0 {
        return Err("a machine has at least 1 vCPU".to_owned());
    }
    let mib: u64 =
        memory.trim().parse().map_err(|_| format!("{memory:?} is not a number of MiB"))?;
    Ok(NodeDemand { vcpus, memory_bytes: mib.saturating_mul(MIB), page_bytes: None })
}

/// The nodes that are online; node 0 if the kernel does not report them.
fn online_nodes() -> CpuSet {
    let online = host::live().ok().and_then(|live| {
        let text = live.read_text(&paths::node_online()).ok()?;
        CpuSet::parse_list(text.trim()).ok()
    });
    online
        .filter(|nodes| !nodes.is_empty())
        .unwrap_or_else(|| [pinfold_model::PuId(0)].into_iter().collect())
}

/// The distances between the nodes as the firmware reports them; those that cannot be read are
/// left out.
fn read_distances(host: &dyn Host, topology: &Topology) -> NodeDistances {
    let mut ids: Vec<NodeId> = topology.nodes.iter().map(|node| node.id).collect();
    ids.sort_unstable();
    let mut distances = BTreeMap::new();
    for from in &ids {
        let path = paths::node_file(*from, "distance");
        let Ok(text) = host.read_text(&path) else { continue };
        let numbers: Vec<u32> =
            text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        // One number for each node that is online.
        if numbers.len() == ids.len() {
            distances.extend(ids.iter().zip(numbers).map(|(to, number)| ((*from, *to), number)));
        }
    }
    distances
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_libvirt_are_read_and_nonsense_gets_all_nodes() {
        let demand = demand_of("2:200").unwrap();
        assert_eq!((demand.vcpus, demand.memory_bytes), (2, 200 * MIB));
        assert_eq!(demand_of("4").unwrap().memory_bytes, 0);
        for wrong in ["", ":", "x", "2:x", "-1", "2:-1", "99999999999", "1:2:3", "0", "0:512"] {
            assert!(demand_of(wrong).is_err(), "{wrong}");
            assert_eq!(numad_answer(wrong).0, online_nodes());
        }
        assert_eq!(numad_answer("99999:99999999999999").0, online_nodes());
    }

    #[test]
    fn what_only_numad_can_do_is_refused() {
        for line in ["-i 15", "-D /dir", "-w", "-S 0", "-p 1"] {
            let answer = answer_as_numad(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
            assert!(line == "-w" || answer.is_err(), "{line}");
        }
    }
}
