//! The CPU engine: `kernels` for convolution, batch norm and pooling, Burn's Flex backend for matrix products and layout,
//! own loops for the rest.
//!
//! Images lie in memory channels last while they pass through the kernels (see `order`), and are put in the program's
//! order only where an operator asks for that.
//!
//! Results depend on operands alone. No sum is split by the number of threads: loops run over chunks of fixed size, and
//! Flex's products split rows and columns only.

mod awake;
mod batch_norm;
mod conv;
mod fuse;
mod layer_norm;
mod layout;
mod lookup;
mod matmul;
mod memory;
mod ops;
mod order;
mod parallel;
mod plan;
mod pointwise;
mod pool;
mod recycle;
mod reduce;
mod scratch;
mod softmax;
mod strided;
mod tensor;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use outboard_graph::{DType, Graph, Tensor};
use outboard_kernels::{Isa, Method};
use rayon::prelude::*;

use order::Wanted;
use scratch::{Memory, Settings, Workplace};
use tensor::Order;

use crate::{EngineInfo, ExecError, Executor, RandomKey, StepSize, UpdateRule};

pub use plan::CpuPlan;
pub use tensor::CpuTensor;

const NAME: &str = "cpu";

/// The CPU engine. Runs on the rayon pool of whoever calls it.
#[derive(Clone, Debug)]
pub struct CpuExecutor {
    settings: Settings,
    /// Shared by all plans of this engine, and owned by them: with the last plan goes the memory.
    memory: Arc<Mutex<Weak<Memory>>>,
}

impl CpuExecutor {
    /// An engine for the current rayon pool.
    pub fn new() -> Self {
        Self::with_threads(rayon::current_num_threads())
    }

    /// An engine that will be called on pools of at most this many threads; memory is planned for that.
    pub fn with_threads(threads: usize) -> Self {
        CpuExecutor {
            settings: Settings {
                threads: threads.max(1),
                method: Method::Auto,
                isa: Isa::best(),
            },
            memory: Arc::default(),
        }
    }

    /// The same engine, convolving in another way.
    pub fn convolving(mut self, method: Method) -> Self {
        self.settings.method = method;
        self
    }

    fn memory(&self) -> Arc<Memory> {
        let mut held = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        held.upgrade().unwrap_or_else(|| {
            let memory = Arc::default();
            *held = Arc::downgrade(&memory);
            memory
        })
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
            // Its speed and its last bits are others.
            name: match self.settings.method {
                Method::Auto => NAME.into(),
                Method::Direct => format!("{NAME}-direct"),
            },
            device: processor(),
            threads: self.settings.threads,
        }
    }

    fn compile(&self, program: &Graph) -> Result<CpuPlan, ExecError> {
        plan::compile(program, &self.settings, self.memory())
    }

    fn peak_bytes(&self, plan: &CpuPlan) -> u64 {
        plan.peak_bytes
    }

    fn scratch_bytes(&self, plan: &CpuPlan) -> u64 {
        plan.scratch_bytes()
    }

    fn settled(&self, plan: &CpuPlan, inputs: Vec<CpuTensor>) -> Vec<CpuTensor> {
        let order_of = |value: usize| {
            let uses = plan.nodes.iter().flat_map(|node| {
                let operands = node.operands.iter().zip(&node.wanted);
                operands.filter_map(|(operand, wanted)| match (operand, wanted) {
                    (Some((used, _)), Wanted::Is(order)) if *used == value => Some(*order),
                    _ => None,
                })
            });
            uses.into_iter().next().unwrap_or(Order::First)
        };
        (plan.inputs.iter().zip(inputs))
            .map(|(input, tensor)| tensor.in_order(order_of(input.value)))
            .collect()
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
        plan.memory.tensors.expect(
            inputs.iter().map(|tensor| tensor.bytes().len()).sum(),
            usize::try_from(plan.peak_bytes - plan.scratch_bytes()).unwrap_or(usize::MAX),
        );
        let mut values = place_inputs(plan, inputs)?;
        let mut scratch = plan.memory.scratch.take(plan.scratch_elements);
        let mut place = Workplace {
            settings: &plan.settings,
            scratch: &mut scratch,
            tensors: &plan.memory.tensors,
        };
        let ran = awake::while_running(|| {
            let mut nodes = plan.nodes.iter();
            nodes.try_for_each(|node| run_node(plan, node, &mut values, key, &mut place))
        });
        plan.memory.scratch.give(scratch);
        ran?;
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
        let term = term.in_order(total.order());
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
        // The order of the sum must not be that of the memory.
        let tensor = tensor.clone().in_order(Order::First);
        let chunks = tensor.f32s().par_chunks(parallel::CHUNK);
        let sums: Vec<f64> = chunks
            .map(|chunk| outboard_kernels::sum(chunk, |x| x * x))
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

/// A node's operands in the order that it wants them in.
fn operands(
    plan: &CpuPlan,
    node: &plan::PlanNode,
    values: &mut [Option<CpuTensor>],
) -> Result<Vec<Option<CpuTensor>>, ExecError> {
    let is_last = |value: usize| {
        let tensor = values[value].as_ref();
        tensor.is_some_and(|tensor| tensor.order() == Order::Last)
    };
    let any_last = (node.operands.iter().flatten()).any(|(value, _)| is_last(*value));
    let mut operands = Vec::with_capacity(node.operands.len());
    for (operand, wanted) in node.operands.iter().zip(&node.wanted) {
        let Some((value, last_use)) = *operand else {
            operands.push(None);
            continue;
        };
        let mut tensor = values[value].take().ok_or_else(broken)?;
        let order = match wanted {
            Wanted::Any => tensor.order(),
            Wanted::Is(order) => *order,
            Wanted::Alike if any_last => Order::Last,
            Wanted::Alike => Order::First,
        };
        if !last_use {
            if !plan.is_saved[value] {
                // For all who use it later, too.
                tensor = tensor.in_order(order);
            }
            values[value] = Some(tensor.clone());
        }
        operands.push(Some(tensor.in_order(order)));
    }
    Ok(operands)
}

fn run_node(
    plan: &CpuPlan,
    node: &plan::PlanNode,
    values: &mut [Option<CpuTensor>],
    key: RandomKey,
    place: &mut Workplace<'_>,
) -> Result<(), ExecError> {
    let operands = operands(plan, node, values)?;
    let shapes: Vec<&[usize]> = (node.results.iter())
        .map(|(value, _)| plan.values[*value].1.as_slice())
        .collect();
    // Nothing of the caller is left half changed: operands are ours, and the run ends here.
    let result = catch_unwind(AssertUnwindSafe(|| {
        ops::run(node, ops::Operands(operands), &shapes, key, place)
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
