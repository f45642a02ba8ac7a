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
use std::process::ExitCode;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure::report(&error),
    }
}

fn run() -> anyhow::Result<()> {
    let Some(parsed) = config::parse(std::env::args_os(), std::env::vars_os())? else {
        return Ok(());
    };
    let terminal = terminal::Terminal::new(&parsed.cli.global.output);
    match parsed.cli.command {
        Command::Run(args) => commands::run::run(&args, &terminal),
        Command::Convert(args) => commands::convert::run(&args, &terminal),
        Command::Inspect(args) => commands::inspect::run(&args),
        Command::Verify(args) => commands::verify::run(&args, &terminal),
        Command::Ops(args) => commands::ops::run(&args),
        Command::Exec(args) => commands::exec::run(&args, &terminal),
        Command::Perplexity(args) => commands::perplexity::run(&args, &terminal),
        Command::Bench(args) => commands::bench::run(&args, &terminal),
        Command::Config(args) => commands::config::run(&args, &parsed.settings),
        Command::Completions(args) => commands::completions::run(&args),
        Command::Man(args) => commands::man::run(&args),
        Command::Version(args) => commands::version::run(&args),
    }
}
