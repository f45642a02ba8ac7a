//! Checks that both interfaces make: of pointers, of blocks that carry their size, of numbers.

use crate::lamella::LamellaCode;
use crate::report::{Refused, Report};
use std::ffi::{CStr, c_char, c_int, c_void};

/// Asserts at compile time the size of a block and the offset of each of its fields.
macro_rules! assert_layout {
    ($block:ty, $size:literal, $($field:ident $offset:literal),+ $(,)?) => {
        assert!(size_of::<$block>() == $size);
        $(assert!(std::mem::offset_of!($block, $field) == $offset);)+
    };
}
pub(crate) use assert_layout;

/// A block of C that begins with its own size in bytes as a `u32`.
///
/// # Safety
/// The type is `repr(C)`, its first field is that `u32`, and every bit pattern is one of its
/// values.
pub(crate) unsafe trait Sized32 {
    /// What the block is called in errors.
    const NAME: &'static str;
}

macro_rules! sized {
    ($($block:path: $name:literal),+ $(,)?) => {
        $(
            const _: () = assert!(std::mem::offset_of!($block, struct_size) == 0);
            // SAFETY: a `repr(C)` block whose first field is `struct_size: u32`; its other fields
            // are integers, raw pointers and optional functions, which may have any bits.
            unsafe impl Sized32 for $block {
                const NAME: &'static str = $name;
            }
        )+
    };
}
sized! {
    crate::segment::abi::ColiSegmentAdapter: "adapter",
    crate::segment::abi::ColiSegmentCapabilities: "capabilities",
    crate::segment::abi::ColiSegmentEngineOptions: "options",
    crate::segment::abi::ColiSegmentSessionOptions: "options",
    crate::segment::abi::ColiSegmentRunRequest: "request",
    crate::edge::abi::ColiEdgeAdapter: "adapter",
    crate::edge::abi::ColiEdgeCapabilities: "capabilities",
    crate::edge::abi::ColiEdgeEngineOptions: "options",
    crate::edge::abi::ColiEdgeEmbedRequest: "request",
    crate::edge::abi::ColiEdgeSelectRequest: "request",
    crate::edge::abi::ColiEdgeLogitsRequest: "request",
    crate::additions::LamellaSegmentStatistics: "statistics",
    crate::additions::LamellaEdgeStatistics: "statistics",
}

/// The size that the block at `pointer` says it has, if it reaches as far as we know it.
///
/// # Safety
/// `pointer` is NULL, or has at least the four bytes of its size.
pub(crate) unsafe fn block_size<T: Sized32>(
    report: &Report,
    pointer: *const T,
) -> Result<usize, Refused> {
    // SAFETY: the caller's contract.
    unsafe { block_size_from(report, pointer, size_of::<T>()) }
}

/// As [`block_size`], for a block that began with `known` bytes and grew.
///
/// # Safety
/// As [`block_size`].
pub(crate) unsafe fn block_size_from<T: Sized32>(
    report: &Report,
    pointer: *const T,
    known: usize,
) -> Result<usize, Refused> {
    let name = T::NAME;
    not_null(report, pointer, name)?;
    aligned(report, pointer, name)?;
    // SAFETY: not NULL and aligned; its first four bytes are readable by the contract.
    let size = unsafe { pointer.cast::<u32>().read() } as usize;
    if size < known {
        let reason = format_args!("{name}: struct_size is {size}, {known} bytes are needed");
        return Err(report.argument(reason));
    }
    Ok(size)
}

/// Writes `said` into the host's block at `pointer`, which began with `first` bytes and grew: what
/// fits, and zeros behind it as far as the block reaches. Its `struct_size` becomes the bytes of
/// `said` that were written.
///
/// # Safety
/// `pointer` is NULL, or as many writable bytes as its first four say.
pub(crate) unsafe fn fill<T: Sized32>(
    report: &Report,
    pointer: *mut T,
    first: usize,
    said: &T,
) -> Result<(), Refused> {
    // SAFETY: the caller's contract; a block begins with its size.
    unsafe {
        let size = block_size_from(report, pointer, first)?;
        let known = size.min(size_of::<T>());
        let to = pointer.cast::<u8>();
        to.write_bytes(0, size);
        std::ptr::copy_nonoverlapping(std::ptr::from_ref(said).cast::<u8>(), to, known);
        pointer.cast::<u32>().write(known as u32);
    }
    Ok(())
}

/// The block at `pointer`, after its size was found to reach as far as we know it.
///
/// # Safety
/// `pointer` is NULL, or as many readable bytes as its first four say, unchanged during `'a`.
pub(crate) unsafe fn block<'a, T: Sized32>(
    report: &Report,
    pointer: *const T,
) -> Result<&'a T, Refused> {
    // SAFETY: the caller's contract is more than enough.
    unsafe { block_size(report, pointer) }?;
    // SAFETY: as many bytes are readable by the contract as the type has; it takes any bits by
    // the contract of the trait.
    Ok(unsafe { &*pointer })
}

