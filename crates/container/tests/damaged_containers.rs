//! Damaged containers, one line each: every one is refused with a message that names the file and
//! the cause.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;

use common::Fixture;
use common::damage::{Case, check, flip, open_message, read, verify_message, write};
use lamella_container::manifest::{FileEntry, Manifest};
use lamella_container::table::Table;
use serde_json::Value;
use std::path::Path;

/// Rewrites program and table with true digests: damage that only their own checks can see.
fn forge(dir: &Path, change: impl Fn(&mut Value, &mut Table)) {
    let mut program: Value = serde_json::from_slice(&read(dir, "program.json")).unwrap();
    let mut table = Table::parse(&read(dir, "operands.bin")).unwrap();
    change(&mut program, &mut table);
    forge_bytes(dir, program.to_string().as_bytes(), &table.to_bytes());
}

fn forge_bytes(dir: &Path, program: &[u8], table: &[u8]) {
    write(dir, "program.json", program);
    write(dir, "operands.bin", table);
    let old = Manifest::parse(&read(dir, "lamella.json")).unwrap();
    let manifest = Manifest::new(
        FileEntry::of("program.json", program),
        FileEntry::of("operands.bin", table),
        old.texts,
    );
    write(dir, "lamella.json", manifest.to_json());
}

fn edit_manifest(dir: &Path, from: &str, to: &str) {
    let text = String::from_utf8(read(dir, "lamella.json")).unwrap();
    assert!(text.contains(from), "{from}");
    write(dir, "lamella.json", text.replacen(from, to, 1));
}

fn forge_table_bytes(dir: &Path, change: fn(Vec<u8>) -> Vec<u8>) {
    forge_bytes(
        dir,
        &read(dir, "program.json"),
        &change(read(dir, "operands.bin")),
    );
}

