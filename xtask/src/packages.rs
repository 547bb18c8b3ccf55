//! Installs Debian packages if it may, else prints the command and continues.
//!
//! On other distributions it only prints the command.

mod names;

use std::process::{Command, Stdio};

use names::{
    Family, Package, BENCH, BPF, BUILD, CROSS, DIST, FOREIGN, FUZZ, GUEST, LAB, SLURM, STATIC, TEST,
};

/// How long apt-get waits for a lock that another one has (seconds).
const APT_LOCK_TIMEOUT: &str = "DPkg::Lock::Timeout=600";
/// apt starts services of these packages, which are not wanted.
const SERVICES: &[&str] = &["munge", "prometheus", "slurmctld", "slurmd"];

/// What the packages are for.
pub enum Purpose {
    /// Running the benchmarks.
    Bench,
    /// Compiling BPF programs.
    Bpf,
    /// Compiling Pinfold and its tests.
    Build,
    /// Building and running the demo.
    Demo,
    /// Making and checking packages of Pinfold.
    Dist,
    /// Fuzzing the parsers.
    Fuzz,
    /// Running the lab.
    Lab,
    /// Building the static binary.
    Static,
    /// Running the tests, which include a part of the lab.
    Test,
}

impl Purpose {
    /// The packages, each once.
    fn packages(&self) -> Vec<&'static Package> {
        let more: &[&[Package]] = match self {
            Purpose::Build => return BUILD.iter().collect(),
            Purpose::Demo => &[],
            Purpose::Bpf => &[BPF],
            Purpose::Fuzz => &[FUZZ],
            Purpose::Static => &[STATIC],
            Purpose::Dist => &[STATIC, DIST],
            Purpose::Lab => &[LAB, CROSS, FOREIGN],
            Purpose::Test => &[LAB, TEST, CROSS, FOREIGN, SLURM],
            Purpose::Bench => &[LAB, TEST, BENCH],
        };
        [BUILD, GUEST].iter().chain(more).flat_map(|list| list.iter()).collect()
    }
}

/// Prints and installs the packages that are missing for `purpose`. Never fails: packages that
/// cannot be installed are printed, and the work continues without them.
pub fn ensure(purpose: &Purpose) {
    let family = Family::here();
    let mut missing: Vec<&str> = Vec::new();
    for name in purpose.packages().into_iter().map(|package| family.name(package)) {
        if !name.is_empty() && !missing.contains(&name) && !installed(family, name) {
            missing.push(name);
        }
    }
    if missing.is_empty() {
        return;
    }
    let line = format!("{} {}", family.install(), missing.join(" "));
    match prefix().filter(|_| family == Family::Debian) {
        Some(prefix) => install(prefix, &missing, &line),
        None => {
            println!("Missing packages, which are not installed automatically here. Run, then come back:");
            println!("  sudo {}", line);
        }
    }
}

/// What makes a command run as root, if it may: nothing, or `sudo -n`.
pub fn prefix() -> Option<&'static [&'static str]> {
    match (is_root(), sudo()) {
        (true, _) => Some(&[]),
        (false, true) => Some(&["sudo", "-n"]),
        (false, false) => None,
    }
}

/// Installs with apt-get, after it printed what and how much.
fn install(prefix: &[&str], missing: &[&str], line: &str) {
    fn succeeds(mut command: Command) -> bool {
        matches!(command.stdout(Stdio::null()).status(), Ok(status) if status.success())
    }
    let with_packages = |words: &[&'static str]| run_apt(&[words, missing].concat(), prefix);
    println!("Installing: {}", missing.join(" "));
    let is_fresh = succeeds(run_apt(&["update"], prefix));
    // Answered with "no", apt says how much it would be.
    let asked = with_packages(&["--assume-no", "install", "--no-install-recommends"]).output();
    let asked = asked.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    sizes(&asked.unwrap_or_default()).iter().for_each(|size| println!("  {}", size));
    if !(is_fresh && succeeds(with_packages(&["-y", "install", "--no-install-recommends"]))) {
        println!("apt-get could not install all of them; the line to run by hand is");
        println!("  {}", line);
    }
    for service in SERVICES.iter().filter(|service| missing.contains(service)) {
        stop(prefix, service);
    }
}

fn run_apt(arguments: &[&str], prefix: &[&str]) -> Command {
        let mut words: Vec<&str> = prefix.to_vec();
        words.extend(["env", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C", "apt-get", "-q"]);
        // Another apt may be at work, such as the daily update: without this, apt-get fails at
        // once.
        words.extend(["-o", APT_LOCK_TIMEOUT]);
        words.extend(arguments);
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        command
    }

/// The lines of apt-get about numbers of packages and sizes.
fn sizes(text: &str) -> Vec<&str> {
    let starts = ["Need to get ", "After this operation, "];
    let lines = text.lines();
    lines
        .filter(|line| {
            starts.iter().any(|start| line.starts_with(start)) || line.contains(" newly installed")
        })
        .collect()
}

/// Stops a service that came with a package, now and at the next boot. Without systemd, or if a
/// policy prevented its start, there is nothing to stop.
fn stop(prefix: &[&str], service: &str) {
    let mut words: Vec<&str> = prefix.to_vec();
    words.extend(["systemctl", "--quiet", "disable", "--now", service]);
    fn quiet() -> Stdio {
        Stdio::null()
    }
    let ended = Command::new(words[0]).args(&words[1..]).stdout(quiet()).stderr(quiet()).status();
    if matches!(ended, Ok(status) if status.success()) {
        println!("The service {} is stopped and disabled: the tests start their own", service);
    }
}

fn installed(family: Family, package: &str) -> bool {
    let [program, option] = family.query();
    let mut command = Command::new(program);
    command.arg(option);
    if family == Family::Debian {
        command.arg("--showformat=${Status}");
    }
    let output = command.arg(package).stderr(Stdio::null()).output();
    output.map_or(false, |output| match family {
        // A removed package may still have its settings.
        Family::Debian => output.stdout.ends_with(b"ok installed"),
        Family::Fedora | Family::Arch | Family::Suse => output.status.success(),
    })
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().map(|o| o.stdout == b"0\n").unwrap_or(false)
}

fn sudo() -> bool {
    Command::new("sudo")
        .args(["-n", "true"])
        .stderr(Stdio::null())
        .status()
        .map(|status| status.success())
        .unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::sizes;

    #[test]
    fn apt_says_how_much() {
        let text = "Reading package lists...\nThe following NEW packages will be installed:\n  fish\n\
            0 upgraded, 1 newly installed, 0 to remove and 4 not upgraded.\n\
            Need to get 12.3 MB of archives.\nAfter this operation, 45 MB of additional disk space will be used.\n\
            Do you want to continue? [Y/n] N\nAbort.\n";
        assert_eq!(sizes(text).len(), 3);
        assert!(sizes(text)[1].contains("12.3 MB"));
    }
}
