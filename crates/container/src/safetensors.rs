//! The header of a safetensors file: eight bytes of length, JSON, then the tensors' bytes.
//!
//! The rules are the format's own: tensors cover the data section exactly, without gaps, overlaps
//! or a byte left over. A file that breaks them is described in words a person can act on.

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use std::collections::HashSet;
use std::fmt;

/// Longest header that is read; the format's own limit.
pub const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Most dimensions a tensor may have.
pub const MAX_DIMENSIONS: usize = 8;

/// What is wrong with a safetensors file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// The text that stands for a file in a Git repository without its large files.
    #[error("a Git LFS pointer, not the weights; run `git lfs pull` or download the file itself")]
    LfsPointer,
    /// Space was reserved and never filled.
    #[error("begins with zero bytes: the download reserved the file and did not fill it")]
    ZeroHead,
    /// Something else altogether.
    #[error("{0}, not a safetensors file")]
    Foreign(&'static str),
    /// The file ends early.
    #[error(
        "{} bytes short ({found} of {expected}): the download is unfinished",
        expected - found
    )]
    Short {
        /// Bytes in the file.
        found: u64,
        /// Bytes the header announces.
        expected: u64,
    },
    /// Bytes after the last tensor.
    #[error("{} bytes follow the last tensor", found - expected)]
    Trailing {
        /// Bytes in the file.
        found: u64,
        /// Bytes the header announces.
        expected: u64,
    },
    /// An absurd header length.
    #[error("a header of {0} bytes; more than the {MAX_HEADER_BYTES} of the format")]
    HeaderTooLarge(u64),
    /// The header is not the JSON it should be.
    #[error("the header cannot be read: {0}")]
    Json(String),
    /// One name, two tensors.
    #[error("tensor {0} is announced twice")]
    DuplicateTensor(String),
    /// An element type the format does not know.
    #[error("tensor {tensor}: unknown element type {dtype}")]
    UnknownDtype {
        /// The tensor.
        tensor: String,
        /// Its type as spelled.
        dtype: String,
    },
    /// A shape with too many dimensions or more elements than can be counted.
    #[error("tensor {tensor}: impossible shape {shape:?}")]
    Shape {
        /// The tensor.
        tensor: String,
        /// Its shape (at most the first [`MAX_DIMENSIONS`] + 1 dimensions).
        shape: Vec<usize>,
    },
    /// The place of a tensor does not have the size of the tensor.
    #[error("tensor {tensor}: {found} bytes stored, but its type and shape need {expected}")]
    Size {
        /// The tensor.
        tensor: String,
        /// Bytes between its offsets.
        found: u64,
        /// Bytes of shape times element type.
        expected: u64,
    },
    /// A tensor ends before it begins.
    #[error("tensor {tensor}: its data ends at {end}, before its start at {begin}")]
    Reversed {
        /// The tensor.
        tensor: String,
        /// First offset.
        begin: u64,
        /// Second offset.
        end: u64,
    },
    /// Two tensors share bytes.
    #[error("tensors {first} and {second} overlap")]
    Overlap {
        /// The one that begins first.
        first: String,
        /// The other.
        second: String,
    },
    /// A tensor far outside of the data.
    #[error("tensor {tensor}: its offsets are out of bounds; there is nothing at byte {offset}")]
    OutOfBounds {
        /// The tensor.
        tensor: String,
        /// Where it claims to begin, in the file.
        offset: u64,
    },
    /// Bytes before a tensor that belong to none.
    #[error("{bytes} bytes before tensor {tensor} belong to no tensor")]
    Gap {
        /// The tensor after the gap.
        tensor: String,
        /// Bytes in the gap.
        bytes: u64,
    },
}

/// One tensor of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// Element type as spelled.
    pub dtype: String,
    /// Dimensions.
    pub shape: Vec<usize>,
    /// First byte in the file.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

/// A header that keeps every rule of the format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Tensors in the order of their bytes.
    pub tensors: Vec<Tensor>,
}

/// Bytes at the head of a file that [`header_length`] wants to see.
pub const HEAD_BYTES: usize = 512;

