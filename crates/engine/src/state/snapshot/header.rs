//! The head of a snapshot: whose it is, how far it goes and how long it is.

use super::chunks::{DIGEST, digest, read_exact};
use super::{Identity, SnapshotError};
use std::io::Read;
use std::ops::Range;

/// First bytes of every snapshot.
const MAGIC: [u8; 8] = *b"LMLASNAP";

/// Version of the format; another one is refused.
pub const SNAPSHOT_VERSION: u32 = 1;

/// Bytes before the texts and ids.
const FIXED: usize = 92;

/// Longest schema or numeric class, in bytes.
const MAX_TEXT: usize = 128;

/// Most token ids of history.
const MAX_RECENT: usize = 4096;

/// What stands at the head of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) model: [u8; 32],
    pub(super) layers: Range<u32>,
    /// Of the session that was written; another one may hold more.
    pub(super) context: u64,
    pub(super) position: u64,
    /// Bytes of state that follow, without digests.
    pub(super) payload: u64,
    pub(super) schema: String,
    pub(super) numeric_class: String,
    pub(super) recent: Vec<u32>,
}

impl Header {
    /// The bytes, which end in their own digest, and that digest.
    pub(super) fn encode(&self) -> (Vec<u8>, [u8; DIGEST]) {
        let texts = self.schema.len() + self.numeric_class.len();
        let length = FIXED + texts + 4 * self.recent.len() + DIGEST;
        let mut bytes = Vec::with_capacity(length);
        bytes.extend(MAGIC);
        bytes.extend(SNAPSHOT_VERSION.to_le_bytes());
        bytes.extend((length as u32).to_le_bytes());
        bytes.extend(self.model);
        bytes.extend(self.layers.start.to_le_bytes());
        bytes.extend(self.layers.end.to_le_bytes());
        bytes.extend(self.context.to_le_bytes());
        bytes.extend(self.position.to_le_bytes());
        bytes.extend(self.payload.to_le_bytes());
        bytes.extend((self.schema.len() as u32).to_le_bytes());
        bytes.extend((self.numeric_class.len() as u32).to_le_bytes());
        bytes.extend((self.recent.len() as u32).to_le_bytes());
        debug_assert_eq!(bytes.len(), FIXED);
        bytes.extend(self.schema.as_bytes());
        bytes.extend(self.numeric_class.as_bytes());
        bytes.extend(self.recent.iter().flat_map(|id| id.to_le_bytes()));
        let digest = digest(&bytes);
        bytes.extend(digest);
        (bytes, digest)
    }

    /// Reads a header and checks that it is whole. No length is believed beyond its bound.
    pub(super) fn read(source: &mut dyn Read) -> Result<(Header, [u8; DIGEST]), SnapshotError> {
        let mut bytes = vec![0; FIXED];
        read_exact(source, &mut bytes)?;
        let mut fields = Fields(&bytes);
        if fields.array::<8>() != MAGIC {
            return Err(SnapshotError::Magic);
        }
        let version = fields.u32();
        if version != SNAPSHOT_VERSION {
            return Err(SnapshotError::Version(version));
        }
        let length = fields.u32() as usize;
        let model = fields.array();
        let layers = fields.u32()..fields.u32();
        let (context, position, payload) = (fields.u64(), fields.u64(), fields.u64());
        let [schema, numeric_class, recent] = [(); 3].map(|()| fields.u32() as usize);
        if schema > MAX_TEXT || numeric_class > MAX_TEXT || recent > MAX_RECENT {
            return Err(SnapshotError::Header);
        }
        let expected = FIXED + schema + numeric_class + 4 * recent + DIGEST;
        if length != expected {
            return Err(SnapshotError::Header);
        }
        bytes.resize(length, 0);
        read_exact(source, &mut bytes[FIXED..])?;
        let (content, found) = bytes.split_at(length - DIGEST);
        let expected = digest(content);
        if found != expected {
            return Err(SnapshotError::Header);
        }
        let (texts, ids) = content[FIXED..].split_at(schema + numeric_class);
        let text = |bytes: &[u8]| {
            let text = std::str::from_utf8(bytes);
            text.map(str::to_owned).map_err(|_| SnapshotError::Header)
        };
        let mut ids = Fields(ids);
        let header = Header {
            model,
            layers,
            context,
            position,
            payload,
            schema: text(&texts[..schema])?,
            numeric_class: text(&texts[schema..])?,
            recent: (0..recent).map(|_| ids.u32()).collect(),
        };
        Ok((header, expected))
    }

    /// Whether this snapshot is of a session that `identity` describes.
    pub(super) fn check(&self, identity: &Identity) -> Result<(), SnapshotError> {
        let differs = |what, found: String, expected: String| SnapshotError::Other {
            what,
            found,
            expected,
        };
        if self.model != identity.model {
            let hex = |bytes: &[u8; 32]| {
                let digits = bytes[..8].iter().map(|b| format!("{b:02x}"));
                digits.collect::<String>()
            };
            return Err(differs("model", hex(&self.model), hex(&identity.model)));
        }
        let range = |r: &Range<u32>| format!("{}..{}", r.start, r.end);
        if self.layers != identity.layers {
            return Err(differs(
                "layer range",
                range(&self.layers),
                range(&identity.layers),
            ));
        }
        for (what, found, expected) in [
            ("state schema", &self.schema, &identity.schema),
            (
                "numeric class",
                &self.numeric_class,
                &identity.numeric_class,
            ),
        ] {
            if found != expected {
                return Err(differs(what, found.clone(), expected.clone()));
            }
        }
        Ok(())
    }
}

/// Little-endian fields, one after another. The caller has checked that there are enough bytes.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self.0.split_at(N);
        self.0 = rest;
        let mut bytes = [0; N];
        bytes.copy_from_slice(field);
        bytes
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }
}
