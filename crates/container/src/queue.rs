//! Reads through a queue of the kernel's (io_uring): the pieces of a run of bytes are on their way
//! together, and each is seen while the others come.

use crate::disk::{DIRECT_ALIGN, PIECE, direct};
use io_uring::{IoUring, opcode, types};
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// Pieces that are on their way at once. One is seen while the others keep the disk busy.
const DEPTH: usize = 8;

/// A queue of the kernel's. One thread at a time reads through it, from any file.
pub struct ReadQueue {
    ring: IoUring,
    /// What came of each piece on its way: bytes, or a negative error number.
    results: [Option<i32>; DEPTH],
}

impl ReadQueue {
    /// A queue with nothing in it.
    ///
    /// # Errors
    /// If the kernel has none or forbids them, as containers do.
    pub fn new() -> Result<ReadQueue> {
        let mut ring = IoUring::new(DEPTH as u32)?;
        // Kernels before 5.6 have queues that cannot do this.
        let mut probe = io_uring::Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::Read::CODE) {
            return Err(Error::from(ErrorKind::Unsupported));
        }
        // Some kernels let queues be made and not used.
        // SAFETY: it reads and writes nothing.
        let pushed = unsafe { ring.submission().push(&opcode::Nop::new().build()) };
        pushed.map_err(Error::other)?;
        ring.submit_and_wait(1)?;
        ring.completion().for_each(drop);
        Ok(ReadQueue {
            ring,
            results: [None; DEPTH],
        })
    }

    /// Fills the first `needed` bytes of `buffer` from `offset` of `file`, which is read in pieces
    /// of [`PIECE`] bytes to the end of the buffer, and shows the needed bytes piece by piece.
    pub(crate) fn read(
        &mut self,
        file: &File,
        buffer: &mut [u8],
        needed: usize,
        offset: u64,
        seen: &mut dyn FnMut(&[u8]),
    ) -> Result<()> {
        let pieces = needed.div_ceil(PIECE);
        let (mut begun, mut ended) = (0, 0);
        let mut result = Ok(());
        // Nobody else may touch the buffer before everything that was begun has ended.
        while ended < begun || (begun < pieces && result.is_ok()) {
            while begun < pieces && begun - ended < DEPTH && result.is_ok() {
                let start = begun * PIECE;
                let end = buffer.len().min(start + PIECE);
                let piece = &mut buffer[start..end];
                self.begin(file, piece, offset + start as u64, begun);
                begun += 1;
            }
            let Some(read) = self.results[ended % DEPTH].take() else {
                self.wait();
                continue;
            };
            let start = ended * PIECE;
            let wanted = PIECE.min(needed - start);
            ended += 1;
            if result.is_err() {
                continue;
            }
            let end = buffer.len().min(start + PIECE);
            let piece = &mut buffer[start..end];
            result = complete(file, read, piece, wanted, offset + start as u64);
            if result.is_ok() {
                seen(&piece[..wanted]);
            }
        }
        result
    }

    /// Puts a read of `piece` into the queue.
    fn begin(&mut self, file: &File, piece: &mut [u8], offset: u64, number: usize) {
        let length = u32::try_from(piece.len()).unwrap_or(u32::MAX);
        let read = opcode::Read::new(types::Fd(file.as_raw_fd()), piece.as_mut_ptr(), length);
        let entry = read.offset(offset).build();
        let entry = entry.user_data((number % DEPTH) as u64);
        // SAFETY: `read` returns only when this has ended, and so the file stays open and nobody
        // else touches the piece meanwhile.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        debug_assert!(pushed.is_ok(), "no more entries than the queue has");
    }

    /// Waits until something has ended, and takes note of all that has.
    fn wait(&mut self) {
        if self.ring.submit_and_wait(1).is_err() {
            // Interrupted, or short of something that others give back. What the kernel has begun
            // it ends, and until then there is no way out of here.
            std::thread::sleep(Duration::from_micros(200));
        }
        for entry in self.ring.completion() {
            let slot = entry.user_data() as usize % DEPTH;
            self.results[slot] = Some(entry.result());
        }
    }
}

/// Sees to it that the `wanted` first bytes of `piece` are there after a read that gave `read`:
/// reads the rest where it was cut short or sent back.
fn complete(file: &File, read: i32, piece: &mut [u8], wanted: usize, offset: u64) -> Result<()> {
    let done = match usize::try_from(read) {
        Ok(read) => read,
        Err(_) => match Error::from_raw_os_error(-read) {
            e if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => 0,
            e => return Err(e),
        },
    };
    if done >= wanted {
        return Ok(());
    }
    // A direct read goes on where a block begins.
    let from = done / DIRECT_ALIGN * DIRECT_ALIGN;
    direct::read(file, piece, from..wanted, offset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// A queue, unless this kernel forbids them.
    fn queue() -> Option<ReadQueue> {
        let queue = ReadQueue::new();
        if let Err(error) = &queue {
            eprintln!("not tested: no queue here ({error})");
        }
        queue.ok()
    }

    /// A file of `length` bytes, and the bytes.
    fn file(length: usize) -> (File, Vec<u8>) {
        let bytes: Vec<u8> = (0..length).map(|i| (i * i / 7 + i / 251) as u8).collect();
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&bytes).expect("written");
        (file, bytes)
    }

    #[test]
    fn every_piece_is_shown_once_and_in_order() {
        let Some(mut queue) = queue() else { return };
        let (file, bytes) = file(DEPTH * PIECE * 2 + 12_345);
        let lengths = [
            1,
            PIECE - 1,
            PIECE,
            PIECE + 1,
            DEPTH * PIECE,
            bytes.len() - 4096,
        ];
        for needed in lengths {
            let mut buffer = vec![0; needed.next_multiple_of(DIRECT_ALIGN)];
            let mut shown = Vec::new();
            let mut sizes = Vec::new();
            let mut seen = |piece: &[u8]| {
                shown.extend_from_slice(piece);
                sizes.push(piece.len());
            };
            let read = queue.read(&file, &mut buffer, needed, 4096, &mut seen);
            read.expect("read");
            assert!(buffer[..needed] == bytes[4096..4096 + needed], "{needed}");
            assert!(shown == buffer[..needed], "{needed}");
            let (last, others) = sizes.split_last().expect("a piece");
            assert!(others.iter().all(|&size| size == PIECE) && *last <= PIECE);
        }
    }

    #[test]
    fn the_end_of_a_file_is_told_and_the_queue_goes_on() {
        let Some(mut queue) = queue() else { return };
        let (file, bytes) = file(3 * PIECE + 100);
        let mut buffer = vec![0; 6 * PIECE];
        for needed in [3 * PIECE + 101, 6 * PIECE] {
            let mut seen = 0;
            let read = queue.read(&file, &mut buffer, needed, 0, &mut |piece| {
                seen += piece.len()
            });
            let error = read.expect_err("behind the end");
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
            assert!(seen <= 3 * PIECE);
            // What behind is asked for and not needed is no error.
            let read = queue.read(&file, &mut buffer, 3 * PIECE + 100, 0, &mut |_| {});
            read.expect("read");
            assert!(buffer[..bytes.len()] == bytes);
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_is_an_error() {
        let Some(mut queue) = queue() else { return };
        let directory = File::open(".").expect("a directory");
        let read = queue.read(&directory, &mut [0; 4096], 4096, 0, &mut |_| {});
        assert_eq!(read.expect_err("no file").kind(), ErrorKind::IsADirectory);
    }
}
