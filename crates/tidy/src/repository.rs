//! What may lie in the repository.

use crate::{Tree, Violation};

/// Bytes one file may have.
pub const FILE_BYTES: usize = 8 << 20;
/// Folders of data and the bytes each may have.
pub const DATA_BYTES: [(&str, usize); 2] = [("demo/", 8_000_000), ("fixtures/", 40_000_000)];

/// No file is larger than [`FILE_BYTES`]; the demo and the fixtures stay below [`DATA_BYTES`].
#[must_use]
pub fn file_sizes(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (path, bytes) in tree.files() {
        if bytes.len() > FILE_BYTES {
            let fault = format!("{} bytes, at most {FILE_BYTES}", bytes.len());
            found.push(Violation::new(
                path,
                0,
                fault,
                "make it smaller, or generate it in a test",
            ));
        }
    }
    for (folder, most) in DATA_BYTES {
        let inside = tree.files().filter(|(path, _)| path.starts_with(folder));
        let data: usize = inside.map(|(_, bytes)| bytes.len()).sum();
        if data > most {
            let fault = format!("{data} bytes, at most {most}");
            found.push(Violation::new(
                folder,
                0,
                fault,
                "a clone should be quick: keep less",
            ));
        }
    }
    found
}

/// Beginnings of paths of a machine somebody built on, split so that this file is clean itself.
const MACHINE_PATHS: [(&str, &str); 5] = [
    ("/wo", "rk/"),
    ("/ro", "ot/"),
    ("/ho", "me/"),
    ("/tmp/tar", "get"),
    ("/tmp/lam", "ella"),
];

/// No text names a path that exists on one machine only.
#[must_use]
pub fn no_machine_paths(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (path, text) in tree.texts() {
        for (index, line) in text.lines().enumerate() {
            for needle in MACHINE_PATHS.map(|(a, b)| format!("{a}{b}")) {
                let mut places = line.match_indices(&needle).map(|(at, _)| &line[..at]);
                if places.any(|before| !before.ends_with(is_path)) {
                    let cure = "use a relative path, an argument or a temporary directory";
                    found.push(Violation::new(path, index + 1, format!("`{needle}`"), cure));
                }
            }
        }
    }
    found
}

/// Whether a slash after `c` goes on with a path or an address instead of starting one.
fn is_path(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '~' | '}' | '$')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_files_and_much_data_are_refused() {
        let mut tree = Tree::default();
        tree.add("demo/a", vec![0; 8_000_000]);
        assert_eq!(file_sizes(&tree), []);
        tree.add("src/b", vec![0; FILE_BYTES + 1]);
        assert_eq!(file_sizes(&tree).len(), 1);
        for name in ["c", "d", "e", "f", "g"] {
            tree.add(&format!("fixtures/{name}"), vec![0; FILE_BYTES]);
        }
        assert_eq!(file_sizes(&tree).len(), 2);
    }

    #[test]
    fn paths_of_one_machine_are_refused() {
        let [work, root] = [0, 1].map(|i| format!("{}{}", MACHINE_PATHS[i].0, MACHINE_PATHS[i].1));
        let text = format!("see {work}main\nsee our{work}main\n\"{root}x\"\n");
        let tree = Tree::of(&[("a.md", &text)]);
        let lines: Vec<_> = no_machine_paths(&tree).iter().map(|v| v.line).collect();
        assert_eq!(lines, [1, 3]);
    }
}
