//! `lamella.json`: what makes a directory a container, and its identity.
//!
//! The manifest names every file that is not a pack, with length and digest; the operand table
//! among them names the packs and holds the digest of every stored operand. The identity is the
//! digest of the manifest's content, and so of everything.

use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// Name of the manifest in its directory.
pub const MANIFEST_FILE: &str = "lamella.json";

/// Name of the program in its directory.
pub const PROGRAM_FILE: &str = "program.json";

/// Name of the operand table in its directory.
pub const TABLE_FILE: &str = "operands.bin";

/// Value of the `magic` field.
pub const MAGIC: &str = "lamella container";

/// Newest format version this reader knows.
pub const FORMAT_VERSION: u32 = 1;

/// Features this reader knows. A container that needs another one is refused by name.
pub const FEATURES: [&str; 0] = [];

/// Longest manifest that is read, in bytes.
pub const MAX_MANIFEST_BYTES: u64 = 1 << 20;

/// Longest program or operand table that is read, in bytes.
pub const MAX_TABLE_BYTES: u64 = 512 << 20;

/// What is wrong with a manifest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ManifestError {
    /// Not the JSON it should be.
    #[error("the manifest cannot be read: {0}")]
    Json(String),
    /// Not ours.
    #[error("not a Lamella container (magic {0:?})")]
    Magic(String),
    /// Made by a newer version.
    #[error(
        "container version {0} is newer than {FORMAT_VERSION}, the newest this Lamella reads; \
         update Lamella"
    )]
    Version(u32),
    /// Needs something this version lacks.
    #[error("the container needs feature {0}, which this Lamella does not have; update Lamella")]
    Feature(String),
    /// Never finished.
    #[error("the container is marked incomplete")]
    Incomplete,
    /// A name that could lead out of the directory or shadow a file of the format.
    #[error("{0:?} is not a usable file name")]
    FileName(String),
    /// A file listed twice.
    #[error("file {0} stands twice")]
    DuplicateFile(String),
    /// A digest that is no digest.
    #[error("{0:?} is not a digest of 64 hexadecimal digits")]
    Digest(String),
    /// The manifest was changed.
    #[error("damaged: its identity does not fit its content")]
    Identity,
}

/// A file with its digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// Name in the container.
    pub file: String,
    /// Bytes.
    pub length: u64,
    /// BLAKE3, 64 hexadecimal digits.
    pub digest: String,
}

impl FileEntry {
    /// The entry of a file with this content.
    #[must_use]
    pub fn of(file: &str, content: &[u8]) -> FileEntry {
        FileEntry {
            file: file.to_owned(),
            length: content.len() as u64,
            digest: blake3::hash(content).to_hex().to_string(),
        }
    }

    /// Whether `content` is what was recorded.
    #[must_use]
    pub fn fits(&self, content: &[u8]) -> bool {
        content.len() as u64 == self.length
            && blake3::hash(content).to_hex().as_str() == self.digest
    }
}

/// The content of `lamella.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// [`MAGIC`].
    pub magic: String,
    /// [`FORMAT_VERSION`] of the writer.
    pub version: u32,
    /// Features a reader must know.
    pub features: Vec<String>,
    /// Root of the digest tree, 64 hexadecimal digits.
    pub identity: String,
    /// True: the writer got to the end.
    pub complete: bool,
    /// The program.
    pub program: FileEntry,
    /// The operand table.
    pub operands: FileEntry,
    /// Texts as they came with the checkpoint, in order of name.
    pub texts: Vec<FileEntry>,
}

/// The fields that are read before the rest is trusted to be of a known version.
#[derive(Deserialize)]
struct Preamble {
    magic: String,
    version: u32,
    #[serde(default)]
    features: Vec<String>,
}

impl Manifest {
    /// The manifest over these files.
    #[must_use]
    pub fn new(program: FileEntry, operands: FileEntry, mut texts: Vec<FileEntry>) -> Manifest {
        texts.sort_by(|a, b| a.file.cmp(&b.file));
        let mut manifest = Manifest {
            magic: MAGIC.to_owned(),
            version: FORMAT_VERSION,
            features: Vec::new(),
            identity: String::new(),
            complete: true,
            program,
            operands,
            texts,
        };
        manifest.identity = manifest.root();
        manifest
    }

