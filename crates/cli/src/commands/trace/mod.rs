//! `lamella trace`: which experts a model chose, and what a cache makes of it.

mod record;

use crate::args::{ReplayArgs, TraceCommand};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::terminal::{self, Terminal};
use anyhow::Context;
use lamella_engine::experts::{PolicyKind, Replayed, Trace};
use serde_json::json;

/// Eighths of all experts that are in memory unless told otherwise.
const EIGHTHS: [u32; 6] = [1, 2, 3, 4, 6, 7];

pub(crate) fn run(
    command: &TraceCommand,
    terminal: &Terminal,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    match command {
        TraceCommand::Record(args) => record::run(args, terminal, interrupt),
        TraceCommand::Replay(args) => replay(args),
    }
}

/// What caches of one size make of a trace.
struct Line {
    slots: u32,
    policies: Vec<(&'static str, Replayed)>,
}

fn replay(args: &ReplayArgs) -> anyhow::Result<()> {
    let file = args.file.display();
    let text = std::fs::read_to_string(&args.file).with_context(|| file.to_string())?;
    let trace = Trace::parse(&text)
        .map_err(|(line, what)| Failure::usage(format!("{file}, line {line}: {what}")))?;
    let records = trace.records();
    if records == 0 {
        return Err(Failure::usage(format!("{file}: the trace is empty")));
    }
    let slots = match args.slots.as_slice() {
        [] => EIGHTHS.map(|n| (records / 8).max(1) * n).to_vec(),
        asked => asked.to_vec(),
    };
    let lines: Vec<Line> = slots.iter().map(|&slots| line(&trace, slots)).collect();
    if args.json {
        return terminal::print_json(&json!({
            "experts": records,
            "caches": lines.iter().map(to_json).collect::<Vec<_>>(),
        }));
    }
    let mut head = vec!["experts in memory"];
    head.extend(lines.iter().flat_map(|l| &l.policies).map(|p| p.0));
    head.truncate(1 + lines.first().map_or(0, |l| l.policies.len()));
    let rows: Vec<Vec<String>> = lines.iter().map(|line| row(line, records)).collect();
    terminal::print(&terminal::columns(&head, &rows))?;
    terminal::print("Hits in percent of all uses, and experts to read for a token.\n")
}

fn line(trace: &Trace, slots: u32) -> Line {
    let single = PolicyKind::ALL.map(|kind| (kind.name(), trace.replay(slots, Some(kind))));
    let mut policies = single.to_vec();
    policies.push(("online", trace.replay(slots, None)));
    policies.push(("belady", trace.belady(slots)));
    Line { slots, policies }
}

fn row(line: &Line, records: u32) -> Vec<String> {
    let share = f64::from(line.slots) / f64::from(records) * 100.0;
    let first = format!("{} of {records} ({share:.1} %)", line.slots);
    let others = line.policies.iter().map(|(_, replayed)| {
        let rate = replayed.hit_rate() * 100.0;
        format!("{rate:.1} {:6.1}", replayed.misses_per_token())
    });
    std::iter::once(first).chain(others).collect()
}

fn to_json(line: &Line) -> serde_json::Value {
    let policies = line.policies.iter().map(|(name, replayed)| {
        let figures = json!({
            "uses": replayed.uses,
            "hits": replayed.hits,
            "tokens": replayed.tokens,
        });
        ((*name).to_owned(), figures)
    });
    json!({
        "slots": line.slots,
        "policies": policies.collect::<serde_json::Map<_, _>>(),
    })
}
