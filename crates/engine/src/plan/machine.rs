//! The machine that is planned for.

use crate::memory::MemoryLimit;
use lamella_kernels::Isa;
use serde::Serialize;

/// A figure, and where it comes from.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Rate {
    /// Per second.
    pub per_second: f64,
    /// In words: what was measured where, or that it was given.
    pub origin: String,
}

impl Rate {
    /// A rate of `per_second`, known from `origin`.
    #[must_use]
    pub fn new(per_second: f64, origin: impl Into<String>) -> Rate {
        Rate {
            per_second,
            origin: origin.into(),
        }
    }
}

/// What a machine offers. All rates are those of all threads together.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Machine {
    /// Threads that compute.
    pub threads: usize,
    /// Name of the instruction set of the kernels.
    pub isa: &'static str,
    /// Most bytes the model may take.
    pub memory_bytes: u64,
    /// Where that limit comes from.
    pub memory_origin: String,
    /// Bytes that the machine has beside the limit, for the page cache of the system.
    pub beside_bytes: u64,
    /// Bytes read from memory.
    pub memory: Rate,
    /// Bytes of weights that pass through a product with one row, which is how tokens are decoded.
    pub decode: Rate,
    /// Multiplications with many rows, which is how prompts are read.
    pub products: Rate,
    /// Bytes read from the disk, past the page cache.
    pub disk: Rate,
    /// Bytes read from the page cache into buffers.
    pub page_cache: Rate,
}

impl Machine {
    /// A machine of so many threads and so much memory whose other figures are known.
    #[must_use]
    pub fn new(threads: usize, isa: Isa, limit: MemoryLimit, rates: Rates) -> Machine {
        let free = MemoryLimit::resolve(None).bytes;
        Machine {
            threads,
            isa: isa.name(),
            beside_bytes: free.saturating_sub(limit.bytes),
            memory_bytes: limit.bytes,
            memory_origin: limit.origin,
            memory: rates.memory,
            decode: rates.decode,
            products: rates.products,
            disk: rates.disk,
            page_cache: rates.page_cache,
        }
    }
}

/// How fast a machine is. See [`Machine`].
#[derive(Clone, Debug)]
pub struct Rates {
    /// As [`Machine::memory`].
    pub memory: Rate,
    /// As [`Machine::decode`].
    pub decode: Rate,
    /// As [`Machine::products`].
    pub products: Rate,
    /// As [`Machine::disk`].
    pub disk: Rate,
    /// As [`Machine::page_cache`].
    pub page_cache: Rate,
}
