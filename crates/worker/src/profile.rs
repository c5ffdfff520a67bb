//! How long programs take: made-up inputs, a warm-up, the median of repetitions.
//!
//! In a pipeline most inputs of an operator were made long ago, by another program, so they are not in the nearest
//! cache: repetitions go round several copies of the inputs.

mod inputs;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outboard_exec::{Executor, RandomKey};
use outboard_graph::Graph;

use crate::stage::parse;

/// Repetitions of a program at the least, unless they take too long.
const LEAST_REPETITIONS: usize = 5;

/// After this long, that many repetitions of a long program are enough.
const LONG_TIME: Duration = Duration::from_millis(300);
const LONG_REPETITIONS: usize = 3;

/// Repetitions at the most.
const MOST_REPETITIONS: usize = 100;

/// Repetitions go on until they have taken this long together.
const LEAST_TIME: Duration = Duration::from_millis(30);

/// No further repetition starts after this long.
const MOST_TIME: Duration = Duration::from_millis(1500);

/// No further program starts after this long: the rest is not known.
const MOST_TIME_OF_ALL: Duration = Duration::from_secs(300);

/// Copies of the inputs together take at least this much, if there may be that many.
const COLD_BYTES: u64 = 32 << 20;

/// Copies of the inputs at the most.
const MOST_COPIES: u64 = 8;

/// Median seconds of each program, in order; `None` for one that does not parse, does not verify, does not fit
/// `budget_bytes`, cannot be compiled or fails, and for all that are left when `cancel` is set.
pub fn profile<E: Executor>(
    engine: &E,
    programs: &[String],
    budget_bytes: u64,
    cancel: &AtomicBool,
    clock: &dyn Fn() -> Duration,
) -> Vec<Option<f64>> {
    let start = clock();
    programs
        .iter()
        .map(|text| {
            if clock().saturating_sub(start) > MOST_TIME_OF_ALL {
                return None;
            }
            let graph = parse(text).ok()?;
            seconds(engine, &graph, budget_bytes, cancel, clock)
        })
        .collect()
}

fn seconds<E: Executor>(
    engine: &E,
    graph: &Graph,
    budget_bytes: u64,
    cancel: &AtomicBool,
    clock: &dyn Fn() -> Duration,
) -> Option<f64> {
    let mut input_bytes = 0_u64;
    for input in &graph.inputs {
        let ty = &graph.values.get(input.value.0 as usize)?.ty;
        if !ty.is_concrete() {
            return None;
        }
        input_bytes = input_bytes.checked_add(ty.bytes(1)?)?;
    }
    // All values together: what an engine that frees nothing would take.
    let all_bytes = graph
        .values
        .iter()
        .try_fold(0_u64, |sum, value| sum.checked_add(value.ty.bytes(1)?))?;
    if all_bytes > budget_bytes {
        return None;
    }
    let plan = engine.compile(graph).ok()?;
    let peak = engine.peak_bytes(&plan);
    let room = budget_bytes.checked_sub(peak)?;
    let copies = match input_bytes {
        0 => 1,
        bytes => (COLD_BYTES / bytes).min(room / bytes).clamp(1, MOST_COPIES),
    };
    let sets = (0..copies)
        .map(|copy| Some(engine.settled(&plan, inputs::make(engine, graph, copy)?)))
        .collect::<Option<Vec<_>>>()?;
    let key = RandomKey::default();
    engine.run(&plan, sets.first()?.clone(), key).ok()?;
    let mut times = Vec::new();
    let mut total = Duration::ZERO;
    for set in sets.iter().cycle().take(MOST_REPETITIONS) {
        let enough = times.len() >= LEAST_REPETITIONS && total >= LEAST_TIME;
        let enough = enough || (times.len() >= LONG_REPETITIONS && total >= LONG_TIME);
        let too_long = !times.is_empty() && total >= MOST_TIME;
        if enough || too_long {
            break;
        }
        if cancel.load(Ordering::Relaxed) {
            return None;
        }
        let set = set.clone();
        let before = clock();
        let outputs = engine.run(&plan, set, key).ok()?;
        let took = clock().saturating_sub(before);
        drop(outputs);
        total = total.saturating_add(took);
        times.push(took);
    }
    times.sort_unstable();
    times
        .get(times.len() / 2)
        .map(|median| median.as_secs_f64())
}
