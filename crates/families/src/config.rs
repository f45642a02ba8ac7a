//! Reading `config.json` key by key. Every key must be read or be known to change nothing; what is
//! left over is a defect.

use lamella_program::Defect;
use serde_json::{Map, Value};
use std::collections::HashSet;

/// Largest hidden size, head size or inner width that is believed.
pub(crate) const MAX_WIDTH: usize = 1 << 20;
/// Largest vocabulary that is believed.
pub(crate) const MAX_VOCABULARY: usize = 1 << 24;
/// Longest context that is believed, in tokens.
pub(crate) const MAX_CONTEXT: usize = 1 << 30;
/// Most attention heads that are believed.
pub(crate) const MAX_HEADS: usize = 1 << 12;
/// Most layers that are believed.
pub(crate) const MAX_LAYERS: usize = 1 << 10;
/// Most experts in a layer that are believed.
pub(crate) const MAX_EXPERTS: usize = 1 << 12;

/// Keys that change nothing in the computation of logits: training, bookkeeping, and token ids that
/// the text layer takes from the tokenizer and generation files.
const INERT_KEYS: &[&str] = &[
    "_attn_implementation_autoset",
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "bos_token_id",
    "chunk_size_feed_forward",
    "dtype",
    "eos_token_id",
    "finetuning_task",
    "gradient_checkpointing",
    "id2label",
    "initializer_range",
    "label2id",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "pad_token_id",
    "problem_type",
    "return_dict",
    "router_aux_loss_coef",
    "sep_token_id",
    "task_specific_params",
    "tokenizer_class",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
];

/// Largest factor that is believed: published ones are below 100.
const MAX_FACTOR: f32 = 65536.0;

/// What a number of the configuration may be. NaN and what an f32 cannot hold are in none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Domain {
    /// Above 0: limits and lengths, which may be so large that they never bind.
    Positive,
    /// Below 0.
    Negative,
    /// What keeps a norm from dividing by zero: above 0 and below 1.
    Epsilon,
    /// What a part is multiplied with: above 0, at most 65536.
    Factor,
    /// A part of a whole: above 0, at most 1.
    Share,
    /// The base of rotary frequencies: above 1.
    Base,
}

impl Domain {
    fn holds(self, x: f32) -> bool {
        x.is_finite()
            && match self {
                Domain::Positive => x > 0.0,
                Domain::Negative => x < 0.0,
                Domain::Epsilon => x > 0.0 && x < 1.0,
                Domain::Factor => x > 0.0 && x <= MAX_FACTOR,
                Domain::Share => x > 0.0 && x <= 1.0,
                Domain::Base => x > 1.0,
            }
    }

    fn words(self) -> &'static str {
        match self {
            Domain::Positive => "a number above 0 that an f32 can hold",
            Domain::Negative => "a number below 0 that an f32 can hold",
            Domain::Epsilon => "a number above 0 and below 1",
            Domain::Factor => "a number above 0 and up to 65536",
            Domain::Share => "a number above 0 and up to 1",
            Domain::Base => "a number above 1 that an f32 can hold",
        }
    }
}

/// A value could not be used; the reader holds the defect that says why.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rejected;

/// A JSON object and which of its keys have been read.
///
/// Getters record a defect and return [`Rejected`] for a value they cannot use, so a lowering can
/// read everything first and give up afterwards.
pub(crate) struct ConfigReader<'c> {
    values: &'c Map<String, Value>,
    prefix: String,
    read: HashSet<&'c str>,
    findings: Findings,
    defects: Vec<Defect>,
}

/// A key that more than one value may stand under.
pub(crate) struct Consulted {
    /// Its path: `a.b`.
    pub(crate) path: String,
    pub(crate) kind: Kind,
}

/// What may stand under a key.
pub(crate) enum Kind {
    /// A whole number up to this one.
    Whole(usize),
    /// Whole numbers, one for each layer or naming layers.
    Wholes,
    /// These words, one for each layer.
    Words(Vec<String>),
    /// Anything else.
    Other,
}

/// What reading was like, beside its defects.
#[derive(Default)]
pub(crate) struct Findings {
    /// The keys that were looked for, the absent ones included.
    pub(crate) consulted: Vec<Consulted>,
    /// Whether a key is missing.
    pub(crate) missing: bool,
    /// Whether a value was rejected that could be used if others were not what they are.
    pub(crate) contradicted: bool,
    /// Whether a value was refused that could be used beside no others.
    pub(crate) refused: bool,
    /// How many slices the program has that was compared with the tensors, if there is one.
    pub(crate) compared: Option<usize>,
}

