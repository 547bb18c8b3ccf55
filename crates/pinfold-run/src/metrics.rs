//! Metrics for Prometheus, on a Unix socket and optionally on a port of 127.0.0.1.
//!
//! No call blocks: each [`Metrics::serve`] handles what has been received and returns. A client
//! that is slow, idle or sends a too long request is disconnected. The response is the same page
//! for every request: <https://prometheus.io/docs/instrumenting/exposition_formats/>.

mod exposition;
mod gaps;
pub(crate) mod kernel;
mod kernel_page;
mod usage;

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};

use pinfold_claims::CpuUsage;
use pinfold_host::{ControlSocket, files};
use pinfold_model::command::quote;
use pinfold_model::escape;

pub use self::gaps::{GapMetrics, GapThread, MachineGaps};
pub use self::kernel::HostUse;
pub use self::usage::{MachineTimes, MachineUse, Sampler, ThreadTimes};
use crate::{Exit, Failure};

/// Maximum number of open connections; a new one replaces the oldest.
const MAX_CALLERS: usize = 32;
/// Time after which an idle client is disconnected (ns).
const TIMEOUT_NS: u64 = 1_000_000_000;
/// Maximum number of connections accepted in one call.
const MAX_ACCEPTED: usize = 256;
/// Maximum length of a request (bytes).
const MAX_REQUEST: usize = 8192;

/// Counters of one placement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Id of the placement.
    pub id: String,
    /// Name of the machine.
    pub vm: String,
    /// Number of new threads that were placed.
    pub placed: u64,
    /// Number of threads whose affinity was restored.
    pub restored: u64,
    /// Number of threads that are left alone because of a conflict with another program.
    pub contested: u64,
    /// Number of threads that stay where the owner of the machine moved them.
    pub yielded: u64,
    /// Number of plans that replaced an earlier one because the machine changed.
    pub replanned: u64,
    /// Number of threads that these plans moved.
    pub moved: u64,
    /// Number of cgroup files that another program wrote to.
    pub groups: u64,
    /// Number of other findings.
    pub findings: u64,
}

/// What a page reports.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// The counters of each placement.
    pub counts: Vec<Counts>,
    /// How the CPUs of the host are used; `None` if it is not known yet.
    pub pool: Option<CpuUsage>,
    /// The times of each placement.
    pub machines: Vec<MachineUse>,
    /// Steal time of the host, and the speeds of its vnodes.
    pub host: HostUse,
}

/// Where the metrics can be read; nowhere if both are `None`.
#[derive(Clone, Copy, Debug, Default)]
pub struct MetricsAddress<'a> {
    /// Path of a socket.
    pub socket: Option<&'a str>,
    /// Port on this machine.
    pub port: Option<u16>,
}

/// The listening sockets.
pub struct Metrics {
    socket: Option<ControlSocket>,
    port: Option<TcpListener>,
    callers: Vec<Caller>,
}

trait Stream: Read + Write + AsFd {}
impl<T: Read + Write + AsFd> Stream for T {}

struct Caller {
    stream: Box<dyn Stream>,
    question: Vec<u8>,
    // The part of the page that is not sent yet; `None` until the request is complete.
    page: Option<Vec<u8>>,
    until: u64,
}

/// Listens at a socket. Its directory must exist, unless it is that of Pinfold's own sockets.
fn listen_at(path: &str) -> Result<ControlSocket, Failure> {
    if path.is_empty() {
        return Err(Failure::new(Exit::Input, "--metrics: the path is empty")
            .with_hint("name a socket, such as /run/pinfold/metrics"));
    }
    let parent = path.rsplit_once('/').map_or(".", |(parent, _)| parent);
    if !parent.is_empty() && !files::exists(parent) && !files::is_runtime_dir(parent) {
        let text = format!("--metrics: there is no directory {}", escape::name(parent));
        let hint = format!("create it: install -d -m 700 {}", quote(parent));
        return Err(Failure::new(Exit::Input, text).with_hint(hint));
    }
    ControlSocket::at(path).map_err(|error| {
        Failure::from(error)
            .with_hint("name a socket in a directory of your own, such as /run/pinfold/metrics")
    })
}

impl Metrics {
    /// Opens the requested socket and port.
    pub fn open(MetricsAddress { socket, port }: MetricsAddress<'_>) -> Result<Self, Failure> {
        let socket = socket.map(listen_at).transpose()?;
        let port = port.map(listen).transpose()?;
        Ok(Self { socket, port, callers: Vec::new() })
    }

