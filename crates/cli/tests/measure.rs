//! `lamella bench`, `lamella perplexity` and `lamella trace`.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;

use common::{World, repository};
use serde_json::Value;

#[test]
fn bench_measures_every_combination() {
    let world = World::new();
    let args = [
        "-p",
        "16,0",
        "-n",
        "4",
        "-b",
        "1,3",
        "-t",
        "1,2",
        "-r",
        "2",
        "--no-bandwidth",
    ];
    let json = world
        .run(["bench", "demo", "--json"].iter().chain(&args))
        .json();
    let tests = json["tests"].as_array().unwrap();
    let names: Vec<_> = tests
        .iter()
        .map(|t| (t["test"].as_str(), t["threads"].as_u64()))
        .collect();
    let expected: Vec<_> = [1, 2]
        .iter()
        .flat_map(|&threads| ["pp16", "tg4", "tg4x3"].map(|name| (Some(name), Some(threads))))
        .collect();
    assert_eq!(names, expected);
    for test in tests {
        let rates: Vec<f64> = test["rates"]
            .as_array()
            .unwrap()
            .iter()
            .map(|r| r.as_f64().unwrap())
            .collect();
        assert_eq!(rates.len(), 2);
        let mean = test["mean"].as_f64().unwrap();
        assert!(mean > 0.0 && (mean - (rates[0] + rates[1]) / 2.0).abs() < 1e-6 * mean);
        assert_eq!(test["bandwidth_share"], Value::Null);
    }
    world
        .run(["bench", "demo", "-p", "0", "-n", "0"])
        .fails(2, &["nothing to measure"]);
}

/// The demo model by hand: all linear maps and the head, one embedding row, 2 of 16 experts.
#[test]
fn active_bytes_are_those_of_one_token() {
    let world = World::new();
    let bytes = |more: &[&str]| {
        let args = [
            "bench",
            "demo",
            "-p",
            "0",
            "-n",
            "1",
            "-r",
            "1",
            "--no-bandwidth",
            "--json",
        ];
        let json = world.run(args.iter().chain(more)).json();
        json["tests"][0]["active_bytes"].as_u64().unwrap()
    };
    let vectors = 4 * (128 * 9 + 4 * (128 + 64));
    let router = 4 * 4 * 16 * 128;
    let linear = 4 * (2 * 128 * 128 + 2 * 64 * 128);
    let experts = 4 * 2 * 3 * 64 * 128;
    let (head, row) = (2048 * 128, 128);
    let bf16 = vectors + router + 2 * (linear + experts + head + row);
    assert_eq!(bytes(&[]), bf16);
    assert!(bytes(&["--encoding", "q8"]) < bf16);
    assert_eq!(
        bytes(&["--backend", "reference"]),
        vectors + router + 2 * (bf16 - vectors - router)
    );
}

#[test]
fn perplexity_of_the_held_out_text() {
    let world = World::new();
    let file = repository("demo/heldout_text.txt").display().to_string();
    let json = world.run(["perplexity", "demo", &file, "--json"]).json();
    assert_eq!(
        (&json["tokens"], &json["scored"]),
        (&5106.into(), &5096.into())
    );
    assert_eq!(json["nll"].as_array().unwrap().len(), 5096);
    let perplexity = json["perplexity"].as_f64().unwrap();
    assert!((perplexity / 1.651846 - 1.0).abs() < 1e-4, "{perplexity}");
    assert!(
        world
            .run(["perplexity", "demo", &file, "-q"])
            .ok()
            .starts_with("perplexity 1.6518")
    );
    let short = world.run_with_input(&["perplexity", "demo", "-"], "a");
    short.fails(2, &["too short"]);
    world
        .run(["perplexity", "demo", "gone.txt"])
        .fails(1, &["gone.txt"]);
}

#[test]
fn progress_can_be_read_by_programs() {
    let world = World::new();
    let ran = world.run([
        "convert",
        "demo",
        "out",
        "--encoding",
        "q8",
        "--progress",
        "json",
    ]);
    ran.ok();
    let line = ran.err.lines().find(|line| line.starts_with('{')).unwrap();
    let json: Value = serde_json::from_str(line).unwrap();
    assert_eq!(
        (&json["progress"], &json["unit"]),
        (&"converting".into(), &"bytes".into())
    );
    assert_eq!(json["done"], json["total"]);
}

#[test]
fn a_trace_is_replayed_against_caches() {
    let world = World::new();
    // Two layers; experts 0 and 1 of each are used by turns, 2 once in a while.
    let token = |t: usize| {
        let rare = if t % 5 == 4 { 2 } else { t % 2 };
        format!("0 {rare}\n1 {}\n", t % 2)
    };
    let text: String = (0..50).map(token).collect();
    let file = world.path("trace");
    std::fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let json = world
        .run(["trace", "replay", file, "--slots", "1,6", "--json"])
        .json();
    assert_eq!(json["experts"], 6);
    let hits = |cache: usize, policy: &str| {
        let figures = &json["caches"][cache]["policies"][policy];
        assert_eq!(
            (&figures["uses"], &figures["tokens"]),
            (&100.into(), &50.into())
        );
        figures["hits"].as_u64().unwrap()
    };
    // One slot for two layers never holds what is needed; six hold all that has been read once.
    for policy in ["lru", "s3-fifo", "lfru-short", "lfru-long", "online"] {
        assert_eq!((hits(0, policy), hits(1, policy)), (0, 95), "{policy}");
    }
    assert!(hits(0, "belady") > 0 && hits(1, "belady") == 95);
    let table = world.run(["trace", "replay", file]);
    assert!(table.ok().contains("online") && table.ok().contains("of 6"));
    std::fs::write(file, "0 1\n1 one\n").unwrap();
    world
        .run(["trace", "replay", file])
        .fails(2, &["trace, line 2", "\"one\""]);
    std::fs::write(file, "").unwrap();
    world.run(["trace", "replay", file]).fails(2, &["empty"]);
    world.run(["trace", "replay", "gone"]).fails(1, &["gone"]);
}
