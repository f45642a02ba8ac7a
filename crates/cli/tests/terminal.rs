//! A chat at a real (pseudo-)terminal: editing, Ctrl-C, history.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]
#![cfg(target_os = "linux")]

mod common;

use common::World;
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Child;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(120);

/// A program at a terminal.
struct Session {
    child: Child,
    keyboard: File,
    screen: Receiver<Vec<u8>>,
    seen: String,
}

impl Session {
    fn start(world: &World, args: &[&str]) -> Session {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY;
        let slave = rustix::fs::open(&name, flags, Mode::empty()).unwrap();
        let mut command = world.command(args);
        command.env("TERM", "xterm");
        command
            .stdin(slave.try_clone().unwrap())
            .stdout(slave.try_clone().unwrap())
            .stderr(slave);
        // SAFETY: between fork and exec only two system calls are made, both async-signal-safe.
        unsafe {
            command.pre_exec(|| {
                rustix::process::setsid()?;
                rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
                Ok(())
            });
        }
        let child = command.spawn().unwrap();
        drop(command);
        let keyboard = File::from(master);
        let mut reader = keyboard.try_clone().unwrap();
        let (sender, screen) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut buffer) {
                if sender.send(buffer[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Session {
            child,
            keyboard,
            screen,
            seen: String::new(),
        }
    }

    fn types(&mut self, keys: impl AsRef<[u8]>) {
        self.keyboard.write_all(keys.as_ref()).unwrap();
    }

    /// Waits for `text` and forgets everything up to its end.
    #[track_caller]
    fn sees(&mut self, text: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.seen.find(text) {
                self.seen.drain(..at + text.len());
                return;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match self.screen.recv_timeout(left) {
                Ok(bytes) => self.seen.push_str(&String::from_utf8_lossy(&bytes)),
                Err(RecvTimeoutError::Timeout) => panic!("no {text:?} in {:?}", self.seen),
                Err(RecvTimeoutError::Disconnected) => panic!("ended at {:?}", self.seen),
            }
        }
    }

    fn ends(mut self) -> Option<i32> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        panic!("it does not end: {:?}", self.seen);
    }
}

#[test]
fn a_chat_at_the_terminal() {
    let world = World::new();
    let endless = ["--logit-bias", "0=-inf,2=-inf", "--backend", "reference"];
    let mut session = Session::start(&world, &[&["run", "demo"], &endless[..]].concat());
    session.sees("/help");
    session.sees(">>> ");
    // Ctrl-C stops the answer and not the program. The terminal turns the key into the signal.
    session.types("Tell me a story about a fox named Lucy.\r");
    session.sees("Long ago");
    session.types("\x03");
    session.sees("interrupted]");
    session.sees(">>> ");
    session.types("/set max_tokens 7\r");
    session.sees("max_tokens = 7");
    // What the model says next depends on where the story was cut.
    session.sees(">>> ");
    session.types("/clear\r");
    session.sees("A new conversation.");
    session.types("What is the capital \\\r");
    session.sees("... ");
    session.types("of Kenya?\r");
    session.sees("Nairobi");
    session.sees("length]");
    // Once is a question, twice is an answer; something in between takes it back.
    session.sees(">>> ");
    session.types("\x03");
    session.sees("Ctrl-C again");
    session.sees(">>> ");
    session.types("/undo\r");
    session.sees("Taken back.");
    session.sees(">>> ");
    session.types("\x03");
    session.sees("Ctrl-C again");
    session.sees(">>> ");
    session.types("\x03");
    assert_eq!(session.ends(), Some(0));
    let history = world.path(".local/state/lamella/history.txt");
    assert_eq!(
        history.metadata().unwrap().permissions().mode() & 0o777,
        0o600
    );
    let text = std::fs::read_to_string(history).unwrap();
    assert!(text.contains("fox named Lucy"), "{text}");
}

#[test]
fn the_end_of_input_leaves() {
    let world = World::new();
    let mut session = Session::start(&world, &["run", "demo"]);
    session.sees(">>> ");
    session.types("\x04");
    assert_eq!(session.ends(), Some(0));
}

#[test]
fn lines_typed_ahead_are_read_one_after_the_other() {
    let world = World::new();
    let mut session = Session::start(&world, &["run", "demo"]);
    session.sees(">>> ");
    session.types("What is 3 plus 9?\nSpell the word river.\n");
    for _ in 0..2 {
        session.sees("stop]");
    }
    session.sees(">>> ");
    // Pasted at a terminal that does not mark what is pasted.
    session.types("\"\"\"\nWhat is the capital\nof Kenya?\n\"\"\"\n/set\n/set top_k 3\n");
    session.sees("stop]");
    session.sees("min_p = ");
    session.sees("top_k = 3");
    session.sees(">>> ");
    session.types("\x04");
    assert_eq!(session.ends(), Some(0));
    let history = std::fs::read_to_string(world.path(".local/state/lamella/history.txt")).unwrap();
    assert!(
        history.contains("What is the capital\\nof Kenya?"),
        "{history}"
    );
}

#[test]
fn lines_typed_during_an_answer_wait_for_its_end() {
    let world = World::new();
    let endless = ["--logit-bias", "0=-inf,2=-inf", "--backend", "reference"];
    let mut session = Session::start(&world, &[&["run", "demo"], &endless[..]].concat());
    session.sees(">>> ");
    session.types("/set max_tokens 60\r");
    session.sees("max_tokens = 60");
    session.sees(">>> ");
    session.types("Tell me a story about a fox named Lucy.\r");
    session.sees("Long ago");
    session.types("/set max_tokens 5\r/set top_k 3\r/undo\r");
    session.sees("length]");
    session.sees("max_tokens = 5");
    session.sees("top_k = 3");
    session.sees("Taken back.");
    // Outside the editor the terminal would take the key for itself.
    session.sees(">>> ");
    session.types("\x04");
    assert_eq!(session.ends(), Some(0));
}

#[test]
fn what_is_no_text_is_told_and_the_chat_goes_on() {
    let world = World::new();
    let mut session = Session::start(&world, &["run", "demo", "-q"]);
    session.sees(">>> ");
    session.types(b"caf\xe9 au lait\r");
    session.sees("lamella: standard input: not UTF-8");
    session.sees(">>> ");
    session.types("What is the capital of Kenya?\r");
    session.sees("Nairobi");
    session.sees(">>> ");
    // Once is a question, twice leaves.
    session.types("\x03");
    session.sees(">>> ");
    session.types("\x03");
    assert_eq!(session.ends(), Some(0));
}
