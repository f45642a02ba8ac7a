//! Models in which something is not as its neighbours expect it: refused, or run as what it is.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;

use common::models::{Tensors, checkpoint, forge, forge_with_table};
use common::{Ran, World, fixture, repository};
use serde_json::Value;
use std::path::Path;

/// Gives an operand of a container's program another role.
fn role(program: &mut Value, name: &str, role: &str) {
    let operands = program["operands"].as_array_mut().unwrap();
    let operand = operands.iter_mut().find(|o| o["name"] == name).unwrap();
    operand["role"] = role.into();
}

#[test]
fn an_operand_in_a_form_its_block_does_not_read_is_a_defect() {
    let world = World::new();
    let inkling = repository("fixtures/inkling-101").display().to_string();
    world
        .run(["convert", &inkling, "c", "--encoding", "bf16"])
        .ok();
    let sound = std::fs::read_to_string(world.path("c/program.json")).unwrap();
    let sound: Value = serde_json::from_str(&sound).unwrap();
    let attention = |end: &str| format!("layers.0.attention.{end}");
    for (name, wrong, needs) in [
        (attention("bias_projection"), "linear", "Vector or Kernel"),
        (attention("bias_projection"), "router", "Vector or Kernel"),
        (attention("key_convolution"), "vector", "needs Kernel"),
        (attention("query"), "head", "Linear or Router"),
        ("layers.0.ffn.gate".to_owned(), "embedding", "needs Linear"),
        ("layers.0.ffn.up".to_owned(), "router", "needs Linear"),
        ("layers.2.router".to_owned(), "linear", "needs Router"),
        ("embedding".to_owned(), "linear", "needs Embedding"),
        ("head".to_owned(), "linear", "Head or Embedding"),
    ] {
        forge(&world.path("c"), |program| {
            *program = sound.clone();
            role(program, &name, wrong);
        });
        for encoding in ["bf16", "q4"] {
            let args = ["exec", "c", "--tokens", "1,2,3", "--encoding", encoding];
            world
                .run(args)
                .fails(3, &["program.json", &name, "has role", needs]);
        }
    }
    forge(&world.path("c"), |program| *program = sound);
    world.run(["exec", "c", "--tokens", "1,2,3"]).ok();
}

/// Rounds all numbers to bf16, and stores in f32 those that `wide` names.
fn store_in_f32(tensors: &mut Tensors, wide: impl Fn(&str) -> bool) {
    for (name, tensor) in tensors {
        let rounded = tensor.of_type("BF16");
        *tensor = match wide(name) {
            true => rounded.of_type("F32"),
            false => rounded,
        };
    }
}

/// The logits of a few tokens, byte by byte.
fn logits(world: &World, model: &str, more: &[&str]) -> Vec<u8> {
    let args = [
        "exec",
        model,
        "--tokens",
        "1,2,3,4,5",
        "--logits",
        "out.f32",
    ];
    world.run(args.iter().chain(more)).ok();
    std::fs::read(world.path("out.f32")).unwrap()
}

#[test]
fn maps_of_a_unit_may_be_stored_in_two_widths() {
    let world = World::new();
    type Wide = fn(&str) -> bool;
    // What is held in f32 in the end, and what is stored so.
    let experts: Wide = |name| name.contains(".mlp.experts.");
    let cases: [(&str, Wide, Wide); 3] = [
        ("olmoe-101", experts, |name| name.contains("gate_proj")),
        // Some items of one operand only.
        ("olmoe-101", experts, |name| {
            name.contains("experts.0.gate_proj") || name.contains("layers.1.mlp.experts.3.")
        }),
        (
            "qwen35dense-303",
            |name| name.contains(".mlp.up_proj") || name.contains(".mlp.gate_proj"),
            |name| name.contains(".mlp.up_proj"),
        ),
    ];
    for (family, held, wide) in cases {
        let from = repository("fixtures").join(family);
        let [whole, mixed] = ["whole", "mixed"].map(|name| world.path(name));
        checkpoint(&from, &whole, |t| store_in_f32(t, held));
        checkpoint(&from, &mixed, |t| store_in_f32(t, wide));
        world.run(["verify", "mixed"]).ok();
        let converted = ["convert", "mixed", "container", "--encoding", "bf16"];
        world.run(converted).ok();
        world.run(["exec", "container", "--tokens", "1,2,3"]).ok();
        for more in [&[][..], &["--backend", "reference"], &["--encoding", "q4"]] {
            let [a, b] = ["whole", "mixed"].map(|model| logits(&world, model, more));
            assert!(a == b, "{family} {more:?}");
        }
        for dir in ["whole", "mixed", "container"] {
            std::fs::remove_dir_all(world.path(dir)).unwrap();
        }
    }
}

/// Nothing that drives a terminal, and no line of the model's making.
#[track_caller]
fn is_plain(ran: &Ran) {
    for text in [&ran.out, &ran.err] {
        let drives = |c: char| c.is_control() && c != '\n' && c != '\t';
        assert!(!text.contains(drives), "{ran:?}");
        assert!(
            !text.lines().any(|line| line.starts_with("evil")),
            "{ran:?}"
        );
    }
}

