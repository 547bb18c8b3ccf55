//! A value that another program manages. It is set through that program, and the kernel's values
//! are checked too.
//!
//! The program sets the masks of the threads itself, and may not be able to remove a value again
//! (libvirt's pin of a running domain). So undo compares values by their effect, and restores masks
//! that still differ. A setting of a running object ends with it; one of a definition is on disk
//! and survives a reboot.
//!
//! systemd writes a drop-in file with each change, which overrides the unit's own file. These files
//! are restored too, even if the value is already right, because an undo may have been killed
//! between the two.

use std::collections::BTreeMap;

use pinfold_host::{Host, HostError, HostMut, paths};
use pinfold_model::{CpuSet, Finding, Lifetime, Setting, SettingsFile, TaskId};

use super::affinity::OwnerPlace;
use super::{ChangeOutcome, ReadBack, Reverted, UndoContext, affinity};
use crate::cpusets::{self, Hierarchy};
use crate::tasks;

pub(super) fn apply(
    host: &dyn HostMut,
    setting: &Setting,
    value: &str,
) -> Result<ChangeOutcome, HostError> {
    let answer = tasks::ignore_gone(host.set_setting(setting, Some(value)))?;
    Ok(answer.map_or(ChangeOutcome::Gone, |()| ChangeOutcome::Done(Vec::new())))
}

pub(super) fn verify(
    host: &dyn Host,
    hierarchy: &Hierarchy<'_>,
    setting: &Setting,
    value: &str,
    tasks: &[TaskId],
) -> Result<ReadBack, HostError> {
    let Some(found) = tasks::ignore_gone(host.setting(setting))? else { return Ok(ReadBack::Gone) };
    if found.as_deref() != Some(value) {
        let found = found.unwrap_or_else(|| "none".to_owned());
        let found = format!("{found} (reported by {})", setting.keeper);
        return Ok(ReadBack::Other { wanted: value.to_owned(), found });
    }
    let Ok(mask) = CpuSet::parse_list(value) else { return Ok(ReadBack::AsAsked) };
    let mut worst = ReadBack::AsAsked;
    for task in tasks {
        match affinity::verify(host, hierarchy, *task, &mask)? {
            ReadBack::AsAsked | ReadBack::Gone => {}
            ReadBack::Less(finding) | ReadBack::Given { finding, .. } => {
                worst = ReadBack::Less(finding)
            }
            ReadBack::Other { wanted, found } => return Ok(ReadBack::Other { wanted, found }),
        }
    }
    Ok(worst)
}

pub(super) fn revert(
    past: &UndoContext<'_>,
    setting: &Setting,
    original: Option<&str>,
    files: &[SettingsFile],
    masks: &[(TaskId, CpuSet)],
) -> Vec<Result<Reverted, HostError>> {
    match have_ended(past, masks) {
        // Another machine with the same name must not be changed.
        Ok(true) => return vec![Ok(Reverted::Gone)],
        Ok(false) => {}
        Err(error) => return vec![Err(error)],
    }
    // The program sets the masks anew, also those that the owner changed behind its back.
    let moved = match moved_by_owner(past, setting, masks) {
        Ok(found) => found,
        Err(error) => return vec![Err(error)],
    };
    let answer = restore(past, setting, original, files);
    let mut answers = vec![answer];
    if matches!(answers[0], Ok(Reverted::Restored | Reverted::Nothing | Reverted::Near(_))) {
        for (task, mask) in masks {
            let restored = match moved.get(task) {
                Some(own) => affinity::leave_to_owner(past, *task, own, mask),
                None => affinity::restore_kept(past, *task, mask),
            };
            match restored {
                Ok(Reverted::Nothing) => {}
                other => answers.push(other),
            }
        }
    }
    answers
}

/// The threads that the owner moved behind the back of the managing program.
fn moved_by_owner(
    past: &UndoContext<'_>,
    setting: &Setting,
    masks: &[(TaskId, CpuSet)],
) -> Result<BTreeMap<TaskId, OwnerPlace>, HostError> {
    let pin = tasks::ignore_gone(past.host.setting(setting))?.flatten();
    let pin = pin.filter(|pin| past.wrote_setting(setting, pin));
    let pin = pin.and_then(|pin| CpuSet::parse_list(&pin).ok());
    affinity::moved_by_owner(past, masks, pin.as_ref())
}

