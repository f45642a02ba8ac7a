//! A Hugging Face checkpoint directory: `config.json`, safetensors weights, text files.

use crate::disk::{self, DataFile};
use crate::error::Error;
use crate::safetensors::{self, HEAD_BYTES, Header, Tensor};
use crate::shard_index::ShardIndex;
use lamella_program::{Encoding, TensorInfo};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

const SINGLE_FILE: &str = "model.safetensors";
const INDEX_FILE: &str = "model.safetensors.index.json";

/// Where the bytes of a tensor are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// Number of the weights file.
    pub file: u32,
    /// First byte in it.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

/// An opened checkpoint: all headers read and checked, no weights read.
#[derive(Debug)]
pub struct Checkpoint {
    dir: PathBuf,
    config: String,
    tensors: Vec<TensorInfo>,
    locations: Vec<Location>,
    by_name: HashMap<String, usize>,
    /// Of the weights files.
    paths: Vec<PathBuf>,
    /// The files themselves; none of a checkpoint that is only a table.
    files: Vec<DataFile>,
    fingerprint: blake3::Hasher,
}

impl Checkpoint {
    /// Opens the checkpoint in `dir`.
    ///
    /// # Errors
    /// If there is no complete, consistent checkpoint; the message names file and cause.
    pub fn open(dir: &Path) -> Result<Checkpoint, Error> {
        check_directory(dir)?;
        let config = disk::read_text(&dir.join("config.json"))?
            .ok_or_else(|| Error::NoConfig(dir.to_owned()))?;
        let shards = Shards::find(dir)?;
        let mut checkpoint = Checkpoint::empty(dir, config);
        for name in &shards.names {
            checkpoint.add_shard(name)?;
        }
        if let Some(ShardIndex { tensors }) = &shards.index {
            checkpoint.check_index(tensors)?;
        }
        Ok(checkpoint)
    }

    fn empty(dir: &Path, config: String) -> Checkpoint {
        Checkpoint {
            dir: dir.to_owned(),
            fingerprint: blake3::Hasher::new_derive_key("lamella checkpoint fingerprint v2"),
            config,
            tensors: Vec::new(),
            locations: Vec::new(),
            by_name: HashMap::new(),
            paths: Vec::new(),
            files: Vec::new(),
        }
    }

