//! `programs`: how fast programs of others run in a slow node, by method.
//!
//! Each program runs on one core, at full speed and at each speed, in random order, in a vnode of
//! the method: at full speed no method does anything. The ratio of the two times in a round is the
//! speed that the program got. cpulimit runs the same programs in a vnode of full speed.

use std::collections::BTreeMap;

use pinfold_host::process;
use pinfold_host::{LiveHost, files};
use pinfold_model::Method;
use pinfold_stats::random::Pcg32;
use pinfold_stats::{median, median_interval};

use crate::arguments::{Arguments, Failure};
use crate::emulate::platform::{Platform, Tools};
use crate::origin;
use crate::page::{Figures, Table};
use crate::pairs::program_beside;
use crate::scratch::Scratch;

const ROUNDS: u32 = 8;
const VNODE: &str = "programs";
/// The rival that is a program, in a vnode of full speed.
const CPULIMIT: &str = "cpulimit";
const CALIBRATED: &[&str] = &["--calibrate"];
/// Full speed, and the others, in percent.
const FULL: u32 = 100;
const SPEEDS: [u32; 3] = [75, 50, 25];
/// An error up to this many points is small.
const SMALL: f64 = 4.0;
/// Number and functions of the C files that `make` compiles.
const SOURCES: u32 = 40;
/// The programs of a short run.
const QUICK: [&str; 2] = ["gzip", "short processes"];
/// Lines of the text that programs read.
const LINES: u32 = 60_000;

/// What slows a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rival {
    name: &'static str,
    /// The method of the vnode in which it runs.
    method: Method,
    /// Options of `emulate up`.
    options: &'static [&'static str],
}

impl Rival {
    const ALL: [Self; 5] = [
        Self { name: "stall", method: Method::Stall, options: &[] },
        Self { name: "stall, calibrated", method: Method::Stall, options: CALIBRATED },
        Self { name: "hogs, calibrated", method: Method::Hogs, options: CALIBRATED },
        Self { name: "quota", method: Method::Quota, options: &[] },
        Self { name: CPULIMIT, method: Method::Quota, options: &[] },
    ];
}

/// A program that reads files of the scratch folder.
pub struct Program {
    /// Name of the row.
    pub name: &'static str,
    /// The program that must be installed.
    pub needs: &'static str,
    /// Shell command.
    pub script: &'static str,
    /// True if it prints its time in seconds.
    is_own_time: bool,
}

/// All but [`REQUESTS`]; `like` uses the first ones.
pub static PROGRAMS: [Program; 15] = [
    program("xz -3", "xz", "xz -3 -T1 -c text"),
    program("gzip", "gzip", "gzip -c text"),
    program("bzip2", "bzip2", "bzip2 -c text"),
    program("zstd -9", "zstd", "zstd -q -9 --single-thread -c text"),
    program("sort in a pipe", "sort", "cat text | tr a-m n-z | sort --parallel=1 | uniq -c"),
    program(
        "awk",
        "awk",
        "awk '{n[$1] += length($0)} END {for (k in n) print k, n[k]}' text text text text text text text text",
    ),
    program("make -j3, 40 C files", "make", "make -s -B -j3"),
    program("short processes", "sh", "i=0; while [ $i -lt 150 ]; do /bin/true; i=$((i + 1)); done"),
    program(
        "Python",
        "/usr/bin/python3",
        "/usr/bin/python3 -c 'd = {i: i * i for i in range(900000)}; sum(d.values())'",
    ),
    program("SQLite", "sqlite3", "sqlite3 :memory: < queries.sql"),
    program("openssl, SHA-512", "openssl", "openssl dgst -sha512 large"),
    program("openssl, AES-256", "openssl", "openssl enc -aes-256-ctr -K 00 -iv 00 -in large"),
    program("stress-ng, matrix", "stress-ng", "stress-ng -q --matrix 1 --matrix-ops 900"),
    program("sysbench, 1 thread", "sysbench", "sysbench cpu --events=600 --time=0 run"),
    program(
        "sysbench, 4 threads",
        "sysbench",
        "sysbench cpu --events=600 --time=0 --threads=4 run",
    ),
];
/// A request of about 2 ms, then 5 ms of sleep: the program prints the time of its requests.
const REQUESTS: Program = Program {
    name: "requests of 2 ms, 5 ms of sleep",
    needs: "/usr/bin/python3",
    script: "/usr/bin/python3 requests.py",
    is_own_time: true,
};
/// Rows, an index and a sum by group.
const QUERIES: &str = "\
CREATE TABLE t (a INTEGER, b TEXT);
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 150000)
    INSERT INTO t SELECT i, 'row ' || (i % 977) FROM n;
CREATE INDEX ib ON t (b);
SELECT b, sum(a) FROM t GROUP BY b;
";

