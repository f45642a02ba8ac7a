//! AMX int8: the exact integer dots of 16 output rows with up to 16 input rows in one
//! instruction. Everything around them is AVX-512, and so are the bits.
//!
//! The instructions are written as assembly because the standard library's functions for them are
//! not stable. Tile registers belong to this file: the compiler does not use them.

use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use crate::avx512::{Zmm, prefetch, q4_codes};
use crate::lanes::{Lanes, unroll16};
use crate::quantise::Record;
use crate::tile::{GROUP_SCALES, MatrixUnit, Tile, TileShape, load, store};

/// Input rows of a tile.
const ROWS: usize = 16;

/// Bytes of a prepared group: eight quads of 16 rows, signed.
const PREPARED: usize = 512;

/// The matrix unit of this instruction set.
pub(crate) static UNIT: MatrixUnit = MatrixUnit {
    tiles: [&TILES_8, &TILES_4],
    prepare: [prepare_q8, prepare_q4],
    begin,
    end,
};

/// Ordinary tiles, for the rows that are left.
const ORDINARY: [&[TileShape]; 2] = crate::table::avx512::INTEGERS;

static TILES_8: [TileShape; 1 + ORDINARY[0].len()] = tiles(ORDINARY[0]);
static TILES_4: [TileShape; 1 + ORDINARY[1].len()] = tiles(ORDINARY[1]);

/// A tile of 16 input rows, then the `ordinary` ones.
const fn tiles<const N: usize>(ordinary: &[TileShape]) -> [TileShape; N] {
    let wide = TileShape {
        tokens: ROWS,
        blocks: 1,
        run: tile,
    };
    let mut tiles = [wide; N];
    let mut i = 1;
    while i < N {
        tiles[i] = ordinary[i - 1];
        i += 1;
    }
    tiles
}

/// Whether the processor has the unit and the kernel lets this process use it.
pub(crate) fn is_available() -> bool {
    const TILE: u32 = 1 << 24;
    const INT8: u32 = 1 << 25;
    let leaf = __cpuid(0).eax;
    leaf >= 7 && __cpuid_count(7, 0).edx & (TILE | INT8) == TILE | INT8 && permitted()
}

/// Asks Linux for the tile state, as every process must before its first use.
#[cfg(target_os = "linux")]
fn permitted() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const REQUEST_PERMISSION: i64 = 0x1023;
    const TILE_DATA: i64 = 18;
    let result: i64;
    // SAFETY: this system call touches no memory of the process.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") REQUEST_PERMISSION,
            in("rsi") TILE_DATA,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn permitted() -> bool {
    false
}

/// Tile shapes, as `ldtilecfg` reads them.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Registers 0 and 1: inputs; 2 and 3: weights; 4 and 5: sums.
static CONFIG: Config = Config {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [32, 32, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 8, 8, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// Sets the tile registers of this thread up.
unsafe fn begin() {
    // SAFETY: the unit is available; the configuration is a valid one.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &CONFIG, options(nostack, readonly)) }
}

/// Gives the tile registers back, so that a thread switch need not save them.
unsafe fn end() {
    // SAFETY: the unit is available.
    unsafe { asm!("tilerelease", options(nostack, nomem)) }
}

/// The signed codes of `groups` q8 groups.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn prepare_q8(codes: *const u8, groups: usize, out: *mut u8) {
    let bias = _mm512_set1_epi8(-128);
    for i in 0..groups * 8 {
        // SAFETY: a group has 512 code bytes and as many prepared ones.
        unsafe {
            let at = codes.add(64 * i);
            prefetch::<1>(at);
            let signed = _mm512_xor_si512(_mm512_loadu_si512(at.cast()), bias);
            _mm512_store_si512(out.add(64 * i).cast(), signed);
        }
    }
}

/// The signed codes of `groups` q4 groups, one a byte.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn prepare_q4(codes: *const u8, groups: usize, out: *mut u8) {
    let bias = _mm512_set1_epi8(8);
    for g in 0..groups {
        // SAFETY: a group has 256 code bytes and 512 prepared ones.
        unsafe {
            let at = codes.add(256 * g);
            prefetch::<4>(at);
            for (q, quad) in q4_codes(at).into_iter().enumerate() {
                let place = out.add(PREPARED * g + 64 * q).cast();
                _mm512_store_si512(place, _mm512_sub_epi8(quad, bias));
            }
        }
    }
}

