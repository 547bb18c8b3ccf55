//! Programs that keep settings, simulated: what they take and what follows in the kernel.
//!
//! libvirt sets the mask of the threads behind a pin with each write, the same value too. It
//! cannot take the pin of a running domain away: it then names all PUs. systemd writes a unit's
//! list into its group, and when the list is taken away leaves there what it wrote
//! (systemd issue 43846).

use pinfold_model::{CpuSet, Keeper, Lifetime, Setting, Tid};
use rustix::io::Errno;

use super::SimHost;
use super::state::Machine;

/// A setting and what follows it.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) value: Option<String>,
    /// Threads whose mask libvirt sets.
    tasks: Vec<Tid>,
    /// The file that systemd writes.
    file: Option<String>,
}

impl SimHost {
    /// libvirt keeps this setting for a domain, with these threads behind it.
    pub fn keep_pin(&self, setting: Setting, value: Option<&str>, tasks: &[Tid]) {
        let kept = Kept { value: value.map(str::to_owned), tasks: tasks.to_vec(), file: None };
        self.state().machine.settings.insert(setting, kept);
    }

    /// systemd keeps this list for a unit, and writes it into this file.
    pub fn keep_unit(&self, setting: Setting, file: &str) {
        let kept = Kept { value: None, tasks: Vec::new(), file: Some(file.to_owned()) };
        self.state().machine.settings.insert(setting, kept);
    }

    /// The object of some settings ends, and they with it.
    pub fn forget_settings(&self, object: &str) {
        self.state().machine.settings.retain(|setting, _| setting.object != object);
    }
}

impl Machine {
    /// What a keeper does when it is asked for a change.
    pub(super) fn keep(&mut self, setting: &Setting, value: Option<&str>) -> Result<(), Errno> {
        let kept = self.settings.get(setting).ok_or(Errno::NOENT)?.clone();
        let list = |text: &str| CpuSet::parse_list(text).map_err(|_| Errno::INVAL);
        let pus = value.map(list).transpose()?;
        if pus.as_ref().is_some_and(|pus| pus.is_disjoint(&self.online)) {
            return Err(Errno::INVAL);
        }
        let running = setting.lifetime == Lifetime::Running;
        let new = match &setting.keeper {
            Keeper::Libvirt { .. } if running => {
                let pus = pus.unwrap_or_else(|| self.online.clone());
                for tid in &kept.tasks {
                    match self.set_affinity(*tid, &pus) {
                        Ok(()) | Err(Errno::SRCH) => {}
                        Err(errno) => return Err(errno),
                    }
                }
                Some(pus.to_string())
            }
            Keeper::Libvirt { .. } => pus.map(|pus| pus.to_string()),
            Keeper::Systemd => {
                if let (Some(pus), Some(file)) = (&pus, &kept.file) {
                    self.write_any(file, pus.to_string().as_bytes())?;
                }
                pus.map(|pus| pus.to_string())
            }
        };
        self.settings.insert(setting.clone(), Kept { value: new, ..kept });
        Ok(())
    }
}
