//! The cases: what is tested in which host under test, and the results.
//!
//! Cases that need the same host share a boot, in an order in which each leaves the host as it
//! found it. After a failure the state of the host is not reliable, and the remaining cases are not
//! tried.

mod attached;
mod benchmarks;
mod disks;
mod etcd;
mod exits;
mod frequency;
mod gaps;
mod gov;
mod hotplug;
mod interleaved;
mod irqs;
mod isolate;
mod kill;
mod knobs;
mod libvirt;
mod longest;
mod nested;
mod package;
mod page_tables;
mod partition;
mod power;
mod quiet;
mod random_kills;
mod several;
mod shapes;
mod shares;
mod stall;
mod study;
mod study_guests;
mod systemd;
mod topology;
mod vnodes;

use std::cell::RefCell;

use interleaved::Manager;
use pinfold_host::files;
use pinfold_model::{CpuSet, Isa, Method};
pub use pinfold_vm::guest::Flavour;
use pinfold_vm::guest::{GuestKernel, fetch_kernel, flavour_of};
use random_kills::Kills;
pub use shapes::PlacedMachine;

use crate::error::LabError;
pub use crate::guest::{
    BIG, DISK_NUMA, EIGHT, FOUR, ISOLATED, NUMA, NUMA_SVM, ONE_SVM, ROOMY_FOUR, ROOMY_NUMA,
    ROOMY_SVM, SCALED, SMALL, STEADY, SVM, SVM_NUMA, TURNS_EIGHT, TURNS_NUMA, TURNS_ROOMY_NUMA,
    TWO, TWO_DIES,
};
use crate::guest::{Guest, Shape};
use crate::guest_files::GuestFiles;
use crate::stage::{Cgroups, LabHost};

/// Modules that a host under test may insert in addition to those of its port.
const MODULES: [&str; 15] = [
    "virtio_pci",
    "virtio_console",
    "virtio_blk",
    "irqbypass",
    "kvm",
    "kvm_amd",
    "tun",
    "vhost_net",
    "acpi_cpufreq",
    "cpufreq_userspace",
    // A file system, and the checksum for its blocks.
    "crc32c_generic",
    "ext4",
    // Networks of mininet.
    "veth",
    "bridge",
    "sch_netem",
];

/// The kernels that are booted, by their Debian metapackage and suite. The first two have the same
/// cpuset code; 6.2 and newer keep masks, 6.7 and newer have remote partitions, 7.0 and newer
/// accept an empty list for a group with tasks.
///
/// The last ones are for other instruction sets, with Debian 13's programs.
pub const FLAVOURS: [(Flavour, Extent); 7] = [
    (flavour("linux-image-cloud-amd64", None), Extent::Full),
    (flavour("linux-image-amd64", None), Extent::Fixed),
    (flavour("linux-image-cloud-amd64", Some("bookworm-backports")), Extent::Fixed),
    (flavour("linux-image-rt-amd64", Some("bookworm-backports")), Extent::Fixed),
    (flavour("linux-image-cloud-amd64", Some("trixie-backports")), Extent::Fixed),
    (flavour_of(Isa::Arm), Extent::Fixed),
    (flavour_of(Isa::Riscv), Extent::Fixed),
];

/// The kernel under which the longest plan is killed at every change.
pub const LONGEST: Flavour = FLAVOURS[2].0;

const fn flavour(package: &'static str, suite: Option<&'static str>) -> Flavour {
    Flavour { package, suite, isa: None }
}

/// Number of variants of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// A sample, for every run of the tests.
    Sample,
    /// A fixed part, for each kernel.
    Fixed,
    /// All variants.
    Full,
}

/// Result of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Passed; with a description of what was tested.
    Passed(String),
    /// Failed; with the location of the evidence.
    Failed(String),
    /// Not tried, for this reason.
    Skipped(String),
}

