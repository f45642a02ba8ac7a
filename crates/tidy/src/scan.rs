//! A scanner that tells code, comments and literals of a Rust file apart.
//!
//! It knows just enough of the language for the rules: line and nested block comments, strings,
//! raw strings, character literals and lifetimes. Code keeps its columns; what is not code is
//! blanked out in it.

/// One line, taken apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// The code, with comments and the contents of literals replaced by spaces.
    pub code: String,
    /// The text of comments, without their markers.
    pub comment: String,
    /// The contents of string and character literals, each string ended by a line feed.
    pub literal: String,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Code,
    LineComment,
    BlockComment(usize),
    /// A string, and the number of hashes that end it; `None` where backslash escapes.
    Text(Option<usize>),
}

/// Takes `text` apart, one [`Line`] per line.
#[must_use]
pub fn scan(text: &str) -> Vec<Line> {
    let chars: Vec<char> = text.chars().collect();
    let mut scanner = Scanner {
        chars: &chars,
        at: 0,
        state: State::Code,
        lines: vec![],
    };
    scanner.lines.push(Line::default());
    while scanner.at < chars.len() {
        scanner.advance();
    }
    scanner.lines
}

struct Scanner<'a> {
    chars: &'a [char],
    at: usize,
    state: State,
    lines: Vec<Line>,
}

impl Scanner<'_> {
    fn advance(&mut self) {
        let c = self.chars[self.at];
        if c == '\n' {
            if self.state == State::LineComment {
                self.state = State::Code;
            }
            self.lines.push(Line::default());
            self.at += 1;
            return;
        }
        match self.state {
            State::Code => self.code(c),
            State::LineComment => self.comment(1),
            State::BlockComment(depth) => self.block_comment(depth),
            State::Text(None) if c == '\\' => self.literal(2),
            State::Text(None) if c == '"' => self.close(0),
            State::Text(Some(hashes)) if c == '"' && self.hashes(1) >= hashes => self.close(hashes),
            State::Text(_) => self.literal(1),
        }
    }

    fn code(&mut self, c: char) {
        if self.follows("//") {
            self.state = State::LineComment;
            self.blank(2);
        } else if self.follows("/*") {
            self.state = State::BlockComment(1);
            self.blank(2);
        } else if c == '"' {
            self.open(0, None);
        } else if let Some((skip, hashes)) = self.string_prefix() {
            self.open(skip, hashes);
        } else if let Some(length) = self.character() {
            self.literal(length);
        } else {
            self.line().code.push(c);
            self.at += 1;
        }
    }

    fn block_comment(&mut self, depth: usize) {
        if self.follows("*/") {
            self.blank(2);
            self.state = if depth == 1 {
                State::Code
            } else {
                State::BlockComment(depth - 1)
            };
        } else if self.follows("/*") {
            self.blank(2);
            self.state = State::BlockComment(depth + 1);
        } else {
            self.comment(1);
        }
    }

    /// Characters before the quote and the hashes, where a prefixed string starts here.
    fn string_prefix(&self) -> Option<(usize, Option<usize>)> {
        let before = self.at.checked_sub(1).map(|i| self.chars[i]);
        if before.is_some_and(is_word) {
            return None;
        }
        let letters = (0..3)
            .take_while(|&i| self.peek(i).is_some_and(is_word))
            .count();
        let prefix: String = self.chars[self.at..self.at + letters].iter().collect();
        match prefix.as_str() {
            "b" | "c" if self.peek(1) == Some('"') => Some((1, None)),
            "r" | "br" | "cr" => {
                let hashes = self.hashes(letters);
                let quote = letters + hashes;
                (self.peek(quote) == Some('"')).then_some((quote, Some(hashes)))
            }
            _ => None,
        }
    }

    /// Length of the character literal that starts here; `None` for lifetimes and other code.
    fn character(&self) -> Option<usize> {
        if self.chars[self.at] != '\'' {
            return None;
        }
        match (self.peek(1)?, self.peek(2)) {
            ('\\', _) => {
                let tail = self.chars[self.at + 3..]
                    .iter()
                    .take_while(|&&c| c != '\'')
                    .count();
                Some(tail + 4)
            }
            (_, Some('\'')) => Some(3),
            _ => None,
        }
    }

    fn open(&mut self, skip: usize, hashes: Option<usize>) {
        self.blank(skip);
        self.line().code.push('"');
        self.at += 1;
        self.state = State::Text(hashes);
    }

    fn close(&mut self, hashes: usize) {
        self.line().code.push('"');
        self.line().literal.push('\n');
        self.at += 1;
        self.blank(hashes);
        self.state = State::Code;
    }

    fn literal(&mut self, length: usize) {
        for _ in 0..length {
            let Some(c) = self.peek(0).filter(|&c| c != '\n') else {
                return;
            };
            self.line().literal.push(c);
            self.blank(1);
        }
    }

    fn comment(&mut self, length: usize) {
        let c = self.chars[self.at];
        self.line().comment.push(c);
        self.blank(length);
    }

    fn blank(&mut self, length: usize) {
        for _ in 0..length {
            self.line().code.push(' ');
        }
        self.at += length;
    }

    fn hashes(&self, from: usize) -> usize {
        (from..).take_while(|&i| self.peek(i) == Some('#')).count()
    }

    fn follows(&self, text: &str) -> bool {
        text.chars()
            .enumerate()
            .all(|(i, c)| self.peek(i) == Some(c))
    }

    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    fn line(&mut self) -> &mut Line {
        self.lines.last_mut().expect("there is always a line")
    }
}

