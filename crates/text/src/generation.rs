//! `generation_config.json`: how the checkpoint wants to be sampled and where it stops.

use serde_json::{Map, Value};

use crate::{Error, json};

/// A checkpoint's own generation settings. `None` means the file does not say.
///
/// Keys that are not listed here belong to other programs and are passed over; a listed key with
/// a value of the wrong type or outside its range is an error.
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
    /// Softmax temperature, 0 or more.
    pub temperature: Option<f32>,
    /// Nucleus size, above 0 and at most 1.
    pub top_p: Option<f32>,
    /// Number of most likely tokens kept; 0 keeps all.
    pub top_k: Option<u32>,
    /// Least probability kept, as a share of the highest, 0 to 1.
    pub min_p: Option<f32>,
    /// Divides (multiplies, if negative) the logits of tokens already there; above 0.
    pub repetition_penalty: Option<f32>,
    /// Longest answer, in tokens.
    pub max_new_tokens: Option<u32>,
}

impl GenerationDefaults {
    /// Reads `generation_config.json`. `file` is the name errors carry.
    pub fn from_json(file: &str, text: &str) -> Result<Self, Error> {
        let fields = Fields {
            file,
            map: json::parse_object(file, text)?,
        };
        Ok(Self {
            eos_token_ids: fields.ids("eos_token_id")?,
            bos_token_id: fields.id("bos_token_id")?,
            pad_token_id: fields.id("pad_token_id")?,
            do_sample: fields.boolean("do_sample")?,
            temperature: fields.number("temperature", |t| t >= 0.0, "0 or more")?,
            top_p: fields.number("top_p", |p| p > 0.0 && p <= 1.0, "above 0 and at most 1")?,
            top_k: fields.count("top_k")?,
            min_p: fields.number("min_p", |p| (0.0..=1.0).contains(&p), "between 0 and 1")?,
            repetition_penalty: fields.number("repetition_penalty", |p| p > 0.0, "above 0")?,
            max_new_tokens: fields.count("max_new_tokens")?,
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
                "`temperature`: is -0.1, not a number 0 or more",
            ),
            (
                r#"{"temperature": 1e300}"#,
                "`temperature`: is 1e+300, not a number 0 or more",
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
                "`repetition_penalty`: is 0, not a number above",
            ),
            (
                r#"{"max_new_tokens": true}"#,
                "`max_new_tokens`: is true, not a count",
            ),
        ];
        for (text, expected) in cases {
            let error = read(text).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("generation_config.json: {expected}")),
                "{text}: {error}"
            );
        }
        assert!(matches!(read("[]"), Err(Error::File { .. })));
        assert!(matches!(read("{"), Err(Error::Json { .. })));
    }
}