    /// Reads and checks a manifest: version and features first, so that a newer container is
    /// refused by name and not by its first unknown field.
    ///
    /// # Errors
    /// Any [`ManifestError`].
    pub fn parse(json: &[u8]) -> Result<Manifest, ManifestError> {
        let wrap = |e: serde_json::Error| ManifestError::Json(e.to_string());
        let preamble: Preamble = serde_json::from_slice(json).map_err(wrap)?;
        if preamble.magic != MAGIC {
            return Err(ManifestError::Magic(preamble.magic));
        }
        if preamble.version > FORMAT_VERSION {
            return Err(ManifestError::Version(preamble.version));
        }
        if let Some(unknown) = preamble
            .features
            .iter()
            .find(|f| !FEATURES.contains(&f.as_str()))
        {
            return Err(ManifestError::Feature(unknown.clone()));
        }
        let manifest: Manifest = serde_json::from_slice(json).map_err(wrap)?;
        manifest.check()?;
        Ok(manifest)
    }

    /// The text of the file, the same for the same content.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Strings, integers and lists of them cannot fail to serialise.
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }

    fn check(&self) -> Result<(), ManifestError> {
        if !self.complete {
            return Err(ManifestError::Incomplete);
        }
        if self.program.file != PROGRAM_FILE {
            return Err(ManifestError::FileName(self.program.file.clone()));
        }
        if self.operands.file != TABLE_FILE {
            return Err(ManifestError::FileName(self.operands.file.clone()));
        }
        let mut seen = HashSet::from([MANIFEST_FILE, PROGRAM_FILE, TABLE_FILE]);
        for entry in &self.texts {
            if !is_plain_name(&entry.file) {
                return Err(ManifestError::FileName(entry.file.clone()));
            }
            if !seen.insert(&entry.file) {
                return Err(ManifestError::DuplicateFile(entry.file.clone()));
            }
        }
        for entry in self.texts.iter().chain([&self.program, &self.operands]) {
            if entry.digest.len() != 64 || !entry.digest.bytes().all(is_lower_hex) {
                return Err(ManifestError::Digest(entry.digest.clone()));
            }
        }
        if self.identity == self.root() {
            Ok(())
        } else {
            Err(ManifestError::Identity)
        }
    }

    /// Root of the digest tree.
    fn root(&self) -> String {
        let mut hasher = blake3::Hasher::new_derive_key("lamella container identity v1");
        hasher.update(&self.version.to_le_bytes());
        hasher.update(&(self.features.len() as u64).to_le_bytes());
        for feature in &self.features {
            hash_string(&mut hasher, feature);
        }
        for entry in [&self.program, &self.operands]
            .into_iter()
            .chain(&self.texts)
        {
            hash_string(&mut hasher, &entry.file);
            hasher.update(&entry.length.to_le_bytes());
            hash_string(&mut hasher, &entry.digest);
        }
        hasher.finalize().to_hex().to_string()
    }
}

fn hash_string(hasher: &mut blake3::Hasher, text: &str) {
    hasher.update(&(text.len() as u64).to_le_bytes());
    hasher.update(text.as_bytes());
}

fn is_lower_hex(byte: u8) -> bool {
    byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)
}

/// Whether a name is a plain visible file name, the same on every file system.
pub(crate) fn is_plain_name(name: &str) -> bool {
    (1..=255).contains(&name.len())
        && !name.starts_with('.')
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        let texts = vec![
            FileEntry::of("tokenizer.json", b"t"),
            FileEntry::of("config.json", b"c"),
        ];
        Manifest::new(
            FileEntry::of(PROGRAM_FILE, b"p"),
            FileEntry::of(TABLE_FILE, b"o"),
            texts,
        )
    }

    #[test]
    fn a_manifest_survives_its_text() {
        let json = manifest().to_json();
        assert_eq!(Manifest::parse(json.as_bytes()).unwrap(), manifest());
        assert_eq!(manifest().texts[0].file, "config.json");
    }

    #[test]
    fn every_flipped_byte_is_an_error_or_no_change() {
        let json = manifest().to_json().into_bytes();
        for at in 0..json.len() {
            for bit in 0..8 {
                let mut bytes = json.clone();
                bytes[at] ^= 1 << bit;
                if let Ok(read) = Manifest::parse(&bytes) {
                    assert_eq!(read, manifest(), "byte {at} bit {bit}");
                }
            }
        }
    }

    #[test]
    fn newer_containers_are_refused_by_name() {
        let json = manifest().to_json();
        let newer = json.replace("\"version\": 1", "\"version\": 2, \"shards\": []");
        assert_eq!(
            Manifest::parse(newer.as_bytes()),
            Err(ManifestError::Version(2))
        );
        let feature = json.replace("\"features\": []", "\"features\": [\"sparse\"]");
        let expected = Err(ManifestError::Feature("sparse".into()));
        assert_eq!(Manifest::parse(feature.as_bytes()), expected);
        let incomplete = json.replace("\"complete\": true", "\"complete\": false");
        assert_eq!(
            Manifest::parse(incomplete.as_bytes()),
            Err(ManifestError::Incomplete)
        );
    }
}
