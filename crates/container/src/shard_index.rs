//! `model.safetensors.index.json`: which shard holds which tensor.

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Component, Path};

/// What is wrong with a shard index.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IndexError {
    /// Not the JSON it should be.
    #[error("the index cannot be read: {0}")]
    Json(String),
    /// No tensors at all.
    #[error("the index names no tensors")]
    Empty,
    /// A tensor stands twice.
    #[error("tensor {0} stands twice in the index")]
    DuplicateTensor(String),
    /// A shard name that leads out of the directory, or is no file name.
    #[error("tensor {tensor}: shard name {shard:?} leads out of the checkpoint's directory")]
    Escape {
        /// The tensor.
        tensor: String,
        /// The bad name.
        shard: String,
    },
}

/// A shard index whose names are safe to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardIndex {
    /// Shard of every tensor.
    pub tensors: BTreeMap<String, String>,
}

impl ShardIndex {
    /// Reads the JSON of an index.
    ///
    /// # Errors
    /// Any [`IndexError`].
    pub fn parse(json: &[u8]) -> Result<ShardIndex, IndexError> {
        let raw: RawIndex =
            serde_json::from_slice(json).map_err(|e| IndexError::Json(e.to_string()))?;
        let mut tensors = BTreeMap::new();
        for (tensor, shard) in raw.weight_map.0 {
            if !stays_inside(&shard) {
                return Err(IndexError::Escape { tensor, shard });
            }
            if tensors.contains_key(&tensor) {
                return Err(IndexError::DuplicateTensor(tensor));
            }
            tensors.insert(tensor, shard);
        }
        if tensors.is_empty() {
            return Err(IndexError::Empty);
        }
        Ok(ShardIndex { tensors })
    }

    /// The shards, each once, in order of name.
    #[must_use]
    pub fn shards(&self) -> Vec<&str> {
        let mut shards: Vec<&str> = self.tensors.values().map(String::as_str).collect();
        shards.sort_unstable();
        shards.dedup();
        shards
    }
}

/// Whether a relative file name stays below the directory it is joined to.
fn stays_inside(name: &str) -> bool {
    !name.is_empty()
        && !name.contains(['\\', '\0', ':'])
        && Path::new(name)
            .components()
            .all(|c| matches!(c, Component::Normal(_)))
}

#[derive(serde::Deserialize)]
struct RawIndex {
    #[serde(default, rename = "metadata")]
    _metadata: Option<IgnoredAny>,
    weight_map: Pairs,
}

/// A JSON object of strings, duplicates kept.
struct Pairs(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Pairs;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object from tensor to shard")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(V)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_good_index_lists_its_shards_once() {
        let json =
            br#"{"metadata":{"total_size":3},"weight_map":{"b":"2.st","a":"1.st","c":"1.st"}}"#;
        let index = ShardIndex::parse(json).unwrap();
        assert_eq!(index.shards(), ["1.st", "2.st"]);
    }

    #[test]
    fn bad_indices_are_refused() {
        let of = |s: &str| ShardIndex::parse(s.as_bytes()).unwrap_err();
        assert_eq!(of(r#"{"weight_map":{}}"#), IndexError::Empty);
        assert!(matches!(of("{}"), IndexError::Json(_)));
        assert!(matches!(
            of(r#"{"weight_map":{"a":1}}"#),
            IndexError::Json(_)
        ));
        assert!(matches!(
            of(r#"{"weight_map":{},"weight_map":{}}"#),
            IndexError::Json(_)
        ));
        let twice = r#"{"weight_map":{"a":"x","a":"x"}}"#;
        assert_eq!(of(twice), IndexError::DuplicateTensor("a".into()));
        for name in [
            "../x",
            "/x",
            "a/../../x",
            "",
            ".",
            "..",
            "a\\\\b",
            "C:x",
            "./../x",
        ] {
            let error = of(&format!(r#"{{"weight_map":{{"a":"{name}"}}}}"#));
            assert!(
                matches!(error, IndexError::Escape { .. }),
                "{name}: {error}"
            );
        }
    }
}