/// One host under test with its cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// Isolation, kills and tasks created in between, with this use of cgroups.
    Host(Cgroups),
    /// The topology of a shape as Pinfold sees it.
    Topology(Shape),
    /// Isolation once, on a shape.
    Placed(Shape, PlacedMachine),
    /// Three machines on one host.
    Several,
    /// The tunables of the host, on two NUMA nodes.
    Knobs,
    /// The cpu controller of cgroup version 1.
    Shares,
    /// All kinds of change in one plan, killed before each of them and at random times.
    Longest,
    /// CPUs that go offline, by the plan and while it is active.
    Hotplug,
    /// A machine under a real KVM.
    Nested,
    /// Page tables of a machine under that KVM, on two NUMA nodes.
    PageTables,
    /// Exits of a guest of that KVM, counted.
    Exits,
    /// Every command of `pinload`, and an offline CPU.
    Benchmarks,
    /// Gaps next to `runqslower`.
    Waits,
    /// Gaps next to rtla's analysis of timerlat.
    Timerlat,
    /// A study of near and far memory, and of neighbours on both nodes.
    FarMemory,
    /// A study on a host booted with isolated CPUs, at a fixed frequency.
    Isolated,
    /// A study of guests of that KVM, with their exits.
    Overhead,
    /// A study that moves all interrupts that can be moved.
    Interrupts,
    /// A study of near and far memory, of two guests on chosen nodes, and of a guest's far memory.
    NeighbourGuest,
    /// `quiet` and the profile `latency`, killed at random times.
    Quiet,
    /// The longest plan, with power cuts at calls that change the disk.
    PowerCuts,
    /// systemd as the manager of all groups.
    Systemd,
    /// Random sequences of units, placements, kills, and CPUs that go offline, under systemd.
    Interleaved,
    /// Random sequences of domains of a real libvirt.
    Domains,
    /// A real libvirt that asks Pinfold for NUMA nodes.
    Numad,
    /// The `.deb`, installed and removed under systemd.
    Package,
    /// Governor and limits of a cpufreq driver.
    Frequency,
    /// Virtual nodes slowed by a method; `gov` includes `freq`.
    Vnodes(Method),
    /// A container and units become part of vnodes, and the commands are killed at random times.
    Attached,
    /// Their limits are changed meanwhile.
    Changed,
    /// The limit of a vnode's disk.
    Disk,
    /// etcd on hosts of mininet that are vnodes.
    Etcd,
}

impl Case {
    /// All cases, in the order of the table.
    pub const ALL: [Case; 46] = [
        Case::Host(Cgroups::V1),
        Case::Host(Cgroups::V2Plain),
        Case::Host(Cgroups::V2Used),
        Case::Topology(SMALL),
        Case::Topology(NUMA),
        Case::Topology(TWO),
        Case::Topology(FOUR),
        Case::Topology(TWO_DIES),
        Case::Topology(BIG),
        Case::Placed(TWO, place_machine("low-latency-rt", 1, None)),
        Case::Placed(TWO_DIES, place_machine("l3-exclusive", 2, None)),
        Case::Placed(BIG, place_machine("numa-exclusive", 4, None)),
        Case::Placed(NUMA, place_machine("low-latency", 2, Some(7))),
        Case::Several,
        Case::Knobs,
        Case::Shares,
        Case::Longest,
        Case::Quiet,
        Case::PowerCuts,
        Case::Systemd,
        Case::Interleaved,
        Case::Domains,
        Case::Numad,
        Case::Package,
        Case::Frequency,
        Case::Hotplug,
        Case::Nested,
        Case::PageTables,
        Case::Exits,
        Case::Benchmarks,
        Case::Waits,
        Case::Timerlat,
        Case::FarMemory,
        Case::Isolated,
        Case::Overhead,
        Case::Interrupts,
        Case::NeighbourGuest,
        Case::Vnodes(Method::Hogs),
        Case::Vnodes(Method::Quota),
        Case::Vnodes(Method::Fracas),
        Case::Vnodes(Method::Stall),
        Case::Vnodes(Method::Gov),
        Case::Attached,
        Case::Changed,
        Case::Disk,
        Case::Etcd,
    ];

