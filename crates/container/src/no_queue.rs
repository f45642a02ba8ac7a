//! Systems whose kernels have no queues of reads, or other ones.

/// A queue of the kernel's, of which there is none here.
pub enum ReadQueue {}

impl ReadQueue {
    /// No queue.
    ///
    /// # Errors
    /// Always: this is for Linux.
    pub fn new() -> std::io::Result<ReadQueue> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
}
