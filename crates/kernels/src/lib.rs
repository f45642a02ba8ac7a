//! The arithmetic of Lamella, on slices.
//!
//! Everything obeys the *lane rule*: an output element is accumulated over k in increasing order
//! (within a quantised group exactly, in integers; within a group of codes by itself), vectors run
//! across output elements, and whatever sums over positions or channels has an order fixed by
//! their absolute index. So a result's bits do not depend on the batch, the number of threads or
//! the instruction set; see [`Isa`]. Elementary functions are ours ([`exp`], [`tanh`] and their
//! like) or the `libm` crate's. NaN and infinities propagate; only the sign and payload of a NaN
//! may differ between instruction sets.
//!
//! Kernels know no models and no files, and never allocate.

#[cfg(target_arch = "x86_64")]
mod amx;
mod attend_rows;
mod attention;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod coded;
mod convolution;
mod delta;
mod elementary;
mod gate;
mod hyper;
mod isa;
mod lanes;
mod matmul;
mod norm;
mod pack;
mod pool;
mod quantise;
mod rope;
mod rows;
mod scalar;
mod select;
mod table;
mod tile;
mod vector;

pub use attend_rows::{IndexQueries, KvRows, RowQuery, Scores};
pub use attention::{KvPages, KvShape, PAGE, Query};
pub use convolution::transpose_taps;
pub use elementary::{exp, ln, sigmoid, silu, softplus, tanh};
pub use hyper::HyperMaps;
pub use isa::Isa;
pub use matmul::{Epilogue, Input};
pub use norm::NormWeight;
pub use pack::{Matrix, block_bytes, pack, pack_blocks, packed_bytes, unpack_row};
pub use pool::Pool;
pub use quantise::{QuantisedRows, QuantisedWriter};
pub use rope::{RopeTable, angles, rope_frequencies};
pub use rows::{Rows, SharedRows};
pub use vector::{READ_BLOCK, any_non_finite};

/// Version of the numeric recipe: two builds with the same one give the same bits.
pub const RECIPE: u32 = 1;

/// The kernels of an instruction set that this processor has; having one is the licence to use
/// them.
#[derive(Clone, Copy)]
pub struct Kernels {
    isa: Isa,
    table: &'static table::Table,
}

impl Kernels {
    /// The kernels of `isa`; `None` if this processor cannot run them.
    #[must_use]
    pub fn new(isa: Isa) -> Option<Kernels> {
        if !isa.is_available() {
            return None;
        }
        let table = match isa {
            Isa::Scalar => &table::SCALAR,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => &table::AVX2,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => &table::AVX512,
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => &table::AMX,
            #[cfg(not(target_arch = "x86_64"))]
            _ => return None,
        };
        Some(Kernels { isa, table })
    }

    /// The fastest kernels this processor can run.
    #[must_use]
    pub fn best() -> Kernels {
        Kernels::new(Isa::detect()).unwrap_or(Kernels {
            isa: Isa::Scalar,
            table: &table::SCALAR,
        })
    }

    /// Their instruction set.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.isa
    }

    pub(crate) fn table(&self) -> &'static table::Table {
        self.table
    }
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kernels")
            .field("isa", &self.isa)
            .finish_non_exhaustive()
    }
}
