//! Everything textual that a checkpoint carries, loaded together.

use serde_json::{Map, Value};

use crate::generation::Fields;
use crate::template::{Clock, NamedTemplate, SpecialTokens};
use crate::{
    AnswerFormat, AnswerStream, Chat, ChatOptions, ChatTemplate, Error, GenerationDefaults,
    Message, Prompt, StopStrings, TextStream, Tokenizer, json,
};

/// The tokenizer: vocabulary, merges, added tokens.
pub const TOKENIZER_FILE: &str = "tokenizer.json";
/// The tokenizer of checkpoints without the former: tokens by rank.
pub const RANKS_FILE: &str = "tiktoken.model";
/// Special tokens by role, and in older checkpoints the chat template.
pub const TOKENIZER_CONFIG_FILE: &str = "tokenizer_config.json";
/// The chat template; wins over the one in `tokenizer_config.json`.
pub const CHAT_TEMPLATE_FILE: &str = "chat_template.jinja";
/// Special tokens by role, where `tokenizer_config.json` does not name them.
pub const SPECIAL_TOKENS_FILE: &str = "special_tokens_map.json";
/// Sampling defaults and stop ids.
pub const GENERATION_CONFIG_FILE: &str = "generation_config.json";
/// The model's own configuration; only its stop ids are read here, for the case that
/// `generation_config.json` has none.
pub const CONFIG_FILE: &str = "config.json";

/// The key of stop ids.
const EOS_KEY: &str = "eos_token_id";

/// Names of special tokens that a template may see.
const SPECIAL_TOKENS: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

/// Tokenizer, chat format, generation defaults and stop ids of a checkpoint.
#[derive(Debug, Clone)]
pub struct Bundle {
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// The checkpoint's generation settings; all unset where it has none.
    pub generation: GenerationDefaults,
    chat: Option<Chat>,
    answers: AnswerFormat,
    stop_ids: Vec<u32>,
    special: SpecialTokens,
}

impl Bundle {
    /// Loads the files that `read` gives by name. Only `tokenizer.json`, or `tiktoken.model` with
    /// `tokenizer_config.json`, must be there; but a file that is there must be right.
    pub fn load(read: &dyn Fn(&str) -> Option<String>) -> Result<Self, Error> {
        Self::load_with_clock(read, Clock::utc())
    }

    /// [`Bundle::load`], with a clock for templates that write the date.
    pub fn load_with_clock(
        read: &dyn Fn(&str) -> Option<String>,
        clock: Clock,
    ) -> Result<Self, Error> {
        let object = |file: &str| match read(file) {
            Some(text) => json::parse_object(file, &text),
            None => Ok(Map::new()),
        };
        let config = object(TOKENIZER_CONFIG_FILE)?;
        let tokenizer = tokenizer(read, &config)?;
        let special = special_tokens(&config, &object(SPECIAL_TOKENS_FILE)?)?;
        let chat = match template(read(CHAT_TEMPLATE_FILE), &config, &special, clock)? {
            Some(template) => Some(Chat::Template(template)),
            None => Chat::of_tokens(&tokenizer, read),
        };
        let generation = match read(GENERATION_CONFIG_FILE) {
            Some(text) => GenerationDefaults::from_json(GENERATION_CONFIG_FILE, &text)?,
            None => GenerationDefaults::default(),
        };
        let mut stop_ids = generation.eos_token_ids.clone();
        check_ids(GENERATION_CONFIG_FILE, EOS_KEY, &stop_ids, &tokenizer)?;
        if let Some(text) = read(CONFIG_FILE) {
            // Read also where it is not needed: what is no id at all is a damaged file.
            let [own, inner] = eos_of_config(&text)?;
            if stop_ids.is_empty() {
                check_ids(CONFIG_FILE, EOS_KEY, &own, &tokenizer)?;
                check_ids(CONFIG_FILE, "text_config.eos_token_id", &inner, &tokenizer)?;
                stop_ids = [own, inner].concat();
            }
        }
        stop_ids.extend(eos_of_tokenizer(&tokenizer, &special)?);
        stop_ids.sort_unstable();
        stop_ids.dedup();
        let answers = match &chat {
            Some(chat) => AnswerFormat::of(chat, &tokenizer),
            None => AnswerFormat::plain(&tokenizer),
        };
        Ok(Self {
            tokenizer,
            generation,
            chat,
            answers,
            stop_ids,
            special,
        })
    }

    /// What writes prompts, or an error that says what a checkpoint without it can do.
    pub fn chat(&self) -> Result<&Chat, Error> {
        self.chat.as_ref().ok_or(Error::NoChatTemplate)
    }

    /// Ids that end an answer, upward: those of `generation_config.json`, or of `config.json` where
    /// that says nothing, and the tokenizer's own end token.
    pub fn stop_ids(&self) -> &[u32] {
        &self.stop_ids
    }

    /// The special tokens by name (`eos_token` and so on).
    pub fn special_tokens(&self) -> &SpecialTokens {
        &self.special
    }

    /// The ids of a conversation: rendered, then encoded without added specials, since the
    /// template or format has written them already.
    pub fn encode_chat(
        &self,
        messages: &[Message],
        options: &ChatOptions,
    ) -> Result<Vec<u32>, Error> {
        self.chat()?.render(messages, options)?.ids(&self.tokenizer)
    }

    /// What its answers look like.
    pub fn answers(&self) -> &AnswerFormat {
        &self.answers
    }