impl Report {
    /// Refuses an argument.
    #[must_use = "return it"]
    pub(crate) fn argument(&self, reason: std::fmt::Arguments<'_>) -> Refused {
        self.refuse(LamellaCode::LAMELLA_ARGUMENT, reason)
    }
}

pub(crate) fn refuse_null(report: &Report, name: &str) -> Refused {
    report.argument(format_args!("{name} is NULL"))
}

/// Refuses NULL.
pub(crate) fn not_null<T>(report: &Report, pointer: *const T, name: &str) -> Result<(), Refused> {
    if pointer.is_null() {
        return Err(refuse_null(report, name));
    }
    Ok(())
}

/// Refuses an address that is no multiple of the alignment of what is there. NULL passes.
pub(crate) fn aligned<T>(report: &Report, pointer: *const T, name: &str) -> Result<(), Refused> {
    if !pointer.is_aligned() {
        return Err(report.argument(format_args!("{name}: {pointer:p} is not aligned")));
    }
    Ok(())
}

/// Some bytes of a host: what they are called, where they begin, and how many they are.
pub(crate) type Bytes<'a> = (&'a str, *const u8, usize);

/// Refuses output that lies where input does, which is read after the first output was written.
pub(crate) fn apart(report: &Report, output: Bytes<'_>, input: Bytes<'_>) -> Result<(), Refused> {
    let (name, to, written) = output;
    let (other, from, read) = input;
    let (to, from) = (to.addr(), from.addr());
    let after = |a: usize, length: usize, b: usize| a.saturating_add(length) <= b;
    if to == 0 || written == 0 || read == 0 || after(to, written, from) || after(from, read, to) {
        return Ok(());
    }
    Err(report.argument(format_args!(
        "{name} lies where {other} does; keep them apart"
    )))
}

/// Refuses more values than any memory has addresses for.
pub(crate) fn addressable<T>(report: &Report, name: &str, count: usize) -> Result<(), Refused> {
    if count > isize::MAX as usize / size_of::<T>() {
        let reason = format_args!("{name}: {count} are more than memory can hold");
        return Err(report.argument(reason));
    }
    Ok(())
}

/// As many values as a host says there are. NULL is none where none are said.
///
/// # Safety
/// `pointer` is aligned, not NULL unless `count` is 0, and has `count` values that nobody changes
/// during `'a`.
pub(crate) unsafe fn values<'a, T>(
    report: &Report,
    name: &str,
    pointer: *const T,
    count: usize,
) -> Result<&'a [T], Refused> {
    addressable::<T>(report, name, count)?;
    if count == 0 {
        return Ok(&[]);
    }
    // SAFETY: the caller's contract, and the bytes are not too many for a slice.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// Writes the first value of an out parameter.
///
/// # Safety
/// `out` is NULL or writable.
pub(crate) unsafe fn start_out<T>(
    report: &Report,
    out: *mut T,
    value: T,
    name: &str,
) -> Result<(), Refused> {
    not_null(report, out, name)?;
    aligned(report, out, name)?;
    // SAFETY: not NULL, aligned, and writable by the contract.
    unsafe { out.write(value) };
    Ok(())
}

/// A text of C that may not be empty.
///
/// # Safety
/// `text` is NULL or ends with a NUL, unchanged during `'a`.
pub(crate) unsafe fn text<'a>(
    report: &Report,
    text: *const c_char,
    name: &str,
) -> Result<&'a CStr, Refused> {
    not_null(report, text, name)?;
    // SAFETY: not NULL, and ends by the contract.
    let text = unsafe { CStr::from_ptr(text) };
    if text.is_empty() {
        return Err(report.argument(format_args!("{name} is empty")));
    }
    Ok(text)
}

/// The text in a field of a capability block, where it is neither empty nor endless.
pub(crate) fn field<const N: usize>(bytes: &[c_char; N]) -> Option<&CStr> {
    // SAFETY: `c_char` and `u8` have the same size and take any bits.
    let bytes = unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast::<u8>(), N) };
    CStr::from_bytes_until_nul(bytes)
        .ok()
        .filter(|text| !text.is_empty())
}

/// What the capability blocks of both interfaces say alike.
pub(crate) struct Said<'a> {
    /// What the block says it has, and what it must have.
    pub(crate) struct_size: [usize; 2],
    /// As `struct_size`.
    pub(crate) abi_version: [u32; 2],
    pub(crate) engine_id: &'a [c_char; 64],
    /// The id that the engine was opened with.
    pub(crate) id: &'a str,
    pub(crate) state_schema: &'a [c_char; 128],
    pub(crate) numeric_class: &'a [c_char; 96],
    pub(crate) state_dtype: u32,
    pub(crate) state_width: u32,
    pub(crate) num_layers: u32,
}