/// Length of the JSON header of a file of `file_length` bytes that begins with `head` (its first
/// [`HEAD_BYTES`], or all of it).
///
/// # Errors
/// If this is no safetensors file, or one cut off inside its header.
pub fn header_length(head: &[u8], file_length: u64) -> Result<u64, HeaderError> {
    recognise(head)?;
    let Some((length, _)) = head.split_first_chunk::<8>() else {
        return Err(HeaderError::Short {
            found: file_length,
            expected: 8,
        });
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER_BYTES {
        return Err(HeaderError::HeaderTooLarge(length));
    }
    if length + 8 > file_length {
        return Err(HeaderError::Short {
            found: file_length,
            expected: length + 8,
        });
    }
    Ok(length)
}

/// Names the usual impostors by their first bytes.
fn recognise(head: &[u8]) -> Result<(), HeaderError> {
    let foreign = [
        (&b"PK\x03\x04"[..], "a zip archive (a PyTorch checkpoint?)"),
        (b"GGUF", "a GGUF file"),
        (b"\x1f\x8b", "a gzip archive"),
        (b"<!DOCTYPE", "a web page (a failed download?)"),
        (b"<!doctype", "a web page (a failed download?)"),
        (b"<html", "a web page (a failed download?)"),
    ];
    if head.is_empty() {
        return Err(HeaderError::Foreign("an empty file"));
    }
    if head.starts_with(LFS_PREFIX) {
        return Err(HeaderError::LfsPointer);
    }
    if head.len() > 8 && head.iter().all(|&b| b == 0) {
        return Err(HeaderError::ZeroHead);
    }
    match foreign.iter().find(|(magic, _)| head.starts_with(magic)) {
        Some((_, what)) => Err(HeaderError::Foreign(what)),
        None => Ok(()),
    }
}

/// How a Git LFS pointer begins.
pub(crate) const LFS_PREFIX: &[u8] = b"version https://git-lfs";

impl Header {
    /// Reads a whole safetensors file held in memory.
    ///
    /// # Errors
    /// Any [`HeaderError`].
    pub fn from_file_bytes(bytes: &[u8]) -> Result<Header, HeaderError> {
        let head = &bytes[..bytes.len().min(HEAD_BYTES)];
        let length = header_length(head, bytes.len() as u64)? as usize;
        Header::parse(&bytes[8..8 + length], bytes.len() as u64)
    }

    /// Reads the JSON of a header that stands at byte 8 of a file of `file_length` bytes.
    ///
    /// # Errors
    /// Any [`HeaderError`] about the JSON and the tensors' places.
    pub fn parse(json: &[u8], file_length: u64) -> Result<Header, HeaderError> {
        let tensors = placed(json)?;
        check_cover(&tensors, 8 + json.len() as u64, file_length)?;
        Ok(Header { tensors })
    }

    /// Reads the JSON of a header without the file it announces.
    ///
    /// # Errors
    /// As [`parse`](Header::parse), for a file that ends with its last tensor.
    pub fn parse_alone(json: &[u8]) -> Result<Header, HeaderError> {
        let tensors = placed(json)?;
        let start = 8 + json.len() as u64;
        let end = tensors.iter().map(|t| t.offset + t.length).max();
        check_cover(&tensors, start, end.unwrap_or(start))?;
        Ok(Header { tensors })
    }
}

/// The tensors of a header in the order of their bytes.
fn placed(json: &[u8]) -> Result<Vec<Tensor>, HeaderError> {
    let RawHeader(raw) =
        serde_json::from_slice(json).map_err(|e| HeaderError::Json(e.to_string()))?;
    let data_start = 8 + json.len() as u64;
    let mut tensors = Vec::with_capacity(raw.len());
    for (name, entry) in raw {
        tensors.push(entry.place(name, data_start)?);
    }
    if let Some(name) = first_duplicate(&tensors) {
        return Err(HeaderError::DuplicateTensor(name));
    }
    tensors.sort_by(|a, b| (a.offset, a.length, &a.name).cmp(&(b.offset, b.length, &b.name)));
    Ok(tensors)
}

fn first_duplicate(tensors: &[Tensor]) -> Option<String> {
    let mut seen = HashSet::with_capacity(tensors.len());
    tensors
        .iter()
        .find(|t| !seen.insert(t.name.as_str()))
        .map(|t| t.name.clone())
}

/// The tensors, in order, must cover the data section exactly.
fn check_cover(tensors: &[Tensor], start: u64, file_length: u64) -> Result<(), HeaderError> {
    // Beyond the file and beyond all tensors put together: not one cut off, but one misplaced.
    let total = tensors
        .iter()
        .fold(start, |sum, t| sum.saturating_add(t.length));
    let misplaced = |t: &&Tensor| t.length > 0 && t.offset >= total && t.offset >= file_length;
    if let Some(t) = tensors.iter().find(misplaced) {
        return Err(HeaderError::OutOfBounds {
            tensor: t.name.clone(),
            offset: t.offset,
        });
    }
    let mut end = start;
    let mut previous: Option<&Tensor> = None;
    for tensor in tensors {
        if tensor.offset > end {
            let bytes = tensor.offset - end;
            return Err(HeaderError::Gap {
                tensor: tensor.name.clone(),
                bytes,
            });
        }
        if tensor.offset < end {
            let first = previous.map_or_else(String::new, |p| p.name.clone());
            return Err(HeaderError::Overlap {
                first,
                second: tensor.name.clone(),
            });
        }
        end = tensor.offset + tensor.length;
        previous = Some(tensor);
    }
    match end.cmp(&file_length) {
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Greater => Err(HeaderError::Short {
            found: file_length,
            expected: end,
        }),
        std::cmp::Ordering::Less => Err(HeaderError::Trailing {
            found: file_length,
            expected: end,
        }),
    }
}

/// Bits of one element of a type of the format.
fn dtype_bits(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "F4" => 4,
        "F6_E2M3" | "F6_E3M2" => 6,
        "BOOL" | "U8" | "I8" | "F8_E4M3" | "F8_E5M2" | "F8_E8M0" | "F8_E4M3FNUZ"
        | "F8_E5M2FNUZ" => 8,
        "U16" | "I16" | "F16" | "BF16" => 16,
        "U32" | "I32" | "F32" => 32,
        "U64" | "I64" | "F64" | "C64" => 64,
        _ => return None,
    })
}

