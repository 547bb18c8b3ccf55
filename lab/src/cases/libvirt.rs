//! A real libvirt of the whole host, with its groups, on two NUMA nodes: it asks Pinfold in the
//! place of numad, and the vCPUs and the memory of its domains are on the node of the answer.

use pinfold_model::CpuSet;

use super::shapes::ROOT;
use crate::error::{LabError, expect_none};
use crate::guest::Guest;
use crate::isa::IDLE_ROM;
use crate::snapshot::{Snapshot, Task};

const LOG: &str = "/var/log/pinfold/numad.log";
/// The CPUs of each node of the shape, as the kernel writes them.
const NODES: [(&str, &str); 2] = [("0", "0-3"), ("1", "4-7")];

/// The daemon as a unit that leaves its domains alone, and Pinfold in the place of numad.
pub(super) const START_DAEMON: &str = "export LC_ALL=C
    mkdir -p /etc/libvirt/hooks /var/lib/libvirt /var/log
    [ -e /var/run ] || ln -s /run /var/run
    printf '%s:x:%s:/:/bin/sh\n' root 0:0: libvirt-qemu 64055:64055: > /etc/passwd
    printf '%s:\n' root:x:0 libvirt-qemu:x:64055 > /etc/group
    ln -sf /usr/bin/pinfold /usr/bin/numad
    printf '%s\\n' 'host_uuid = \"4dea22b3-1d52-d8f3-2516-782e98ab3fa0\"' 'auth_unix_rw = \"none\"' \
        'unix_sock_group = \"root\"' > /etc/libvirt/libvirtd.conf
    printf '%s\\n' 'stdio_handler = \"file\"' 'user = \"root\"' 'group = \"root\"' 'namespaces = []' \
        'security_driver = \"none\"' 'remember_owner = 0' > /etc/libvirt/qemu.conf
    printf '%s\n' '[Service]' ExecStart=/usr/bin/libvirtd KillMode=process \
        StandardError=file:/run/libvirtd.txt > /etc/systemd/system/libvirtd.service
    systemctl daemon-reload
    systemctl start libvirtd
    for i in $(seq 60); do virsh -q uri >/dev/null 2>&1 && break; usleep 200000; done
    timeout 20 virsh -q version || { cat /run/libvirtd.txt; find / -xdev -name '*libvirt*sock*'; exit 1; }";

/// Writes the file of a domain and starts it; its vCPUs halt in their first instruction.
const START: &str = "export LC_ALL=C
    echo \"<domain type='qemu'><name>NAME</name><memory unit='MiB'>MEMORY</memory>VCPUS
        <os><type arch='x86_64' machine='pc'>hvm</type><loader type='rom'>ROM</loader></os>
        <devices><emulator>/usr/bin/qemu-system-x86_64</emulator>
        <controller type='usb' model='none'/><memballoon model='none'/></devices></domain>\" > /run/NAME.xml
    virsh -q create /run/NAME.xml
    cat /run/libvirt/qemu/NAME.pid";

/// A domain of a number of vCPUs that float over the nodes of numad's answer.
struct Domain {
    name: &'static str,
    vcpus: u32,
    memory_mib: u32,
}

/// Where a started domain is: its process and the answer that libvirt was given.
struct Started {
    pid: u32,
    nodes: String,
}

pub(super) fn place_in_numads_place(guest: &mut Guest) -> Result<String, LabError> {
    guest.shell(START_DAEMON)?;
    let one = start(guest, &Domain { name: "one", vcpus: 2, memory_mib: 64 })?;
    expect_on_node(guest, &one)?;
    // Now two cores of a node have an owner.
    guest.pinfold(&["apply", "one", "--strategy", "low-latency"])?;
    let two = start(guest, &Domain { name: "two", vcpus: 3, memory_mib: 64 })?;
    expect_on_node(guest, &two)?;
    let taken = node_of(guest, &one)?;
    if two.nodes == taken {
        return Err(LabError::wrong("the node of a domain beside an exclusive one", two.nodes));
    }
    // The other node has the CPUs, and no memory for it.
    let fill = format!(
        "mkdir -p /run/fill; mount -t tmpfs -o mpol=bind:{},size=90% fill /run/fill
         free=$(awk '/MemFree/ {{print int($4 / 1024)}}' /sys/devices/system/node/node{}/meminfo)
         dd if=/dev/zero of=/run/fill/file bs=1M count=$((free - 200)) 2>/dev/null",
        two.nodes, two.nodes
    );
    guest.pinfold(&["undo", "one"])?;
    guest.shell(&fill)?;
    let three = start(guest, &Domain { name: "three", vcpus: 1, memory_mib: 300 })?;
    expect_on_node(guest, &three)?;
    if three.nodes == two.nodes {
        return Err(LabError::wrong("the node of a domain that does not fit", three.nodes));
    }
    guest.shell("umount /run/fill")?;
    let four = start(guest, &Domain { name: "four", vcpus: 6, memory_mib: 64 })?;
    if four.nodes != "0-1" {
        return Err(LabError::wrong("the nodes of 6 vCPUs", four.nodes));
    }
    guest.shell("for name in one two three four; do virsh -q destroy $name; done")?;
    let left = guest.run(&["/usr/bin/pinfold", "status"])?.stdout_text();
    if !left.contains("no placement is active") {
        return Err(LabError::wrong("what is left of Pinfold", left));
    }
    Ok(format!(
        "libvirt starts four domains: vCPUs and memory are on node {}, on node {} beside an \
         exclusive one of two cores, on node {} if the other has no memory, on both for six vCPUs",
        one.nodes, two.nodes, three.nodes
    ))
}

