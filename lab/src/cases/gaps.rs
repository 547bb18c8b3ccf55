//! `pinfold measure gaps` next to other observers of the same events: `runqslower`, which prints each
//! long wait for a CPU with the task that ran last, and the analysis of rtla's timerlat, which
//! explains the wait of its own thread.
//!
//! The guest has one CPU, whose clock counts instructions: no time passes in it while this machine
//! runs something else, as long as the CPU has something to do. So one of its tasks never sleeps.

use serde_json::Value;

use crate::error::{LabError, expect_none};
use crate::guest::Guest;
use crate::guest_files::RTLA;

/// Waits from this length on must be in both lists (µs). Both begin with shorter ones, because two
/// observers differ by some µs.
const LONG_US: u64 = 2_000;
/// Two observers of a wait differ by this (µs, per cent): one begins with the interrupt that
/// preempted the thread.
const APART_US: u64 = 100;
const APART_PERCENT: u64 = 1;
/// Number of waits that must have been compared.
const COMPARED: usize = 20;

/// The groups, whose quotas are read too, and what the others need.
const MOUNTS: &str = "mount -t cgroup2 none /sys/fs/cgroup
    echo +cpu > /sys/fs/cgroup/cgroup.subtree_control
    for kind in debugfs:debug tracefs:tracing; do
        mount -t ${kind%:*} none /sys/kernel/${kind#*:} 2> /dev/null || true
    done";

/// Observes a loop with both; Pinfold sleeps for the first time when it observes. Then another loop,
/// and a task of real-time priority that works for different times, take the CPU from it. Prints the
/// gaps as JSON.
const BOTH: &str = "sh -c 'echo $$ > /tmp/observed; while :; do :; done' &
    until [ -s /tmp/observed ]; do usleep 50000; done
    runqslower -P -t $(cat /tmp/observed) 1000 > /tmp/waits 2> /tmp/waits.err &
    slower=$!
    n=0
    until ls -l /proc/$slower/fd | grep -q perf_event; do
        n=$((n + 1)); [ $n -lt 600 ] || { cat /tmp/waits.err >&2; exit 1; }
        usleep 100000
    done
    pinfold measure gaps --process $(cat /tmp/observed) --over 1ms --seconds 5 --json \
        > /tmp/gaps 2> /tmp/gaps.err &
    pinfold=$!
    until grep -q nanosleep /proc/$pinfold/wchan || ! kill -0 $pinfold; do usleep 50000; done
    sh -c 'while :; do :; done' &
    loop=$!
    chrt -f 10 sh -c 'while :; do
            for n in 3 9 1 12 5 7 2 10 4; do
                k=0; while [ $k -lt ${n}00 ]; do k=$((k+1)); done; usleep 30000
            done
        done' &
    bursts=$!
    sleep 6
    kill $loop $bursts
    wait $pinfold || { cat /tmp/gaps.err >&2; exit 1; }
    kill -INT $slower; wait $slower || true
    cat /tmp/gaps";

pub(super) fn next_to_runqslower(guest: &mut Guest) -> Result<String, LabError> {
    guest.shell(MOUNTS)?;
    let gaps = gaps_of(&guest.shell(BOTH)?)?;
    let waits = guest.shell("cat /tmp/waits /tmp/waits.err")?;
    compare(&gaps, &parse_waits(&waits))
        .map_err(|why| LabError::wrong("gaps and runqslower differ", format!("{why}\n{waits}")))
}

/// A wait of `runqslower -P`: `10:30:18 sh 231 4012 sh 233`.
struct Wait {
    us: u64,
    previous: String,
    previous_tid: Option<u64>,
}

fn parse_waits(text: &str) -> Vec<Wait> {
    let waits = text.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [time, _, _, us, previous @ .., tid] = words.as_slice() else { return None };
        let us = us.parse().ok().filter(|_| time.contains(':'))?;
        Some(Wait { us, previous: previous.join(" "), previous_tid: tid.parse().ok() })
    });
    waits.collect()
}

/// A gap with its causes, the longest first.
struct FoundGap {
    us: u64,
    causes: Vec<Value>,
}

impl FoundGap {
    /// True if the task that ran last is one of its causes.
    fn has(&self, wait: &Wait) -> bool {
        self.causes.iter().any(|cause| match cause["kind"].as_str() {
            Some("thread") => cause["tid"].as_u64() == wait.previous_tid,
            Some("kernel-work") => cause["worker"].as_str() == Some(&wait.previous),
            _ => false,
        })
    }

