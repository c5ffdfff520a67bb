//! What a stage costs, as the search sees it: numbers for a range of nodes, a micro-batch size and a device.

use std::ops::Range;

/// Costs of one stage on one device at one micro-batch size.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct StageNumbers {
    /// Seconds of `F`, `B` and `W`.
    pub(crate) seconds: [f64; 3],
    /// Seconds of the optimizer.
    pub(crate) optimizer_seconds: f64,
    /// Bytes of data inputs.
    pub(crate) input_bytes: u64,
    /// Bytes sent to the next stage, as they travel.
    pub(crate) activation_bytes: u64,
    /// Bytes sent to the previous stage, as they travel.
    pub(crate) cotangent_bytes: u64,
    /// Bytes saved from `F` to `W`.
    pub(crate) saved_bytes: u64,
    /// Bytes of parameters, frozen weights and buffers.
    pub(crate) weight_bytes: u64,
    /// Bytes of the gradient sums.
    pub(crate) gradient_bytes: u64,
    /// Bytes of the optimizer's state.
    pub(crate) optimizer_bytes: u64,
    /// The greatest peak of any program.
    pub(crate) program_bytes: u64,
    /// Elements of all parameters.
    pub(crate) parameters: u64,
}

/// A model, seen as a chain of nodes that can be cut. Ranges start and end at 0, [`Workload::nodes`] or cut points.
pub(crate) trait Workload {
    /// Number of nodes.
    fn nodes(&self) -> usize;

    /// Where the chain may be cut, ascending; neither 0 nor the number of nodes.
    fn cut_points(&self) -> &[usize];

    /// The smallest micro-batch that the model accepts.
    fn smallest_micro_batch(&self) -> usize;

    /// Whether two devices have the same costs for every stage.
    fn interchangeable(&self, a: usize, b: usize) -> bool;

    /// Quick and nearly right; for comparing thousands of candidates. Fails with a reason where the device cannot run a
    /// node.
    fn estimate(
        &self,
        nodes: Range<usize>,
        size: usize,
        device: usize,
    ) -> Result<StageNumbers, String>;

    /// Exact, from the stage's own programs; for the few best candidates.
    fn exact(
        &mut self,
        nodes: Range<usize>,
        size: usize,
        device: usize,
    ) -> Result<StageNumbers, String>;

    /// Where the first and the last node of a range stand in the model's code.
    fn scopes(&self, nodes: Range<usize>) -> (String, String);
}
