//! The demo model: part of this program, unpacked where it can be opened.

use crate::files::Temporary;
use anyhow::Context;
use std::fs::{self, File, FileTimes};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tempfile::TempDir;

/// The word that names it on the command line.
pub(crate) const NAME: &str = "demo";

macro_rules! demo_files {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_bytes!(concat!("../../../demo/model/", $name)))),*]
    };
}

const FILES: &[(&str, &[u8])] = demo_files![
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
];

/// Where the demo model lies, unpacked.
#[derive(Debug)]
pub(crate) enum Unpacked {
    /// In the user's cache, for the next time too.
    Cached(PathBuf),
    /// In a directory of its own that goes when this value goes.
    Temporary(
        TempDir,
        #[expect(dead_code, reason = "held to be dropped")] Temporary,
    ),
}

impl Unpacked {
    pub(crate) fn path(&self) -> &Path {
        match self {
            Unpacked::Cached(path) => path,
            Unpacked::Temporary(dir, _) => dir.path(),
        }
    }
}

/// Unpacks the demo model, unless an intact copy is in the cache.
///
/// # Errors
/// Neither the cache nor the system's temporary directory can be written.
pub(crate) fn unpack() -> anyhow::Result<Unpacked> {
    let cache = directories::ProjectDirs::from("", "", "lamella");
    if let Some(cached) = cache.and_then(|dirs| unpack_into(dirs.cache_dir()).ok()) {
        return Ok(Unpacked::Cached(cached));
    }
    let make = || tempfile::Builder::new().prefix("lamella-demo-").tempdir();
    let made = Temporary::make(make, TempDir::path);
    let (dir, temporary) = made.context("the demo model needs a temporary directory")?;
    write_files(dir.path())?;
    Ok(Unpacked::Temporary(dir, temporary))
}

/// The copy in `cache`, made if it is absent or damaged. Appears whole or not at all: it is
/// unpacked beside its place and then renamed. Other processes may do the same meanwhile; whoever
/// comes first wins, and the others take that copy.
fn unpack_into(cache: &Path) -> anyhow::Result<PathBuf> {
    let target = cache.join(format!("demo-{}", &digest()[..16]));
    if is_intact(&target) {
        return Ok(target);
    }
    fs::create_dir_all(cache)?;
    let make = || tempfile::Builder::new().prefix(".demo-").tempdir_in(cache);
    let (fresh, _temporary) = Temporary::make(make, TempDir::path)?;
    write_files(fresh.path())?;
    // Succeeds only if nothing is there.
    let place = |fresh: TempDir| match fs::rename(fresh.path(), &target) {
        Ok(()) => {
            let _ = fresh.keep();
            Ok(())
        }
        Err(_) => Err(fresh),
    };
    let Err(fresh) = place(fresh) else {
        return Ok(target);
    };
    // A copy that another process just made, or a damaged one. One process at a time replaces it;
    // where directories cannot be locked, two may, and both find an intact copy in the end.
    let lock = File::open(cache).and_then(|dir| dir.lock().map(|()| dir));
    if !is_intact(&target) {
        let make = || tempfile::Builder::new().prefix(".old-").tempdir_in(cache);
        let (aside, _temporary) = Temporary::make(make, TempDir::path)?;
        let _ = fs::rename(&target, aside.path().join("demo"));
        let _ = place(fresh);
    }
    drop(lock);
    anyhow::ensure!(
        is_intact(&target),
        "{}: cannot be replaced",
        target.display()
    );
    Ok(target)
}

/// The files, all with one time that follows from their content: the copies of one version are
/// the same checkpoint, wherever they lie.
fn write_files(dir: &Path) -> anyhow::Result<()> {
    let number = u64::from_str_radix(&digest()[..7], 16)?;
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(number);
    for (name, bytes) in FILES {
        let path = dir.join(name);
        let write = || {
            let mut file = File::create(&path)?;
            file.write_all(bytes)?;
            file.set_times(FileTimes::new().set_modified(time))
        };
        write().with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// Every byte is compared: five megabytes cost less than a doubt. A file too many could make
/// another model of it.
fn is_intact(dir: &Path) -> bool {
    let count = fs::read_dir(dir).map_or(0, Iterator::count);
    count == FILES.len()
        && FILES
            .iter()
            .all(|(name, bytes)| fs::read(dir.join(name)).is_ok_and(|found| found == *bytes))
}

/// Names the content, so that two versions of this program do not fight over one directory.
fn digest() -> String {
    let mut hasher = blake3::Hasher::new();
    for (name, bytes) in FILES {
        hasher
            .update(name.as_bytes())
            .update(&(bytes.len() as u64).to_le_bytes())
            .update(bytes);
    }
    hasher.finalize().to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_repaired_and_nothing_is_left_lying_about() {
        let cache = tempfile::tempdir().unwrap();
        let first = unpack_into(cache.path()).unwrap();
        assert!(is_intact(&first));
        assert_eq!(unpack_into(cache.path()).unwrap(), first);
        fs::write(first.join("config.json"), "{}").unwrap();
        assert!(!is_intact(&first));
        assert_eq!(unpack_into(cache.path()).unwrap(), first);
        assert!(is_intact(&first));
        assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 1);
    }

    #[test]
    fn many_that_unpack_at_once_all_get_a_copy() {
        for damaged in [false, true] {
            let cache = tempfile::tempdir().unwrap();
            if damaged {
                let target = unpack_into(cache.path()).unwrap();
                fs::write(target.join("config.json"), "{}").unwrap();
            }
            let path = cache.path();
            let barrier = std::sync::Barrier::new(8);
            std::thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| {
                        barrier.wait();
                        let found = unpack_into(path).unwrap();
                        assert!(is_intact(&found));
                    });
                }
            });
            assert_eq!(fs::read_dir(path).unwrap().count(), 1);
        }
    }

    #[test]
    fn a_cache_that_cannot_be_written_is_an_error_not_a_panic() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(unpack_into(&file).is_err());
    }

    #[test]
    fn every_file_of_the_demo_is_packed() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo/model");
        let mut names: Vec<_> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(
            names,
            FILES.iter().map(|(name, _)| *name).collect::<Vec<_>>()
        );
    }
}
