//! The reference engine: slow, obviously right, f64 from end to end.
//!
//! It is the oracle of tests and of checks between engines: every operator is the plainest loop that has ATen's meaning,
//! on one thread. Floats are held as f64 between programs too; they are rounded to their type when downloaded. (Types
//! narrower than f32 are rounded at every operator, since rounding is what they are for.)

mod array;
mod convolution;
mod elementwise;
mod layout;
mod linear;
mod normalisation;
mod operator;
mod plan;
mod pooling;
mod reduction;
mod softmax;

use std::sync::Arc;

use outboard_graph::{DType, Graph, Tensor};

use crate::{EngineInfo, ExecError, Executor, RandomKey, StepSize, UpdateRule};
use array::{Array, Data, Shape};
pub use plan::ReferencePlan;

/// The engine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reference;

/// A tensor of the reference engine.
#[derive(Clone, Debug, PartialEq)]
pub struct ReferenceTensor(Arc<Array>);

impl ReferenceTensor {
    /// An `f32` tensor whose elements keep the precision of f64.
    ///
    /// # Errors
    /// [`ExecError::Invalid`] when the number of elements is not that of the shape.
    pub fn from_f64(dims: &[usize], elements: Vec<f64>) -> Result<Self, ExecError> {
        let count = dims
            .iter()
            .try_fold(1_usize, |count, &dim| count.checked_mul(dim));
        if count != Some(elements.len()) {
            return Err(ExecError::Invalid(format!(
                "{} elements do not fill the shape {dims:?}",
                elements.len()
            )));
        }
        let shape = Shape {
            dtype: DType::F32,
            dims: dims.to_vec(),
        };
        Ok(Self(Arc::new(Array::floats(&shape, elements))))
    }

    /// The elements before rounding, row-major; integers and bools as numbers.
    pub fn to_f64_vec(&self) -> Vec<f64> {
        match &self.0.data {
            Data::Float(values) => values.clone(),
            Data::Int(values) => values.iter().map(|&x| x as f64).collect(),
            Data::Bool(values) => values.iter().map(|&x| f64::from(u8::from(x))).collect(),
        }
    }

    /// Shape, outermost dimension first.
    pub fn dims(&self) -> &[usize] {
        &self.0.dims
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.0.dtype
    }

    fn floats(&self, what: &str) -> Result<&[f64], ExecError> {
        self.0
            .as_floats()
            .map_err(|Fault(reason)| ExecError::Invalid(format!("{what} {reason}")))
    }
}

impl Executor for Reference {
    type Tensor = ReferenceTensor;
    type Plan = ReferencePlan;

    fn info(&self) -> EngineInfo {
        EngineInfo {
            name: "reference".to_owned(),
            device: "this processor, in f64".to_owned(),
            threads: 1,
        }
    }

    fn compile(&self, program: &Graph) -> Result<ReferencePlan, ExecError> {
        ReferencePlan::new(program)
    }

    fn peak_bytes(&self, plan: &ReferencePlan) -> u64 {
        plan.peak_bytes()
    }

    fn upload(&self, tensor: &Tensor) -> Result<ReferenceTensor, ExecError> {
        Ok(ReferenceTensor(Arc::new(Array::from_tensor(tensor))))
    }

    fn download(&self, tensor: &ReferenceTensor) -> Result<Tensor, ExecError> {
        tensor
            .0
            .to_tensor()
            .map_err(|error| ExecError::Invalid(error.to_string()))
    }

    fn run(
        &self,
        plan: &ReferencePlan,
        inputs: Vec<ReferenceTensor>,
        key: RandomKey,
    ) -> Result<Vec<ReferenceTensor>, ExecError> {
        let inputs = inputs
            .into_iter()
            .map(|ReferenceTensor(array)| array)
            .collect();
        Ok(plan
            .run(inputs, key)?
            .into_iter()
            .map(ReferenceTensor)
            .collect())
    }

    fn accumulate(
        &self,
        sum: &mut Option<ReferenceTensor>,
        term: ReferenceTensor,
    ) -> Result<(), ExecError> {
        let Some(ReferenceTensor(held)) = sum else {
            term.floats("a sum")?;
            *sum = Some(term);
            return Ok(());
        };
        if held.dims != term.dims() {
            return Err(ExecError::Invalid(format!(
                "cannot add a tensor of shape {:?} to a sum of shape {:?}",
                term.dims(),
                held.dims
            )));
        }
        let total = held
            .as_floats()
            .map_err(|Fault(reason)| ExecError::Invalid(format!("a sum {reason}")))?;
        let total = total
            .iter()
            .zip(term.floats("a sum")?)
            .map(|(a, b)| a + b)
            .collect();
        *held = Arc::new(Array::floats(&held.shape(), total));
        Ok(())
    }

    fn sum_of_squares(&self, tensor: &ReferenceTensor) -> Result<f64, ExecError> {
        Ok(tensor.floats("a norm")?.iter().map(|x| x * x).sum())
    }

    /// The rule in f64.
    fn update(
        &self,
        rule: &UpdateRule,
        size: StepSize,
        parameter: &mut ReferenceTensor,
        gradient: &ReferenceTensor,
        state: &mut Vec<ReferenceTensor>,
    ) -> Result<(), ExecError> {
        let first = state.is_empty();
        let mut updated = parameter.floats("a parameter")?.to_vec();
        let mut slots: Vec<Vec<f64>> = if first {
            vec![vec![0.0; updated.len()]; rule.state_names().len()]
        } else {
            state
                .iter()
                .map(|slot| slot.floats("an optimizer state").map(<[f64]>::to_vec))
                .collect::<Result<_, _>>()?
        };
        let gradient = gradient.floats("a gradient")?;
        let mut slices: Vec<&mut [f64]> = slots.iter_mut().map(Vec::as_mut_slice).collect();
        rule.apply(size, first, &mut updated, gradient, &mut slices)?;
        let shape = parameter.0.shape();
        *state = slots
            .into_iter()
            .map(|slot| ReferenceTensor(Arc::new(Array::floats(&shape, slot))))
            .collect();
        *parameter = ReferenceTensor(Arc::new(Array::floats(&shape, updated)));
        Ok(())
    }
}

/// Why an operator could not run, in words that follow its name.
#[derive(Debug)]
struct Fault(String);

/// One application of an operator: what it reads and what its results must be.
struct Call<'a> {
    operands: &'a [Option<&'a Array>],
    results: &'a [Shape],
    key: RandomKey,
}

impl<'a> Call<'a> {
    fn optional(&self, index: usize) -> Option<&'a Array> {
        self.operands.get(index).copied().flatten()
    }

    fn operand(&self, index: usize) -> Result<&'a Array, Fault> {
        self.optional(index)
            .ok_or_else(|| Fault(format!("has no operand {index}")))
    }

    fn dims(&self, index: usize) -> Result<&'a [usize], Fault> {
        Ok(&self.operand(index)?.dims)
    }

    fn floats(&self, index: usize) -> Result<&'a [f64], Fault> {
        self.operand(index)?.as_floats()
    }

    fn ints(&self, index: usize) -> Result<&'a [i64], Fault> {
        self.operand(index)?.as_ints()
    }

    fn optional_floats(&self, index: usize) -> Result<Option<&'a [f64]>, Fault> {
        self.optional(index).map(Array::as_floats).transpose()
    }

    fn result(&self, index: usize) -> Result<&'a Shape, Fault> {
        self.results
            .get(index)
            .ok_or_else(|| Fault(format!("has no result {index}")))
    }
}
