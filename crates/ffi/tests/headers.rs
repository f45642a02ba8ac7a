//! The headers in `include/` are what the crate says. After a change to the interface:
//! `LAMELLA_WRITE_HEADERS=1 cargo test -p lamella-ffi --test headers`.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use cbindgen::{Builder, Config, DocumentationStyle, EnumConfig, Language, Style};
use std::path::{Path, PathBuf};

/// A header, what it is about, the files it is made of, and types that no function mentions.
struct Header {
    name: &'static str,
    about: &'static str,
    rules: &'static str,
    sources: &'static [&'static str],
    types: &'static [&'static str],
    /// Headers it needs.
    includes: &'static [&'static str],
}

const RULES: &str = "
Functions return 0, or -1 after writing a text with a NUL to `error`, which may be NULL with
size 0. Adapters are registered before the first look-up; look-ups may then come from any thread.";

const REGISTRAR_RULES: &str = "
A host calls the registrars of the families it wants, before its first look-up. 0, or -1 if the
family is registered already.";

const HEADERS: &[Header] = &[
    Header {
        name: "segment_runtime",
        about: "Segment, version 1: a contiguous range of a model's layers.",
        rules: RULES,
        sources: &["segment/abi.rs", "segment/exports.rs"],
        types: &["ColiSegmentDType"],
        includes: &[],
    },
    Header {
        name: "edge_runtime",
        about: "Edge, version 2: the ends of a model: tokenizer, embedding, final transform, head.",
        rules: RULES,
        sources: &["edge/abi.rs", "edge/exports.rs"],
        types: &["ColiEdgeDType"],
        includes: &[],
    },
    Header {
        name: "lamella",
        about: "What Lamella adds to Segment and Edge. Nothing here is needed to use them.",
        rules: "",
        sources: &["lamella.rs", "additions.rs"],
        types: &["LamellaCode"],
        includes: &["edge_runtime.h", "segment_runtime.h"],
    },
    Header {
        name: "segment_adapters",
        about: "The Segment adapters of Lamella's model families.",
        rules: REGISTRAR_RULES,
        sources: &["adapters/segment_registrars.rs"],
        types: &[],
        includes: &[],
    },
    Header {
        name: "edge_adapters",
        about: "The Edge adapters of Lamella's model families.",
        rules: REGISTRAR_RULES,
        sources: &["adapters/edge_registrars.rs"],
        types: &[],
        includes: &[],
    },
];

const ORIGIN: &str = "\n\nGenerated from the Rust sources of liblamella; a test keeps both equal.";

/// The comment at the head of a header.
fn banner(header: &Header) -> String {
    let rules = if header.rules.is_empty() {
        String::new()
    } else {
        format!("\n{}", header.rules)
    };
    let text = format!("{}{rules}{ORIGIN}", header.about);
    let lines = text
        .lines()
        .map(|line| format!(" * {line}").trim_end().to_owned());
    format!("/*\n{}\n */", lines.collect::<Vec<_>>().join("\n"))
}

fn crate_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn generated(header: &Header) -> String {
    let guard = header.name.to_uppercase();
    let mut config = Config {
        header: Some(banner(header)),
        include_guard: Some(format!("COLI_{guard}_H")),
        sys_includes: ["stddef.h", "stdint.h"].map(str::to_owned).to_vec(),
        no_includes: true,
        cpp_compat: true,
        language: Language::C,
        style: Style::Both,
        usize_is_size_t: true,
        documentation_style: DocumentationStyle::Doxy,
        line_length: 90,
        tab_width: 4,
        enumeration: EnumConfig::default(),
        ..Config::default()
    };
    config.includes = header
        .includes
        .iter()
        .map(|&name| name.to_owned())
        .collect();
    config.export.include = header.types.iter().map(|&name| name.to_owned()).collect();
    let sources = header
        .sources
        .iter()
        .map(|source| crate_dir().join("src").join(source));
    let builder = sources.fold(Builder::new(), Builder::with_src);
    let bindings = builder
        .with_config(config)
        .generate()
        .expect("the sources parse");
    let mut text = Vec::new();
    bindings.write(&mut text);
    as_people_write_it(&String::from_utf8(text).unwrap())
}

/// Comments of one line on one line, without the headings under which Rust states contracts (C has
/// only contracts), and without the comma behind the last constant, which C++98 does not know.
fn as_people_write_it(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    let mut out = String::new();
    let mut at = 0;
    while at < lines.len() {
        let (line, indent) = (lines[at], lines[at].len() - lines[at].trim_start().len());
        let one = (line.trim() == "/**" && lines.get(at + 2).is_some_and(|l| l.trim() == "*/"))
            .then(|| lines[at + 1].trim_start().trim_start_matches("* "));
        let text = one.map(|words| format!("{}/** {words} */", &line[..indent]));
        if line.trim() != "* # Safety" {
            out.push_str(text.as_deref().unwrap_or(line));
            out.push('\n');
        }
        at += if one.is_some() { 3 } else { 1 };
    }
    out.replace(",\n}", "\n}")
        .replace("#endif // __cplusplus", "#endif")
        .replace("#endif  // __cplusplus", "#endif")
        .replace("}  // extern \"C\"", "}")
}

fn path(header: &Header) -> PathBuf {
    crate_dir()
        .join("include")
        .join(header.name)
        .with_extension("h")
}

#[test]
fn the_headers_are_what_the_crate_says() {
    for header in HEADERS {
        let (path, want) = (path(header), generated(header));
        if std::env::var_os("LAMELLA_WRITE_HEADERS").is_some() {
            std::fs::write(&path, &want).unwrap();
        }
        assert_same(&path, &want);
    }
}

fn assert_same(path: &Path, want: &str) {
    let have = std::fs::read_to_string(path).unwrap_or_default();
    let line = have.lines().zip(want.lines()).position(|(a, b)| a != b);
    assert!(
        have == want,
        "{} is not what the crate says, first in line {:?}; see the top of tests/headers.rs",
        path.display(),
        line.map(|at| at + 1)
    );
}
