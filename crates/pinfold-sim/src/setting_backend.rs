//! Simulated programs that manage settings: which values they accept, and their effect in the
//! kernel.
//!
//! libvirt sets the mask of the threads of a pin at each write, even if the value is unchanged. It
//! cannot remove the pin of a running domain: instead it lists all CPUs. systemd writes a unit's
//! list into its cgroup, and leaves that value there when the list is removed (systemd issue
//! 43846). It keeps a drop-in that takes precedence over the unit file, and that is empty in this
//! case.

use pinfold_host::paths;
use pinfold_model::{CpuSet, Lifetime, Setting, SettingManager, SettingsFile, Tid};
use rustix::io::Errno;

use super::SimHost;
use super::machine::{Machine, SimSetting};

impl SimHost {
    /// Makes libvirt manage this setting of a domain, which affects these threads.
    pub fn add_libvirt_pin(&self, setting: Setting, value: Option<&str>, tasks: &[Tid]) {
        let value = value.map(str::to_owned);
        let kept =
            SimSetting { value, tasks: tasks.to_vec(), file: None, unit: None, drop_in: None };
        self.state().machine.settings.insert(setting, kept);
    }

    /// Makes libvirt write this setting to the list of a group too.
    pub fn add_list_of_pin(&self, setting: &Setting, file: &str) {
        if let Some(kept) = self.state().machine.settings.get_mut(setting) {
            kept.file = Some(file.to_owned());
        }
    }

    /// Makes systemd manage this list of a unit and write it to the cgroup file `file`. `unit` is
    /// the list in the unit file, if any.
    pub fn add_systemd_unit(&self, setting: Setting, file: &str, unit: Option<&str>) {
        let unit = unit.map(str::to_owned);
        let file = Some(file.to_owned());
        let kept = SimSetting { value: unit.clone(), tasks: Vec::new(), file, unit, drop_in: None };
        self.state().machine.settings.insert(setting, kept);
    }

    /// Removes an object with its settings.
    pub fn forget_settings(&self, object: &str) {
        self.state().machine.settings.retain(|setting, _| setting.object != object);
    }
}

impl Machine {
    /// Effect of a change request to the managing program.
    pub(super) fn keep(&mut self, setting: &Setting, value: Option<&str>) -> Result<(), Errno> {
        let kept = self.settings.get(setting).ok_or(Errno::NOENT)?.clone();
        let pus =
            value.map(|text| CpuSet::parse_list(text).map_err(|_| Errno::INVAL)).transpose()?;
        if pus.as_ref().is_some_and(|pus| pus.is_disjoint(&self.online)) {
            return Err(Errno::INVAL);
        }
        let running = setting.lifetime == Lifetime::Running;
        let mut drop_in = kept.drop_in.clone();
        let new = match &setting.keeper {
            SettingManager::Libvirt { .. } if running => {
                let pus = pus.unwrap_or_else(|| self.online.clone());
                for tid in &kept.tasks {
                    match self.set_affinity(*tid, &pus) {
                        Ok(()) | Err(Errno::SRCH) => {}
                        Err(errno) => return Err(errno),
                    }
                }
                if let Some(list) = &kept.file {
                    self.write_any(list, pus.to_string().as_bytes())?;
                }
                Some(pus.to_string())
            }
            SettingManager::LibvirtStatus { .. } => return Err(Errno::ACCESS),
            SettingManager::Libvirt { .. } => pus.map(|pus| pus.to_string()),
            SettingManager::Systemd => {
                if let (Some(pus), Some(file)) = (&pus, &kept.file) {
                    self.write_any(file, pus.to_string().as_bytes())?;
                }
                drop_in = Some(pus.as_ref().map(CpuSet::to_string).unwrap_or_default());
                pus.map(|pus| pus.to_string())
            }
        };
        self.settings.insert(setting.clone(), SimSetting { value: new, drop_in, ..kept });
        Ok(())
    }

    /// The drop-in in which systemd stores a setting.
    pub(super) fn kept_files(&self, setting: &Setting) -> Result<Vec<SettingsFile>, Errno> {
        let kept = self.settings.get(setting).ok_or(Errno::NOENT)?;
        if kept.file.is_none() || setting.keeper != SettingManager::Systemd {
            return Ok(Vec::new());
        }
        let [path, _] = paths::systemd_drop_ins(&setting.object, &setting.key, setting.lifetime);
        Ok(vec![SettingsFile { path, content: kept.drop_in.clone().map(String::into_bytes) }])
    }

    /// Writes or removes the drop-in and reloads the units; true if it differed.
    pub(super) fn put_kept_files(
        &mut self,
        setting: &Setting,
        files: &[SettingsFile],
    ) -> Result<bool, Errno> {
        let Some(now) = self.kept_files(setting)?.pop() else { return Ok(false) };
        let Some(then) = files.iter().find(|file| file.path == now.path) else { return Ok(false) };
        if then.content == now.content {
            return Ok(false);
        }
        let kept = self.settings.get(setting).ok_or(Errno::NOENT)?.clone();
        let text = then.content.clone().map(String::from_utf8);
        let drop_in = text.transpose().map_err(|_| Errno::INVAL)?;
        let value = match &drop_in {
            Some(list) => (!list.is_empty()).then(|| list.clone()),
            None => kept.unit.clone(),
        };
        if let (Some(list), Some(file)) = (&value, &kept.file) {
            self.write_any(file, list.as_bytes())?;
        }
        self.settings.insert(setting.clone(), SimSetting { value, drop_in, ..kept });
        Ok(true)
    }
}
