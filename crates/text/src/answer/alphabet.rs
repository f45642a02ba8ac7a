//! An answer as units: the bytes of its text, and one unit for each control token.

use crate::Tokenizer;

/// The unit of the first control token. No UTF-8 text has this byte or one above it, so text
/// cannot write a control token, and one search finds markers of both.
const FIRST: u8 = 0xF5;
/// Most control tokens of a format.
pub(super) const MOST: usize = 11;

/// The control tokens of a format that are single tokens of its tokenizer.
#[derive(Debug, Clone, Default)]
pub(super) struct Alphabet(Vec<(u32, &'static str)>);

impl Alphabet {
    /// Those of `spellings` that are one token each; the others are text. At most [`MOST`].
    pub(super) fn new(tokenizer: &Tokenizer, spellings: &[&'static str]) -> Self {
        let known = |spelling: &&'static str| {
            let id = tokenizer.token_id(spelling)?;
            // A word of the vocabulary that no text becomes is no control token.
            let same = tokenizer
                .encode(spelling, false)
                .is_ok_and(|ids| ids == [id]);
            same.then_some((id, *spelling))
        };
        Self(spellings.iter().filter_map(known).take(MOST).collect())
    }

    /// The unit of a token, if it is one of them.
    pub(super) fn unit(&self, id: u32) -> Option<u8> {
        let at = self.0.iter().position(|&(known, _)| known == id)?;
        Some(FIRST.saturating_add(u8::try_from(at).ok()?))
    }

    /// Whether a unit is a control token's.
    pub(super) fn is_control(unit: u8) -> bool {
        unit >= FIRST
    }

    /// The units of a marker that is written with its control tokens spelled out.
    pub(super) fn units(&self, marker: &str) -> Vec<u8> {
        let mut units = Vec::with_capacity(marker.len());
        let mut rest = marker;
        while let Some(first) = rest.chars().next() {
            let token = (FIRST..)
                .zip(&self.0)
                .find(|(_, (_, s))| rest.starts_with(s));
            let length = match token {
                Some((unit, (_, spelling))) => {
                    units.push(unit);
                    spelling.len()
                }
                None => {
                    units.extend(&rest.as_bytes()[..first.len_utf8()]);
                    first.len_utf8()
                }
            };
            rest = &rest[length..];
        }
        units
    }

    /// How a control token is spelled.
    pub(super) fn spelling(&self, unit: u8) -> Option<&'static str> {
        let at = unit.checked_sub(FIRST)?;
        self.0.get(usize::from(at)).map(|&(_, spelling)| spelling)
    }

    /// Units as text, control tokens spelled out. `units` are whole characters.
    pub(super) fn text(&self, units: &[u8]) -> String {
        let mut text = String::with_capacity(units.len());
        for part in units.chunk_by(|a, b| !Self::is_control(*a) && !Self::is_control(*b)) {
            match part {
                &[unit] if Self::is_control(unit) => {
                    text.push_str(self.spelling(unit).unwrap_or_default());
                }
                part => text.push_str(&String::from_utf8_lossy(part)),
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_become_units_and_units_text() {
        let alphabet = Alphabet(vec![(7, "<think>"), (9, "｜D｜")]);
        assert_eq!(alphabet.unit(9), Some(0xF6));
        assert_eq!(alphabet.unit(8), None);
        let units = alphabet.units("é<｜D｜x\"<think><think");
        assert_eq!(units, b"\xc3\xa9<\xf6x\"\xf5<think");
        assert_eq!(alphabet.text(&units), "é<｜D｜x\"<think><think");
        assert_eq!(alphabet.text(b"\xf5\xf5a\xff"), "<think><think>a");
    }
}