/// Whether `c` may be part of an identifier.
#[must_use]
pub fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Byte offsets at which `word` stands in `text` as a whole word. A word that starts or ends with
/// punctuation is not bounded on that side.
pub fn words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    text.match_indices(word)
        .map(|(at, _)| at)
        .filter(move |&at| {
            let before = text[..at].chars().next_back();
            let after = text[at + word.len()..].chars().next();
            let open = !word.starts_with(is_word) || !before.is_some_and(is_word);
            let shut = !word.ends_with(is_word) || !after.is_some_and(is_word);
            open && shut
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        let squeeze = |l: &Line| l.code.split_whitespace().collect::<Vec<_>>().join(" ");
        scan(text).iter().map(squeeze).collect::<Vec<_>>().join("|")
    }

    #[test]
    fn comments_and_literals_are_not_code() {
        assert_eq!(code("a(); // b\nc /* d /* e */ f */ g"), "a();|c g");
        assert_eq!(code(r#"x("{ // \" }") + y"#), "x(\" \") + y");
        assert_eq!(
            code("r#\"a \"{\" b\"# + br\"\\\" + c\"z\""),
            "\" \" + \" \" + \" \""
        );
        assert_eq!(
            code("'{' + '\\'' + '\\u{7b}' + b'{' <'a, 'b>"),
            "+ + + b <'a, 'b>"
        );
        assert_eq!(code("for r in var\"x\" {}"), "for r in var\" \" {}");
    }

    #[test]
    fn text_over_several_lines_stays_text() {
        let lines = scan("let a = \"x {\n y }\\\n z\";\nend");
        assert_eq!(lines.len(), 4);
        assert_eq!(lines[1].literal, " y }\\");
        assert_eq!(lines[1].code.trim(), "");
        assert_eq!(lines[3].code, "end");
        assert_eq!(scan("f(\"a\", \"b\")")[0].literal, "a\nb\n");
    }

    #[test]
    fn code_keeps_its_columns_and_comments_their_text() {
        let line = &scan("ab /* c */ de // f")[0];
        assert_eq!(line.code.find("de"), Some(11));
        assert_eq!(line.comment, " c  f");
    }

    #[test]
    fn words_have_borders() {
        assert_eq!(words("exp expf .exp( x.exp(", ".exp(").count(), 2);
        assert_eq!(words("fn fnord a_fn fn", "fn").collect::<Vec<_>>(), [0, 14]);
    }
}