    /// Name for tables.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Case::Host(cgroups) => cgroups.name().to_owned(),
            Case::Topology(shape) => format!("topology: {}", shape.name),
            Case::Placed(shape, PlacedMachine { offline: None, .. }) => {
                format!("isolate, undo: {}", shape.name)
            }
            Case::Placed(shape, PlacedMachine { offline: Some(pu), .. }) => {
                format!("isolate, undo: {}, CPU {pu} offline", shape.name)
            }
            Case::Several => "three machines on one host".to_owned(),
            Case::Knobs => "tunables of the host".to_owned(),
            Case::Shares => "cpu controller, cgroup v1".to_owned(),
            Case::Longest => "longest plan".to_owned(),
            Case::Quiet => "quiet and latency, killed".to_owned(),
            Case::PowerCuts => "power cuts, longest plan".to_owned(),
            Case::Hotplug => "SMT and CPUs offline".to_owned(),
            Case::Nested => "real KVM, nested".to_owned(),
            Case::PageTables => "page tables, nested KVM on two nodes".to_owned(),
            Case::Exits => "exits, counted".to_owned(),
            Case::Benchmarks => "benchmarks".to_owned(),
            Case::Waits => "gaps, next to runqslower".to_owned(),
            Case::Timerlat => "gaps, next to rtla".to_owned(),
            Case::FarMemory => "study: far memory, neighbours".to_owned(),
            Case::Isolated => "study: isolcpus, kept frequency".to_owned(),
            Case::Overhead => "study: guests of a real KVM, exits".to_owned(),
            Case::Interrupts => "study: all movable interrupts".to_owned(),
            Case::NeighbourGuest => "study: figures 2 to 4 of Kuehn and Baum".to_owned(),
            Case::Systemd => "systemd".to_owned(),
            Case::Interleaved => "random sequences".to_owned(),
            Case::Domains => "random sequences, domains of libvirt".to_owned(),
            Case::Numad => "libvirt asks for NUMA nodes".to_owned(),
            Case::Package => "installation and removal".to_owned(),
            Case::Frequency => "cpufreq".to_owned(),
            Case::Vnodes(Method::Gov) => "vnodes: gov, freq".to_owned(),
            Case::Vnodes(method) => format!("vnodes: {method}"),
            Case::Attached => "vnodes: attach and down, killed".to_owned(),
            Case::Changed => "vnodes: attached, and limits changed".to_owned(),
            Case::Disk => "vnodes: disk limit".to_owned(),
            Case::Etcd => "vnodes: etcd on hosts of mininet".to_owned(),
        }
    }

    /// True if it can be tried with a kernel: hosts of other instruction sets have a subset of the
    /// cases.
    #[must_use]
    pub fn fits(self, flavour: &Flavour) -> bool {
        match (self, flavour.isa) {
            // The RISC-V board has no SMT.
            (Case::Topology(SMALL | NUMA), Some(Isa::Riscv)) => false,
            (Case::Topology(FOUR), isa) => isa == Some(Isa::Riscv),
            // Without a suite it is 6.1, which has no remote partitions.
            (Case::Longest, None) => flavour.suite.is_some(),
            // Before 6.2 an offline CPU makes the kernel forget masks.
            (Case::Interleaved, None) => flavour.suite.is_some(),
            // The disk does not depend on the kernel; volatile state is lost under each. Nor do
            // the package, libvirt and etcd. The tunables of the profile have cases of their own.
            (
                Case::Quiet
                | Case::PowerCuts
                | Case::Package
                | Case::Domains
                | Case::Numad
                | Case::Attached
                | Case::Etcd,
                _,
            ) => *flavour == LONGEST,
            // Only these builds have the tracer.
            (Case::Timerlat, _) => flavour.package.contains("-rt-"),
            (_, None) => true,
            (
                Case::Host(Cgroups::V2Plain | Cgroups::V2Used)
                | Case::Topology(SMALL | NUMA | TWO)
                | Case::Nested
                | Case::Exits
                | Case::Benchmarks,
                Some(_),
            ) => true,
            (_, Some(_)) => false,
        }
    }

    /// True if a complete run of the lab tries it with a kernel: the full build of 6.1 has the
    /// source of the cloud build, and only its modules show more.
    #[must_use]
    pub fn is_tried_with(self, flavour: &Flavour) -> bool {
        flavour.package != "linux-image-amd64"
            || matches!(self, Case::Nested | Case::Exits | Case::Systemd | Case::Frequency)
    }

    /// True if a complete run of the lab writes a row of this name under a kernel, which is named
    /// by its release (`6.1.0-56-cloud-amd64`) or, if it was not booted, by its package.
    pub(crate) fn is_in_whole_run(row: &str, kernel: &str) -> bool {
        let of_kernel = FLAVOURS.iter().filter(|(flavour, _)| kernel.ends_with(build_of(flavour)));
        // `-cloud-amd64` ends as `-amd64` does.
        let Some(longest) = of_kernel.clone().map(|(flavour, _)| build_of(flavour).len()).max()
        else {
            return false;
        };
        of_kernel.filter(|(flavour, _)| build_of(flavour).len() == longest).any(|(flavour, _)| {
            Self::ALL
                .iter()
                .any(|case| case.fits(flavour) && case.is_tried_with(flavour) && case.writes(row))
        })
    }

    /// A host writes one row for each of its cases.
    fn writes(self, row: &str) -> bool {
        let name = self.name();
        let rest = row.strip_prefix(&name);
        if matches!(self, Case::Host(_)) {
            rest.is_some_and(|what| what.starts_with(": "))
        } else {
            rest == Some("")
        }
    }

    /// The extent in a complete run of the lab with a kernel, where `usual` is the default: the
    /// longest plan is killed everywhere under one kernel that supports all of it.
    #[must_use]
    pub fn extent_with(self, flavour: &Flavour, usual: Extent) -> Extent {
        let is_long = matches!(
            self,
            Case::Longest
                | Case::Quiet
                | Case::PowerCuts
                | Case::Interleaved
                | Case::Domains
                | Case::Attached
        );
        if is_long && *flavour == LONGEST { Extent::Full } else { usual }
    }

    /// Boots the host and runs its cases; each result has the name of the case and the kernel.
    #[must_use]
    pub fn run(self, lab: &Lab) -> Vec<(String, String, Verdict)> {
        match self {
            Case::Host(cgroups) => lab.host(cgroups),
            Case::Topology(shape) => {
                lab.run_case(&shape, self.name(), |guest| topology::agrees(guest, &shape))
            }
            Case::Placed(shape, placed) => {
                lab.run_case(&shape, self.name(), |guest| shapes::isolate(guest, &placed))
            }
            Case::Several => lab.run_case(&TURNS_EIGHT, self.name(), several::place_apart),
            Case::Knobs => {
                lab.run_case(&DISK_NUMA, self.name(), |guest| knobs::set(guest, lab.extent))
            }
            Case::Shares => {
                lab.run_case(&SMALL, self.name(), |guest| shares::set(guest, lab.extent))
            }
            Case::Longest => lab.longest(self.name()),
            Case::Quiet => lab.quiet(self.name()),
            Case::PowerCuts => {
                let image = format!("{}/disk.img", lab.folder);
                lab.with(self.name(), |cargo: &GuestFiles| cargo.with_disk(&image), Lab::power_cuts)
            }
            Case::Hotplug => {
                lab.run_case(&TURNS_NUMA, self.name(), |guest| hotplug::smt(guest, lab.extent))
            }
            Case::Nested => lab.run_case(&SVM, self.name(), nested::kvm),
            Case::PageTables => lab.run_case(&SVM_NUMA, self.name(), page_tables::placed_and_left),
            Case::Exits => lab.run_case(&ONE_SVM, self.name(), exits::count_exits),
            Case::Benchmarks => lab.run_case(&TWO, self.name(), benchmarks::all),
            Case::Waits => lab.with(self.name(), GuestFiles::with_runqslower, Lab::waits),
            Case::Timerlat => lab.with(self.name(), GuestFiles::with_rtla, Lab::timerlat),
            Case::FarMemory => lab.run_case(&ROOMY_NUMA, self.name(), study::far_memory),
            Case::Isolated => lab.run_case(&ISOLATED, self.name(), study::check_isolation),
            Case::Overhead => lab.with(self.name(), GuestFiles::with_guests, Lab::overhead),
            Case::Interrupts => lab.run_case(&DISK_NUMA, self.name(), irqs::move_interrupts),
            Case::NeighbourGuest => lab.with(self.name(), GuestFiles::with_guests, Lab::neighbour),
            Case::Systemd => lab.with(self.name(), GuestFiles::with_systemd, |lab, name| {
                lab.run_case(&SMALL, name, systemd::keeps)
            }),
            Case::Interleaved => lab.interleaved(self.name(), Manager::Systemd),
            Case::Domains => lab.interleaved(self.name(), Manager::Libvirt),
            Case::Numad => lab.with(self.name(), GuestFiles::with_libvirt, |lab, name| {
                lab.run_case(&TURNS_ROOMY_NUMA, name, libvirt::place_in_numads_place)
            }),
            Case::Package => lab.with(self.name(), GuestFiles::with_package, |lab, name| {
                lab.run_case(&SMALL, name, package::installed_and_removed)
            }),
            Case::Frequency => {
                lab.run_case(&SCALED, self.name(), |guest| frequency::set(guest, lab.extent))
            }
            Case::Vnodes(Method::Gov) => lab.run_case(&SCALED, self.name(), gov::frequencies),
            Case::Vnodes(Method::Stall) => lab.run_case(&STEADY, self.name(), stall::stalls),
            Case::Vnodes(method) => {
                lab.run_case(&EIGHT, self.name(), |guest| vnodes::platform(guest, method))
            }
            Case::Attached => lab.with(self.name(), GuestFiles::with_systemd, Lab::attached),
            Case::Changed => lab.with(self.name(), GuestFiles::with_systemd, Lab::changed),
            Case::Disk => lab.disk(self.name()),
            Case::Etcd => lab.with(self.name(), GuestFiles::with_network, Lab::etcd),
        }
    }
}