    /// File descriptors that are readable when there is something to [serve](Metrics::serve).
    pub fn sources(&self) -> Vec<BorrowedFd<'_>> {
        let doors = self.socket.iter().map(AsFd::as_fd).chain(self.port.iter().map(AsFd::as_fd));
        doors.chain(self.callers.iter().map(|caller| caller.stream.as_fd())).collect()
    }

    /// True if a socket or port is open.
    pub fn is_served(&self) -> bool {
        self.socket.is_some() || self.port.is_some()
    }

    /// The next time at which a client must be disconnected.
    pub fn next(&self) -> Option<u64> {
        self.callers.iter().map(|caller| caller.until).min()
    }

    /// Answers the received requests.
    pub fn serve(&mut self, now: u64, mut page: impl FnMut() -> Page) {
        for _ in 0..MAX_ACCEPTED {
            let Some(stream) = self.answer() else { break };
            let until = now.saturating_add(TIMEOUT_NS);
            self.callers.push(Caller { stream, question: Vec::new(), page: None, until });
        }
        self.callers.retain_mut(|caller| {
            if caller.page.is_none() {
                match caller.request_complete(now) {
                    Ok(false) => return true,
                    Ok(true) => caller.page = Some(answer(&page()).into_bytes()),
                    Err(Disconnected) => return false,
                }
            }
            // A client that has disconnected needs no response.
            caller.send(now).unwrap_or(false)
        });
        let surplus = self.callers.len().saturating_sub(MAX_CALLERS);
        self.callers.drain(..surplus);
    }

    fn answer(&self) -> Option<Box<dyn Stream>> {
        if let Some(stream) = self.socket.as_ref().and_then(ControlSocket::accept) {
            return stream.set_nonblocking(true).ok().map(|()| Box::new(stream) as Box<dyn Stream>);
        }
        let (stream, _) = self.port.as_ref()?.accept().ok()?;
        stream.set_nonblocking(true).ok().map(|()| Box::new(stream) as Box<dyn Stream>)
    }
}

fn listen(port: u16) -> Result<TcpListener, Failure> {
    let fail = |error: std::io::Error| {
        Failure::new(Exit::Host, format!("cannot listen on 127.0.0.1:{port}: {error}"))
            .with_hint("choose another port, or a Unix socket with --metrics")
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(fail)?;
    listener.set_nonblocking(true).map_err(fail)?;
    Ok(listener)
}

struct Disconnected;

impl Caller {
    /// Sends what the socket's buffer holds; true if a part is left for the next call.
    fn send(&mut self, now: u64) -> Result<bool, Disconnected> {
        let Some(page) = &mut self.page else { return Ok(false) };
        while !page.is_empty() {
            match self.stream.write(page) {
                Ok(0) => return Err(Disconnected),
                Ok(count) => drop(page.drain(..count.min(page.len()))),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(now < self.until),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(Disconnected),
            }
        }
        Ok(false)
    }

    /// True if the header of the request is complete.
    fn request_complete(&mut self, now: u64) -> Result<bool, Disconnected> {
        let mut buffer = [0; 1024];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(Disconnected),
                Ok(count) => self.question.extend(buffer.get(..count).ok_or(Disconnected)?),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(Disconnected),
            }
            if self.question.len() > MAX_REQUEST {
                return Err(Disconnected);
            }
        }
        let whole = self.question.windows(4).any(|end| end == b"\r\n\r\n");
        if !whole && now >= self.until { Err(Disconnected) } else { Ok(whole) }
    }
}

fn answer(page: &Page) -> String {
    let page = text_of(page);
    format!(
        "HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{page}",
        page.len()
    )
}

/// Name, help text, and value of one counter.
type Counter = (&'static str, &'static str, fn(&Counts) -> u64);

const COUNTERS: [Counter; 8] = [
    ("placed", "New threads that were placed", |counts| counts.placed),
    ("restored", "Threads whose affinity was changed, pinned again", |counts| counts.restored),
    (
        "contested",
        "Threads that another program moves repeatedly and Pinfold leaves alone",
        |counts| counts.contested,
    ),
    ("yielded", "Threads that stay where their owner moved them", |counts| counts.yielded),
    ("replanned", "New plans because the machine or its CPUs changed", |counts| counts.replanned),
    ("moved", "Threads that these plans moved", |counts| counts.moved),
    ("groups", "Files of its cgroups that another program wrote to", |counts| counts.groups),
    ("findings", "Other findings", |counts| counts.findings),
];

