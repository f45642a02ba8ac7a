//! `lamella convert`: a container from a checkpoint.

use crate::args::ConvertArgs;
use crate::failure::{Failure, Kind};
use crate::interrupt::Interrupt;
use crate::model::{self, Place};
use crate::progress::{self, Progress, Unit};
use crate::terminal::{self, Terminal};
use lamella_container::{ConvertError, ConvertOptions, Error, Keep, convert};
use lamella_program::Encoding;
use std::time::Instant;

pub(crate) fn run(
    args: &ConvertArgs,
    terminal: &Terminal,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let out = args.out.display();
    // True at any time, whether this run or an earlier one has begun or none has.
    interrupt.says(format!(
        "{out}: interrupted; the same command begins or resumes the conversion"
    ));
    let place = Place::of(&args.checkpoint)?;
    let store = model::store(&place)?;
    interrupt.poll()?;
    let start = Instant::now();
    let mut progress = Progress::new(terminal, "converting", Unit::Bytes);
    let mut update = |p: lamella_container::Progress<'_>| progress.update(p.bytes_done, p.bytes);
    let result = convert(
        &store,
        &args.out,
        &options(args),
        &mut update,
        interrupt.flag(),
    );
    progress.finish();
    let report = result.map_err(|error| match error {
        Error::Convert(ConvertError::Cancelled(partial)) => anyhow::Error::from(Failure::new(
            Kind::Interrupted,
            format!(
                "{out}: interrupted; {} is kept, the same command resumes the conversion",
                partial.display()
            ),
        )),
        other => other.into(),
    })?;
    for warning in &report.warnings {
        terminal.note(&format!("warning: {}", terminal::plain(warning)));
    }
    let resumed = match report.resumed {
        0 => String::new(),
        n => format!(", {n} of them kept from before"),
    };
    terminal.note(&format!(
        "{out}: {} in {} records{resumed}, {:.1} s; identity {}",
        progress::bytes(report.bytes),
        report.records,
        start.elapsed().as_secs_f64(),
        report.identity,
    ));
    Ok(())
}

fn options(args: &ConvertArgs) -> ConvertOptions {
    let keep = |encoding: &Encoding| Keep::As(*encoding);
    let large: Vec<Keep> = args.encodings.iter().map(keep).collect();
    let ends = args
        .encodings
        .iter()
        .map(|&encoding| ConvertOptions::new(Keep::As(encoding)));
    let (mut embedding, mut head) = (Vec::new(), Vec::new());
    for default in ends {
        add_new(&mut embedding, &default.embedding);
        add_new(&mut head, &default.head);
    }
    let mut options = ConvertOptions::new(Keep::Canonical);
    options.experts = args
        .experts
        .as_ref()
        .map_or_else(|| large.clone(), |e| vec![keep(e)]);
    options.linear = large;
    options.embedding = args.embedding.as_ref().map_or(embedding, |e| vec![keep(e)]);
    options.head = args.head.as_ref().map_or(head, |e| vec![keep(e)]);
    options.threads = args.threads.threads.unwrap_or(options.threads);
    options
}

fn add_new(list: &mut Vec<Keep>, more: &[Keep]) {
    for keep in more {
        if !list.contains(keep) {
            list.push(*keep);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    fn options_of(typed: &[&str]) -> ConvertOptions {
        let all = ["lamella", "convert", "a", "b"].iter().chain(typed);
        match Cli::try_parse_from(all).unwrap().command {
            Command::Convert(args) => options(&args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn ends_keep_at_least_eight_bits() {
        let q4 = options_of(&["--encoding", "q4"]);
        assert_eq!(q4, ConvertOptions::new(Keep::As(Encoding::Q4)));
        let both = options_of(&["--encoding", "q4,q8,bf16"]);
        let ends = [Keep::As(Encoding::Q8), Keep::As(Encoding::Bf16)];
        assert_eq!(
            (both.head.as_slice(), both.experts.len()),
            (ends.as_slice(), 3)
        );
    }

    #[test]
    fn each_role_can_be_chosen() {
        let typed = [
            "--encoding",
            "q8",
            "--experts",
            "q4",
            "--head",
            "bf16",
            "--threads",
            "3",
        ];
        let options = options_of(&typed);
        assert_eq!(options.experts, [Keep::As(Encoding::Q4)]);
        assert_eq!(options.linear, [Keep::As(Encoding::Q8)]);
        assert_eq!(options.head, [Keep::As(Encoding::Bf16)]);
        assert_eq!(
            (options.embedding, options.threads),
            (vec![Keep::As(Encoding::Q8)], 3)
        );
    }
}
