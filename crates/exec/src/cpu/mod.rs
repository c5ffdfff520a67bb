//! The CPU engine: Burn's Flex backend for matrix products and layout, own loops for the rest.
//!
//! Where Burn 0.22.1 differs from ATen, or would be slow, this engine does its own arithmetic: the running variance of
//! batch norm (Burn's is biased), the gradients of convolution (Flex runs the weight's as a convolution with a giant
//! kernel), NaN in relu and max pooling, and all that works element by element (Flex does that on one thread).
//!
//! Results depend on operands alone. No sum is split by the number of threads: loops run over chunks of fixed size, and
//! Flex's products split rows and columns only.

mod columns;
mod conv;
mod layout;
mod lookup;
mod matmul;
mod memory;
mod norm;
mod ops;
mod parallel;
mod plan;
mod pointwise;
mod pool;
mod reduce;
mod softmax;
mod strided;
mod tensor;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use outboard_graph::{DType, Graph, Tensor};
use rayon::prelude::*;

use crate::{EngineInfo, ExecError, Executor, RandomKey, StepSize, UpdateRule};

pub use plan::CpuPlan;
pub use tensor::CpuTensor;

const NAME: &str = "cpu";

/// The CPU engine. Runs on the rayon pool of whoever calls it.
#[derive(Clone, Debug)]
pub struct CpuExecutor {
    threads: usize,
}

impl CpuExecutor {
    /// An engine for the current rayon pool.
    pub fn new() -> Self {
        Self::with_threads(rayon::current_num_threads())
    }

    /// An engine that will be called on pools of at most this many threads; memory is planned for that.
    pub fn with_threads(threads: usize) -> Self {
        CpuExecutor {
            threads: threads.max(1),
        }
    }
}

impl Default for CpuExecutor {
    fn default() -> Self {
        Self::new()
    }
}

/// Why an operator gave no result.
#[derive(Debug)]
enum OpError {
    /// An operand's value is out of range.
    Value(String),
    /// Operands that the verified program cannot have.
    Shape,
}

impl Executor for CpuExecutor {
    type Tensor = CpuTensor;
    type Plan = CpuPlan;

    fn info(&self) -> EngineInfo {
        EngineInfo {
            name: NAME.into(),
            device: processor(),
            threads: self.threads,
        }
    }

    fn compile(&self, program: &Graph) -> Result<CpuPlan, ExecError> {
        plan::compile(program, self.threads)
    }

    fn peak_bytes(&self, plan: &CpuPlan) -> u64 {
        plan.peak_bytes
    }

    fn upload(&self, tensor: &Tensor) -> Result<CpuTensor, ExecError> {
        CpuTensor::upload(tensor)
    }

    fn download(&self, tensor: &CpuTensor) -> Result<Tensor, ExecError> {
        tensor.download()
    }

    fn run(
        &self,
        plan: &CpuPlan,
        inputs: Vec<CpuTensor>,
        key: RandomKey,
    ) -> Result<Vec<CpuTensor>, ExecError> {
        let mut values = place_inputs(plan, inputs)?;
        for node in &plan.nodes {
            run_node(plan, node, &mut values, key)?;
        }
        (plan.outputs.iter())
            .map(|&value| values[value].clone().ok_or_else(broken))
            .collect()
    }

    fn accumulate(&self, sum: &mut Option<CpuTensor>, term: CpuTensor) -> Result<(), ExecError> {
        let Some(total) = sum else {
            *sum = Some(term);
            return Ok(());
        };
        same_f32("accumulate", total, &term)?;
        // Never written to the term, which someone else may hold on to: the sum is ours.
        (total.f32s_unshared().par_chunks_mut(parallel::CHUNK))
            .zip(term.f32s().par_chunks(parallel::CHUNK))
            .for_each(|(sum, term)| {
                sum.iter_mut()
                    .zip(term)
                    .for_each(|(sum, term)| *sum += term);
            });
        Ok(())
    }

    fn sum_of_squares(&self, tensor: &CpuTensor) -> Result<f64, ExecError> {
        is_f32("sum of squares", tensor)?;
        let chunks = tensor.f32s().par_chunks(parallel::CHUNK);
        let sums: Vec<f64> = chunks
            .map(|chunk| parallel::sum(chunk, |x| x * x))
            .collect();
        Ok(sums.iter().sum())
    }

