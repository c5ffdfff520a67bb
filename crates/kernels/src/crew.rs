//! Threads that do the tasks of several phases, one phase after the other, without parting in between.

use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;

/// A phase's tasks.
struct Phase {
    count: usize,
    /// Of each thread's share, how many are taken.
    taken: Vec<AtomicUsize>,
    /// Of all.
    done: AtomicUsize,
}

impl Phase {
    fn new(count: usize, threads: usize) -> Self {
        Phase {
            count,
            taken: (0..threads).map(|_| AtomicUsize::new(0)).collect(),
            done: AtomicUsize::new(0),
        }
    }

    /// The next task for a thread: of its own share, or else of a neighbour's.
    fn take(&self, thread: usize) -> Option<usize> {
        let threads = self.taken.len();
        (0..threads).find_map(|turn| {
            let share = (thread + turn) % threads;
            let from = share * self.count / threads;
            let end = (share + 1) * self.count / threads;
            let index = from + self.taken[share].fetch_add(1, Ordering::Relaxed);
            (index < end).then_some(index)
        })
    }
}

/// Counts a task as done even when it panics: nobody waits for it for ever.
struct Doing<'a>(&'a Phase);

impl Drop for Doing<'_> {
    fn drop(&mut self) {
        self.0.done.fetch_add(1, Ordering::Release);
    }
}

/// Does `phases[0]` tasks, then `phases[1]`, and so on: `task(phase, index, own)`, each once. A phase begins when all tasks of
/// the one before are done. As many threads take part as `scratch` has parts of `own` elements, each with its part.
///
/// Each thread begins with a share of neighbouring tasks, so that what one phase wrote is read by the same core in the next.
/// Which thread does which task is nevertheless a matter of chance: tasks must not depend on what is in `own`.
pub(crate) fn work(
    scratch: &mut [f32],
    own: usize,
    phases: &[usize],
    task: impl Fn(usize, usize, &mut [f32]) + Sync,
) {
    let threads = scratch.len().checked_div(own).unwrap_or(1);
    let threads = threads.clamp(1, rayon::current_num_threads());
    let phases: Vec<Phase> = phases
        .iter()
        .map(|count| Phase::new(*count, threads))
        .collect();
    let take_part = |thread: usize, own: &mut [f32]| {
        for (number, phase) in phases.iter().enumerate() {
            while let Some(index) = phase.take(thread) {
                let _doing = Doing(phase);
                task(number, index, own);
            }
            // What is missing is being done by threads that run: nobody takes a task before it can be done.
            let mut turns = 0_u32;
            while phase.done.load(Ordering::Acquire) < phase.count {
                turns += 1;
                if turns.is_multiple_of(64) {
                    std::thread::yield_now();
                } else {
                    std::hint::spin_loop();
                }
            }
        }
    };
    let parts = &mut scratch[..threads * own];
    if threads == 1 {
        take_part(0, parts);
    } else {
        (parts.par_chunks_exact_mut(own).enumerate())
            .for_each(|(thread, own)| take_part(thread, own));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_follow_each_other() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(4).build();
        let (first, second) = (AtomicUsize::new(0), AtomicUsize::new(0));
        pool.unwrap().install(|| {
            work(&mut [0.0; 4 * 8], 8, &[100, 50, 0], |phase, index, own| {
                assert_eq!(own.len(), 8);
                match phase {
                    0 => first.fetch_add(index, Ordering::Relaxed),
                    _ => {
                        assert_eq!(first.load(Ordering::Relaxed), 99 * 100 / 2);
                        second.fetch_add(index, Ordering::Relaxed)
                    }
                };
            });
        });
        assert_eq!(second.into_inner(), 49 * 50 / 2);
    }

    #[test]
    fn a_task_that_panics_ends_the_work() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build();
        let pool = pool.unwrap();
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            pool.install(|| {
                work(&mut [0.0; 3], 1, &[10, 10], |phase, index, _| {
                    assert!((phase, index) != (0, 4), "as the test wants");
                });
            });
        }));
        assert!(ended.is_err());
    }
}