    /// Whether a weights file in `dir` ends before its header says, or there is none.
    pub(crate) fn is_cut_off(dir: &Path) -> Result<bool, Error> {
        let shards = match Shards::find(dir) {
            Err(Error::NoWeights { .. }) => return Ok(true),
            other => other?,
        };
        for name in &shards.names {
            let file = DataFile::open(dir.join(name))?;
            let header = match read_header(&file) {
                Ok(json) => Header::parse(&json, file.length),
                Err(_) => return Ok(false),
            };
            if matches!(header, Err(safetensors::HeaderError::Short { .. })) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// A checkpoint of which only the heads of the weights files in `dir` are looked at. Nothing
    /// can be read from it.
    pub(crate) fn heads(dir: &Path, config: String) -> Result<Checkpoint, Error> {
        let mut files = Vec::new();
        for name in Shards::find(dir)?.names {
            let file = DataFile::open(dir.join(name))?;
            let header = Header::parse_alone(&read_header(&file)?);
            let header = header.map_err(|cause| Error::Header {
                path: file.path.clone(),
                cause,
            })?;
            files.push((file.path, header.tensors));
        }
        Checkpoint::of_tables(dir, config, files)
    }

    /// A checkpoint of the tensors that the given files would hold. Nothing can be read from it.
    pub(crate) fn of_tables(
        dir: &Path,
        config: String,
        files: Vec<(PathBuf, Vec<Tensor>)>,
    ) -> Result<Checkpoint, Error> {
        let mut checkpoint = Checkpoint::empty(dir, config);
        for (path, tensors) in files {
            checkpoint.add_tensors(path, tensors)?;
        }
        Ok(checkpoint)
    }

    /// Adds the tensors of the weights file at `path`.
    fn add_tensors(&mut self, path: PathBuf, tensors: Vec<Tensor>) -> Result<(), Error> {
        let file = self.paths.len() as u32;
        for tensor in tensors {
            if let Some(&first) = self.by_name.get(&tensor.name) {
                let first = self.paths.get(self.locations[first].file as usize);
                return Err(Error::DuplicateTensor {
                    tensor: tensor.name,
                    first: first.unwrap_or(&path).display().to_string(),
                    path,
                });
            }
            self.by_name.insert(tensor.name.clone(), self.tensors.len());
            self.locations.push(Location {
                file,
                offset: tensor.offset,
                length: tensor.length,
            });
            self.tensors.push(describe(tensor));
        }
        self.paths.push(path);
        Ok(())
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Text of `config.json`.
    #[must_use]
    pub fn config(&self) -> &str {
        &self.config
    }

    /// Every tensor, shard by shard, in the order of their bytes.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor called `name` and where it is.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<(&TensorInfo, Location)> {
        let &i = self.by_name.get(name)?;
        Some((&self.tensors[i], self.locations[i]))
    }

    /// Path of weights file number `file`.
    #[must_use]
    pub fn file(&self, file: u32) -> Option<&Path> {
        self.paths.get(file as usize).map(PathBuf::as_path)
    }

    /// Fills `buffer` with the bytes of `tensor` from `start` on (bytes within the tensor).
    ///
    /// # Errors
    /// If there is no such tensor, the range leaves it, or reading fails.
    pub fn read(&self, tensor: &str, start: u64, buffer: &mut [u8]) -> Result<(), Error> {
        let Some((_, location)) = self.find(tensor) else {
            return Err(Error::NoTensor {
                dir: self.dir.clone(),
                tensor: tensor.to_owned(),
            });
        };
        let end = start.checked_add(buffer.len() as u64);
        if end.is_none_or(|end| end > location.length) {
            return Err(Error::Buffer {
                operand: tensor.to_owned(),
                found: buffer.len(),
                expected: location.length.saturating_sub(start) as usize,
            });
        }
        self.read_at(location.file, location.offset + start, buffer)
    }

    /// Fills `buffer` from byte `offset` of weights file `file`.
    pub(crate) fn read_at(&self, file: u32, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        match self.files.get(file as usize) {
            Some(file) => file.read_at(buffer, offset),
            None => Err(Error::OutlineOnly(self.dir.clone())),
        }
    }

    /// Digest of the configuration and of names, sizes, times, headers and a sample of the bytes of
    /// the weights files: small files wholly, of others pages at even distances and both ends.
    pub(crate) fn fingerprint(&self) -> Result<[u8; 32], Error> {
        const PAGE: u64 = 4096;
        const PAGES: u64 = 64;
        let mut hasher = self.fingerprint.clone();
        hasher.update(self.config.as_bytes());
        let mut page = [0; PAGE as usize];
        for file in &self.files {
            let whole = file.length <= PAGES * PAGE;
            let count = if whole {
                file.length.div_ceil(PAGE)
            } else {
                PAGES
            };
            for n in 0..count {
                let offset = match whole {
                    true => n * PAGE,
                    // The last one ends where the file does.
                    false => {
                        ((file.length - PAGE) as u128 * n as u128 / (PAGES - 1) as u128) as u64
                    }
                };
                let page = &mut page[..PAGE.min(file.length - offset) as usize];
                file.read_at(page, offset)?;
                hasher.update(page);
            }
        }
        Ok(*hasher.finalize().as_bytes())
    }

    /// Digest of the configuration and of the named tensors: what they are, and a
    /// [`sample`](Sample::of) of their bytes.
    pub(crate) fn digest_of<'a>(
        &self,
        tensors: impl Iterator<Item = &'a str>,
    ) -> Result<[u8; 32], Error> {
        /// Tensors whose bytes are asked for ahead of the reading.
        const AHEAD: usize = 256;
        let mut hasher = blake3::Hasher::new_derive_key("lamella checkpoint model v2");
        hasher.update(self.config.as_bytes());
        let found = tensors.filter_map(|name| self.find(name));
        let samples = found.map(|(tensor, at)| (tensor, at, Sample::of(&tensor.name, at.length)));
        let samples: Vec<_> = samples.collect();
        let mut bytes = [0; Sample::WHOLE as usize];
        for samples in samples.chunks(AHEAD) {
            for (_, at, sample) in samples {
                for start in sample.starts() {
                    self.files[at.file as usize].will_need(at.offset + start, sample.piece);
                }
            }
            for (tensor, at, sample) in samples {
                let TensorInfo {
                    name, dtype, shape, ..
                } = tensor;
                hasher.update(format!("{name}\0{dtype}\0{shape:?}\0").as_bytes());
                let piece = &mut bytes[..sample.piece as usize];
                for start in sample.starts() {
                    self.read_at(at.file, at.offset + start, piece)?;
                    hasher.update(piece);
                }
            }
        }
        Ok(*hasher.finalize().as_bytes())
    }

    /// Looks at a few pages of every weights file, before hours are spent on it: a download that
    /// reserved its file and stopped leaves a good header and long stretches of zeros.
    pub(crate) fn check_filled(&self) -> Result<(), Error> {
        const PAGE: usize = 4096;
        const PAGES: u64 = 32;
        /// Zero pages in a row that are too many: an eighth of the file.
        const TOO_MANY: u64 = 4;
        let mut page = [0u8; PAGE];
        for file in &self.files {
            let step = file.length / PAGES;
            if step < 8 * PAGE as u64 {
                continue;
            }
            let mut zero = 0;
            for n in 0..PAGES {
                let offset = n * step + step / 2;
                file.read_at(&mut page, offset)?;
                zero = if page.iter().all(|&b| b == 0) {
                    zero + 1
                } else {
                    0
                };
                if zero == TOO_MANY {
                    let offset = offset - (TOO_MANY - 1) * step;
                    return Err(Error::ZeroStretch {
                        path: file.path.clone(),
                        offset,
                    });
                }
            }
        }
        Ok(())
    }

    fn add_shard(&mut self, name: &str) -> Result<(), Error> {
        let file = DataFile::open(self.dir.join(name))?;
        let json = read_header(&file)?;
        let facts = (file.length, file.modified(), json.len());
        let facts = format!("{name}\0{}\0{}\0{}\0", facts.0, facts.1, facts.2);
        self.fingerprint.update(facts.as_bytes());
        self.fingerprint.update(&json);
        let header = Header::parse(&json, file.length).map_err(|cause| Error::Header {
            path: file.path.clone(),
            cause,
        })?;
        self.add_tensors(file.path.clone(), header.tensors)?;
        self.files.push(file);
        Ok(())
    }

    /// The index and the shards must agree on every tensor.
    fn check_index(&self, index: &BTreeMap<String, String>) -> Result<(), Error> {
        for (tensor, shard) in index {
            let path = self.dir.join(shard);
            match self.find(tensor) {
                Some((_, location)) if self.paths[location.file as usize] == path => {}
                _ => {
                    return Err(Error::ShardLacksTensor {
                        path,
                        tensor: tensor.clone(),
                    });
                }
            }
        }
        match self
            .tensors
            .iter()
            .position(|t| !index.contains_key(&t.name))
        {
            None => Ok(()),
            Some(i) => Err(Error::NotIndexed {
                path: self.paths[self.locations[i].file as usize].clone(),
                tensor: self.tensors[i].name.clone(),
            }),
        }
    }
}

/// Which bytes of a tensor stand for all of them: a short tensor wholly, of others a piece of both
/// ends, of the middle, and of places that follow from the name, so that those of many tensors are
/// everywhere. Training moves most numbers of a tensor, and a piece has hundreds.
struct Sample {
    starts: [u64; Sample::PIECES],
    /// How many of them there are.
    count: usize,
    /// Bytes from each on.
    piece: u64,
}

impl Sample {
    const PIECES: usize = 6;
    const PIECE: u64 = 1 << 10;
    /// Most bytes of a tensor that is read wholly.
    const WHOLE: u64 = 16 << 10;

