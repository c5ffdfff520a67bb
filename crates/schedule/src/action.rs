//! One unit of work: a program of a stage applied to one micro-batch.

/// Which program of the stage an action runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// `F`: forward.
    Forward,
    /// `B`: gradients of the stage's inputs; they leave for the previous stage as soon as it ends.
    Backward,
    /// `W`: gradients of the stage's weights.
    Weight,
}

/// A program of a stage applied to a micro-batch; prints and parses as `0F3`: stage 0, forward, micro-batch 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Action {
    /// Stage, from the input (0) to the loss.
    pub stage: u16,
    /// Program.
    pub kind: Kind,
    /// Micro-batch within the step.
    pub micro_batch: u16,
}
