//! Rows of state in pages that come with use.

use super::layout::RowLayout;
use super::page::Page;
use crate::error::Error;
use crate::ledger::{Claim, Ledger};
use lamella_kernels::PAGE;
use std::ops::Range;
use std::sync::Arc;

/// Most places for pages that are made with the first one.
const FIRST_PAGES: usize = 4096;

/// Rows of one width, appended in order; where only the last ones are needed, the pages of the
/// others are used again. Between steps the places behind the newest row are zero, so that nothing
/// of what was taken back is left.
pub(crate) struct PagedRows {
    width: usize,
    layout: RowLayout,
    /// Tokens a row stands for.
    per: usize,
    /// Rows needed behind the newest; `None` = all.
    keep: Option<usize>,
    /// Places for pages to begin with.
    places: usize,
    /// Number of the first page that is held.
    first: usize,
    /// Held pages in order, then spare ones.
    pages: Vec<Page>,
    /// Held pages.
    held: usize,
    /// Held pages when the running step began.
    held_before: usize,
    /// What pages are claimed from, if from anything.
    ledger: Option<Arc<Ledger>>,
}

impl PagedRows {
    /// No rows yet of a context of `context` tokens, which will lie in pages as `layout` says.
    pub(super) fn new(
        width: usize,
        per: usize,
        keep: Option<usize>,
        context: usize,
        layout: RowLayout,
    ) -> PagedRows {
        let rows = (context / per).max(1);
        let rows = keep.map_or(rows, |keep| rows.min(keep + 2 * PAGE));
        PagedRows {
            width,
            layout,
            per,
            keep,
            // A claimed context is no reason to allocate; pages come with use.
            places: rows.div_ceil(PAGE).min(FIRST_PAGES),
            first: 0,
            pages: Vec::new(),
            held: 0,
            held_before: 0,
            ledger: None,
        }
    }

    /// Has pages claimed from `ledger`.
    pub(super) fn charge(&mut self, ledger: &Arc<Ledger>) {
        self.ledger = Some(Arc::clone(ledger));
    }

    /// Bytes that room for `tokens` tokens in all takes beyond what there is.
    pub(super) fn growth(&self, tokens: usize) -> u64 {
        let pages = self.pages_for(tokens).saturating_sub(self.first);
        pages.saturating_sub(self.pages.len()) as u64 * self.page_bytes()
    }

    /// The bytes of a page.
    ///
    /// # Errors
    /// [`Error::Memory`] if they are not there.
    pub(super) fn claim(&self) -> Result<Option<Claim>, Error> {
        let claim = |ledger: &Arc<Ledger>| ledger.claim(self.page_bytes());
        self.ledger.as_ref().map(claim).transpose()
    }

    /// Values of a row.
    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// How a row lies in its page.
    pub(super) fn layout(&self) -> RowLayout {
        self.layout
    }

    /// Rows that `tokens` tokens have in all.
    pub(super) fn rows_for(&self, tokens: usize) -> usize {
        tokens / self.per
    }

    fn pages_for(&self, tokens: usize) -> usize {
        self.rows_for(tokens).div_ceil(PAGE)
    }

    /// Makes room for `tokens` tokens in all.
    ///
    /// # Errors
    /// [`Error::Allocation`] if the system refuses; there may be room for some then.
    pub(super) fn reserve(&mut self, tokens: usize) -> Result<(), Error> {
        let end = self.pages_for(tokens);
        while self.first + self.held < end {
            self.reserve_page()?;
        }
        Ok(())
    }

    /// Makes room for one more page.
    fn reserve_page(&mut self) -> Result<(), Error> {
        match self.pages.get_mut(self.held) {
            // A spare one has rows of long ago.
            Some(spare) => spare.fill(0.0),
            None => {
                let page = self.new_page()?;
                self.make_places()?;
                self.pages.push(page);
            }
        }
        self.held += 1;
        Ok(())
    }

    /// Makes a place for one more page.
    fn make_places(&mut self) -> Result<(), Error> {
        if self.pages.len() < self.pages.capacity() {
            return Ok(());
        }
        let more = self.pages.capacity().max(self.places).max(1);
        let made = self.pages.try_reserve_exact(more);
        made.map_err(|_| Error::refused(more * size_of::<Page>()))
    }

