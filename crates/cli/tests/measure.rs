//! `lamella bench`, `lamella perplexity` and `lamella trace`.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;

use common::{World, least_memory, repository};
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

#[test]
fn bench_sweeps_over_memory_limits() {
    let world = World::new();
    let least = least_memory(&world, 64);
    // Loading takes more than conversations and a few experts do.
    let enough = least + 100_000;
    let limits = format!("64K,{enough},100M");
    let args = [
        "bench",
        "demo",
        "-p",
        "8",
        "-n",
        "4",
        "-r",
        "2",
        "-t",
        "1",
        "--context",
        "64",
        "--memory",
    ];
    let sweep = |limits: &str, more: &[&str]| {
        let rest = [limits].into_iter().chain(more.iter().copied());
        world.run(args.iter().copied().chain(rest))
    };
    let json = sweep(&limits, &["--json", "--svg", "plot.svg"]).json();
    let tests = json["tests"].as_array().unwrap();
    let found: Vec<_> = tests
        .iter()
        .map(|t| (t["memory"].as_u64().unwrap(), t["test"].as_str().unwrap()))
        .collect();
    let hundred = 100 << 20;
    let expected = [enough, hundred].map(|limit| [(limit, "pp8"), (limit, "tg4")]);
    assert_eq!(found, expected.concat());
    assert_eq!(json["bandwidth"].as_array().unwrap().len(), 0);
    tests[..2].iter().for_each(|test| reads_add_up(test, least));
    assert!(tests[2..].iter().all(|test| test["reads"].is_null()));
    let refused = json["refused"].as_array().unwrap();
    assert_eq!((refused.len(), &refused[0]["memory"]), (1, &65536.into()));
    assert!(refused[0]["reason"].as_str().unwrap().contains("65536"));
    drawn(
        &std::fs::read_to_string(world.path("plot.svg")).unwrap(),
        tests,
    );
    let table = sweep(&limits, &[]);
    for words in [
        "memory",
        "64.00 KiB",
        "100.00 MiB",
        "all",
        "refused",
        "not enough memory",
    ] {
        assert!(table.ok().contains(words), "{words}: {table:?}");
    }
    let none = sweep("64K,65K", &["--svg", "none.svg"]);
    none.fails(4, &["suffices"]);
    assert!(none.out.contains("65.00 KiB") && !world.path("none.svg").exists());
    sweep("64K", &[]).fails(4, &["65536"]);
    assert_eq!(sweep("1M,,2M", &[]).code, Some(2));
    assert_eq!(sweep("1M,x", &[]).code, Some(2));
    sweep("100M", &["--svg", "no/where.svg"]).fails(1, &["no/where.svg"]);
}

/// What is told of reads in a limit that does not hold all experts.
fn reads_add_up(test: &Value, least: u64) {
    let (reads, experts) = (&test["reads"], &test["experts"]);
    let number = |name: &str| reads[name].as_f64().unwrap();
    let count = |name: &str| experts[name].as_f64().unwrap();
    assert!((number("hit_rate") - count("hits") / count("uses")).abs() < 1e-9);
    // Two repetitions count.
    let tokens = 2.0 * test["tokens"].as_f64().unwrap();
    assert!((number("bytes_per_token") * tokens / count("bytes_read") - 1.0).abs() < 1e-9);
    assert!(number("disk_bytes_per_second") > 0.0, "{test}");
    assert!((0.0..=1.0).contains(&number("waited_share")), "{test}");
    assert!(test["resident_bytes"].as_u64().unwrap() < least, "{test}");
}

/// The drawing is well-formed XML and holds every measured point in both of its series.
fn drawn(svg: &str, tests: &[Value]) {
    let mut open = Vec::new();
    for tag in svg.split('<').skip(1) {
        let (tag, text) = tag.split_once('>').unwrap();
        assert!(
            !text.contains('>') && tag.matches('"').count() % 2 == 0,
            "{tag}"
        );
        let name = tag.split([' ', '/']).find(|word| !word.is_empty()).unwrap();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "{tag}");
        } else if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
    for test in tests {
        let rate = format!(": {:.2} tok/s", test["mean"].as_f64().unwrap());
        assert!(svg.matches(&rate).count() >= 2, "{rate} in {svg}");
    }
    assert_eq!(svg.matches("<title>").count(), 2 * tests.len());
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