/// Starts the products of the input rows at `x`, `stride` bytes apart, with the prepared group at
/// `w`, into the sums number `N`.
#[inline(always)]
unsafe fn multiply<const N: usize>(x: *const Record, stride: usize, w: *const u8) {
    macro_rules! multiply {
        ($inputs:literal, $weights:literal, $sums:literal) => {
            asm!(
                concat!("tileloadd ", $weights, ", [{w} + {line}]"),
                concat!("tileloadd ", $inputs, ", [{x} + {stride}]"),
                concat!("tilezero ", $sums),
                concat!("tdpbssd ", $sums, ", ", $inputs, ", ", $weights),
                x = in(reg) x,
                stride = in(reg) stride,
                w = in(reg) w,
                line = in(reg) 64usize,
                options(nostack, readonly),
            )
        };
    }
    // SAFETY: `begin` has configured the registers; the operands have these shapes.
    unsafe {
        if N == 0 {
            multiply!("tmm0", "tmm2", "tmm4");
        } else {
            multiply!("tmm1", "tmm3", "tmm5");
        }
    }
}

/// Writes the sums number `N`.
#[inline(always)]
unsafe fn write<const N: usize>(out: *mut i32) {
    // SAFETY: `begin` has configured the registers; the output holds 16 rows.
    unsafe {
        if N == 0 {
            asm!("tilestored [{} + {}], tmm4", in(reg) out, in(reg) 64usize, options(nostack));
        } else {
            asm!("tilestored [{} + {}], tmm5", in(reg) out, in(reg) 64usize, options(nostack));
        }
    }
}

/// Sums of one group.
#[repr(C, align(64))]
struct Sums([MaybeUninit<i32>; 256]);

/// A tile in the making. The accumulators are not in here: what assembly can reach stays in
/// memory.
#[derive(Clone, Copy)]
struct Work<'a> {
    tile: &'a Tile,
    stride: usize,
    sums: [*mut i32; 2],
}

impl Work<'_> {
    /// Starts group `g`, if there is one.
    #[inline(always)]
    unsafe fn start<const N: usize>(self, g: usize) {
        if g < self.tile.end {
            // SAFETY: the group is prepared and every input row has it.
            unsafe {
                let w = self.tile.prepared.add(PREPARED * (g - self.tile.start));
                multiply::<N>(self.tile.record(0, g), self.stride, w);
            }
        }
    }

    /// Fetches the sums of the group started last into number `N`.
    #[inline(always)]
    unsafe fn fetch<const N: usize>(self) {
        // SAFETY: the sums hold 16 rows.
        unsafe { write::<N>(self.sums[N]) }
    }

    /// Accumulates group `g` from fetched sums.
    #[inline(always)]
    unsafe fn accumulate<const N: usize>(self, g: usize, acc: &mut [Zmm; ROWS]) {
        // SAFETY: every row and block has this group.
        unsafe {
            let sums = self.sums[N];
            let scale_w = Zmm::load_f16(self.tile.weights.add(g * GROUP_SCALES));
            let x = self.tile.record(0, g);
            unroll16!(T_ < ROWS, {
                let x = x.byte_add(self.stride * T_);
                let dot = Zmm::of_i32(sums.add(16 * T_));
                acc[T_] = dot.fma(scale_w.mul(Zmm::splat((*x).scale)), acc[T_]);
            });
        }
    }
}

/// A tile of 16 evenly spaced input rows and one prepared row block. Three groups are under way
/// at a time: one is multiplied, one is fetched, one is accumulated.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn tile(tile: &Tile) {
    // SAFETY: `Tile` describes readable operands and accumulators of these shapes; records begin
    // with their codes.
    unsafe {
        let [mut acc] = load::<Zmm, ROWS, 1>(tile);
        let stride = tile.x[1].addr() - tile.x[0].addr();
        let mut sums = [const { Sums([MaybeUninit::uninit(); 256]) }; 2];
        let [even, odd] = &mut sums;
        let sums = [even.0.as_mut_ptr().cast(), odd.0.as_mut_ptr().cast()];
        let work = Work { tile, stride, sums };
        let mut g = tile.start;
        work.start::<0>(g);
        work.start::<1>(g + 1);
        work.fetch::<0>();
        while g < tile.end {
            work.start::<0>(g + 2);
            work.fetch::<1>();
            work.accumulate::<0>(g, &mut acc);
            g += 1;
            if g < tile.end {
                work.start::<1>(g + 2);
                work.fetch::<0>();
                work.accumulate::<1>(g, &mut acc);
                g += 1;
            }
        }
        store(&[acc], tile);
    }
}
