//! Which crate may know which: the layers of ARCHITECTURE.md, read from the manifests.

use crate::{Source, Tree, Violation};
use std::collections::{BTreeMap, BTreeSet};
use toml::{Table, Value};

/// A crate of the workspace and what it may stand on.
pub struct Layer {
    /// Directory under `crates/`.
    pub name: &'static str,
    /// Crates of the workspace it may depend on.
    pub may_use: &'static [&'static str],
    /// External crates it must not reach, by any path.
    pub must_not_reach: &'static [&'static str],
}

const EDGE: &[&str] = &[
    "tokio",
    "axum",
    "hyper",
    "clap",
    "rustyline",
    "indicatif",
    "anyhow",
];
const TEXT: &[&str] = &["tokenizers", "minijinja"];

/// The layers, lowest first. `tidy` stands beside them.
pub const LAYERS: &[Layer] = &[
    Layer {
        name: "program",
        may_use: &[],
        must_not_reach: &["serde_json", "rustix", "blake3"],
    },
    Layer {
        name: "container",
        may_use: &["program"],
        must_not_reach: &["rand_core", "safetensors", "memmap2"],
    },
    Layer {
        name: "families",
        may_use: &["program"],
        must_not_reach: &["rustix", "blake3", "safetensors"],
    },
    Layer {
        name: "kernels",
        may_use: &["program"],
        must_not_reach: &["serde_json", "blake3", "rayon"],
    },
    Layer {
        name: "text",
        may_use: &[],
        must_not_reach: &["rustix", "blake3", "onig", "reqwest"],
    },
    Layer {
        name: "engine",
        may_use: &["program", "container", "families", "kernels"],
        must_not_reach: &["rayon"],
    },
    Layer {
        name: "ffi",
        may_use: &[
            "program",
            "container",
            "families",
            "kernels",
            "text",
            "engine",
        ],
        must_not_reach: &["onig", "openssl", "reqwest"],
    },
    Layer {
        name: "cli",
        may_use: &[
            "program",
            "container",
            "families",
            "kernels",
            "text",
            "engine",
        ],
        must_not_reach: &["tokio", "axum", "hyper", "onig", "openssl", "reqwest"],
    },
    Layer {
        name: "tidy",
        may_use: &[],
        must_not_reach: &["tokio", "clap"],
    },
];

/// What every layer but the last real one must not reach: the edges of the system.
fn forbidden(layer: &Layer) -> Vec<&'static str> {
    let mut names = layer.must_not_reach.to_vec();
    if layer.name != "cli" {
        names.extend(EDGE);
        if layer.name != "text" {
            names.extend(TEXT);
        }
    }
    names
}

/// Crates depend downwards only, exactly as [`LAYERS`] says. Development dependencies may reach
/// any layer but the crate's own and those above the engine.
#[must_use]
pub fn workspace_edges(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for name in tree.crates() {
        let path = manifest_path(name);
        let Some(layer) = LAYERS.iter().find(|layer| layer.name == name) else {
            let cure = "give it a layer in crates/tidy/src/layering.rs";
            found.push(Violation::new(
                &path,
                0,
                format!("`{name}` has no layer"),
                cure,
            ));
            continue;
        };
        for dependency in dependencies(tree, name, &["dependencies", "build-dependencies"]) {
            let Some(used) = dependency.strip_prefix("lamella-") else {
                continue;
            };
            if !layer.may_use.contains(&used) {
                let fault = format!("`{name}` depends on `{used}`");
                let cure = "see the layers in ARCHITECTURE.md; pass what is needed from above";
                found.push(Violation::new(
                    &path,
                    line_of(tree, &path, &dependency),
                    fault,
                    cure,
                ));
            }
        }
        for dependency in dependencies(tree, name, &["dev-dependencies"]) {
            if matches!(dependency.as_str(), "lamella-cli" | "lamella-tidy") {
                let fault = format!("the tests of `{name}` depend on `{dependency}`");
                let cure = "test through the library below it";
                found.push(Violation::new(
                    &path,
                    line_of(tree, &path, &dependency),
                    fault,
                    cure,
                ));
            }
        }
    }
    found
}

/// No crate reaches what its layer must not know, directly or through others. Read from
/// `Cargo.lock`, which holds the dependencies of every platform and feature in use, so that the
/// rule needs neither network nor cargo.
#[must_use]
pub fn forbidden_crates(tree: &Tree) -> Vec<Violation> {
    let Some(lock) = tree.text("Cargo.lock").map(locked) else {
        let cure = "commit the lock file: this is an application";
        return vec![Violation::new("Cargo.lock", 0, "no lock file", cure)];
    };
    let mut found = Vec::new();
    for layer in LAYERS
        .iter()
        .filter(|layer| tree.has(&manifest_path(layer.name)))
    {
        let banned = forbidden(layer);
        for (name, path) in reached(&lock, dependencies(tree, layer.name, &["dependencies"])) {
            if banned.contains(&name.as_str()) {
                let fault = format!("`{}` reaches `{name}` by {path}", layer.name);
                let cure = "that belongs to another layer, see ARCHITECTURE.md";
                found.push(Violation::new(&manifest_path(layer.name), 0, fault, cure));
            }
        }
    }
    found
}

