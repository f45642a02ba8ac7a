//! Experts that were found damaged, told to whoever looks after the model.
//!
//! Nothing is computed from a damaged expert, listed or not, and one that is listed is read again
//! when it is asked for: its disk may be sound by now.

use super::heat::replace;
use crate::error::Error;
use lamella_container::Store;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Entries that are kept: more of them say no more.
const MOST: usize = 1000;

/// An expert that did not fit its digest, however often it was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quarantined {
    /// Directory of the copy of the model that was read.
    pub dir: PathBuf,
    /// Layer it belongs to.
    pub layer: usize,
    /// Its number in the layer.
    pub expert: usize,
    /// What was found.
    pub problem: String,
}

/// The list of a model, in a file of its own.
pub(super) struct Quarantine {
    path: PathBuf,
    list: Mutex<Vec<Quarantined>>,
}

impl Quarantine {
    /// The list that `dir` has of `model`. One that cannot be read is as good as none.
    pub(super) fn load(dir: &Path, model: [u8; 32]) -> Quarantine {
        let path = path(dir, model);
        let list = Mutex::new(read(&path));
        Quarantine { path, list }
    }

    /// Adds an entry, unless the list has it. It is lost if it cannot be written: the error that it
    /// tells of is not.
    pub(super) fn add(&self, entry: Quarantined) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        if list.len() < MOST && !list.contains(&entry) {
            list.push(entry);
            let written = write(&self.path, &list);
            drop(written);
        }
    }
}

/// What was found damaged of the model `store`, as the files in `dir` tell.
///
/// # Errors
/// If the model has no identity that can be read.
pub fn quarantined(dir: &Path, store: &Store) -> Result<Vec<Quarantined>, Error> {
    Ok(read(&path(dir, store.fingerprint()?)))
}

/// Takes from the list of the model `store` the entries that `of` names, which are sound again.
///
/// # Errors
/// If the list cannot be written.
pub fn release(dir: &Path, store: &Store, of: &dyn Fn(&Quarantined) -> bool) -> Result<(), Error> {
    let path = path(dir, store.fingerprint()?);
    let mut list = read(&path);
    list.retain(|entry| !of(entry));
    let written = match list.is_empty() {
        true => std::fs::remove_file(&path),
        false => write(&path, &list),
    };
    written.map_err(|cause| Error::File {
        path,
        message: format!("the list of damaged experts cannot be written: {cause}"),
    })
}

fn path(dir: &Path, model: [u8; 32]) -> PathBuf {
    let name = blake3::Hash::from_bytes(model).to_hex();
    dir.join(&name.as_str()[..32]).with_extension("json")
}

fn read(path: &Path) -> Vec<Quarantined> {
    let text = std::fs::read(path).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

fn write(path: &Path, list: &[Quarantined]) -> std::io::Result<()> {
    replace(path, &serde_json::to_vec_pretty(list)?)
}
