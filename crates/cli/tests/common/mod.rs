//! Runs the built binary in a world of its own.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "a module of every test file, each uses its part"
)]

pub mod models;

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A directory that stands for the machine: home, cache, configuration, working directory.
pub struct World {
    root: tempfile::TempDir,
}

impl World {
    pub fn new() -> World {
        World {
            root: tempfile::tempdir().expect("a temporary directory"),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// The binary, seeing nothing of the real user.
    pub fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lamella"));
        let mut ours: Vec<_> = std::env::vars_os().map(|(name, _)| name).collect();
        ours.retain(|name| {
            let name = name.to_string_lossy();
            name.starts_with("LAMELLA_") || name.starts_with("XDG_")
        });
        for name in ours {
            command.env_remove(name);
        }
        command
            .args(args)
            .current_dir(self.root.path())
            .env("HOME", self.root.path());
        command.stdin(Stdio::null());
        command
    }

    pub fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Ran {
        Ran::of(self.command(args).output().expect("the binary starts"))
    }

    /// Runs with `input` on standard input.
    pub fn run_with_input(&self, args: &[&str], input: impl AsRef<[u8]>) -> Ran {
        let mut command = self.command(args);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary starts");
        let mut stdin = child.stdin.take().expect("a pipe");
        // The binary may end before it has read everything.
        let _ = stdin.write_all(input.as_ref());
        drop(stdin);
        Ran::of(child.wait_with_output().expect("the binary ends"))
    }
}

/// What a run left behind.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Ran {
    pub fn of(output: Output) -> Ran {
        Ran {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Standard output of a run that must have worked.
    #[track_caller]
    pub fn ok(&self) -> &str {
        assert_eq!(self.code, Some(0), "{self:?}");
        &self.out
    }

    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(self.ok()).unwrap_or_else(|e| panic!("{e}: {}", self.out))
    }

    /// A failure with this code.
    #[track_caller]
    pub fn fails_with(&self, code: i32) {
        assert_eq!(self.code, Some(code), "{self:?}");
    }

    /// A failure: its code, and one line on standard error that holds all `words`.
    #[track_caller]
    pub fn fails(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        let line = self.err.lines().last().unwrap_or_default();
        assert!(line.starts_with("lamella: "), "{self:?}");
        for word in words {
            assert!(line.contains(word), "{word:?} is missing in {line:?}");
        }
    }
}

/// The least memory, in bytes, that the demo model opens in with this context.
pub fn least_memory(world: &World, context: usize) -> u64 {
    let context = context.to_string();
    let args = ["exec", "demo", "--tokens", "1", "--context", &context];
    let ran = world.run(args.into_iter().chain(["--memory", "4096"]));
    assert_eq!(ran.code, Some(4), "{ran:?}");
    let (_, told) = ran.err.split_once(" = ").expect("a sum");
    let bytes = told.split(' ').next().map(str::parse);
    bytes.and_then(Result::ok).expect("a number of bytes")
}

/// A file of the repository.
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}

/// The golden OLMoE checkpoint.
pub fn fixture() -> String {
    repository("fixtures/olmoe-101").display().to_string()
}

pub fn read_json(path: &str) -> serde_json::Value {
    let text = std::fs::read_to_string(repository(path)).expect("a file of the repository");
    serde_json::from_str(&text).expect("JSON")
}

/// Little-endian f32 of a file.
pub fn read_f32(path: &Path) -> Vec<f32> {
    let bytes = std::fs::read(path).expect("a file of numbers");
    bytes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|b| f32::from_le_bytes(*b))
        .collect()
}
