//! What is deliberately absent from a layer, looked for in its code.

use crate::scan::words;
use crate::{Source, Violation};

/// Something that some crates may not contain.
struct Absence {
    /// Code that gives it away.
    word: &'static str,
    /// The crates that may contain it.
    allowed: &'static [&'static str],
    /// What to do instead.
    cure: &'static str,
}

const ABSENCES: &[Absence] = &[
    Absence {
        word: "unsafe",
        // The container's quantiser calls code that is compiled for wider registers.
        allowed: &["kernels", "engine", "container", "ffi"],
        cure: "it belongs into kernels, into engine around kernels and memory, or into ffi",
    },
    Absence {
        word: "std::fs",
        allowed: &["container", "engine", "cli", "tidy"],
        cure: "take texts or slices; files are read by container",
    },
    Absence {
        word: "std::env",
        allowed: &["cli", "tidy"],
        cure: "take it as an option; only cli reads the environment",
    },
    Absence {
        word: "std::process",
        allowed: &["cli", "tidy"],
        cure: "a library starts nothing and ends nothing",
    },
    Absence {
        word: "std::net",
        allowed: &[],
        cure: "nothing here talks to a network",
    },
    Absence {
        word: "OnceLock",
        allowed: &["cli"],
        cure: "there is no process-wide state: keep it in a value that is passed",
    },
    Absence {
        word: "LazyLock",
        allowed: &["cli"],
        cure: "there is no process-wide state: keep it in a value that is passed",
    },
];

/// No crate contains what its layer does without, tests excepted.
#[must_use]
pub fn absences(source: &Source) -> Vec<Violation> {
    let mut found = Vec::new();
    let Some(name) = source.crate_name().filter(|_| source.is_product()) else {
        return found;
    };
    for (index, line) in source.product_lines() {
        for absence in ABSENCES
            .iter()
            .filter(|absence| !absence.allowed.contains(&name))
        {
            for _ in words(&line.code, absence.word) {
                let fault = format!("`{}` in {name}", absence.word);
                found.push(Violation::new(&source.path, index + 1, fault, absence.cure));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_do_without_what_they_should() {
        let text = "use std::fs;\nunsafe { f() }\nstatic A: OnceLock<u8> = OnceLock::new();\n\
                    // std::net\nlet a = \"std::env\";\n\
                    #[cfg(test)]\nmod tests { use std::process; }\n";
        let lines = |path| {
            let found = absences(&Source::parse(path, text));
            found.iter().map(|v| v.line).collect::<Vec<_>>()
        };
        assert_eq!(lines("crates/program/src/a.rs"), [1, 2, 3, 3]);
        assert_eq!(lines("crates/engine/src/a.rs"), [3, 3]);
        assert_eq!(lines("crates/cli/src/a.rs"), [2]);
        assert_eq!(lines("crates/program/tests/a.rs"), [0; 0]);
    }
}
