//! `lamella ops`: the program, its operands, and everything that keeps it from running.

use super::role_name;
use crate::args::ModelArgs;
use crate::failure::Failure;
use crate::model::Place;
use crate::progress;
use crate::terminal;
use lamella_container::{Error, Store};
use lamella_program::{Defect, Encoding, Operand, OperandId, Program, state};
use serde_json::json;
use std::fmt::Debug;

pub(crate) fn run(args: &ModelArgs) -> anyhow::Result<()> {
    let place = Place::of(&args.model)?;
    let opened = lamella_container::Store::open(place.path(), &lamella_engine::lower);
    match opened {
        Ok(store) if args.json => terminal::print_json_pretty(&json!({
            "program": store.program(),
            "encodings": stored_encodings(&store),
            "defects": [],
        })),
        Ok(store) => terminal::print(&describe(&store)),
        Err(Error::Defects { path, defects }) => {
            report(&defects, args.json)?;
            let plural = if defects.len() == 1 {
                "defect"
            } else {
                "defects"
            };
            Err(Failure::model(format!(
                "{}: {} {plural}",
                path.display(),
                defects.len()
            )))
        }
        Err(other) => Err(other.into()),
    }
}

fn report(defects: &[Defect], json: bool) -> anyhow::Result<()> {
    let lines: Vec<String> = defects.iter().map(ToString::to_string).collect();
    if json {
        return terminal::print_json_pretty(&json!({ "program": null, "defects": lines }));
    }
    /// More lines than anybody reads.
    const MOST: usize = 100;
    let shown = lines.iter().take(MOST);
    let mut text: String = shown
        .map(|line| format!("defect  {}\n", terminal::plain(line)))
        .collect();
    if let Some(more @ 1..) = lines.len().checked_sub(MOST) {
        text.push_str(&format!("and {more} more, which --json lists\n"));
    }
    terminal::print(&text)
}

fn stored_encodings(store: &Store) -> Vec<&[Encoding]> {
    let ids = 0..store.program().operands.len() as u32;
    ids.map(|id| store.encodings(OperandId(id))).collect()
}

fn describe(store: &Store) -> String {
    let program = store.program();
    let mut text = format!(
        "program version {} of family {}: {} layers, {} parameters\n",
        program.version,
        terminal::plain(&program.family),
        program.layers.len(),
        program.parameters(),
    );
    text.push_str(&format!("{:?}\n{:?}\n\n", program.dims, program.boundary));
    text.push_str(&block(program, &program.entry));
    for (first, last) in alike(program) {
        let range = if first == last {
            format!("{first}")
        } else {
            format!("{first} to {last}")
        };
        let layer = &program.layers[first];
        text.push_str(&format!("\nlayer {range}\n{}", block(program, layer)));
        for item in state::layer_state(program, first) {
            text.push_str(&format!("state {}: {:?}\n", item.name, item.shape));
        }
    }
    text.push_str(&format!("\n{}\n", block(program, &program.exit)));
    if let Some(draft) = &program.draft {
        let follows = if draft.recycles {
            "recycle"
        } else {
            "each once"
        };
        text.push_str(&format!("draft reads {:?}, {follows}\n", draft.reads));
        for (index, depth) in draft.depths.iter().enumerate() {
            text.push_str(&format!("\ndraft head {index}\n{}", block(program, depth)));
            for item in state::layer_state(program, program.layers.len() + index) {
                text.push_str(&format!("state {}: {:?}\n", item.name, item.shape));
            }
        }
    }
    for unused in &program.unused {
        let (name, reason) = (&unused.name, &unused.reason);
        let (name, reason) = (terminal::plain(name), terminal::plain(reason));
        let count = unused.tensors.len();
        text.push_str(&format!(
            "not executed: {name} ({count} tensors): {reason}\n"
        ));
    }
    let rows: Vec<Vec<String>> = program
        .operands
        .iter()
        .enumerate()
        .map(|(i, o)| row(store, i, o))
        .collect();
    text.push_str(&terminal::columns(
        &["operand", "role", "shape", "encodings", "size"],
        &rows,
    ));
    let per_token = progress::bytes(state::bytes_per_token(program) as u64);
    text.push_str(&format!("\nstate: {per_token} a token\nno defects\n"));
    text
}