impl<'c> ConfigReader<'c> {
    /// A reader of the whole configuration.
    pub(crate) fn new(values: &'c Map<String, Value>) -> Self {
        let mut reader = Self::bare(values, String::new());
        reader.ignore_inert();
        reader
    }

    fn bare(values: &'c Map<String, Value>, prefix: String) -> Self {
        ConfigReader {
            values,
            prefix,
            read: HashSet::new(),
            findings: Findings::default(),
            defects: Vec::new(),
        }
    }

    /// Marks the keys that change nothing in any family, also for a nested reader.
    pub(crate) fn ignore_inert(&mut self) {
        self.ignore(INERT_KEYS);
    }

    /// Marks keys as known to change nothing.
    pub(crate) fn ignore(&mut self, keys: &[&str]) {
        for key in keys {
            let _ = self.value(key);
        }
    }

    /// A required whole number from 1 to `max`.
    pub(crate) fn count(&mut self, key: &str, max: usize) -> Result<usize, Rejected> {
        self.optional_count(key, max)?
            .ok_or_else(|| self.missing(key))
    }

    /// A whole number from 1 to `max`; `None` where the key is absent or null.
    pub(crate) fn optional_count(
        &mut self,
        key: &str,
        max: usize,
    ) -> Result<Option<usize>, Rejected> {
        let needed = format!("a whole number from 1 to {max}");
        let read = |v: &Value| whole(v, max).filter(|n| *n > 0);
        self.optional_of(key, Kind::Whole(max), &needed, read)
    }

    /// A whole number from 1 to `max`; `default` where the key is absent. Null is no number.
    pub(crate) fn count_or(
        &mut self,
        key: &str,
        max: usize,
        default: usize,
    ) -> Result<usize, Rejected> {
        let needed = format!("a whole number from 1 to {max}");
        let read = |v: &Value| whole(v, max).filter(|n| *n > 0);
        Ok(self.given(key, max, &needed, read)?.unwrap_or(default))
    }

    /// A whole number from 0 to `max`; `default` where the key is absent. Null is no number.
    pub(crate) fn whole_or(
        &mut self,
        key: &str,
        max: usize,
        default: usize,
    ) -> Result<usize, Rejected> {
        let needed = format!("a whole number from 0 to {max}");
        let read = |v: &Value| whole(v, max);
        Ok(self.given(key, max, &needed, read)?.unwrap_or(default))
    }

    /// A required number of this domain, also after rounding to f32.
    pub(crate) fn number(&mut self, key: &str, domain: Domain) -> Result<f64, Rejected> {
        self.optional_number(key, domain)?
            .ok_or_else(|| self.missing(key))
    }

    /// A number of this domain, also after rounding to f32; `None` where the key is absent or null.
    pub(crate) fn optional_number(
        &mut self,
        key: &str,
        domain: Domain,
    ) -> Result<Option<f64>, Rejected> {
        self.optional(key, domain.words(), |v| {
            v.as_f64().filter(|&x| domain.holds(x as f32))
        })
    }

    /// A required `true` or `false`.
    pub(crate) fn flag(&mut self, key: &str) -> Result<bool, Rejected> {
        self.optional_flag(key)?.ok_or_else(|| self.missing(key))
    }

    /// `true` or `false`; `None` where the key is absent or null.
    pub(crate) fn optional_flag(&mut self, key: &str) -> Result<Option<bool>, Rejected> {
        self.optional(key, "true or false", Value::as_bool)
    }

    /// A whole number from 0 to `max`; `None` where the key is absent or null.
    pub(crate) fn optional_whole(
        &mut self,
        key: &str,
        max: usize,
    ) -> Result<Option<usize>, Rejected> {
        let needed = format!("a whole number from 0 to {max}");
        self.optional_of(key, Kind::Whole(max), &needed, |v| whole(v, max))
    }

    /// Whole numbers from 0 to `max`, at most `longest` of them; `None` where the key is absent or
    /// null.
    pub(crate) fn optional_wholes(
        &mut self,
        key: &str,
        max: usize,
        longest: usize,
    ) -> Result<Option<Vec<usize>>, Rejected> {
        let needed = format!("a list of up to {longest} whole numbers from 0 to {max}");
        let read = |v| items(v, longest, |n| whole(n, max));
        self.optional_of(key, Kind::Wholes, &needed, read)
    }

    /// A whole number from 0 to `max`, or the first of a list of them; `None` where the key is
    /// absent or null.
    pub(crate) fn optional_first_whole(
        &mut self,
        key: &str,
        max: usize,
    ) -> Result<Option<usize>, Rejected> {
        let needed = format!("a whole number from 0 to {max}, or a list that begins with one,");
        self.optional(key, &needed, |v| {
            let first = v.as_array().map_or(Some(v), |items| items.first());
            first.and_then(|v| whole(v, max))
        })
    }

