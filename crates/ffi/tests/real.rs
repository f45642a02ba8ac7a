//! The real suites: `c/real.c` over every family's adapters, on small models with references.
//!
//! `LAMELLA_HAMMER_SECONDS` makes the test of many threads longer, `REAL_STRIDE=1` damages every
//! byte of every snapshot.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;

use common::{compiler, crate_dir, library_dir, program, run, succeed};
use lamella_engine::{Cancel, Logits, Model, Options, Span};
use lamella_text::Bundle;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use tempfile::TempDir;

fn repository(path: &str) -> PathBuf {
    crate_dir().join("../..").join(path)
}

/// The suites as a program, compiled once.
fn suites() -> OsString {
    static BUILT: OnceLock<(TempDir, OsString)> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let names = ["", "_model", "_state", "_load", "_experts"];
        let sources = names.map(|name| format!("real{name}.c"));
        let sources = sources.each_ref().map(String::as_str);
        let mut call = compiler("CC", "cc", "c99");
        let built = program(call.arg("-pthread"), &sources, dir.path());
        (dir, built)
    });
    built.1.clone()
}

/// A model with everything that a host needs, and what its oracle says.
struct Prepared {
    family: String,
    dir: TempDir,
}

/// The checkpoints that the manifest binds to the families; of each only the first, or all.
fn checkpoints(all: bool) -> Vec<Prepared> {
    let manifest = std::fs::read_to_string(crate_dir().join("tests/manifest.json")).unwrap();
    let manifest: Value = serde_json::from_str(&manifest).unwrap();
    let mut prepared = vec![];
    for family in manifest["families"].as_array().unwrap() {
        let names = family["checkpoints"].as_array().unwrap();
        let taken = if all { names.len() } else { 1 };
        for name in &names[..taken] {
            prepared.push(Prepared {
                family: family["id"].as_str().unwrap().to_owned(),
                dir: prepare(name.as_str().unwrap()),
            });
        }
    }
    assert!(prepared.len() >= 7);
    prepared
}

/// A copy of a fixture with a tokenizer, and the ids of its reference in `ids`.
fn prepare(fixture: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let source = repository("fixtures").join(fixture);
    for entry in std::fs::read_dir(&source).unwrap() {
        let name = entry.unwrap().file_name();
        if !name.to_str().unwrap().starts_with("ref.") {
            std::fs::copy(source.join(&name), dir.path().join(&name)).unwrap();
        }
    }
    let write = |name: &str, text: String| std::fs::write(dir.path().join(name), text).unwrap();
    write("tokenizer.json", tokenizer(vocabulary(&source)).to_string());
    if !dir.path().join("generation_config.json").exists() {
        write(
            "generation_config.json",
            json!({"eos_token_id": 2}).to_string(),
        );
    }
    write("ids", ids(&source));
    dir
}

/// Ids of the reference: how long the prompt is, how many there are, and which.
fn ids(fixture: &Path) -> String {
    let reference = std::fs::read_to_string(fixture.join("ref.json")).unwrap();
    let reference: Value = serde_json::from_str(&reference).unwrap();
    let list = |names: &[&str]| {
        let found = names.iter().find_map(|name| reference[name].as_array());
        found.unwrap().clone()
    };
    let (prompt, greedy) = (
        list(&["prompt_ids"]),
        list(&["greedy_ids", "generated_ids"]),
    );
    let mut text = format!("{} {}", prompt.len(), prompt.len() + greedy.len());
    for id in prompt.iter().chain(&greedy) {
        write!(text, " {id}").unwrap();
    }
    text
}

/// Number of logits, from the header of the reference.
fn vocabulary(fixture: &Path) -> u64 {
    let bytes = std::fs::read(fixture.join("ref.safetensors")).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    header["logits"]["shape"][1].as_u64().unwrap()
}