    fn causes_text(&self) -> String {
        Value::from(self.causes.clone()).to_string()
    }
}

fn gaps_of(text: &str) -> Result<Vec<FoundGap>, LabError> {
    let line = text.lines().find(|line| line.starts_with('{')).unwrap_or_default();
    let json: Value = serde_json::from_str(line)
        .map_err(|_| LabError::wrong("pinfold measure gaps", text.to_owned()))?;
    let lost = json["found"][0]["summary"]["lost"].as_array().into_iter().flatten();
    // Some kernels and processors lack events, and some events are nested, which is reported.
    let is_usual =
        |text: &&str| ["lacks the events", "nested"].iter().any(|part| text.contains(part));
    let lost = lost.filter_map(Value::as_str).filter(|text| !is_usual(text));
    expect_none("the observation lost something", lost.map(str::to_owned).collect())?;
    let gaps = json["found"][0]["gaps"].as_array().into_iter().flatten().map(|gap| {
        let parts = gap["parts"].as_array().into_iter().flatten();
        FoundGap {
            us: gap["length_ns"].as_u64().unwrap_or(0) / 1000,
            causes: parts.map(|part| part["cause"].clone()).collect(),
        }
    });
    Ok(gaps.collect())
}

fn is_near(one: u64, other: u64) -> bool {
    one.abs_diff(other) <= APART_US.max(other * APART_PERCENT / 100)
}

/// Both lists from their beginning, as pairs; ends where a long wait is in one of them only.
fn pair<'a>(gaps: &'a [FoundGap], waits: &'a [Wait]) -> (Vec<(&'a FoundGap, &'a Wait)>, usize) {
    let (mut pairs, mut gap_at, mut wait_at) = (Vec::new(), 0, 0);
    while let (Some(gap), Some(wait)) = (gaps.get(gap_at), waits.get(wait_at)) {
        if is_near(gap.us, wait.us) {
            pairs.push((gap, wait));
            gap_at += 1;
            wait_at += 1;
        } else if gap.us < LONG_US {
            gap_at += 1;
        } else if wait.us < LONG_US {
            wait_at += 1;
        } else {
            break;
        }
    }
    (pairs, gap_at)
}

/// From one wait on, each must be the next gap, with the task that ran last among its causes.
/// The other list is the longer one, since it began earlier and ended later.
fn compare(gaps: &[FoundGap], waits: &[Wait]) -> Result<String, String> {
    let starts = (0..waits.len()).map(|start| pair(gaps, &waits[start..]));
    let Some((pairs, reached)) = starts.max_by_key(|(pairs, _)| pairs.len()) else {
        return Err("no wait was printed".to_owned());
    };
    let unnamed = pairs.iter().find(|(gap, wait)| !gap.has(wait));
    let text = format!(
        "{} waits are the gaps {reached} of {} in the same order, and have the task that ran last \
         among their causes",
        pairs.len(),
        gaps.len()
    );
    if reached == gaps.len() && pairs.len() >= COMPARED && unnamed.is_none() {
        return Ok(text);
    }
    let next: Vec<u64> = gaps.iter().skip(reached).take(5).map(|gap| gap.us).collect();
    let unnamed = unnamed.map_or_else(String::new, |(gap, wait)| {
        format!("no cause is {} {:?}: {}", wait.previous, wait.previous_tid, gap.causes_text())
    });
    Err(format!("not so: {text}; the next gaps (µs) {next:?}; {unnamed}"))
}

