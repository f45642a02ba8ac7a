//! The state machine: units in, events out.
//!
//! It goes unit by unit, so how an answer is cut into pieces makes no difference. A marker that
//! may still come is held back; what turns out to be none is read again as what it then is.

use std::collections::VecDeque;
use std::sync::Arc;

use super::alphabet::Alphabet;
use super::call::Reading;
use super::format::Format;
use super::output::Output;
use super::table::{Next, Place};
use super::value::Declared;

/// Longest name of a tool, in bytes.
pub(super) const MAX_NAME: usize = 256;

#[derive(Debug, Clone)]
pub(super) struct Machine {
    pub(super) format: Arc<Format>,
    pub(super) declared: Arc<Declared>,
    pub(super) place: Place,
    /// The state of the search for the place's markers.
    pub(super) state: u32,
    /// What may become a marker.
    pub(super) held: Vec<u8>,
    /// White space before it, where only markers are expected.
    pub(super) space: Vec<u8>,
    /// What belongs to the place and was not handed on.
    pub(super) text: Vec<u8>,
    /// Line ends do not count until something else comes.
    at_start: bool,
    /// The call being read, as it is written.
    pub(super) written: Vec<u8>,
    pub(super) reading: Reading,
    /// What is read again, before anything new.
    again: VecDeque<u8>,
    pub(super) output: Output,
}

impl Machine {
    pub(super) fn new(
        format: Arc<Format>,
        declared: Arc<Declared>,
        place: Place,
        output: Output,
    ) -> Self {
        Self {
            // Behind a marker of the prompt.
            at_start: format.habits.newlines && place != format.start,
            format,
            declared,
            place,
            state: 0,
            held: Vec::new(),
            space: Vec::new(),
            text: Vec::new(),
            written: Vec::new(),
            reading: Reading::default(),
            again: VecDeque::new(),
            output,
        }
    }

    /// Takes more units: whole characters and control tokens.
    pub(super) fn feed(&mut self, units: &[u8]) {
        for &unit in units {
            self.unit(unit);
            while let Some(unit) = self.again.pop_front() {
                self.unit(unit);
            }
        }
        self.hand_on();
    }

    /// Ends the answer.
    pub(super) fn finish(&mut self) {
        let held = std::mem::take(&mut self.held);
        // The beginning of a marker is text, unless it has a token that text cannot have.
        let marker = held.iter().copied().any(Alphabet::is_control);
        match self.place {
            Place::Reasoning | Place::Content if !marker => self.text.extend(held),
            Place::Start | Place::Outside if !marker => {
                if self.place == Place::Start || !held.is_empty() {
                    self.text = [std::mem::take(&mut self.space), held].concat();
                }
                self.place = Place::Content;
            }
            place if place.in_call() => self.cut_off(),
            _ => {}
        }
        self.hand_on();
        self.output.content_ended();
    }

    fn unit(&mut self, unit: u8) {
        if self.output.stop_string().is_some() {
            return;
        }
        if self.place.in_call() {
            self.written.push(unit);
        }
        if self.place == Place::Json {
            self.json(unit);
        } else if self.place.expects() {
            self.expect(unit);
        } else {
            self.search(unit);
        }
    }

    /// Text, until a marker ends it.
    fn search(&mut self, unit: u8) {
        let exits = self.format.exits(self.place);
        self.state = exits.automaton.step(self.state, unit);
        self.held.push(unit);
        if let Some((length, next)) = exits.found(self.state) {
            let text = self.held.len().saturating_sub(length);
            self.text.extend(self.held.drain(..text));
            self.pass(next);
            return;
        }
        let free = self.held.len() - exits.automaton.depth(self.state);
        self.text.extend(self.held.drain(..free));
        let name = matches!(self.place, Place::Name | Place::Author);
        if name && self.text.len() > MAX_NAME {
            let held = std::mem::take(&mut self.held);
            self.no_call(&held);
        }
    }