const REQUESTS_TEXT: &str = "\
import time
total = 0
for _ in range(100):
    begin = time.perf_counter()
    sum(range(90000))
    total += time.perf_counter() - begin
    time.sleep(0.005)
print(total)
";

const fn program(name: &'static str, needs: &'static str, script: &'static str) -> Program {
    Program { name, needs, script, is_own_time: false }
}

impl Program {
    /// A command that runs the program in a folder and prints its time, without that of its own
    /// start.
    pub fn timed(&self, folder: &str) -> [String; 4] {
        let script = format!(
            "cd \"$0\" && begin=$(date +%s%N) && {{ {}; }} >output && end=$(date +%s%N) && echo time $((end - begin)) $(tail -c 40 output | tr -d '\\0' | tail -n 1)",
            self.script
        );
        ["sh".to_owned(), "-c".to_owned(), script, folder.to_owned()]
    }

    /// The time of the program (s), of what its command printed.
    pub fn seconds(&self, text: &str) -> Result<f64, Failure> {
        let line = text.lines().find_map(|line| line.strip_prefix("time "));
        let line = line.ok_or_else(|| format!("{}: no time in {text:?}", self.name))?;
        let (elapsed_ns, printed) = line.split_once(' ').unwrap_or((line, ""));
        if self.is_own_time {
            let seconds = printed.parse().map_err(|error| {
                format!("{}: it printed {printed:?}, not its time: {error}", self.name)
            })?;
            return Ok(seconds);
        }
        Ok(elapsed_ns.parse::<f64>()? / 1e9)
    }
}

/// One vnode on one core, for one rival.
struct Node<'s> {
    platform: Platform<'s>,
    rival: Rival,
    folder: &'s str,
}

/// The speed that a program got in one round.
struct Achieved {
    rival: Rival,
    percent: u32,
    program: &'static str,
    ratio: f64,
}

/// Measures all programs on this machine.
pub fn run(arguments: &Arguments) -> Result<Figures, Failure> {
    let host = LiveHost::new()?;
    let topology = pinfold_topology::discover(&host)?;
    let (scratch, pinfold) = (Scratch::on_disk()?, program_beside(arguments)?);
    let rounds = arguments.rounds.unwrap_or(ROUNDS);
    let mut random = Pcg32::new(arguments.seed, 4);
    write_inputs(&scratch, &mut random)?;
    let all = PROGRAMS.iter().chain([&REQUESTS]);
    let (mut programs, missing): (Vec<_>, Vec<_>) =
        all.partition(|one| process::find_program(one.needs).is_some());
    // The programs are those of the host.
    let tools = Tools { pinfold: &pinfold, pinload: "", folder: scratch.path() };
    let (mut rivals, mut achieved) = (Rival::ALL, Vec::new());
    if arguments.quick {
        programs.retain(|one| QUICK.contains(&one.name));
        rivals.iter_mut().for_each(|rival| rival.options = &[]);
    }
    for _ in 0..rounds {
        random.shuffle(&mut rivals);
        for rival in rivals {
            let node = Node::start(rival, tools)?;
            random.shuffle(&mut programs);
            for program in &programs {
                achieved.extend(node.run_all(program, &mut random)?);
            }
            node.platform.down()?;
        }
    }
    programs.sort_unstable_by_key(|one| one.name);
    let mut notes = vec![
        format!("Speed in percent of the same program in the same vnode at full speed, in the same round: median [95 %] of {rounds} rounds. Small is an error of at most {SMALL} points."),
        "The time of a program is that of its shell in the vnode; that of the requests is without their sleep, as they measure it. cpulimit also watches the processes that a program starts.".to_owned(),
    ];
    let of_cpulimit = achieved.iter().filter(|one| one.rival.name == CPULIMIT).count();
    let runs = programs.len() * SPEEDS.len() * usize::try_from(rounds)?;
    if of_cpulimit < runs {
        notes.push(format!(
            "Under cpulimit {} of {runs} runs failed and have no value.",
            runs - of_cpulimit
        ));
    }
    if !missing.is_empty() {
        let names: Vec<&str> = missing.iter().map(|one| one.name).collect();
        notes.push(format!("Not installed here: {}.", names.join(", ")));
    }
    Ok(Figures {
        name: "programs".to_owned(),
        title: "programs of others in a slow node of one core".to_owned(),
        origin: format!(
            "{}; Pinfold {}; seed {}",
            origin::of_host(&host, &topology)?,
            env!("CARGO_PKG_VERSION"),
            arguments.seed
        ),
        tables: SPEEDS.map(|percent| table(percent, &programs, &achieved)).into(),
        notes,
    })
}

