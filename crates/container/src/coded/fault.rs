//! What can be wrong with a coded number, in words.

use crate::error::Error;
use lamella_program::Slice;
use lamella_program::operand::Coding;

/// Why rows could not be decoded.
pub(crate) enum Fault {
    /// They could not be read.
    Read(Error),
    /// One number, by its place in the tensor seen as a matrix.
    Bad {
        row: u64,
        column: usize,
        problem: Problem,
    },
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        Fault::Read(error)
    }
}

/// What is wrong with a number.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Problem {
    Code,
    Scale(f32),
    Outer(f32),
    TooLarge,
    TooSmall(f32),
    Number(f32),
    Integer(i64),
}

impl Problem {
    /// In words, with what to do.
    pub(crate) fn describe(self, slice: &Slice) -> String {
        const DAMAGED: &str = "the file is damaged, download it again";
        let scales = slice.coding.as_ref().map(Coding::scales);
        let scales = scales.unwrap_or_default();
        let scale = |n: usize| scales.get(n).copied().unwrap_or_default();
        match self {
            Problem::Code => format!("the code is NaN; {DAMAGED}"),
            Problem::Scale(value) => format!("its scale in {} is {value}; {DAMAGED}", scale(0)),
            Problem::Outer(value) => format!("its scale in {} is {value}; {DAMAGED}", scale(1)),
            Problem::TooLarge => {
                format!(
                    "the code times its scale in {} is beyond f32; {DAMAGED}",
                    scale(0)
                )
            }
            Problem::TooSmall(value) => {
                format!(
                    "{value:e} is too small for bf16 (scales in {}); {DAMAGED}",
                    scale(0)
                )
            }
            Problem::Number(value) => format!("{value} is not a finite number; {DAMAGED}"),
            Problem::Integer(value) if value < 0 => {
                format!("{value} is negative, which no table here may hold; {DAMAGED}")
            }
            Problem::Integer(value) => {
                format!("{value} is not exact in f32; this version cannot read the table")
            }
        }
    }
}
