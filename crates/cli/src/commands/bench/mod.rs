//! `lamella bench`: prompt and decode speed, under one memory limit or several.

mod figures;
mod memory;
mod plot;
mod table;
mod work;

use crate::args::BenchArgs;
use crate::failure::{Failure, Kind};
use crate::files::NewFile;
use crate::model::{self, Place};
use crate::progress::{Progress, Unit};
use crate::settings;
use crate::terminal::{self, Terminal};
use anyhow::Context;
use figures::{Bandwidth, Line, Refused};
use lamella_engine::memory::MemoryLimit;
use lamella_engine::plan::probe::memory::{BYTES_A_THREAD, measure};
use lamella_engine::{BackendKind, Cancel, Error, Model};
use lamella_kernels::{Isa, Kernels};
use serde_json::json;
use work::Test;

/// Passes over the memory in each way to read it.
const PASSES: usize = 4;

pub(crate) fn run(args: &BenchArgs, terminal: &Terminal) -> anyhow::Result<()> {
    let tests = work::tests(args);
    if tests.is_empty() {
        return Err(Failure::usage("nothing to measure: -p and -n are both 0"));
    }
    let place = Place::of(&args.model)?;
    // What is no model is told before anything is measured.
    model::store(&place)?;
    let svg = args.svg.as_deref().map(NewFile::create).transpose()?;
    let threads = match args.threads.as_slice() {
        [] => vec![None],
        list => list.iter().map(|&n| Some(n)).collect(),
    };
    let limits = match args.memory.as_slice() {
        [] => vec![None],
        list => list.iter().map(|&m| settings::memory_limit(m)).collect(),
    };
    let runs = threads.len() * limits.len() * tests.len() * (args.repeat + 1);
    let mut bench = Bench {
        args,
        terminal,
        place,
        tests,
        cancel: Cancel::new(),
        progress: Progress::new(terminal, "measuring", Unit::Steps),
        done: 0,
        total: runs as u64,
        several: limits.len() > 1,
        facts: None,
        lines: Vec::new(),
        refused: Vec::new(),
    };
    let mut bandwidths = Vec::new();
    for threads in threads {
        let bandwidth = bench.bandwidth(threads, &limits)?;
        bandwidths.extend(bandwidth);
        for &limit in &limits {
            bench.within(limit, threads, bandwidth)?;
        }
    }
    bench.progress.finish();
    bench.report(&bandwidths, svg)
}

fn facts(model: &Model, args: &BenchArgs) -> serde_json::Value {
    let report = model.report();
    json!({
        "path": args.model,
        "family": model.program().family,
        "parameters": model.program().parameters(),
        "resident_bytes": report.resident_bytes,
        "encodings": report.encodings,
        "backend": report.backend.name(),
        "isa": report.isa.map(|isa| isa.name()),
    })
}

/// Measurements in progress.
struct Bench<'a> {
    args: &'a BenchArgs,
    terminal: &'a Terminal,
    place: Place,
    tests: Vec<Test>,
    cancel: Cancel,
    progress: Progress,
    done: u64,
    total: u64,
    /// Whether several memory limits are compared: then one that does not suffice ends nothing.
    several: bool,
    facts: Option<serde_json::Value>,
    lines: Vec<Line>,
    refused: Vec<Refused>,
}

impl Bench<'_> {
    /// Read bandwidth of the memory with so many threads, measured before a model takes it;
    /// nothing where it is not wanted or the smallest of `limits` has no room.
    fn bandwidth(
        &self,
        threads: Option<usize>,
        limits: &[Option<u64>],
    ) -> anyhow::Result<Option<Bandwidth>> {
        if self.args.no_bandwidth {
            return Ok(None);
        }
        let threads = match (threads, self.args.engine.backend) {
            (_, Some(BackendKind::Reference)) => 1,
            (Some(threads), _) => threads,
            (None, _) => std::thread::available_parallelism().map_or(1, usize::from),
        };
        // Of instruction sets that are not there, opening tells.
        let isa = self.args.engine.isa.unwrap_or_else(Isa::detect);
        let Some(kernels) = Kernels::new(isa) else {
            return Ok(None);
        };
        let least = limits.iter().flatten().min().copied();
        let limit = MemoryLimit::resolve(least);
        let need = (threads as u64).saturating_mul(BYTES_A_THREAD as u64);
        if need > limit.bytes {
            self.terminal.note(&format!(
                "the read bandwidth is not measured: with {threads} threads that takes {need} \
                 bytes, and the memory limit ({}) is {}",
                limit.origin, limit.bytes
            ));
            return Ok(None);
        }
        let bytes_per_second = measure(kernels, threads, BYTES_A_THREAD, PASSES)?;
        Ok(Some(Bandwidth {
            threads,
            bytes_per_second,
        }))
    }

    /// Measures everything under one memory limit, with so many threads.
    fn within(
        &mut self,
        limit: Option<u64>,
        threads: Option<usize>,
        bandwidth: Option<Bandwidth>,
    ) -> anyhow::Result<()> {
        let mut options = settings::options(&self.args.engine, None, threads);
        options.memory_limit = limit;
        let memory = MemoryLimit::resolve(limit).bytes;
        let opened = model::open(&self.place, &options, self.terminal);
        let Some(model) = self.unless_refused(opened, memory, threads, None)? else {
            self.count(self.tests.len() * (self.args.repeat + 1));
            return Ok(());
        };
        let free = memory::Free::beside(&model, limit);
        let mut tests = Vec::new();
        for test in self.tests.clone() {
            let checked = test.check(&model, &free);
            match self.unless_refused(checked, memory, threads, Some(test))? {
                Some(()) => tests.push(test),
                None => self.count(self.args.repeat + 1),
            }
        }
        for test in tests {
            let line = self.measure(&model, test, memory, bandwidth)?;
            self.lines.push(line);
        }
        self.facts.get_or_insert_with(|| facts(&model, self.args));
        Ok(())
    }

    /// What there is, or `None` where memory does not suffice for it and the others go on.
    fn unless_refused<T>(
        &mut self,
        result: anyhow::Result<T>,
        memory: u64,
        threads: Option<usize>,
        test: Option<Test>,
    ) -> anyhow::Result<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) if self.several && is_of_memory(&error) => {
                self.refused.push(Refused {
                    memory,
                    threads,
                    test: test.map(Test::name),
                    reason: format!("{error:#}"),
                });
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Counts repetitions as done.
    fn count(&mut self, repetitions: usize) {
        self.done += repetitions as u64;
        self.progress.update(self.done, self.total);
    }

    /// Tells what came of it.
    fn report(self, bandwidths: &[Bandwidth], svg: Option<NewFile>) -> anyhow::Result<()> {
        if self.args.json {
            terminal::print_json(&json!({
                "model": self.facts,
                "bandwidth": bandwidths,
                "tests": self.lines,
                "refused": self.refused,
            }))?;
        } else {
            let text = table::text(&self, bandwidths);
            terminal::print(&text)?;
        }
        if self.lines.is_empty() {
            let message = "no memory limit of those asked for suffices";
            return Err(Failure::new(Kind::Resources, message).into());
        }
        if let Some(mut file) = svg {
            let name = self.args.model.display().to_string();
            let drawn = plot::svg(&terminal::plain(&name), &self.lines);
            file.write(drawn.as_bytes())?;
            file.finish().context("--svg")?;
        }
        Ok(())
    }
}

/// Whether memory, or a limit of it, is too small for something.
fn is_of_memory(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Error::Memory { .. }))
}
