//! `lamella plan`: what fits where, and how fast it will be.

mod machines;
mod text;

use crate::args::PlanArgs;
use crate::failure::{Failure, Kind};
use crate::model::{self, Place};
use crate::settings;
use crate::terminal::{self, Terminal};
use lamella_container::{Outline, Store};
use lamella_engine::memory::MemoryLimit;
use lamella_engine::plan::probe::{self, Known};
use lamella_engine::plan::{Chain, Machine, Node, PLAN_VERSION, Plan, Question};
use lamella_engine::{Options, Part};
use serde_json::json;
use std::path::PathBuf;

pub(crate) fn run(args: &PlanArgs, terminal: &Terminal) -> anyhow::Result<()> {
    let place = Place::of(&args.model)?;
    let (outline, files) = outline(args, &place)?;
    let mut options = settings::options(&args.engine, args.memory.memory, args.threads.threads);
    let outline = match options.want.filter(|_| args.converted) {
        None => outline,
        Some(encoding) => {
            options.want = None;
            outline.converted(encoding)
        }
    };
    let limit = MemoryLimit::resolve(options.memory_limit);
    let question = Question {
        options: Options {
            part: args.layers.clone().map_or(Part::Whole, Part::Layers),
            ..options
        },
        sessions: args.sessions,
        prompt: args.prompt,
        hit_rate: args.hit_rate,
    };
    let nodes = args.machines.as_deref().map(machines::read).transpose()?;
    terminal.note("measuring this machine");
    let known = Known {
        disk: args.disk,
        memory: args.memory_bandwidth,
        files,
        directory: PathBuf::from("."),
    };
    let machine = probe::machine(&outline, &question, limit, &known)
        .map_err(|error| with_option(error, args))?;
    match nodes {
        None => whole(args, &outline, &question, &machine),
        Some(table) => {
            let nodes = table.nodes(&machine);
            chain(args, &outline, &question, &nodes)
        }
    }
}

/// An error of measuring a disk, with the option that makes it needless.
fn with_option(error: lamella_engine::Error, args: &PlanArgs) -> anyhow::Error {
    let error = anyhow::Error::from(error);
    match args.disk {
        None => error.context("--disk GB/S leaves measuring out if it fails"),
        Some(_) => error,
    }
}

/// What is planned for, and the files whose disk can be measured.
fn outline(args: &PlanArgs, place: &Place) -> anyhow::Result<(Outline, Vec<PathBuf>)> {
    let path = place.path();
    if !args.tensors.is_empty() || Outline::is_all_there_is(path)? {
        let outline = Outline::read(path, &args.tensors, &lamella_engine::lower)?;
        return Ok((outline, Vec::new()));
    }
    let store = model::store(place)?;
    Ok((Outline::of(&store), files(&store)))
}

/// All files of weights.
pub(in crate::commands) fn files(store: &Store) -> Vec<PathBuf> {
    let files = (0..).map_while(|number| store.file(number));
    files.map(PathBuf::from).collect()
}

fn whole(
    args: &PlanArgs,
    outline: &Outline,
    question: &Question,
    machine: &Machine,
) -> anyhow::Result<()> {
    let plan = Plan::of(outline, question, machine)?;
    if args.json {
        terminal::print_json_pretty(&plan)?;
    } else {
        terminal::print(&text::plan(args, &plan))?;
    }
    let model = args.model.display();
    let placement = &plan.placement;
    if let Some(refusal) = plan.refusal() {
        let message = format!("{model} does not open: {refusal}");
        return Err(Failure::new(Kind::Resources, message).into());
    }
    if !placement.fits {
        let message = format!(
            "{model} opens, but {} conversations of {} tokens need a limit of {} bytes",
            placement.sessions, placement.context, placement.least_for_sessions_bytes
        );
        return Err(Failure::new(Kind::Resources, message).into());
    }
    Ok(())
}

fn chain(
    args: &PlanArgs,
    outline: &Outline,
    question: &Question,
    nodes: &[Node],
) -> anyhow::Result<()> {
    let chain = Chain::of(outline, question, nodes)?;
    if args.json {
        return terminal::print_json_pretty(&json!({
            "version": PLAN_VERSION,
            "chain": chain,
        }));
    }
    terminal::print(&text::chain(&chain))
}