/// A tokenizer of single characters, and added tokens for the rest of the ids. `<` begins those
/// and nothing else.
fn tokenizer(vocabulary: u64) -> Value {
    let characters = (b'!'..=b'~').filter(|&c| c != b'<').map(char::from);
    let characters: Vec<String> = characters.map(String::from).collect();
    let known: serde_json::Map<String, Value> = characters
        .iter()
        .zip(0u64..)
        .map(|(c, id)| (c.clone(), id.into()))
        .collect();
    let added: Vec<Value> = (characters.len() as u64..vocabulary)
        .map(|id| {
            json!({
                "id": id, "content": format!("<{id}>"), "special": id % 2 == 0, "lstrip": false,
                "rstrip": false, "normalized": false, "single_word": false,
            })
        })
        .collect();
    let bytes = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true,
    });
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "added_tokens": added, "pre_tokenizer": bytes, "post_processor": null, "decoder": bytes,
        "model": {"type": "BPE", "vocab": known, "merges": []},
    })
}

fn suite(name: &str, all: bool, more: &[&str]) {
    for model in checkpoints(all) {
        let (dir, ids) = (model.dir.path(), model.dir.path().join("ids"));
        let mut arguments = vec![name, &model.family, dir.to_str().unwrap()];
        arguments.push(ids.to_str().unwrap());
        arguments.extend(more);
        print!("{}", run(suites(), &arguments));
    }
}

#[test]
fn chains_of_every_split_compute_the_bits_of_the_full_range() {
    suite("chain", true, &[]);
}

#[test]
fn text_goes_through_a_chain_and_comes_out_as_the_oracle_says() {
    suite("text", true, &[]);
}

#[test]
fn sessions_are_isolated() {
    suite("sessions", false, &[]);
}

#[test]
fn snapshots_continue_and_damage_changes_nothing() {
    suite("snapshots", false, &[]);
}

#[test]
fn what_is_refused_changes_nothing() {
    suite("rules", false, &[]);
}

#[test]
fn limits_are_exact() {
    suite("limits", false, &[]);
}

#[test]
fn a_cancelled_run_changes_nothing() {
    suite("cancel", false, &[]);
}

#[test]
fn several_sessions_run_in_one_step() {
    suite("many", false, &[]);
}

#[test]
fn experts_on_disk_change_counts_and_no_row() {
    suite("experts", false, &[]);
}

fn hammer(name: &str) {
    let seconds = std::env::var("LAMELLA_HAMMER_SECONDS");
    suite(name, false, &[seconds.as_deref().unwrap_or("1")]);
}

#[test]
fn many_threads_get_what_one_gets() {
    hammer("hammer");
}

#[test]
fn many_threads_get_it_with_experts_on_disk() {
    hammer("hammer_disk");
}

/// The hosts that were written from the published facts alone, on the real adapters.
#[test]
fn hosts_written_from_the_published_facts_work_with_every_family() {
    let into = tempfile::tempdir().unwrap();
    let build = |source| program(&mut compiler("CC", "cc", "c99"), &[source], into.path());
    let (first, second) = (build("host_from_abi.c"), build("independent_host.c"));
    for model in checkpoints(false) {
        let (family, dir) = (&*model.family, model.dir.path().to_str().unwrap());
        let said = run(
            first.clone(),
            &[family, dir, "12", "Onceuponatime", "andthen"],
        );
        assert!(said.lines().count() >= 2, "{family}: {said}");
        let said = run(second.clone(), &[family, dir, "2", "Onceuponatime", "12"]);
        assert!(said.contains("\nanswer ("), "{family}: {said}");
    }
}

