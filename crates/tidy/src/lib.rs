//! The rules of this repository, as tests.
//!
//! `tests/tidy.rs` reads the whole tree once, applies every rule and prints every violation with
//! its place and its cure. A rule is one function from a [`Tree`] or a [`Source`] to
//! [`Violation`]s, with a unit test beside it that shows it can fail. The crate runs nothing of
//! Lamella and nothing depends on it.

pub mod absence;
pub mod documents;
pub mod layering;
pub mod repository;
pub mod scan;
pub mod source;
pub mod style;
pub mod tree;

pub use source::Source;
pub use tree::Tree;

use std::fmt;

/// One broken rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    /// File, relative to the repository root.
    pub path: String,
    /// Line from 1; 0 where the file as a whole is meant.
    pub line: usize,
    /// What is wrong.
    pub fault: String,
    /// What to do about it.
    pub cure: &'static str,
}

impl Violation {
    /// A violation at `line` (from 1) of `path`.
    pub fn new(path: &str, line: usize, fault: impl Into<String>, cure: &'static str) -> Violation {
        Violation {
            path: path.to_owned(),
            line,
            fault: fault.into(),
            cure,
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}:{}: {}: {}",
            self.path, self.line, self.fault, self.cure
        )
    }
}

/// Every violation of every rule in the tree, sorted by place.
#[must_use]
pub fn check(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for rule in TREE_RULES {
        found.extend(rule(tree));
    }
    for source in tree.sources() {
        for rule in SOURCE_RULES {
            found.extend(rule(&source));
        }
    }
    found.sort();
    found
}

/// Rules about the repository as a whole.
const TREE_RULES: &[fn(&Tree) -> Vec<Violation>] = &[
    layering::workspace_edges,
    layering::forbidden_crates,
    layering::inherited_lints,
    documents::architecture_names_every_file,
    documents::ci_runs_the_readme,
    documents::decisions_are_numbered,
    documents::links_resolve,
    repository::no_machine_paths,
    repository::file_sizes,
];

/// Rules about one Rust file.
const SOURCE_RULES: &[fn(&Source) -> Vec<Violation>] = &[
    layering::no_family_names,
    absence::absences,
    style::line_width,
    style::file_length,
    style::function_length,
    style::module_docs,
    style::safety_comments,
    style::banned_words,
    style::printing,
    style::platform_math,
];
