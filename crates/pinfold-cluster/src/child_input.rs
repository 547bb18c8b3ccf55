//! Runs a program with a given standard input, and reads its output meanwhile.

use std::io::Write as _;

use pinfold_host::process::{self, Output, Signaled, Spawn, Stdio};
use pinfold_run::{Exit, Failure};

/// Runs a program with this standard input; the scheduler itself ends it if needed.
/// It is ended early when
/// `enough` is true for its standard error.
pub fn run_with_input(
    spawn: Spawn,
    input: &[u8],
    is_enough: &(dyn Fn(&str) -> bool + Sync),
) -> Result<Output, Failure> {
    let mut child = spawn
        .env("LC_ALL", "C")
        .stdin(Stdio::Pipe)
        .stdout(Stdio::Pipe)
        .stderr(Stdio::Pipe)
        .own_group()
        .start()?;
    let (stdin, stdout, stderr) = (child.stdin(), child.stdout(), child.stderr());
    let pid = child.pid();
    let gathered = std::thread::scope(|scope| {
        let written = scope.spawn(move || {
            let Some(mut pipe) = stdin else { return };
            // If the program does not read all of its input, its output has the reason.
            match pipe.write_all(input) {
                Ok(()) | Err(_) => {}
            }
        });
        let errors = scope.spawn(move || {
            gather(stderr, &mut |so_far| {
                if is_enough(&String::from_utf8_lossy(so_far)) {
                    // It may have ended by itself; it was not waited for yet.
                    match process::signal(pid, Signaled::Kill) {
                        Ok(()) | Err(_) => {}
                    }
                }
            })
        });
        let out = gather(stdout, &mut |_| {});
        let errors = errors.join().map_err(|_| std::io::Error::other("a thread panicked"))?;
        written.join().map_err(|_| std::io::Error::other("a thread panicked"))?;
        Ok((out?, errors?))
    });
    let (stdout, stderr) = gathered.map_err(|error: std::io::Error| {
        Failure::new(Exit::Host, format!("cannot communicate with it: {error}"))
    })?;
    let status = child.wait()?;
    Ok(Output { status, stdout, stderr })
}

/// Reads to the end, and passes on the data so far at each read.
fn gather(
    stream: Option<impl std::io::Read>,
    received: &mut dyn FnMut(&[u8]),
) -> std::io::Result<Vec<u8>> {
    let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
    let Some(mut stream) = stream else { return Ok(bytes) };
    loop {
        match stream.read(&mut piece) {
            Ok(0) => return Ok(bytes),
            Ok(count) => {
                bytes.extend_from_slice(&piece[..count]);
                received(&bytes);
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
