//! The payload of a snapshot: a run of bytes in chunks, each followed by its digest.
//!
//! Bytes go straight between the state and the stream, in pieces small enough to stay in cache
//! between digest and copy; nothing is buffered.

use super::SnapshotError;
use std::io::{Read, Write};
use twox_hash::XxHash3_128;

/// Bytes of payload before each digest; the last chunk may be shorter.
pub(super) const CHUNK: usize = 1 << 20;

/// Bytes handed to the stream at once.
const PIECE: usize = 64 << 10;

/// Bytes of a digest.
pub(super) const DIGEST: usize = 16;

/// XXH3-128 of `bytes`, little-endian. It finds damage; it is not a signature.
pub(super) fn digest(bytes: &[u8]) -> [u8; DIGEST] {
    XxHash3_128::oneshot(bytes).to_le_bytes()
}

/// Digests of the chunks as they pass, and of all of them.
struct Running {
    chunk: XxHash3_128,
    all: XxHash3_128,
    /// Chunks finished.
    index: u64,
    /// Bytes of the open chunk.
    open: usize,
}

impl Running {
    fn new(header: &[u8; DIGEST]) -> Running {
        let mut all = XxHash3_128::default();
        all.write(header);
        Running {
            chunk: XxHash3_128::with_seed(0),
            all,
            index: 0,
            open: 0,
        }
    }

    /// Bytes that may still go into the open chunk, at most `length` and a piece.
    fn room(&self, length: usize) -> usize {
        length.min(PIECE).min(CHUNK - self.open)
    }

    fn add(&mut self, bytes: &[u8]) {
        self.chunk.write(bytes);
        self.open += bytes.len();
    }

    /// Closes the open chunk. Its place seeds its digest, so that no chunk can stand for another.
    fn close(&mut self) -> [u8; DIGEST] {
        let digest = self.chunk.finish_128().to_le_bytes();
        self.all.write(&digest);
        self.index += 1;
        self.open = 0;
        self.chunk = XxHash3_128::with_seed(self.index);
        digest
    }

    fn total(&self) -> [u8; DIGEST] {
        self.all.finish_128().to_le_bytes()
    }
}

/// Writes a payload.
pub(super) struct ChunkWriter<'a> {
    sink: &'a mut dyn Write,
    running: Running,
}

impl<'a> ChunkWriter<'a> {
    /// Follows a header with this digest.
    pub(super) fn new(sink: &'a mut dyn Write, header: &[u8; DIGEST]) -> ChunkWriter<'a> {
        ChunkWriter {
            sink,
            running: Running::new(header),
        }
    }

    pub(super) fn write(&mut self, mut bytes: &[u8]) -> Result<(), SnapshotError> {
        while !bytes.is_empty() {
            let (piece, rest) = bytes.split_at(self.running.room(bytes.len()));
            self.running.add(piece);
            self.sink.write_all(piece).map_err(SnapshotError::Write)?;
            if self.running.open == CHUNK {
                self.close()?;
            }
            bytes = rest;
        }
        Ok(())
    }

    fn close(&mut self) -> Result<(), SnapshotError> {
        let digest = self.running.close();
        self.sink.write_all(&digest).map_err(SnapshotError::Write)
    }

    /// Closes the last chunk and writes the digest of all.
    pub(super) fn finish(mut self) -> Result<(), SnapshotError> {
        if self.running.open > 0 {
            self.close()?;
        }
        let total = self.running.total();
        self.sink.write_all(&total).map_err(SnapshotError::Write)
    }
}

/// Reads a payload, and not a byte beyond it.
pub(super) struct ChunkReader<'a> {
    source: &'a mut dyn Read,
    running: Running,
}

impl<'a> ChunkReader<'a> {
    /// Follows a header with this digest.
    pub(super) fn new(source: &'a mut dyn Read, header: &[u8; DIGEST]) -> ChunkReader<'a> {
        ChunkReader {
            source,
            running: Running::new(header),
        }
    }

    /// Fills `bytes`. They are only to be believed once their chunk is closed: after
    /// [`finish`](Self::finish).
    pub(super) fn read(&mut self, mut bytes: &mut [u8]) -> Result<(), SnapshotError> {
        while !bytes.is_empty() {
            let room = self.running.room(bytes.len());
            let (piece, rest) = std::mem::take(&mut bytes).split_at_mut(room);
            read_exact(self.source, piece)?;
            self.running.add(piece);
            if self.running.open == CHUNK {
                self.close()?;
            }
            bytes = rest;
        }
        Ok(())
    }

    fn close(&mut self) -> Result<(), SnapshotError> {
        let index = self.running.index;
        let digest = self.running.close();
        self.compare(digest, SnapshotError::Chunk { index })
    }

    /// Checks the last chunk and the digest of all.
    pub(super) fn finish(mut self) -> Result<(), SnapshotError> {
        if self.running.open > 0 {
            self.close()?;
        }
        let total = self.running.total();
        self.compare(total, SnapshotError::Total)
    }

    fn compare(
        &mut self,
        expected: [u8; DIGEST],
        error: SnapshotError,
    ) -> Result<(), SnapshotError> {
        let mut found = [0; DIGEST];
        read_exact(self.source, &mut found)?;
        if found == expected {
            Ok(())
        } else {
            Err(error)
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn written(payload: &[u8], pieces: usize) -> Vec<u8> {
        let mut stream = Vec::new();
        let mut writer = ChunkWriter::new(&mut stream, &[7; DIGEST]);
        for piece in payload.chunks(pieces) {
            writer.write(piece).unwrap();
        }
        writer.finish().unwrap();
        stream
    }

    fn read(stream: &[u8], length: usize, pieces: usize) -> Result<Vec<u8>, SnapshotError> {
        let mut source = stream;
        let mut reader = ChunkReader::new(&mut source, &[7; DIGEST]);
        let mut payload = vec![0; length];
        for piece in payload.chunks_mut(pieces) {
            reader.read(piece)?;
        }
        reader.finish()?;
        assert!(source.is_empty(), "bytes left over");
        Ok(payload)
    }

    #[test]
    fn pieces_do_not_show_in_the_stream() {
        for length in [0, 1, PIECE, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 12345] {
            let payload: Vec<u8> = (0..length).map(|i| (i * i / 7) as u8).collect();
            let stream = written(&payload, 1 << 30);
            assert_eq!(stream, written(&payload, 70_001), "{length}");
            assert_eq!(read(&stream, length, 99_991).unwrap(), payload, "{length}");
        }
    }

    #[test]
    fn any_changed_or_missing_byte_is_found() {
        let payload = [5u8; 300];
        let stream = written(&payload, 100);
        for at in 0..stream.len() {
            let mut damaged = stream.clone();
            damaged[at] ^= 1;
            assert!(read(&damaged, 300, 64).is_err(), "byte {at}");
            assert!(
                matches!(read(&stream[..at], 300, 64), Err(SnapshotError::Truncated)),
                "cut at {at}"
            );
        }
    }

    #[test]
    fn chunks_cannot_change_places() {
        let mut payload = vec![1u8; 2 * CHUNK];
        payload[CHUNK..].fill(2);
        let mut stream = written(&payload, CHUNK);
        let (first, second) = stream.split_at_mut(CHUNK + DIGEST);
        first.swap_with_slice(&mut second[..CHUNK + DIGEST]);
        let error = read(&stream, 2 * CHUNK, CHUNK).unwrap_err();
        assert!(
            matches!(error, SnapshotError::Chunk { index: 0 }),
            "{error}"
        );
    }
}
