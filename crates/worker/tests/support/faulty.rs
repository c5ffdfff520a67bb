//! An engine that does as it is told to: panic, or take its time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use outboard_exec::{
    EngineInfo, ExecError, Executor, RandomKey, Reference, ReferencePlan, ReferenceTensor,
    StepSize, UpdateRule,
};
use outboard_graph::{Graph, Tensor};

/// The reference engine with faults.
#[derive(Default)]
pub struct Faulty {
    /// The run that panics, counted from 1; 0 for none.
    pub panics_at: usize,
    /// How long each run takes.
    pub takes: Duration,
    pub runs: AtomicUsize,
}

impl Executor for Faulty {
    type Tensor = ReferenceTensor;
    type Plan = ReferencePlan;

    fn info(&self) -> EngineInfo {
        Reference.info()
    }

    fn compile(&self, program: &Graph) -> Result<ReferencePlan, ExecError> {
        Reference.compile(program)
    }

    fn peak_bytes(&self, plan: &ReferencePlan) -> u64 {
        Reference.peak_bytes(plan)
    }

    fn upload(&self, tensor: &Tensor) -> Result<ReferenceTensor, ExecError> {
        Reference.upload(tensor)
    }

    fn download(&self, tensor: &ReferenceTensor) -> Result<Tensor, ExecError> {
        Reference.download(tensor)
    }

    fn run(
        &self,
        plan: &ReferencePlan,
        inputs: Vec<ReferenceTensor>,
        key: RandomKey,
    ) -> Result<Vec<ReferenceTensor>, ExecError> {
        let run = self.runs.fetch_add(1, Ordering::Relaxed) + 1;
        assert!(run != self.panics_at, "the device caught fire");
        std::thread::sleep(self.takes);
        Reference.run(plan, inputs, key)
    }

    fn accumulate(
        &self,
        sum: &mut Option<ReferenceTensor>,
        term: ReferenceTensor,
    ) -> Result<(), ExecError> {
        Reference.accumulate(sum, term)
    }

    fn sum_of_squares(&self, tensor: &ReferenceTensor) -> Result<f64, ExecError> {
        Reference.sum_of_squares(tensor)
    }

    fn update(
        &self,
        rule: &UpdateRule,
        size: StepSize,
        parameter: &mut ReferenceTensor,
        gradient: &ReferenceTensor,
        state: &mut Vec<ReferenceTensor>,
    ) -> Result<(), ExecError> {
        Reference.update(rule, size, parameter, gradient, state)
    }
}