/// Damage to a container that keeps it from opening.
const CONTAINER: &[Case] = &[
    (
        "manifest is no JSON",
        |d| write(d, "lamella.json", "{"),
        &["lamella.json", "cannot be read"],
    ),
    (
        "empty manifest",
        |d| write(d, "lamella.json", ""),
        &["lamella.json", "cannot be read"],
    ),
    (
        "manifest of something else",
        |d| edit_manifest(d, "lamella container", "tar"),
        &["lamella.json", "not a Lamella container"],
    ),
    (
        "manifest of the future",
        |d| edit_manifest(d, "\"version\": 1", "\"version\": 7"),
        &["lamella.json", "version 7 is newer"],
    ),
    (
        "unknown feature",
        |d| edit_manifest(d, "[]", "[\"holograms\"]"),
        &["lamella.json", "holograms"],
    ),
    (
        "marked incomplete",
        |d| edit_manifest(d, "true", "false"),
        &["lamella.json", "incomplete"],
    ),
    (
        "another version's field",
        |d| edit_manifest(d, "\"complete\"", "\"finished\""),
        &["lamella.json", "finished"],
    ),
    (
        "key twice in the manifest",
        |d| {
            edit_manifest(
                d,
                "\"complete\": true",
                "\"complete\": true, \"complete\": true",
            )
        },
        &["lamella.json", "duplicate field"],
    ),
    (
        "another identity",
        |d| edit_manifest(d, "\"identity\": \"", "\"identity\": \"0"),
        &["lamella.json", "identity"],
    ),
    (
        "manifest leads out",
        |d| edit_manifest(d, "\"config.json\"", "\"../config.json\""),
        &["lamella.json", "../config.json"],
    ),
    (
        "program elsewhere",
        |d| edit_manifest(d, "\"program.json\"", "\"/etc/passwd\""),
        &["lamella.json", "/etc/passwd"],
    ),
    (
        "huge manifest",
        |d| write(d, "lamella.json", vec![b' '; 2 << 20]),
        &["lamella.json", "2097152 bytes"],
    ),
    (
        "manifest is a directory",
        |d| {
            std::fs::remove_file(d.join("lamella.json")).unwrap();
            std::fs::create_dir(d.join("lamella.json")).unwrap();
        },
        &["lamella.json", "not a regular file"],
    ),
    (
        "no program",
        |d| std::fs::remove_file(d.join("program.json")).unwrap(),
        &["program.json", "no such file"],
    ),
    (
        "no manifest",
        |d| std::fs::remove_file(d.join("lamella.json")).unwrap(),
        &["no lamella.json", "the copy is incomplete"],
    ),
    (
        "program of version 0",
        |d| forge(d, |program, _| program["version"] = 0.into()),
        &["program.json", "version is 0"],
    ),
    (
        "flipped program",
        |d| flip(d, "program.json", 100),
        &["program.json", "digest"],
    ),
    (
        "short program",
        |d| write(d, "program.json", "{}"),
        &["program.json", "2 bytes"],
    ),
    (
        "program is no program",
        |d| forge_bytes(d, b"{}", &read(d, "operands.bin")),
        &["program.json", "not a program"],
    ),
    (
        "program of the future",
        |d| forge(d, |p, _| p["version"] = 99.into()),
        &["program.json", "version 99"],
    ),
    (
        "program with a dangling operand",
        |d| forge(d, |p, _| p["exit"]["head"] = 4_000_000_000u32.into()),
        &["program.json", "4000000000"],
    ),
    (
        "program with huge heads",
        |d| {
            forge(d, |p, _| {
                p["layers"][0]["mixer"]["body"]["heads"] = u64::MAX.into()
            })
        },
        &["program.json"],
    ),
    (
        "program with a huge operand",
        |d| {
            forge(d, |p, _| {
                p["operands"][0]["shape"] = serde_json::json!([u64::MAX, u64::MAX])
            })
        },
        &["program.json", "overflows"],
    ),
    (
        "no table",
        |d| std::fs::remove_file(d.join("operands.bin")).unwrap(),
        &["operands.bin", "no such file"],
    ),
    (
        "flipped table",
        |d| flip(d, "operands.bin", 50),
        &["operands.bin", "digest"],
    ),
    (
        "table of something else",
        |d| forge_table_bytes(d, |t| [b"TAMOPLAB", &t[8..]].concat()),
        &["operands.bin", "not an operand table"],
    ),
    (
        "table of the future",
        |d| forge_table_bytes(d, |t| [&t[..8], &[9], &t[9..]].concat()),
        &["operands.bin", "version 9"],
    ),
    (
        "truncated table",
        |d| forge_table_bytes(d, |t| t[..t.len() - 1].to_vec()),
        &["operands.bin", "ends in the middle"],
    ),
    (
        "table with a tail",
        |d| forge_table_bytes(d, |t| [&t[..], &[0]].concat()),
        &["operands.bin", "1 bytes follow"],
    ),
    (
        "table of four billion files",
        |d| forge_table_bytes(d, |t| [&t[..12], &[0xff; 16], &t[28..]].concat()),
        &["operands.bin", "ends in the middle"],
    ),
    (
        "pack leads out",
        |d| forge(d, |_, t| t.files[0].name = "../resident.pack".into()),
        &["operands.bin", "../resident.pack"],
    ),
    (
        "pack stands twice",
        |d| forge(d, |_, t| t.files[0].name = t.files[1].name.clone()),
        &["operands.bin", "twice"],
    ),
    (
        "unaligned record",
        |d| forge(d, |_, t| t.records[3].offset += 64),
        &["operands.bin", "record 3", "aligned"],
    ),
    (
        "record beyond its pack",
        |d| forge(d, |_, t| t.records[0].length = u64::MAX - 9),
        &["operands.bin", "record 0"],
    ),
    (
        "records overlap",
        |d| forge(d, |_, t| t.records[2].offset = t.records[1].offset),
        &["operands.bin", "record 2"],
    ),
    (
        "record of no pack",
        |d| forge(d, |_, t| t.records[0].file = 77),
        &["operands.bin", "record 0", "pack"],
    ),
    (
        "part beyond its record",
        |d| forge(d, |_, t| t.parts[0].length += 1),
        &["operands.bin", "record 0", "beyond"],
    ),
    (
        "part of another size",
        |d| {
            forge(d, |_, t| {
                t.parts[0].length -= 64;
                t.records[0].length -= 64;
            })
        },
        &["operands.bin", "size"],
    ),
    (
        "operand that does not exist",
        |d| forge(d, |_, t| t.parts[0].operand = 1 << 20),
        &["operands.bin", "does not exist"],
    ),
    (
        "item that does not exist",
        |d| forge(d, |_, t| t.parts[0].item = 1),
        &["operands.bin", "item beyond"],
    ),
    (
        "item stored twice",
        |d| {
            forge(d, |_, t| {
                let last = t.parts.len() - 1;
                t.parts[last].item -= 1;
            })
        },
        &["operands.bin", "twice"],
    ),
    (
        "operand of another name",
        |d| forge(d, |_, t| t.operands[1].name.push('x')),
        &["operands.bin", "name or shape"],
    ),
    (
        "operand too few",
        |d| {
            forge(d, |_, t| {
                t.operands.pop();
            })
        },
        &["operands.bin", "numbers of operands"],
    ),
    (
        "missing pack",
        |d| std::fs::remove_file(d.join("resident.pack")).unwrap(),
        &["resident.pack", "no such file"],
    ),
    (
        "short pack",
        |d| {
            let mut bytes = read(d, "experts-0001-q4.pack");
            bytes.truncate(4096);
            write(d, "experts-0001-q4.pack", bytes);
        },
        &["experts-0001-q4.pack", "4096 bytes"],
    ),
    (
        "long pack",
        |d| {
            write(
                d,
                "resident.pack",
                [read(d, "resident.pack"), vec![0; 4096]].concat(),
            )
        },
        &["resident.pack", "the container records"],
    ),
];

