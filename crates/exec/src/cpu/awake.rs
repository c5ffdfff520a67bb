//! Keeps the threads of a pool from falling asleep between operators: waking one takes longer than a small operator does.

use std::sync::atomic::{AtomicBool, Ordering};

/// Idle turns after which a thread lets other processes run.
const TURNS: u32 = 256;

/// Tells the threads that they may sleep, even when the run panics.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Runs `f`; meanwhile the other threads of rayon's current pool look for work without pause.
pub(super) fn while_running<R: Send>(f: impl FnOnce() -> R + Send) -> R {
    if rayon::current_num_threads() == 1 {
        return f();
    }
    let done = AtomicBool::new(false);
    let caller = rayon::current_thread_index();
    rayon::in_place_scope(|scope| {
        // Each thread gets its own: a caller that waits for others must never take one up.
        scope.spawn_broadcast(|_, context| {
            if Some(context.index()) == caller {
                return;
            }
            let mut idle = 0_u32;
            while !done.load(Ordering::Acquire) {
                match rayon::yield_now() {
                    Some(rayon::Yield::Executed) => idle = 0,
                    _ if idle.is_multiple_of(TURNS) => {
                        idle += 1;
                        std::thread::yield_now();
                    }
                    _ => {
                        idle = idle.wrapping_add(1);
                        std::hint::spin_loop();
                    }
                }
            }
        });
        let _done = Done(&done);
        f()
    })
}

#[cfg(test)]
mod tests {
    use rayon::prelude::*;

    use super::*;

    #[test]
    fn work_is_done_and_threads_are_let_go() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build();
        let pool = pool.unwrap();
        for _ in 0..100 {
            let sum = pool.install(|| {
                while_running(|| {
                    let sum = |n: u64| (0..n).into_par_iter().sum::<u64>();
                    sum(1000) + sum(10)
                })
            });
            assert_eq!(sum, 999 * 500 + 45);
        }
    }

    #[test]
    fn a_panic_lets_them_go_too() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build();
        let pool = pool.unwrap();
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            pool.install(|| while_running(|| -> () { panic!("as the test wants") }));
        }));
        assert!(panicked.is_err());
        assert_eq!(pool.install(|| while_running(|| 5)), 5);
    }
}
