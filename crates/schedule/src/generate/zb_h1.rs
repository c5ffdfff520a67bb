//! ZB-H1: 1F1B with weight gradients put off, so that they fill the bubble at the end.
//!
//! Qi et al., arXiv 2401.10241, section 3.1 and the upper half of figure 3. Stage `s` starts as 1F1B does and runs the weight
//! gradient of a micro-batch `s` backwards late. So every stage has up to `p` micro-batches in flight, as many as 1F1B's
//! first stage. With equal costs of `F`, `B` and `W` the bubble is a third of 1F1B's.

use super::fixed::one_forward_one_backward;
use crate::Action;

pub(super) fn order(stage: u16, stages: u16, micro_batches: u16) -> Vec<Action> {
    one_forward_one_backward(stage, micro_batches, stages - 1 - stage, stage)
}