    /// Token ids, one or a list of them; `None` where the key is absent or null.
    pub(crate) fn optional_tokens(&mut self, key: &str) -> Result<Option<Vec<usize>>, Rejected> {
        let needed = "a token id or a list of them";
        self.optional(key, needed, |v| match whole(v, MAX_VOCABULARY) {
            Some(id) => Some(vec![id]),
            None => items(v, MAX_VOCABULARY, |n| whole(n, MAX_VOCABULARY)),
        })
    }

    /// A text; `None` where the key is absent or null.
    pub(crate) fn optional_text(&mut self, key: &str) -> Result<Option<&'c str>, Rejected> {
        self.optional(key, "a text", Value::as_str)
    }

    /// Texts, at most `longest` of them; `None` where the key is absent or null.
    pub(crate) fn optional_texts(
        &mut self,
        key: &str,
        longest: usize,
    ) -> Result<Option<Vec<&'c str>>, Rejected> {
        let needed = format!("a list of up to {longest} texts");
        self.optional(key, &needed, |v| items(v, longest, Value::as_str))
    }

    /// What `read` makes of the value of `key`, a whole number up to `max`; `None` where the key is
    /// absent.
    fn given<T>(
        &mut self,
        key: &str,
        max: usize,
        needed: &str,
        read: impl FnOnce(&'c Value) -> Option<T>,
    ) -> Result<Option<T>, Rejected> {
        match self.value(key) {
            Some(null @ Value::Null) => {
                self.consult(key, Kind::Whole(max));
                Err(self.wrong(key, null, needed))
            }
            _ => self.optional_of(key, Kind::Whole(max), needed, read),
        }
    }

    fn consult(&mut self, key: &str, kind: Kind) {
        let path = format!("{}{key}", self.prefix);
        self.findings.consulted.push(Consulted { path, kind });
    }

    /// Notes that the list under `key` has one of these words for each layer.
    pub(crate) fn note_words(&mut self, key: &str, words: &[&str]) {
        let words = words.iter().map(|&word| word.to_owned());
        self.consult(key, Kind::Words(words.collect()));
    }

    /// What `read` makes of the value of `key`; `None` where the key is absent or null.
    fn optional<T>(
        &mut self,
        key: &str,
        needed: &str,
        read: impl FnOnce(&'c Value) -> Option<T>,
    ) -> Result<Option<T>, Rejected> {
        self.optional_of(key, Kind::Other, needed, read)
    }

    /// The same of a key of this kind.
    fn optional_of<T>(
        &mut self,
        key: &str,
        kind: Kind,
        needed: &str,
        read: impl FnOnce(&'c Value) -> Option<T>,
    ) -> Result<Option<T>, Rejected> {
        self.consult(key, kind);
        let Some(value) = self.present(key) else {
            return Ok(None);
        };
        match read(value) {
            Some(read) => Ok(Some(read)),
            None => Err(self.wrong(key, value, needed)),
        }
    }

    /// Refuses any value of a required key but this one.
    pub(crate) fn require(&mut self, key: &str, supported: &Value) {
        let _ = self.required(key, supported);
    }

    /// The same, telling whether it has that value.
    fn required(&mut self, key: &str, supported: &Value) -> Result<(), Rejected> {
        match self.value(key) {
            None => Err(self.missing(key)),
            Some(value) if value == supported => Ok(()),
            Some(value) => Err(self.wrong(key, value, &shown(supported))),
        }
    }

    /// [`require`](Self::require) for a key that says what all the others mean: with another value
    /// of it, none of them is looked at.
    pub(crate) fn require_kind(&mut self, key: &str, supported: &Value) -> Result<(), Rejected> {
        self.required(key, supported)
            .inspect_err(|_| self.ignore_all())
    }

    /// Looks at no key any more: what they mean is not known.
    pub(crate) fn ignore_all(&mut self) {
        self.read.extend(self.values.keys().map(String::as_str));
    }

    /// Refuses any value but this one; the key may be absent or null, which means the same.
    pub(crate) fn require_if_present(&mut self, key: &str, supported: &Value) {
        if let Some(value) = self.present(key)
            && value != supported
        {
            let _ = self.wrong(key, value, &shown(supported));
        }
    }

    /// The object under `key`; `None` where the key is absent or null. Hand it back to
    /// [`absorb`](Self::absorb) when read.
    pub(crate) fn object(&mut self, key: &str) -> Result<Option<ConfigReader<'c>>, Rejected> {
        let Some(value) = self.present(key) else {
            return Ok(None);
        };
        match value.as_object() {
            Some(map) => Ok(Some(Self::bare(map, format!("{}{key}.", self.prefix)))),
            None => Err(self.wrong(key, value, "an object")),
        }
    }

    /// The object under `key` that says what the model is; `None` where the key is absent. Without
    /// it no other key is looked at.
    pub(crate) fn model(&mut self, key: &str) -> Result<Option<ConfigReader<'c>>, Rejected> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        match value.as_object() {
            Some(map) => Ok(Some(Self::bare(map, format!("{}{key}.", self.prefix)))),
            None => {
                self.ignore_all();
                Err(self.wrong(key, value, "an object"))
            }
        }
    }

    /// Whether every value is an object.
    pub(crate) fn only_objects(&self) -> bool {
        self.values.values().all(Value::is_object)
    }

    /// The keys whose values are objects, read or not.
    pub(crate) fn keys_of_objects(&self) -> Vec<&'c str> {
        let objects = self.values.iter().filter(|(_, value)| value.is_object());
        objects.map(|(key, _)| key.as_str()).collect()
    }

    /// Takes over the defects of a nested reader, its unread keys included.
    pub(crate) fn absorb(&mut self, mut nested: ConfigReader<'c>) {
        let Findings {
            consulted,
            missing,
            contradicted,
            refused,
            compared: _,
        } = nested.findings();
        self.findings.consulted.extend(consulted);
        self.findings.missing |= missing;
        self.findings.contradicted |= contradicted;
        self.findings.refused |= refused;
        self.defects.extend(nested.finish());
    }

    /// Records that the value of `key` cannot be used beside other values, one of which may be the
    /// wrong one.
    pub(crate) fn reject(&mut self, key: &str, message: impl Into<String>) -> Rejected {
        self.findings.contradicted = true;
        self.record(key, message.into())
    }

    /// Records that the value of `key` cannot be used, and that no other value is to blame.
    pub(crate) fn refuse(&mut self, key: &str, message: impl Into<String>) -> Rejected {
        self.findings.refused = true;
        self.record(key, message.into())
    }

    fn record(&mut self, key: &str, message: String) -> Rejected {
        let key = format!("{}{key}", self.prefix);
        self.defects.push(Defect::ConfigValue { key, message });
        Rejected
    }

    /// Takes what reading was like.
    pub(crate) fn findings(&mut self) -> Findings {
        std::mem::take(&mut self.findings)
    }

    /// Every defect found, then every key that nothing has read, in the file's order.
    pub(crate) fn finish(mut self) -> Vec<Defect> {
        for key in self.values.keys() {
            if !self.read.contains(key.as_str()) {
                self.defects
                    .push(Defect::UnknownConfigKey(format!("{}{key}", self.prefix)));
            }
        }
        self.defects
    }

    fn value(&mut self, key: &str) -> Option<&'c Value> {
        let (key, value) = self.values.get_key_value(key)?;
        self.read.insert(key);
        Some(value)
    }

    /// Whether the key is there, whatever its value.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    /// The value of `key`; `None` where it is absent or null.
    pub(crate) fn present(&mut self, key: &str) -> Option<&'c Value> {
        self.value(key).filter(|value| !value.is_null())
    }

    /// Records that a required key is missing.
    pub(crate) fn missing(&mut self, key: &str) -> Rejected {
        let what = match self.has(key) {
            true => "null",
            false => "missing",
        };
        self.findings.missing = true;
        self.refuse(key, format!("is {what}, and this family needs it"))
    }

    fn wrong(&mut self, key: &str, value: &Value, needed: &str) -> Rejected {
        self.refuse(
            key,
            format!("is {}, but only {needed} can be used", shown(value)),
        )
    }
}

/// Each of at most `longest` items of a list.
fn items<'v, T>(
    value: &'v Value,
    longest: usize,
    read: impl Fn(&'v Value) -> Option<T>,
) -> Option<Vec<T>> {
    let items = value.as_array().filter(|items| items.len() <= longest)?;
    items.iter().map(read).collect()
}

/// A whole number from 0 to `max`.
fn whole(value: &Value, max: usize) -> Option<usize> {
    let n = value.as_u64().and_then(|n| usize::try_from(n).ok())?;
    (n <= max).then_some(n)
}

/// A value as JSON, cut short where it is long.
pub(crate) fn shown(value: &Value) -> String {
    const LONGEST: usize = 60;
    let text = match value {
        Value::Array(items) if items.len() > LONGEST => return "a long list".to_owned(),
        Value::Object(map) if map.len() > LONGEST => return "a large object".to_owned(),
        _ => value.to_string(),
    };
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests;