fn build_of(flavour: &Flavour) -> &str {
    flavour.package.trim_start_matches("linux-image")
}

const fn place_machine(strategy: &'static str, vcpus: u32, offline: Option<u32>) -> PlacedMachine {
    PlacedMachine { strategy, vcpus, offline }
}

/// The data that all cases of a run share.
#[derive(Debug)]
pub struct Lab {
    cargo: GuestFiles,
    kernel: GuestKernel,
    folder: String,
    extent: Extent,
}

type Try = (&'static str, fn(&mut LabHost, Extent) -> Result<String, LabError>);

/// In this order, because each starts with the state that the previous one left.
const TRIES: [Try; 4] = [
    ("isolate, status, undo", isolate::isolate),
    ("partition", partition::partition),
    ("apply killed", kill::apply_killed),
    ("undo killed", kill::undo_killed),
];

/// A sample of them: kills, once for all uses of cgroups. The longest plan has a partition.
const FEW_TRIES: [Try; 3] = [TRIES[0], TRIES[2], TRIES[3]];

fn tries_of(extent: Extent, cgroups: Cgroups) -> &'static [Try] {
    match (extent, cgroups) {
        (Extent::Fixed | Extent::Full, _) => &TRIES,
        (Extent::Sample, Cgroups::V2Used) => &FEW_TRIES,
        (Extent::Sample, Cgroups::V1 | Cgroups::V2Plain) => &TRIES[..1],
    }
}

