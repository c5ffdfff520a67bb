//! 1F1B: as few forwards as keep the pipeline full, then one forward and one backward in turn.
//!
//! Narayanan et al., arXiv 1806.03377 (PipeDream), flushed at each step as in arXiv 2104.04473, section 2.2.1. The bubble is
//! GPipe's; stage `s` of `p` has at most `p - s` micro-batches in flight.

use super::fixed::one_forward_one_backward;
use crate::Action;

pub(super) fn order(stage: u16, stages: u16, micro_batches: u16) -> Vec<Action> {
    one_forward_one_backward(stage, micro_batches, stages - 1 - stage, 0)
}
