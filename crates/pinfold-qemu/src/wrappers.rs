//! Wrappers: programs that start another one. Finds where their arguments end and QEMU's begin.
//!
//! ```text
//! sudo -u vm env A=1 numactl -m 0 --cpunodebind 0 chrt -f 10 qemu-system-x86_64 -m 64
//! ```
//! For each wrapper only two things matter: which of its options take the next argument as their
//! value, and how many operands precede the command.

use pinfold_model::command::split_words;

use crate::program::is_qemu;

/// A program that starts the command after its own arguments.
struct Wrapper {
    name: &'static str,
    /// Letters of short options with a value.
    short: &'static str,
    /// Long options whose value is the next argument, if it is not joined by `=`.
    long: &'static [&'static str],
    /// The operands between the options and the command.
    operand: Operand,
}

/// Operands: arguments of a wrapper that are not options.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Operand {
    None,
    /// Any number of `NAME=VALUE`.
    Assignments,
    /// Exactly one, of any form.
    One,
    /// A number, which newer versions allow to be omitted.
    Number,
    /// `ip`: all up to `exec`, and the name of a network namespace or VRF.
    Exec,
}

const fn wrapper(
    name: &'static str,
    short: &'static str,
    long: &'static [&'static str],
    operand: Operand,
) -> Wrapper {
    Wrapper { name, short, long, operand }
}

const WRAPPERS: [Wrapper; 31] = [
    wrapper("sudo", "CDghpRrtTuUa", &SUDO, Operand::Assignments),
    wrapper("doas", "uCa", &[], Operand::None),
    wrapper("runuser", "ugGcsTw", &RUNUSER, Operand::None),
    wrapper("pkexec", "", &["user"], Operand::None),
    wrapper("env", "uCS", &["unset", "chdir", "split-string"], Operand::Assignments),
    wrapper("nice", "n", &["adjustment"], Operand::None),
    wrapper("ionice", "cn", &["class", "classdata"], Operand::None),
    wrapper("chrt", "TPD", &["sched-runtime", "sched-period", "sched-deadline"], Operand::Number),
    wrapper("taskset", "", &[], Operand::One),
    wrapper("numactl", "ipPwCcNmSILofM", &NUMACTL, Operand::None),
    wrapper("unshare", "RwSGl", &UNSHARE, Operand::None),
    wrapper("nsenter", "tSG", &["target", "setuid", "setgid"], Operand::None),
    wrapper("setpriv", "", &SETPRIV, Operand::None),
    wrapper("prlimit", "op", &["output", "pid"], Operand::None),
    wrapper("choom", "np", &["adjust", "pid"], Operand::None),
    wrapper("uclampset", "mMp", &["pid"], Operand::None),
    wrapper("cgexec", "g", &[], Operand::None),
    wrapper("ip", "nf", &["netns", "family"], Operand::Exec),
    wrapper("systemd-run", "CHMEpu", &SYSTEMD_RUN, Operand::None),
    wrapper("systemd-inhibit", "", &["what", "who", "why", "mode"], Operand::None),
    wrapper("timeout", "ks", &["kill-after", "signal"], Operand::One),
    wrapper("time", "fo", &["format", "output"], Operand::None),
    wrapper("stdbuf", "ioe", &["input", "output", "error"], Operand::None),
    wrapper("nohup", "", &[], Operand::None),
    wrapper("setsid", "", &[], Operand::None),
    wrapper("chroot", "", &["groups", "userspec"], Operand::One),
    wrapper("dbus-run-session", "", &["dbus-daemon", "config-file"], Operand::None),
    wrapper("xvfb-run", "efnps", &XVFB_RUN, Operand::None),
    wrapper("gamemoderun", "", &[], Operand::None),
    wrapper("mangohud", "", &[], Operand::None),
    wrapper("prime-run", "", &[], Operand::None),
];

const SUDO: [&str; 11] = [
    "chdir",
    "chroot",
    "close-from",
    "command-timeout",
    "group",
    "host",
    "other-user",
    "prompt",
    "role",
    "type",
    "user",
];
const RUNUSER: [&str; 6] =
    ["user", "group", "supp-group", "command", "shell", "whitelist-environment"];
const NUMACTL: [&str; 15] = [
    "interleave",
    "weighted-interleave",
    "preferred",
    "preferred-many",
    "physcpubind",
    "cpubind",
    "cpunodebind",
    "membind",
    "shm",
    "shmid",
    "length",
    "offset",
    "file",
    "shmmode",
    "touch-node",
];
const UNSHARE: [&str; 13] = [
    "root",
    "wd",
    "setuid",
    "setgid",
    "propagation",
    "setgroups",
    "map-user",
    "map-group",
    "map-users",
    "map-groups",
    "monotonic",
    "boottime",
    "load-interp",
];
const SETPRIV: [&str; 17] = [
    "ambient-caps",
    "apparmor-profile",
    "bounding-set",
    "egid",
    "euid",
    "groups",
    "inh-caps",
    "landlock-access",
    "landlock-rule",
    "pdeathsig",
    "regid",
    "reuid",
    "rgid",
    "ruid",
    "seccomp-filter",
    "securebits",
    "selinux-label",
];
const SYSTEMD_RUN: [&str; 22] = [
    "background",
    "capsule",
    "description",
    "gid",
    "host",
    "job-mode",
    "machine",
    "nice",
    "on-active",
    "on-boot",
    "on-calendar",
    "on-startup",
    "on-unit-active",
    "on-unit-inactive",
    "path-property",
    "property",
    "service-type",
    "setenv",
    "slice",
    "socket-property",
    "uid",
    "unit",
];
const XVFB_RUN: [&str; 5] =
    ["error-file", "auth-file", "server-num", "xauth-protocol", "server-args"];

