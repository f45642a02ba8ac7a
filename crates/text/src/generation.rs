//! `generation_config.json`: how the checkpoint wants to be sampled and where it stops.

use serde_json::{Map, Value};

use crate::{Error, json};

/// Largest temperature and repetition penalty: far beyond any use, and within what sampling takes.
const MOST: f64 = 1e6;

/// Keys of `transformers` that change which tokens are chosen and are not implemented, each with
/// the number that changes nothing, where there is one. An empty list or object and `false` change
/// nothing either.
const NOT_IMPLEMENTED: [(&str, Option<f64>); 24] = [
    ("bad_words_ids", None),
    ("begin_suppress_tokens", None),
    ("constraints", None),
    ("dola_layers", None),
    ("encoder_no_repeat_ngram_size", Some(0.0)),
    ("encoder_repetition_penalty", Some(1.0)),
    ("exponential_decay_length_penalty", None),
    ("force_words_ids", None),
    ("forced_bos_token_id", None),
    ("forced_decoder_ids", None),
    ("forced_eos_token_id", None),
    ("guidance_scale", Some(1.0)),
    ("max_time", None),
    ("min_length", Some(0.0)),
    ("min_new_tokens", Some(0.0)),
    ("no_repeat_ngram_size", Some(0.0)),
    ("num_beam_groups", Some(1.0)),
    ("num_beams", Some(1.0)),
    ("penalty_alpha", Some(0.0)),
    ("sequence_bias", None),
    ("stop_strings", None),
    ("suppress_tokens", None),
    ("token_healing", None),
    ("watermarking_config", None),
];

/// As [`NOT_IMPLEMENTED`], for keys that count only where the checkpoint asks for sampling.
const NOT_IMPLEMENTED_SAMPLING: [(&str, Option<f64>); 4] = [
    ("epsilon_cutoff", Some(0.0)),
    ("eta_cutoff", Some(0.0)),
    ("top_h", None),
    ("typical_p", Some(1.0)),
];

/// A checkpoint's own generation settings. `None` means the file does not say.
///
/// A key listed here with a value of the wrong type or outside its range is an error, and so is
/// another one that would change the answer. Keys that change nothing, or that belong to other
/// programs, are passed over.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GenerationDefaults {
    /// Ids that end an answer.
    pub eos_token_ids: Vec<u32>,
    /// The id a text begins with.
    pub bos_token_id: Option<u32>,
    /// The id batches are padded with.
    pub pad_token_id: Option<u32>,
    /// Whether the checkpoint asks for sampling; `transformers` is greedy where it does not say.
    pub do_sample: Option<bool>,
    /// Softmax temperature, 0 to 1,000,000.
    pub temperature: Option<f32>,
    /// Nucleus size, above 0 and at most 1.
    pub top_p: Option<f32>,
    /// Number of most likely tokens kept; 0 keeps all.
    pub top_k: Option<u32>,
    /// Least probability kept, as a share of the highest, 0 to 1.
    pub min_p: Option<f32>,
    /// Divides (multiplies, if negative) the logits of tokens already there; 1/1,000,000 to
    /// 1,000,000.
    pub repetition_penalty: Option<f32>,
    /// Longest answer, in tokens, 1 or more.
    pub max_new_tokens: Option<u32>,
}

impl GenerationDefaults {
    /// Reads `generation_config.json`. `file` is the name errors carry.
    pub fn from_json(file: &str, text: &str) -> Result<Self, Error> {
        let fields = Fields {
            file,
            map: json::parse_object(file, text)?,
        };
        let do_sample = fields.boolean("do_sample")?;
        fields.refuse(&NOT_IMPLEMENTED)?;
        if do_sample == Some(true) {
            fields.refuse(&NOT_IMPLEMENTED_SAMPLING)?;
        }
        let most = |least: &str| format!("between {least} and 1000000");
        let penalty = |p: f64| (1.0 / MOST..=MOST).contains(&f64::from(p as f32));
        Ok(Self {
            eos_token_ids: fields.ids("eos_token_id")?,
            bos_token_id: fields.id("bos_token_id")?,
            pad_token_id: fields.id("pad_token_id")?,
            do_sample,
            temperature: fields.number("temperature", |t| (0.0..=MOST).contains(&t), &most("0"))?,
            top_p: fields.number("top_p", |p| p > 0.0 && p <= 1.0, "above 0 and at most 1")?,
            top_k: fields.count("top_k")?,
            min_p: fields.number("min_p", |p| (0.0..=1.0).contains(&p), "between 0 and 1")?,
            repetition_penalty: fields.number("repetition_penalty", penalty, &most("0.000001"))?,
            max_new_tokens: match fields.count("max_new_tokens")? {
                Some(0) => {
                    fields.wrong("max_new_tokens", &Value::from(0), "a count of 1 or more")?
                }
                count => count,
            },
        })
    }
}

