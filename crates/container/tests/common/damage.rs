//! Doing damage, and judging what is said about it.

use super::open;
use lamella_container::{Error, verify};
use std::path::Path;

/// What is done to a directory, and what the message must say.
pub type Case = (&'static str, fn(&Path), &'static [&'static str]);

pub fn write(dir: &Path, name: &str, bytes: impl AsRef<[u8]>) {
    std::fs::write(dir.join(name), bytes).unwrap();
}

pub fn read(dir: &Path, name: &str) -> Vec<u8> {
    std::fs::read(dir.join(name)).unwrap()
}

pub fn flip(dir: &Path, name: &str, at: usize) {
    let mut bytes = read(dir, name);
    bytes[at] ^= 1;
    write(dir, name, bytes);
}

/// Runs every case on a fresh copy and collects those that do not behave.
pub fn check(cases: &[Case], make: impl Fn(&Path), attempt: fn(&Path) -> Option<String>) {
    let mut wrong = Vec::new();
    for (name, damage, expected) in cases {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("model");
        make(&dir);
        assert_eq!(attempt(&dir), None, "sound before damage");
        damage(&dir);
        match attempt(&dir) {
            None => wrong.push(format!("{name}: nothing was noticed")),
            Some(message) => {
                if message.contains('\n') || !message.contains(dir.to_str().unwrap()) {
                    wrong.push(format!("{name}: not one line with a path: {message}"));
                }
                for word in *expected {
                    if !message.contains(word) {
                        wrong.push(format!("{name}: {word:?} is not in: {message}"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

pub fn open_message(dir: &Path) -> Option<String> {
    open(dir).err().map(|e| e.to_string())
}

pub fn verify_message(dir: &Path) -> Option<String> {
    match verify(dir, &mut |_| {}) {
        Ok(report) => report.damage.first().map(Error::to_string),
        Err(e) => Some(e.to_string()),
    }
}
