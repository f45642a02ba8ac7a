//! What the documents promise about the code.

use crate::{Tree, Violation};
use std::collections::BTreeSet;

const MAP: &str = "ARCHITECTURE.md";
const README: &str = "README.md";
const CI: &str = ".ci/run";
const DECISIONS: &str = "docs/decisions/";

/// ARCHITECTURE.md has a section `crates/name` for every crate, which names every file of the
/// crate's `src` but `lib.rs` and `main.rs`, and no file that does not exist.
#[must_use]
pub fn architecture_names_every_file(tree: &Tree) -> Vec<Violation> {
    let text = tree.text(MAP).unwrap_or_default();
    let mut found = Vec::new();
    for name in tree.crates() {
        let Some((line, section)) = section(text, &format!("crates/{name}")) else {
            let cure = "add a heading with its path, what it owns and its files";
            found.push(Violation::new(
                MAP,
                0,
                format!("no section `crates/{name}`"),
                cure,
            ));
            continue;
        };
        let (exist, named) = (modules(tree, name), file_names(section));
        for file in exist.difference(&named) {
            let cure = "say in the crate's section what it holds";
            found.push(Violation::new(
                MAP,
                line,
                format!("`{file}` of {name} is missing"),
                cure,
            ));
        }
        for file in named.difference(&exist) {
            let cure = "remove or rename it in the crate's section";
            found.push(Violation::new(
                MAP,
                line,
                format!("{name} has no `{file}`"),
                cure,
            ));
        }
    }
    found
}

/// The line (from 1) and the text of the section whose heading holds `` `title` `` or `title`.
fn section<'a>(text: &'a str, title: &str) -> Option<(usize, &'a str)> {
    let mut offset = 0;
    let mut start = None;
    for (index, line) in text.split_inclusive('\n').enumerate() {
        if line.starts_with('#') {
            if let Some((line, begin)) = start {
                return Some((line, &text[begin..offset]));
            }
            let heading = line.trim_start_matches('#').trim();
            if heading
                .split(' ')
                .any(|word| word.trim_matches('`') == title)
            {
                start = Some((index + 1, offset));
            }
        }
        offset += line.len();
    }
    start.map(|(line, begin)| (line, &text[begin..]))
}

/// The Rust files of a crate's `src`, relative to it, without the roots.
fn modules(tree: &Tree, name: &str) -> BTreeSet<String> {
    let prefix = format!("crates/{name}/src/");
    let files = tree
        .files()
        .filter_map(|(path, _)| path.strip_prefix(&prefix));
    let rust = files.filter(|f| f.ends_with(".rs") && !matches!(*f, "lib.rs" | "main.rs"));
    rust.map(str::to_owned).collect()
}

/// Everything in backticks that is the name of a Rust file below `src`.
fn file_names(section: &str) -> BTreeSet<String> {
    let quoted = section.split('`').skip(1).step_by(2);
    let files = quoted.filter(|q| q.ends_with(".rs") && !q.contains(' '));
    let roots = |q: &&str| {
        matches!(*q, "lib.rs" | "main.rs") || q.starts_with("tests/") || q.starts_with("benches/")
    };
    files.filter(|q| !roots(q)).map(str::to_owned).collect()
}

/// README.md holds one test command, and `.ci/run` runs formatting, lints and then exactly that.
#[must_use]
pub fn ci_runs_the_readme(tree: &Tree) -> Vec<Violation> {
    let commands = |path| -> Vec<&str> {
        let lines = tree.text(path).into_iter().flat_map(str::lines);
        lines.filter(|line| line.starts_with("cargo ")).collect()
    };
    let is_test = |line: &&str| line.starts_with("cargo test");
    let tests: Vec<_> = commands(README).into_iter().filter(is_test).collect();
    let [test] = tests[..] else {
        let cure = "give one command, alone on its line, that passes the tests";
        let fault = format!("{} test commands", tests.len());
        return vec![Violation::new(README, 0, fault, cure)];
    };
    let lints = "cargo clippy --workspace --all-targets -- -D warnings";
    let expected = ["cargo fmt --all --check", lints, test];
    let runs = commands(CI);
    if runs == expected {
        return vec![];
    }
    let fault = format!("runs {runs:?}, not {expected:?}");
    vec![Violation::new(
        CI,
        0,
        fault,
        "run the same commands, each alone on its line",
    )]
}

/// Headings of a decision record, in order.
const DECISION_HEADINGS: [&str; 4] = [
    "## Context",
    "## Decision",
    "## Consequence",
    "## When to reopen",
];

