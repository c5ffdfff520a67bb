//! Hybrid: the last stage runs forward and backward of a micro-batch as one, the others run as in GPipe.
//!
//! *iOS as Acceleration*, arXiv 2512.22180, figure 4: for engines that cannot part the two. At two stages of equal costs
//! the step is as long as GPipe's, since the bubble in the middle of stage 1 moves to its end, and the last stage holds one
//! micro-batch instead of all.

use super::{fixed::one_forward_one_backward, gpipe};
use crate::Action;

pub(super) fn order(stage: u16, stages: u16, micro_batches: u16) -> Vec<Action> {
    if stage + 1 == stages {
        one_forward_one_backward(stage, micro_batches, 0, 0)
    } else {
        gpipe::order(stage, stages, micro_batches)
    }
}
