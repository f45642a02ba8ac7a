//! Streaming equals the whole, whatever the tokens and wherever the stops fall.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::sync::OnceLock;

use lamella_text::{StopStrings, TextStream, Tokenizer};
use proptest::prelude::*;

fn tokenizer() -> Tokenizer {
    common::demo_bundle().tokenizer
}

/// The obvious way: look for the stop whose last byte comes first, longest first.
fn cut(text: &str, stops: &[String]) -> (String, Option<String>) {
    let mut best: Option<(usize, usize, &String)> = None;
    for stop in stops {
        if let Some(at) = text.find(stop.as_str()) {
            let key = (at + stop.len(), at, stop);
            if best.is_none_or(|best| (key.0, key.1) < (best.0, best.1)) {
                best = Some(key);
            }
        }
    }
    match best {
        Some((_, at, stop)) => (text[..at].to_owned(), Some(stop.clone())),
        None => (text.to_owned(), None),
    }
}

/// The longest suffix of `text` that is a proper prefix of a stop.
fn must_hold(text: &str, stops: &[String]) -> usize {
    (1..=text.len())
        .rev()
        .filter(|&length| text.is_char_boundary(text.len() - length))
        .find(|&length| {
            let suffix = &text[text.len() - length..];
            stops
                .iter()
                .any(|stop| stop.len() > length && stop.starts_with(suffix))
        })
        .unwrap_or(0)
}

fn check_pieces(pieces: &[&str], stops: &[String]) {
    let compiled = StopStrings::new(stops).unwrap();
    let mut matcher = compiled.matcher();
    let (mut fed, mut shown) = (String::new(), String::new());
    for piece in pieces {
        fed.push_str(piece);
        let stopped = matcher.push(piece, &mut shown);
        let (expected, stop) = cut(&fed, stops);
        assert_eq!(stopped, stop.is_some(), "{fed:?} {stops:?}");
        assert_eq!(matcher.matched(), stop.as_deref());
        if stop.is_some() {
            assert_eq!(shown, expected, "{fed:?} {stops:?}");
        } else {
            let hold = must_hold(&fed, stops);
            assert_eq!(shown, fed[..fed.len() - hold], "{fed:?} {stops:?}");
            assert_eq!(matcher.held(), &fed[fed.len() - hold..]);
        }
    }
    matcher.finish(&mut shown);
    assert_eq!(shown, cut(&fed, stops).0);
}

#[test]
fn stops_across_borders() {
    let cases: &[(&[&str], &[&str])] = &[
        (&["ab", "c<", "/e", "nd>x", "y"], &["</end>"]),
        (&["a", "a", "a", "b"], &["aab"]),
        (&["ababab", "ac"], &["ababac", "xyz"]),
        (&["x", "abc"], &["ab", "xabc"]),
        (&["zabc"], &["bc", "zabc", "abc"]),
        (&["\n", "\n", "User:"], &["\n\nUser:", "\nUser"]),
        (&["né", "e日", "本"], &["日本", "ée日x"]),
        (&["never"], &[]),
        (&["", "", "a"], &["aa"]),
    ];
    for (pieces, stops) in cases {
        let stops: Vec<String> = stops.iter().map(|stop| stop.to_string()).collect();
        check_pieces(pieces, &stops);
    }
}

#[test]
fn nothing_flows_after_a_stop() {
    let stops = StopStrings::new(&["lo"]).unwrap();
    let tokenizer = tokenizer();
    let ids = tokenizer.encode("Hello world, hello again", false).unwrap();
    let mut stream = TextStream::new(&tokenizer, &stops, false);
    let text: String = ids.iter().map(|&id| stream.push(id).to_owned()).collect();
    assert_eq!(text, "Hel");
    assert_eq!(stream.stop_string(), Some("lo"));
    assert_eq!(stream.push(ids[0]), "");
    assert_eq!(stream.finish(), "");
}