/// Decision records are `NNNN-title.md`, numbered from 0001 without gaps, with the four headings.
#[must_use]
pub fn decisions_are_numbered(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    let records = tree.texts().filter(|(path, _)| path.starts_with(DECISIONS));
    for (index, (path, text)) in records.enumerate() {
        let number = format!("{:04}", index + 1);
        let name = &path[DECISIONS.len()..];
        if !(name.starts_with(&format!("{number}-")) && name.ends_with(".md")) {
            let cure = "number the records without gaps: NNNN-title.md";
            found.push(Violation::new(
                path,
                0,
                format!("expected number {number}"),
                cure,
            ));
        }
        if !text.starts_with(&format!("# {number}: ")) {
            let cure = "open the record with `# NNNN: Title`";
            found.push(Violation::new(
                path,
                1,
                "title and number do not agree",
                cure,
            ));
        }
        let headings: Vec<_> = text
            .lines()
            .filter(|line| line.starts_with("## "))
            .collect();
        if headings != DECISION_HEADINGS {
            let fault = format!("its headings are {headings:?}");
            let cure = "use Context, Decision, Consequence, When to reopen";
            found.push(Violation::new(path, 0, fault, cure));
        }
    }
    found
}

/// Every relative link of a Markdown file leads to a file of the repository.
#[must_use]
pub fn links_resolve(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (path, text) in tree.texts().filter(|(path, _)| path.ends_with(".md")) {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        for (index, line) in text.lines().enumerate() {
            for target in line
                .split("](")
                .skip(1)
                .filter_map(|rest| rest.split(')').next())
            {
                let file = target.split('#').next().unwrap_or_default();
                let outside = file.is_empty() || file.contains(':') || file.contains(' ');
                if !outside && !resolve(folder, file).is_some_and(|file| tree.has(&file)) {
                    let cure = "link to a file that exists";
                    let fault = format!("dead link `{target}`");
                    found.push(Violation::new(path, index + 1, fault, cure));
                }
            }
        }
    }
    found
}

/// `link`, seen from `folder`, as a path from the root; `None` if it leaves the repository.
fn resolve(folder: &str, link: &str) -> Option<String> {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            _ => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(found: Vec<Violation>) -> Vec<String> {
        found.into_iter().map(|v| v.fault).collect()
    }

    #[test]
    fn the_map_is_complete_and_true() {
        let map = "# Map\n### `crates/a`\n`one.rs`, `x/gone.rs`, tests in `tests/t.rs`.\n\
                   ### Other\n`two.rs`\n";
        let tree = Tree::of(&[
            (MAP, map),
            ("crates/a/Cargo.toml", ""),
            ("crates/a/src/lib.rs", ""),
            ("crates/a/src/one.rs", ""),
            ("crates/a/src/two.rs", ""),
            ("crates/b/Cargo.toml", ""),
        ]);
        let expected = [
            "`two.rs` of a is missing",
            "a has no `x/gone.rs`",
            "no section `crates/b`",
        ];
        assert_eq!(faults(architecture_names_every_file(&tree)), expected);
    }

    #[test]
    fn the_readme_and_ci_agree() {
        let readme = "```\ncargo run -- run demo\n```\n```\ncargo test --all\n```\n";
        let good = "set -e\ncargo fmt --all --check\n\
                    cargo clippy --workspace --all-targets -- -D warnings\ncargo test --all\n";
        assert_eq!(
            ci_runs_the_readme(&Tree::of(&[(README, readme), (CI, good)])),
            []
        );
        let other = good.replace("test --all", "test");
        assert_eq!(
            ci_runs_the_readme(&Tree::of(&[(README, readme), (CI, &other)])).len(),
            1
        );
        let two = format!("{readme}cargo test\n");
        assert_eq!(
            ci_runs_the_readme(&Tree::of(&[(README, &two), (CI, good)])).len(),
            1
        );
        assert_eq!(ci_runs_the_readme(&Tree::default()).len(), 1);
    }

    #[test]
    fn decisions_have_numbers_and_headings() {
        let record = |number: &str| {
            let body = DECISION_HEADINGS.map(|h| format!("{h}\ntext\n")).concat();
            format!("# {number}: A title\n{body}")
        };
        let (one, three) = (record("0001"), record("0003"));
        let tree = Tree::of(&[("docs/decisions/0001-a.md", &one)]);
        assert_eq!(decisions_are_numbered(&tree), []);
        let bare = "# 0002: A title\n## Context\n";
        let tree = Tree::of(&[
            ("docs/decisions/0001-a.md", &one),
            ("docs/decisions/0002-b.md", bare),
            ("docs/decisions/0004-c.md", &three),
        ]);
        let found = decisions_are_numbered(&tree);
        let paths: Vec<_> = found.iter().map(|v| &v.path[DECISIONS.len()..]).collect();
        assert_eq!(paths, ["0002-b.md", "0004-c.md"]);
        let gap = Tree::of(&[("docs/decisions/0002-b.md", bare)]);
        assert_eq!(decisions_are_numbered(&gap).len(), 3);
    }

    #[test]
    fn links_lead_somewhere() {
        let text = "[a](b.md) [c](../README.md#x) [d](https://e/f) [g](#h) [i](gone.md)\n\
                    [j](../../out.md)\n";
        let tree = Tree::of(&[("docs/a.md", text), ("docs/b.md", ""), (README, "")]);
        let found = faults(links_resolve(&tree));
        assert_eq!(found, ["dead link `gone.md`", "dead link `../../out.md`"]);
    }
}