#[test]
fn names_from_files_do_not_drive_the_terminal() {
    let world = World::new();
    let from = repository("fixtures/olmoe-101");
    checkpoint(&from, &world.path("m"), |tensors| {
        let norm = tensors["model.norm.weight"].clone();
        tensors.insert("zz\x1b[31m\nevil\u{9b}".to_owned(), norm);
    });
    let told = "zz\\u{1b}[31m\\u{a}evil";
    let ops = world.run(["ops", "m"]);
    ops.fails(3, &["1 defect"]);
    assert!(ops.out.contains(told), "{ops:?}");
    assert_eq!(ops.out.lines().count(), 1, "{ops:?}");
    is_plain(&ops);
    for args in [
        &["ops", "m", "--json"][..],
        &["verify", "m"],
        &["inspect", "m"],
        &["exec", "m", "--tokens", "1"],
        &["convert", "m", "c", "--encoding", "q8"],
    ] {
        let ran = world.run(args);
        assert_eq!(ran.code, Some(3), "{ran:?}");
        is_plain(&ran);
    }
}

#[test]
fn names_of_a_container_do_not_drive_the_terminal() {
    let world = World::new();
    world
        .run(["convert", &fixture(), "c", "--encoding", "q8"])
        .ok();
    let name = "emb\x1b]0;title\x07\nevil";
    forge_with_table(&world.path("c"), |program, table| {
        program["family"] = "olm\x1b[31m\nevil".into();
        let old = program["operands"][0]["name"].as_str().unwrap().to_owned();
        program["operands"][0]["name"] = name.into();
        let entry = |name: &str| [&(name.len() as u16).to_le_bytes(), name.as_bytes()].concat();
        let (from, to) = (entry(&old), entry(name));
        let at = table.windows(from.len()).position(|w| w == from).unwrap();
        table.splice(at..at + from.len(), to);
    });
    for args in [
        &["ops", "c"][..],
        &["ops", "c", "--json"],
        &["inspect", "c"],
        &["inspect", "c", "--json"],
        &["verify", "c"],
        &["exec", "c", "--tokens", "1"],
        &[
            "bench",
            "c",
            "-p",
            "2",
            "-n",
            "1",
            "-r",
            "1",
            "--no-bandwidth",
        ],
    ] {
        let ran = world.run(args);
        ran.ok();
        is_plain(&ran);
    }
    let ops = world.run(["ops", "c"]);
    for told in ["emb\\u{1b}]0;title\\u{7}\\u{a}evil", "olm\\u{1b}[31m"] {
        assert!(ops.out.contains(told), "{ops:?}");
    }
    // Damage names the operand too.
    for entry in std::fs::read_dir(world.path("c")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "pack") {
            damage(&path);
        }
    }
    let ran = world.run(["verify", "c"]);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(ran.out.contains("emb\\u{1b}"), "{ran:?}");
    is_plain(&ran);
}

/// Flips a bit of the first byte.
fn damage(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[0] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_weight_that_no_encoding_holds_is_told_once() {
    let world = World::new();
    let from = repository("fixtures/olmoe-101");
    checkpoint(&from, &world.path("m"), |tensors| {
        let name = "model.layers.1.mlp.experts.3.gate_proj.weight";
        let tensor = tensors.get_mut(name).unwrap();
        tensor.bytes[100..104].copy_from_slice(&3.3e38f32.to_le_bytes());
    });
    for args in [
        &["exec", "m", "--tokens", "1", "--encoding", "q4"][..],
        &["exec", "m", "--tokens", "1", "--encoding", "q8"],
        &["convert", "m", "c", "--encoding", "q4"],
    ] {
        let ran = world.run(args);
        ran.fails(3, &["operand layers.1.", "item 3", "too large for q"]);
        assert_eq!(ran.err.matches("too large").count(), 1, "{ran:?}");
    }
}

#[test]
fn input_that_is_no_text_is_wrong_usage() {
    let world = World::new();
    let garbled = b"What is \xff\xfe?\n";
    std::fs::write(world.path("x"), garbled).unwrap();
    for args in [
        &["run", "demo", "-"][..],
        &["run", "demo", "--chat"],
        &["perplexity", "demo", "-"],
        &["perplexity", "demo", "x"],
        &["exec", "demo", "--tokens", "@x"],
    ] {
        let ran = world.run_with_input(args, garbled);
        ran.fails(2, &["UTF-8"]);
    }
}

#[test]
fn the_readme_lists_every_model_type() {
    let readme = std::fs::read_to_string(repository("README.md")).unwrap();
    let known = World::new().run(["version", "--json"]).json();
    let known = known["families"].as_array().unwrap();
    assert!(known.len() > 6, "{known:?}");
    for name in known {
        let quoted = format!("`{}`", name.as_str().unwrap());
        assert!(readme.contains(&quoted), "README.md: {quoted}");
    }
}

#[test]
fn other_weights_of_the_same_size_and_time_are_noticed() {
    let world = World::new();
    checkpoint(&repository("fixtures/olmoe-101"), &world.path("m"), |_| {});
    let run = |more: &[&str]| {
        let args = ["exec", "m", "--tokens", "1,2,3", "--layers", "d"];
        world.run(args.iter().chain(more))
    };
    run(&[]).ok();
    for finished in ["manifest.json", "layer-001.f32"] {
        std::fs::remove_file(world.path("d").join(finished)).unwrap();
    }
    let weights = world.path("m/model.safetensors");
    let time = std::fs::metadata(&weights).unwrap().modified().unwrap();
    let change = || {
        let mut bytes = std::fs::read(&weights).unwrap();
        // The lowest bit of the last number.
        let last = bytes.len() - 4;
        bytes[last] ^= 1;
        std::fs::write(&weights, bytes).unwrap();
        let file = std::fs::File::options().write(true).open(&weights).unwrap();
        file.set_modified(time).unwrap();
    };
    change();
    run(&["--resume"]).fails(2, &["d: ", "other weights", "remove the directory"]);
    change();
    run(&["--resume"]).ok();
}