/// True if a setting applied to threads and all of them have ended.
fn have_ended(past: &UndoContext<'_>, masks: &[(TaskId, CpuSet)]) -> Result<bool, HostError> {
    for (task, _) in masks {
        if tasks::is_alive(past.host, *task)? {
            return Ok(false);
        }
    }
    Ok(!masks.is_empty())
}

fn restore(
    past: &UndoContext<'_>,
    setting: &Setting,
    original: Option<&str>,
    files: &[SettingsFile],
) -> Result<Reverted, HostError> {
    let Some(now) = tasks::ignore_gone(past.host.setting(setting))? else {
        return Ok(Reverted::Gone);
    };
    let files = files_before(past, setting, original, files)?;
    if now.as_deref() == original {
        let differed = tasks::ignore_gone(past.host.put_setting_files(setting, &files))?;
        return Ok(match differed {
            Some(true) => Reverted::Restored,
            Some(false) => Reverted::Nothing,
            None => Reverted::Gone,
        });
    }
    let wrote = now.as_deref().is_some_and(|now| past.wrote_setting(setting, now));
    // An undo that was killed may have set all CPUs; else the owner has.
    if original.is_none()
        && (wrote || !past.is_first_undo())
        && is_like_none(past, setting, now.as_deref())?
    {
        return Ok(Reverted::Near(equivalent_value_finding(setting)));
    }
    if !wrote {
        return Ok(Reverted::Changed(report_change(setting, now.as_deref(), original)));
    }
    let set = past.host.set_setting(setting, original);
    let put = set.and_then(|()| past.host.put_setting_files(setting, &files));
    if tasks::ignore_gone(put)?.is_none() {
        return Ok(Reverted::Gone);
    }
    match tasks::ignore_gone(past.host.setting(setting))? {
        None => Ok(Reverted::Gone),
        Some(now) if now.as_deref() == original => Ok(Reverted::Restored),
        Some(now) if original.is_none() && is_like_none(past, setting, now.as_deref())? => {
            Ok(Reverted::Near(equivalent_value_finding(setting)))
        }
        Some(now) => Err(HostError::Kept {
            setting: Box::new(setting.clone()),
            why: format!(
                "it is {} after it was restored to {}",
                now.as_deref().unwrap_or("none"),
                original.unwrap_or("none")
            ),
            gone: false,
            hint: None,
        }),
    }
}

/// The drop-in files before the change. A journal of version 1 does not record them: if there was
/// no value, there were no files; if there was one, they are left.
fn files_before(
    past: &UndoContext<'_>,
    setting: &Setting,
    original: Option<&str>,
    files: &[SettingsFile],
) -> Result<Vec<SettingsFile>, HostError> {
    if !files.is_empty() || original.is_some() {
        return Ok(files.to_vec());
    }
    let now = tasks::ignore_gone(past.host.setting_files(setting))?.unwrap_or_default();
    Ok(now.into_iter().map(|file| SettingsFile { content: None, ..file }).collect())
}

/// True for a running object's list of CPUs that restricts nothing.
fn is_like_none(
    past: &UndoContext<'_>,
    setting: &Setting,
    now: Option<&str>,
) -> Result<bool, HostError> {
    if setting.lifetime != Lifetime::Running {
        return Ok(false);
    }
    match now.map(CpuSet::parse_list) {
        Some(Ok(list)) => Ok(cpusets::list(past.host, &paths::cpu_online())?.is_subset(&list)),
        // A value that is no list does restrict.
        Some(Err(_)) | None => Ok(false),
    }
}

fn equivalent_value_finding(setting: &Setting) -> Finding {
    let text = format!(
        "{setting} had no value before and has all CPUs now, which has the same effect: {} cannot unset it at run time",
        setting.keeper
    );
    Finding::note("settings", text)
}

fn report_change(setting: &Setting, now: Option<&str>, original: Option<&str>) -> Finding {
    let text = format!(
        "{setting} is {}, which Pinfold did not set; its original {} was not restored",
        now.unwrap_or("none"),
        original.unwrap_or("none")
    );
    Finding::warning("settings", text)
}
