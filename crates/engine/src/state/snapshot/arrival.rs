//! What a snapshot brings: values read into their places, and checked behind the reading.

use super::SnapshotError;
use super::chunks::{CHUNK, Chunks, Digest, PIECE, Total, read_exact};
use crate::error::Error;
use crate::memory::room;
use crate::state::Page;
use lamella_kernels::any_non_finite;
use std::collections::VecDeque;
use std::io::Read;
use std::panic::resume_unwind;
use std::sync::mpsc::sync_channel;
use zerocopy::IntoBytes;

/// Arrivals that may wait for a second thread; they should still be in cache.
const WAITING: usize = 4;

/// Values that have been read. They are not to be believed yet.
pub(super) enum Values<'a> {
    /// A page of rows.
    Page(Page),
    /// The place of values that a step overwrites.
    Place(&'a mut [f32]),
}

/// What comes in a stream, in its order but for the digests: a chunk's is there before the values
/// that end it.
pub(super) enum Arrival<'a> {
    /// Values of item `item`.
    Values { item: usize, values: Values<'a> },
    /// The digest behind a full chunk.
    Digest(Digest),
    /// The digests at the end: that of a last chunk, if it is not full, and of all.
    End { last: Option<Digest>, all: Digest },
}

/// Takes what arrives; an error ends the reading.
pub(super) type Take<'t, 'a> = dyn FnMut(Arrival<'a>) -> Result<(), SnapshotError> + 't;

/// Reads a payload, and not a byte beyond it.
pub(super) struct Reader<'s> {
    source: &'s mut dyn Read,
    /// Bytes of the open chunk.
    open: usize,
}

impl<'s> Reader<'s> {
    pub(super) fn new(source: &'s mut dyn Read) -> Reader<'s> {
        Reader { source, open: 0 }
    }

    /// Fills `values`, and hands on the digests that lie among them.
    pub(super) fn fill(
        &mut self,
        values: &mut [f32],
        take: &mut Take<'_, '_>,
    ) -> Result<(), SnapshotError> {
        let mut bytes = values.as_mut_bytes();
        while !bytes.is_empty() {
            let room = bytes.len().min(PIECE).min(CHUNK - self.open);
            let (piece, rest) = bytes.split_at_mut(room);
            read_exact(self.source, piece)?;
            self.open += room;
            if self.open == CHUNK {
                self.open = 0;
                take(Arrival::Digest(self.digest()?))?;
            }
            bytes = rest;
        }
        Ok(())
    }

    /// Reads the end of the payload.
    pub(super) fn finish(mut self, take: &mut Take<'_, '_>) -> Result<(), SnapshotError> {
        let last = match self.open {
            0 => None,
            _ => Some(self.digest()?),
        };
        let all = self.digest()?;
        take(Arrival::End { last, all })
    }

    fn digest(&mut self) -> Result<Digest, SnapshotError> {
        let mut digest = Digest::default();
        read_exact(self.source, &mut digest)?;
        Ok(digest)
    }
}

/// Compares what arrives with its digests.
struct Checker {
    chunks: Chunks,
    total: Total,
    /// Digests of chunks that are not full yet.
    expected: VecDeque<Digest>,
    pages: Vec<Page>,
}

impl Checker {
    /// With room for `pages` pages.
    fn new(header: &Digest, pages: usize) -> Result<Checker, Error> {
        let mut list = Vec::new();
        room(&mut list, pages)?;
        Ok(Checker {
            chunks: Chunks::new(),
            total: Total::new(header),
            expected: VecDeque::new(),
            pages: list,
        })
    }

    fn take(&mut self, arrival: Arrival<'_>) -> Result<(), SnapshotError> {
        match arrival {
            Arrival::Digest(digest) => self.expected.push_back(digest),
            Arrival::Values { item, values } => {
                let list = match &values {
                    Values::Page(page) => page,
                    Values::Place(place) => &**place,
                };
                self.values(item, list)?;
                if let Values::Page(page) = values {
                    self.pages.push(page);
                }
            }
            Arrival::End { last, all } => {
                self.expected.extend(last);
                if let Some(found) = self.chunks.finish() {
                    self.compare(&found)?;
                }
                if self.total.finish() != all {
                    return Err(SnapshotError::Total);
                }
            }
        }
        Ok(())
    }

    fn values(&mut self, item: usize, values: &[f32]) -> Result<(), SnapshotError> {
        let mut bytes = values.as_bytes();
        while !bytes.is_empty() {
            let (piece, rest) = bytes.split_at(bytes.len().min(self.chunks.room()));
            if let Some(found) = self.chunks.add(piece) {
                self.compare(&found)?;
            }
            bytes = rest;
        }
        match any_non_finite(values) {
            false => Ok(()),
            true => Err(SnapshotError::Meaning(format!(
                "item {item} of the state holds what is no number"
            ))),
        }
    }

