//! Rows of state in pages that come with use.

use super::page::Page;
use lamella_kernels::PAGE;
use std::ops::Range;

/// Places for pages that a new session has.
const FIRST_PAGES: usize = 4096;

/// Rows of one width, appended in order; where only the last ones are needed, the pages of the
/// others are used again.
pub(crate) struct PagedRows {
    width: usize,
    /// Tokens a row stands for.
    per: usize,
    /// Rows needed behind the newest; `None` = all.
    keep: Option<usize>,
    /// Number of the first page that is held.
    first: usize,
    /// Held pages in order, then spare ones.
    pages: Vec<Page>,
    /// Held pages.
    held: usize,
    /// Held pages when the running step began.
    held_before: usize,
}

impl PagedRows {
    /// Room for a context of `context` tokens.
    pub(super) fn new(width: usize, per: usize, keep: Option<usize>, context: usize) -> PagedRows {
        let rows = (context / per).max(1);
        let rows = keep.map_or(rows, |keep| rows.min(keep + 2 * PAGE));
        PagedRows {
            width,
            per,
            keep,
            first: 0,
            // A claimed context is no reason to allocate; pages come with use.
            pages: Vec::with_capacity(rows.div_ceil(PAGE).min(FIRST_PAGES)),
            held: 0,
            held_before: 0,
        }
    }

    /// Values of a row.
    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// Rows that `tokens` tokens have in all.
    pub(super) fn rows_for(&self, tokens: usize) -> usize {
        tokens / self.per
    }

    fn pages_for(&self, tokens: usize) -> usize {
        self.rows_for(tokens).div_ceil(PAGE)
    }

    /// Makes room for `tokens` tokens in all.
    pub(super) fn reserve(&mut self, tokens: usize) {
        let end = self.pages_for(tokens);
        while self.first + self.held < end {
            self.reserve_page();
        }
    }

    /// Makes room for one more page.
    fn reserve_page(&mut self) {
        if self.held == self.pages.len() {
            self.pages.push(self.new_page());
        }
        self.held += 1;
    }

    /// A page of zeros.
    pub(super) fn new_page(&self) -> Page {
        Page::new(self.page_values())
    }

    pub(super) fn begin(&mut self) {
        self.held_before = self.held;
    }

    /// Gives back what the failed step has added.
    pub(super) fn roll_back(&mut self) {
        self.pages.truncate(self.held_before);
        self.held = self.held_before;
    }

    /// Frees the pages that no token after the first `tokens` sees.
    pub(super) fn commit(&mut self, tokens: usize) {
        let Some(keep) = self.keep else { return };
        // One page more than needed, so that a few tokens can be taken back.
        let needed = (tokens / self.per).saturating_sub(keep + PAGE) / PAGE;
        let free = needed.saturating_sub(self.first).min(self.held);
        if free > 0 {
            self.pages.rotate_left(free);
            self.first += free;
            self.held -= free;
        }
        // Spare pages beyond the next two are a long prompt's.
        self.pages.truncate(self.held + 2);
    }

    /// Whether the rows that the token after the first `tokens` needs are still here.
    pub(super) fn reaches(&self, tokens: usize) -> bool {
        self.oldest_needed(tokens) >= self.first * PAGE
    }

    /// Oldest row that the token after the first `tokens` needs.
    fn oldest_needed(&self, tokens: usize) -> usize {
        match self.keep {
            Some(keep) => (tokens / self.per).saturating_sub(keep),
            None => 0,
        }
    }

    /// Drops the pages that hold none of the rows of the first `tokens` tokens.
    pub(super) fn truncate(&mut self, tokens: usize) {
        let end = self.pages_for(tokens);
        if end < self.first {
            self.first = end;
            self.held = 0;
        } else {
            self.held = self.held.min(end - self.first);
        }
        self.pages.truncate(self.held);
    }