impl Lab {
    /// Downloads the kernel `flavour` and loads the programs; evidence of failures is written to
    /// `folder`.
    ///
    /// # Errors
    /// [`LabError`]; if [`LabError::is_skip`] is true, this machine cannot run the lab.
    pub fn open(
        pinfold: &str,
        flavour: &Flavour,
        folder: &str,
        extent: Extent,
    ) -> Result<Self, LabError> {
        let cache = format!("{}/lab", files::cache_dir()?);
        let cargo = GuestFiles::load(pinfold, flavour.isa, &cache)?;
        let kernel = fetch_kernel(&cache, flavour, &MODULES)?;
        Ok(Self { cargo, kernel, folder: folder.to_owned(), extent })
    }

    fn boot(&self, shape: &Shape, name: &str) -> Result<Guest, LabError> {
        let short: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
        Guest::boot(&self.cargo, &self.kernel, shape, &format!("{}/{short}", self.folder))
    }

    fn host(&self, cgroups: Cgroups) -> Vec<(String, String, Verdict)> {
        let package = self.kernel.package.clone();
        let shape = match self.cargo.isa() {
            Isa::X86 | Isa::Arm => SMALL,
            Isa::Riscv => FOUR,
        };
        let mut guest = match self.boot(&shape, cgroups.name()) {
            Ok(guest) => guest,
            Err(error) => return vec![(check_name("boot", cgroups), package, verdict(Err(error)))],
        };
        let release = guest.release.clone();
        let mut rows = Vec::new();
        // The host of a sample is also that of a case that needs a boot otherwise.
        if (self.extent, cgroups) == (Extent::Sample, Cgroups::V2Used) {
            let name = Case::Topology(shape).name();
            match topology::agrees(&mut guest, &shape) {
                Ok(text) => rows.push((name, release.clone(), Verdict::Passed(text))),
                Err(error) => return vec![(name, release, fail_case(guest, &error))],
            }
        }
        let mut stage = LabHost::new(guest, cgroups, exclusive(&shape));
        if let Err(error) = stage.set() {
            return vec![(check_name("stage", cgroups), release, fail_case(stage.guest, &error))];
        }
        let mut tries = tries_of(self.extent, cgroups).iter();
        for (what, run) in tries.by_ref() {
            match run(&mut stage, self.extent) {
                Ok(text) => {
                    rows.push((check_name(what, cgroups), release.clone(), Verdict::Passed(text)))
                }
                Err(error) => {
                    rows.push((
                        check_name(what, cgroups),
                        release.clone(),
                        fail_case(stage.guest, &error),
                    ));
                    let why = "the host is not trusted after a failure".to_owned();
                    rows.extend(tries.map(|(what, _)| {
                        (check_name(what, cgroups), release.clone(), Verdict::Skipped(why.clone()))
                    }));
                    return rows;
                }
            }
        }
        if let Err(error) = stage.guest.end() {
            rows.push((check_name("power off", cgroups), release, verdict(Err(error))));
        }
        rows
    }