/// Every crate takes the lints of the workspace.
#[must_use]
pub fn inherited_lints(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for name in tree.crates() {
        let lints = manifest(tree, name)
            .get("lints")
            .and_then(|l| l.get("workspace"))
            .cloned();
        if lints != Some(Value::Boolean(true)) {
            let cure = "add `[lints]` with `workspace = true`";
            let path = manifest_path(name);
            found.push(Violation::new(
                &path,
                0,
                "the workspace lints are not inherited",
                cure,
            ));
        }
    }
    found
}

/// The model families, as their names appear in identifiers and strings.
pub const FAMILY_NAMES: &[&str] = &["olmo", "glm", "qwen", "kimi", "inkling", "deepseek"];

/// The files whose functions hosts know by the families' names, and nothing else.
const REGISTRARS: [&str; 2] = [
    "crates/ffi/src/adapters/edge_registrars.rs",
    "crates/ffi/src/adapters/segment_registrars.rs",
];

/// No code outside `families` names a model family, in identifiers or in strings that could be
/// compared with one. Comments and prose (a string with spaces) may say who uses something, and
/// tests may use models.
#[must_use]
pub fn no_family_names(source: &Source) -> Vec<Violation> {
    let exempt = matches!(source.crate_name(), None | Some("families" | "tidy"));
    if REGISTRARS.contains(&source.path.as_str()) || exempt || !source.is_product() {
        return vec![];
    }
    let mut found = Vec::new();
    for (index, line) in source.product_lines() {
        let strings = line.literal.lines().filter(|text| !text.contains(' '));
        let text = strings.fold(line.code.clone(), |all, text| format!("{all} {text}"));
        for family in FAMILY_NAMES.iter().filter(|family| names(&text, family)) {
            let cure = "express what differs as a field of the program and lower it in `families`";
            let fault = format!("the family `{family}` is named");
            found.push(Violation::new(&source.path, index + 1, fault, cure));
        }
    }
    found
}

/// Whether `text` names `family`, in any case, at the start of a word or of a part of a compound
/// (`is_family`, `IsFamily`).
fn names(text: &str, family: &str) -> bool {
    text.to_ascii_lowercase()
        .match_indices(family)
        .any(|(at, _)| {
            let before = text[..at].chars().next_back();
            let capital = text[at..].starts_with(char::is_uppercase);
            capital || !before.is_some_and(char::is_alphabetic)
        })
}

fn manifest_path(name: &str) -> String {
    format!("crates/{name}/Cargo.toml")
}

fn manifest(tree: &Tree, name: &str) -> Table {
    tree.text(&manifest_path(name))
        .and_then(|text| text.parse().ok())
        .unwrap_or_default()
}

/// Package names in the given sections of a crate's manifest, those of every target included.
fn dependencies(tree: &Tree, name: &str, sections: &[&str]) -> BTreeSet<String> {
    let manifest = manifest(tree, name);
    let mut scopes = vec![&manifest];
    let targets = manifest.get("target").and_then(Value::as_table);
    scopes.extend(
        targets
            .into_iter()
            .flat_map(Table::values)
            .filter_map(Value::as_table),
    );
    let mut names = BTreeSet::new();
    for table in scopes
        .iter()
        .flat_map(|scope| sections.iter().filter_map(|s| scope.get(*s)))
    {
        for (key, value) in table.as_table().into_iter().flatten() {
            let package = value.get("package").and_then(Value::as_str);
            names.insert(package.unwrap_or(key).to_owned());
        }
    }
    names
}

/// The graph of `Cargo.lock`: the dependencies of a package, versions left out. Several versions
/// of one package are one node, which can only make the rule stricter.
fn locked(text: &str) -> BTreeMap<String, BTreeSet<String>> {
    let table: Table = text.parse().unwrap_or_default();
    let mut graph: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in table
        .get("package")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        let Some(name) = package.get("name").and_then(Value::as_str) else {
            continue;
        };
        let uses = package
            .get("dependencies")
            .and_then(Value::as_array)
            .into_iter()
            .flatten();
        let names = uses.filter_map(|d| d.as_str()?.split(' ').next());
        graph
            .entry(name.to_owned())
            .or_default()
            .extend(names.map(str::to_owned));
    }
    graph
}