/// The rows of one speed.
fn table(percent: u32, programs: &[&Program], achieved: &[Achieved]) -> Table {
    let mut small = [0_usize; Rival::ALL.len()];
    let mut rows = Vec::new();
    for program in programs {
        let mut row = vec![program.name.to_owned()];
        for (rival, small) in Rival::ALL.into_iter().zip(&mut small) {
            let is_of_cell = |one: &&Achieved| {
                one.rival == rival && one.percent == percent && one.program == program.name
            };
            let values: Vec<f64> =
                achieved.iter().filter(is_of_cell).map(|one| 100.0 * one.ratio).collect();
            let middle = median(&values).unwrap_or(f64::NAN);
            if (middle - f64::from(percent)).abs() <= SMALL {
                *small += 1;
            }
            row.push(match median_interval(&values) {
                Some((low, high)) => format!("{middle:.1} [{low:.1}, {high:.1}]"),
                None => format!("{middle:.1}"),
            });
        }
        rows.push(row);
    }
    let small = small.iter().map(|count| format!("{count} of {}", programs.len()));
    rows.push([format!("error of at most {SMALL} points")].into_iter().chain(small).collect());
    let names = Rival::ALL.iter().map(|rival| rival.name.to_owned());
    Table { head: [format!("at {percent} %")].into_iter().chain(names).collect(), rows }
}

/// Writes the text, the sources, the queries and the script that the programs read.
pub fn write_inputs(scratch: &Scratch, random: &mut Pcg32) -> Result<(), Failure> {
    let mut text = String::new();
    for _ in 0..LINES {
        let [word, other, number] = [200, 5_000, 100_000].map(|bound| random.draw_below(bound));
        text.push_str(&format!("word{word} of {other:04x} with {number}\n"));
    }
    files::write_atomic(&scratch.file("text"), text.as_bytes())?;
    files::write_atomic(&scratch.file("large"), text.repeat(40).as_bytes())?;
    let mut objects = String::new();
    for number in 0..SOURCES {
        let source = format!(
            "#include <stdio.h>\n#include <stdlib.h>\nint f{number}(int n) {{ int s = 0; for (int i = 0; i < n; i++) s += i * {number}; printf(\"%d\\n\", s); return s; }}\n"
        );
        files::write_atomic(&scratch.file(&format!("f{number}.c")), source.as_bytes())?;
        objects.push_str(&format!(" f{number}.o"));
    }
    let makefile = format!("all:{objects}\n%.o: %.c\n\tcc -O1 -c $< -o $@\n");
    files::write_atomic(&scratch.file("Makefile"), makefile.as_bytes())?;
    files::write_atomic(&scratch.file("queries.sql"), QUERIES.as_bytes())?;
    files::write_atomic(&scratch.file("requests.py"), REQUESTS_TEXT.as_bytes())?;
    Ok(())
}

impl<'s> Node<'s> {
    /// Starts the vnode at full speed, with the costs that earlier starts of this rival stored.
    fn start(rival: Rival, tools: Tools<'s>) -> Result<Self, Failure> {
        let text = format!(
            "[[vnode]]\nname = \"{VNODE}\"\ncores = 1\nspeed = \"100%\"\nmethod = \"{}\"\n",
            rival.method
        );
        let platform = Platform::up_with(tools, rival.name, &text, rival.options)?;
        Ok(Self { platform, rival, folder: tools.folder })
    }

    /// Runs a program at full speed and at each of the speeds.
    fn run_all(&self, program: &Program, random: &mut Pcg32) -> Result<Vec<Achieved>, Failure> {
        let mut percents = [FULL, SPEEDS[0], SPEEDS[1], SPEEDS[2]];
        random.shuffle(&mut percents);
        let mut times = BTreeMap::new();
        for percent in percents {
            match self.time(program, percent) {
                Ok(time) => drop(times.insert(percent, time)),
                // Some programs fail under cpulimit; a note counts them.
                Err(_) if self.rival.name == CPULIMIT && percent != FULL => {}
                Err(error) => return Err(error),
            }
        }
        let full = times.remove(&FULL).ok_or("no run at full speed")?;
        let achieved = times.into_iter().map(|(percent, time)| Achieved {
            rival: self.rival,
            percent,
            program: program.name,
            ratio: full / time,
        });
        Ok(achieved.collect())
    }

    /// The time of a program (s).
    fn time(&self, program: &Program, percent: u32) -> Result<f64, Failure> {
        let mut words = Vec::new();
        if self.rival.name != CPULIMIT {
            self.platform.set(VNODE, f64::from(percent) / 100.0)?;
            self.platform.settle();
        } else if percent != FULL {
            let options = [CPULIMIT, "--foreground", "--monitor-forks", "--quiet", "--limit"];
            words.extend(options.map(str::to_owned));
            words.extend([percent.to_string(), "--".to_owned()]);
        }
        words.extend(program.timed(self.folder));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        program.seconds(&self.platform.print_in(VNODE, &words)?)
    }
}