    fn of(name: &str, length: u64) -> Sample {
        if length <= Sample::WHOLE {
            return Sample {
                starts: [0; Sample::PIECES],
                count: 1,
                piece: length,
            };
        }
        let last = length - Sample::PIECE;
        let digest = *blake3::hash(name.as_bytes()).as_bytes();
        let mut starts = [0; Sample::PIECES];
        for (start, bytes) in starts.iter_mut().zip(digest.as_chunks::<8>().0) {
            *start = u64::from_le_bytes(*bytes) % (last + 1);
        }
        starts[3..].copy_from_slice(&[0, last / 2, last]);
        Sample {
            starts,
            count: Sample::PIECES,
            piece: Sample::PIECE,
        }
    }

    fn starts(&self) -> impl Iterator<Item = u64> {
        self.starts.into_iter().take(self.count)
    }
}

fn describe(tensor: Tensor) -> TensorInfo {
    let encoding = match tensor.dtype.as_str() {
        "F32" => Some(Encoding::F32),
        "F16" => Some(Encoding::F16),
        "BF16" => Some(Encoding::Bf16),
        _ => None,
    };
    TensorInfo {
        name: tensor.name,
        dtype: tensor.dtype,
        encoding,
        shape: tensor.shape,
    }
}

/// A model is a directory.
pub(crate) fn check_directory(dir: &Path) -> Result<(), Error> {
    let metadata = std::fs::metadata(dir).map_err(|e| Error::io(dir, "open", e))?;
    if metadata.is_dir() {
        Ok(())
    } else {
        Err(Error::NotADirectory(dir.to_owned()))
    }
}

/// The JSON of the header of a weights file.
fn read_header(file: &DataFile) -> Result<Vec<u8>, Error> {
    let wrap = |cause| Error::Header {
        path: file.path.clone(),
        cause,
    };
    let mut head = [0u8; HEAD_BYTES];
    let head = &mut head[..(HEAD_BYTES as u64).min(file.length) as usize];
    file.read_at(head, 0)?;
    let length = safetensors::header_length(head, file.length).map_err(wrap)?;
    let mut json = vec![0; length as usize];
    file.read_at(&mut json, 8)?;
    Ok(json)
}

struct Shards {
    names: Vec<String>,
    index: Option<ShardIndex>,
}

impl Shards {
    /// The weights files of `dir`, all of which are there.
    fn find(dir: &Path) -> Result<Shards, Error> {
        let shards = match find_weights(dir)? {
            Weights::Single(name) => Shards {
                names: vec![name],
                index: None,
            },
            Weights::Index(index) => Shards {
                names: index.shards().into_iter().map(str::to_owned).collect(),
                index: Some(index),
            },
        };
        let names = shards.names.iter();
        let missing: Vec<String> = names.filter(|n| !dir.join(n).exists()).cloned().collect();
        if !missing.is_empty() {
            return Err(Error::MissingShards {
                dir: dir.to_owned(),
                shards: missing,
            });
        }
        Ok(shards)
    }
}

enum Weights {
    Single(String),
    Index(ShardIndex),
}

fn find_weights(dir: &Path) -> Result<Weights, Error> {
    if dir.join(SINGLE_FILE).exists() {
        return Ok(Weights::Single(SINGLE_FILE.to_owned()));
    }
    let path = dir.join(INDEX_FILE);
    if let Some(bytes) = disk::read_file(&path, safetensors::MAX_HEADER_BYTES)? {
        let json = disk::text(&path, bytes)?;
        let index = ShardIndex::parse(json.as_bytes()).map_err(|cause| Error::Index {
            path: path.clone(),
            cause,
        })?;
        return Ok(Weights::Index(index));
    }
    let mut names = list_files(dir)?;
    names.retain(|n| n.ends_with(".safetensors"));
    match names.len() {
        0 => Err(Error::NoWeights {
            dir: dir.to_owned(),
            found: what_else(dir)?,
        }),
        1 => Ok(Weights::Single(names.remove(0))),
        count => Err(Error::NoIndex {
            dir: dir.to_owned(),
            count,
        }),
    }
}

/// What weights of other kinds a directory holds, as the end of a sentence.
fn what_else(dir: &Path) -> Result<String, Error> {
    let names = list_files(dir)?;
    let kinds = [
        (".gguf", "; GGUF files are not read"),
        (
            ".bin",
            "; PyTorch .bin files are not read, convert them to safetensors",
        ),
        (
            ".pt",
            "; PyTorch .pt files are not read, convert them to safetensors",
        ),
        (
            ".pth",
            "; PyTorch .pth files are not read, convert them to safetensors",
        ),
    ];
    let found = kinds
        .iter()
        .find(|(end, _)| names.iter().any(|n| n.ends_with(end)));
    Ok(found.map_or_else(String::new, |(_, text)| (*text).to_owned()))
}

/// Names in a directory, sorted; names that are not UTF-8 are left out.
pub(crate) fn list_files(dir: &Path) -> Result<Vec<String>, Error> {
    let wrap = |e| Error::io(dir, "list", e);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(wrap)? {
        names.extend(entry.map_err(wrap)?.file_name().into_string());
    }
    names.sort_unstable();
    Ok(names)
}
