//! Common code of the BPF loaders: maps, tracepoints, and the errno in a chain of errors.

use std::error::Error;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};

use aya::maps::{Array, HashMap, Map, MapData, MapError};
use aya::programs::tp_btf::BtfTracePointLink;
use aya::programs::{BtfTracePoint, ProgramError, TracePoint};
use aya::{Btf, Ebpf};
use pinfold_model::{CpuSet, PuId, escape};

use crate::raw::Probe;
use crate::{Host, HostError, paths};

/// Name of the program, for errors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named(pub(crate) &'static str);

impl Named {
    /// Error: the compiled object lacks a part that it should have.
    pub(crate) fn missing(self, part: &str) -> HostError {
        HostError::Unexpected { path: self.0.to_owned(), why: format!("it lacks {part}") }
    }

    /// Converts an error; the kernel's errno is taken from its chain of causes.
    pub(crate) fn refuse(
        self,
        operation: &'static str,
        error: &(dyn Error + 'static),
    ) -> HostError {
        let mut cause = Some(error);
        while let Some(at) = cause {
            if let Some(errno) = at.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
                return HostError::file(operation, self.0, io::Error::from_raw_os_error(errno));
            }
            cause = at.source();
        }
        HostError::file(operation, self.0, io::Error::other(error.to_string()))
    }

    /// Takes a map out of the loaded object.
    pub(crate) fn map<M>(self, program: &mut Ebpf, name: &str) -> Result<M, HostError>
    where
        M: TryFrom<Map, Error = MapError>,
    {
        let map = program.take_map(name).ok_or_else(|| self.missing(name))?;
        M::try_from(map).map_err(|error| self.refuse("open", &error))
    }

    /// Loads the program with this name and attaches it to a tracepoint.
    pub(crate) fn attach(
        self,
        program: &mut Ebpf,
        part: &str,
        id: u64,
        pu: PuId,
    ) -> Result<Probe, HostError> {
        let part = program.program_mut(part).ok_or_else(|| self.missing(part))?;
        let part: &mut TracePoint = part.try_into().map_err(|error| self.refuse("find", &error))?;
        part.load().map_err(|error| self.refuse("load", &error))?;
        let code = part.fd().map_err(|error| self.refuse("load", &error))?;
        Probe::new(id, pu, code.as_fd()).map_err(|source| HostError::file("attach", self.0, source))
    }

    /// Loads the program with this name and attaches it to a raw tracepoint, which passes the
    /// arguments.
    pub(crate) fn attach_typed(
        self,
        program: &mut Ebpf,
        part: &str,
        event: &str,
        types: &Btf,
    ) -> Result<BtfTracePointLink, HostError> {
        let part = program.program_mut(part).ok_or_else(|| self.missing(part))?;
        let part: &mut BtfTracePoint =
            part.try_into().map_err(|error| self.refuse("find", &error))?;
        let (_, event) = event.split_once('/').unwrap_or(("", event));
        match part.load(event, types) {
            Ok(()) | Err(ProgramError::AlreadyLoaded) => {}
            Err(error) => return Err(self.refuse("load", &error)),
        }
        let link = part.attach().and_then(|link| part.take_link(link));
        link.map_err(|error| self.refuse("attach", &error))
    }

    /// All entries of a map that may change meanwhile: an entry that is removed is left out.
    pub(crate) fn entries<K: aya::Pod, V: aya::Pod>(
        self,
        map: &HashMap<MapData, K, V>,
    ) -> Result<Vec<(K, V)>, HostError> {
        let mut entries = Vec::new();
        for key in map.keys() {
            let key = key.map_err(|error| self.refuse("read", &error))?;
            match map.get(&key, 0) {
                Ok(value) => entries.push((key, value)),
                Err(MapError::KeyNotFound) => {}
                Err(error) => return Err(self.refuse("read", &error)),
            }
        }
        Ok(entries)
    }

    /// One number of an array map.
    pub(crate) fn number(self, map: &Array<MapData, u64>, index: u32) -> Result<u64, HostError> {
        map.get(&index, 0).map_err(|error| self.refuse("read", &error))
    }
}

/// Number of events for which the kernel did not call these programs, because another BPF program
/// was running on that CPU (`recursion_misses` of `/proc/PID/fdinfo`). The kernel counts them for
/// raw tracepoints since Linux 5.12 and for all programs since 6.7; 0 where it does not.
pub(crate) fn missed_events(host: &dyn Host, program: &Ebpf) -> Result<u64, HostError> {
    program_sum(host, program, "recursion_misses:")
}

/// The sum of a field of `/proc/PID/fdinfo` over all programs that are loaded, such as `run_cnt:`.
pub(crate) fn program_sum(host: &dyn Host, program: &Ebpf, field: &str) -> Result<u64, HostError> {
    let mut sum = 0_u64;
    let loaded = program.programs().filter_map(|(_, part)| part.fd().ok());
    for path in loaded.map(|code| paths::own_fdinfo(code.as_fd().as_raw_fd())) {
        let text = host.read_text(&path)?;
        let mut lines = text.lines();
        let Some(count) = lines.find_map(|line| line.strip_prefix(field)) else {
            continue;
        };
        sum = sum.saturating_add(count.trim().parse().map_err(|_| HostError::Unexpected {
            path: path.clone(),
            why: format!("{field} {:?} is not a number", count.trim()),
        })?);
    }
    Ok(sum)
}

/// An online CPU.
pub(crate) fn online_pu(host: &dyn Host) -> Result<PuId, HostError> {
    let path = paths::cpu_online();
    let text = host.read_text(&path)?;
    let list = CpuSet::parse_list(text.trim());
    list.ok().and_then(|list| list.first()).ok_or_else(|| HostError::Unexpected {
        path,
        why: format!("is not a list of CPUs: {:?}", text.trim()),
    })
}

/// Number of CPUs that this kernel may have: one more than the highest number.
pub(crate) fn possible_pus(host: &dyn Host) -> Result<u32, HostError> {
    let path = paths::cpu_possible();
    let text = host.read_text(&path)?;
    let list = CpuSet::parse_list(text.trim())
        .map_err(|error| HostError::Unexpected { path, why: error.to_string() })?;
    Ok(list.iter().last().map_or(1, |pu| pu.0.saturating_add(1)))
}

/// The name of a task: the bytes before the first zero byte.
pub(crate) fn name_of(bytes: &[u8; 16]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    escape::name(&String::from_utf8_lossy(&bytes[..end])).into_owned()
}