/// Keys of one JSON object, read with their types. A key that is `null` is as good as absent.
pub(crate) struct Fields<'a> {
    pub(crate) file: &'a str,
    pub(crate) map: Map<String, Value>,
}

impl Fields<'_> {
    fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    fn wrong<T>(&self, key: &str, value: &Value, expected: &str) -> Result<T, Error> {
        let cause = match value {
            Value::Number(_) | Value::Bool(_) => format!("is {value}, not {expected}"),
            other => format!("is {}, not {expected}", json::kind(other)),
        };
        Err(Error::field(self.file, key, cause))
    }

    /// Refuses keys whose values are not neutral.
    fn refuse(&self, keys: &[(&str, Option<f64>)]) -> Result<(), Error> {
        for &(key, neutral) in keys {
            let changes_nothing = match self.get(key) {
                None | Some(Value::Bool(false)) => true,
                Some(Value::Array(list)) => list.is_empty(),
                Some(Value::Object(map)) => map.is_empty(),
                Some(Value::Number(number)) => neutral.is_some() && number.as_f64() == neutral,
                Some(Value::Bool(true) | Value::String(_) | Value::Null) => false,
            };
            if !changes_nothing {
                let cause = "is not implemented, and without it the answers are others than the \
                             checkpoint asks for; take the key out to have those";
                return Err(Error::field(self.file, key, cause));
            }
        }
        Ok(())
    }

    fn count(&self, key: &str) -> Result<Option<u32>, Error> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match value.as_u64().and_then(|count| u32::try_from(count).ok()) {
            Some(count) => Ok(Some(count)),
            None => self.wrong(key, value, "a count"),
        }
    }

    fn id(&self, key: &str) -> Result<Option<u32>, Error> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match token_id(value) {
            Some(id) => Ok(Some(id)),
            None => self.wrong(key, value, "a token id"),
        }
    }

    /// One id or a list of them.
    pub(crate) fn ids(&self, key: &str) -> Result<Vec<u32>, Error> {
        let Some(value) = self.get(key) else {
            return Ok(Vec::new());
        };
        let ids: Option<Vec<u32>> = match value {
            Value::Array(list) => list.iter().map(token_id).collect(),
            single => token_id(single).map(|id| vec![id]),
        };
        match ids {
            Some(ids) => Ok(ids),
            None => self.wrong(key, value, "a token id or a list of them"),
        }
    }

    fn boolean(&self, key: &str) -> Result<Option<bool>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(*value)),
            Some(other) => self.wrong(key, other, "true or false"),
        }
    }

    fn number(
        &self,
        key: &str,
        good: impl Fn(f64) -> bool,
        range: &str,
    ) -> Result<Option<f32>, Error> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match value.as_f64() {
            Some(number) if good(number) && (number as f32).is_finite() => Ok(Some(number as f32)),
            _ => self.wrong(key, value, &format!("a number {range}")),
        }
    }
}

