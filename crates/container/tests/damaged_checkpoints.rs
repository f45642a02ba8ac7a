//! Damaged checkpoints, one line each: every one is refused with a message that names the file and
//! the cause.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;

use common::damage::{Case, check, open_message, read, write};
use common::{INDEX, SHARD_1, SHARD_2, Tensors, safetensors, with_header};
use serde_json::Value;
use std::path::Path;

const MODEL: &str = "model.safetensors";

/// Writes the weights after a change to the tensors.
fn with_tensors(dir: &Path, change: fn(&mut Tensors)) {
    let mut tensors = common::tensors();
    change(&mut tensors);
    write(dir, MODEL, safetensors(&tensors));
}

/// Writes the weights after a change to the header, data unchanged.
fn with_json(dir: &Path, change: impl Fn(&mut Value)) {
    with_text(dir, |json| {
        let mut value = serde_json::from_str(&json).unwrap();
        change(&mut value);
        value.to_string()
    });
}

fn with_text(dir: &Path, change: impl Fn(String) -> String) {
    let bytes = read(dir, MODEL);
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let json = String::from_utf8(bytes[8..8 + length].to_vec()).unwrap();
    write(dir, MODEL, with_header(&change(json), &bytes[8 + length..]));
}

const HEAD: &str = "model.head.weight";