    /// Compares the digest of the chunk just closed.
    fn compare(&mut self, found: &Digest) -> Result<(), SnapshotError> {
        self.total.add(found);
        match self.expected.pop_front() {
            Some(expected) if expected == *found => Ok(()),
            _ => Err(SnapshotError::Chunk {
                index: self.chunks.index - 1,
            }),
        }
    }
}

/// Reads a payload behind a header with this digest by `read`, which hands on what arrives, and
/// checks all of it; its `pages` pages, in their order. `apart` allows a second thread, which
/// checks while this one reads on.
pub(super) fn checked<'a>(
    header: &Digest,
    apart: bool,
    pages: usize,
    read: impl FnOnce(&mut Take<'_, 'a>) -> Result<(), Error>,
) -> Result<Vec<Page>, Error> {
    std::thread::scope(|scope| {
        let (sender, receiver) = sync_channel::<Arrival<'a>>(WAITING);
        let mut checker = Checker::new(header, pages)?;
        let check = move || {
            receiver.iter().try_for_each(|a| checker.take(a))?;
            Ok(checker.pages)
        };
        let thread = std::thread::Builder::new().name("lamella-digest".to_owned());
        let thread = apart.then(|| thread.spawn_scoped(scope, check).ok());
        let Some(thread) = thread.flatten() else {
            let mut checker = Checker::new(header, pages)?;
            read(&mut |arrival| checker.take(arrival))?;
            return Ok(checker.pages);
        };
        // The thread hangs up when it has found something, which counts.
        let result = read(&mut |a| sender.send(a).map_err(|_| SnapshotError::Total));
        drop(sender);
        match thread.join() {
            Ok(checked) => {
                let pages = checked.map_err(|error: SnapshotError| error.into());
                pages.and_then(|pages| result.map(|()| pages))
            }
            Err(panic) => resume_unwind(panic),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::chunks::{CHUNK, DIGEST, write};
    use super::*;

    const HEADER: Digest = [7; DIGEST];

    fn numbers(count: usize) -> Vec<f32> {
        (0..count).map(|i| (i % 1013) as f32 - 500.0).collect()
    }

    fn written(payload: &[f32], piece: usize, apart: bool) -> Vec<u8> {
        let mut stream = Vec::new();
        let parts: Vec<&[u8]> = payload.chunks(piece).map(IntoBytes::as_bytes).collect();
        write(&mut stream, &HEADER, &parts, apart).unwrap();
        stream
    }

    /// Reads pages of `piece` values and, at the end, values in their place.
    fn read(stream: &[u8], count: usize, piece: usize, apart: bool) -> Result<Vec<f32>, Error> {
        let mut source = stream;
        let mut place = vec![0.0; count % piece];
        let pages = checked(&HEADER, apart, count / piece, |take| {
            let mut reader = Reader::new(&mut source);
            for item in 0..count / piece {
                let mut page = Page::new(piece, None)?;
                reader.fill(&mut page, take)?;
                let values = Values::Page(page);
                take(Arrival::Values { item, values })?;
            }
            reader.fill(&mut place, take)?;
            let values = Values::Place(&mut place);
            take(Arrival::Values { item: 0, values })?;
            Ok(reader.finish(take)?)
        })?;
        assert!(source.is_empty(), "bytes left over");
        let pages = pages.iter().flat_map(|page| page.iter().copied());
        Ok(pages.chain(place).collect())
    }

    #[test]
    fn neither_pieces_nor_threads_show_in_the_stream() {
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
            let stream = written(&payload, 1 << 30, false);
            for apart in [false, true] {
                assert!(stream == written(&payload, 17_501, apart), "{count}");
                for piece in [24_989, CHUNK_VALUES, CHUNK_VALUES + 3] {
                    let back = read(&stream, count, piece, apart).unwrap();
                    assert!(back == payload, "{count} by {piece}");
                }
            }
        }
    }

    #[test]
    fn any_changed_or_missing_byte_is_found() {
        let payload = numbers(75);
        let stream = written(&payload, 25, false);
        for (at, apart) in (0..stream.len()).flat_map(|at| [(at, false), (at, true)]) {
            let mut damaged = stream.clone();
            damaged[at] ^= 1;
            assert!(read(&damaged, 75, 16, apart).is_err(), "byte {at}");
            assert!(
                matches!(
                    read(&stream[..at], 75, 16, apart),
                    Err(Error::Snapshot(SnapshotError::Truncated))
                ),
                "cut at {at}"
            );
        }
    }

    #[test]
    fn chunks_cannot_change_places() {
        let mut payload = vec![1.0; CHUNK / 2];
        payload[CHUNK / 4..].fill(2.0);
        let mut stream = written(&payload, CHUNK, false);
        let (first, second) = stream.split_at_mut(CHUNK + DIGEST);
        first.swap_with_slice(&mut second[..CHUNK + DIGEST]);
        for apart in [false, true] {
            let error = read(&stream, CHUNK / 2, 1000, apart).unwrap_err();
            assert!(
                matches!(error, Error::Snapshot(SnapshotError::Chunk { index: 0 })),
                "{error}"
            );
        }
    }

    #[test]
    fn what_is_no_number_is_refused_under_a_right_digest() {
        let mut payload = numbers(100);
        payload[77] = f32::NAN;
        let stream = written(&payload, 100, false);
        for apart in [false, true] {
            let error = read(&stream, 100, 10, apart).unwrap_err();
            assert!(
                matches!(error, Error::Snapshot(SnapshotError::Meaning(_))),
                "{error}"
            );
        }
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
        for (writes, apart) in (0..60).flat_map(|n| [(n, false), (n, true)]) {
            let result = write(&mut Full(writes), &HEADER, &[payload.as_bytes()], apart);
            assert!(matches!(result, Err(SnapshotError::Write(_))), "{writes}");
        }
    }
}
