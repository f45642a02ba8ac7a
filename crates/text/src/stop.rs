//! Stop strings: the answer ends before the first one, wherever token borders fall.

use std::sync::Arc;

use crate::Error;

/// Most stop strings at once.
const MAX_STOPS: usize = 64;
/// Longest stop string, in bytes.
const MAX_STOP_BYTES: usize = 1024;

/// A set of stop strings, compiled once and shared.
#[derive(Debug, Clone)]
pub struct StopStrings {
    automaton: Automaton,
    stops: Arc<[String]>,
}

impl StopStrings {
    /// Compiles `stops`. An empty stop string, one longer than 1024 bytes, or more than 64 are
    /// refused.
    pub fn new<S: AsRef<str>>(stops: &[S]) -> Result<Self, Error> {
        let refuse = |cause: String| Err(Error::Stop { cause });
        if stops.len() > MAX_STOPS {
            return refuse(format!("{} given, the limit is {MAX_STOPS}", stops.len()));
        }
        for stop in stops.iter().map(AsRef::as_ref) {
            if stop.is_empty() {
                return refuse("an empty one would end every answer before it began".into());
            }
            if stop.len() > MAX_STOP_BYTES {
                return refuse(format!(
                    "one has {} bytes, the limit is {MAX_STOP_BYTES}",
                    stop.len()
                ));
            }
        }
        Ok(Self {
            automaton: Automaton::new(stops.iter().map(|stop| stop.as_ref().as_bytes())),
            stops: stops.iter().map(|stop| stop.as_ref().to_owned()).collect(),
        })
    }

    /// No stop strings: everything flows at once.
    pub fn none() -> Self {
        Self {
            automaton: Automaton::new(std::iter::empty()),
            stops: Arc::new([]),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.stops.is_empty()
    }

    /// A matcher for one text.
    pub fn matcher(&self) -> StopMatcher {
        StopMatcher {
            stops: self.clone(),
            state: 0,
            held: String::new(),
            matched: None,
        }
    }
}

/// Looks for several patterns at once, byte by byte (Aho-Corasick): after each byte the depth of
/// the state is the length of the longest suffix of the text that is a prefix of some pattern,
/// which is just what must be held back. The first state is 0.
#[derive(Debug, Clone)]
pub(crate) struct Automaton(Arc<[State]>);

#[derive(Debug, Clone, Default)]
struct State {
    next: Vec<(u8, u32)>,
    fail: u32,
    /// Length of the path from the root, in bytes.
    depth: usize,
    /// The longest pattern that ends here.
    found: Option<usize>,
}

impl Automaton {
    /// Compiles `patterns`, which are not empty and have fewer than 2³² bytes together.
    pub(crate) fn new<'a>(patterns: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut states = vec![State::default()];
        for (index, pattern) in patterns.enumerate() {
            let mut at = 0;
            for &byte in pattern {
                at = insert(&mut states, at, byte);
            }
            states[at].found.get_or_insert(index);
        }
        link(&mut states);
        Self(states.into())
    }

    /// The state after `byte`.
    pub(crate) fn step(&self, mut state: u32, byte: u8) -> u32 {
        loop {
            let here = &self.0[state as usize];
            match here.next.iter().find(|(label, _)| *label == byte) {
                Some(&(_, next)) => return next,
                None if state == 0 => return 0,
                None => state = here.fail,
            }
        }
    }

    /// Bytes to hold back in `state`.
    pub(crate) fn depth(&self, state: u32) -> usize {
        self.0[state as usize].depth
    }

    /// The longest pattern that ends with the byte that led to `state`.
    pub(crate) fn found(&self, state: u32) -> Option<usize> {
        self.0[state as usize].found
    }
}

/// The state reached from `at` by `byte`, made if it is new.
fn insert(states: &mut Vec<State>, at: usize, byte: u8) -> usize {
    if let Some(&(_, next)) = states[at].next.iter().find(|(label, _)| *label == byte) {
        return next as usize;
    }
    let depth = states[at].depth + 1;
    let next = states.len();
    states.push(State {
        depth,
        ..State::default()
    });
    // The patterns' bytes together are far below u32.
    states[at].next.push((byte, next as u32));
    next
}

/// Sets the failure links, breadth first, and hands shorter patterns down to the states they end
/// in.
fn link(states: &mut [State]) {
    let mut queue: std::collections::VecDeque<u32> =
        states[0].next.iter().map(|&(_, next)| next).collect();
    while let Some(at) = queue.pop_front() {
        for (byte, child) in states[at as usize].next.clone() {
            let mut fail = states[at as usize].fail;
            let target = loop {
                let found = states[fail as usize]
                    .next
                    .iter()
                    .find(|(label, _)| *label == byte);
                match found {
                    Some(&(_, next)) => break next,
                    None if fail == 0 => break 0,
                    None => fail = states[fail as usize].fail,
                }
            };
            let inherited = states[target as usize].found;
            let child_state = &mut states[child as usize];
            child_state.fail = target;
            child_state.found = child_state.found.or(inherited);
            queue.push_back(child);
        }
    }
}

/// Follows one text and lets through what is certainly not the beginning of a stop string.
///
/// The stop whose last byte comes first ends the text; of several ending at the same byte the
/// longest. How the text is cut into pieces makes no difference. After a match nothing flows.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: StopStrings,
    state: u32,
    held: String,
    matched: Option<usize>,
}

impl StopMatcher {
    /// Takes more text and appends to `out` what may be shown. Returns whether a stop has been
    /// found, now or earlier.
    pub fn push(&mut self, text: &str, out: &mut String) -> bool {
        if self.matched.is_some() {
            return true;
        }
        if self.stops.is_empty() {
            out.push_str(text);
            return false;
        }
        for (at, &byte) in text.as_bytes().iter().enumerate() {
            self.state = self.stops.automaton.step(self.state, byte);
            if let Some(stop) = self.stops.automaton.found(self.state) {
                self.matched = Some(stop);
                self.held.push_str(text.get(..=at).unwrap_or(text));
                let show = self.held.len() - self.stops.stops[stop].len();
                out.push_str(self.held.get(..show).unwrap_or_default());
                self.held.clear();
                return true;
            }
        }
        self.held.push_str(text);
        // What is held begins like a stop, and so on a character border.
        let show = self.held.len() - self.stops.automaton.depth(self.state);
        out.push_str(self.held.get(..show).unwrap_or_default());
        self.held.drain(..show);
        false
    }

    /// Ends the text: what was held back is text after all, unless a stop was found.
    pub fn finish(&mut self, out: &mut String) {
        if self.matched.is_none() {
            out.push_str(&self.held);
        }
        self.held.clear();
        self.state = 0;
    }

    /// The stop string that ended the text.
    pub fn matched(&self) -> Option<&str> {
        self.matched.map(|stop| self.stops.stops[stop].as_str())
    }

    /// The text held back for now.
    pub fn held(&self) -> &str {
        &self.held
    }
}