/// Every package reached from `roots`, with one path to it. Crates of the workspace are not
/// walked through: each answers for itself, and its entry in the lock file mixes in what only its
/// tests need.
fn reached(
    graph: &BTreeMap<String, BTreeSet<String>>,
    roots: BTreeSet<String>,
) -> BTreeMap<String, String> {
    let mut paths = BTreeMap::new();
    let mut open: Vec<_> = roots.into_iter().map(|name| (name.clone(), name)).collect();
    while let Some((name, path)) = open.pop() {
        if name.starts_with("lamella-") || paths.contains_key(&name) {
            continue;
        }
        for next in graph.get(&name).into_iter().flatten() {
            open.push((next.clone(), format!("{path} > {next}")));
        }
        paths.insert(name, path);
    }
    paths
}

fn line_of(tree: &Tree, path: &str, needle: &str) -> usize {
    let lines = tree.text(path).into_iter().flat_map(str::lines);
    lines
        .enumerate()
        .find(|(_, line)| line.contains(needle))
        .map_or(0, |(index, _)| index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(found: Vec<Violation>) -> Vec<String> {
        found.into_iter().map(|v| v.fault).collect()
    }

    #[test]
    fn edges_point_downwards() {
        let tree = Tree::of(&[
            (
                "crates/program/Cargo.toml",
                "[dependencies]\nserde = \"1\"\n",
            ),
            (
                "crates/kernels/Cargo.toml",
                "[dependencies]\nlamella-program.workspace = true\n\
                 [target.'cfg(unix)'.dependencies]\nlamella-container.workspace = true\n",
            ),
            (
                "crates/text/Cargo.toml",
                "[build-dependencies]\nx = { package = \"lamella-program\", version = \"1\" }\n\
                 [dev-dependencies]\nlamella-families.workspace = true\nlamella-cli = \"1\"\n",
            ),
            ("crates/novel/Cargo.toml", ""),
        ]);
        let expected = [
            "`kernels` depends on `container`",
            "`novel` has no layer",
            "`text` depends on `program`",
            "the tests of `text` depend on `lamella-cli`",
        ];
        assert_eq!(faults(workspace_edges(&tree)), expected);
        assert_eq!(workspace_edges(&tree)[0].line, 4);
    }

    #[test]
    fn forbidden_crates_are_found_through_others() {
        let lock = "[[package]]\nname = \"a\"\ndependencies = [\"b 1.0.0\"]\n\
                    [[package]]\nname = \"b\"\ndependencies = [\"tokio\"]\n\
                    [[package]]\nname = \"lamella-program\"\ndependencies = [\"a\"]\n";
        let kernels = "[dependencies]\na = \"1\"\n[dev-dependencies]\nclap = \"1\"\n";
        let tree = Tree::of(&[
            ("Cargo.lock", lock),
            ("crates/kernels/Cargo.toml", kernels),
            (
                "crates/engine/Cargo.toml",
                "[dependencies]\nlamella-program.workspace = true\n",
            ),
            ("crates/cli/Cargo.toml", "[dependencies]\nclap = \"4\"\n"),
        ]);
        let expected = ["`kernels` reaches `tokio` by a > b > tokio"];
        assert_eq!(faults(forbidden_crates(&tree)), expected);
        assert_eq!(forbidden_crates(&Tree::default()).len(), 1);
    }

    #[test]
    fn lints_are_inherited() {
        let tree = Tree::of(&[
            ("crates/a/Cargo.toml", "[lints]\nworkspace = true\n"),
            ("crates/b/Cargo.toml", "[package]\nname = \"b\"\n"),
        ]);
        let found = inherited_lints(&tree);
        assert_eq!(
            found.iter().map(|v| v.path.as_str()).collect::<Vec<_>>(),
            ["crates/b/Cargo.toml"]
        );
    }

    #[test]
    fn families_are_named_in_comments_and_tests_only() {
        let text = "\
            //! Used by Qwen.\n\
            fn is_olmoe(a: IsKimi) {}\n\
            f(1, \"some text\", \"DeepSeek\");\n\
            let twinkling = \"an example for Inkling\";\n\
            #[cfg(test)]\n\
            mod tests { const A: &str = \"glm\"; }\n";
        let lines = |path| {
            let found = no_family_names(&Source::parse(path, text));
            found.iter().map(|v| v.line).collect::<Vec<_>>()
        };
        assert_eq!(lines("crates/engine/src/a.rs"), [2, 2, 3]);
        assert_eq!(lines("crates/families/src/a.rs"), [0; 0]);
        assert_eq!(lines("crates/engine/tests/a.rs"), [0; 0]);
        assert_eq!(lines(REGISTRARS[0]), [0; 0]);
        assert_eq!(lines("crates/ffi/src/adapters/registrars.rs"), [2, 2, 3]);
    }
}
