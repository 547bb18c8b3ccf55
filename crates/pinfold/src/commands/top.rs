//! `pinfold top`: shows which machine waits most, since when, and because of which task.

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use pinfold_host::{Clock as _, SystemClock};
use pinfold_run::top::{self, LiveSource, RecordSource, Source, Viewer};
use pinfold_run::{Exit, Failure, host, interrupt};
use pinfold_top::{Flow, LiveTerminal, Screen, Snapshot, rows};

use crate::cli::TopArgs;
use crate::output::{self, print_data};
use crate::screen;

/// Interval in which signals are looked for.
const SLICE_NS: u64 = 100_000_000;
const SLICE: Duration = Duration::from_nanos(SLICE_NS);

/// Shows the machines of this host, or those of a record.
pub fn top(arguments: &TopArgs, state: Option<&str>) -> Result<(), Failure> {
    interrupt::install()?;
    if let Some(path) = &arguments.replay {
        return view(&mut RecordSource::open(path)?, arguments);
    }
    let host = host::live()?;
    view(&mut LiveSource::new(&host, state, arguments.record.as_deref())?, arguments)
}

/// On the terminal a live screen, elsewhere lines.
fn view(source: &mut dyn Source, arguments: &TopArgs) -> Result<(), Failure> {
    if arguments.once || arguments.json || !io::stdout().is_terminal() {
        return top::observe(
            source,
            &mut Printer { is_once: arguments.once, is_json: arguments.json },
        );
    }
    let terminal = LiveTerminal::open().map_err(|error| screen_failure(&error))?;
    let mut viewer = LiveViewer { terminal, screen: Screen::default(), has_ended: false };
    viewer.draw()?;
    top::observe(source, &mut viewer)
}

fn screen_failure(error: &io::Error) -> Failure {
    Failure::from_error(Exit::Host, error, None)
        .with_hint("`pinfold top --once` prints one sample without a live screen")
}

/// Prints each snapshot.
struct Printer {
    is_once: bool,
    is_json: bool,
}

impl Viewer for Printer {
    fn wait(&mut self, until_ns: u64, is_live: bool) -> Result<bool, Failure> {
        while is_live && SystemClock.now_ns() < until_ns && !interrupt::is_requested() {
            let left = until_ns.saturating_sub(SystemClock.now_ns());
            SystemClock.sleep_ns(left.min(SLICE_NS));
        }
        Ok(!interrupt::is_requested())
    }

    fn show(&mut self, snapshot: Snapshot) -> Result<bool, Failure> {
        if self.is_json {
            print_data(top::json_line(&snapshot)?.trim_end());
        } else {
            print_data(&text(&snapshot));
        }
        Ok(!self.is_once)
    }

    fn end(&mut self) -> Result<(), Failure> {
        Ok(())
    }
}

/// The longest wait, a table of the machines, and what could not be read.
fn text(snapshot: &Snapshot) -> String {
    let mut text = snapshot.worst().unwrap_or_else(|| "no thread waits for a CPU now".to_owned());
    let mut table = screen::rows();
    table.set_header(join_cells(rows::HEADER.map(str::to_owned)));
    for machine in &snapshot.machines {
        table.add_row(join_cells(rows::machine(machine)));
    }
    text.push('\n');
    if snapshot.machines.is_empty() {
        text.push_str("no machine is running here");
    } else {
        text.push_str(&screen::draw_table(table, 1..7));
    }
    text.push_str(&format!("\nthis command: {}", snapshot.cost()));
    for note in &snapshot.notes {
        text.push_str(&format!("\nnote: {}", output::name(note)));
    }
    text
}

/// The machine and its longest wait in one cell, which is put on a line of its own if the table is
/// too wide.
fn join_cells(row: [String; 8]) -> Vec<String> {
    let [machine, waits, numbers @ ..] = row;
    let first = if waits == "-" { machine } else { format!("{machine}: {waits}") };
    [first].into_iter().chain(numbers).collect()
}

/// The live screen.
struct LiveViewer {
    terminal: LiveTerminal,
    screen: Screen,
    has_ended: bool,
}

impl LiveViewer {
    fn draw(&mut self) -> Result<(), Failure> {
        self.terminal.draw(&self.screen).map_err(|error| screen_failure(&error))
    }
}

impl Viewer for LiveViewer {
    fn wait(&mut self, until_ns: u64, is_live: bool) -> Result<bool, Failure> {
        loop {
            // A record waits for the user, the host does not.
            let waits = self.has_ended || !is_live && self.screen.is_frozen();
            let left = Duration::from_nanos(until_ns.saturating_sub(SystemClock.now_ns()));
            if interrupt::is_requested() {
                return Ok(false);
            }
            if left.is_zero() && !waits {
                return Ok(true);
            }
            let slice = if waits { SLICE } else { left.min(SLICE) };
            let flow = self.terminal.take_keys(&mut self.screen, slice);
            if flow.map_err(|error| screen_failure(&error))? == Flow::Quit {
                return Ok(false);
            }
        }
    }

    fn show(&mut self, snapshot: Snapshot) -> Result<bool, Failure> {
        self.screen.show(snapshot);
        self.draw()?;
        Ok(true)
    }

    fn end(&mut self) -> Result<(), Failure> {
        self.has_ended = true;
        self.screen.set_message("end of the record; q quits");
        self.draw()?;
        self.wait(u64::MAX, false).map(|_| ())
    }
}