fn text_of(Page { counts, pool, machines, host }: &Page) -> String {
    let mut text = format!(
        "# HELP pinfold_watch_placements Placements that are monitored.\n# TYPE pinfold_watch_placements gauge\npinfold_watch_placements {}\n",
        counts.len()
    );
    for (name, help, number) in COUNTERS {
        let name = format!("pinfold_watch_{name}_total");
        text.push_str(&format!("# HELP {name} {help}.\n# TYPE {name} counter\n"));
        for one in counts {
            let (id, vm) = (label(&one.id), label(&one.vm));
            text.push_str(&format!("{name}{{id=\"{id}\",vm=\"{vm}\"}} {}\n", number(one)));
        }
    }
    text.push_str(&usage::page(pool.as_ref(), machines));
    kernel_page::page(&mut text, host, machines);
    text
}

/// A label value, with the three characters escaped that the format requires, and without other
/// control characters.
fn label(text: &str) -> String {
    escape::name(&text.replace('\n', " ")).replace('\\', "\\\\").replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn dashboard_and_alerts_use_metrics_that_are_served() {
        let served = text_of(&Page::default());
        let dashboard = include_str!("../../../packaging/dashboards/grafana.json");
        let read: serde_json::Value = serde_json::from_str(dashboard).unwrap();
        assert!(read["panels"].as_array().is_some_and(|panels| panels.len() > 5));
        assert_eq!(names(dashboard), names(&served));
        let alerts = names(include_str!("../../../packaging/dashboards/alerts.yml"));
        assert!(alerts.len() == 9 && alerts.is_subset(&names(&served)), "{alerts:?}");
        let page = names(include_str!("../../../docs/metrics.md"));
        assert_eq!(page, names(&served), "docs/metrics.md has a row for each metric");
    }

    fn names(text: &str) -> std::collections::BTreeSet<String> {
        let words = text.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'));
        let words = words.filter(|word| word.starts_with("pinfold_"));
        words.map(|word| word.strip_suffix("_bucket").unwrap_or(word).to_owned()).collect()
    }

    #[test]
    fn a_hostile_name_stays_one_label() {
        let counts = Counts { vm: "a\"} 1\n\\evil\u{1b}".to_owned(), ..Counts::default() };
        let page = text_of(&Page { counts: vec![counts], ..Page::default() });
        assert!(page.contains(r#"vm="a\"} 1 \\evil\\u001b"} 0"#), "{page}");
        let values = page.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(values, COUNTERS.len() + 1, "{page}");
    }

    #[test]
    fn silent_and_endless_callers_are_hung_up_on_and_others_answered() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics").to_string_lossy().into_owned();
        let mut metrics =
            Metrics::open(MetricsAddress { socket: Some(&path), port: None }).unwrap();
        let silent = UnixStream::connect(&path).unwrap();
        let mut endless = UnixStream::connect(&path).unwrap();
        endless.write_all(&[b'x'; MAX_REQUEST + 1]).unwrap();
        let mut asking = UnixStream::connect(&path).unwrap();
        asking.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        metrics.serve(0, Page::default);
        assert_eq!(metrics.callers.len(), 1, "the silent one is waited for");
        let mut text = String::new();
        asking.read_to_string(&mut text).unwrap();
        assert!(text.contains("\npinfold_watch_placements 0\n"), "{text}");
        assert_eq!((metrics.next(), metrics.sources().len()), (Some(TIMEOUT_NS), 2));
        metrics.serve(TIMEOUT_NS, Page::default);
        assert!(metrics.callers.is_empty());
        drop(silent);
    }

    #[test]
    fn silent_callers_keep_no_one_waiting_and_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics").to_string_lossy().into_owned();
        let mut metrics =
            Metrics::open(MetricsAddress { socket: Some(&path), port: None }).unwrap();
        let silent: Vec<UnixStream> =
            (0..100).map(|_| UnixStream::connect(&path).unwrap()).collect();
        let mut asking = UnixStream::connect(&path).unwrap();
        asking.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        metrics.serve(0, Page::default);
        let mut text = String::new();
        asking.read_to_string(&mut text).unwrap();
        assert!(text.contains("\npinfold_watch_placements 0\n"), "answered at once: {text}");
        assert_eq!(metrics.callers.len(), MAX_CALLERS);
        assert_eq!(metrics.next(), Some(1_000_000_000), "and the silent ones go after a second");
        drop(silent);
    }
}
