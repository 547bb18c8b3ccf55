//! Import cycles between the files of a crate.
//!
//! Modules are files. A file uses another if its code, tests excepted, names something that the
//! other file defines: `use crate::b::f`, `super::b::f()`. A name that a module only re-exports
//! counts for the file that defines it. Methods are not seen: a call does not name their file.
//!
//! A cycle is a violation, with one exception: a module and its own descendants may form one, since
//! the parent calls its parts, and the parts use types of the parent. The descendants still must
//! not form a cycle without the parent. The root of a crate has no exception: either it only
//! declares and re-exports, or no other module names what it defines.
//!
//! Folders do not use each other in a cycle either: of the modules that the root declares, each with
//! all below it, one that uses another is not used by it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};

use super::names::{names, Import, Names};

/// A module of a crate: `[]` is the root, `["a", "b"]` is `crate::a::b`.
type Module = Vec<String>;

/// Which module uses which, and the place where it does first.
type Uses = HashMap<(usize, usize), String>;

/// The names that a search has looked up, each in a module: re-exports can form a cycle too.
type VisitedNames = HashSet<(usize, Vec<String>)>;

/// Crates whose folders still use each other.
const CYCLIC_FOLDERS: [&str; 4] =
    ["pinfold-apply", "pinfold-emulate", "pinfold-host", "pinfold-run"];

/// Reports the cycles of each crate.
pub fn check(root: &Path, broken: &mut Vec<String>) {
    for (name, file) in roots(root) {
        let all = Crate::read(&file);
        let mut cycles = all.cycles();
        if !CYCLIC_FOLDERS.contains(&name.as_str()) {
            cycles.extend(all.folder_cycles());
        }
        broken.extend(cycles.iter().map(|cycle| format!("{name}: {cycle}")));
    }
}