/// Bytes of a tensor of this element type and shape.
///
/// # Errors
/// [`HeaderError::UnknownDtype`], [`HeaderError::Shape`].
pub(crate) fn tensor_bytes(tensor: &str, dtype: &str, shape: &[usize]) -> Result<u64, HeaderError> {
    let Some(bits) = dtype_bits(dtype) else {
        return Err(HeaderError::UnknownDtype {
            tensor: tensor.to_owned(),
            dtype: dtype.to_owned(),
        });
    };
    let elements = shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d as u64));
    let bytes = elements
        .and_then(|n| n.checked_mul(bits))
        .filter(|bits| shape.len() <= MAX_DIMENSIONS && bits.is_multiple_of(8))
        .map(|bits| bits / 8);
    bytes.ok_or_else(|| HeaderError::Shape {
        tensor: tensor.to_owned(),
        shape: shape[..shape.len().min(MAX_DIMENSIONS + 1)].to_vec(),
    })
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTensor {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (u64, u64),
}

impl RawTensor {
    /// Checks everything about one tensor that does not depend on the others.
    fn place(self, tensor: String, data_start: u64) -> Result<Tensor, HeaderError> {
        let RawTensor {
            dtype,
            shape,
            data_offsets: (begin, end),
        } = self;
        let expected = tensor_bytes(&tensor, &dtype, &shape)?;
        let Some(found) = end.checked_sub(begin) else {
            return Err(HeaderError::Reversed { tensor, begin, end });
        };
        if found != expected {
            return Err(HeaderError::Size {
                tensor,
                found,
                expected,
            });
        }
        match begin
            .checked_add(data_start)
            .filter(|o| o.checked_add(found).is_some())
        {
            Some(offset) => Ok(Tensor {
                name: tensor,
                dtype,
                shape,
                offset,
                length: found,
            }),
            None => Err(HeaderError::Gap {
                tensor,
                bytes: begin,
            }),
        }
    }
}

/// The entries of a header in file order, duplicates kept for a better message than serde's.
struct RawHeader(Vec<(String, RawTensor)>);

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(RawHeaderVisitor)
    }
}

struct RawHeaderVisitor;

impl<'de> Visitor<'de> for RawHeaderVisitor {
    type Value = RawHeader;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
        let mut tensors = Vec::new();
        let mut metadata = false;
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                if std::mem::replace(&mut metadata, true) {
                    return Err(A::Error::custom("__metadata__ stands twice"));
                }
                map.next_value::<Metadata>()?;
            } else {
                tensors.push((name, map.next_value()?));
            }
        }
        Ok(RawHeader(tensors))
    }
}

