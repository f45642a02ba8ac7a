//! Token ids as typed.

use crate::failure::Failure;
use crate::files;
use std::fs::File;

/// Longest file of ids that is read: more than any context takes.
const MAX_BYTES: u64 = 64 << 20;

/// Reads `1,2,3`, or `@FILE` with ids separated by commas or white space (a JSON list is fine).
///
/// # Errors
/// If the file cannot be read or something in it is no id.
pub(super) fn parse(typed: &str) -> anyhow::Result<Vec<u32>> {
    let (place, text) = match typed.strip_prefix('@') {
        Some(path) => (path, read(path)?),
        None => ("--tokens", typed.to_owned()),
    };
    let text = text.trim();
    let text = text
        .strip_prefix('[')
        .and_then(|t| t.strip_suffix(']'))
        .unwrap_or(text);
    let words = text
        .split(|c: char| c == ',' || c.is_whitespace())
        .filter(|w| !w.is_empty());
    let mut ids = Vec::new();
    for word in words {
        let id = word.parse::<u32>().map_err(|_| {
            Failure::usage(format!(
                "{place}: {word:?} at index {} is no token id",
                ids.len()
            ))
        })?;
        ids.push(id);
    }
    if ids.is_empty() {
        return Err(Failure::usage(format!("{place}: no token ids")));
    }
    Ok(ids)
}

fn read(path: &str) -> anyhow::Result<String> {
    if path.is_empty() {
        return Err(Failure::usage(
            "--tokens: @ needs the name of a file after it",
        ));
    }
    let wrong = |cause: String| Failure::usage(format!("--tokens: {path}: {cause}"));
    let bytes = File::open(path)
        .and_then(|file| files::read_bounded(file, MAX_BYTES))
        .map_err(|e| wrong(e.to_string()))?;
    String::from_utf8(bytes).map_err(|_| wrong("not UTF-8".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_typed_or_in_a_file() {
        for text in ["1,2,3", "1 2 3", "[1, 2,\n3]", " 1,,2, 3 "] {
            assert_eq!(parse(text).unwrap(), [1, 2, 3], "{text}");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ids");
        std::fs::write(&path, "4\n5\n").unwrap();
        assert_eq!(parse(&format!("@{}", path.display())).unwrap(), [4, 5]);
    }

    #[test]
    fn what_is_no_id_is_named() {
        for (text, wanted) in [
            ("1,x", "\"x\" at index 1"),
            ("-1", "\"-1\" at index 0"),
            ("4294967296", "index 0"),
            ("", "no token ids"),
            ("@/nonexistent/ids", "/nonexistent/ids"),
            ("@", "needs the name"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }
}
