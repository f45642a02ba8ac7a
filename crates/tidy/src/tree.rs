//! The files of the repository, in memory.

use crate::Source;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::process::Command;

/// The repository's files: what git tracks or would track.
#[derive(Debug, Default)]
pub struct Tree {
    files: BTreeMap<String, Vec<u8>>,
}

impl Tree {
    /// Reads the tree at `root`. Where git does not answer (an unpacked archive), every file
    /// outside `.git` and `target` directories is taken.
    ///
    /// # Errors
    /// Any failure to list or read.
    pub fn read(root: &Path) -> io::Result<Tree> {
        let paths = match git_files(root) {
            Some(paths) => paths,
            None => walk(root, "")?,
        };
        let mut tree = Tree::default();
        for path in paths {
            let full = root.join(&path);
            // Git lists deleted files until the deletion is committed.
            if full.is_file() {
                tree.add(&path, std::fs::read(full)?);
            }
        }
        Ok(tree)
    }

    /// Adds a file.
    pub fn add(&mut self, path: &str, bytes: impl Into<Vec<u8>>) {
        self.files.insert(path.to_owned(), bytes.into());
    }

    /// A tree of text files, for tests of rules.
    #[must_use]
    pub fn of(files: &[(&str, &str)]) -> Tree {
        let mut tree = Tree::default();
        files.iter().for_each(|(path, text)| tree.add(path, *text));
        tree
    }

    /// Every file, by path.
    pub fn files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.files
            .iter()
            .map(|(path, bytes)| (path.as_str(), bytes.as_slice()))
    }

    /// Whether there is a file of this path, or a file below it.
    #[must_use]
    pub fn has(&self, path: &str) -> bool {
        let below = format!("{}/", path.trim_end_matches('/'));
        self.files
            .keys()
            .any(|p| p == path || p.starts_with(&below))
    }

    /// The text of a file; `None` if it is not there or is not UTF-8.
    #[must_use]
    pub fn text(&self, path: &str) -> Option<&str> {
        std::str::from_utf8(self.files.get(path)?).ok()
    }

    /// Every text file, by path.
    pub fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files()
            .filter_map(|(path, bytes)| Some((path, std::str::from_utf8(bytes).ok()?)))
    }

    /// Every Rust file.
    pub fn sources(&self) -> impl Iterator<Item = Source> {
        let rust = self.texts().filter(|(path, _)| path.ends_with(".rs"));
        rust.map(|(path, text)| Source::parse(path, text))
    }

    /// The directories under `crates/`, as names.
    #[must_use]
    pub fn crates(&self) -> Vec<&str> {
        let manifests = self.files.keys().filter_map(|path| {
            let name = path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml")?;
            (!name.contains('/')).then_some(name)
        });
        manifests.collect()
    }
}

fn git_files(root: &Path) -> Option<Vec<String>> {
    let output = Command::new("git")
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .current_dir(root)
        .output()
        .ok()?;
    let listing = String::from_utf8(output.stdout).ok()?;
    let paths: Vec<_> = listing
        .split('\0')
        .filter(|p| !p.is_empty())
        .map(str::to_owned)
        .collect();
    (output.status.success() && !paths.is_empty()).then_some(paths)
}

fn walk(root: &Path, prefix: &str) -> io::Result<Vec<String>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(root.join(prefix))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if prefix.is_empty() {
            name.clone()
        } else {
            format!("{prefix}/{name}")
        };
        match entry.file_type()? {
            kind if kind.is_dir() && (name == ".git" || name == "target") => {}
            kind if kind.is_dir() => paths.extend(walk(root, &path)?),
            _ => paths.push(path),
        }
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_git_the_directory_is_walked_and_build_outputs_are_not_read() {
        let dir = tempfile::tempdir().unwrap();
        for path in ["crates/a/src", "target/debug", "fuzz/target"] {
            std::fs::create_dir_all(dir.path().join(path)).unwrap();
        }
        for path in [
            "crates/a/src/lib.rs",
            "target/debug/x",
            "fuzz/target/y",
            "README.md",
        ] {
            std::fs::write(dir.path().join(path), "text").unwrap();
        }
        let mut paths = walk(dir.path(), "").unwrap();
        paths.sort();
        assert_eq!(paths, ["README.md", "crates/a/src/lib.rs"]);
    }

    #[test]
    fn crates_are_the_directories_with_a_manifest() {
        let tree = Tree::of(&[
            ("crates/a/Cargo.toml", ""),
            ("crates/b/src/lib.rs", ""),
            ("crates/a/fixtures/Cargo.toml", ""),
        ]);
        assert_eq!(tree.crates(), ["a"]);
        assert!(tree.has("crates/b") && tree.has("crates/a/Cargo.toml") && !tree.has("crates/c"));
    }
}
