//! The `lamella` command: argument parsing and printing, nothing else.
//!
//! The way through: what was typed ([`args`]), completed by the environment and `lamella.toml`
//! ([`config`]), becomes settings ([`settings`]) for one of the [`commands`]; whatever comes of it
//! becomes one line and an exit code ([`failure`]).

mod args;
mod chat;
mod commands;
mod config;
mod demo;
mod failure;
mod files;
mod interrupt;
mod model;
mod progress;
mod settings;
mod terminal;

use args::Command;
use interrupt::{End, Interrupt};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::ExitCode;
use std::sync::mpsc;

/// Stack of the thread that does the work: as much as the first thread of a process has.
const STACK_BYTES: usize = 8 << 20;

/// The command runs on a thread of its own, so that a signal can end the program in good order
/// while the command waits for something.
fn main() -> ExitCode {
    interrupt::keep_hangup_ignored();
    let (ends, end) = mpsc::channel();
    let interrupt = Interrupt::new(ends.clone());
    let work = move || {
        let result = catch_unwind(AssertUnwindSafe(|| run(&interrupt)));
        // The first thread is gone only if the program has ended.
        let _ = ends.send(match result {
            Ok(result) => End::Returned(result),
            Err(panic) => End::Panicked(panic),
        });
    };
    let worker = std::thread::Builder::new().stack_size(STACK_BYTES);
    if let Err(error) = worker.name("lamella".to_owned()).spawn(work) {
        return failure::report(&failure::Failure::thread("the command", &error));
    }
    match end.recv() {
        Ok(End::Returned(Ok(()))) => ExitCode::SUCCESS,
        Ok(End::Returned(Err(error))) => failure::report(&error),
        Ok(End::Panicked(panic)) => resume_unwind(panic),
        Ok(End::Interrupted(failure)) => {
            files::remove_temporaries();
            failure::report(&failure.into())
        }
        Err(error) => failure::report(&error.into()),
    }
}

fn run(interrupt: &Interrupt) -> anyhow::Result<()> {
    let Some(parsed) = config::parse(std::env::args_os(), std::env::vars_os())? else {
        return Ok(());
    };
    interrupt.install()?;
    let terminal = terminal::Terminal::new(&parsed.cli.global.output);
    match parsed.cli.command {
        Command::Run(args) => commands::run::run(&args, &terminal, interrupt),
        Command::Convert(args) => commands::convert::run(&args, &terminal, interrupt),
        Command::Inspect(args) => commands::inspect::run(&args),
        Command::Verify(args) => commands::verify::run(&args, &terminal),
        Command::Ops(args) => commands::ops::run(&args),
        Command::Exec(args) => commands::exec::run(&args, &terminal, interrupt),
        Command::Perplexity(args) => commands::perplexity::run(&args, &terminal, interrupt),
        Command::Bench(args) => commands::bench::run(&args, &terminal),
        Command::Plan(args) => commands::plan::run(&args, &terminal),
        Command::Doctor(args) => commands::doctor::run(&args, &terminal, interrupt),
        Command::Trace(command) => commands::trace::run(&command, &terminal, interrupt),
        Command::Config(args) => commands::config::run(&args, &parsed.settings),
        Command::Completions(args) => commands::completions::run(&args),
        Command::Man(args) => commands::man::run(&args),
        Command::Version(args) => commands::version::run(&args),
    }
}
