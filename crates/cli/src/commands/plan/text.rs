//! A plan as a person reads it.

use crate::args::PlanArgs;
use crate::progress::bytes;
use crate::terminal::{columns, plain};
use lamella_engine::plan::{Advice, Chain, Machine, Plan, Range, Rate};

/// A plan, in a table and a few sentences.
pub(super) fn plan(args: &PlanArgs, plan: &Plan) -> String {
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut row = |what: &str, value: String, how: String| {
        rows.push(vec![what.to_owned(), value, plain(&how)]);
    };
    machine(&plan.machine, &mut row);
    model(args, plan, &mut row);
    placement(plan, &mut row);
    predicted(plan, &mut row);
    let mut text = table(&rows);
    text.push_str(&advice(plan));
    text
}

/// What, how much, and how that is known.
fn table(rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let (what, much) = (width(0), width(1));
    let line = |row: &Vec<String>| {
        let cell = |column: usize| row.get(column).map_or("", String::as_str);
        let line = format!("{:<what$}  {:>much$}  {}", cell(0), cell(1), cell(2));
        line.trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

type Row<'a> = dyn FnMut(&str, String, String) + 'a;

fn machine(machine: &Machine, row: &mut Row<'_>) {
    let threads = machine.threads;
    row(
        "machine",
        format!("{threads} threads"),
        machine.isa.to_owned(),
    );
    let rate = |rate: &Rate| (gigabytes(rate.per_second), rate.origin.clone());
    row(
        "  memory limit",
        bytes(machine.memory_bytes),
        machine.memory_origin.clone(),
    );
    let (value, how) = rate(&machine.memory);
    row("  memory bandwidth", value, how);
    let (value, how) = rate(&machine.decode);
    row("  weights for one row", value, how);
    let many = format!("{:.0} G products/s", machine.products.per_second / 1e9);
    row("  for many rows", many, machine.products.origin.clone());
    let (value, how) = rate(&machine.disk);
    row("  disk", value, how);
}

fn model(args: &PlanArgs, plan: &Plan, row: &mut Row<'_>) {
    let model = &plan.model;
    let parameters = format!("{:.2} G parameters", model.parameters as f64 / 1e9);
    let layers = match &args.layers {
        None => format!("{} layers", model.layers),
        Some(range) => format!("layers {}..{} of {}", range.start, range.end, model.layers),
    };
    row(
        "model",
        parameters,
        format!("{}, {layers}", plain(&model.family)),
    );
    let encodings: Vec<&str> = model.encodings.keys().copied().collect();
    row("  dense", bytes(model.dense_bytes), encodings.join(", "));
    if model.experts > 0 {
        let all = format!(
            "{} of {}, {} in each of {} layers; a token uses {}",
            model.experts,
            bytes(model.expert_bytes),
            model.experts_per_layer,
            model.expert_layers,
            model.experts_per_token
        );
        row("  experts", bytes(model.experts_bytes), all);
    }
    let active = model.active_dense_bytes + model.active_expert_bytes;
    row(
        "  a token reads",
        bytes(active),
        "of weights, from wherever they are".to_owned(),
    );
    let fixed = format!("and {} from the beginning", bytes(model.state_fixed_bytes));
    row(
        "  state of a token",
        bytes(model.state_bytes_per_token),
        fixed,
    );
    let width = format!("{} values", model.boundary_width);
    row("  row between layers", bytes(model.boundary_bytes), width);
}

fn placement(plan: &Plan, row: &mut Row<'_>) {
    let placement = &plan.placement;
    let fits = match (placement.opens, placement.fits) {
        (false, _) => "does not open",
        (true, false) => "opens, but conversations cannot grow to their context",
        (true, true) => "fits",
    };
    row("placement", String::new(), fits.to_owned());
    row(
        "  weights in memory",
        bytes(placement.resident_bytes),
        String::new(),
    );
    if placement.slot_bytes > 0 {
        let share = f64::from(placement.slots) / plan.model.experts.max(1) as f64 * 100.0;
        let slots = format!(
            "{} experts ({share:.0} %) beside the conversations, {} before them",
            placement.slots, placement.slots_at_first
        );
        row("  expert cache", bytes(placement.cache_bytes), slots);
    }
    row(
        "  workspace",
        bytes(placement.workspace_bytes),
        String::new(),
    );
    let (sessions, context) = (placement.sessions, placement.context);
    let state = match sessions {
        1 => format!("one conversation of {context} tokens"),
        _ => format!("{sessions} conversations of {context} tokens"),
    };
    row("  state", bytes(placement.state_bytes), state);
    let other = placement.lists_bytes;
    row("  lists", bytes(other), String::new());
    row(
        "  least limit",
        bytes(placement.least_bytes),
        format!("{} bytes", placement.least_bytes),
    );
}

fn predicted(plan: &Plan, row: &mut Row<'_>) {
    let predicted = &plan.predicted;
    row("predicted", String::new(), String::new());
    let exact = format!("{} bytes", predicted.peak_bytes);
    row("  peak memory", bytes(predicted.peak_bytes), exact);
    if !plan.placement.opens {
        return;
    }
    let hits = &predicted.hit_rate;
    let percent = |part: f64| format!("{:.0} %", part * 100.0);
    let between = match hits.low < hits.high {
        true => format!(
            "{} to {}; {}",
            percent(hits.low),
            percent(hits.high),
            hits.basis
        ),
        false => hits.basis.to_owned(),
    };
    row("  experts in memory", percent(hits.expected), between);
    let read = &predicted.bytes_read_per_token;
    let around = range(read, |value| bytes(value as u64));
    row("  read for a token", bytes(read.expected as u64), around);
    for (name, speed) in [("cold", &predicted.cold), ("warm", &predicted.warm)] {
        let decode = format!("{:.2} tok/s", speed.decode.expected);
        let around = range(&speed.decode, |value| format!("{value:.2}"));
        row(&format!("  decode, {name}"), decode, around);
        let prompt = format!("{:.1} tok/s", speed.prompt);
        row(&format!("  prompt, {name}"), prompt, String::new());
    }
    let safe = predicted.safe_sessions.to_string();
    let most = format!("{} with one expert in memory", predicted.most_sessions);
    let most = if plan.placement.slot_bytes > 0 {
        most
    } else {
        String::new()
    };
    row("  conversations", safe, most);
    row(
        "  limited by",
        predicted.limited_by.name().to_owned(),
        String::new(),
    );
}

/// `1.2 to 3.4`, or nothing where there is no difference.
fn range(range: &Range, say: impl Fn(f64) -> String) -> String {
    match range.low < range.high {
        true => format!("{} to {}", say(range.low), say(range.high)),
        false => String::new(),
    }
}

fn advice(plan: &Plan) -> String {
    let Some(best) = plan.advice.first() else {
        let changes = "More memory, a faster disk, a smaller encoding or a shorter context";
        return format!("\n{changes} would not help by 5 %.\n");
    };
    let line = |advice: &Advice| {
        let gain = match advice.gain {
            Some(gain) => format!(" ({gain:.2} times)"),
            None => " (it opens)".to_owned(),
        };
        format!(
            "{} {}: {:.2} tok/s{gain}",
            advice.change, advice.to, advice.decode
        )
    };
    let mut text = format!("\nWhat would help most: {}\n", line(best));
    for other in &plan.advice[1..] {
        text.push_str(&format!("  also {}\n", line(other)));
    }
    text
}

fn gigabytes(rate: f64) -> String {
    format!("{:.2} GB/s", rate / 1e9)
}

/// Who holds what.
pub(super) fn chain(chain: &Chain) -> String {
    let head = [
        "machine",
        "layers",
        "ends",
        "peak",
        "of",
        "experts",
        "ms a token",
        "sends",
    ];
    let rows = chain.stages.iter().map(|stage| {
        let [from, to] = stage.layers;
        vec![
            plain(&stage.name),
            match from < to {
                true => format!("{from}..{to}"),
                false => "none".to_owned(),
            },
            if stage.ends { "yes" } else { "" }.to_owned(),
            bytes(stage.peak_bytes),
            bytes(stage.memory_bytes),
            match stage.slots {
                0 => "all".to_owned(),
                slots => format!("{slots} at once"),
            },
            format!("{:.2}", stage.seconds * 1e3),
            bytes(stage.sent_bytes_per_token),
        ]
    });
    let mut text = columns(&head, &rows.collect::<Vec<_>>());
    text.push_str(&format!(
        "\none conversation {:.2} tok/s, all machines busy {:.2} tok/s; {} sent for a token\n",
        chain.decode,
        chain.busy_decode,
        bytes(chain.wire_bytes_per_token)
    ));
    text
}