/// `__metadata__`: strings by name, checked and not kept.
struct Metadata;

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Metadata;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Metadata, A::Error> {
                let mut keys = HashSet::new();
                while let Some((key, _)) = map.next_entry::<String, String>()? {
                    if !keys.insert(key) {
                        return Err(A::Error::custom("a key of __metadata__ stands twice"));
                    }
                }
                Ok(Metadata)
            }
        }
        deserializer.deserialize_map(V)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(json: &str, data: usize) -> Vec<u8> {
        let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(json.as_bytes());
        bytes.resize(bytes.len() + data, 7);
        bytes
    }

    fn parse(json: &str, data: usize) -> Result<Header, HeaderError> {
        Header::from_file_bytes(&file(json, data))
    }

    #[test]
    fn a_good_header_gives_tensors_in_data_order() {
        let json = r#"{"__metadata__":{"format":"pt"},
            "b":{"dtype":"F32","shape":[],"data_offsets":[6,10]},
            "a":{"dtype":"BF16","shape":[1,3],"data_offsets":[0,6]}}   "#;
        let header = parse(json, 10).unwrap();
        let names: Vec<&str> = header.tensors.iter().map(|t| t.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(header.tensors[0].offset, 8 + json.len() as u64);
        assert_eq!(header.tensors[1].length, 4);
    }

    #[test]
    fn damage_is_described() {
        use HeaderError as E;
        let tensor = |name: &str, dtype: &str, shape: &str, b: u64, e: u64| {
            format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{b},{e}]}}"#)
        };
        let one = tensor("a", "U8", "[4]", 0, 4);
        let check = |body: &str, data: usize| parse(&format!("{{{body}}}"), data).unwrap_err();
        assert!(matches!(check(&one, 3), E::Short { .. }));
        assert!(matches!(check(&one, 5), E::Trailing { .. }));
        assert_eq!(
            check(&format!("{one},{one}"), 4),
            E::DuplicateTensor("a".into())
        );
        assert!(matches!(
            check(&tensor("a", "X9", "[4]", 0, 4), 4),
            E::UnknownDtype { .. }
        ));
        assert!(matches!(
            check(&tensor("a", "F4", "[3]", 0, 2), 2),
            E::Shape { .. }
        ));
        assert!(matches!(
            check(&tensor("a", "U8", "[4294967296,4294967296]", 0, 4), 4),
            E::Shape { .. }
        ));
        assert!(matches!(
            check(&tensor("a", "U8", "[5]", 0, 4), 4),
            E::Size { .. }
        ));
        assert!(matches!(
            check(&tensor("a", "U8", "[4]", 4, 0), 4),
            E::Reversed { .. }
        ));
        assert!(matches!(
            check(&tensor("a", "U8", "[4]", 1, 5), 5),
            E::Gap { .. }
        ));
        let far = u64::MAX - 2;
        assert!(matches!(
            check(&tensor("a", "U8", "[1]", far, far + 1), 5),
            E::Gap { .. }
        ));
        let overlap = format!("{one},{}", tensor("b", "U8", "[4]", 2, 6));
        assert!(matches!(check(&overlap, 6), E::Overlap { .. }));
        for bad in ["", "[]", "{", r#"{"a":1}"#, r#"{"a":{"dtype":"U8"}}"#] {
            assert!(matches!(parse(bad, 4).unwrap_err(), E::Json(_)), "{bad}");
        }
        let twice = r#"{"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
        assert!(matches!(parse(twice, 1).unwrap_err(), E::Json(m) if m.contains("duplicate")));
    }

    #[test]
    fn impostors_are_named() {
        let of = |bytes: &[u8]| Header::from_file_bytes(bytes).unwrap_err();
        assert_eq!(
            of(b"version https://git-lfs.github.com/spec/v1\n"),
            HeaderError::LfsPointer
        );
        assert_eq!(of(&[0; 5000]), HeaderError::ZeroHead);
        assert!(matches!(of(b"PK\x03\x04abcdefgh"), HeaderError::Foreign(_)));
        assert!(matches!(of(b""), HeaderError::Foreign(_)));
        assert!(matches!(of(b"abc"), HeaderError::Short { expected: 8, .. }));
        assert!(matches!(
            of(&u64::MAX.to_le_bytes()),
            HeaderError::HeaderTooLarge(_)
        ));
        assert!(matches!(
            of(&[200, 0, 0, 0, 0, 0, 0, 0, b'{']),
            HeaderError::Short { .. }
        ));
    }
}
