//! How a refusal reaches the host: the text in its buffer, and code and text once more for the
//! thread, which `lamella.h` hands out.

use crate::lamella::LamellaCode;
use std::cell::RefCell;
use std::ffi::c_char;
use std::fmt::{self, Write};

/// Bytes of a text that are kept, the NUL not counted. Texts are cut, never refused.
pub(crate) const TEXT_BYTES: usize = 1023;

/// The mark of a call that was refused: the [`Report`] has said why.
#[derive(Debug)]
pub(crate) struct Refused;

/// A text of bounded length. Writing beyond the end cuts it, at a whole character.
#[derive(Clone, Copy)]
pub(crate) struct Text {
    bytes: [u8; TEXT_BYTES],
    length: usize,
}

impl Text {
    pub(crate) const fn new() -> Text {
        Text {
            bytes: [0; TEXT_BYTES],
            length: 0,
        }
    }

    /// The text that foreign code left in `bytes`: what stands before the first NUL.
    pub(crate) fn foreign(bytes: &[u8]) -> Text {
        let mut text = Text::new();
        let end = bytes.iter().position(|&b| b == 0);
        text.push(&bytes[..end.unwrap_or(bytes.len())]);
        text
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    fn push(&mut self, more: &[u8]) {
        let take = whole_characters(more, TEXT_BYTES - self.length);
        self.bytes[self.length..self.length + take].copy_from_slice(&more[..take]);
        self.length += take;
    }
}

impl Write for Text {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        self.push(more.as_bytes());
        Ok(())
    }
}

/// The length of the longest beginning of `bytes` that has at most `most` bytes and does not end
/// inside a UTF-8 character. Bytes that are no UTF-8 are cut where the room ends.
pub(crate) fn whole_characters(bytes: &[u8], most: usize) -> usize {
    if bytes.len() <= most {
        return bytes.len();
    }
    let continues = |at: usize| bytes[at] & 0xc0 == 0x80;
    (most.saturating_sub(3)..=most)
        .rev()
        .find(|&end| !continues(end))
        .unwrap_or(most)
}

/// Writes `text`, cut to whole characters, and a NUL to a buffer of C.
///
/// # Safety
/// `buffer` is NULL or `size` writable bytes.
pub(crate) unsafe fn write_text(text: &[u8], buffer: *mut c_char, size: usize) {
    if buffer.is_null() || size == 0 {
        return;
    }
    let take = whole_characters(text, size - 1);
    // SAFETY: take + 1 <= size, which the caller vouches for; a local text does not overlap it.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast::<u8>(), take);
        buffer.add(take).write(0);
    }
}

/// What the last call of a thread came to.
struct Last {
    code: LamellaCode,
    text: Text,
}

thread_local! {
    static LAST: RefCell<Last> = const {
        RefCell::new(Last { code: LamellaCode::LAMELLA_OK, text: Text::new() })
    };
}

/// Where one call of the interface reports to.
pub(crate) struct Report {
    buffer: *mut c_char,
    size: usize,
}

impl Report {
    /// A report into a buffer of the host; a NULL or an empty one takes nothing.
    ///
    /// # Safety
    /// `buffer` is NULL or `size` bytes that stay writable while the report exists.
    pub(crate) const unsafe fn new(buffer: *mut c_char, size: usize) -> Report {
        Report { buffer, size }
    }

    /// Says why a call is refused.
    #[must_use = "return it"]
    pub(crate) fn refuse(&self, code: LamellaCode, reason: fmt::Arguments<'_>) -> Refused {
        let mut text = Text::new();
        // A `Text` takes everything; what a `Display` may fail with is dropped with its rest.
        let _ = text.write_fmt(reason);
        self.refuse_with(code, text)
    }

    /// As [`Report::refuse`], with a finished text.
    #[must_use = "return it"]
    pub(crate) fn refuse_with(&self, code: LamellaCode, text: Text) -> Refused {
        // SAFETY: the contract of `new`.
        unsafe { write_text(text.as_bytes(), self.buffer, self.size) };
        set_last(code, text);
        Refused
    }
}

/// Forgets what earlier calls of this thread came to.
pub(crate) fn clear_last() {
    set_last(LamellaCode::LAMELLA_OK, Text::new());
}

/// Code and text of this thread's last call.
pub(crate) fn last() -> (LamellaCode, Text) {
    LAST.with_borrow(|last| (last.code, last.text))
}

fn set_last(code: LamellaCode, text: Text) {
    LAST.with_borrow_mut(|last| *last = Last { code, text });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str, size: usize) -> Vec<u8> {
        let mut buffer = vec![0xffu8; size + 1];
        // SAFETY: the buffer has `size` bytes and one more to see that it is left alone.
        unsafe { write_text(text.as_bytes(), buffer.as_mut_ptr().cast(), size) };
        buffer
    }

    #[test]
    fn texts_end_with_a_nul_at_a_whole_character() {
        assert_eq!(written("abc", 8), *b"abc\0\xff\xff\xff\xff\xff");
        assert_eq!(written("abc", 3), *b"ab\0\xff");
        assert_eq!(written("a\u{e9}", 3), *b"a\0\xff\xff");
        assert_eq!(written("\u{1f600}", 4), *b"\0\xff\xff\xff\xff");
        assert_eq!(written("\u{1f600}", 5), *b"\xf0\x9f\x98\x80\0\xff");
        assert_eq!(written("abc", 1), *b"\0\xff");
        assert_eq!(written("abc", 0), *b"\xff");
        // SAFETY: NULL takes nothing.
        unsafe { write_text(b"abc", std::ptr::null_mut(), 9) };
    }

    #[test]
    fn what_is_no_utf8_is_cut_where_the_room_ends() {
        assert_eq!(whole_characters(&[0x80; 9], 7), 7);
        assert_eq!(whole_characters(&[0x80; 9], 2), 2);
        assert_eq!(whole_characters(b"\xc3\xa9", 1), 0);
        assert_eq!(whole_characters(b"", 0), 0);
    }

    #[test]
    fn long_texts_are_kept_in_part() {
        let mut text = Text::new();
        for _ in 0..600 {
            write!(text, "\u{e9}").unwrap();
        }
        assert_eq!(text.as_bytes().len(), TEXT_BYTES - 1);
        assert!(std::str::from_utf8(text.as_bytes()).is_ok());
        assert_eq!(Text::foreign(b"so\0 not").as_bytes(), b"so");
        assert_eq!(Text::foreign(b"endless").as_bytes(), b"endless");
    }
}
