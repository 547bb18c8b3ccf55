//! The part of the page about what the kernel counts, and about vnodes.

use pinfold_top::VnodeSample;

use super::exposition::{head, line, seconds};
use super::kernel::HostUse;
use super::label;
use super::usage::{MachineUse, labels};

/// The part of the page about what the kernel counts.
pub(super) fn page(text: &mut String, host: &HostUse, machines: &[MachineUse]) {
    let name = "pinfold_host_steal_seconds_total";
    head(text, name, "counter", "Time that the hypervisor below took from a CPU of the host");
    for (cpu, ns) in &host.steal_ns {
        line(text, name, &format!("cpu=\"{cpu}\""), &seconds(*ns));
    }
    let name = "pinfold_thread_migrations_total";
    head(text, name, "counter", "How often the threads of a role were moved to another CPU");
    for one in machines {
        for (kind, times) in one.times.by_kind() {
            if let Some(count) = times.migrations {
                let labels = format!("{},role=\"{kind}\"", labels(one));
                line(text, name, &labels, &count.to_string());
            }
        }
    }
    let name = "pinfold_vcpu_exits_total";
    head(text, name, "counter", "Exits of the vCPUs of a machine under KVM, by reason");
    for one in machines {
        for (reason, count) in &one.times.exits {
            let labels = format!("{},reason=\"{}\"", labels(one), label(reason));
            line(text, name, &labels, &count.to_string());
        }
    }
    speeds(text, "requested", host, &|sample| Some(sample.requested));
    speeds(text, "achieved", host, &|sample| sample.achieved);
}

fn speeds(
    text: &mut String,
    which: &str,
    host: &HostUse,
    speed: &dyn Fn(&VnodeSample) -> Option<f64>,
) {
    let name = format!("pinfold_vnode_{which}_speed_ratio");
    head(text, &name, "gauge", &format!("The {which} speed of a CPU of a vnode, 1 is full speed"));
    for sample in &host.speeds {
        if let Some(value) = speed(sample) {
            let labels = format!("vnode=\"{}\",cpu=\"{}\"", label(&sample.name), sample.cpu);
            line(text, &name, &labels, &value.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use pinfold_host::SnapshotHost;
    use pinfold_model::Tid;

    use super::super::kernel::{exits, migrations, steal};
    use super::*;

    #[test]
    fn counters_of_the_kernel_are_read_and_have_their_lines() {
        let mut tree = SnapshotHost::new();
        tree.insert_file("/proc/stat", "cpu 1 0 0 0 0 0 0 9\ncpu1 1 2 3 4 5 6 7 8 9\nintr 5\n");
        let folder = "/sys/kernel/debug/kvm/42-11";
        for (name, count) in [("exits", 100), ("io_exits", 60), ("irq_window_exits", 7)] {
            tree.insert_file(&format!("{folder}/{name}"), format!("{count}\n"));
        }
        tree.insert_file("/sys/kernel/debug/kvm/421-3/exits", "5\n");
        assert_eq!(migrations("a : 1\nse.nr_migrations      :    233\n"), Some(233));
        assert_eq!(migrations("a : 1\n"), None);
        let mut machine = MachineUse { id: "a".to_owned(), ..MachineUse::default() };
        machine.times.exits = exits(&tree, Tid(42));
        assert!(exits(&tree, Tid(4)).is_empty());
        let slow =
            VnodeSample { name: "n".to_owned(), cpu: 1, requested: 0.5, achieved: Some(0.25) };
        let speeds = vec![slow.clone(), VnodeSample { cpu: 2, achieved: None, ..slow }];
        let host = HostUse { steal_ns: steal(&tree), speeds };
        let mut text = String::new();
        page(&mut text, &host, &[machine]);
        let values: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let exits = "pinfold_vcpu_exits_total{id=\"a\",vm=\"\",reason=";
        let expected = [
            "pinfold_host_steal_seconds_total{cpu=\"1\"} 0.080000000".to_owned(),
            format!("{exits}\"io\"}} 60"),
            format!("{exits}\"irq-window\"}} 7"),
            format!("{exits}\"other\"}} 33"),
            "pinfold_vnode_requested_speed_ratio{vnode=\"n\",cpu=\"1\"} 0.5".to_owned(),
            "pinfold_vnode_requested_speed_ratio{vnode=\"n\",cpu=\"2\"} 0.5".to_owned(),
            "pinfold_vnode_achieved_speed_ratio{vnode=\"n\",cpu=\"1\"} 0.25".to_owned(),
        ];
        assert_eq!(values, expected);
    }
}