    fn update(
        &self,
        rule: &UpdateRule,
        size: StepSize,
        parameter: &mut CpuTensor,
        gradient: &CpuTensor,
        state: &mut Vec<CpuTensor>,
    ) -> Result<(), ExecError> {
        same_f32("optimizer", parameter, gradient)?;
        for state in state.iter() {
            same_f32("optimizer state", parameter, state)?;
        }
        let first = state.is_empty();
        if first {
            let zeros = || CpuTensor::from_f32(parameter.dims(), vec![0.0; parameter.elements()]);
            state.extend(rule.state_names().iter().map(|_| zeros()));
        }
        let mut slices: Vec<&mut [f32]> = state.iter_mut().map(CpuTensor::f32s_unshared).collect();
        let parameter = parameter.f32s_unshared();
        rule.apply(size, first, parameter, gradient.f32s(), &mut slices)
    }
}

fn is_f32(what: &str, tensor: &CpuTensor) -> Result<(), ExecError> {
    if tensor.dtype() == DType::F32 {
        return Ok(());
    }
    let found = tensor.dtype().name();
    Err(ExecError::Invalid(format!(
        "{what}: the tensor is {found}, not f32"
    )))
}

fn same_f32(what: &str, a: &CpuTensor, b: &CpuTensor) -> Result<(), ExecError> {
    is_f32(what, a)?;
    is_f32(what, b)?;
    if a.dims() == b.dims() {
        return Ok(());
    }
    let (a, b) = (a.dims(), b.dims());
    Err(ExecError::Invalid(format!(
        "{what}: shapes {a:?} and {b:?} differ"
    )))
}

fn broken() -> ExecError {
    ExecError::Invalid("the program uses a value before it is defined; verify it first".into())
}

/// Checks the inputs against the program and puts them where its nodes look for them.
fn place_inputs(
    plan: &CpuPlan,
    inputs: Vec<CpuTensor>,
) -> Result<Vec<Option<CpuTensor>>, ExecError> {
    if inputs.len() != plan.inputs.len() {
        return Err(ExecError::Invalid(format!(
            "the program takes {} inputs, not {}",
            plan.inputs.len(),
            inputs.len()
        )));
    }
    let mut values: Vec<Option<CpuTensor>> = vec![None; plan.values.len()];
    for (input, tensor) in plan.inputs.iter().zip(inputs) {
        let (dtype, dims) = &plan.values[input.value];
        if (tensor.dtype(), tensor.dims()) != (*dtype, dims) {
            return Err(ExecError::Invalid(format!(
                "input `{}` is {}{dims:?}, not {}{:?}",
                input.name,
                dtype.name(),
                tensor.dtype().name(),
                tensor.dims()
            )));
        }
        if !input.unused {
            values[input.value] = Some(tensor);
        }
    }
    Ok(values)
}

fn run_node(
    plan: &CpuPlan,
    node: &plan::PlanNode,
    values: &mut [Option<CpuTensor>],
    key: RandomKey,
) -> Result<(), ExecError> {
    let mut operands = Vec::with_capacity(node.operands.len());
    for operand in &node.operands {
        operands.push(match *operand {
            None => None,
            Some((value, true)) => Some(values[value].take().ok_or_else(broken)?),
            Some((value, false)) => Some(values[value].clone().ok_or_else(broken)?),
        });
    }
    let shapes: Vec<&[usize]> = (node.results.iter())
        .map(|(value, _)| plan.values[*value].1.as_slice())
        .collect();
    // Nothing of the caller is left half changed: operands are ours, and the run ends here.
    let result = catch_unwind(AssertUnwindSafe(|| {
        ops::run(&node.op, ops::Operands(operands), &shapes, key)
    }));
    let failed = |reason: String| ExecError::Failed {
        op: node.text.clone(),
        scope: node.scope.clone(),
        reason,
    };
    let results = match result {
        Ok(Ok(results)) => results,
        Ok(Err(OpError::Value(reason))) => {
            return Err(ExecError::Value {
                op: node.text.clone(),
                scope: node.scope.clone(),
                reason,
            });
        }
        Ok(Err(OpError::Shape)) => {
            return Err(failed(
                "its operands do not fit; verify the program first".into(),
            ));
        }
        Err(panic) => return Err(failed(panic_text(&*panic))),
    };
    for ((value, used), tensor) in node.results.iter().zip(results) {
        let (dtype, dims) = &plan.values[*value];
        if (tensor.dtype(), tensor.dims()) != (*dtype, dims) {
            return Err(failed(format!(
                "it gave {}{:?} where the program says {}{dims:?}",
                tensor.dtype().name(),
                tensor.dims(),
                dtype.name()
            )));
        }
        if *used {
            values[*value] = Some(tensor);
        }
    }
    Ok(())
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "the engine panicked".into())
}

/// The processor's name as Linux and Android give it; else its architecture.
fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| {
        let (field, value) = line.split_once(':')?;
        (field.trim() == "model name").then(|| value.trim().to_owned())
    });
    name.unwrap_or_else(|| std::env::consts::ARCH.into())
}
