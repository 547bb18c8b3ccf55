//! Profiles: named sets of tunables that a running host can change.

/// A profile.
#[derive(Debug)]
pub struct Profile {
    /// Its name on the command line.
    pub name: &'static str,
    /// Its tunables.
    pub rows: &'static [ProfileRow],
}

/// A tunable of a profile.
#[derive(Debug)]
pub struct ProfileRow {
    /// In the syntax of `--tunable`.
    pub words: &'static str,
    /// Why the profile sets it.
    pub reason: &'static str,
    /// The first version of the kernel that has it, if its file does not show that.
    pub since: Option<(u32, u32)>,
}

impl ProfileRow {
    /// The part before `=`.
    pub fn key(&self) -> &'static str {
        self.words.split_once('=').map_or(self.words, |(key, _)| key)
    }
}

/// All profiles.
pub static PROFILES: [Profile; 2] = [NONE, LATENCY];

const NONE: Profile = Profile { name: "none", rows: &[] };

const LATENCY: Profile = Profile {
    name: "latency",
    rows: &[
        row("new-irqs=housekeeping", "new interrupts begin on the host's CPUs"),
        row("workqueues=housekeeping", "unbound kernel work stays on the host's CPUs"),
        row("writeback=housekeeping", "dirty pages are written by the host's CPUs"),
        row("watchdog-cpus=housekeeping", "lockup detectors interrupt only the host's CPUs"),
        row("timer-migration=off", "timers of other CPUs do not move here"),
        row("stat-interval=10", "memory statistics interrupt each CPU less often"),
        row("numa-balancing=off", "no page faults from sampling"),
        row("khugepaged-defrag=off", "no page moves in the background"),
        row("ksm=stop", "no page is merged and copied again"),
        row("halt-poll-ns=400000", "short halts of a vCPU end without a wake-up"),
        row("wake-up-us=20", "no deep idle state"),
        row("governor=performance", "the frequency does not follow the load"),
        ProfileRow {
            words: "policy:vcpu=slice:500",
            reason: "a vCPU that wakes up runs before tasks with longer slices",
            since: Some((6, 12)),
        },
    ],
};

const fn row(words: &'static str, reason: &'static str) -> ProfileRow {
    ProfileRow { words, reason, since: None }
}

/// The profile with this name.
#[must_use]
pub fn by_name(name: &str) -> Option<&'static Profile> {
    PROFILES.iter().find(|profile| profile.name == name)
}
