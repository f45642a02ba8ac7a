//! `lamella man [DIR]`.

use crate::args::{Cli, ManArgs};
use crate::terminal;
use anyhow::Context;
use clap::{Command, CommandFactory};
use std::fs;

pub(crate) fn run(args: &ManArgs) -> anyhow::Result<()> {
    let mut root = Cli::command();
    root.build();
    let Some(dir) = &args.dir else {
        return terminal::print(&page(root)?);
    };
    fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    let commands: Vec<Command> = root.get_subcommands().cloned().collect();
    for command in std::iter::once(root).chain(commands) {
        let name = command
            .get_display_name()
            .unwrap_or(command.get_name())
            .to_owned();
        let path = dir.join(format!("{name}.1"));
        fs::write(&path, page(command)?).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

fn page(command: Command) -> anyhow::Result<String> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}
