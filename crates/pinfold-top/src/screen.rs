//! The live screen: which machine waits most now, since when, and because of which task.
//!
//! [`Screen`] is what is shown and what the keys change; [`crate::LiveTerminal`] shows it. Colour
//! only repeats what a sign or a word says.

use std::collections::BTreeSet;

use pinfold_model::escape;
use pinfold_model::text::count_noun;
use ratatui_core::layout::{Constraint, Layout, Rect};
use ratatui_core::style::{Color, Modifier, Style};
use ratatui_core::terminal::Frame;
use ratatui_core::text::{Line, Text};
use ratatui_crossterm::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui_widgets::paragraph::Paragraph;
use ratatui_widgets::table::{Row, Table, TableState};

use crate::rows;
use crate::snapshot::{MachineSample, Snapshot};

/// Lines that a page has less than the screen.
const PAGE: usize = 10;
/// Notes that are shown below the table; all of them are on the page of the keys.
const NOTES: usize = 2;

const KEYS: &str = "Tab CPUs  Enter threads  s sort  / filter  z freeze  ? keys  q quit";

const HELP: &str = "\
Tab          machines, or the CPUs and their owners
Up, Down     select a machine (also k, j; PgUp, PgDn, Home, End)
Enter, Space show or hide the threads of the machine;  *  those of all
s, F6        sort by the next column;  S  by the one before
/, F4        show only machines whose name has this text; Esc shows all
z            freeze the screen, or continue
?, F1, h     this page
q, F10       quit

ready %   share of the time in which threads could run and waited for a CPU,
          summed over the threads
throt %   share of the time in which a quota of its cgroups stopped it
worst     the longest wait of the last minute
exits/s   exits of its vCPUs under KVM (root); from 100 columns on
!         a thread starves now: it waits, and has not run for the time shown
because   the task that ran longest on that CPU while the thread waited
Without BPF (root, BTF) waits are counted when they end, and causes guessed.";

/// What is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum View {
    Machines,
    Cpus,
    Keys,
}

/// By which column the machines are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Waits,
    Run,
    Ready,
    Throttled,
    Worst,
    Moves,
    Name,
}

impl Order {
    const ALL: [Order; 7] = [
        Order::Waits,
        Order::Run,
        Order::Ready,
        Order::Throttled,
        Order::Worst,
        Order::Moves,
        Order::Name,
    ];

    fn name(self) -> &'static str {
        match self {
            Order::Waits => "wait now",
            Order::Run => "run",
            Order::Ready => "ready",
            Order::Throttled => "throttled",
            Order::Worst => "worst wait",
            Order::Moves => "moves",
            Order::Name => "name",
        }
    }

    /// This many orders further.
    fn further(self, steps: usize) -> Self {
        let index = Self::ALL.iter().position(|order| *order == self).unwrap_or(0);
        Self::ALL[(index + steps) % Self::ALL.len()]
    }

    fn value(self, machine: &MachineSample) -> f64 {
        match self {
            Order::Waits => machine.worst().map_or(0.0, |thread| thread.wait_score()),
            Order::Run => machine.run(),
            Order::Ready => machine.ready(),
            Order::Throttled => machine.throttled_share.unwrap_or(0.0),
            Order::Worst => machine.worst_ns() as f64,
            Order::Moves => machine.moves() as f64,
            Order::Name => 0.0,
        }
    }
}

/// What the command does after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// It goes on.
    Continue,
    /// It ends.
    Quit,
}

/// The state of the screen.
#[derive(Clone, Debug)]
pub struct Screen {
    snapshot: Snapshot,
    /// The map of claims, as last read.
    claims: Vec<String>,
    view: View,
    order: Order,
    filter: String,
    is_typing: bool,
    selected: usize,
    /// First line of the map of claims that is shown.
    scrolled: usize,
    /// Processes of the machines whose threads are shown.
    unfolded: BTreeSet<u32>,
    is_frozen: bool,
    /// What is said instead of the keys.
    message: Option<String>,
}

