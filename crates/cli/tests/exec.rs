//! `lamella exec` against the golden checkpoints: logits, greedy tokens, layers, resuming.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;

use common::{World, read_f32, read_json, repository};
use std::path::Path;

const FIXTURES: [&str; 2] = ["olmoe-101", "olmoe-202"];

struct Golden {
    path: String,
    prompt: Vec<u32>,
    greedy: Vec<u32>,
    full: Vec<u32>,
    logits: Vec<f32>,
}

impl Golden {
    fn load(name: &str) -> Golden {
        let reference = read_json(&format!("fixtures/{name}/ref.json"));
        let ids = |key: &str| {
            let list = reference[key].as_array().unwrap();
            list.iter()
                .map(|id| id.as_u64().unwrap() as u32)
                .collect::<Vec<u32>>()
        };
        Golden {
            path: repository(&format!("fixtures/{name}"))
                .display()
                .to_string(),
            prompt: ids("prompt_ids"),
            greedy: ids("greedy_ids"),
            full: ids("full_ids"),
            logits: only_tensor(&repository(&format!("fixtures/{name}/ref.safetensors"))),
        }
    }
}

/// The numbers of a safetensors file with one f32 tensor.
fn only_tensor(path: &Path) -> Vec<f32> {
    let bytes = std::fs::read(path).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[8 + header..]
        .as_chunks::<4>()
        .0
        .iter()
        .map(|b| f32::from_le_bytes(*b))
        .collect()
}

fn list(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// Largest difference relative to the largest reference value.
fn error(found: &[f32], reference: &[f32]) -> f32 {
    assert_eq!(found.len(), reference.len());
    let scale = reference.iter().fold(0f32, |m, v| m.max(v.abs()));
    let worst = found
        .iter()
        .zip(reference)
        .fold(0f32, |m, (a, b)| m.max((a - b).abs()));
    worst / scale
}

fn logits(world: &World, golden: &Golden, more: &[&str]) -> Vec<f32> {
    let ids = list(&golden.full);
    let mut args = vec![
        "exec",
        &golden.path,
        "--tokens",
        &ids,
        "--logits",
        "logits.f32",
    ];
    args.extend(more);
    world.run(args).ok();
    read_f32(&world.path("logits.f32"))
}

fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

#[test]
fn logits_and_greedy_tokens_match_the_reference_on_both_backends() {
    let world = World::new();
    for golden in FIXTURES.map(Golden::load) {
        let prompt = list(&golden.prompt);
        for backend in ["reference", "cpu"] {
            let found = logits(&world, &golden, &["--backend", backend]);
            let error = error(&found, &golden.logits);
            println!("{} {backend}: {error:e}", golden.path);
            assert!(error < 1e-4, "{} {backend}: {error:e}", golden.path);
            let count = golden.greedy.len().to_string();
            let json = world.run([
                "exec",
                &golden.path,
                "--tokens",
                &prompt,
                "--generate",
                &count,
                "--backend",
                backend,
                "--json",
            ]);
            assert_eq!(
                json.json()["ids"],
                serde_json::json!(golden.greedy),
                "{backend}"
            );
        }
    }
}

#[test]
fn chunks_and_threads_and_instruction_sets_change_no_bit() {
    let world = World::new();
    let golden = Golden::load("olmoe-202");
    for encoding in ["bf16", "q8", "q4"] {
        let whole = logits(&world, &golden, &["--encoding", encoding, "--chunk", "200"]);
        let mut variants: Vec<Vec<&str>> = vec![];
        for chunk in ["1", "3", "16", "64"] {
            variants.push(vec!["--chunk", chunk, "--threads", "2"]);
        }
        variants.push(vec!["--threads", "1", "--isa", "scalar"]);
        variants.push(vec!["--threads", "3"]);
        for mut variant in variants {
            variant.extend(["--encoding", encoding]);
            let found = logits(&world, &golden, &variant);
            assert!(same_bits(&found, &whole), "{variant:?}");
        }
    }
}

#[test]
fn tokens_come_from_files_too_and_plain_output_is_plain() {
    let world = World::new();
    let golden = Golden::load("olmoe-101");
    std::fs::write(
        world.path("ids.json"),
        format!("[{}]\n", list(&golden.prompt)),
    )
    .unwrap();
    let ran = world.run([
        "exec",
        &golden.path,
        "--tokens",
        "@ids.json",
        "--generate",
        "3",
        "-q",
    ]);
    assert_eq!(ran.ok(), format!("{}\n", list(&golden.greedy[..3])));
    assert!(ran.err.is_empty());
    let one = world.run(["exec", &golden.path, "--tokens", "@ids.json", "-q"]);
    assert_eq!(one.ok(), format!("{}\n", golden.greedy[0]));
}

#[test]
fn layers_resume_to_the_same_bytes() {
    let world = World::new();
    let golden = Golden::load("olmoe-101");
    let ids = list(&golden.full);
    let args = |dir: &'static str, more: &[&'static str]| {
        let mut args = vec!["exec", &golden.path, "--tokens", &ids, "--layers", dir];
        args.extend(more);
        args.iter()
            .map(ToString::to_string)
            .collect::<Vec<String>>()
    };
    world.run(args("whole", &["--logits", "whole.f32"])).ok();
    let manifest: serde_json::Value =
        serde_json::from_slice(&std::fs::read(world.path("whole/manifest.json")).unwrap()).unwrap();
    let layers = manifest["layers"].as_u64().unwrap() as usize;
    let width = manifest["width"].as_u64().unwrap() as usize;
    assert_eq!(manifest["files"].as_array().unwrap().len(), layers);
    let size = golden.full.len() * width * 4;
    let file = |dir: &str, layer: usize| world.path(dir).join(format!("layer-{layer:03}.f32"));
    // As if killed after each layer in turn: no manifest, later layers absent, one half-written.
    for kept in 0..=layers {
        let dir = world.path("cut");
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir(&dir).unwrap();
        for name in ["run.json", "journal.jsonl"] {
            std::fs::copy(world.path("whole").join(name), dir.join(name)).unwrap();
        }
        for layer in 0..kept {
            std::fs::copy(file("whole", layer), file("cut", layer)).unwrap();
        }
        std::fs::write(dir.join(".lamella-rest"), "torn").unwrap();
        world
            .run(args("cut", &["--resume", "--logits", "cut.f32"]))
            .ok();
        for layer in 0..layers {
            let bytes = std::fs::read(file("cut", layer)).unwrap();
            assert_eq!(bytes.len(), size);
            assert!(
                bytes == std::fs::read(file("whole", layer)).unwrap(),
                "{kept} {layer}"
            );
        }
        let read = |name: &str| std::fs::read(world.path(name)).unwrap();
        assert!(
            read("cut.f32") == read("whole.f32"),
            "logits after {kept} kept layers"
        );
        assert!(read("cut/manifest.json") == read("whole/manifest.json"));
    }
    let found = read_f32(&world.path("whole.f32"));
    assert!(error(&found, &golden.logits) < 1e-4);
}

