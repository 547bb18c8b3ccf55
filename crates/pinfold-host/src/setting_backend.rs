//! Interfaces to programs that manage settings of the host.
//!
//! A [`SettingBackend`] is a client of one such program. The systemd client is here, because any
//! host may have systemd; the libvirt client is in the crate for virtual machines. Both run child
//! processes with separate arguments, without a shell.
//!
//! The child processes are killed when Pinfold is killed: otherwise one could make its change after
//! an `undo` has compared the values and finished. The thread that starts a child also waits for
//! it, because the kernel's parent-death signal refers to that thread. The managing program may
//! still complete a request that it has already received.

use std::fmt::Debug;

use pinfold_model::{CpuSet, Lifetime, Setting, SettingManager, SettingsFile};

use crate::{Host, HostError, files, paths, process};

/// A client of a program that manages settings.
pub trait SettingBackend: Debug + Send + Sync {
    /// True if this client is responsible for the program.
    fn is(&self, keeper: &SettingManager) -> bool;

    /// Reads the value; `None` if the setting has none.
    ///
    /// # Errors
    /// [`HostError::Kept`] with the program's error message, or if the client cannot be run.
    fn get(&self, setting: &Setting) -> Result<Option<String>, HostError>;

    /// Changes the value; `None` removes it.
    ///
    /// # Errors
    /// As [`SettingBackend::get`].
    fn set(&self, setting: &Setting, value: Option<&str>) -> Result<(), HostError>;

    /// The files in which the program stores the setting. Empty unless they have to be restored in
    /// addition to the value.
    ///
    /// # Errors
    /// [`HostError`] if a file exists and cannot be read.
    fn files(&self, _setting: &Setting) -> Result<Vec<SettingsFile>, HostError> {
        Ok(Vec::new())
    }

    /// Restores such files and makes the program reload them; true if one differed.
    ///
    /// # Errors
    /// [`HostError`]; [`HostError::Kept`] with the program's error message.
    fn put_files(&self, _setting: &Setting, _files: &[SettingsFile]) -> Result<bool, HostError> {
        Ok(false)
    }
}

/// CPU lists of systemd units, through `systemctl`.
///
/// ```text
/// systemctl show --property=LoadState --property=AllowedCPUs -- system.slice
/// systemctl set-property --runtime -- system.slice AllowedCPUs=0-1
/// ```
///
/// `set-property` creates a drop-in that takes precedence over the unit file. The drop-in stays
/// even if the value is removed or set to that of the unit file. Pinfold therefore restores the
/// drop-in and reloads the units.
///
/// <https://www.freedesktop.org/software/systemd/man/latest/systemd.resource-control.html>
#[derive(Clone, Debug)]
pub struct Systemd {
    program: String,
    timeout_ns: u64,
    /// Prefix of its files' paths; empty except in tests.
    root: String,
}

impl Systemd {
    /// A client with a timeout per call, in nanoseconds.
    pub fn new(timeout_ns: u64) -> Self {
        Self { program: "systemctl".to_owned(), timeout_ns, root: String::new() }
    }

    /// Uses another program with the interface of `systemctl`.
    #[must_use]
    pub fn with_program(mut self, program: &str) -> Self {
        program.clone_into(&mut self.program);
        self
    }

    /// Uses files below another directory than `/`.
    #[must_use]
    pub fn with_root(mut self, root: &str) -> Self {
        root.clone_into(&mut self.root);
        self
    }

    fn drop_ins(&self, setting: &Setting) -> Result<Vec<String>, HostError> {
        let Setting { object, key, lifetime, .. } = setting;
        if !Self::is_unit(object) {
            return Err(fault(setting, INVALID_UNIT_NAME.to_owned()));
        }
        let all = paths::systemd_drop_ins(object, key, *lifetime);
        Ok(all.map(|path| format!("{}{path}", self.root)).into())
    }

    /// True if systemd is the init system and thus manages the cgroup tree (`sd_booted(3)`).
    pub fn owns(host: &dyn Host) -> bool {
        host.exists(&paths::systemd_booted())
    }

