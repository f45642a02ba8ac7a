//! Measurements as a table.

use super::Bench;
use super::figures::{Bandwidth, Line, Refused};
use crate::progress;
use crate::terminal;

/// What was measured and what had no room, for a person.
pub(super) fn text(bench: &Bench<'_>, bandwidths: &[Bandwidth]) -> String {
    let mut text = bench
        .facts
        .as_ref()
        .map_or_else(String::new, |facts| head(bench, facts));
    for b in bandwidths {
        let rate = b.bytes_per_second / 1e9;
        text.push_str(&format!(
            "read bandwidth with {} threads: {rate:.1} GB/s\n",
            b.threads
        ));
    }
    let shape = Shape {
        memory: bench.several,
        reads: bench.lines.iter().any(|line| line.reads.is_some()),
        refused: !bench.refused.is_empty(),
    };
    let measured = bench.lines.iter().map(|line| shape.row(line));
    let refused = bench.refused.iter().map(|refused| shape.refused(refused));
    let rows: Vec<Vec<String>> = measured.chain(refused).collect();
    text.push('\n');
    text.push_str(&terminal::columns(&shape.head(), &rows));
    text
}

/// The line about the model.
fn head(bench: &Bench<'_>, facts: &serde_json::Value) -> String {
    let word = |key: &str| facts[key].as_str().unwrap_or("plain").to_owned();
    let encodings = facts["encodings"].as_object().into_iter().flatten();
    let encodings: Vec<&str> = encodings.map(|(name, _)| name.as_str()).collect();
    let encodings = encodings.join(", ");
    let size = match bench.several {
        // Each limit has its own.
        true => encodings,
        false => {
            let bytes = facts["resident_bytes"].as_u64().unwrap_or(0);
            format!("{} ({encodings})", progress::bytes(bytes))
        }
    };
    format!(
        "{}: {}, {:.2} M parameters, {size}, {} {}\n",
        bench.args.model.display(),
        terminal::plain(&word("family")),
        facts["parameters"].as_f64().unwrap_or(0.0) / 1e6,
        word("backend"),
        word("isa"),
    )
}

/// Which columns there are.
struct Shape {
    memory: bool,
    reads: bool,
    refused: bool,
}

impl Shape {
    fn head(&self) -> Vec<&'static str> {
        let mut head = Vec::new();
        head.extend(self.memory.then_some("memory"));
        head.extend(["test", "threads", "tok/s", "±"]);
        // Weights that are read from disk take no share of the memory's bandwidth.
        match self.reads {
            true => head.extend(["experts in memory", "read a token", "disk GB/s", "waited"]),
            false => head.push("bandwidth"),
        }
        head.extend(self.refused.then_some("refused"));
        head
    }

    fn row(&self, line: &Line) -> Vec<String> {
        let percent = |share: f64| format!("{:.0} %", share * 100.0);
        let mut row = Vec::new();
        row.extend(self.memory.then(|| progress::bytes(line.memory)));
        row.extend([
            line.test.clone(),
            line.threads.to_string(),
            format!("{:.2}", line.mean),
            format!("{:.2}", line.deviation),
        ]);
        match (self.reads, &line.reads) {
            (true, Some(reads)) => row.extend([
                percent(reads.hit_rate),
                progress::bytes(reads.bytes_per_token as u64),
                reads
                    .disk_bytes_per_second
                    .map_or_else(String::new, |rate| format!("{:.2}", rate / 1e9)),
                percent(reads.waited_share),
            ]),
            (true, None) => row.push("all".to_owned()),
            (false, _) => row.push(line.bandwidth_share.map(percent).unwrap_or_default()),
        }
        row
    }

    fn refused(&self, refused: &Refused) -> Vec<String> {
        let mut row = vec![
            progress::bytes(refused.memory),
            refused.test.clone().unwrap_or_else(|| "–".to_owned()),
            refused.threads.map_or_else(String::new, |n| n.to_string()),
        ];
        row.resize(self.head().len() - 1, String::new());
        row.push(terminal::plain(&refused.reason));
        row
    }
}
