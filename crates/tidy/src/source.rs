//! A Rust file, taken apart as far as the rules need it.

use crate::scan::{self, Line, is_word, words};

/// A Rust file.
#[derive(Debug)]
pub struct Source {
    /// Path, relative to the repository root.
    pub path: String,
    /// The lines as they stand.
    pub raw: Vec<String>,
    /// The lines, taken apart.
    pub lines: Vec<Line>,
    /// Whether a line is test code: a test file, or an item under `#[cfg(test)]`.
    pub test: Vec<bool>,
}

/// A function with a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Index of the line of `fn`.
    pub start: usize,
    /// Index of the line of the closing brace.
    pub end: usize,
}

/// Directories of a crate whose files are test code.
const TEST_DIRECTORIES: [&str; 4] = ["tests", "benches", "examples", "fuzz_targets"];

impl Source {
    /// Takes `text` apart.
    #[must_use]
    pub fn parse(path: &str, text: &str) -> Source {
        let mut lines = scan::scan(text);
        if text.ends_with('\n') {
            lines.pop();
        }
        let raw = text.lines().map(str::to_owned).collect();
        let whole = path.split('/').any(|part| TEST_DIRECTORIES.contains(&part))
            || path.ends_with("/tests.rs")
            || path.ends_with("_tests.rs");
        let mut source = Source {
            path: path.to_owned(),
            raw,
            test: vec![whole; lines.len()],
            lines,
        };
        source.mark_test_items();
        source
    }

    /// The crate's directory name: `kernels` for `crates/kernels/src/lib.rs`.
    #[must_use]
    pub fn crate_name(&self) -> Option<&str> {
        self.path.strip_prefix("crates/")?.split('/').next()
    }

    /// Whether the file is part of a library or a program, and not of its tests or build.
    #[must_use]
    pub fn is_product(&self) -> bool {
        self.path.split('/').nth(2) == Some("src") && !self.test.first().is_some_and(|&t| t)
    }

    /// Lines outside test code, with their index.
    pub fn product_lines(&self) -> impl Iterator<Item = (usize, &Line)> {
        self.lines
            .iter()
            .enumerate()
            .filter(|&(i, _)| !self.test[i])
    }

    /// Every function with a body.
    #[must_use]
    pub fn functions(&self) -> Vec<Function> {
        let mut functions = Vec::new();
        for (start, line) in self.lines.iter().enumerate() {
            for at in words(&line.code, "fn") {
                let name: String = line.code[at + 2..]
                    .trim_start()
                    .chars()
                    .take_while(|&c| is_word(c))
                    .collect();
                if name.is_empty() {
                    continue;
                }
                if let Some(end) = self.item_end(start, at) {
                    functions.push(Function { name, start, end });
                }
            }
        }
        functions
    }

    /// What stands directly above line `index`, nearest first: its comments, its attributes and
    /// the beginning of its statement.
    pub fn preamble(&self, index: usize) -> impl Iterator<Item = &Line> {
        self.lines[..index].iter().rev().take_while(|line| {
            let code = line.code.trim();
            let blank = code.is_empty() && line.comment.trim().is_empty();
            !blank && !code.ends_with([';', '{', '}'])
        })
    }

    fn mark_test_items(&mut self) {
        for index in 0..self.lines.len() {
            let code = &self.lines[index].code;
            let attribute = code
                .find("#[cfg(test)]")
                .or_else(|| code.find("#[cfg(all(test"));
            let Some(at) = attribute else { continue };
            let end = self.item_end(index, at).unwrap_or(index);
            self.test[index..=end].fill(true);
        }
    }

    /// Index of the line where the item starting at byte `at` of line `start` ends its braces;
    /// `None` if it ends with a semicolon.
    fn item_end(&self, start: usize, at: usize) -> Option<usize> {
        let (mut braces, mut parentheses) = (0usize, 0usize);
        for (index, line) in self.lines.iter().enumerate().skip(start) {
            let code = if index == start {
                &line.code[at..]
            } else {
                &line.code[..]
            };
            for c in code.chars() {
                match c {
                    '(' | '[' => parentheses += 1,
                    ')' | ']' => parentheses = parentheses.saturating_sub(1),
                    ';' if braces == 0 && parentheses == 0 => return None,
                    '{' => braces += 1,
                    '}' if braces <= 1 => return Some(index),
                    '}' => braces -= 1,
                    _ => {}
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
//! Doc.
fn one(x: [u8; 3]) -> u8 { x[0] }
trait T { fn declared(&self); }
type F = fn(u8);
#[cfg(test)]
use std::io;
#[cfg(test)]
mod tests {
    fn two() {
        let s = \"}\";
    }
}
fn three() {
}
";

    #[test]
    fn functions_with_bodies_are_found_with_their_extent() {
        let source = Source::parse("crates/a/src/lib.rs", TEXT);
        let found: Vec<_> = source
            .functions()
            .into_iter()
            .map(|f| (f.name, f.start, f.end))
            .collect();
        let expected = [("one", 1, 1), ("two", 8, 10), ("three", 12, 13)];
        assert_eq!(found, expected.map(|(name, s, e)| (name.to_owned(), s, e)));
    }

    #[test]
    fn test_code_is_known_by_attribute_and_by_directory() {
        let source = Source::parse("crates/a/src/lib.rs", TEXT);
        let marked: Vec<_> = (0..source.test.len()).filter(|&i| source.test[i]).collect();
        assert_eq!(marked, [4, 6, 7, 8, 9, 10, 11]);
        assert!(source.is_product());
        assert_eq!(source.crate_name(), Some("a"));
        let source = Source::parse("crates/a/tests/b.rs", TEXT);
        assert!(source.test.iter().all(|&t| t) && !source.is_product());
        assert!(
            Source::parse("crates/a/src/x/tests.rs", TEXT)
                .test
                .iter()
                .all(|&t| t)
        );
    }

    #[test]
    fn a_preamble_is_what_stands_directly_above() {
        let text = "let a;\n// one\n#[two]\n/// three\nfn f() {}\n";
        let source = Source::parse("crates/a/src/lib.rs", text);
        assert_eq!(source.preamble(4).count(), 3);
        assert_eq!(source.preamble(1).count(), 0);
    }
}
