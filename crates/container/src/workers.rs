//! Work on several threads, whose results the calling thread takes.

use std::ops::ControlFlow;
use std::sync::mpsc;
use std::thread::Builder;

/// Results that may wait for each thread.
const WAITING: usize = 4;

/// Runs `work` on up to `threads` threads (0 counts as 1), each of which hands results to the
/// function it is given, and gives them to `take` on the calling thread, in the order of arrival.
/// The function returns whether more are wanted: `take` has not broken off, and `work` returns soon
/// after it has. Returns what `take` broke off with.
///
/// The threads only save time: if the system gives fewer of them, those do it, and if it gives
/// none, the calling thread does.
///
/// # Errors
/// None of its own.
pub fn gather<T: Send, B>(
    threads: usize,
    work: impl Fn(&mut dyn FnMut(T) -> bool) + Sync,
    take: impl FnMut(T) -> ControlFlow<B>,
) -> ControlFlow<B> {
    gather_on(threads, Builder::new, work, take)
}

fn gather_on<T: Send, B>(
    threads: usize,
    builder: impl Fn() -> Builder,
    work: impl Fn(&mut dyn FnMut(T) -> bool) + Sync,
    mut take: impl FnMut(T) -> ControlFlow<B>,
) -> ControlFlow<B> {
    let threads = threads.max(1);
    let work = &work;
    std::thread::scope(|scope| {
        let (sender, results) = mpsc::sync_channel(threads.saturating_mul(WAITING).min(1 << 12));
        let started = (0..threads).take_while(|worker| {
            let sender = sender.clone();
            // The receiver hangs up when no more is wanted.
            let task = move || work(&mut |result| sender.send(result).is_ok());
            let thread = builder().name(format!("lamella-work-{worker}"));
            thread.spawn_scoped(scope, task).is_ok()
        });
        if started.count() > 0 {
            drop(sender);
            return results.into_iter().try_for_each(take);
        }
        let mut end = ControlFlow::Continue(());
        work(&mut |result| {
            if end.is_continue() {
                end = take(result);
            }
            end.is_continue()
        });
        end
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A stack that no system has room for: the thread is refused.
    fn refused() -> Builder {
        Builder::new().stack_size(1 << 55)
    }

    fn squares(builder: impl Fn() -> Builder, most: usize) -> (Vec<usize>, ControlFlow<usize>) {
        let next = AtomicUsize::new(0);
        let mut taken = Vec::new();
        let work = |send: &mut dyn FnMut(usize) -> bool| {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= 100 || !send(number * number) {
                    return;
                }
            }
        };
        let end = gather_on(3, builder, work, |square| {
            taken.push(square);
            if taken.len() == most {
                return ControlFlow::Break(square);
            }
            ControlFlow::Continue(())
        });
        taken.sort_unstable();
        (taken, end)
    }

    #[test]
    fn all_is_done_however_many_threads_there_are() {
        let all: Vec<usize> = (0..100).map(|n| n * n).collect();
        assert!(refused().spawn(|| ()).is_err());
        assert_eq!(squares(Builder::new, 0).0, all);
        assert_eq!(
            squares(refused, 0),
            (all.clone(), ControlFlow::Continue(()))
        );
        // The first is given, the others are not.
        let calls = AtomicUsize::new(0);
        let one = || match calls.fetch_add(1, Ordering::Relaxed) {
            0 => Builder::new(),
            _ => refused(),
        };
        assert_eq!(squares(one, 0).0, all);
    }

    #[test]
    fn nothing_is_taken_after_breaking_off() {
        assert_eq!(squares(refused, 3), (vec![0, 1, 4], ControlFlow::Break(4)));
        let (taken, end) = squares(Builder::new, 3);
        assert!(taken.len() == 3 && end.is_break());
    }
}
