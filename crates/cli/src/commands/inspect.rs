//! `lamella inspect`: a model in numbers.

use crate::args::ModelArgs;
use crate::model::{self, Place};
use crate::progress;
use crate::terminal;
use lamella_container::{StoredBytes, Summary};
use lamella_program::state;

pub(crate) fn run(args: &ModelArgs) -> anyhow::Result<()> {
    let place = Place::of(&args.model)?;
    let store = model::store(&place)?;
    let summary = store.summary();
    if args.json {
        return terminal::print_json_pretty(&summary);
    }
    let state_bytes = state::bytes_per_token(store.program()) as u64;
    let mut text = describe(&summary, state_bytes);
    let rows: Vec<Vec<String>> = summary.stored.iter().map(row).collect();
    text.push('\n');
    text.push_str(&terminal::columns(
        &["role", "encoding", "operands", "bytes", "size"],
        &rows,
    ));
    terminal::print(&text)
}

fn describe(summary: &Summary, state_bytes: u64) -> String {
    let mut lines = Vec::new();
    let mut line = |name: &str, value: String| lines.push(format!("{name:<11} {value}"));
    match (&summary.identity, summary.format) {
        (Some(identity), Some(format)) => {
            line("container", format!("format {format}, identity {identity}"));
        }
        _ => line(
            "checkpoint",
            "as it came; `lamella convert` makes a container".to_owned(),
        ),
    }
    line("family", terminal::plain(&summary.family));
    line("parameters", grouped(summary.parameters));
    line("layers", summary.layers.to_string());
    if summary.draft_heads > 0 {
        let (heads, parameters) = (summary.draft_heads, grouped(summary.draft_parameters));
        line("draft heads", format!("{heads}, {parameters} parameters"));
    }
    line("hidden size", summary.hidden.to_string());
    line("vocabulary", summary.vocabulary.to_string());
    line(
        "context",
        format!(
            "{} tokens, {} each",
            summary.context,
            progress::bytes(state_bytes)
        ),
    );
    if summary.expert_layers > 0 {
        let sizes = summary.expert_bytes.iter();
        let sizes: Vec<_> = sizes
            .map(|(e, b)| format!("{} in {e}", progress::bytes(*b)))
            .collect();
        let (experts, layers) = (summary.experts, summary.expert_layers);
        line(
            "experts",
            format!(
                "{experts} in each of {layers} layers; one: {}",
                sizes.join(", ")
            ),
        );
    }
    line("weights", progress::bytes(summary.bytes));
    line("texts", terminal::plain(&summary.texts.join(", ")));
    lines.join("\n") + "\n"
}

fn row(stored: &StoredBytes) -> Vec<String> {
    let encoding = match &stored.coding {
        Some(coding) if stored.encoding.is_coded() => {
            format!("{coding} (held as {})", stored.encoding)
        }
        Some(coding) => format!("{coding} (widened to {})", stored.encoding),
        None => stored.encoding.to_string(),
    };
    vec![
        super::role_name(stored.role),
        encoding,
        stored.operands.to_string(),
        grouped(stored.bytes),
        progress::bytes(stored.bytes),
    ]
}

/// `1,234,567`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_grouped() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(grouped(number), text);
        }
    }
}