    /// True for a valid unit name (`systemd.unit(5)`); other names are not passed on.
    #[must_use]
    pub fn is_unit(name: &str) -> bool {
        let kind = name.rsplit('.').next();
        name.len() < 256
            && !name.starts_with(['-', '.'])
            && name.chars().all(|c| c.is_ascii_alphanumeric() || ":-_.\\@".contains(c))
            && matches!(kind, Some("slice" | "scope" | "service"))
    }

    fn run(&self, setting: &Setting, words: &[&str]) -> Result<String, HostError> {
        let call = process::Spawn::new(&self.program).args(words).die_with_parent(true);
        let output = call.capture(self.timeout_ns)?;
        if output.status.success() {
            return Ok(output.stdout_text());
        }
        let why = output.stderr_text().trim().replace('\n', "; ");
        Err(fault(setting, format!("systemctl {} failed: {why}", words[0])))
    }
}

const INVALID_UNIT_NAME: &str = "this is not the name of a unit";

fn fault(setting: &Setting, why: String) -> HostError {
    let hint = "check systemctl status of that unit; setting it needs root and a running systemd";
    HostError::Kept {
        setting: Box::new(setting.clone()),
        why,
        gone: false,
        hint: Some(hint.to_owned()),
    }
}

impl SettingBackend for Systemd {
    fn is(&self, keeper: &SettingManager) -> bool {
        matches!(keeper, SettingManager::Systemd)
    }

    fn get(&self, setting: &Setting) -> Result<Option<String>, HostError> {
        let property = format!("--property={}", setting.key);
        let words = ["show", "--property=LoadState", &property, "--", &setting.object];
        let shown = self.run(setting, &words)?;
        let value = |name: &str| {
            let mut lines = shown.lines().filter_map(|line| line.split_once('='));
            lines.find(|(key, _)| *key == name).map(|(_, value)| value.trim())
        };
        if matches!(value("LoadState"), None | Some("not-found")) {
            return Err(HostError::Kept {
                setting: Box::new(setting.clone()),
                why: "systemd knows no such unit".to_owned(),
                gone: true,
                hint: None,
            });
        }
        let Some(text) = value(&setting.key) else {
            return Err(fault(setting, "this systemd has no such property".to_owned()));
        };
        // Ranges separated by blanks.
        let list = text.split_whitespace().collect::<Vec<_>>().join(",");
        if list.is_empty() {
            return Ok(None);
        }
        let pus = CpuSet::parse_list(&list).map_err(|error| fault(setting, error.to_string()))?;
        Ok(Some(pus.to_string()))
    }

    fn set(&self, setting: &Setting, value: Option<&str>) -> Result<(), HostError> {
        let Setting { object, key, lifetime, .. } = setting;
        if !Self::is_unit(object) {
            return Err(fault(setting, INVALID_UNIT_NAME.to_owned()));
        }
        let assignment = format!("{key}={}", value.unwrap_or_default());
        let words = ["set-property", "--runtime", "--", object, &assignment];
        match lifetime {
            Lifetime::Running => self.run(setting, &words)?,
            Lifetime::Lasting => self.run(setting, &[words[0], words[2], object, &assignment])?,
        };
        Ok(())
    }

    fn files(&self, setting: &Setting) -> Result<Vec<SettingsFile>, HostError> {
        let mut files = Vec::new();
        for path in self.drop_ins(setting)? {
            let content = if files::exists(&path) { Some(files::read(&path)?) } else { None };
            files.push(SettingsFile { path, content });
        }
        Ok(files)
    }

    fn put_files(&self, setting: &Setting, files: &[SettingsFile]) -> Result<bool, HostError> {
        let mut differs = false;
        // Only the setting's own files are written, whatever the caller passes.
        for now in self.files(setting)? {
            let Some(then) = files.iter().find(|file| file.path == now.path) else { continue };
            if then.content == now.content {
                continue;
            }
            differs = true;
            match &then.content {
                Some(content) => {
                    files::make_dirs(now.path.rsplit_once('/').map_or("/", |(folder, _)| folder))?;
                    files::write_atomic(&now.path, content)?;
                }
                None => files::remove(&now.path)?,
            }
        }
        if differs {
            self.run(setting, &["daemon-reload"])?;
        }
        Ok(differs)
    }
}

#[cfg(test)]
mod tests;