fn start(guest: &mut Guest, domain: &Domain) -> Result<Started, LabError> {
    let vcpus = format!("<vcpu placement='auto'>{}</vcpu>", domain.vcpus);
    let script = START
        .replace("VCPUS", &vcpus)
        .replace("MEMORY", &domain.memory_mib.to_string())
        .replace("NAME", domain.name)
        .replace("ROM", IDLE_ROM);
    let text = guest.shell(&script)?;
    let pid = text.trim().parse().map_err(|_| LabError::wrong("pid of a domain", text))?;
    let line = guest.shell(&format!("tail -n 1 {LOG}"))?;
    let asked = format!(" -w {}:{}: node ", domain.vcpus, domain.memory_mib);
    let nodes = line.split_once(&asked).and_then(|(_, rest)| rest.split(':').next());
    let nodes = nodes.ok_or_else(|| LabError::wrong("numad's last answer", line.clone()))?;
    Ok(Started { pid, nodes: nodes.to_owned() })
}

/// All vCPUs may use the CPUs of the answer's node, and the memory is bound to it.
fn expect_on_node(guest: &mut Guest, domain: &Started) -> Result<(), LabError> {
    let cpus = NODES.into_iter().find(|(node, _)| *node == domain.nodes).map(|(_, cpus)| cpus);
    let mut vcpus = vcpus_of(guest, domain)?;
    vcpus.retain(|(_, task)| Some(task.mask.to_string().as_str()) != cpus);
    let wrong = vcpus.iter().map(|(tid, task)| format!("task {tid} is on {}", task.mask));
    expect_none("a vCPU has not the CPUs of the answer", wrong.collect())?;
    let maps = guest.quiet_shell(&format!("cat /proc/{}/numa_maps", domain.pid))?;
    let bound = format!("bind:{}", domain.nodes);
    if maps.lines().any(|line| line.split(' ').nth(1) == Some(&bound)) {
        Ok(())
    } else {
        Err(LabError::wrong(format!("no memory has the policy {bound}"), maps))
    }
}

/// The node of a placed domain's first vCPU.
fn node_of(guest: &mut Guest, domain: &Started) -> Result<&'static str, LabError> {
    let vcpus = vcpus_of(guest, domain)?;
    let [(node, cpus), (other, _)] = NODES;
    let cpus = CpuSet::parse_list(cpus).unwrap_or_default();
    Ok(if vcpus[0].1.mask.is_subset(&cpus) { node } else { other })
}

fn vcpus_of(guest: &mut Guest, domain: &Started) -> Result<Vec<(u32, Task)>, LabError> {
    let mut threads = threads_of(guest, domain.pid)?;
    threads.retain(|(_, task)| task.name.starts_with("CPU "));
    if threads.is_empty() {
        return Err(LabError::wrong("vCPUs", format!("process {} has none", domain.pid)));
    }
    Ok(threads)
}

/// The threads of a process; libvirt starts QEMU in a process group of another number.
pub(super) fn threads_of(guest: &mut Guest, pid: u32) -> Result<Vec<(u32, Task)>, LabError> {
    let text = guest.shell(&format!("ls /proc/{pid}/task"))?;
    let mut tasks = Snapshot::take(guest, ROOT, false)?.tasks;
    let tids = text.split_whitespace().filter_map(|tid| tid.parse().ok());
    Ok(tids.filter_map(|tid| tasks.remove_entry(&tid)).collect())
}
