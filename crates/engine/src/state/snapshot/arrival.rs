//! What a snapshot brings: values read into their places, and checked on the way.

use super::SnapshotError;
use super::chunks::{Chunks, Digest, PIECE, Total, read_exact};
use lamella_kernels::any_non_finite;
use std::io::Read;
use zerocopy::IntoBytes;

/// A payload on its way in. Not a byte beyond it is read.
pub(super) struct Arrival<'s> {
    source: &'s mut dyn Read,
    chunks: Chunks,
    total: Total,
    /// The first item with something that is no number, in a chunk whose digest has not come yet.
    odd: Option<usize>,
}

impl<'s> Arrival<'s> {
    /// The payload behind a header with this digest.
    pub(super) fn new(source: &'s mut dyn Read, header: &Digest) -> Arrival<'s> {
        Arrival {
            source,
            chunks: Chunks::new(),
            total: Total::new(header),
            odd: None,
        }
    }

    /// Fills `values`, which are of item `item`, and checks each piece while it is in cache. They
    /// are not to be believed before [`finish`](Self::finish).
    pub(super) fn fill(&mut self, item: usize, values: &mut [f32]) -> Result<(), SnapshotError> {
        let mut rest = values;
        while !rest.is_empty() {
            // A chunk has whole values.
            let bytes = PIECE.min(self.chunks.room());
            let (piece, later) = rest.split_at_mut(rest.len().min(bytes / size_of::<f32>()));
            read_exact(self.source, piece.as_mut_bytes())?;
            if any_non_finite(piece) {
                self.odd.get_or_insert(item);
            }
            if let Some(found) = self.chunks.add(piece.as_bytes()) {
                self.compare(&found)?;
            }
            rest = later;
        }
        Ok(())
    }

    /// Reads and checks the end of the payload.
    pub(super) fn finish(mut self) -> Result<(), SnapshotError> {
        if let Some(found) = self.chunks.finish() {
            self.compare(&found)?;
        }
        match self.digest()? == self.total.finish() {
            true => Ok(()),
            false => Err(SnapshotError::Total),
        }
    }

    /// Compares the digest of the chunk just closed. What is no number counts where the chunk came
    /// as it was written.
    fn compare(&mut self, found: &Digest) -> Result<(), SnapshotError> {
        if self.digest()? != *found {
            let index = self.chunks.index - 1;
            return Err(SnapshotError::Chunk { index });
        }
        self.total.add(found);
        match self.odd {
            None => Ok(()),
            Some(item) => Err(SnapshotError::Meaning(format!(
                "item {item} of the state holds what is no number"
            ))),
        }
    }

    /// Reads a digest.
    fn digest(&mut self) -> Result<Digest, SnapshotError> {
        let mut digest = Digest::default();
        read_exact(self.source, &mut digest)?;
        Ok(digest)
    }
}

#[cfg(test)]
mod tests {
    use super::super::chunks::{CHUNK, DIGEST, write};
    use super::*;

    const HEADER: Digest = [7; DIGEST];

    fn numbers(count: usize) -> Vec<f32> {
        (0..count).map(|i| (i % 1013) as f32 - 500.0).collect()
    }

    fn written(payload: &[f32], piece: usize) -> Vec<u8> {
        let mut stream = Vec::new();
        let parts: Vec<&[u8]> = payload.chunks(piece).map(IntoBytes::as_bytes).collect();
        write(&mut stream, &HEADER, &parts).unwrap();
        stream
    }

    /// Reads `count` values, `piece` at a time.
    fn read(stream: &[u8], count: usize, piece: usize) -> Result<Vec<f32>, SnapshotError> {
        let mut source = stream;
        let mut values = vec![0.0; count];
        let mut arrival = Arrival::new(&mut source, &HEADER);
        for (item, values) in values.chunks_mut(piece).enumerate() {
            arrival.fill(item, values)?;
        }
        arrival.finish()?;
        assert!(source.is_empty(), "bytes left over");
        Ok(values)
    }

    #[test]
    fn pieces_do_not_show_in_the_stream() {
        const CHUNK_VALUES: usize = CHUNK / 4;
        for count in [
            0,
            1,
            PIECE / 4,
            CHUNK_VALUES - 1,
            CHUNK_VALUES,
            CHUNK_VALUES + 1,
            2 * CHUNK_VALUES + 12345,
        ] {
            let payload = numbers(count);
            let stream = written(&payload, 1 << 30);
            assert!(stream == written(&payload, 17_501), "{count}");
            for piece in [24_989, CHUNK_VALUES, CHUNK_VALUES + 3] {
                let back = read(&stream, count, piece).unwrap();
                assert!(back == payload, "{count} by {piece}");
            }
        }
    }

    #[test]
    fn any_changed_or_missing_byte_is_found() {
        let payload = numbers(75);
        let stream = written(&payload, 25);
        for at in 0..stream.len() {
            let mut damaged = stream.clone();
            damaged[at] ^= 1;
            assert!(read(&damaged, 75, 16).is_err(), "byte {at}");
            assert!(
                matches!(read(&stream[..at], 75, 16), Err(SnapshotError::Truncated)),
                "cut at {at}"
            );
        }
    }

    #[test]
    fn chunks_cannot_change_places() {
        let mut payload = vec![1.0; CHUNK / 2];
        payload[CHUNK / 4..].fill(2.0);
        let mut stream = written(&payload, CHUNK);
        let (first, second) = stream.split_at_mut(CHUNK + DIGEST);
        first.swap_with_slice(&mut second[..CHUNK + DIGEST]);
        let error = read(&stream, CHUNK / 2, 1000).unwrap_err();
        assert!(
            matches!(error, SnapshotError::Chunk { index: 0 }),
            "{error}"
        );
    }

    #[test]
    fn what_is_no_number_is_refused_under_a_right_digest() {
        let mut payload = numbers(100);
        payload[77] = f32::NAN;
        let mut stream = written(&payload, 100);
        let error = read(&stream, 100, 10).unwrap_err();
        assert!(matches!(error, SnapshotError::Meaning(_)), "{error}");
        assert!(error.to_string().contains("item 7 "), "{error}");
        // Under a wrong one it is damage.
        stream[0] ^= 1;
        let error = read(&stream, 100, 10).unwrap_err();
        assert!(
            matches!(error, SnapshotError::Chunk { index: 0 }),
            "{error}"
        );
    }

    #[test]
    fn a_sink_that_fails_ends_the_writing() {
        struct Full(usize);
        impl std::io::Write for Full {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0 = self
                    .0
                    .checked_sub(1)
                    .ok_or(std::io::ErrorKind::StorageFull)?;
                Ok(bytes.len())
            }

            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let payload = numbers(CHUNK);
        for writes in 0..60 {
            let result = write(&mut Full(writes), &HEADER, &[payload.as_bytes()]);
            assert!(matches!(result, Err(SnapshotError::Write(_))), "{writes}");
        }
    }
}
