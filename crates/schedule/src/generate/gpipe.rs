//! GPipe: every stage runs all its forwards, then all its backwards.
//!
//! Huang et al., arXiv 1811.06965, figure 2. Backwards run in the order of micro-batches here, not reversed: sums over
//! micro-batches then have one order whatever the schedule. With `p` stages of equal costs, `m` micro-batches and `W` run as part of `B` the
//! bubble is `(p - 1) / (m + p - 1)` of the step, and all `m` micro-batches are in flight.

use crate::Action;

pub(super) fn order(stage: u16, _stages: u16, micro_batches: u16) -> Vec<Action> {
    let forward = (0..micro_batches).map(|micro_batch| Action::forward(stage, micro_batch));
    let backward = (0..micro_batches).flat_map(|micro_batch| {
        [
            Action::backward(stage, micro_batch),
            Action::weight(stage, micro_batch),
        ]
    });
    forward.chain(backward).collect()
}