impl Default for Screen {
    fn default() -> Self {
        Self {
            snapshot: Snapshot::default(),
            claims: Vec::new(),
            view: View::Machines,
            order: Order::Waits,
            filter: String::new(),
            is_typing: false,
            selected: 0,
            scrolled: 0,
            unfolded: BTreeSet::new(),
            is_frozen: false,
            message: Some("the first sample takes a second".to_owned()),
        }
    }
}

impl Screen {
    /// True while the user has stopped it.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.is_frozen
    }

    /// Shows a snapshot; while the screen is frozen the one before stays.
    pub fn show(&mut self, snapshot: Snapshot) {
        if self.is_frozen {
            return;
        }
        if !snapshot.claims.is_empty() {
            self.claims.clone_from(&snapshot.claims);
        }
        self.snapshot = snapshot;
        self.message = None;
        self.sort();
    }

    /// Shows a sentence in the last line until the next snapshot.
    pub fn set_message(&mut self, text: &str) {
        self.message = Some(text.to_owned());
    }

    /// What a key changes.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "keyboards have many keys without a meaning"
    )]
    pub fn press(&mut self, key: KeyEvent) -> Flow {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Flow::Quit;
        }
        if self.is_typing {
            self.type_filter(key.code);
            return Flow::Continue;
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::F(10) => return Flow::Quit,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.toggle(View::Keys),
            KeyCode::Tab => self.toggle(View::Cpus),
            KeyCode::Esc => {
                self.view = View::Machines;
                self.filter.clear();
            }
            KeyCode::Char('/') | KeyCode::F(4) => {
                self.view = View::Machines;
                self.is_typing = true;
            }
            KeyCode::Char('s') | KeyCode::F(6) => self.sort_by(self.order.further(1)),
            KeyCode::Char('S') => self.sort_by(self.order.further(Order::ALL.len() - 1)),
            KeyCode::Char('z') => self.is_frozen = !self.is_frozen,
            KeyCode::Enter | KeyCode::Char(' ') => self.fold(),
            KeyCode::Char('*') => self.fold_all(),
            code => self.scroll(code),
        }
        Flow::Continue
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "keyboards have many keys without a meaning"
    )]
    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(letter) if self.filter.len() < 64 => self.filter.push(letter),
            _ => {}
        }
        self.selected = 0;
    }

    /// Another view, or back to the machines.
    fn toggle(&mut self, view: View) {
        self.view = if self.view == view { View::Machines } else { view };
    }

    fn sort_by(&mut self, order: Order) {
        self.order = order;
        self.sort();
    }

    fn sort(&mut self) {
        let order = self.order;
        self.snapshot.machines.sort_by(|a, b| {
            order.value(b).total_cmp(&order.value(a)).then_with(|| a.name.cmp(&b.name))
        });
    }

    fn fold(&mut self) {
        let Some(pid) = self.machines().nth(self.selected).map(|machine| machine.pid) else {
            return;
        };
        if !self.unfolded.remove(&pid) {
            self.unfolded.insert(pid);
        }
    }

    fn fold_all(&mut self) {
        if self.unfolded.is_empty() {
            self.unfolded = self.snapshot.machines.iter().map(|machine| machine.pid).collect();
        } else {
            self.unfolded.clear();
        }
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "keyboards have many keys without a meaning"
    )]
    fn scroll(&mut self, code: KeyCode) {
        let (count, at) = match self.view {
            View::Machines => (self.machines().count(), &mut self.selected),
            View::Cpus => (self.claims.len(), &mut self.scrolled),
            View::Keys => return,
        };
        let last = count.saturating_sub(1);
        *at = match code {
            KeyCode::Up | KeyCode::Char('k') => at.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => *at + 1,
            KeyCode::PageUp => at.saturating_sub(PAGE),
            KeyCode::PageDown => *at + PAGE,
            KeyCode::Home => 0,
            KeyCode::End => last,
            _ => *at,
        }
        .min(last);
    }

    /// True for a name that the filter leaves.
    fn is_wanted(&self, name: &str) -> bool {
        name.to_lowercase().contains(&self.filter.to_lowercase())
    }

    /// The machines that the filter leaves.
    fn machines(&self) -> impl Iterator<Item = &MachineSample> {
        self.snapshot.machines.iter().filter(|machine| self.is_wanted(&machine.name))
    }

    /// Draws it.
    pub fn draw(&self, frame: &mut Frame<'_>) {
        let notes = self.snapshot.notes.len().min(NOTES);
        let notes = u16::try_from(notes).unwrap_or(0);
        let rows = [
            Constraint::Length(3),
            Constraint::Min(1),
            Constraint::Length(notes),
            Constraint::Length(1),
        ];
        let [head, body, foot, keys] = Layout::vertical(rows).areas(frame.area());
        frame.render_widget(self.heading(), head);
        match self.view {
            View::Machines => self.draw_machines(frame, body),
            View::Cpus => self.draw_claims(frame, body),
            View::Keys => frame.render_widget(Paragraph::new(self.keys()), body),
        }
        frame.render_widget(Text::from_iter(self.notes().take(NOTES)), foot);
        frame.render_widget(self.last_line(), keys);
    }

    /// The worst wait of all machines, and the sums.
    fn heading(&self) -> Paragraph<'static> {
        let worst = self.snapshot.worst();
        let style = match &worst {
            Some(_) => Style::new().fg(Color::Red).add_modifier(Modifier::BOLD),
            None => Style::new().add_modifier(Modifier::BOLD),
        };
        let first = worst.unwrap_or_else(|| "no thread waits for a CPU now".to_owned());
        let machines = &self.snapshot.machines;
        let sum = |value: fn(&MachineSample) -> f64| {
            machines.iter().fold(0.0, |sum, machine| sum + value(machine))
        };
        let second = format!(
            "{}: run {:.2} CPUs, ready {:.2}; by {}{}{}",
            count_noun(machines.len(), "machine"),
            sum(MachineSample::run),
            sum(MachineSample::ready),
            self.order.name(),
            if self.is_frozen { "; FROZEN" } else { "" },
            if self.filter.is_empty() { "" } else { "; filtered" },
        );
        let third = format!("this command: {}", self.snapshot.cost());
        let lines = vec![Line::styled(first, style), Line::from(second), Line::from(third)];
        Paragraph::new(Text::from(lines))
    }

    fn draw_machines(&self, frame: &mut Frame<'_>, area: Rect) {
        let mut lines: Vec<Row<'static>> = Vec::new();
        let mut at = 0;
        for (index, machine) in self.machines().enumerate() {
            if index == self.selected {
                at = lines.len();
            }
            let row = Row::new(rows::machine(machine));
            lines.push(if machine.is_starving() { row.style(STARVING) } else { row });
            if self.unfolded.contains(&machine.pid) {
                lines.extend(machine.threads.iter().map(|thread| {
                    let row = Row::new(rows::thread(thread));
                    if thread.is_starving() { row.style(STARVING) } else { row }
                }));
            }
        }
        let vnodes = self.snapshot.vnodes.iter().filter(|vnode| self.is_wanted(&vnode.name));
        lines.extend(vnodes.map(|vnode| Row::new(rows::vnode(vnode))));
        if lines.is_empty() {
            let text = if self.filter.is_empty() {
                "no machine is running here".to_owned()
            } else {
                format!("no machine and no vnode has {:?} in its name", escape::name(&self.filter))
            };
            frame.render_widget(Paragraph::new(text), area);
            return;
        }
        let hidden = usize::from(area.width < rows::WIDE);
        let table = Table::new(lines, rows::WIDTHS.into_iter().take(rows::WIDTHS.len() - hidden))
            .header(Row::new(rows::HEADER).style(Style::new().add_modifier(Modifier::UNDERLINED)))
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
            .highlight_symbol(">");
        let mut state = TableState::new().with_selected(Some(at));
        frame.render_stateful_widget(table, area, &mut state);
    }

    fn draw_claims(&self, frame: &mut Frame<'_>, area: Rect) {
        let lines = self.claims.iter().skip(self.scrolled).map(|line| {
            let style = if line.contains("twice") { STARVING } else { Style::new() };
            Line::styled(escape::name(line).into_owned(), style)
        });
        let text = if self.claims.is_empty() {
            Text::from("the owners of the CPUs are not known")
        } else {
            Text::from_iter(lines)
        };
        frame.render_widget(Paragraph::new(text), area);
    }

    fn keys(&self) -> Text<'static> {
        let mut text = Text::from(HELP);
        if !self.snapshot.notes.is_empty() {
            text.push_line("");
        }
        self.notes().for_each(|note| text.push_line(note));
        text
    }

    fn notes(&self) -> impl Iterator<Item = Line<'static>> {
        self.snapshot.notes.iter().map(|note| Line::from(format!("note: {}", escape::name(note))))
    }

    fn last_line(&self) -> Line<'static> {
        let style = Style::new().add_modifier(Modifier::REVERSED);
        if self.is_typing {
            return Line::styled(
                format!("filter: {}_   Enter keeps it, Esc shows all", self.filter),
                style,
            );
        }
        Line::styled(self.message.clone().unwrap_or_else(|| KEYS.to_owned()), style)
    }
}