/// Damage to a container that only reading everything finds.
const PACKS: &[Case] = &[
    (
        "flipped embedding",
        |d| flip(d, "resident.pack", 0),
        &["resident.pack", "operand embedding", "at 0"],
    ),
    (
        "flipped expert",
        |d| flip(d, "experts-0001-q4.pack", 0),
        &["experts-0001-q4.pack", "layers.1.gate", "item 0", "q4"],
    ),
    (
        "flipped padding",
        |d| flip(d, "experts-0000-q4.pack", 4095),
        &["experts-0000-q4.pack", "padding at 4095"],
    ),
    (
        "pack of zeros",
        |d| {
            write(
                d,
                "experts-0000-q4.pack",
                vec![0; read(d, "experts-0000-q4.pack").len()],
            )
        },
        &["experts-0000-q4.pack", "layers.0.gate"],
    ),
    (
        "flipped text",
        |d| flip(d, "tokenizer.json", 3),
        &["tokenizer.json", "digest"],
    ),
    (
        "missing text",
        |d| std::fs::remove_file(d.join("config.json")).unwrap(),
        &["config.json", "no such file"],
    ),
    (
        "short text",
        |d| write(d, "chat_template.jinja", "{"),
        &["chat_template.jinja", "1 bytes"],
    ),
];

#[test]
fn damaged_containers_are_described() {
    let fixture = Fixture::new();
    let copy = |dir: &Path| common::copy_dir(&fixture.container, dir);
    check(CONTAINER, copy, open_message);
    check(PACKS, copy, verify_message);
}

#[test]
fn what_is_absent_is_listed_with_everything_else() {
    let fixture = Fixture::new();
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("model");
    common::copy_dir(&fixture.container, &dir);
    std::fs::remove_file(dir.join("tokenizer.json")).unwrap();
    std::fs::remove_file(dir.join("experts-0000-q4.pack")).unwrap();
    let packs: Vec<String> = std::fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".pack"))
        .collect();
    flip(&dir, &packs[0], 10);
    let report = lamella_container::verify(&dir, &mut |_| {}).unwrap();
    let lines: Vec<String> = report.damage.iter().map(ToString::to_string).collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    for (name, word) in [
        ("tokenizer.json", "no such file"),
        ("experts-0000-q4.pack", "no such file"),
        (packs[0].as_str(), "damaged"),
    ] {
        let told = |line: &String| line.contains(name) && line.contains(word);
        assert_eq!(
            lines.iter().filter(|line| told(line)).count(),
            1,
            "{name} {lines:?}"
        );
    }
    let message = open_message(&dir).unwrap();
    assert!(message.contains("experts-0000-q4.pack") && message.contains("no such file"));
}
