//! Cache ways and memory bandwidth by group: the `resctrl` file system.
//!
//! Rules of `fs/resctrl` (x86): the number of groups is limited to the classes of service
//! (`ENOSPC`), cache shares are contiguous way masks, bandwidth is a percentage in steps, and a bad
//! line is `EINVAL` with the reason in `info/last_cmd_status`. A new group has all resources. The
//! tasks of a removed group return to the root group. A task is in one group, and its children are
//! created there. <https://docs.kernel.org/filesystems/resctrl.html>

use std::collections::BTreeMap;

use pinfold_host::paths;
use pinfold_model::Tid;
use rustix::io::Errno;

use super::Machine;

/// Number of cache ways: the L3 of an Intel server of 2017.
const WAYS: u32 = 11;
/// Minimum and step size of bandwidth, in percent.
const PERCENT: u32 = 10;

/// State of the file system.
#[derive(Clone, Debug)]
pub(crate) struct Resctrl {
    /// Number of cache domains, each with a memory controller.
    domains: u32,
    /// Number of classes of service, including that of the root group.
    classes: usize,
    /// Schemata by group; the root group has an empty name.
    groups: BTreeMap<String, Schemata>,
    /// Tasks in groups other than the root.
    tasks: BTreeMap<Tid, String>,
    status: String,
}

type Schemata = BTreeMap<(&'static str, u32), u32>;

impl Resctrl {
    pub(crate) fn new(domains: u32, classes: usize) -> Self {
        let mut new = Self {
            domains,
            classes,
            groups: BTreeMap::new(),
            tasks: BTreeMap::new(),
            status: "ok".to_owned(),
        };
        new.groups.insert(String::new(), new.everything());
        new
    }

    fn everything(&self) -> Schemata {
        (0..self.domains)
            .flat_map(|domain| [(("L3", domain), (1 << WAYS) - 1), (("MB", domain), 100)])
            .collect()
    }

    /// The group and the file to which a path refers.
    fn place<'p>(&self, path: &'p str) -> Option<(&'p str, Option<&'p str>)> {
        let below = path.strip_prefix(&paths::resctrl_dir())?;
        let below = match below.strip_prefix('/') {
            Some(below) => below,
            None if below.is_empty() => "",
            None => return None,
        };
        if self.groups.contains_key(below) {
            return Some((below, None));
        }
        match below.split_once('/') {
            Some((group, file)) if self.groups.contains_key(group) => Some((group, Some(file))),
            _ => Some(("", Some(below))),
        }
    }

    fn schemata(&self, group: &str) -> String {
        self.schemata_line("MB", group) + &self.schemata_line("L3", group)
    }

    fn schemata_line(&self, resource: &str, group: &str) -> String {
        let domains = self.groups.get(group).into_iter().flatten();
        let values: Vec<String> = domains
            .filter(|((name, _), _)| *name == resource)
            .map(|((name, domain), value)| match *name {
                "MB" => format!("{domain}={value:>3}"),
                _ => format!("{domain}={value:03x}"),
            })
            .collect();
        format!("{resource:>6}:{}\n", values.join(";"))
    }

    fn set_schemata(&mut self, group: &str, text: &str) -> Result<(), Errno> {
        let mut asked = self.groups.get(group).ok_or(Errno::NOENT)?.clone();
        for line in text.lines() {
            if let Err(why) = set_line(&mut asked, line) {
                self.status = why;
                return Err(Errno::INVAL);
            }
        }
        self.status = "ok".to_owned();
        self.groups.insert(group.to_owned(), asked);
        Ok(())
    }
}

fn set_line(schemata: &mut Schemata, line: &str) -> Result<(), String> {
    let (resource, values) = line.split_once(':').ok_or("Missing ':'")?;
    let resource = match resource.trim() {
        "L3" => "L3",
        "MB" => "MB",
        other => return Err(format!("Unknown or unsupported resource name '{other}'")),
    };
    for value in values.trim().split(';') {
        let (domain, value) = value.split_once('=').ok_or("Missing '='")?;
        let domain =
            domain.trim().parse::<u32>().map_err(|_| "Missing '=' or non-numeric domain")?;
        let known = schemata.get_mut(&(resource, domain)).ok_or("Unknown domain")?;
        *known = match resource {
            "MB" => {
                let percent: u32 =
                    value.trim().parse().map_err(|_| "Non-decimal digit in MB value")?;
                if !(PERCENT..=100).contains(&percent) {
                    return Err(format!("MB value {percent} out of range [{PERCENT},100]"));
                }
                percent.div_ceil(PERCENT) * PERCENT
            }
            _ => {
                let mask = u32::from_str_radix(value.trim().trim_start_matches("0x"), 16)
                    .map_err(|_| "Non-hex character in the mask")?;
                let ones = mask >> mask.trailing_zeros().min(31);
                if mask == 0 || mask >> WAYS != 0 {
                    return Err("Mask out of range".to_owned());
                }
                if ones & (ones + 1) != 0 {
                    return Err(format!("The mask {mask:x} has non-consecutive 1-bits"));
                }
                mask
            }
        };
    }
    Ok(())
}

