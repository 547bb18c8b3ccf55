//! The condition under which a guest counts as booted: its agent answers, a port is open, or a time
//! has passed.

use std::io::{Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use pinfold_host::{Clock as _, SystemClock};

use crate::{Exit, Failure, interrupt, time};

const OPTION: &str = "--pin-after";
/// Pause between two checks (ns).
const PAUSE_NS: u64 = 100_000_000;
/// Longest time for one answer (ns).
const ANSWER_NS: u64 = 1_000_000_000;
/// Longest answer of the agent: late answers to earlier checks come first.
const MOST_BYTES: usize = 1 << 16;

/// A condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The guest agent of QEMU answers.
    Agent,
    /// A TCP port accepts connections: `HOST:PORT`.
    Port(String),
    /// This time has passed since the start (ns).
    Time(u64),
}

/// How the wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The condition holds.
    Ready,
    /// It did not hold in time.
    TimedOut,
    /// The machine has ended.
    Ended,
}

impl Condition {
    /// Parses `agent`, `port HOST:PORT`, or a time such as `10s`.
    ///
    /// # Errors
    /// [`Failure`] if it is none of them.
    pub fn parse(text: &str) -> Result<Self, Failure> {
        let text = text.trim();
        if text == "agent" {
            return Ok(Self::Agent);
        }
        if let Some(address) = text.strip_prefix("port ").map(str::trim) {
            let port = address.rsplit_once(':').filter(|(host, _)| !host.is_empty());
            return match port.and_then(|(_, port)| port.parse::<u16>().ok()) {
                Some(1..) => Ok(Self::Port(address.to_owned())),
                Some(0) | None => {
                    let text = format!("{OPTION}: expected HOST:PORT, got {address:?}");
                    Err(Failure::new(Exit::Input, text)
                        .with_hint("for example: --pin-after 'port 192.0.2.7:22'"))
                }
            };
        }
        time::parse_ns(OPTION, text).map(Self::Time).map_err(|failure| Failure {
            hint: Some(
                "write `agent`, `port HOST:PORT`, or a time with its unit, such as 10s".to_owned(),
            ),
            ..failure
        })
    }

    /// The condition in words, for `when …`.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::Agent => "the guest agent answers".to_owned(),
            Self::Port(address) => format!("port {address} is open"),
            Self::Time(ns) => format!("{} have passed", time::wait(*ns)),
        }
    }

    fn holds(&self, agent: Option<&str>, passed_ns: u64) -> bool {
        match self {
            Self::Agent => agent.is_some_and(agent_answers),
            Self::Port(address) => is_open(address),
            Self::Time(ns) => passed_ns >= *ns,
        }
    }

    /// Waits until the condition holds, at most `timeout_ns`; a time is waited for in full. `agent`
    /// is the socket of the guest agent.
    ///
    /// # Errors
    /// [`Failure`] if a stop is requested, or from `is_running`.
    pub fn wait(
        &self,
        agent: Option<&str>,
        timeout_ns: u64,
        is_running: &mut dyn FnMut() -> Result<bool, Failure>,
    ) -> Result<Outcome, Failure> {
        let begin = SystemClock.now_ns();
        loop {
            interrupt::check()?;
            if !is_running()? {
                return Ok(Outcome::Ended);
            }
            let passed = SystemClock.now_ns().saturating_sub(begin);
            if self.holds(agent, passed) {
                return Ok(Outcome::Ready);
            }
            let left = match self {
                Self::Time(ns) => ns.saturating_sub(passed),
                Self::Agent | Self::Port(_) if passed >= timeout_ns => {
                    return Ok(Outcome::TimedOut);
                }
                Self::Agent | Self::Port(_) => timeout_ns.saturating_sub(passed),
            };
            SystemClock.sleep_ns(PAUSE_NS.min(left));
        }
    }
}

/// True if the agent behind a socket answers. QEMU accepts the connection before the guest runs an
/// agent, so only an answer counts.
fn agent_answers(socket: &str) -> bool {
    ask_agent(socket).unwrap_or(false)
}