impl Said<'_> {
    /// What is wrong with it.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        let id = field(self.engine_id).map(CStr::to_bytes);
        first(&[
            (
                self.struct_size[0] != self.struct_size[1],
                "its capabilities have another struct_size",
            ),
            (
                self.abi_version[0] != self.abi_version[1],
                "its capabilities have another abi_version",
            ),
            (
                id != Some(self.id.as_bytes()),
                "its capabilities have another engine_id",
            ),
            (
                field(self.state_schema).is_none(),
                "state_schema is empty or has no end",
            ),
            (
                field(self.numeric_class).is_none(),
                "numeric_class is empty or has no end",
            ),
            (
                dtype_bytes(self.state_dtype).is_none(),
                "state_dtype is unknown",
            ),
            (self.state_width == 0, "state_width is 0"),
            (self.num_layers == 0, "num_layers is 0"),
        ])
    }
}

/// The first fault that is there.
pub(crate) fn first(faults: &[(bool, &'static str)]) -> Option<&'static str> {
    let found = faults.iter().find(|(wrong, _)| *wrong);
    found.map(|(_, fault)| *fault)
}

/// Bytes of a number in a `ColiSegmentDType`, which `ColiEdgeDType` equals.
pub(crate) fn dtype_bytes(dtype: u32) -> Option<usize> {
    match dtype {
        1 => Some(4),
        2 | 3 => Some(2),
        _ => None,
    }
}

/// Refuses 0 rows, and more than an engine takes where it says how many it takes.
pub(crate) fn rows(report: &Report, rows: u32, most: u32) -> Result<(), Refused> {
    if rows == 0 {
        return Err(report.argument(format_args!("rows is 0")));
    }
    if most != 0 && rows > most {
        let reason = format_args!("{rows} rows, the engine takes {most} at most");
        return Err(report.argument(reason));
    }
    Ok(())
}

/// Refuses a buffer that is not exactly `rows` rows of `width` numbers of `dtype`.
pub(crate) fn activations(
    report: &Report,
    name: &str,
    bytes: usize,
    (rows, width, dtype): (u32, u32, u32),
) -> Result<(), Refused> {
    let number = dtype_bytes(dtype).unwrap_or(0);
    let want = u128::from(rows) * u128::from(width) * number as u128;
    if bytes as u128 != want {
        let reason = format_args!(
            "{name} has {bytes} bytes, {rows} rows of {width} numbers of {number} bytes have {want}"
        );
        return Err(report.argument(reason));
    }
    addressable::<u8>(report, name, bytes)
}

/// Refuses a buffer that is NULL with room, or not NULL without.
pub(crate) fn optional<T>(
    report: &Report,
    name: &str,
    buffer: *const T,
    capacity: usize,
) -> Result<(), Refused> {
    let fault = match (buffer.is_null(), capacity) {
        (true, 0) => return Ok(()),
        (true, _) => "is NULL, its capacity is not 0",
        (false, 0) => "is not NULL, its capacity is 0",
        (false, _) => return aligned(report, buffer, name),
    };
    Err(report.argument(format_args!("{name} {fault}")))
}

/// Refuses room for less than `want`.
pub(crate) fn room(
    report: &Report,
    name: &str,
    capacity: usize,
    want: u128,
) -> Result<(), Refused> {
    if (capacity as u128) < want {
        let reason = format_args!("{name} is {capacity}, {want} are needed");
        return Err(report.argument(reason));
    }
    Ok(())
}

/// Refuses ids outside the vocabulary.
pub(crate) fn ids(report: &Report, ids: &[i32], vocabulary: u32) -> Result<(), Refused> {
    let outside = |id: &i32| u32::try_from(*id).map_or(true, |id| id >= vocabulary);
    if let Some(at) = ids.iter().position(outside) {
        let id = ids[at];
        let reason =
            format_args!("token id {id} at index {at} is outside the vocabulary of {vocabulary}");
        return Err(report.argument(reason));
    }
    Ok(())
}

/// Asks whether to cancel.
///
/// # Safety
/// `should_cancel` may be called with `user_data`.
pub(crate) unsafe fn cancelled(
    report: &Report,
    should_cancel: Option<unsafe extern "C-unwind" fn(*mut c_void) -> c_int>,
    user_data: *mut c_void,
) -> Result<(), Refused> {
    // SAFETY: the caller's contract.
    match should_cancel.map(|ask| unsafe { ask(user_data) }) {
        None | Some(0) => Ok(()),
        Some(_) => Err(report.refuse(LamellaCode::LAMELLA_CANCELLED, format_args!("cancelled"))),
    }
}

/// Makes room for one more.
pub(crate) fn reserve_one<T>(report: &Report, list: &mut Vec<T>) -> Result<(), Refused> {
    list.try_reserve(1).map_err(|_| {
        let bytes = size_of::<T>();
        let reason = format_args!("the system refused memory for {bytes} bytes more");
        report.refuse(LamellaCode::LAMELLA_MEMORY, reason)
    })
}