/// The name of each crate and the file of its root.
fn roots(root: &Path) -> Vec<(String, PathBuf)> {
    let mut folders: Vec<PathBuf> = fs::read_dir(root.join("crates"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    folders.sort();
    folders.extend(["bench", "fuzz", "lab", "xtask"].iter().map(|name| root.join(name)));
    folders
        .into_iter()
        .flat_map(|folder: PathBuf| {
            let name = folder
                .file_name()
                .map_or(String::new(), |name| name.to_string_lossy().into_owned());
            ["lib.rs", "main.rs"]
                .iter()
                .map(move |file| (name.clone(), folder.join("src").join(file)))
        })
        .filter(|(_, file)| file.exists())
        .collect()
}

struct Crate {
    modules: Vec<Module>,
    names: Vec<Names>,
    index: HashMap<Module, usize>,
}

impl Crate {
    /// Reads the files that the root declares, directly and indirectly.
    fn read(root: &Path) -> Self {
        let folder = root.parent().unwrap_or(root).to_path_buf();
        let mut found = Vec::new();
        let mut open = vec![(Vec::new(), root.to_path_buf(), folder)];
        while let Some((module, file, folder)) = open.pop() {
            let names = match fs::read_to_string(&file) {
                Ok(text) => names(&text),
                Err(_) => continue,
            };
            for child in &names.children {
                let below = folder.join(child);
                let file = Some(folder.join(format!("{}.rs", child))).filter(|file| file.exists());
                let path: Module = module.iter().chain(Some(child)).cloned().collect();
                open.push((path, file.unwrap_or_else(|| below.join("mod.rs")), below));
            }
            found.push((module, names));
        }
        Crate::new(found)
    }

    fn new(mut found: Vec<(Module, Names)>) -> Self {
        found.sort_by(|one, other| one.0.cmp(&other.0));
        let (modules, names): (Vec<Module>, Vec<Names>) = found.into_iter().unzip();
        let index =
            modules.iter().cloned().enumerate().map(|(index, module)| (module, index)).collect();
        Crate { modules, names, index }
    }

    fn title(&self, module: usize) -> String {
        if self.modules[module].is_empty() {
            "crate".to_string()
        } else {
            self.modules[module].join("::")
        }
    }

    fn uses(&self) -> Uses {
        let mut uses = HashMap::new();
        for (user, names) in self.names.iter().enumerate() {
            for path in names.imports.iter().map(|import| &import.path).chain(&names.paths) {
                for used in self.definers(user, &path.segments, &mut VisitedNames::new()) {
                    if used != user {
                        let place =
                            format!("line {} names {}", path.line, path.segments.join("::"));
                        uses.entry((user, used)).or_insert(place);
                    }
                }
            }
        }
        uses
    }

    /// False for the first name of a path into another crate. It is in no scope, so the search for
    /// it would end at the same `*` again.
    fn is_ours(&self, module: usize, first: &String) -> bool {
        let child: Module = self.modules[module].iter().chain(Some(first)).cloned().collect();
        ["crate", "self", "super"].contains(&first.as_str())
            || self.index.contains_key(&child)
            || self.names[module].imports.iter().any(|import| import.name.as_ref() == Some(first))
    }

    /// The files that define what a path in a module names; none for a module and for what comes
    /// from another crate.
    fn definers(&self, user: usize, path: &[String], seen: &mut VisitedNames) -> Vec<usize> {
        let module = &self.modules[user];
        let start: &[String] = match path.first().map(String::as_str) {
            Some("crate") => &[],
            Some("self") => module,
            Some("super") => &module[..module.len().saturating_sub(1)],
            _ => return self.search(user, path, seen).unwrap_or_default(),
        };
        self.members(self.index[start], &path[1..], seen)
    }

    /// The same for a path that continues in a module. What is not found there was made by a macro.
    fn members(&self, module: usize, path: &[String], seen: &mut VisitedNames) -> Vec<usize> {
        match path.first().map(String::as_str) {
            None => Vec::new(),
            Some("self") | Some("super") => self.definers(module, path, seen),
            Some(_) => self.search(module, path, seen).unwrap_or_else(|| vec![module]),
        }
    }

    /// The same for a path that begins with a name in the scope of a module; `None` if it has no
    /// such name.
    fn search(
        &self,
        module: usize,
        path: &[String],
        seen: &mut VisitedNames,
    ) -> Option<Vec<usize>> {
        let (first, rest) = path.split_first()?;
        if !seen.insert((module, path.to_vec())) {
            return Some(Vec::new());
        }
        let names = &self.names[module];
        let child: Module = self.modules[module].iter().chain(Some(first)).cloned().collect();
        let is_item = names.items.contains(first);
        match self.index.get(&child) {
            // A module and a function can have the same name.
            Some(_) if rest.is_empty() && is_item => return Some(vec![module]),
            Some(child) => return Some(self.members(*child, rest, seen)),
            None if is_item => return Some(vec![module]),
            None => {}
        }
        let (mut known, mut found) = (false, Vec::new());
        for import in names.imports.iter().filter(|import| import.name.as_ref() == Some(first)) {
            known = true;
            found.extend(self.definers(module, &joined(import, rest), seen));
        }
        if !known {
            let globs = names.imports.iter().filter(|import| import.name.is_none());
            for import in globs.filter(|import| self.is_ours(module, &import.path.segments[0])) {
                found.extend(self.definers(module, &joined(import, path), seen));
            }
        }
        Some(found).filter(|found| known || !found.is_empty())
    }

    /// Describes each set of modules of which each uses all others, directly or indirectly.
    fn cycles(&self) -> Vec<String> {
        let uses = self.uses();
        let mut found = Vec::new();
        let mut open = components(&uses, &(0..self.modules.len()).collect());
        while let Some(members) = open.pop() {
            match self.parent(&members) {
                Some(parent) => {
                    let rest = members.into_iter().filter(|member| *member != parent).collect();
                    open.extend(components(&uses, &rest));
                }
                None => found.push(self.describe(&uses, &members)),
            }
        }
        found.sort();
        found
    }

    /// Describes the cycles between the modules of the root, each with all below it.
    fn folder_cycles(&self) -> Vec<String> {
        let mut among = Uses::new();
        for ((user, used), place) in self.uses() {
            if let (Some(from), Some(to)) = (self.folder(user), self.folder(used)) {
                if from != to {
                    among.insert((from, to), format!("{}, {}", self.title(user), place));
                }
            }
        }
        let cycles = components(&among, &(0..self.modules.len()).collect());
        cycles.iter().map(|members| self.describe(&among, members)).collect()
    }

    /// The module of the root in which a module is; `None` for the root.
    fn folder(&self, module: usize) -> Option<usize> {
        self.modules[module].first().map(|first| self.index[&vec![first.clone()]])
    }

    /// The member whose descendants all others are, except the root of the crate.
    fn parent(&self, members: &HashSet<usize>) -> Option<usize> {
        let top = members.iter().copied().min_by_key(|member| self.modules[*member].len())?;
        let path = &self.modules[top];
        let is_parent = !path.is_empty()
            && members.iter().all(|member| self.modules[*member].starts_with(path));
        Some(top).filter(|_| is_parent)
    }

    fn describe(&self, uses: &Uses, members: &HashSet<usize>) -> String {
        let cycle = shortest(uses, members);
        let steps = cycle.iter().enumerate().map(|(at, user)| {
            let used = cycle[(at + 1) % cycle.len()];
            format!("\n    {} → {} ({})", self.title(*user), self.title(used), uses[&(*user, used)])
        });
        let count = members.len();
        format!("import cycle between {} modules, for example:{}", count, steps.collect::<String>())
    }
}

fn joined(import: &Import, rest: &[String]) -> Vec<String> {
    import.path.segments.iter().chain(rest).cloned().collect()
}

/// The sets of at least two modules, among these, each of which reaches all others of its set.
fn components(uses: &Uses, among: &HashSet<usize>) -> Vec<HashSet<usize>> {
    let reach: HashMap<usize, HashSet<usize>> = among
        .iter()
        .map(|start| (*start, paths_from(uses, among, *start).into_keys().collect()))
        .collect();
    let mut found: Vec<HashSet<usize>> = Vec::new();
    for start in among {
        if !found.iter().any(|set| set.contains(start)) {
            let set: HashSet<usize> =
                reach[start].iter().copied().filter(|other| reach[other].contains(start)).collect();
            found.extend(Some(set).filter(|set| set.len() > 1));
        }
    }
    found
}

/// Each module that is reached from the start over at least one use, with its predecessor on the
/// shortest path.
fn paths_from(uses: &Uses, among: &HashSet<usize>, start: usize) -> HashMap<usize, usize> {
    let (mut before, mut open) = (HashMap::new(), VecDeque::from(vec![start]));
    while let Some(user) = open.pop_front() {
        let mut next: Vec<usize> =
            uses.keys().filter(|(from, _)| *from == user).map(|(_, to)| *to).collect();
        next.sort_unstable();
        for used in next {
            if among.contains(&used) && !before.contains_key(&used) {
                before.insert(used, user);
                open.push_back(used);
            }
        }
    }
    before
}

/// The shortest cycle in a set of modules.
fn shortest(uses: &Uses, members: &HashSet<usize>) -> Vec<usize> {
    let mut starts: Vec<usize> = members.iter().copied().collect();
    starts.sort_unstable();
    let cycles = starts.into_iter().map(|start| {
        let before = paths_from(uses, members, start);
        let (mut cycle, mut at) = (vec![start], before.get(&start).copied().unwrap_or(start));
        while at != start {
            cycle.insert(1, at);
            at = before[&at];
        }
        cycle
    });
    cycles.min_by_key(Vec::len).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{names, Crate};

    /// The files of a crate as `(path of the module, text)`, and a part of the text of each cycle.
    fn check(files: &[(&str, &str)], expected: &[&str]) {
        let found = Crate::new(
            files
                .iter()
                .map(|(path, text): &(&str, &str)| {
                    let module = path
                        .split("::")
                        .filter(|name| !name.is_empty())
                        .map(String::from)
                        .collect();
                    (module, names(text))
                })
                .collect(),
        )
        .cycles();
        assert_eq!(found.len(), expected.len(), "{:?}", found);
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.contains(expected), "{} is not in {}", expected, found);
        }
    }

    #[test]
    fn a_cycle_is_found() {
        check(
            &[("", "mod a; mod b;"), ("a", "use crate::b::f;"), ("b", "pub fn f() { super::a::g() }")],
            &["between 2 modules, for example:\n    a → b (line 1 names crate::b::f)\n    b → a (line 1 names super::a::g)"],
        );
        check(
            &[
                ("", ""),
                ("a", "use crate::b;\nfn f() { b::f() }"),
                ("b", "use crate::c::C;"),
                ("c", "use crate::a::f;"),
            ],
            &["between 3 modules, for example:\n    a → b (line 2 names b::f)\n    b → c"],
        );
        check(
            &[
                ("", ""),
                ("a", "use crate::b::B;"),
                ("b", "use crate::a::A;"),
                ("c", "use crate::d::D;"),
                ("d", "use crate::c::C;"),
            ],
            &["a → b", "c → d"],
        );
    }

    #[test]
    fn a_cycle_between_folders_is_found() {
        assert!(cycles_of("").is_empty());
        assert!(cycles_of("use crate::a::d::f;")[0].contains("b → a (b, line 1 names crate::a::d::f)"));
    }

    fn cycles_of(of: &str) -> Vec<String> {
            let files = [
                ("", "mod a; mod b;"),
                ("a", ""),
                ("a::c", "use crate::b::B;"),
                ("a::d", ""),
                ("b", of),
            ];
            Crate::new(
                files
                    .iter()
                    .map(|(path, text): &(&str, &str)| {
                        (
                            path.split("::")
                                .filter(|name| !name.is_empty())
                                .map(String::from)
                                .collect(),
                            names(text),
                        )
                    })
                    .collect(),
            )
            .folder_cycles()
        }

    #[test]
    fn no_cycle_is_found() {
        check(
            &[
                ("", "mod a; mod b; pub use a::f;"),
                ("a", "use crate::b::B;"),
                ("b", "use std::a::A;"),
            ],
            &[],
        );
        check(
            &[
                ("", ""),
                ("a", "use crate::b::B;"),
                ("b", "// use crate::a::A;\nconst S: &str = \"crate::a::A\";"),
            ],
            &[],
        );
        check(
            &[
                ("", ""),
                ("a", "use crate::b::B;"),
                ("b", "#[cfg(test)]\nmod tests { use crate::a::A; }"),
            ],
            &[],
        );
        check(&[("", ""), ("a", "use crate::b;"), ("b", "use crate::a;")], &[]);
        check(&[("", "mod a;"), ("a", "use x::y::*;\nfn f() { g::h() }")], &[]);
    }

    #[test]
    fn a_re_export_counts_for_the_file_that_defines_the_name() {
        let root = ("", "mod a; mod b; pub use b::B; pub use a::*;");
        check(&[root, ("a", "pub fn f(b: crate::B) {}"), ("b", "pub struct B;")], &[]);
        check(
            &[
                root,
                ("a", "pub fn f(b: crate::B) {}"),
                ("b", "pub struct B; fn g() { crate::f() }"),
            ],
            &["a → b"],
        );
    }

    #[test]
    fn a_parent_and_its_descendants_may_form_a_cycle() {
        let parent = ("a", "mod b; mod c; pub struct A; fn f() { b::g(); c::h() }");
        check(&[("", ""), parent, ("a::b", "use super::A;"), ("a::c", "use super::A;")], &[]);
        check(
            &[
                ("", ""),
                parent,
                ("a::b", "use super::{c::h, A}; fn g() {}"),
                ("a::c", "use super::{b::g, A}; fn h() {}"),
            ],
            &["a::b → a::c"],
        );
        check(
            &[("", ""), parent, ("a::b", "use crate::d::f; fn g() {}"), ("d", "use crate::a::A;")],
            &["a → a::b"],
        );
        check(
            &[("", "mod a; pub struct A; fn f() { a::f() }"), ("a", "use crate::A;")],
            &["crate → a"],
        );
    }
}