/// `guest-sync` is answered with the same number, which late answers to earlier checks do not have.
/// The guest is not trusted: time and size of its answer are bounded.
fn ask_agent(socket: &str) -> std::io::Result<bool> {
    let begin = SystemClock.now_ns();
    let end = begin.saturating_add(ANSWER_NS);
    let mut stream = UnixStream::connect(socket)?;
    stream.set_write_timeout(Some(Duration::from_nanos(ANSWER_NS)))?;
    let number = begin & 0x7fff_ffff;
    let request = format!("{{\"execute\":\"guest-sync\",\"arguments\":{{\"id\":{number}}}}}\n");
    stream.write_all(request.as_bytes())?;
    let (mut received, mut chunk) = (Vec::new(), [0_u8; 4096]);
    while received.len() < MOST_BYTES {
        let left = end.saturating_sub(SystemClock.now_ns());
        if left == 0 {
            break;
        }
        stream.set_read_timeout(Some(Duration::from_nanos(left)))?;
        let count = stream.read(&mut chunk)?;
        received.extend_from_slice(chunk.get(..count).unwrap_or_default());
        if has_answer(&String::from_utf8_lossy(&received), number) {
            return Ok(true);
        }
        if count == 0 {
            break;
        }
    }
    Ok(false)
}

/// True if a whole line returns this number.
fn has_answer(text: &str, number: u64) -> bool {
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().any(|line| {
        let answer = line.split_once("\"return\"").map(|(_, rest)| rest);
        let digits = answer.map(|rest| rest.trim_matches(|one: char| !one.is_ascii_digit()));
        digits == Some(number.to_string().as_str())
    })
}

/// True if a TCP port accepts a connection.
fn is_open(address: &str) -> bool {
    let mut addresses = address.to_socket_addrs().into_iter().flatten();
    let wait = Duration::from_nanos(ANSWER_NS);
    addresses.any(|one| TcpStream::connect_timeout(&one, wait).is_ok())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn conditions_are_parsed() {
        assert_eq!(Condition::parse("agent").ok(), Some(Condition::Agent));
        assert_eq!(Condition::parse("10s").ok(), Some(Condition::Time(10_000_000_000)));
        let port = Condition::parse("port [::1]:22").ok();
        assert_eq!(port, Some(Condition::Port("[::1]:22".to_owned())));
        for wrong in ["", "port", "port 22", "port :22", "port h:0", "port h:x", "agents", "10"] {
            let failure = Condition::parse(wrong).unwrap_err();
            assert!(failure.message.starts_with("--pin-after"), "{failure}");
            assert!(failure.hint.is_some());
        }
    }

    #[test]
    fn only_the_own_number_in_a_whole_line_is_an_answer() {
        assert!(has_answer("{\"return\": 7}\n", 7));
        assert!(has_answer("{\"return\": 5}\r\n{\"return\":7}\r\n{", 7));
        for other in ["", "{\"return\": 7}", "{\"return\": 71}\n", "{\"error\": 7}\n", "7\n"] {
            assert!(!has_answer(other, 7), "{other}");
        }
    }

    /// A guest that answers nothing, and one that never ends its line.
    #[test]
    fn an_agent_without_an_answer_is_left_after_its_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        std::thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                while stream.write_all(&[b'x'; 4096]).is_ok() {}
            }
        });
        let begin = SystemClock.now_ns();
        assert!(!agent_answers(&path.to_string_lossy()));
        assert!(SystemClock.now_ns() - begin < 5 * ANSWER_NS);
        assert!(!agent_answers("/nonexistent/agent"));
    }

    #[test]
    fn a_port_is_waited_for_and_a_closed_one_only_for_the_timeout() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = Condition::Port(listener.local_addr().unwrap().to_string());
        let mut runs = || Ok(true);
        assert_eq!(port.wait(None, u64::MAX, &mut runs).ok(), Some(Outcome::Ready));
        drop(listener);
        assert_eq!(port.wait(None, 1, &mut runs).ok(), Some(Outcome::TimedOut));
        assert_eq!(port.wait(None, 1, &mut || Ok(false)).ok(), Some(Outcome::Ended));
        // The timeout is for conditions that may never hold.
        assert_eq!(Condition::Time(2_000_000).wait(None, 1, &mut runs).ok(), Some(Outcome::Ready));
    }
}