    /// A stream for the answer to `prompt`, which [`Chat::render`] wrote with `options`.
    pub fn answer(
        &self,
        prompt: &Prompt,
        options: &ChatOptions,
        stops: &StopStrings,
    ) -> AnswerStream {
        let tools = options.tools.as_deref().unwrap_or_default();
        AnswerStream::new(&self.tokenizer, &self.answers, prompt, tools, stops)
    }

    /// A stream that decodes text without a chat.
    pub fn stream(&self, stops: &StopStrings, keep_special: bool) -> TextStream {
        TextStream::new(&self.tokenizer, stops, keep_special)
    }
}

/// The tokenizer, from the one file of the two that is there; `tokenizer.json` if both are.
fn tokenizer(
    read: &dyn Fn(&str) -> Option<String>,
    config: &Map<String, Value>,
) -> Result<Tokenizer, Error> {
    if let Some(text) = read(TOKENIZER_FILE) {
        return Tokenizer::from_json(TOKENIZER_FILE, &text);
    }
    match read(RANKS_FILE) {
        Some(text) => Tokenizer::from_ranks((RANKS_FILE, &text), (TOKENIZER_CONFIG_FILE, config)),
        None => Err(Error::Missing {
            file: TOKENIZER_FILE.into(),
            hint: format!(
                "without it text cannot become tokens; take it, or {RANKS_FILE} with \
                 {TOKENIZER_CONFIG_FILE}, from the place the weights came from (a bare \
                 tokenizer.model is not enough)"
            ),
        }),
    }
}

/// Special tokens by name: `tokenizer_config.json` first, `special_tokens_map.json` for the rest.
fn special_tokens(
    config: &Map<String, Value>,
    fallback: &Map<String, Value>,
) -> Result<SpecialTokens, Error> {
    let mut special = SpecialTokens::new();
    for name in SPECIAL_TOKENS {
        for (file, map) in [
            (TOKENIZER_CONFIG_FILE, config),
            (SPECIAL_TOKENS_FILE, fallback),
        ] {
            if special.contains_key(name) {
                continue;
            }
            let content = match map.get(name) {
                None | Some(Value::Null) => continue,
                Some(Value::Object(token)) => token.get("content").cloned().unwrap_or_default(),
                Some(other) => other.clone(),
            };
            match content {
                Value::String(_) => special.insert(name.into(), content),
                other => {
                    let cause = format!("is {}, not a token", json::kind(&other));
                    return Err(Error::field(file, name, cause));
                }
            };
        }
    }
    Ok(special)
}

fn template(
    jinja: Option<String>,
    config: &Map<String, Value>,
    special: &SpecialTokens,
    clock: Clock,
) -> Result<Option<ChatTemplate>, Error> {
    let single = |source: &str| NamedTemplate {
        name: "default".into(),
        source: source.into(),
    };
    let wrong = |cause: &str| Err(Error::field(TOKENIZER_CONFIG_FILE, "chat_template", cause));
    let (file, templates) = match (jinja, config.get("chat_template")) {
        (Some(source), _) => {
            json::check_text(CHAT_TEMPLATE_FILE, &source)?;
            (CHAT_TEMPLATE_FILE, vec![single(&source)])
        }
        (None, None | Some(Value::Null)) => return Ok(None),
        (None, Some(Value::String(source))) => (TOKENIZER_CONFIG_FILE, vec![single(source)]),
        (None, Some(Value::Array(list))) => {
            let mut templates = Vec::with_capacity(list.len());
            for one in list {
                let text = |key: &str| one.get(key).and_then(Value::as_str);
                let (Some(name), Some(source)) = (text("name"), text("template")) else {
                    return wrong("an entry has no `name` or no `template`");
                };
                templates.push(NamedTemplate {
                    name: name.into(),
                    source: source.into(),
                });
            }
            (TOKENIZER_CONFIG_FILE, templates)
        }
        (None, Some(_)) => return wrong("is neither a template nor a list of named ones"),
    };
    ChatTemplate::named(file, &templates, special.clone(), clock).map(Some)
}

/// The id of the tokenizer's end token.
fn eos_of_tokenizer(tokenizer: &Tokenizer, special: &SpecialTokens) -> Result<Option<u32>, Error> {
    let Some(token) = special.get("eos_token").and_then(Value::as_str) else {
        return Ok(None);
    };
    match tokenizer.token_id(token) {
        Some(id) => Ok(Some(id)),
        None => {
            let cause = format!("`{token}` is no token of {}", tokenizer.file());
            Err(Error::field(TOKENIZER_CONFIG_FILE, "eos_token", cause))
        }
    }
}

/// Stop ids of `config.json`: its own, and those under `text_config`, where models that are part
/// of a larger one keep them.
fn eos_of_config(text: &str) -> Result<[Vec<u32>; 2], Error> {
    let mut map = json::parse_object(CONFIG_FILE, text)?;
    let inner = map.remove("text_config");
    let file = CONFIG_FILE;
    let own = Fields { file, map }.ids(EOS_KEY)?;
    let inner = match inner {
        Some(Value::Object(map)) => Fields { file, map }.ids(EOS_KEY)?,
        _ => Vec::new(),
    };
    Ok([own, inner])
}

/// Refuses ids that have no token: no answer could ever end with them.
fn check_ids(file: &str, key: &str, ids: &[u32], tokenizer: &Tokenizer) -> Result<(), Error> {
    let vocabulary = tokenizer.vocabulary();
    match ids.iter().find(|&&id| id as usize >= vocabulary) {
        None => Ok(()),
        Some(id) => {
            let whose = tokenizer.file();
            let cause = format!("has {id}, but the vocabulary of {whose} ends at {vocabulary}");
            Err(Error::field(file, key, cause))
        }
    }
}