    /// A case whose host has more files.
    fn with(
        &self,
        name: String,
        more: impl FnOnce(&GuestFiles) -> Result<GuestFiles, LabError>,
        run: impl FnOnce(&Self, String) -> Vec<(String, String, Verdict)>,
    ) -> Vec<(String, String, Verdict)> {
        match more(&self.cargo) {
            Ok(cargo) => {
                let (kernel, folder) = (self.kernel.clone(), self.folder.clone());
                run(&Self { cargo, kernel, folder, extent: self.extent }, name)
            }
            Err(error) => vec![(name, self.kernel.package.clone(), verdict(Err(error)))],
        }
    }

    /// A case with its own boot. If TCG caused a kernel failure ([`Guest::has_int3_panic`]), it is tried
    /// once more, and that is reported.
    fn run_case(
        &self,
        shape: &Shape,
        name: String,
        run: impl Fn(&mut Guest) -> Result<String, LabError>,
    ) -> Vec<(String, String, Verdict)> {
        let (release, first, was_upset) = self.try_once(shape, &name, &run);
        if !was_upset {
            return vec![(name, release, first)];
        }
        let (release, second, _) = self.try_once(shape, &name, &run);
        let verdict = match second {
            Verdict::Passed(text) => Verdict::Passed(format!(
                "{text}; at the second try: the guest's kernel had met a breakpoint of its own patching"
            )),
            other @ (Verdict::Failed(_) | Verdict::Skipped(_)) => other,
        };
        vec![(name, release, verdict)]
    }