const STARVING: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{Method, ThreadSample, VnodeSample};
    use pinfold_samples::golden;
    use ratatui_core::backend::TestBackend;
    use ratatui_core::terminal::Terminal;

    fn thread(role: &str, cpu: u32, ready_share: f64) -> ThreadSample {
        ThreadSample {
            role: role.to_owned(),
            cpu,
            run_share: 0.5,
            ready_share,
            worst_ns: 12_300_000,
            moves: 3,
            ..ThreadSample::default()
        }
    }

    fn example() -> Snapshot {
        let starving = ThreadSample {
            waiting_ns: Some(2_345_000_000),
            because_of: Some("stress (4711)".to_owned()),
            ..thread("vcpu(1)", 2, 0.432)
        };
        let web = MachineSample {
            name: "web".to_owned(),
            pid: 100,
            throttled_share: Some(0.25),
            exits_per_second: Some(51_234.4),
            placement: Some("drifted".to_owned()),
            threads: vec![thread("vcpu(0)", 1, 0.0), starving],
        };
        let db = MachineSample {
            name: "database-with-a-long-name".to_owned(),
            pid: 200,
            threads: vec![thread("vcpu(0)", 3, 0.0)],
            ..MachineSample::default()
        };
        let edge =
            VnodeSample { name: "edge".to_owned(), cpu: 5, requested: 0.5, achieved: Some(0.491) };
        let mut snapshot = Snapshot {
            method: Some(Method::Bpf),
            own_share: 0.004,
            kernel_share: Some(0.001),
            lost: Some(0),
            machines: vec![db, web],
            vnodes: vec![edge],
            claims: (0..40).map(|cpu| format!("CPU {cpu}: web")).collect(),
            ..Snapshot::default()
        };
        snapshot.sort();
        snapshot
    }

    /// The text of the screen in a terminal of this size.
    fn drawn(screen: &Screen, columns: u16, lines: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(columns, lines)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let width = usize::from(columns);
        let rows = buffer.content().chunks(width.max(1));
        rows.map(|row| {
            let row: String = row.iter().map(|cell| cell.symbol()).collect();
            row.trim_end().to_owned() + "\n"
        })
        .collect()
    }

    fn press(screen: &mut Screen, codes: &[KeyCode]) {
        for code in codes {
            assert_eq!(screen.press(KeyEvent::from(*code)), Flow::Continue);
        }
    }

    fn shown() -> Screen {
        let mut screen = Screen::default();
        screen.show(example());
        screen
    }

    #[test]
    fn the_machine_that_waits_most_is_named_with_the_cause() {
        let mut screen = shown();
        golden(env!("CARGO_MANIFEST_DIR"), "80x24.txt", &drawn(&screen, 80, 24));
        press(&mut screen, &[KeyCode::Enter]);
        golden(env!("CARGO_MANIFEST_DIR"), "200x50.txt", &drawn(&screen, 200, 50));
        press(&mut screen, &[KeyCode::Char('?')]);
        golden(env!("CARGO_MANIFEST_DIR"), "keys.txt", &drawn(&screen, 80, 24));
    }

    /// The keys of the first part of the page of keys; `,` and `;` separate them.
    fn named_keys() -> Vec<&'static str> {
        let keys = HELP.lines().take_while(|line| !line.is_empty());
        keys.flat_map(str::split_whitespace)
            .map(|word| word.trim_matches([',', ';', '(', ')']))
            .collect()
    }

    #[test]
    fn each_key_and_column_is_described() {
        let letters = ('!'..='~').map(|letter| (KeyCode::Char(letter), letter.to_string()));
        let functions = (1..=12).map(|number| (KeyCode::F(number), format!("F{number}")));
        for (code, name) in letters.chain(functions) {
            let mut screen = shown();
            press(&mut screen, &[KeyCode::Down]);
            let before = format!("{screen:?}");
            let ends = screen.press(KeyEvent::from(code)) == Flow::Quit;
            let acts = ends || format!("{screen:?}") != before;
            assert!(!acts || named_keys().contains(&name.as_str()), "HELP does not have {name}");
        }
        let page = include_str!("../../../docs/top.md");
        for name in rows::HEADER {
            assert!(page.contains(name), "docs/top.md does not have the column {name}");
        }
    }

    #[test]
    fn no_size_is_too_small() {
        let mut screen = shown();
        press(&mut screen, &[KeyCode::Char('*')]);
        for view in [KeyCode::F(5), KeyCode::Tab, KeyCode::F(1)] {
            press(&mut screen, &[view]);
            for (columns, lines) in [(0, 0), (1, 1), (3, 3), (20, 4), (79, 2), (200, 50)] {
                let _: String = drawn(&screen, columns, lines);
            }
        }
    }

    #[test]
    fn keys_sort_filter_fold_and_freeze() {
        let mut screen = shown();
        press(&mut screen, &[KeyCode::Char('S')]);
        let text = drawn(&screen, 80, 12);
        assert!(text.contains("by name"), "{text}");
        assert!(text.find("database").unwrap() < text.find("web (drifted)").unwrap(), "{text}");
        press(&mut screen, &[KeyCode::Char('/'), KeyCode::Char('E'), KeyCode::Char('B')]);
        assert!(drawn(&screen, 80, 12).contains("filter: EB_"));
        press(&mut screen, &[KeyCode::Enter]);
        assert!(!drawn(&screen, 80, 12).contains("database"));
        press(&mut screen, &[KeyCode::Char('/'), KeyCode::Char('?'), KeyCode::Enter]);
        assert!(drawn(&screen, 80, 12).contains("no vnode has \"EB?\" in its name"));
        press(&mut screen, &[KeyCode::Esc, KeyCode::Char('z')]);
        screen.show(Snapshot::default());
        let text = drawn(&screen, 80, 12);
        assert!(text.contains("FROZEN") && text.contains("database"), "{text}");
        press(&mut screen, &[KeyCode::Char('z')]);
        screen.show(Snapshot::default());
        assert!(drawn(&screen, 80, 12).contains("no thread waits for a CPU now"));
        press(&mut screen, &[KeyCode::Tab, KeyCode::End]);
        assert!(drawn(&screen, 80, 12).contains("CPU 39: web"), "the map that was read last stays");
        let quit = [
            KeyEvent::from(KeyCode::Char('q')),
            KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL),
        ];
        for key in quit {
            assert_eq!(screen.press(key), Flow::Quit);
        }
    }

    #[test]
    fn what_is_in_a_record_moves_no_cursor() {
        let mut snapshot = example();
        snapshot.machines[0].name = "a\u{1b}[2Jb".to_owned();
        snapshot.claims = vec!["x\u{1b}]0;title\u{7}".to_owned()];
        let mut screen = Screen::default();
        screen.show(snapshot);
        assert!(!drawn(&screen, 80, 12).contains('\u{1b}'));
        press(&mut screen, &[KeyCode::Tab]);
        assert!(!drawn(&screen, 80, 12).contains('\u{1b}'));
    }
}
