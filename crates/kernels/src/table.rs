//! The compiled kernels of each instruction set, as tables of functions.

use lamella_program::Encoding;
use lamella_program::block::GatedActivation;

use crate::attend_rows::{IndexQueries, KvRows, List, RowQuery, Scores};
use crate::attention::{Head, Query};
use crate::convolution::Convolution;
use crate::delta::Token;
use crate::matmul::Job;
use crate::norm::NormWeight;
use crate::quantise::Record;
use crate::tile::{MatrixUnit, TileShape};
use crate::vector::Map;

/// The kernels of one instruction set. Every function needs that instruction set.
pub(crate) struct Table {
    /// Tiles by encoding, most input rows first, then most blocks first.
    pub tiles: [&'static [TileShape]; Encoding::ALL.len()],
    pub unit: Option<&'static MatrixUnit>,
    pub matmul: unsafe fn(&Job<'_>),
    pub quantise_row: unsafe fn(&[f32], &mut [Record]),
    pub rms_norm: unsafe fn(*const f32, usize, NormWeight<'_>, f32, *mut f32),
    pub l2_norm: unsafe fn(&mut [f32], f32),
    pub layer_norm: unsafe fn(&mut [f32], &[f32], &[f32], f32),
    pub softmax: unsafe fn(&mut [f32]),
    pub max_and_sum: unsafe fn(&[f32]) -> (f32, f32),
    pub max_value: unsafe fn(&[f32]) -> f32,
    pub read: unsafe fn(&[u8], usize) -> f32,
    pub map: unsafe fn(Map, &mut [f32], Option<&[f32]>),
    pub add_product: unsafe fn(&mut [f32], &[f32], &[f32]),
    pub gate: unsafe fn(GatedActivation, &mut [f32], &[f32]),
    pub dot: unsafe fn(&[f32], &[f32]) -> f32,
    pub rotate_half: unsafe fn(&mut [f32], &[f32], &[f32]),
    pub rotate_adjacent: unsafe fn(&mut [f32], &[f32], &[f32]),
    pub attend: unsafe fn(&Head<'_>, &mut [Query<'_>], &mut [f32]),
    pub attend_rows: unsafe fn(&List<'_>, Scores, &mut [RowQuery<'_>], &mut [f32]),
    pub index_scores: unsafe fn(&dyn KvRows, &IndexQueries<'_>, &mut [f32]),
    pub delta_step: unsafe fn(&Token<'_>, *const f32, *mut f32, &mut [f32]),
    pub convolve: unsafe fn(&Convolution<'_>, &mut [f32]),
}

/// Compiles every kernel for the machine `$machine` under the attributes `$attribute`, in a module
/// of its own. The tile shapes are `(input rows, blocks)`.
macro_rules! compile {
    (
        $(#[$attribute:meta])* mod $name:ident for $machine:ty,
        floats $floats:tt, codes $codes:tt, integers $integers:tt
    ) => {
        pub(crate) mod $name {
            use super::*;
            use crate::coded::{Fp8, Mxfp4, Mxfp8, Nvfp4};
            use crate::tile::{Bf16, F16, F32, Format, Q4, Q8};
            use crate::{attend_rows, attention, convolution, delta, gate};
            use crate::{matmul, norm, quantise, rope, vector};

            compile!(@wrap $(#[$attribute])* for $machine:
                fn matmul = matmul::matmul(job: &Job<'_>);
                fn quantise_row = quantise::quantise_row(x: &[f32], records: &mut [Record]);
                fn rms_norm = norm::rms_norm(
                    x: *const f32, n: usize, w: NormWeight<'_>, eps: f32, out: *mut f32);
                fn l2_norm = norm::l2_norm(x: &mut [f32], eps: f32);
                fn layer_norm = norm::layer_norm(
                    x: &mut [f32], w: &[f32], b: &[f32], eps: f32);
                fn softmax = vector::softmax(x: &mut [f32]);
                fn max_and_sum = vector::max_and_sum(x: &[f32]) -> (f32, f32);
                fn max_value = vector::max_value(x: &[f32]) -> f32;
                fn read = vector::read(memory: &[u8], streams: usize) -> f32;
                fn map = vector::map(map: Map, y: &mut [f32], x: Option<&[f32]>);
                fn add_product = vector::add_product(y: &mut [f32], a: &[f32], b: &[f32]);
                fn gate = gate::gate(
                    activation: GatedActivation, y: &mut [f32], x: &[f32]);
                fn dot = vector::dot(a: &[f32], b: &[f32]) -> f32;
                fn rotate_half = rope::rotate_half(x: &mut [f32], cos: &[f32], sin: &[f32]);
                fn rotate_adjacent =
                    rope::rotate_adjacent(x: &mut [f32], cos: &[f32], sin: &[f32]);
                fn attend = attention::attend(
                    head: &Head<'_>, queries: &mut [Query<'_>], scratch: &mut [f32]);
                fn attend_rows = attend_rows::attend_rows(
                    list: &List<'_>, scores: Scores, queries: &mut [RowQuery<'_>],
                    scratch: &mut [f32]);
                fn index_scores = attend_rows::index_scores(
                    rows: &dyn KvRows, queries: &IndexQueries<'_>, out: &mut [f32]);
                fn delta_step = delta::delta_step(
                    token: &Token<'_>, from: *const f32, to: *mut f32, out: &mut [f32]);
                fn convolve = convolution::convolve(job: &Convolution<'_>, out: &mut [f32]);
            );

            $(#[$attribute])*
            unsafe fn tile<F: Format, const T: usize, const R: usize>(
                tile: &crate::tile::Tile,
            ) {
                // SAFETY: this function has the machine's instruction set; the rest is the
                // caller's promise.
                unsafe { F::tile::<$machine, T, R>(tile) }
            }

            /// The tiles of q8 and of q4.
            pub(crate) const INTEGERS: [&[TileShape]; 2] = [
                &compile!(@tiles Q8, $integers),
                &compile!(@tiles Q4, $integers),
            ];

            pub(crate) const TABLE: Table = Table {
                tiles: [
                    &compile!(@tiles F32, $floats),
                    &compile!(@tiles F16, $floats),
                    &compile!(@tiles Bf16, $floats),
                    &compile!(@tiles Fp8, $codes),
                    &compile!(@tiles Mxfp8, $codes),
                    &compile!(@tiles Mxfp4, $codes),
                    &compile!(@tiles Nvfp4, $codes),
                    INTEGERS[0],
                    INTEGERS[1],
                ],
                unit: None,
                matmul,
                quantise_row,
                rms_norm,
                l2_norm,
                layer_norm,
                softmax,
                max_and_sum,
                max_value,
                read,
                map,
                add_product,
                gate,
                dot,
                rotate_half,
                rotate_adjacent,
                attend,
                attend_rows,
                index_scores,
                delta_step,
                convolve,
            };
        }
    };
    (@tiles $format:ty, [$(($tokens:literal, $blocks:literal)),*]) => {
        [$(TileShape {
            tokens: $tokens,
            blocks: $blocks,
            run: tile::<$format, $tokens, $blocks>,
        }),*]
    };
    (@wrap $(#[$attribute:meta])* for $machine:ty: $(
        fn $name:ident = $module:ident :: $body:ident ($($arg:ident : $type:ty),*)
            $(-> $result:ty)?;
    )*) => {
        compile!(@each [$(#[$attribute])*] $machine; $(
            fn $name = $module :: $body ($($arg : $type),*) $(-> $result)?;
        )*);
    };
    (@each $attributes:tt $machine:ty; $(
        fn $name:ident = $module:ident :: $body:ident ($($arg:ident : $type:ty),*)
            $(-> $result:ty)?;
    )*) => {
        $( compile!(@one $attributes $machine; fn $name = $module :: $body
            ($($arg : $type),*) $(-> $result)?); )*
    };
    (@one [$(#[$attribute:meta])*] $machine:ty;
        fn $name:ident = $module:ident :: $body:ident ($($arg:ident : $type:ty),*)
            $(-> $result:ty)?
    ) => {
        $(#[$attribute])*
        unsafe fn $name($($arg: $type),*) $(-> $result)? {
            // SAFETY: this function has the machine's instruction set; the rest is the caller's
            // promise.
            unsafe { $module::$body::<$machine>($($arg),*) }
        }
    };
}

/// Portable kernels.
pub(crate) static SCALAR: Table = scalar::TABLE;
/// AVX2 kernels.
#[cfg(target_arch = "x86_64")]
pub(crate) static AVX2: Table = avx2::TABLE;
/// AVX-512 kernels.
#[cfg(target_arch = "x86_64")]
pub(crate) static AVX512: Table = avx512::TABLE;
/// AVX-512 kernels with AMX.
#[cfg(target_arch = "x86_64")]
pub(crate) static AMX: Table = Table {
    unit: Some(&crate::amx::UNIT),
    ..avx512::TABLE
};

compile!(
    mod scalar for crate::scalar::Scalar,
    floats [(4, 1), (1, 1)],
    codes [(4, 1), (1, 1)],
    integers [(4, 1), (1, 1)]
);

#[cfg(target_arch = "x86_64")]
compile!(
    #[target_feature(enable = "avx2,fma,f16c")]
    mod avx2 for crate::avx2::Avx2,
    floats [(4, 1), (2, 2), (2, 1), (1, 4), (1, 2), (1, 1)],
    codes [(4, 1), (2, 1), (1, 2), (1, 1)],
    integers [(4, 1), (2, 1), (1, 1)]
);

#[cfg(target_arch = "x86_64")]
compile!(
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    mod avx512 for crate::avx512::Avx512,
    floats [
        (8, 3), (8, 2), (8, 1), (4, 4), (4, 2), (4, 1),
        (2, 4), (2, 2), (2, 1), (1, 4), (1, 2), (1, 1)
    ],
    codes [
        (8, 2), (8, 1), (4, 4), (4, 2), (4, 1),
        (2, 4), (2, 2), (2, 1), (1, 4), (1, 2), (1, 1)
    ],
    integers [(8, 1), (7, 1), (6, 1), (5, 1), (4, 1), (3, 1), (2, 1), (1, 1)]
);
