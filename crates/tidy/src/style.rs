//! How Rust is written here.

use crate::scan::words;
use crate::{Source, Violation};

/// Columns a line may have.
pub const LINE_COLUMNS: usize = 100;
/// Lines a file may have.
pub const FILE_LINES: usize = 600;
/// Lines a function may have, from `fn` to the closing brace.
pub const FUNCTION_LINES: usize = 70;

/// No line is wider than [`LINE_COLUMNS`].
#[must_use]
pub fn line_width(source: &Source) -> Vec<Violation> {
    let wide = source
        .raw
        .iter()
        .enumerate()
        .filter(|(_, l)| l.chars().count() > LINE_COLUMNS);
    wide.map(|(index, line)| {
        let fault = format!("{} columns, at most {LINE_COLUMNS}", line.chars().count());
        Violation::new(&source.path, index + 1, fault, "break the line")
    })
    .collect()
}

/// No file is longer than [`FILE_LINES`].
#[must_use]
pub fn file_length(source: &Source) -> Vec<Violation> {
    let lines = source.raw.len();
    if lines <= FILE_LINES {
        return vec![];
    }
    let fault = format!("{lines} lines, at most {FILE_LINES}");
    vec![Violation::new(
        &source.path,
        0,
        fault,
        "split the file by what its parts are about",
    )]
}

/// No function is longer than [`FUNCTION_LINES`] without a reason above it: a comment that starts
/// with `long:`, or the reason of an expected `too_many_lines`.
#[must_use]
pub fn function_length(source: &Source) -> Vec<Violation> {
    let mut found = Vec::new();
    for function in source.functions() {
        let lines = function.end - function.start + 1;
        let excused = source.preamble(function.start).any(|line| {
            line.comment.trim_start().starts_with("long:")
                || line.code.contains("clippy::too_many_lines")
        });
        if lines > FUNCTION_LINES && !excused {
            let fault = format!(
                "`{}` has {lines} lines, at most {FUNCTION_LINES}",
                function.name
            );
            let cure = "split it, or say why not in a comment `// long: reason` above it";
            found.push(Violation::new(
                &source.path,
                function.start + 1,
                fault,
                cure,
            ));
        }
    }
    found
}

/// Every file opens with a `//!` doc that says what it is about.
#[must_use]
pub fn module_docs(source: &Source) -> Vec<Violation> {
    let first = source
        .raw
        .iter()
        .position(|line| !line.trim().is_empty())
        .unwrap_or(0);
    let text = source
        .raw
        .get(first)
        .and_then(|line| line.strip_prefix("//!"));
    match text {
        Some(text) if text.trim() != "placeholder" && !text.trim().is_empty() => vec![],
        _ => {
            let cure = "open the file with `//! What it is about.`";
            vec![Violation::new(
                &source.path,
                first + 1,
                "no module doc",
                cure,
            )]
        }
    }
}

/// Every `unsafe` block and implementation has a comment `SAFETY:` above it.
#[must_use]
pub fn safety_comments(source: &Source) -> Vec<Violation> {
    let mut found = Vec::new();
    for (index, line) in source.lines.iter().enumerate() {
        for at in words(&line.code, "unsafe") {
            let next = next_code(source, index, at + "unsafe".len());
            let claims = next.starts_with('{') || next.starts_with("impl");
            let mut above = source
                .preamble(index)
                .map(|l| &l.comment)
                .chain([&line.comment]);
            if claims && !above.any(|comment| comment.contains("SAFETY:")) {
                let cure = "say above it why it is sound: `// SAFETY: …`";
                found.push(Violation::new(
                    &source.path,
                    index + 1,
                    "unexplained `unsafe`",
                    cure,
                ));
            }
        }
    }
    found
}

/// The code after byte `at` of line `index`, from its first character that is not a space.
fn next_code(source: &Source, index: usize, at: usize) -> &str {
    let rest = source.lines[index].code[at..].trim_start();
    if !rest.is_empty() {
        return rest;
    }
    let following = source.lines[index + 1..]
        .iter()
        .map(|line| line.code.trim_start());
    following
        .into_iter()
        .find(|code| !code.is_empty())
        .unwrap_or("")
}

/// Words that may not stand in code, with their cures.
const BANNED: &[(&str, &str)] = &[
    ("todo!", "do it, or return an error"),
    ("unimplemented!", "do it, or return an error"),
    ("dbg!", "remove it"),
    (
        "process::exit",
        "return an ExitCode from main, so that destructors run",
    ),
    ("static mut", "there is no process-wide state here: pass it"),
];

/// No word of unfinished or careless work, in code or in comments.
#[must_use]
pub fn banned_words(source: &Source) -> Vec<Violation> {
    let mut found = Vec::new();
    for (index, line) in source.lines.iter().enumerate() {
        let mut report = |word: &str, cure| {
            found.push(Violation::new(
                &source.path,
                index + 1,
                format!("`{word}`"),
                cure,
            ));
        };
        for (word, cure) in BANNED {
            words(&line.code, word).for_each(|_| report(word, cure));
        }
        for word in ["FIXME", "XXX", "TODO"] {
            let cure = "do it, or file it as an issue";
            words(&line.comment, word).for_each(|_| report(word, cure));
        }
    }
    found
}

/// Only the command line prints: libraries return values and errors.
#[must_use]
pub fn printing(source: &Source) -> Vec<Violation> {
    if !source.is_product() || source.crate_name() == Some("cli") {
        return vec![];
    }
    let mut found = Vec::new();
    for (index, line) in source.product_lines() {
        for word in ["println!", "eprintln!", "print!", "eprint!"] {
            for _ in words(&line.code, word) {
                let cure = "return it; only crates/cli prints";
                found.push(Violation::new(
                    &source.path,
                    index + 1,
                    format!("`{word}`"),
                    cure,
                ));
            }
        }
    }
    found
}