#[test]
fn two_runs_are_never_mixed() {
    let world = World::new();
    let golden = Golden::load("olmoe-101");
    let run = |tokens: &str, more: &[&str]| {
        let mut args = vec!["exec", &golden.path, "--tokens", tokens, "--layers", "d"];
        args.extend(more);
        world.run(args)
    };
    run("1,2,3", &[]).ok();
    run("1,2,3", &[]).fails(2, &["an earlier run", "--resume"]);
    run("1,2,4", &["--resume"]).fails(2, &["d: ", "other tokens", "remove the directory"]);
    run("1,2,3", &["--resume", "--encoding", "q8"]).fails(2, &["other encodings"]);
    run("1,2,3", &["--resume", "--backend", "reference"]).fails(2, &["other backend"]);
    run("1,2,3", &["--resume"]).ok();
    run("1,2,3", &["--generate", "1"]).fails(2, &["--generate", "--layers"]);
}

/// A copy of a checkpoint in which every number of the weights is another one.
fn other_weights(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        if path.extension().is_some_and(|e| e == "safetensors") {
            let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            // The lowest bit of the mantissa of every second byte: finite stays finite.
            bytes[header..].iter_mut().step_by(2).for_each(|b| *b ^= 1);
        }
        std::fs::write(to.join(path.file_name().unwrap()), bytes).unwrap();
    }
}

#[test]
fn layers_of_other_weights_are_never_taken_over() {
    let world = World::new();
    let fixture = repository("fixtures/olmoe-101");
    other_weights(&fixture, &world.path("b"));
    let a = fixture.display().to_string();
    let run = |model: &str, dir: &str, more: &[&str]| {
        let mut args = vec!["exec", model, "--tokens", "1,2,3", "--layers", dir];
        args.extend(more);
        world.run(args)
    };
    run(&a, "st", &[]).ok();
    std::fs::remove_file(world.path("st/manifest.json")).unwrap();
    std::fs::remove_file(world.path("st/layer-001.f32")).unwrap();
    run("b", "st", &["--resume"]).fails(2, &["st: ", "other weights", "remove the directory"]);
    assert!(!world.path("st/manifest.json").exists());
    run(&a, "st", &["--resume"]).ok();
    // A container is told from its checkpoint and from another container.
    for (model, out) in [(a.as_str(), "ca"), ("b", "cb")] {
        world.run(["convert", model, out, "--encoding", "q8"]).ok();
    }
    run("ca", "sc", &[]).ok();
    run("cb", "sc", &["--resume"]).fails(2, &["sc: ", "other weights"]);
    run("ca", "sc", &["--resume"]).ok();
    // Begun by a version that did not know: refused, not guessed.
    let old = std::fs::read_to_string(world.path("sc/run.json")).unwrap();
    let old = old.replace("lamella layers 2", "lamella layers 1");
    std::fs::write(world.path("sc/run.json"), old).unwrap();
    run("ca", "sc", &["--resume"]).fails(2, &["sc: ", "another version"]);
}

#[test]
fn a_changed_layer_file_is_noticed_and_computed_again() {
    let world = World::new();
    let fixture = repository("fixtures/olmoe-101").display().to_string();
    let run = |more: &[&str]| {
        let mut args = vec!["exec", &fixture, "--tokens", "1,2,3", "--layers", "d"];
        args.extend(more);
        world.run(args)
    };
    run(&[]).ok();
    let read = |name: &str| std::fs::read(world.path("d").join(name)).unwrap();
    let (manifest, good) = (read("manifest.json"), read("layer-001.f32"));
    for finished in [true, false] {
        let mut bad = good.clone();
        bad[5] ^= 1;
        std::fs::write(world.path("d/layer-001.f32"), &bad).unwrap();
        if !finished {
            std::fs::remove_file(world.path("d/manifest.json")).unwrap();
        }
        let ran = run(&["--resume"]);
        ran.ok();
        assert!(
            ran.err.contains("layer-001.f32: not what was written"),
            "{ran:?}"
        );
        assert!(read("layer-001.f32") == good && read("manifest.json") == manifest);
    }
    let quiet = run(&["--resume"]);
    quiet.ok();
    assert!(!quiet.err.contains("warning"), "{quiet:?}");
}