    /// Page number `page`, counted from the first row of all.
    pub(crate) fn page(&self, page: usize) -> &[f32] {
        &self.pages[page - self.first]
    }

    /// Page number `page`, writable.
    pub(crate) fn page_mut(&mut self, page: usize) -> &mut [f32] {
        &mut self.pages[page - self.first]
    }

    /// The held pages, and the number of the first.
    pub(crate) fn held_mut(&mut self) -> (usize, &mut [Page]) {
        (self.first, &mut self.pages[..self.held])
    }

    /// Row `row` of pages that lie row after row.
    pub(crate) fn row(&self, row: usize) -> &[f32] {
        &self.page(row / PAGE)[row % PAGE * self.width..][..self.width]
    }

    /// Row `row`, writable.
    pub(crate) fn row_mut(&mut self, row: usize) -> &mut [f32] {
        let width = self.width;
        &mut self.page_mut(row / PAGE)[row % PAGE * width..][..width]
    }

    /// Pages that hold what the token after the first `tokens` needs.
    pub(super) fn needed_pages(&self, tokens: usize) -> Range<usize> {
        let end = self.pages_for(tokens);
        (self.oldest_needed(tokens) / PAGE).min(end)..end
    }

    /// Values of a page.
    pub(super) fn page_values(&self) -> usize {
        self.width * PAGE
    }

    /// Bytes of a page.
    pub(super) fn page_bytes(&self) -> u64 {
        (self.page_values() * size_of::<f32>()) as u64
    }

    /// Rows like these for `tokens` tokens in a context of `context`, in the next of `pages`: those
    /// of [`needed_pages`](Self::needed_pages).
    pub(super) fn restored(
        &self,
        tokens: usize,
        context: usize,
        pages: &mut impl Iterator<Item = Page>,
    ) -> PagedRows {
        let mut rows = PagedRows::new(self.width, self.per, self.keep, context);
        let needed = self.needed_pages(tokens);
        rows.first = needed.start;
        rows.pages.extend(pages.take(needed.len()));
        rows.held = rows.pages.len();
        rows.held_before = rows.held;
        rows
    }

    pub(super) fn bytes(&self) -> u64 {
        self.pages.len() as u64 * self.page_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(rows: &mut PagedRows, tokens: std::ops::Range<usize>) {
        rows.begin();
        rows.reserve(tokens.end);
        for t in tokens.clone() {
            rows.row_mut(t).fill(t as f32);
        }
        rows.commit(tokens.end);
    }

    #[test]
    fn a_window_keeps_what_is_needed_and_uses_pages_again() {
        let mut rows = PagedRows::new(2, 1, Some(100), 100_000);
        let mut position = 0;
        for step in [1, 300, 1, 1, 77, 1000, 1] {
            fill(&mut rows, position..position + step);
            position += step;
            for t in position.saturating_sub(100)..position {
                assert_eq!(rows.row(t), [t as f32; 2], "{t} of {position}");
            }
            assert!(rows.reaches(position));
            assert!(rows.pages.len() <= 100 / PAGE + 6, "{}", rows.pages.len());
        }
        assert!(rows.reaches(position - 20) && !rows.reaches(position - 500));
        rows.truncate(position - 20);
        fill(&mut rows, position - 20..position);
        assert_eq!(rows.row(position - 1), [(position - 1) as f32; 2]);
        rows.truncate(0);
        fill(&mut rows, 0..5);
        assert_eq!(rows.row(3), [3.0; 2]);
    }

    #[test]
    fn a_failed_step_leaves_nothing_behind() {
        let mut rows = PagedRows::new(1, 4, None, 4096);
        fill(&mut rows, 0..0);
        rows.begin();
        rows.reserve(1000);
        assert_eq!(rows.bytes(), (250usize.div_ceil(PAGE) * PAGE * 4) as u64);
        rows.roll_back();
        assert_eq!(rows.bytes(), 0);
    }
}
