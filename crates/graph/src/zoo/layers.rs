//! `torch.nn`'s modules as nodes. Each takes the module's name and makes its parameters beneath it.

use crate::{Builder, DType, Dim, GraphError, InputKind, Op, OutputKind, TensorType, ValueId};

/// A module as a node of the scope `name`, with all operands and one result.
pub(super) fn op(
    b: &mut Builder,
    name: &str,
    op: Op,
    operands: &[ValueId],
) -> Result<ValueId, GraphError> {
    b.scoped(name, |b| b.op(op, operands))
}

/// A square convolution kernel.
#[derive(Clone, Copy)]
pub(super) struct Conv {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) kernel: usize,
    pub(super) stride: usize,
    pub(super) padding: usize,
    pub(super) bias: bool,
}

/// `Conv2d`.
pub(super) fn conv2d(
    b: &mut Builder,
    name: &str,
    x: ValueId,
    conv: Conv,
) -> Result<ValueId, GraphError> {
    let Conv {
        from,
        to,
        kernel,
        stride,
        padding,
        bias,
    } = conv;
    b.scoped(name, |b| {
        let weight = b.parameter("weight", floats(&[to, from, kernel, kernel]))?;
        let bias = match bias {
            true => Some(b.parameter("bias", floats(&[to]))?),
            false => None,
        };
        let op = Op::Convolution {
            stride: vec![stride; 2],
            padding: vec![padding; 2],
            dilation: vec![1; 2],
            groups: 1,
        };
        b.op_optional(op, &[Some(x), Some(weight), bias])
    })
}

/// `BatchNorm2d` in training mode, with its three buffers; like PyTorch's, it counts the batches it has seen.
pub(super) fn batch_norm2d(
    b: &mut Builder,
    name: &str,
    x: ValueId,
    channels: usize,
) -> Result<ValueId, GraphError> {
    b.scoped(name, |b| {
        let weight = b.parameter("weight", floats(&[channels]))?;
        let bias = b.parameter("bias", floats(&[channels]))?;
        let mean = b.buffer("running_mean", floats(&[channels]))?;
        let var = b.buffer("running_var", floats(&[channels]))?;
        let seen = b.buffer("num_batches_tracked", TensorType::scalar(DType::I64))?;
        let seen = b.op(Op::AddScalar { scalar: 1.0 }, &[seen])?;
        let op = Op::BatchNormTraining {
            momentum: 0.1,
            eps: 1e-5,
        };
        let operands = [x, weight, bias, mean, var].map(Some);
        let results = b.ops(op, &operands)?;
        let updates = ["running_mean", "running_var"];
        for (name, value) in updates.iter().zip(results.iter().skip(3)) {
            b.output(OutputKind::BufferUpdate, &b.qualified(name), *value)?;
        }
        b.output(
            OutputKind::BufferUpdate,
            &b.qualified("num_batches_tracked"),
            seen,
        )?;
        Ok(results.first().copied().unwrap_or(x))
    })
}

/// `Linear` on the last dimension, for any number of dimensions before it.
pub(super) fn linear(
    b: &mut Builder,
    name: &str,
    x: ValueId,
    to: usize,
) -> Result<ValueId, GraphError> {
    b.scoped(name, |b| linear_named(b, x, to, "weight", "bias"))
}

/// `Linear` whose parameters have these names in the current scope.
pub(super) fn linear_named(
    b: &mut Builder,
    x: ValueId,
    to: usize,
    weight: &str,
    bias: &str,
) -> Result<ValueId, GraphError> {
    let dims = b.ty(x)?.dims.clone();
    let from = fixed(&dims, dims.len().saturating_sub(1));
    let weight = b.parameter(weight, floats(&[to, from]))?;
    let bias = b.parameter(bias, floats(&[to]))?;
    let rows = merged(&dims[..dims.len().saturating_sub(1)]);
    let flat = match dims.len() {
        2 => x,
        _ => view(b, x, [rows, Dim::Fixed(from)])?,
    };
    let transposed = b.op(Op::Permute { dims: vec![1, 0] }, &[weight])?;
    let y = b.op(Op::Addmm {}, &[bias, flat, transposed])?;
    match dims.len() {
        2 => Ok(y),
        rank => {
            let outer = dims.into_iter().take(rank.saturating_sub(1));
            view(b, y, outer.chain([Dim::Fixed(to)]))
        }
    }
}

/// `LayerNorm` over the last dimension.
pub(super) fn layer_norm(
    b: &mut Builder,
    name: &str,
    x: ValueId,
    width: usize,
    eps: f64,
) -> Result<ValueId, GraphError> {
    b.scoped(name, |b| {
        let weight = b.parameter("weight", floats(&[width]))?;
        let bias = b.parameter("bias", floats(&[width]))?;
        let op = Op::LayerNorm {
            normalized_shape: vec![width],
            eps,
        };
        let results = b.ops(op, &[Some(x), Some(weight), Some(bias)])?;
        Ok(results.first().copied().unwrap_or(x))
    })
}

/// `Dropout`; a probability of 0 leaves no trace. Its key is the number of nodes before it, which no other dropout has.
pub(super) fn dropout(
    b: &mut Builder,
    name: &str,
    x: ValueId,
    p: f64,
) -> Result<ValueId, GraphError> {
    if p == 0.0 {
        return Ok(x);
    }
    let key = b.graph().nodes.len() as u64;
    b.scoped(name, |b| {
        let results = b.ops(Op::Dropout { p, key }, &[Some(x)])?;
        Ok(results.first().copied().unwrap_or(x))
    })
}

/// Another shape for the same elements.
pub(super) fn view(
    b: &mut Builder,
    x: ValueId,
    shape: impl IntoIterator<Item = Dim>,
) -> Result<ValueId, GraphError> {
    let shape = shape.into_iter().collect();
    b.op(Op::View { shape }, &[x])
}

/// A parameter that belongs to no module of its own.
pub(super) fn free_parameter(
    b: &mut Builder,
    name: &str,
    dims: &[usize],
) -> Result<ValueId, GraphError> {
    b.input(InputKind::Parameter, name, floats(dims))
}

/// A type of fixed size.
pub(super) fn floats(dims: &[usize]) -> TensorType {
    TensorType::fixed(DType::F32, dims)
}

/// A dimension's size per sample.
pub(super) fn fixed(dims: &[Dim], dim: usize) -> usize {
    dims.get(dim).map_or(0, |dim| dim.factor())
}

/// Dimensions merged into one. Sizes are far below overflow: the tensor exists.
fn merged(dims: &[Dim]) -> Dim {
    let size = (dims.iter()).fold(1_usize, |size, dim| size.saturating_mul(dim.factor()));
    if dims.iter().any(|dim| dim.is_batch()) {
        Dim::Batch(size)
    } else {
        Dim::Fixed(size)
    }
}
