//! How much each expert was used lately, kept from one run to the next.
//!
//! Heat decides only what is read before anybody asks, and what is kept: never a result. A file
//! that is not what it should be is as good as none.

use crate::error::Error;
use rustix::process::getpid;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Tokens after which a use counts half.
const HALF_LIFE: f64 = 4096.0;
const MAGIC: &[u8; 8] = b"LAMHEAT1";
/// Magic, model, number of experts.
const HEAD: usize = 8 + 32 + 4;
/// BLAKE3 of everything before it.
const TAIL: usize = 32;

/// Uses of every expert, fading.
pub(super) struct Heat {
    /// Uses of long ago weigh less because those of today weigh more: by `weight`.
    values: Vec<f32>,
    weight: f64,
    /// Of which model it is.
    model: [u8; 32],
    path: PathBuf,
    /// Whether there is something new.
    changed: bool,
}

impl Heat {
    /// What the file of `model` in the directory `dir` says of its `records` experts; nothing, if
    /// there is none or it is none.
    pub(super) fn load(dir: &Path, model: [u8; 32], records: u32) -> Heat {
        let name = blake3::Hash::from_bytes(model).to_hex();
        let path = dir.join(&name.as_str()[..32]).with_extension("heat");
        let values = read(&path, &model, records as usize);
        Heat {
            values: values.unwrap_or_else(|| vec![0.0; records as usize]),
            weight: 1.0,
            model,
            path,
            changed: false,
        }
    }

    /// A record is used.
    pub(super) fn touch(&mut self, record: u32) {
        self.values[record as usize] += self.weight as f32;
        self.changed = true;
    }

    /// A token has gone through all layers.
    pub(super) fn token(&mut self) {
        /// Beyond this, everything is made small again.
        const MOST: f64 = 1e6;
        self.weight *= libm::exp2(1.0 / HALF_LIFE);
        if self.weight > MOST {
            self.fade();
        }
    }

    /// Makes a use of now weigh 1.
    fn fade(&mut self) {
        let factor = (1.0 / self.weight) as f32;
        self.values.iter_mut().for_each(|value| *value *= factor);
        self.weight = 1.0;
    }

    /// Records that were used, the hottest first.
    pub(super) fn hottest(&self) -> Vec<u32> {
        let heat = |record: &u32| self.values[*record as usize];
        let all = 0..self.values.len() as u32;
        let mut used: Vec<u32> = all.filter(|record| heat(record) > 0.0).collect();
        used.sort_by(|a, b| heat(b).total_cmp(&heat(a)));
        used
    }

    /// Writes the file anew, if there is something new.
    ///
    /// # Errors
    /// [`Error::File`] if it cannot be written; the old one is then still there.
    pub(super) fn save(&mut self) -> Result<(), Error> {
        if !std::mem::take(&mut self.changed) {
            return Ok(());
        }
        self.fade();
        let mut bytes = Vec::with_capacity(HEAD + 4 * self.values.len() + TAIL);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&self.model);
        bytes.extend_from_slice(&(self.values.len() as u32).to_le_bytes());
        let values = self.values.iter().flat_map(|value| value.to_le_bytes());
        bytes.extend(values);
        let digest = blake3::hash(&bytes);
        bytes.extend_from_slice(digest.as_bytes());
        replace(&self.path, &bytes).map_err(|cause| Error::File {
            path: self.path.clone(),
            message: format!("cannot write what experts were used: {cause}"),
        })
    }
}

/// Puts a file in the place of another one, as a whole.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(dir)?;
    // Several programs may write at once: each its own file.
    let new = path.with_extension(format!("{}.new", getpid().as_raw_nonzero()));
    let mut file = std::fs::File::create(&new)?;
    let written = file
        .write_all(bytes)
        .and_then(|()| std::fs::rename(&new, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&new);
    }
    written
}

fn read(path: &Path, model: &[u8; 32], records: usize) -> Option<Vec<f32>> {
    let length = HEAD + 4 * records + TAIL;
    let found = std::fs::metadata(path).ok()?;
    if !found.is_file() || found.len() != length as u64 {
        return None;
    }
    let bytes = std::fs::read(path).ok().filter(|b| b.len() == length)?;
    let (content, digest) = bytes.split_at(length - TAIL);
    let (head, values) = content.split_at(HEAD);
    let expected = [&MAGIC[..], model, &(records as u32).to_le_bytes()].concat();
    if head != expected || blake3::hash(content).as_bytes() != digest {
        return None;
    }
    let values = values.chunks_exact(4);
    let values = values.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let values: Vec<f32> = values.collect();
    values
        .iter()
        .all(|v| v.is_finite() && *v >= 0.0)
        .then_some(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_is_known_the_next_time_and_damage_is_as_good_as_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let inner = dir.path().join("heat");
        let mut heat = Heat::load(&inner, [7; 32], 10);
        assert!(heat.hottest().is_empty());
        heat.save().expect("nothing to write");
        assert!(!inner.exists());
        for _ in 0..3 {
            heat.touch(4);
        }
        heat.touch(9);
        for _ in 0..10 * HALF_LIFE as usize {
            heat.token();
        }
        // One use of now is more than three of long ago.
        heat.touch(2);
        heat.save().expect("writes");
        let again = Heat::load(&inner, [7; 32], 10);
        assert_eq!(again.hottest(), [2, 4, 9]);
        assert!(Heat::load(&inner, [8; 32], 10).hottest().is_empty());
        let sound = std::fs::read(&heat.path).expect("a file");
        for at in 0..sound.len() {
            let mut bytes = sound.clone();
            bytes[at] ^= 1;
            std::fs::write(&heat.path, bytes).expect("writes");
            assert!(Heat::load(&inner, [7; 32], 10).hottest().is_empty(), "{at}");
            std::fs::write(&heat.path, &sound[..at]).expect("writes");
            assert!(Heat::load(&inner, [7; 32], 10).hottest().is_empty(), "{at}");
        }
        std::fs::remove_file(&heat.path).expect("removes");
        std::fs::create_dir(&heat.path).expect("a directory in its place");
        let mut heat = Heat::load(&inner, [7; 32], 10);
        heat.touch(1);
        assert!(matches!(heat.save(), Err(Error::File { .. })));
        assert_eq!(std::fs::read_dir(&inner).expect("lists").count(), 1);
    }

    #[test]
    fn numbers_stay_small() {
        let mut heat = Heat::load(Path::new("/nowhere"), [0; 32], 2);
        for _ in 0..100_000 {
            heat.touch(0);
            heat.token();
        }
        heat.touch(1);
        let (hot, once) = (heat.values[0], heat.values[1]);
        assert!(
            hot.is_finite() && hot / once > 5800.0 && hot / once < 6000.0,
            "{}",
            hot / once
        );
    }
}