/// Functions whose results the standard library leaves to the platform.
const PLATFORM_MATH: &[&str] = &[
    "exp", "exp2", "exp_m1", "ln", "ln_1p", "log", "log2", "log10", "sin", "cos", "sin_cos", "tan",
    "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "powf",
    "powi", "cbrt", "hypot", "gamma", "ln_gamma",
];

/// No platform math where results are computed: the lane rule promises the same bits everywhere.
/// The reference backend is an oracle within a tolerance and may use it.
#[must_use]
pub fn platform_math(source: &Source) -> Vec<Violation> {
    let computes = matches!(source.crate_name(), Some("kernels" | "engine"));
    if !computes || !source.is_product() || source.path.contains("backend/reference/") {
        return vec![];
    }
    let mut found = Vec::new();
    for (index, line) in source.product_lines() {
        for name in PLATFORM_MATH {
            let forms = [
                format!(".{name}("),
                format!("f32::{name}"),
                format!("f64::{name}"),
            ];
            let kernels = format!("kernels.{name}(");
            let code = line.code.replace(&kernels, "kernels.");
            let hits = forms.iter().flat_map(|form| words(&code, form));
            for _ in hits {
                let cure = "use the kernels' elementary functions or the libm crate";
                let fault = format!("platform math `{name}`");
                found.push(Violation::new(&source.path, index + 1, fault, cure));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    type Rule = fn(&Source) -> Vec<Violation>;

    /// Lines at which `rule` finds fault with `text`.
    fn lines(rule: Rule, path: &str, text: &str) -> Vec<usize> {
        rule(&Source::parse(path, text))
            .iter()
            .map(|v| v.line)
            .collect()
    }

    const LIBRARY: &str = "crates/engine/src/a.rs";

    #[test]
    fn wide_lines_and_long_files() {
        let text = format!("{}\n{}\n", "é".repeat(100), "é".repeat(101));
        assert_eq!(lines(line_width, LIBRARY, &text), [2]);
        assert_eq!(lines(file_length, LIBRARY, &"\n".repeat(600)), [0; 0]);
        assert_eq!(lines(file_length, LIBRARY, &"\n".repeat(601)), [0]);
    }

    #[test]
    fn long_functions_need_a_reason() {
        let body = |lines: usize| format!("fn f() {{\n{}}}\n", "a();\n".repeat(lines - 2));
        assert_eq!(lines(function_length, LIBRARY, &body(70)), [0; 0]);
        assert_eq!(
            lines(function_length, LIBRARY, &format!("x;\n{}", body(71))),
            [2]
        );
        for reason in [
            "// long: one table\n",
            "#[expect(\n    clippy::too_many_lines,\n    reason = \"one table\"\n)]\n",
        ] {
            assert_eq!(
                lines(function_length, LIBRARY, &format!("{reason}{}", body(71))),
                [0; 0]
            );
        }
    }

    #[test]
    fn files_say_what_they_are_about() {
        assert_eq!(lines(module_docs, LIBRARY, "//! A.\n"), [0; 0]);
        assert_eq!(lines(module_docs, LIBRARY, "\nuse a;\n"), [2]);
        assert_eq!(lines(module_docs, LIBRARY, "//! placeholder\n"), [1]);
        assert_eq!(lines(module_docs, LIBRARY, ""), [1]);
    }

    #[test]
    fn unsafe_needs_a_safety_comment() {
        let bad = "fn f() {\n    // Fast.\n    unsafe { g() }\n}\nunsafe\nimpl Send for A {}\n";
        assert_eq!(lines(safety_comments, LIBRARY, bad), [3, 5]);
        let far = "// SAFETY: of another.\nlet a = 1;\nlet b = unsafe { g() };\n";
        assert_eq!(lines(safety_comments, LIBRARY, far), [3]);
        let good = "// SAFETY: g is sound.\nlet a =\n    unsafe { g() };\nunsafe fn h();\n\
                    let s = \"unsafe {\";\n";
        assert_eq!(lines(safety_comments, LIBRARY, good), [0; 0]);
    }

    #[test]
    fn banned_words_are_found_in_code_and_comments_but_not_in_text() {
        let text = "dbg!(1);\n// FIXME later\nlet s = \"todo!()\"; // todo! is a macro\n\
                    std::process::exit(1);\n";
        assert_eq!(lines(banned_words, LIBRARY, text), [1, 2, 4]);
    }

    #[test]
    fn only_the_command_line_prints() {
        let text = "eprintln!();\n#[cfg(test)]\nmod tests { fn f() { println!() } }\n";
        assert_eq!(lines(printing, LIBRARY, text), [1]);
        assert_eq!(lines(printing, "crates/cli/src/a.rs", text), [0; 0]);
        assert_eq!(lines(printing, "crates/engine/tests/a.rs", text), [0; 0]);
    }

    #[test]
    fn platform_math_is_for_the_oracle_and_for_tests() {
        let text = "x.exp();\ny.map(f64::sin);\nexp(x); x.expand(); x.sqrt(); libm::exp(x);\n\
                    #[cfg(test)]\nmod tests { fn f() { x.ln() } }\n";
        assert_eq!(lines(platform_math, LIBRARY, text), [1, 2]);
        assert_eq!(lines(platform_math, "crates/text/src/a.rs", text), [0; 0]);
        assert_eq!(
            lines(
                platform_math,
                "crates/engine/src/backend/reference/math.rs",
                text
            ),
            [0; 0]
        );
    }
}