    /// White space and a marker, or something else.
    fn expect(&mut self, unit: u8) {
        if self.held.is_empty() && unit.is_ascii_whitespace() {
            self.space.push(unit);
            return;
        }
        let exits = self.format.exits(self.place);
        self.state = exits.automaton.step(self.state, unit);
        self.held.push(unit);
        let length = self.held.len();
        match exits.found(self.state) {
            Some((found, next)) if found == length => self.pass(next),
            _ if exits.automaton.depth(self.state) == length => {}
            _ => self.unexpected(),
        }
    }

    /// A marker was found; it is what is held.
    fn pass(&mut self, next: Next) {
        let marker = std::mem::take(&mut self.held);
        self.state = 0;
        let (Next::To(to) | Next::Open(to) | Next::Close(to)) = next;
        if !self.leave(&marker, to) {
            return;
        }
        self.space.clear();
        match next {
            Next::To(_) => {}
            Next::Open(_) => {
                self.output.content_ended();
                self.reading = Reading::default();
                if !self.place.in_call() {
                    self.written = marker;
                }
            }
            Next::Close(_) => self.close(),
        }
        if !to.in_call() {
            self.written.clear();
        }
        self.place = to;
        self.at_start = self.format.habits.newlines;
    }

    /// Hands on what a place has gathered, before `to` is entered. `false` if it cannot be what
    /// it should; the answer then goes on as content.
    fn leave(&mut self, marker: &[u8], to: Place) -> bool {
        match self.place {
            Place::Reasoning => self.hand_on(),
            Place::Content => {
                self.hand_on();
                self.output.content_ended();
            }
            Place::Author => {
                let author = std::mem::take(&mut self.text);
                if !author.is_empty() && !super::call::is_name(&author) {
                    self.say(&author);
                }
            }
            place if place.in_call() => return self.leave_in_call(marker, to),
            _ => {}
        }
        true
    }

    /// Something else than a marker, where only markers are expected.
    fn unexpected(&mut self) {
        let word = std::mem::take(&mut self.held);
        self.state = 0;
        if self.place.in_call() {
            self.no_marker(&word);
            return;
        }
        // Text where a part should begin is content.
        let space = std::mem::take(&mut self.space);
        self.place = Place::Content;
        self.at_start = false;
        self.text = space;
        self.read_again(&word);
    }

    /// What is written is no call after all, or not to its end: the rest is content. `rest` was
    /// taken for a part of it and is read again.
    pub(super) fn no_call(&mut self, rest: &[u8]) {
        let space = std::mem::take(&mut self.space);
        self.forget(rest.len() + space.len());
        self.call_lost();
        self.held.clear();
        self.text.clear();
        self.state = 0;
        self.place = Place::Content;
        self.at_start = false;
        self.say(&space);
        self.read_again(rest);
    }

    /// Takes the last units back from what is written of a call.
    pub(super) fn forget(&mut self, units: usize) {
        let kept = self.written.len().saturating_sub(units);
        self.written.truncate(kept);
    }

    /// Reads `units` again, before anything else.
    pub(super) fn read_again(&mut self, units: &[u8]) {
        for &unit in units.iter().rev() {
            self.again.push_front(unit);
        }
    }

    /// Content out of its place.
    pub(super) fn say(&mut self, units: &[u8]) {
        let text = self.format.alphabet.text(units);
        self.output.content(&text);
    }

    /// Hands on what has come of the present place.
    pub(super) fn hand_on(&mut self) {
        match self.place {
            Place::Reasoning | Place::Content => {}
            Place::Json => return self.json_news(),
            _ => return,
        }
        let units = std::mem::take(&mut self.text);
        let start = match self.at_start {
            true => units.iter().take_while(|unit| **unit == b'\n').count(),
            false => 0,
        };
        let text = self.format.alphabet.text(&units[start..]);
        self.at_start &= text.is_empty();
        match self.place {
            Place::Reasoning => self.output.reasoning(&text),
            _ => self.output.content(&text),
        }
    }
}
