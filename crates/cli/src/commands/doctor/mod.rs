//! `lamella doctor`: what keeps this machine, or a model on it, from running well.

mod machine;
mod model;

use crate::args::DoctorArgs;
use crate::failure::{Failure, Kind};
use crate::interrupt::Interrupt;
use crate::model::Place;
use crate::terminal::{self, Terminal};
use serde::Serialize;
use serde_json::json;

/// Version of the fields in JSON.
const DOCTOR_VERSION: u32 = 1;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
enum Severity {
    /// As it should be.
    Ok,
    /// Worth knowing.
    Note,
    /// Slow, or fragile.
    Warning,
    /// It does not run, or not right.
    Problem,
}

impl Severity {
    fn name(self) -> &'static str {
        match self {
            Severity::Ok => "ok",
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Problem => "problem",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, Serialize)]
struct Finding {
    /// A word for programs.
    id: &'static str,
    severity: Severity,
    /// What was found.
    what: String,
    /// Why it matters; empty where all is well.
    why: String,
    /// What to do about it.
    fix: Option<String>,
    /// The kind of failure that a problem is.
    #[serde(skip)]
    kind: Kind,
}

impl Finding {
    /// All is well.
    fn ok(id: &'static str, what: impl Into<String>) -> Finding {
        Finding {
            id,
            severity: Severity::Ok,
            what: what.into(),
            why: String::new(),
            fix: None,
            kind: Kind::Failure,
        }
    }

    fn note(id: &'static str, what: impl Into<String>, why: impl Into<String>) -> Finding {
        Finding {
            severity: Severity::Note,
            why: why.into(),
            ..Finding::ok(id, what)
        }
    }

    fn warning(id: &'static str, what: impl Into<String>, why: impl Into<String>) -> Finding {
        Finding {
            severity: Severity::Warning,
            ..Finding::note(id, what, why)
        }
    }

    fn problem(
        kind: Kind,
        id: &'static str,
        what: impl Into<String>,
        why: impl Into<String>,
    ) -> Finding {
        Finding {
            severity: Severity::Problem,
            kind,
            ..Finding::note(id, what, why)
        }
    }

    fn fix(self, fix: impl Into<String>) -> Finding {
        Finding {
            fix: Some(fix.into()),
            ..self
        }
    }
}

pub(crate) fn run(
    args: &DoctorArgs,
    terminal: &Terminal,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let place = args.model.as_deref().map(Place::of).transpose()?;
    let mut findings = machine::examine();
    if let Some(place) = &place {
        // Nothing is written: a signal may end the program at any time.
        interrupt.says("interrupted; nothing was changed".to_owned());
        findings.extend(model::examine(place, args.deep, terminal));
    }
    let worst = findings.iter().filter(|f| f.severity == Severity::Problem);
    let problems: Vec<&Finding> = worst.collect();
    if args.json {
        terminal::print_json_pretty(&json!({
            "version": DOCTOR_VERSION,
            "sound": problems.is_empty(),
            "findings": findings,
        }))?;
    } else {
        terminal::print(&findings.iter().map(text).collect::<String>())?;
    }
    let kinds = [Kind::Model, Kind::Resources, Kind::Failure];
    let kind = kinds
        .into_iter()
        .find(|kind| problems.iter().any(|f| f.kind == *kind));
    match kind {
        None => Ok(()),
        Some(kind) => {
            let count = problems.len();
            let first = problems.iter().find(|f| f.kind == kind);
            let what = first.map_or("", |f| f.what.as_str());
            let message = match count {
                1 => format!("1 problem: {what}"),
                _ => format!("{count} problems, among them: {what}"),
            };
            Err(Failure::new(kind, message).into())
        }
    }
}

fn text(finding: &Finding) -> String {
    let what = terminal::plain(&finding.what);
    let mut text = format!("{:<8} {:<16} {what}\n", finding.severity.name(), finding.id);
    let mut line = |word: &str, said: &str| {
        text.push_str(&format!("{:25} {word}: {}\n", "", terminal::plain(said)));
    };
    if !finding.why.is_empty() {
        line("why", &finding.why);
    }
    if let Some(fix) = &finding.fix {
        line("do", fix);
    }
    text
}