#[test]
fn held_text_comes_out_at_the_end() {
    let stops = StopStrings::new(&["!?!"]).unwrap();
    let tokenizer = tokenizer();
    let ids = tokenizer.encode("Oh!?", false).unwrap();
    let mut stream = TextStream::new(&tokenizer, &stops, false);
    let text: String = ids.iter().map(|&id| stream.push(id).to_owned()).collect();
    assert_eq!((text.as_str(), stream.finish()), ("Oh", "!?"));
    assert!(!stream.stopped());
}

/// A character cut off at the end becomes U+FFFD, and even that may complete a stop.
#[test]
fn the_end_goes_through_the_same_steps() {
    let tokenizer = tokenizer();
    let mut ids = tokenizer.encode("a🦊", false).unwrap();
    ids.pop();
    let stops = StopStrings::new(&["\u{fffd}"]).unwrap();
    assert_eq!(TextStream::new(&tokenizer, &stops, false).whole(&ids), "a");
    assert_eq!(
        TextStream::new(&tokenizer, &StopStrings::none(), false).whole(&ids),
        "a\u{fffd}"
    );
}

#[test]
fn useless_stops_are_refused() {
    assert!(StopStrings::new(&[""]).is_err());
    assert!(StopStrings::new(&["a".repeat(1025)]).is_err());
    assert!(StopStrings::new(&["a".repeat(1024)]).is_ok());
    assert!(StopStrings::new(&vec!["a"; 65]).is_err());
    assert!(StopStrings::new(&vec!["a"; 64]).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn stop_matching_does_not_depend_on_pieces(
        pieces in proptest::collection::vec("[abé]{0,4}", 0..12),
        stops in proptest::collection::vec("[abé]{1,4}", 0..5),
    ) {
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        check_pieces(&pieces, &stops);
    }

    /// Any ids at all: streaming shows a prefix of the whole at every step, and in the end all.
    #[test]
    fn streaming_equals_the_whole(
        ids in proptest::collection::vec(0u32..2100, 0..40),
        keep in any::<bool>(),
        stops in proptest::collection::vec("[a-z\u{fffd} ]{1,3}", 0..3),
    ) {
        let tokenizer = shared();
        let mut bytes = Vec::new();
        for &id in &ids {
            if keep || !tokenizer.is_special(id) {
                bytes.extend(tokenizer.bytes(id).unwrap_or_default());
            }
        }
        let everything = String::from_utf8_lossy(&bytes).into_owned();
        prop_assert_eq!(&tokenizer.decode(&ids, keep), &everything);
        let expected = cut(&everything, &stops).0;
        let compiled = StopStrings::new(&stops).unwrap();
        let mut stream = TextStream::new(tokenizer, &compiled, keep);
        let mut shown = String::new();
        for &id in &ids {
            shown.push_str(stream.push(id));
            prop_assert!(expected.starts_with(&shown));
        }
        shown.push_str(stream.finish());
        prop_assert_eq!(&shown, &expected);
        prop_assert_eq!(&TextStream::new(tokenizer, &compiled, keep).whole(&ids), &expected);
    }

    /// Valid text comes back as an independent decoder gives it back (after normalisation).
    #[test]
    fn text_comes_back_from_its_ids(text in "\\PC{0,30}") {
        let tokenizer = shared();
        let ids = tokenizer.encode(&text, false).unwrap();
        let expected = independent().decode(&ids, false).unwrap();
        prop_assert_eq!(tokenizer.decode(&ids, true), expected);
    }
}

fn independent() -> &'static tokenizers::Tokenizer {
    static OTHER: OnceLock<tokenizers::Tokenizer> = OnceLock::new();
    OTHER.get_or_init(|| common::demo_text("model/tokenizer.json").parse().unwrap())
}

fn shared() -> &'static Tokenizer {
    static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
    TOKENIZER.get_or_init(tokenizer)
}