    fn interleaved(&self, name: String, manager: Manager) -> Vec<(String, String, Verdict)> {
        let more: fn(&GuestFiles) -> Result<GuestFiles, LabError> = match manager {
            Manager::Systemd => GuestFiles::with_systemd,
            Manager::Libvirt => GuestFiles::with_libvirt,
        };
        let shape = match manager {
            Manager::Systemd => &TURNS_EIGHT,
            Manager::Libvirt => &TURNS_ROOMY_NUMA,
        };
        self.with(name, more, |lab, name| {
            lab.run_case(shape, name, |guest| interleaved::keep_order(guest, lab.extent, manager))
        })
    }

    fn longest(&self, name: String) -> Vec<(String, String, Verdict)> {
        let progress = RefCell::new(longest::Progress::new());
        self.in_boots(&TURNS_NUMA, name, &|| progress.borrow().count_kills(), &|guest| {
            longest::kill_longest(guest, self.extent, &mut progress.borrow_mut())
        })
    }

    fn quiet(&self, name: String) -> Vec<(String, String, Verdict)> {
        let kills = RefCell::new(Kills::new());
        self.in_boots(&DISK_NUMA, name, &|| kills.borrow().count_attempts(), &|guest| {
            quiet::kill_quiet(guest, self.extent, &mut kills.borrow_mut())
        })
    }

    fn overhead(&self, name: String) -> Vec<(String, String, Verdict)> {
        self.run_case(&ROOMY_SVM, name, study::overhead)
    }

    fn neighbour(&self, name: String) -> Vec<(String, String, Verdict)> {
        self.run_case(&NUMA_SVM, name, study_guests::check_places)
    }

    fn changed(&self, name: String) -> Vec<(String, String, Verdict)> {
        self.run_case(&FOUR, name, attached::survive_changes)
    }

    fn disk(&self, name: String) -> Vec<(String, String, Verdict)> {
        let image = format!("{}/limited.img", self.folder);
        self.with(
            name,
            |cargo: &GuestFiles| cargo.with_disk(&image),
            |lab, name| lab.run_case(&FOUR, name, disks::limited),
        )
    }

    fn attached(&self, name: String) -> Vec<(String, String, Verdict)> {
        let progress = RefCell::new(attached::Progress::new());
        self.in_boots(&FOUR, name, &|| progress.borrow().count_attempts(), &|guest| {
            attached::kill_attachments(guest, self.extent, &mut progress.borrow_mut())
        })
    }

    /// A case with many kills, in as many boots as necessary while each makes progress by `count`.
    fn in_boots(
        &self,
        shape: &Shape,
        name: String,
        count: &dyn Fn() -> usize,
        run: &dyn Fn(&mut Guest) -> Result<String, LabError>,
    ) -> Vec<(String, String, Verdict)> {
        let (mut boots, mut done) = (1, 0);
        loop {
            let (release, verdict, was_upset) = self.try_once(shape, &name, &run);
            let now = count();
            if was_upset && now > done {
                (boots, done) = (boots + 1, now);
                continue;
            }
            let verdict = match verdict {
                Verdict::Passed(text) if boots > 1 => Verdict::Passed(format!(
                    "{text}; in {boots} boots: the guest's kernel met breakpoints of its own patching"
                )),
                other @ (Verdict::Passed(_) | Verdict::Failed(_) | Verdict::Skipped(_)) => other,
            };
            return vec![(name, release, verdict)];
        }
    }