/// A token id: a whole number that fits 32 bits.
pub(crate) fn token_id(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<GenerationDefaults, Error> {
        GenerationDefaults::from_json("generation_config.json", text)
    }

    #[test]
    fn all_forms_of_eos() {
        assert_eq!(read(r#"{"eos_token_id": 7}"#).unwrap().eos_token_ids, [7]);
        assert_eq!(
            read(r#"{"eos_token_id": [2, 0]}"#).unwrap().eos_token_ids,
            [2, 0]
        );
        for none in ["{}", r#"{"eos_token_id": null}"#, r#"{"eos_token_id": []}"#] {
            assert!(read(none).unwrap().eos_token_ids.is_empty());
        }
    }

    #[test]
    fn settings_are_read_and_foreign_keys_passed_over() {
        let text = r#"{"_from_model_config": true, "transformers_version": "4.46", "do_sample":
            true, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0, "max_new_tokens": 9,
            "repetition_penalty": 1.05, "bos_token_id": 1, "pad_token_id": null}"#;
        let expected = GenerationDefaults {
            bos_token_id: Some(1),
            do_sample: Some(true),
            temperature: Some(0.6),
            top_p: Some(0.95),
            top_k: Some(20),
            min_p: Some(0.0),
            repetition_penalty: Some(1.05),
            max_new_tokens: Some(9),
            ..GenerationDefaults::default()
        };
        assert_eq!(read(text), Ok(expected));
    }

    #[test]
    fn what_would_change_answers_and_is_not_implemented_is_refused() {
        let refused = |json: &str| match read(json) {
            Err(error) => error.to_string().contains("is not implemented"),
            Ok(_) => false,
        };
        for text in [
            r#"{"suppress_tokens": [1]}"#,
            r#"{"bad_words_ids": [[1, 2]]}"#,
            r#"{"no_repeat_ngram_size": 3}"#,
            r#"{"forced_eos_token_id": 0}"#,
            r#"{"num_beams": 4}"#,
            r#"{"guidance_scale": 1.5}"#,
            r#"{"token_healing": true}"#,
            r#"{"stop_strings": "x"}"#,
            r#"{"watermarking_config": {"bias": 2}}"#,
            r#"{"do_sample": true, "typical_p": 0.9}"#,
        ] {
            assert!(refused(text), "{text}");
        }
    }

    #[test]
    fn neutral_values_are_passed_over() {
        // All that `transformers` writes if asked to write its defaults too.
        let text = r#"{"max_length": 20, "min_length": 0, "min_new_tokens": null, "num_beams": 1,
            "early_stopping": false, "max_time": null, "num_beam_groups": 1, "typical_p": 1.0,
            "penalty_alpha": null, "use_cache": true, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0,
            "diversity_penalty": 0.0, "encoder_repetition_penalty": 1.0, "length_penalty": 1.0,
            "no_repeat_ngram_size": 0, "bad_words_ids": null, "force_words_ids": null,
            "renormalize_logits": false, "constraints": null, "forced_bos_token_id": null,
            "forced_eos_token_id": null, "remove_invalid_values": false, "sequence_bias": null,
            "exponential_decay_length_penalty": null, "suppress_tokens": [], "top_h": null,
            "begin_suppress_tokens": null, "guidance_scale": null, "token_healing": false,
            "num_return_sequences": 1, "encoder_no_repeat_ngram_size": 0, "dola_layers": null}"#;
        assert_eq!(read(text), Ok(GenerationDefaults::default()));
        let greedy = read(r#"{"do_sample": false, "typical_p": 0.9}"#);
        assert_eq!(greedy.unwrap().do_sample, Some(false));
    }

    fn refused_as(cases: &[(&str, &str)]) {
        for (text, expected) in cases {
            let error = read(text).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("generation_config.json: {expected}")),
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn wrong_types_and_ranges_name_file_and_key() {
        let cases = [
            (
                r#"{"eos_token_id": "2"}"#,
                "`eos_token_id`: is a string, not a token id or a list",
            ),
            (
                r#"{"eos_token_id": [2, -1]}"#,
                "`eos_token_id`: is an array, not a token id or",
            ),
            (
                r#"{"eos_token_id": 4294967296}"#,
                "`eos_token_id`: is 4294967296, not a token id",
            ),
            (
                r#"{"bos_token_id": 1.5}"#,
                "`bos_token_id`: is 1.5, not a token id",
            ),
            (
                r#"{"do_sample": 1}"#,
                "`do_sample`: is 1, not true or false",
            ),
            (
                r#"{"temperature": -0.1}"#,
                "`temperature`: is -0.1, not a number between 0 and 1000000",
            ),
            (
                r#"{"temperature": 1e30, "do_sample": true}"#,
                "`temperature`: is 1e+30, not a number between 0 and 1000000",
            ),
            (
                r#"{"temperature": "hot"}"#,
                "`temperature`: is a string, not a number",
            ),
            (r#"{"top_p": 0}"#, "`top_p`: is 0, not a number above 0"),
            (
                r#"{"top_p": 1.01}"#,
                "`top_p`: is 1.01, not a number above 0",
            ),
            (r#"{"top_k": -1}"#, "`top_k`: is -1, not a count"),
            (r#"{"min_p": 2}"#, "`min_p`: is 2, not a number between"),
            (
                r#"{"repetition_penalty": 0}"#,
                "`repetition_penalty`: is 0, not a number between",
            ),
            (
                r#"{"repetition_penalty": 1e20}"#,
                "`repetition_penalty`: is 1e+20, not a number between",
            ),
            (
                r#"{"repetition_penalty": 1e-300}"#,
                "`repetition_penalty`: is 1e-300, not a number between 0.000001 and",
            ),
            (
                r#"{"max_new_tokens": 0}"#,
                "`max_new_tokens`: is 0, not a count of 1 or more",
            ),
            (
                r#"{"max_new_tokens": true}"#,
                "`max_new_tokens`: is true, not a count",
            ),
        ];
        refused_as(&cases);
        assert!(matches!(read("[]"), Err(Error::File { .. })));
        assert!(matches!(read("{"), Err(Error::Json { .. })));
    }
}