impl Machine {
    fn resctrl_place<'p>(&self, path: &'p str) -> Option<(&'p str, Option<&'p str>)> {
        self.resctrl.as_ref()?.place(path)
    }

    pub(crate) fn read_resctrl(&self, path: &str) -> Option<Result<Vec<u8>, Errno>> {
        let (group, file) = self.resctrl_place(path)?;
        let resctrl = self.resctrl.as_ref()?;
        Some(match file {
            None => Err(Errno::ISDIR),
            Some("schemata") => Ok(resctrl.schemata(group).into_bytes()),
            Some("tasks") => {
                let inside = self
                    .tasks
                    .keys()
                    .filter(|tid| resctrl.tasks.get(tid).map_or("", String::as_str) == group);
                Ok(inside.map(|tid| format!("{tid}\n")).collect::<String>().into_bytes())
            }
            Some("info/last_cmd_status") => Ok(format!("{}\n", resctrl.status).into_bytes()),
            Some("mon_data/mon_L3_00/llc_occupancy") => Ok(b"65536\n".to_vec()),
            Some(_) => Err(Errno::NOENT),
        })
    }

    pub(crate) fn list_resctrl(&self, path: &str) -> Option<Result<Vec<String>, Errno>> {
        let (group, file) = self.resctrl_place(path)?;
        let resctrl = self.resctrl.as_ref()?;
        fn names(names: &[&str]) -> Vec<String> {
            names.iter().map(|name| (*name).to_owned()).collect()
        }
        let mut all: Vec<String> = match file {
            None => names(&["mon_data", "schemata", "tasks"]),
            Some("mon_data") => return Some(Ok(names(&["mon_L3_00"]))),
            Some("mon_data/mon_L3_00") => return Some(Ok(names(&["llc_occupancy"]))),
            Some(_) => return Some(Err(Errno::NOENT)),
        };
        if group.is_empty() {
            all.push("info".to_owned());
            all.extend(resctrl.groups.keys().filter(|name| !name.is_empty()).cloned());
        }
        all.sort();
        Some(Ok(all))
    }

    pub(crate) fn write_resctrl(&mut self, path: &str, text: &str) -> Option<Result<(), Errno>> {
        let (group, file) = self.resctrl_place(path)?;
        let tid = text.trim().parse().ok().map(Tid);
        let known = tid.filter(|tid| self.tasks.contains_key(tid));
        let resctrl = self.resctrl.as_mut()?;
        Some(match (file, known) {
            (None, _) => Err(Errno::ISDIR),
            (Some("schemata"), _) => resctrl.set_schemata(group, text),
            (Some("tasks"), Some(tid)) => {
                resctrl.tasks.insert(tid, group.to_owned());
                Ok(())
            }
            (Some("tasks"), None) => Err(Errno::SRCH),
            (Some(_), _) => Err(Errno::NOENT),
        })
    }

    pub(crate) fn make_resctrl(&mut self, path: &str) -> Option<Result<(), Errno>> {
        let (group, name) = self.resctrl_place(path)?;
        let name = name.map(str::to_owned);
        let resctrl = self.resctrl.as_mut()?;
        Some(match name {
            Some(name) if group.is_empty() && !name.contains('/') => {
                if resctrl.groups.len() >= resctrl.classes {
                    return Some(Err(Errno::NOSPC));
                }
                let everything = resctrl.everything();
                resctrl.groups.insert(name, everything);
                Ok(())
            }
            Some(_) => Err(Errno::PERM),
            None => Err(Errno::EXIST),
        })
    }

    pub(crate) fn remove_resctrl(&mut self, path: &str) -> Option<Result<(), Errno>> {
        let (group, file) = self.resctrl_place(path)?;
        let resctrl = self.resctrl.as_mut()?;
        if file.is_some() {
            return Some(Err(Errno::NOENT));
        }
        if group.is_empty() {
            return Some(Err(Errno::PERM));
        }
        resctrl.groups.remove(group);
        resctrl.tasks.retain(|_, of| of != group);
        Some(Ok(()))
    }

    /// Everything that a change could modify, for the snapshot.
    pub(crate) fn resctrl_text(&self) -> String {
        let Some(resctrl) = &self.resctrl else { return String::new() };
        let groups = resctrl.groups.keys();
        let mut text: String = groups
            .map(|group| format!("resctrl {group}: {:?}\n", resctrl.schemata(group)))
            .collect();
        for (tid, group) in resctrl.tasks.iter().filter(|(_, group)| !group.is_empty()) {
            text.push_str(&format!("resctrl task {tid}: {group}\n"));
        }
        text
    }
}