/// What the demo model answers to each of `lines`, without a chain.
fn answers(dir: &Path, lines: &[&str]) -> Vec<String> {
    let model = Model::open(dir, &Options::default(), &mut |_| {}).unwrap();
    let bundle = Bundle::load(&|name| model.store().read_text(name).unwrap()).unwrap();
    let words = &bundle.tokenizer;
    let last = words.token_id("<|im_end|>").unwrap();
    let (mut session, cancel) = (model.session(), Cancel::new());
    let mut follow = |ids: &[u32]| {
        let mut logits = vec![];
        let span = Span {
            session: &mut session,
            tokens: ids,
            logits: Logits::Last,
            out: &mut logits,
        };
        model.step(&mut [span], &cancel).unwrap();
        let best = logits.iter().copied().fold(f32::MIN, f32::max);
        logits.iter().position(|&value| value == best).unwrap() as u32
    };
    let mut answers = vec![];
    for line in lines {
        let prompt = format!("<|im_start|>user\n{line}<|im_end|>\n<|im_start|>assistant\n");
        let mut next = follow(&words.encode(&prompt, false).unwrap());
        let mut said = vec![];
        while next != last && said.len() < 100 {
            said.push(next);
            next = follow(&[next]);
        }
        follow(&words.encode("<|im_end|>\n", false).unwrap());
        answers.push(words.decode(&said, true));
    }
    answers
}

/// Whose turn it is, on one model: two engines' rules are the same for every family.
#[test]
fn calls_take_turns_and_leave_the_line() {
    let into = tempfile::tempdir().unwrap();
    let mut call = compiler("CC", "cc", "c11");
    let built = program(call.arg("-pthread"), &["turns.c"], into.path());
    let model = prepare("olmoe-101");
    run(built, &[model.path().to_str().unwrap()]);
}

/// Two messages, of which the second has more tokens than a range takes at once.
fn messages() -> [String; 2] {
    let long = "what is the sun? ".repeat(80);
    ["hello".to_owned(), long.trim_end().to_owned()]
}

/// What a host says to the messages.
fn chat(host: &mut Command) -> String {
    let into = tempfile::tempdir().unwrap();
    let lines = into.path().join("lines");
    std::fs::write(&lines, messages().join("\n")).unwrap();
    host.stdin(std::fs::File::open(lines).unwrap());
    String::from_utf8(succeed(host).stdout).unwrap()
}

/// The host in Python, where Python is: nothing else here needs it.
#[test]
fn the_example_host_in_python_chats_with_the_demo_model() {
    let python = Command::new("python3").arg("--version").output();
    if !python.is_ok_and(|said| said.status.success()) {
        println!("LEFT OUT: there is no python3, so examples/host.py was not run");
        return;
    }
    let demo = repository("demo/model");
    let library = library_dir().join("liblamella.so");
    let mut call = Command::new("python3");
    call.arg(repository("examples/host.py")).arg(library);
    let said = chat(call.arg(&demo));
    let asked = messages();
    let want = answers(&demo, &[&asked[0], &asked[1]]).join("\n");
    assert_eq!(said.trim_end(), want.trim_end());
}

/// The example host says what the model says in one piece.
#[test]
fn the_example_host_chats_with_the_demo_model() {
    let text = std::fs::read_to_string(repository("examples/host.c")).unwrap();
    assert!(text.lines().count() < 150);
    let into = tempfile::tempdir().unwrap();
    let example = into.path().join("host.o");
    let mut call = compiler("CC", "cc", "c99");
    call.arg("-c").arg(repository("examples/host.c"));
    succeed(call.arg("-o").arg(&example));
    let mut call = compiler("CC", "cc", "c99");
    let nothing = into.path().join("nothing.c");
    std::fs::write(&nothing, "typedef int nothing;\n").unwrap();
    let host = program(call.arg(example), &[nothing.to_str().unwrap()], into.path());
    let (demo, asked) = (repository("demo/model"), messages());
    let said = chat(Command::new(host).arg(&demo));
    let want = answers(&demo, &[&asked[0], &asked[1]]).join("\n");
    assert_eq!(said.trim_end(), want.trim_end());
    assert!(said.trim().len() > 10, "{said}");
}