    /// A page of zeros.
    ///
    /// # Errors
    /// [`Error::Memory`]; [`Error::Allocation`] if the system refuses.
    pub(super) fn new_page(&self) -> Result<Page, Error> {
        Page::new(self.page_values(), self.claim()?)
    }

    pub(super) fn begin(&mut self) {
        self.held_before = self.held;
    }

    /// Gives back what the failed step has added, which may be rows of the tokens `failed`.
    pub(super) fn roll_back(&mut self, failed: Range<usize>) {
        self.pages.truncate(self.held_before);
        self.held = self.held_before;
        self.clear(failed);
    }

    /// Zeroes the places of the rows of `tokens`, as far as their pages are held.
    fn clear(&mut self, tokens: Range<usize>) {
        let end = self
            .rows_for(tokens.end)
            .min((self.first + self.held) * PAGE);
        let mut row = self.rows_for(tokens.start).max(self.first * PAGE);
        while row < end {
            let page = row / PAGE;
            let next = end.min((page + 1) * PAGE);
            let layout = self.layout;
            layout.clear(self.page_mut(page), row % PAGE..next - page * PAGE);
            row = next;
        }
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

    /// Drops the rows of all but the first `tokens` of `position` tokens.
    pub(super) fn truncate(&mut self, tokens: usize, position: usize) {
        let end = self.pages_for(tokens);
        if end < self.first {
            self.first = end;
            self.held = 0;
        } else {
            self.held = self.held.min(end - self.first);
        }
        self.pages.truncate(self.held);
        self.clear(tokens..position);
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
    ///
    /// # Errors
    /// [`Error::Allocation`] if the system refuses.
    pub(super) fn restored(
        &self,
        tokens: usize,
        context: usize,
        pages: &mut impl Iterator<Item = Page>,
    ) -> Result<PagedRows, Error> {
        let mut rows = PagedRows::new(self.width, self.per, self.keep, context, self.layout);
        let needed = self.needed_pages(tokens);
        rows.places = rows.places.max(needed.len());
        rows.make_places()?;
        rows.first = needed.start;
        rows.pages.extend(pages.take(needed.len()));
        rows.held = rows.pages.len();
        rows.held_before = rows.held;
        // Whoever wrote them may have left something behind the newest row.
        let end = rows.pages_for(tokens) * PAGE * rows.per;
        rows.clear(tokens..end);
        Ok(rows)
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
        rows.reserve(tokens.end).expect("memory");
        for t in tokens.clone() {
            rows.row_mut(t).fill(t as f32);
        }
        rows.commit(tokens.end);
    }

    /// Rows of four tokens each.
    fn fill_four(rows: &mut PagedRows, tokens: std::ops::Range<usize>) {
        rows.begin();
        rows.reserve(tokens.end).expect("memory");
        for row in tokens.start / 4..tokens.end / 4 {
            rows.row_mut(row).fill(2.0);
        }
        rows.commit(tokens.end);
    }

    #[test]
    fn a_window_keeps_what_is_needed_and_uses_pages_again() {
        let mut rows = PagedRows::new(2, 1, Some(100), 100_000, RowLayout::Plain);
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
        rows.truncate(position - 20, position);
        fill(&mut rows, position - 20..position);
        assert_eq!(rows.row(position - 1), [(position - 1) as f32; 2]);
        rows.truncate(0, position);
        fill(&mut rows, 0..5);
        assert_eq!(rows.row(3), [3.0; 2]);
    }

    #[test]
    fn a_failed_step_leaves_nothing_behind() {
        let mut rows = PagedRows::new(1, 4, None, 4096, RowLayout::Plain);
        fill(&mut rows, 0..0);
        rows.begin();
        rows.reserve(1000).expect("memory");
        assert_eq!(rows.bytes(), (250usize.div_ceil(PAGE) * PAGE * 4) as u64);
        rows.roll_back(0..1000);
        assert_eq!(rows.bytes(), 0);
        fill_four(&mut rows, 0..40);
        rows.begin();
        rows.reserve(1000).expect("memory");
        rows.row_mut(10).fill(1.0);
        rows.roll_back(40..1000);
        assert!(rows.page(0)[10..].iter().all(|&v| v == 0.0));
        assert_eq!(rows.page(0)[..10], [2.0; 10]);
    }
}
