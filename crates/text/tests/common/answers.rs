//! Checkpoints whose answers are read: tokens, a template, and words to cut answers with.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::HashMap;

use lamella_text::{Answer, AnswerStream, Bundle, ChatOptions, Message, StopStrings, Tokenizer};
use serde_json::{Value, json};

use super::{added, byte_level};

/// Templates that end a prompt with `end`, and mention markers.
pub const OBJECT: &str = "{% if false %}<tool_call></think>{% endif %}";
pub const FUNCTION: &str = "{% if false %}<tool_call><function=<parameter=</think>{% endif %}";
pub const PAIRS: &str = "{% if false %}<tool_call><arg_key><arg_value></think>{% endif %}";

const MARKERS: [&str; 8] = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
];
pub const DSML: [&str; 8] = [
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<think>",
    "</think>",
    "<｜latest_reminder｜>",
    "｜DSML｜",
];
pub const XTML: [&str; 4] = ["<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"];
pub const BLOCKS: [&str; 12] = [
    "<|message_user|>",
    "<|message_model|>",
    "<|message_system|>",
    "<|message_tool|>",
    "<|content_text|>",
    "<|content_thinking|>",
    "<|content_invoke_tool_json|>",
    "<|end_message|>",
    "<|content_model_end_sampling|>",
    "<|content_xml|>",
    // A prompt can do without these.
    "<|content_invoke_tool_text|>",
    "<|content_tool_error|>",
];

/// A checkpoint: control tokens, its template if it has one, and words that are tokens although no
/// text becomes them, so that answers can be cut anywhere.
pub struct Checkpoint {
    pub bundle: Bundle,
    /// Tokens by their bytes.
    words: HashMap<Vec<u8>, u32>,
    tokens: Vec<(String, u32)>,
}

impl Checkpoint {
    pub fn new(tokens: &[&str], special: bool, template: Option<&str>) -> Self {
        const WORDS: &str = "<tool|_call>|ool_c|</to|ol_call>|>\n|>\n<|</think|nk>|\n\n|\n<|<fun|\
                             ction=|f>|</par|ameter>|n=f>\n|{\"na|me\": \"|\"}|}}|\", \"arg|k>v</|\
                             <arg_|key>|value|</arg_value|>w|<｜|call t|\"string\"|\" ind|é|ä\"";
        let mut tokenizer = byte_level(Vec::new());
        let spell = byte_spelling(&tokenizer);
        let vocab = tokenizer["model"]["vocab"].as_object_mut().unwrap();
        for word in WORDS.split('|') {
            let spelled: String = word.bytes().map(|byte| spell[&byte]).collect();
            let id = vocab.len();
            vocab.entry(spelled).or_insert(id.into());
        }
        let first = u32::try_from(vocab.len()).unwrap();
        let tokens: Vec<(String, u32)> =
            tokens.iter().map(|t| t.to_string()).zip(first..).collect();
        let list: Vec<Value> = tokens
            .iter()
            .map(|(t, id)| added(*id, t, special))
            .collect();
        tokenizer["added_tokens"] = list.into();
        let tokenizer = tokenizer.to_string();
        let bundle = Bundle::load(&|file| match file {
            "tokenizer.json" => Some(tokenizer.clone()),
            "chat_template.jinja" => template.map(str::to_owned),
            _ => None,
        })
        .unwrap();
        let words = (0..first).map(|id| (bundle.tokenizer.token_bytes(id).unwrap(), id));
        Self {
            words: words.collect(),
            bundle,
            tokens,
        }
    }

    /// The ids of `text`, cut as `choose` says: it gets the number of tokens that come next.
    pub fn cut(&self, text: &str, choose: &mut dyn FnMut(usize) -> usize) -> Vec<u32> {
        let mut ids = Vec::new();
        let mut at = 0;
        while at < text.len() {
            let here = &text.as_bytes()[at..];
            let token = self
                .tokens
                .iter()
                .find(|(t, _)| here.starts_with(t.as_bytes()));
            if let Some((token, id)) = token {
                ids.push(*id);
                at += token.len();
                continue;
            }
            let fits: Vec<(usize, u32)> = (1..=here.len().min(16))
                .filter(|&length| {
                    // A word that covers a control token would be text.
                    let inside = (1..length).any(|start| {
                        self.tokens
                            .iter()
                            .any(|(t, _)| here[start..].starts_with(t.as_bytes()))
                    });
                    !inside
                })
                .filter_map(|length| Some((length, *self.words.get(&here[..length])?)))
                .collect();
            let (length, id) = fits[choose(fits.len()) % fits.len()];
            ids.push(id);
            at += length;
        }
        ids
    }

    pub fn bytes(&self, text: &str) -> Vec<u32> {
        self.cut(text, &mut |_| 0)
    }

    pub fn stream(&self, opening: &str, stops: &[&str]) -> AnswerStream {
        let options = ChatOptions {
            tools: Some(tools()),
            ..ChatOptions::prompt()
        };
        let messages = [Message::user(opening)];
        let prompt = self
            .bundle
            .chat()
            .unwrap()
            .render(&messages, &options)
            .unwrap();
        let stops = StopStrings::new(stops).unwrap();
        self.bundle.answer(&prompt, &options, &stops)
    }

    pub fn whole(&self, opening: &str, text: &str) -> Answer {
        self.stream(opening, &[]).whole(&self.bytes(text))
    }
}

/// The character that stands for each byte in a byte-level vocabulary.
fn byte_spelling(tokenizer: &Value) -> HashMap<u8, char> {
    let file = Tokenizer::from_json("tokenizer.json", &tokenizer.to_string()).unwrap();
    let vocab = tokenizer["model"]["vocab"].as_object().unwrap().iter();
    vocab
        .map(|(word, id)| {
            let id = u32::try_from(id.as_u64().unwrap()).unwrap();
            (file.bytes(id).unwrap()[0], word.chars().next().unwrap())
        })
        .collect()
}

pub fn tools() -> Vec<Value> {
    let properties = json!({"s": {"type": "string"}, "n": {"type": "integer"}});
    vec![
        json!({"type": "function", "function": {"name": "f", "parameters":
        {"type": "object", "properties": properties}}}),
    ]
}

/// A template that writes the user's text behind its markers.
fn template(markers: &str) -> String {
    format!("{markers}{{{{ messages[0].content }}}}")
}

pub fn with_tokens(markers: &str) -> Checkpoint {
    Checkpoint::new(&MARKERS, false, Some(&template(markers)))
}

pub fn with_text(markers: &str) -> Checkpoint {
    Checkpoint::new(&[], false, Some(&template(markers)))
}

/// Reasoning, content, and calls as `name(arguments)`, with `…` behind an incomplete one.
pub fn told(answer: &Answer) -> (String, String, Vec<String>) {
    let calls = answer.calls.iter().map(|call| {
        let end = if call.incomplete { "…" } else { "" };
        format!("{}({}){end}", call.name, call.arguments)
    });
    (
        answer.reasoning.clone(),
        answer.content.clone(),
        calls.collect(),
    )
}
