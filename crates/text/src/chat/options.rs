//! What a prompt is asked for beside the conversation, for the formats in code.

use serde_json::{Map, Value};

use crate::{ChatOptions, Error, json};

/// Variables by the names that templates use for them.
pub(super) struct Wishes<'a>(&'a Map<String, Value>);

impl<'a> Wishes<'a> {
    /// Refuses variables that are not among `known`.
    pub(super) fn new(options: &'a ChatOptions, known: &[&str]) -> Result<Self, Error> {
        let mut given = options.variables.keys();
        match given.find(|key| !known.contains(&key.as_str())) {
            None => Ok(Self(&options.variables)),
            Some(key) => {
                let cause = format!("no option of this chat format; it has {}", known.join(", "));
                Err(wrong(key, &cause))
            }
        }
    }

    /// The value of the first of `names` that is given and not null.
    pub(super) fn get(&self, names: &[&'static str]) -> Option<(&'static str, &'a Value)> {
        let given = |name: &&'static str| self.0.get(*name).map(|value| (*name, value));
        names.iter().filter_map(given).find(|(_, v)| !v.is_null())
    }

    /// A switch.
    pub(super) fn switch(&self, names: &[&'static str]) -> Result<Option<bool>, Error> {
        match self.get(names) {
            None => Ok(None),
            Some((_, Value::Bool(on))) => Ok(Some(*on)),
            Some((name, other)) => {
                let cause = format!("is {}, not true or false", json::kind(other));
                Err(wrong(name, &cause))
            }
        }
    }

    /// A word.
    pub(super) fn word(&self, names: &[&'static str]) -> Result<Option<&'a str>, Error> {
        match self.get(names) {
            None => Ok(None),
            Some((_, Value::String(word))) => Ok(Some(word)),
            Some((name, other)) => Err(wrong(
                name,
                &format!("is {}, not a word", json::kind(other)),
            )),
        }
    }
}

/// An option that a format does not have, or not with this value.
pub(super) fn wrong(name: &str, cause: &str) -> Error {
    Error::ChatOption {
        cause: format!("`{name}`: {cause}"),
    }
}
