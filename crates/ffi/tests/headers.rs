//! The headers in `include/` are what the crate says. After a change to the interface:
//! `LAMELLA_WRITE_HEADERS=1 cargo test -p lamella-ffi --test headers`.

use cbindgen::{Builder, Config, DocumentationStyle, EnumConfig, Language, Style};
use std::path::{Path, PathBuf};

/// A header, what it is about, the files it is made of, and types that no function mentions.
struct Header {
    name: &'static str,
    about: &'static str,
    sources: &'static [&'static str],
    types: &'static [&'static str],
}

const HEADERS: &[Header] = &[
    Header {
        name: "segment_runtime",
        about: "Segment, version 1: a contiguous range of a model's layers.\n *\n \
                * Functions return 0, or -1 after writing a text with a NUL to `error`, which may be\n \
                * NULL with size 0. Adapters are registered before the first look-up; look-ups may\n \
                * then come from any thread.",
        sources: &["segment/abi.rs", "segment/exports.rs"],
        types: &["ColiSegmentDType"],
    },
    Header {
        name: "edge_runtime",
        about: "Edge, version 2: the two ends of a model: tokenizer, embedding, final transform\n \
                * and head.\n *\n \
                * Functions return 0, or -1 after writing a text with a NUL to `error`, which may be\n \
                * NULL with size 0. Adapters are registered before the first look-up; look-ups may\n \
                * then come from any thread.",
        sources: &["edge/abi.rs", "edge/exports.rs"],
        types: &["ColiEdgeDType"],
    },
    Header {
        name: "lamella",
        about: "What Lamella adds to the Segment and Edge interfaces. Nothing here is needed to\n \
                * use them.",
        sources: &["lamella.rs"],
        types: &["LamellaCode"],
    },
];

fn crate_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn generated(header: &Header) -> String {
    let guard = header.name.to_uppercase();
    let mut config = Config {
        header: Some(format!(
            "/*\n * {}\n *\n * Generated from the Rust sources of liblamella; a test keeps both equal.\n */",
            header.about
        )),
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

/// Comments of one line on one line, and without the headings under which Rust states contracts:
/// C has only contracts.
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
    out.replace("#endif // __cplusplus", "#endif")
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
