//! Answers cut anywhere, answers of any tokens, answers made to take long.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::answers::{
    BLOCKS, Checkpoint, DSML, FUNCTION, OBJECT, PAIRS, XTML, told, with_text, with_tokens,
};
use lamella_text::{AnswerEvent, AnswerStream};
use proptest::prelude::*;

/// The events joined: one line each for what belongs together.
fn joined(events: &[AnswerEvent]) -> Vec<AnswerEvent> {
    use AnswerEvent::*;
    let mut all: Vec<AnswerEvent> = Vec::new();
    for event in events {
        match (all.last_mut(), event) {
            (Some(Reasoning(last)), Reasoning(text)) => last.push_str(text),
            (Some(Content(last)), Content(text)) => last.push_str(text),
            (
                Some(CallArguments {
                    index: at,
                    text: last,
                }),
                CallArguments { index, text },
            ) if at == index => last.push_str(text),
            _ => all.push(event.clone()),
        }
    }
    all
}

fn events(mut stream: AnswerStream, ids: &[u32]) -> Vec<AnswerEvent> {
    let mut all = Vec::new();
    for &id in ids {
        all.extend_from_slice(stream.push(id));
    }
    all.extend_from_slice(stream.finish());
    let (reasoning, content, calls) = told(stream.answer());
    let text = |pick: fn(&AnswerEvent) -> Option<&String>| -> String {
        all.iter().filter_map(pick).map(String::as_str).collect()
    };
    let reasoned = text(|event| match event {
        AnswerEvent::Reasoning(text) => Some(text),
        _ => None,
    });
    let said = text(|event| match event {
        AnswerEvent::Content(text) => Some(text),
        _ => None,
    });
    assert_eq!((reasoned, said), (reasoning, content));
    let ended = |event: &&AnswerEvent| matches!(event, AnswerEvent::CallFinished { .. });
    assert_eq!(all.iter().filter(ended).count(), calls.len());
    joined(&all)
}

/// Pieces of answers, good and bad, of every format.
const PIECES: [&str; 40] = [
    "<think>",
    "</think>",
    "\n",
    "\n\n",
    " ",
    "a",
    "é",
    "STOP",
    "S",
    "<",
    ">",
    "\"",
    "{",
    "}",
    "[1]",
    "<tool_call>",
    "</tool_call>",
    "{\"name\": \"f\", \"arguments\": {\"s\": \"x\"}}",
    "\"name\": \"f\"",
    ", ",
    "<function=f>",
    "</function>",
    "<parameter=s>",
    "</parameter>",
    "<arg_key>",
    "s",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "｜DSML｜",
    "<｜DSML｜tool_calls>",
    "<｜DSML｜invoke name=\"f\">",
    "<｜DSML｜parameter name=\"s\" string=\"true\">",
    "</｜DSML｜parameter>",
    "</｜DSML｜invoke>",
    "</｜DSML｜tool_calls>",
    "<|open|>",
    "<|close|>",
    "<|sep|>",
    "call tool=\"f\"",
];

fn all() -> Vec<Checkpoint> {
    let mut all = vec![
        Checkpoint::new(&DSML, true, None),
        Checkpoint::new(&XTML, true, None),
        Checkpoint::new(&BLOCKS, true, None),
    ];
    for markers in [OBJECT, FUNCTION, PAIRS] {
        all.extend([with_tokens(markers), with_text(markers)]);
    }
    all
}

fn shared() -> &'static [Checkpoint] {
    static ALL: std::sync::OnceLock<Vec<Checkpoint>> = std::sync::OnceLock::new();
    ALL.get_or_init(all)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Every way to cut an answer into tokens tells the same.
    #[test]
    fn events_do_not_depend_on_how_an_answer_is_cut(
        which in 0usize..9,
        opened in any::<bool>(),
        pieces in proptest::collection::vec(0usize..PIECES.len(), 0..24),
        choices in proptest::collection::vec(any::<usize>(), 64),
    ) {
        let checkpoint = &shared()[which];
        let text: String = pieces.iter().map(|&piece| PIECES[piece]).collect();
        let opening = if opened { "<think>" } else { "x" };
        let mut choices = choices.iter().cycle();
        let cut = checkpoint.cut(&text, &mut |_| *choices.next().unwrap());
        let stream = || checkpoint.stream(opening, &["STOP"]);
        let expected = events(stream(), &checkpoint.bytes(&text));
        prop_assert_eq!(events(stream(), &cut), expected);
    }

    /// Any tokens at all, and an end anywhere.
    #[test]
    fn any_tokens_give_an_answer(
        which in 0usize..9,
        opened in any::<bool>(),
        ids in proptest::collection::vec(200u32..340, 0..60),
    ) {
        let checkpoint = &shared()[which];
        let opening = if opened { "<think>" } else { "x" };
        let told = events(checkpoint.stream(opening, &["a"]), &ids);
        let answer = checkpoint.stream(opening, &["a"]).whole(&ids);
        let begun = told.iter().filter(|e| matches!(e, AnswerEvent::CallBegun { .. })).count();
        prop_assert_eq!(begun, answer.calls.len());
        let _ = answer.message();
    }

    /// Nothing of a text without control tokens is lost where no call or thought is in it.
    #[test]
    fn text_that_only_looks_like_markers_is_content(
        pieces in proptest::collection::vec("[<>/a]|<tool|call>|</th|ink", 0..20),
    ) {
        let text = format!("a{}", pieces.concat());
        let checkpoint = &shared()[4];
        prop_assume!(!text.contains("<tool_call>"));
        prop_assert_eq!(&checkpoint.whole("x", &text).content, &text);
    }
}

/// Markers without end: time grows with the length and no more.
#[test]
fn hostile_answers_take_linear_time() {
    let calls = "<tool_call>{\"a\": \"<tool_call>".repeat(5_000);
    let values = format!(
        "<tool_call><function=f><parameter=s>{}",
        "</parameter>  <param".repeat(5_000)
    );
    let open = format!(
        "<tool_call>{{\"name\": \"f\", \"args\": {}",
        "[{\"\":".repeat(15_000)
    );
    let begin = std::time::Instant::now();
    for checkpoint in [with_text(OBJECT), with_text(FUNCTION)] {
        for text in [&calls, &values, &open] {
            let answer = checkpoint.whole("x", text);
            assert!(answer.message().content().is_some());
        }
    }
    // Quadratic time would be hours.
    assert!(begin.elapsed().as_secs() < 60, "{:?}", begin.elapsed());
}