/// The last component of a path.
fn base(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

/// Index of QEMU's program; the number of arguments if there is none. The string of `env -S` is
/// split in place, so that every argument of QEMU is one element.
pub(super) fn program_at(words: &mut Vec<String>) -> usize {
    let mut at = 0;
    while let Some(wrapper) =
        words.get(at).and_then(|word| WRAPPERS.iter().find(|known| known.name == base(word)))
    {
        at = wrapper.command_at(words, at + 1);
    }
    // A program of another name may be an unknown wrapper. The argument of `sh -c
    // "qemu-system-x86_64 …"` is a text, not a program.
    let is_text = |word: &String| word.contains('=') || word.contains(char::is_whitespace);
    let further = words.get(at..).and_then(|rest| {
        rest.iter().position(|word: &String| !is_text(word) && is_surely_qemu(base(word)))
    });
    match words.get(at) {
        Some(program) if !is_qemu_name(base(program)) => at + further.unwrap_or(0),
        Some(_) | None => at,
    }
}

/// True if the systemd service manager would start QEMU, which is then no child and does not end
/// with Pinfold.
pub(super) fn hands_over(wrapper: &[String]) -> bool {
    let runs = wrapper.iter().any(|word| base(word) == "systemd-run");
    runs && !wrapper.iter().any(|word| word == "--scope")
}

/// True for QEMU names that are not also names of users or groups (such as `kvm`).
fn is_surely_qemu(name: &str) -> bool {
    is_qemu(name) && name != "kvm"
}

/// True for all names of QEMU's system emulator.
fn is_qemu_name(name: &str) -> bool {
    is_qemu(name) || name == "qemu"
}

impl Wrapper {
    /// Index of the command that the wrapper starts; its own arguments begin at `at`.
    fn command_at(&self, words: &mut Vec<String>, mut at: usize) -> usize {
        while let Some(word) = words.get(at).cloned() {
            if word == "--" {
                at += 1;
                break;
            }
            if let Some(split) = self.split_string(words, at) {
                words.splice(at..at + split.taken, split.words);
                continue;
            }
            match word.strip_prefix("--") {
                Some(long) if self.long.contains(&long) => at += 2,
                Some(_) => at += 1,
                // `env -`, bundled options (`-nu`), or a joined value (`-n5`).
                None if word.starts_with('-') => {
                    let mut letters = word.chars().skip(1);
                    let with_value = letters.find(|letter| self.short.contains(*letter));
                    let joined = letters.next().is_some();
                    at += if with_value.is_some() && !joined { 2 } else { 1 };
                }
                None if self.operand == Operand::Assignments && word.contains('=') => at += 1,
                None => break,
            }
        }
        at + self.operands(words.get(at..).unwrap_or_default())
    }

    /// Number of operands before the command.
    fn operands(&self, rest: &[String]) -> usize {
        match self.operand {
            Operand::None | Operand::Assignments => 0,
            Operand::One => rest.len().min(1),
            Operand::Number => usize::from(
                rest.first()
                    .is_some_and(|word: &String| word.bytes().all(|byte| byte.is_ascii_digit())),
            ),
            Operand::Exec => {
                let exec = rest.iter().position(|word| word == "exec");
                let after = exec.map_or(rest.len(), |exec| exec + 1);
                // With -all there is no name.
                let named = rest.get(after).is_some_and(|word| !is_surely_qemu(base(word)));
                after + usize::from(named)
            }
        }
    }

    /// The arguments that `env -S STRING` makes of its string.
    fn split_string(&self, words: &[String], at: usize) -> Option<Split> {
        let word = words.get(at).filter(|_| self.name == "env")?;
        fn join_words(text: &str) -> Split {
            Split { words: split_words(text), taken: 1 }
        }
        if let Some(text) = word.strip_prefix("--split-string=") {
            return Some(join_words(text));
        }
        let bundle = word.strip_prefix('-').filter(|rest| !rest.starts_with('-'));
        match bundle.and_then(|bundle| bundle.split_once('S')) {
            // If an option with a value precedes it (`-uSHELL`), the `S` is part of that value.
            Some((before, _)) if before.contains(['u', 'C']) => None,
            Some((_, text)) if !text.is_empty() => Some(join_words(text)),
            None if word != "--split-string" => None,
            Some(_) | None => Some(Split { words: split_words(words.get(at + 1)?), taken: 2 }),
        }
    }
}

/// Replacement for some arguments.
struct Split {
    words: Vec<String>,
    /// Number of arguments that it replaces.
    taken: usize,
}