/// Runs of layers that differ in nothing but their operands' numbers in the name.
fn alike(program: &Program) -> Vec<(usize, usize)> {
    let shape = |index: usize| {
        let text = block(program, &program.layers[index]);
        text.replace(&format!("layers.{index}."), "layers.N.")
    };
    let mut runs: Vec<(usize, usize)> = Vec::new();
    let mut last = String::new();
    for index in 0..program.layers.len() {
        let this = shape(index);
        match runs.last_mut() {
            Some(run) if this == last => run.1 = index,
            _ => runs.push((index, index)),
        }
        last = this;
    }
    runs
}

/// A part of the program in its own words, operands by name.
fn block(program: &Program, part: &impl Debug) -> String {
    let text = format!("{part:#?}\n");
    let mut out = String::new();
    let mut rest = text.as_str();
    // Pretty debugging writes `OperandId(\n    3,\n)`.
    while let Some((before, after)) = rest.split_once("OperandId(") {
        out.push_str(before);
        let (number, after) = after.split_once(')').unwrap_or((after, ""));
        let number = number.trim().trim_end_matches(',').parse::<usize>();
        let operand = number.ok().and_then(|n| program.operands.get(n));
        let absent = || "an operand that does not exist".to_owned();
        out.push_str(&operand.map_or_else(absent, |o| terminal::plain(&o.name)));
        rest = after;
    }
    out.push_str(rest);
    outline(&out)
}

/// Debug output as an outline: brackets, `Some(` and the repeated name of a tuple variant go, and
/// so does what is absent.
fn outline(debug: &str) -> String {
    let mut out = String::new();
    // For each open bracket, whether it indents.
    let mut open: Vec<bool> = Vec::new();
    // A line that goes on in the next one: `name: ` before `Some(`.
    let mut begun = String::new();
    let mut last = String::new();
    for line in debug.lines() {
        let word = line.trim().trim_end_matches(',');
        if matches!(word, ")" | "}" | "]") {
            open.pop();
            continue;
        }
        if let Some(name) = word.strip_suffix("Some(") {
            begun.push_str(name);
            open.push(false);
            continue;
        }
        let opens = word.ends_with(['{', '(', '[']);
        let text = format!(
            "{begun}{}",
            word.trim_end_matches(['{', '(', '[']).trim_end()
        );
        begun.clear();
        let repeated = opens && last.ends_with(&format!(": {text}"));
        let absent = text.ends_with(": None") || text.ends_with(": []");
        if !repeated && !absent {
            let depth = open.iter().filter(|indents| **indents).count();
            out.push_str(&format!("{}{text}\n", "  ".repeat(depth)));
            last.clone_from(&text);
        }
        if opens {
            open.push(!repeated);
        }
    }
    out
}

fn row(store: &Store, index: usize, operand: &Operand) -> Vec<String> {
    let encodings = store.encodings(OperandId(index as u32));
    let names: Vec<&str> = encodings.iter().map(|e| e.name()).collect();
    let item = encodings
        .first()
        .and_then(|e| e.matrix_bytes(operand.rows(), operand.cols()));
    let size = item.unwrap_or(0) as u64 * operand.items() as u64;
    vec![
        terminal::plain(&operand.name),
        role_name(operand.role),
        format!("{:?}", operand.shape),
        names.join(", "),
        progress::bytes(size),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_becomes_an_outline() {
        #[derive(Debug)]
        #[allow(dead_code, reason = "only printed")]
        struct Norm {
            eps: f32,
            gone: Option<u8>,
        }
        #[derive(Debug)]
        #[allow(dead_code, reason = "only printed")]
        enum Body {
            Dense(Norm),
        }
        #[derive(Debug)]
        #[allow(dead_code, reason = "only printed")]
        struct Block {
            norm: Option<Norm>,
            body: Body,
            list: Vec<u8>,
            width: Option<usize>,
        }
        let norm = || Norm {
            eps: 0.5,
            gone: None,
        };
        let block = Block {
            norm: Some(norm()),
            body: Body::Dense(norm()),
            list: vec![7],
            width: Some(3),
        };
        let expected = [
            "Block",
            "  norm: Norm",
            "    eps: 0.5",
            "  body: Dense",
            "    Norm",
            "      eps: 0.5",
            "  list:",
            "    7",
            "  width: 3",
            "",
        ]
        .join("\n");
        assert_eq!(outline(&format!("{block:#?}")), expected);
    }
}
