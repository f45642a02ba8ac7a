//! `lamella completions SHELL`.

use crate::args::{Cli, CompletionsArgs};
use crate::terminal;
use clap::CommandFactory;

pub(crate) fn run(args: &CompletionsArgs) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "lamella", &mut script);
    terminal::write(&String::from_utf8_lossy(&script))
}
