//! The payload of a snapshot: a run of bytes in chunks, each followed by its digest.
//!
//! Bytes go straight from the state into the stream; nothing is buffered. Each piece is digested
//! while it is in cache, which takes a fifth of the time of its copy; on another thread it would
//! take more, since there the piece has to come from memory once more. The stream is touched by the
//! thread that called, and by no other: it may be a host's callback.

use super::SnapshotError;
use std::io::{Read, Write};
use twox_hash::XxHash3_128;

/// Bytes of payload before each digest; the last chunk may be shorter.
pub(super) const CHUNK: usize = 1 << 20;

/// Bytes handed to the stream at once.
pub(super) const PIECE: usize = 64 << 10;

/// Bytes of a digest.
pub(super) const DIGEST: usize = 16;

/// XXH3-128, little-endian. It finds damage; it is not a signature.
pub(super) type Digest = [u8; DIGEST];

/// The digest of `bytes`.
pub(super) fn digest(bytes: &[u8]) -> Digest {
    XxHash3_128::oneshot(bytes).to_le_bytes()
}

/// Digests of chunks as they pass.
pub(super) struct Chunks {
    hash: XxHash3_128,
    /// Chunks finished. A chunk's place seeds its digest, so that none can stand for another.
    pub(super) index: u64,
    /// Bytes of the open chunk.
    open: usize,
}

impl Chunks {
    pub(super) fn new() -> Chunks {
        Chunks {
            hash: XxHash3_128::with_seed(0),
            index: 0,
            open: 0,
        }
    }

    /// Bytes that still go into the open chunk.
    pub(super) fn room(&self) -> usize {
        CHUNK - self.open
    }

    /// Adds bytes for which there is [`room`](Self::room); the digest of the chunk they fill.
    pub(super) fn add(&mut self, bytes: &[u8]) -> Option<Digest> {
        self.hash.write(bytes);
        self.open += bytes.len();
        (self.open == CHUNK).then(|| self.close())
    }

    /// The digest of the last chunk, if it is not full.
    pub(super) fn finish(&mut self) -> Option<Digest> {
        (self.open > 0).then(|| self.close())
    }

    fn close(&mut self) -> Digest {
        let digest = self.hash.finish_128().to_le_bytes();
        self.index += 1;
        self.open = 0;
        self.hash = XxHash3_128::with_seed(self.index);
        digest
    }
}

/// The digest of a header's and all chunks' digests.
pub(super) struct Total(XxHash3_128);

impl Total {
    /// Begins with the digest of the header.
    pub(super) fn new(header: &Digest) -> Total {
        let mut hash = XxHash3_128::default();
        hash.write(header);
        Total(hash)
    }

    pub(super) fn add(&mut self, digest: &Digest) {
        self.0.write(digest);
    }

    pub(super) fn finish(&self) -> Digest {
        self.0.finish_128().to_le_bytes()
    }
}

/// The pieces of a payload: none is of two chunks.
fn pieces<'a>(parts: &'a [&'a [u8]]) -> impl Iterator<Item = &'a [u8]> {
    let (mut parts, mut rest, mut room) = (parts.iter(), &[][..], CHUNK);
    std::iter::from_fn(move || {
        while rest.is_empty() {
            rest = parts.next()?;
        }
        let (piece, later) = rest.split_at(rest.len().min(PIECE).min(room));
        rest = later;
        room = match room - piece.len() {
            0 => CHUNK,
            room => room,
        };
        Some(piece)
    })
}

/// Writes the payload that `parts` make, behind a header with this digest.
pub(super) fn write(
    sink: &mut dyn Write,
    header: &Digest,
    parts: &[&[u8]],
) -> Result<(), SnapshotError> {
    let (mut chunks, mut total) = (Chunks::new(), Total::new(header));
    let mut put = |bytes: &[u8]| sink.write_all(bytes).map_err(SnapshotError::Write);
    for piece in pieces(parts) {
        // First, so that the copy finds the piece in cache.
        let full = chunks.add(piece);
        put(piece)?;
        if let Some(digest) = full {
            total.add(&digest);
            put(&digest)?;
        }
    }
    if let Some(digest) = chunks.finish() {
        total.add(&digest);
        put(&digest)?;
    }
    put(&total.finish())
}

/// Fills `bytes` from the stream.
pub(super) fn read_exact(source: &mut dyn Read, bytes: &mut [u8]) -> Result<(), SnapshotError> {
    source
        .read_exact(bytes)
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => SnapshotError::Truncated,
            _ => SnapshotError::Read(error),
        })
}