/// A task of a higher priority than timerlat's thread takes the CPU for longer than the latency at
/// which rtla stops. rtla creates the
/// thread anew before it records.
const HOG: &str = "sh -c 'while :; do :; done' &
    loop=$!
    chrt -i -p 0 $loop
    LD=RTLA/ld-linux-x86-64.so.2
    $LD --library-path RTLA RTLA/rtla timerlat top -k -q -c 0 -a 100000 -d 300s > /tmp/rtla 2>&1 &
    rtla=$!
    n=0
    old=
    until thread=$(grep -lsx timerlat/0 /proc/[0-9]*/comm) && [ \"$thread\" = \"$old\" ] \
        && grep -qs 1 /sys/kernel/tracing/instances/timerlat_top/tracing_on; do
        old=$thread
        n=$((n + 1)); [ $n -lt 90 ] || { cat /tmp/rtla >&2; exit 1; }
        sleep 1
    done
    pid=$(echo $thread | cut -d/ -f3)
    pinfold measure gaps --process $pid --over 20ms --seconds 5 --json > /tmp/gaps 2> /tmp/gaps.err &
    pinfold=$!
    until grep -q nanosleep /proc/$pinfold/wchan || ! kill -0 $pinfold; do usleep 50000; done
    sleep 1
    chrt -f 98 sh -c 'echo $$ > /tmp/hog; k=0; while [ $k -lt 10000 ]; do k=$((k+1)); done'
    wait $pinfold || { cat /tmp/gaps.err >&2; exit 1; }
    wait $rtla || true
    kill $loop
    cat /tmp/gaps";

pub(super) fn next_to_rtla(guest: &mut Guest) -> Result<String, LabError> {
    guest.shell(MOUNTS)?;
    let text = guest.shell(&HOG.replace("RTLA", RTLA))?;
    let analysis = guest.shell("cat /tmp/rtla")?;
    let hog = guest.shell("cat /tmp/hog")?;
    agree(&gaps_of(&text)?, &analysis, hog.trim()).ok_or_else(|| {
        LabError::wrong("gaps and the analysis of rtla differ", format!("{hog}{text}\n{analysis}"))
    })
}

/// The longest gap is the latency of the analysis, and both name the hog.
fn agree(gaps: &[FoundGap], analysis: &str, hog: &str) -> Option<String> {
    let gap = gaps.iter().max_by_key(|gap| gap.us)?;
    let line = analysis.lines().find(|line| line.trim_start().starts_with("Thread latency:"))?;
    let latency: f64 = line.split_whitespace().nth(2)?.parse().ok()?;
    let task = analysis.lines().find(|line| {
        line.split_whitespace().next().is_some_and(|word| word.ends_with(&format!(":{hog}")))
    })?;
    let blocked: f64 = task.split_whitespace().nth(1)?.parse().ok()?;
    let cause = gap.causes.first()?;
    let is_named = cause["kind"] == "thread" && cause["tid"].as_u64() == hog.parse().ok();
    let is_long = (gap.us as f64 / latency - 1.0).abs() <= 0.05;
    (is_named && is_long).then(|| {
        format!(
            "the hog is the cause of a gap of {} ms; rtla: latency {:.0} ms, blocked for {:.0} ms \
             by the same task",
            gap.us / 1000,
            latency / 1000.0,
            blocked / 1000.0
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANALYSIS: &str = "## CPU 1 hit stop tracing, analyzing it ##
  IRQ handler delay:                                          30.18 us (0.00 %)
  Blocking thread:                                        601033.00 us (99.95 %)
                        sh:231                            601033.00 us
  Thread latency:                                         601200.00 us (100%)
";

    fn thread(us: u64, tid: u64) -> FoundGap {
        FoundGap { us, causes: vec![serde_json::json!({ "kind": "thread", "tid": tid })] }
    }

    #[test]
    fn the_longest_gap_must_be_the_latency_of_rtla() {
        assert!(agree(&[thread(600_000, 231), thread(7, 231)], ANALYSIS, "231").is_some());
        assert!(agree(&[thread(500_000, 231)], ANALYSIS, "231").is_none());
        assert!(agree(&[thread(600_000, 232)], ANALYSIS, "232").is_none());
    }

    fn print(lengths: &[u64]) -> Vec<Wait> {
        let lines = lengths.iter().map(|us| format!("10:30:18 sh  231  {us}  a b  233\n"));
        parse_waits(&format!("TIME COMM TID LAT(us) PREV\n{}", lines.collect::<String>()))
    }

    #[test]
    fn each_wait_must_be_the_next_gap() {
        let lengths: Vec<u64> = (0..30).map(|n| 5_000 + n * 1_000).collect();
        let gaps: Vec<FoundGap> = lengths.iter().map(|us| thread(*us, 233)).collect();
        let waits = print(&[&[9_000, 1_100][..], &lengths, &[4_000]].concat());
        assert_eq!(waits[0].previous, "a b");
        let passed = compare(&gaps, &waits).expect("the same waits");
        assert!(passed.contains("30 waits are the gaps 30 of 30"), "{passed}");
        let mut more = lengths.clone();
        more.insert(20, 70_000);
        assert!(compare(&gaps, &print(&more)).is_err(), "one is missing");
        more.remove(20);
        more.remove(20);
        assert!(compare(&gaps, &print(&more)).is_err(), "one was not printed");
        let others: Vec<FoundGap> = lengths.iter().map(|us| thread(*us, 234)).collect();
        assert!(compare(&others, &waits).is_err(), "another cause");
    }
}
