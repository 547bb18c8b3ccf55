//! Encoding of frames, and the HELLO of the agent.

use std::io::{self, Read};

use pinfold_model::CpuSet;
use serde::Deserialize;

/// Version of the protocol; `FRAME_PROTOCOL` of `pinload/src/frame.h`.
pub(super) const PROTOCOL: u32 = 1;
/// Largest payload (bytes).
pub(super) const FRAME_LIMIT: usize = 1 << 20;
const HEADER: usize = 9;

/// Frames from the host to the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Run,
    Stdin,
    Close,
    Kill,
    Heartbeat,
    File,
    Shutdown,
    Online,
}

impl Kind {
    fn number(self) -> u8 {
        match self {
            Kind::Run => 1,
            Kind::Stdin => 2,
            Kind::Close => 3,
            Kind::Kill => 4,
            Kind::Heartbeat => 5,
            Kind::File => 6,
            Kind::Shutdown => 7,
            Kind::Online => 8,
        }
    }
}

/// Frames from the agent to the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Hello(String),
    Out(Vec<u8>),
    Err(Vec<u8>),
    ExitCode(u32),
    ExitSignal(u32),
    Error(String),
}

/// Encodes a frame. The callers keep the payload below [`FRAME_LIMIT`].
pub(super) fn encode(kind: Kind, channel: u32, payload: &[u8]) -> Vec<u8> {
    debug_assert!(payload.len() <= FRAME_LIMIT);
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    let mut bytes = Vec::with_capacity(HEADER + payload.len());
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(&channel.to_le_bytes());
    bytes.push(kind.number());
    bytes.extend_from_slice(payload);
    bytes
}

/// The next frame of the agent; `None` if the stream ends between two frames.
pub(super) fn read(input: &mut impl Read) -> io::Result<Option<(u32, Event)>> {
    let mut header = [0_u8; HEADER];
    if !fill(input, &mut header)? {
        return Ok(None);
    }
    let [l0, l1, l2, l3, c0, c1, c2, c3, kind] = header;
    let length = u32::from_le_bytes([l0, l1, l2, l3]);
    let channel = u32::from_le_bytes([c0, c1, c2, c3]);
    let length = usize::try_from(length)
        .ok()
        .filter(|length| *length <= FRAME_LIMIT)
        .ok_or_else(|| garbage(format!("a frame of {length} bytes")))?;
    let mut payload = vec![0; length];
    input.read_exact(&mut payload)?;
    decode(kind, payload).map(|event| Some((channel, event)))
}

/// False if the stream ends before the first byte; an error if it ends after it.
fn fill(input: &mut impl Read, header: &mut [u8; HEADER]) -> io::Result<bool> {
    loop {
        match input.read(&mut header[..1]) {
            Ok(0) => return Ok(false),
            Ok(_) => return input.read_exact(&mut header[1..]).map(|()| true),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn decode(kind: u8, payload: Vec<u8>) -> io::Result<Event> {
    match (kind, payload.as_slice()) {
        (65, _) => Ok(Event::Hello(text(payload))),
        (66, _) => Ok(Event::Out(payload)),
        (67, _) => Ok(Event::Err(payload)),
        (68, &[0, a, b, c, d]) => Ok(Event::ExitCode(u32::from_le_bytes([a, b, c, d]))),
        (68, &[1, a, b, c, d]) => Ok(Event::ExitSignal(u32::from_le_bytes([a, b, c, d]))),
        (69, _) => Ok(Event::Error(text(payload))),
        _ => Err(garbage(format!("a frame of kind {kind} with {} bytes", payload.len()))),
    }
}

fn text(payload: Vec<u8>) -> String {
    String::from_utf8_lossy(&payload).into_owned()
}

fn garbage(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("it sent {what}"))
}

/// What an agent reports about itself and its guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hello {
    /// Version of its `pinload`.
    pub pinload: String,
    /// Kernel release of the guest.
    pub kernel: String,
    /// Architecture of the guest, as printed by `uname -m`.
    pub machine: String,
    /// True if the agent is process 1.
    pub is_init: bool,
    /// CPUs of the guest that are online.
    pub cpus_online: CpuSet,
    /// Levels of its kernel's page tables; `None` if it does not report them.
    pub page_table_levels: Option<u32>,
    /// Kernel modules that could not be loaded: name and reason.
    pub module_failures: Vec<(String, String)>,
}

#[derive(Deserialize)]
struct HelloText {
    protocol: u32,
    pinload: String,
    kernel: String,
    machine: String,
    init: bool,
    cpus_online: String,
    page_table_levels: Option<u32>,
    module_failures: Vec<ModuleFailure>,
}

#[derive(Deserialize)]
struct ModuleFailure {
    name: String,
    error: String,
}

impl Hello {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let hello: HelloText =
            serde_json::from_str(text).map_err(|error| format!("its HELLO is invalid: {error}"))?;
        if hello.protocol != PROTOCOL {
            return Err(format!(
                "it speaks version {} of the protocol, not {PROTOCOL}",
                hello.protocol
            ));
        }
        let cpus_online = CpuSet::parse_list(&hello.cpus_online)
            .map_err(|error| format!("its HELLO: {error}"))?;
        let failures = hello.module_failures.into_iter();
        Ok(Self {
            pinload: hello.pinload,
            kernel: hello.kernel,
            machine: hello.machine,
            is_init: hello.init,
            cpus_online,
            page_table_levels: hello.page_table_levels,
            module_failures: failures.map(|failure| (failure.name, failure.error)).collect(),
        })
    }
}
