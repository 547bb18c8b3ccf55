//! Synthetic descriptions: limits their size, and locates errors. Pure.
//!
//! ```text
//! package:2 [numa(memory=32GB)] l3:1(size=16MB) core:4 pu:2(indexes=0,8,…)
//! ```
//! hwloc builds whatever a description requests, and only reports "invalid" for a bad one.
//! Therefore the counts are multiplied here first, and after a refusal the text is checked level by
//! level to find the wrong word. <https://www.open-mpi.org/projects/hwloc/doc/v2.9.0/a00369.php>

/// Linux's largest `NR_CPUS`.
const MOST_PUS: u64 = 8192;

/// Linux's maximum number of NUMA nodes (`NODES_SHIFT` of 10).
const MOST_NODES: u64 = 1024;

/// Level names of hwloc, including the shortest unambiguous forms.
const LEVELS: [(&str, &str); 14] = [
    ("machine", "mach"),
    ("package", "pack"),
    ("socket", "sock"),
    ("die", "die"),
    ("numanode", "numa"),
    ("node", "node"),
    ("group", "group"),
    ("l5cache", "l5"),
    ("l4cache", "l4"),
    ("l3cache", "l3"),
    ("l2cache", "l2"),
    ("l1cache", "l1"),
    ("core", "co"),
    ("pu", "pu"),
];

/// One level: `l3:2(size=8MB)`.
#[derive(Debug, PartialEq, Eq)]
struct Level<'t> {
    name: &'t str,
    count: &'t str,
}

/// The number of CPUs of a description; an error if it exceeds that of any kernel.
pub(crate) fn check_size(text: &str) -> Result<u64, String> {
    let mut count: u64 = 1;
    for word in words(text)? {
        let level = level(word);
        // hwloc parses 0x20 and 040 as C does, also without a level name.
        let digits = if level.count.is_empty() { level.name } else { level.count };
        let is_decimal = digits.bytes().all(|byte| byte.is_ascii_digit())
            && (digits.len() == 1 || !digits.starts_with('0'));
        if digits.starts_with(|c: char| c.is_ascii_digit() || "+-".contains(c)) && !is_decimal {
            return Err(format!("{digits:?} in {word:?} is not a decimal number"));
        }
        if let Ok(number) = level.count.parse::<u64>() {
            count = count.saturating_mul(number.max(1));
        }
        let name = level.name.to_ascii_lowercase();
        if (name.starts_with("numa") || name == "node") && count > MOST_NODES {
            return Err(format!(
                "{count} NUMA nodes exceed the limit of any kernel ({MOST_NODES})"
            ));
        }
    }
    if count > MOST_PUS {
        return Err(format!("{count} PUs exceed the limit of any kernel ({MOST_PUS})"));
    }
    small_indexes(text)?;
    Ok(count)
}

/// Limits the indexes, because hwloc creates a set up to the largest one.
fn small_indexes(text: &str) -> Result<(), String> {
    for list in text.split("indexes=").skip(1) {
        let list = list.split(|c: char| c == ')' || c.is_whitespace()).next().unwrap_or(list);
        let digits = list.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
        for digits in digits {
            if !digits.parse::<u64>().is_ok_and(|index| index < MOST_PUS) {
                return Err(format!(
                    "the index {digits} exceeds the limit of any kernel ({MOST_PUS})"
                ));
            }
        }
    }
    Ok(())
}

/// Why hwloc refused a description, as precisely as possible.
pub(crate) fn fault(text: &str) -> String {
    match words(text).and_then(|words| first_fault(&words)) {
        Err(why) => why,
        Ok(()) => "hwloc does not accept it (levels go from the outside in, \
                   indexes must name each PU once)"
            .to_owned(),
    }
}

fn first_fault(words: &[&str]) -> Result<(), String> {
    let Some(last) = words.last() else {
        return Err("it is empty".to_owned());
    };
    for word in words {
        let level = level(word);
        if level.name.is_empty() {
            continue;
        }
        if !is_known(level.name) {
            return Err(format!(
                "{:?} is not a level (package, numa, l3, core, pu, …)",
                level.name
            ));
        }
        match level.count.parse::<u32>() {
            Ok(0) => return Err(format!("{word:?} has a count of 0")),
            Ok(_) => {}
            Err(_) if level.count.is_empty() => {
                return Err(format!("{word:?} has no count (such as {}:4)", level.name));
            }
            Err(_) => return Err(format!("{:?} in {word:?} is not a number", level.count)),
        }
    }
    let name = level(last).name;
    if !name.is_empty() && !name.eq_ignore_ascii_case("pu") {
        return Err(format!("the last level is {name:?} instead of \"pu\""));
    }
    Ok(())
}

/// hwloc accepts `L3Cache`, `L3`, `l3u`; `Group0`; `NUMANode`, `NUMA`, `node`.
fn is_known(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    LEVELS.iter().any(|(long, short)| name.starts_with(short) && long.starts_with(&name))
        || ["l1", "l2", "l3", "l4", "l5"].iter().any(|cache| {
            name.strip_prefix(cache).is_some_and(|rest| matches!(rest, "i" | "d" | "u"))
        })
        || name.strip_prefix("group").is_some_and(|depth| depth.parse::<u8>().is_ok())
}

/// The levels of a text, without `[…]` attachments; blanks inside `(…)` stay.
fn words(text: &str) -> Result<Vec<&str>, String> {
    let (mut words, mut start, mut round, mut square) = (Vec::new(), None, 0_u32, 0_u32);
    for (at, letter) in text.char_indices() {
        match letter {
            '(' => round += 1,
            ')' => round = round.checked_sub(1).ok_or("a ) has no (")?,
            '[' if round == 0 => square += 1,
            ']' if round == 0 => {
                square = square.checked_sub(1).ok_or("a ] has no [")?;
                continue;
            }
            _ => {}
        }
        let between = letter.is_whitespace() && round == 0;
        match start {
            Some(from) if between || (letter == '[' && round == 0) => {
                words.push(&text[from..at]);
                start = None;
            }
            None if !between && square == 0 => start = Some(at),
            Some(_) | None => {}
        }
    }
    if round != 0 || square != 0 {
        return Err("a bracket is not closed".to_owned());
    }
    words.extend(start.map(|from| &text[from..]));
    // `(memory=…)` alone describes the machine itself.
    Ok(words.into_iter().filter(|word| !word.starts_with('(')).collect())
}

fn level(word: &str) -> Level<'_> {
    let bare = word.split('(').next().unwrap_or(word);
    match bare.split_once(':') {
        Some((name, count)) => Level { name, count },
        // hwloc also accepts counts without a name: `2 4 2`.
        None if bare.bytes().all(|byte| byte.is_ascii_digit()) => Level { name: "", count: bare },
        None => Level { name: bare, count: "" },
    }
}

#[cfg(test)]
mod tests;