/// Damage to a checkpoint in one file.
const SINGLE: &[Case] = &[
    (
        "no config",
        |d| std::fs::remove_file(d.join("config.json")).unwrap(),
        &["config.json"],
    ),
    (
        "config is a pointer",
        |d| {
            write(
                d,
                "config.json",
                "version https://git-lfs.github.com/spec/v1\noid x",
            )
        },
        &["config.json", "Git LFS"],
    ),
    (
        "config of zeros",
        |d| write(d, "config.json", [0; 40]),
        &["config.json", "zero bytes"],
    ),
    (
        "config in latin-1",
        |d| write(d, "config.json", b"{\"a\": \"\xe9\"}"),
        &["config.json", "UTF-8"],
    ),
    (
        "config is a directory",
        |d| {
            std::fs::remove_file(d.join("config.json")).unwrap();
            std::fs::create_dir(d.join("config.json")).unwrap();
        },
        &["config.json", "not a regular file"],
    ),
    (
        "no weights",
        |d| std::fs::remove_file(d.join(MODEL)).unwrap(),
        &["no safetensors weights"],
    ),
    (
        "only a .bin",
        |d| std::fs::rename(d.join(MODEL), d.join("pytorch_model.bin")).unwrap(),
        &["no safetensors weights", ".bin"],
    ),
    (
        "only a .gguf",
        |d| std::fs::rename(d.join(MODEL), d.join("model.gguf")).unwrap(),
        &["no safetensors weights", "GGUF"],
    ),
    (
        "weights are a directory",
        |d| {
            std::fs::remove_file(d.join(MODEL)).unwrap();
            std::fs::create_dir(d.join(MODEL)).unwrap();
        },
        &[MODEL, "not a regular file"],
    ),
    (
        "weights are a pointer",
        |d| {
            write(
                d,
                MODEL,
                "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n",
            )
        },
        &[MODEL, "Git LFS pointer", "git lfs pull"],
    ),
    ("empty weights", |d| write(d, MODEL, ""), &[MODEL, "empty"]),
    (
        "five bytes",
        |d| write(d, MODEL, "abcde"),
        &[MODEL, "3 bytes short"],
    ),
    (
        "zero-filled",
        |d| write(d, MODEL, vec![0; 9000]),
        &[MODEL, "begins with zero bytes"],
    ),
    (
        "zero-filled head",
        |d| {
            let mut bytes = read(d, MODEL);
            bytes[..4096].fill(0);
            write(d, MODEL, bytes);
        },
        &[MODEL, "begins with zero bytes"],
    ),
    (
        "a web page",
        |d| write(d, MODEL, "<!DOCTYPE html><html>404</html>"),
        &[MODEL, "web page"],
    ),
    (
        "a zip",
        |d| write(d, MODEL, "PK\x03\x04 and so on and on"),
        &[MODEL, "zip"],
    ),
    (
        "a renamed GGUF",
        |d| write(d, MODEL, "GGUF\x03\0\0\0\0\0\0\0\0"),
        &[MODEL, "GGUF"],
    ),
    (
        "absurd header length",
        |d| write(d, MODEL, [0xff; 64]),
        &[MODEL, "header of 18446744073709551615 bytes"],
    ),
    (
        "header length over the limit",
        |d| {
            write(
                d,
                MODEL,
                [&100_000_001u64.to_le_bytes()[..], b"{}"].concat(),
            )
        },
        &[MODEL, "100000001"],
    ),
    (
        "header longer than the file",
        |d| write(d, MODEL, [&1000u64.to_le_bytes()[..], b"{}"].concat()),
        &[MODEL, "998 bytes short"],
    ),
    (
        "cut off in the data",
        |d| {
            let mut bytes = read(d, MODEL);
            bytes.truncate(bytes.len() - 17);
            write(d, MODEL, bytes);
        },
        &[MODEL, "17 bytes short", "unfinished"],
    ),
    (
        "bytes at the end",
        |d| write(d, MODEL, [read(d, MODEL), vec![1; 3]].concat()),
        &[MODEL, "3 bytes follow"],
    ),
    (
        "header is no JSON",
        |d| with_text(d, |j| j.replace('{', "[")),
        &[MODEL, "header cannot be read"],
    ),
    (
        "header is a list",
        |d| with_text(d, |_| "[1]".into()),
        &[MODEL, "header cannot be read"],
    ),
    (
        "header is not UTF-8",
        |d| {
            write(
                d,
                MODEL,
                [&4u64.to_le_bytes()[..], b"{\"\xff\"", &[0; 9]].concat(),
            )
        },
        &[MODEL, "header cannot be read"],
    ),
    (
        "header nested too deep",
        |d| with_text(d, |_| format!("{{\"a\":{}", "[".repeat(9000))),
        &[MODEL, "header cannot be read"],
    ),
    (
        "tensor twice in a header",
        |d| {
            with_text(d, |j| {
                let entry = r#"{"dtype":"U8","shape":[0],"data_offsets":[0,0]}"#;
                format!(r#"{{"twice":{entry},"twice":{entry},{}"#, &j[1..])
            })
        },
        &[MODEL, "twice", "announced twice"],
    ),
    (
        "key twice in a tensor",
        |d| {
            with_text(d, |j| {
                j.replacen(
                    "\"dtype\":\"BF16\"",
                    "\"dtype\":\"BF16\",\"dtype\":\"BF16\"",
                    1,
                )
            })
        },
        &[MODEL, "duplicate field"],
    ),
    (
        "unknown key in a tensor",
        |d| with_json(d, |j| j[HEAD]["strides"] = 1.into()),
        &[MODEL, "strides"],
    ),
    (
        "no offsets",
        |d| {
            with_json(d, |j| {
                j[HEAD].as_object_mut().unwrap().remove("data_offsets");
            })
        },
        &[MODEL, "data_offsets"],
    ),
    (
        "unknown element type",
        |d| with_json(d, |j| j[HEAD]["dtype"] = "BF17".into()),
        &[MODEL, HEAD, "BF17"],
    ),
    (
        "unsupported element type",
        |d| with_json(d, |j| j[HEAD]["dtype"] = "I16".into()),
        &[HEAD, "I16", "not supported"],
    ),
    (
        "mixed element types",
        |d| {
            with_json(d, |j| {
                j["model.layers.0.query.weight"]["dtype"] = "F8_E4M3".into()
            })
        },
        &["model.layers.0.query.weight", "3200 bytes stored", "1600"],
    ),
    (
        "negative shape",
        |d| with_json(d, |j| j[HEAD]["shape"][0] = (-50).into()),
        &[MODEL, "header cannot be read"],
    ),
    (
        "fractional shape",
        |d| with_json(d, |j| j[HEAD]["shape"][0] = 1.5.into()),
        &[MODEL, "header cannot be read"],
    ),
    (
        "shape too large for the data",
        |d| with_json(d, |j| j[HEAD]["shape"][0] = 51.into()),
        &[MODEL, HEAD, "4000 bytes stored", "4080"],
    ),
    (
        "shape that overflows",
        |d| {
            with_json(d, |j| {
                j[HEAD]["shape"] = serde_json::json!([u64::MAX, u64::MAX])
            })
        },
        &[MODEL, HEAD, "impossible shape"],
    ),
    (
        "nine dimensions",
        |d| {
            with_json(d, |j| {
                j[HEAD]["shape"] = serde_json::json!([1, 1, 1, 1, 1, 1, 1, 50, 40])
            })
        },
        &[MODEL, HEAD, "impossible shape"],
    ),
    (
        "reversed offsets",
        |d| {
            with_json(d, |j| {
                j[HEAD]["data_offsets"].as_array_mut().unwrap().reverse()
            })
        },
        &[MODEL, HEAD, "before its start"],
    ),
    (
        "offsets out of bounds",
        |d| {
            with_json(d, |j| {
                j[HEAD]["data_offsets"] = serde_json::json!([1u64 << 40, (1u64 << 40) + 4000])
            })
        },
        &[MODEL, HEAD, "out of bounds"],
    ),
    (
        "offsets at the end of the world",
        |d| {
            with_json(d, |j| {
                j[HEAD]["data_offsets"] = serde_json::json!([u64::MAX - 4000, u64::MAX])
            })
        },
        &[MODEL, HEAD],
    ),
    (
        "overlapping tensors",
        |d| {
            with_json(d, |j| {
                j[HEAD]["data_offsets"] = serde_json::json!([0, 4000])
            })
        },
        &[MODEL, "overlap", HEAD],
    ),
    (
        "a gap between tensors",
        |d| {
            with_json(d, |j| {
                j["model.1.gate_up"] =
                    serde_json::json!({ "dtype": "U8", "shape": [0], "data_offsets": [0, 0] });
            });
        },
        &[MODEL, "belong to no tensor"],
    ),
    (
        "wrong metadata",
        |d| with_json(d, |j| j["__metadata__"] = serde_json::json!({"format": 1})),
        &[MODEL, "header cannot be read"],
    ),
    (
        "missing tensor",
        |d| {
            with_tensors(d, |t| {
                t.remove(HEAD);
            })
        },
        &[HEAD, "missing from the checkpoint"],
    ),
    (
        "unclaimed tensor",
        |d| {
            with_tensors(d, |t| {
                t.insert("extra.bias".into(), common::tensor("extra", &[3]));
            })
        },
        &["extra.bias", "no operation uses it"],
    ),
    (
        "transposed tensor",
        |d| with_tensors(d, |t| t.get_mut(HEAD).unwrap().shape.reverse()),
        &[HEAD, "[40, 50]", "[50, 40]"],
    ),
    (
        "many defects together",
        |d| with_tensors(d, |t| t.retain(|name, _| name == HEAD)),
        &["defects", "missing from the checkpoint", "more"],
    ),
];

fn edit_index(dir: &Path, change: fn(&mut Value)) {
    let mut index: Value = serde_json::from_slice(&read(dir, INDEX)).unwrap();
    change(&mut index);
    write(dir, INDEX, index.to_string());
}

/// Damage to a checkpoint in two shards.
const SHARDED: &[Case] = &[
    (
        "missing shard",
        |d| std::fs::remove_file(d.join(SHARD_2)).unwrap(),
        &[SHARD_2, "missing"],
    ),
    (
        "no shard at all",
        |d| {
            std::fs::remove_file(d.join(SHARD_1)).unwrap();
            std::fs::remove_file(d.join(SHARD_2)).unwrap();
        },
        &[SHARD_1, SHARD_2, "missing"],
    ),
    (
        "short shard",
        |d| {
            let mut bytes = read(d, SHARD_2);
            bytes.truncate(bytes.len() / 2);
            write(d, SHARD_2, bytes);
        },
        &[SHARD_2, "bytes short", "unfinished"],
    ),
    (
        "shard is a pointer",
        |d| write(d, SHARD_1, "version https://git-lfs.github.com/spec/v1\n"),
        &[SHARD_1, "Git LFS"],
    ),
    (
        "shards in each other's place",
        |d| {
            let (a, b) = (read(d, SHARD_1), read(d, SHARD_2));
            write(d, SHARD_1, b);
            write(d, SHARD_2, a);
        },
        &["no tensor", "which the index places in this shard"],
    ),
    (
        "index lost",
        |d| std::fs::remove_file(d.join(INDEX)).unwrap(),
        &["2 safetensors files", INDEX],
    ),
    (
        "index is no JSON",
        |d| write(d, INDEX, "{"),
        &[INDEX, "cannot be read"],
    ),
    (
        "index is a pointer",
        |d| write(d, INDEX, "version https://git-lfs.github.com/spec/v1\n"),
        &[INDEX, "Git LFS"],
    ),
    (
        "index of nothing",
        |d| write(d, INDEX, r#"{"weight_map": {}}"#),
        &[INDEX, "no tensors"],
    ),
    (
        "index without a map",
        |d| write(d, INDEX, "{}"),
        &[INDEX, "weight_map"],
    ),
    (
        "two maps",
        |d| write(d, INDEX, r#"{"weight_map": {}, "weight_map": {}}"#),
        &[INDEX, "duplicate field"],
    ),
    (
        "tensor twice in the index",
        |d| {
            let text = String::from_utf8(read(d, INDEX)).unwrap();
            let twice = format!(r#""weight_map":{{"{HEAD}":"{SHARD_1}","#);
            write(d, INDEX, text.replacen("\"weight_map\":{", &twice, 1));
        },
        &[INDEX, HEAD, "stands twice"],
    ),
    (
        "index leads out",
        |d| edit_index(d, |i| i["weight_map"][HEAD] = "../other.safetensors".into()),
        &[INDEX, HEAD, "leads out"],
    ),
    (
        "index leads to the root",
        |d| edit_index(d, |i| i["weight_map"][HEAD] = "/etc/passwd".into()),
        &[INDEX, HEAD, "leads out"],
    ),
    (
        "index names no file",
        |d| edit_index(d, |i| i["weight_map"][HEAD] = "".into()),
        &[INDEX, HEAD, "leads out"],
    ),
    (
        "index names a number",
        |d| edit_index(d, |i| i["weight_map"][HEAD] = 1.into()),
        &[INDEX, "cannot be read"],
    ),
    (
        "index names the directory of shards",
        |d| {
            std::fs::create_dir(d.join("shards")).unwrap();
            edit_index(d, |i| i["weight_map"][HEAD] = "shards".into());
        },
        &["shards", "not a regular file"],
    ),
    (
        "index knows a tensor too many",
        |d| edit_index(d, |i| i["weight_map"]["ghost"] = SHARD_2.into()),
        &[SHARD_2, "ghost", "which the index places"],
    ),
    (
        "index knows a tensor too few",
        |d| {
            edit_index(d, |i| {
                i["weight_map"].as_object_mut().unwrap().remove(HEAD);
            })
        },
        &[HEAD, "not in model.safetensors.index.json"],
    ),
    (
        "tensor in two shards",
        |d| {
            let mut second = common::tensors();
            second.retain(|name, _| {
                serde_json::from_slice::<Value>(&read(d, INDEX)).unwrap()["weight_map"][name]
                    == SHARD_2
            });
            second.insert(HEAD.into(), common::tensor(HEAD, &[50, 40]));
            write(d, SHARD_2, safetensors(&second));
        },
        &[SHARD_2, HEAD, SHARD_1],
    ),
];

#[test]
fn damaged_checkpoints_are_described() {
    assert!(SINGLE.len() + SHARDED.len() >= 40);
    check(SINGLE, common::write_single, open_message);
    check(
        SHARDED,
        |dir| drop(common::write_sharded(dir)),
        open_message,
    );
}

#[test]
fn what_is_no_directory_is_named() {
    let temp = tempfile::tempdir().unwrap();
    let message = open_message(&temp.path().join("absent")).unwrap();
    assert!(
        message.contains("absent") && message.contains("no such file"),
        "{message}"
    );
    let file = temp.path().join("model.safetensors");
    std::fs::write(&file, "x").unwrap();
    let message = open_message(&file).unwrap();
    assert!(message.contains("not a directory"), "{message}");
}
