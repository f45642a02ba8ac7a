//! Draft heads.

use crate::common::blocks::{drafting, gated_streams, history, selecting};
use crate::common::{HIDDEN, VOCABULARY, fails, fails_and_frees, plain_layer, program_of, sweep};
use lamella_program::Program;
use lamella_program::block::{LatentSelection, Mixer, Residual};
use lamella_program::closure::{check, draft_operands, used_operands};
use lamella_program::draft::{Draft, DraftReads, HiddenNormScope};
use lamella_program::state;

fn plain() -> Program {
    drafting(program_of(|t| vec![plain_layer(t)]))
}

fn draft(program: &mut Program) -> &mut Draft {
    program.draft.as_mut().expect("it drafts")
}

#[test]
fn every_head_has_its_operands() {
    sweep(&plain(), &[], &[]);
    let ranks = [
        "layers.0.mixer_gate.down",
        "layers.0.ffn_gate.down",
        "layers.1.mixer_gate.down",
        "layers.1.ffn_gate.down",
        "last.down",
        "ngram.table",
        "draft.0.mixer_gate.down",
        "draft.0.ffn_gate.down",
        "draft.0.last.down",
        "draft.1.mixer_gate.down",
        "draft.1.ffn_gate.down",
        "draft.1.last.down",
    ];
    sweep(&drafting(gated_streams()), &ranks, &["ngram.table"]);
}

#[test]
fn heads_fit_the_model() {
    fails_and_frees(
        &plain(),
        |p| draft(p).depths.clear(),
        "draft: 0 depths, needs 1 to 64",
    );
    let streams = drafting(gated_streams());
    fails(
        &streams,
        |p| draft(p).reads = DraftReads::Normed,
        "draft: it reads one normed vector where there are several streams",
    );
    fails_and_frees(
        &streams,
        |p| draft(p).depths[1].layer.residual = Residual::Plain,
        "draft.1: its residual is of another kind than that of layer 0",
    );
    fails_and_frees(
        &streams,
        |p| draft(p).depths[0].exit.reduction = None,
        "draft.0.exit: its stream reduction does not fit",
    );
    fails(
        &streams,
        |p| draft(p).depths[0].join.hidden_norm_scope = HiddenNormScope::Joint,
        "draft.0.join: operand draft.0.hidden_norm has shape [8], needs [",
    );
    fails(
        &plain(),
        |p| draft(p).depths[0].exit.logits -= 1,
        &format!(
            "draft.0.exit: {} logits, but the model has {VOCABULARY}",
            VOCABULARY - 1
        ),
    );
}

#[test]
fn a_concatenation_joins_one_stream() {
    let mut streams = drafting(gated_streams());
    let one = draft(&mut plain()).depths[0].join.map.clone();
    draft(&mut streams).depths[0].join.map = one;
    let texts: Vec<String> = check(&streams).iter().map(ToString::to_string).collect();
    let said = "draft.0.join: it concatenates one row where there are several streams";
    assert!(texts.iter().any(|text| text == said), "{texts:?}");
}

#[test]
fn a_history_has_no_drafts() {
    let mut program = history();
    program.draft = plain().draft;
    let texts: Vec<String> = check(&program).iter().map(ToString::to_string).collect();
    let said = "draft: a draft has no streams to enter";
    assert!(texts.iter().any(|text| text == said), "{texts:?}");
}

#[test]
fn nothing_before_a_head_selects_for_it() {
    let mut program = selecting();
    let sharing = program.layers.iter().position(|layer| {
        let Mixer::LatentAttention(a) = &layer.mixer.body else {
            return false;
        };
        a.selection == Some(LatentSelection::Shared)
    });
    let layer = program.layers[sharing.expect("one shares")].clone();
    let join = plain().draft.expect("it drafts").depths[0].join.clone();
    let before = check(&program);
    assert_eq!(before, []);
    let exit = program.exit.clone();
    program.draft = Some(Draft {
        reads: DraftReads::Normed,
        depths: vec![lamella_program::draft::DraftDepth { join, layer, exit }],
        recycles: true,
    });
    let texts: Vec<String> = check(&program).iter().map(ToString::to_string).collect();
    let place = texts
        .iter()
        .find(|text| text.starts_with("draft.0.mixer: "));
    assert!(place.is_some_and(|t| t.contains("select")), "{texts:?}");
}

#[test]
fn what_only_the_draft_uses_is_counted_apart() {
    let program = plain();
    let mut main = program.clone();
    main.draft = None;
    let own = draft_operands(&program);
    let named = |id: &lamella_program::OperandId| program.operand(*id).name.starts_with("draft.");
    assert!(own.iter().all(named));
    let all = program.operands.iter();
    assert_eq!(
        all.filter(|o| o.name.starts_with("draft.")).count(),
        own.len()
    );
    assert_eq!(used_operands(&program).len(), program.operands.len());
    assert_eq!(
        used_operands(&main).len() + own.len(),
        program.operands.len()
    );
    let without = program_of(|t| vec![plain_layer(t)]);
    assert_eq!(program.parameters(), without.parameters());
    let of_draft: usize = own.iter().map(|&id| program.operand(id).elements()).sum();
    assert_eq!(program.draft_parameters(), of_draft as u64);
    assert_eq!(without.draft_parameters(), 0);
    // Two layers like the model's only one.
    let token = state::bytes_per_token(&program);
    assert_eq!(token, state::bytes_per_token(&without));
    assert_eq!(state::draft_bytes_per_token(&program), 2 * token);
    assert!(token > 0 && HIDDEN > 0);
}

#[test]
fn programs_of_version_1_have_no_draft() {
    let text = serde_json::to_string(&plain()).expect("json");
    assert_eq!(
        serde_json::from_str::<Program>(&text).expect("program"),
        plain()
    );
    let mut older = program_of(|t| vec![plain_layer(t)]);
    older.version = 1;
    let text = serde_json::to_string(&older).expect("json");
    assert!(!text.contains("draft"));
    let read: Program = serde_json::from_str(&text).expect("program");
    assert_eq!((check(&read), read.draft), (Vec::new(), None));
}