    fn waits(&self, name: String) -> Vec<(String, String, Verdict)> {
        self.run_case(&STEADY, name, gaps::next_to_runqslower)
    }

    fn timerlat(&self, name: String) -> Vec<(String, String, Verdict)> {
        self.run_case(&STEADY, name, gaps::next_to_rtla)
    }

    fn etcd(&self, name: String) -> Vec<(String, String, Verdict)> {
        self.run_case(&ROOMY_FOUR, name, etcd::follow_link_and_speed)
    }

    /// Each boot except the first recovers from a cut, and each except the last is cut.
    fn power_cuts(&self, name: String) -> Vec<(String, String, Verdict)> {
        let mut cuts = power::Cuts::new(self.extent);
        let mut upset = None;
        loop {
            let mut guest = match self.boot(&TURNS_NUMA, &name) {
                Ok(guest) => guest,
                Err(error) => {
                    return vec![(name, self.kernel.package.clone(), verdict(Err(error)))];
                }
            };
            let release = guest.release.clone();
            let verdict = match cuts.boot(&mut guest) {
                Ok(Some(text)) => verdict(guest.end().map(|()| text)),
                Ok(None) => match guest.cut() {
                    Ok(()) => continue,
                    Err(error) => verdict(Err(error)),
                },
                // The same cut is tried once more.
                Err(_)
                    if guest.has_int3_panic().is_ok_and(|is| is)
                        && upset != Some(cuts.count_cuts()) =>
                {
                    upset = Some(cuts.count_cuts());
                    continue;
                }
                Err(error) => fail_case(guest, &error),
            };
            return vec![(name, release, verdict)];
        }
    }

    /// The kernel, the result, and whether TCG caused a kernel failure.
    fn try_once(
        &self,
        shape: &Shape,
        name: &str,
        run: &impl Fn(&mut Guest) -> Result<String, LabError>,
    ) -> (String, Verdict, bool) {
        let mut guest = match self.boot(shape, name) {
            Ok(guest) => guest,
            Err(error) => return (self.kernel.package.clone(), verdict(Err(error)), false),
        };
        let release = guest.release.clone();
        match run(&mut guest) {
            Ok(text) => (release, verdict(guest.end().map(|()| text)), false),
            Err(error) => match guest.has_int3_panic() {
                Ok(was_upset) => (release, fail_case(guest, &error), was_upset),
                Err(lost) => (release, Verdict::Failed(format!("{error}\n  {lost}")), false),
            },
        }
    }
}

fn check_name(what: &str, cgroups: Cgroups) -> String {
    format!("{}: {what}", cgroups.name())
}

fn verdict(result: Result<String, LabError>) -> Verdict {
    match result {
        Ok(text) => Verdict::Passed(text),
        Err(error) if error.is_skip() => Verdict::Skipped(error.to_string()),
        Err(error) => Verdict::Failed(error.to_string()),
    }
}

/// A failure in a running guest: its evidence is kept. A missing feature of the guest is not a
/// failure.
fn fail_case(mut guest: Guest, error: &LabError) -> Verdict {
    if error.is_skip() {
        return match guest.end() {
            Ok(()) => Verdict::Skipped(error.to_string()),
            Err(lost) => Verdict::Failed(lost.to_string()),
        };
    }
    Verdict::Failed(match guest.keep_evidence(&error.to_string()) {
        Ok(folder) => format!("{error}\n  console and transcript: {folder}"),
        Err(lost) => format!("{error}\n  the evidence could not be kept: {lost}"),
    })
}

/// The CPUs that `balanced` reserves for the two vCPUs of the machine on a shape with four CPUs:
/// core 1 of two, or two cores.
fn exclusive(shape: &Shape) -> CpuSet {
    let pus = if shape.threads == 2 { [2, 3] } else { [1, 2] };
    pus.into_iter().map(pinfold_model::PuId).collect()
}
