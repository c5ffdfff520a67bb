//! Operators that move elements without computing, and sources.

use super::{InferError, Operands, attribute, check_dim, dim_flags};
use crate::types::MAX_RANK;
use crate::{Dim, Op, TensorType};

pub(super) fn infer(op: &Op, operands: Operands<'_>) -> Result<Vec<TensorType>, InferError> {
    if let Op::Full {
        shape,
        dtype,
        value,
    } = op
    {
        check_shape("shape", shape)?;
        if value.is_nan() {
            return Err(attribute("value", "is not a number"));
        }
        return Ok(vec![TensorType::new(*dtype, shape.iter().copied())]);
    }
    let input = operands.any(0)?;
    let one = |dims: Vec<Dim>| Ok(vec![TensorType::new(input.dtype, dims)]);
    match op {
        Op::Clone {} => one(input.dims.clone()),
        Op::View { shape } => {
            check_shape("shape", shape)?;
            let wanted = TensorType::symbolic_elements(shape);
            if wanted.is_none() || wanted != TensorType::symbolic_elements(&input.dims) {
                let shape = TensorType::new(input.dtype, shape.iter().copied());
                return Err(operands.shape_error(0, format!("as many elements as {shape}")));
            }
            one(shape.clone())
        }
        Op::Permute { dims } => {
            if dims.len() != input.rank() {
                return Err(attribute(
                    "dims",
                    format!("has {} elements, not {}", dims.len(), input.rank()),
                ));
            }
            dim_flags("dims", dims, input.rank())?;
            one(dims
                .iter()
                .map(|&dim| operands.dim(0, dim))
                .collect::<Result<_, _>>()?)
        }
        Op::Expand { shape } => {
            check_shape("shape", shape)?;
            let fits = shape.len() >= input.rank()
                && (input.dims.iter().rev())
                    .zip(shape.iter().rev())
                    .all(|(from, to)| from == to || *from == Dim::Fixed(1));
            if !fits {
                let shape = TensorType::new(input.dtype, shape.iter().copied());
                return Err(operands.shape_error(0, format!("a shape that expands to {shape}")));
            }
            one(shape.clone())
        }
        Op::Cat { dim } => cat(*dim, operands, input),
        Op::Slice {
            dim,
            start,
            end,
            step,
        } => one(slice(operands, *dim, *start, *end, *step)?),
        Op::Select { dim, index } => one(select(operands, *dim, *index)?),
        Op::Split { sizes, dim } => {
            check_dim("dim", *dim, input.rank())?;
            let size = operands.fixed_dim(0, *dim)?;
            if sizes.is_empty() || sizes.len() > super::MAX_OPERANDS {
                return Err(attribute(
                    "sizes",
                    format!("must have 1 to {} elements", super::MAX_OPERANDS),
                ));
            }
            let total = sizes
                .iter()
                .try_fold(0_usize, |sum, &part| sum.checked_add(part));
            if total != Some(size) {
                return Err(attribute(
                    "sizes",
                    format!("must add up to the {size} of dimension {dim}"),
                ));
            }
            Ok(sizes
                .iter()
                .map(|&part| TensorType::new(input.dtype, replaced(&input.dims, *dim, part)))
                .collect())
        }
        Op::Squeeze { dims } => {
            let named = dim_flags("dims", dims, input.rank())?;
            let mut kept = Vec::new();
            for (dim, (&size, named)) in input.dims.iter().zip(named).enumerate() {
                match size {
                    // Whether a batch of one is squeezed would depend on the batch.
                    Dim::Batch(_) if named => return Err(InferError::Symbolic { index: 0, dim }),
                    Dim::Fixed(1) if named => {}
                    _ => kept.push(size),
                }
            }
            one(kept)
        }
        Op::Unsqueeze { dim } => {
            check_dim("dim", *dim, input.rank() + 1)?;
            let mut dims = input.dims.clone();
            dims.insert(*dim, Dim::Fixed(1));
            one(dims)
        }
        Op::ConstantPad { value, .. } if value.is_nan() => {
            Err(attribute("value", "is not a number"))
        }
        Op::ConstantPad { pad, .. } => one(constant_pad(operands, input, pad)?),
        _ => Err(attribute("op", "is not a layout operator")),
    }
}

/// Refuses a shape attribute that could not be a tensor's before it is used.
pub(super) fn check_shape(name: &'static str, shape: &[Dim]) -> Result<(), InferError> {
    if shape.len() > MAX_RANK {
        return Err(attribute(
            name,
            format!("has more than {MAX_RANK} dimensions"),
        ));
    }
    if shape.iter().any(|dim| dim.factor() == 0) {
        return Err(attribute(name, "has an empty dimension"));
    }
    Ok(())
}

fn cat(
    dim: usize,
    operands: Operands<'_>,
    first: &TensorType,
) -> Result<Vec<TensorType>, InferError> {
    check_dim("dim", dim, first.rank())?;
    let mut total = operands.dim(0, dim)?;
    for (index, _) in operands.all().skip(1) {
        let ty = operands.of_dtype(index, first.dtype)?;
        let others_match = ty.rank() == first.rank()
            && (ty.dims.iter().zip(&first.dims).enumerate())
                .all(|(axis, (a, b))| axis == dim || a == b);
        let sum = match (total, ty.dims.get(dim)) {
            (Dim::Fixed(a), Some(Dim::Fixed(b))) => a.checked_add(*b).map(Dim::Fixed),
            (Dim::Batch(a), Some(Dim::Batch(b))) => a.checked_add(*b).map(Dim::Batch),
            _ => None,
        };
        total = sum.filter(|_| others_match).ok_or_else(|| {
            operands.shape_error(index, format!("{first} but for dimension {dim}"))
        })?;
    }
    let mut dims = first.dims.clone();
    if let Some(size) = dims.get_mut(dim) {
        *size = total;
    }
    Ok(vec![TensorType::new(first.dtype, dims)])
}

/// The shape of a slice; `start` and `end` are clamped to the size, as ATen does.
fn slice(
    operands: Operands<'_>,
    dim: usize,
    start: usize,
    end: usize,
    step: usize,
) -> Result<Vec<Dim>, InferError> {
    let input = operands.any(0)?;
    check_dim("dim", dim, input.rank())?;
    let size = operands.fixed_dim(0, dim)?;
    Ok(replaced(
        &input.dims,
        dim,
        slice_length(size, start, end, step)?,
    ))
}

/// Elements of `start..end` by `step` out of `size`.
pub(super) fn slice_length(
    size: usize,
    start: usize,
    end: usize,
    step: usize,
) -> Result<usize, InferError> {
    if step == 0 {
        return Err(attribute("step", "must not be zero"));
    }
    let length = end.min(size).saturating_sub(start).div_ceil(step);
    if length == 0 {
        return Err(attribute(
            "start",
            format!("is {start}, end {end}: an empty slice of {size} elements"),
        ));
    }
    Ok(length)
}

fn select(operands: Operands<'_>, dim: usize, index: usize) -> Result<Vec<Dim>, InferError> {
    let input = operands.any(0)?;
    check_dim("dim", dim, input.rank())?;
    let size = operands.fixed_dim(0, dim)?;
    if index >= size {
        return Err(attribute(
            "index",
            format!("is {index}, dimension {dim} has {size}"),
        ));
    }
    Ok(removed(&input.dims, dim))
}

fn constant_pad(
    operands: Operands<'_>,
    input: &TensorType,
    pad: &[i64],
) -> Result<Vec<Dim>, InferError> {
    let (pairs, rest) = pad.as_chunks::<2>();
    if !rest.is_empty() || pairs.len() > input.rank() {
        return Err(attribute(
            "pad",
            format!(
                "must have an even number of elements, at most {}",
                2 * input.rank()
            ),
        ));
    }
    let mut dims = input.dims.clone();
    for (axis, [before, after]) in pairs.iter().enumerate() {
        let dim = input.rank() - 1 - axis;
        if (*before, *after) == (0, 0) {
            continue;
        }
        let size = operands.fixed_dim(0, dim)?;
        let padded = i64::try_from(size)
            .ok()
            .and_then(|size| size.checked_add(*before)?.checked_add(*after))
            .and_then(|size| usize::try_from(size).ok())
            // A crop must not reach beyond the far edge, even where the other side pads.
            .filter(|&padded| {
                let crops = |pad: i64| pad.min(0).unsigned_abs() as usize <= size;
                padded > 0 && crops(*before) && crops(*after)
            })
            .ok_or_else(|| {
                attribute(
                    "pad",
                    format!("is {before}, {after} for dimension {dim} of {size}"),
                )
            })?;
        if let Some(size) = dims.get_mut(dim) {
            *size = Dim::Fixed(padded);
        }
    }
    Ok(dims)
}

/// These dimensions with one replaced by a fixed size.
pub(super) fn replaced(dims: &[Dim], dim: usize, size: usize) -> Vec<Dim> {
    (dims.iter().enumerate())
        .map(|(axis, &old)| if axis == dim { Dim::Fixed(size) } else { old })
        .collect()
}

/// These dimensions without one.
pub(super) fn removed(dims: &[Dim], dim: usize) -> Vec<Dim> {
    (dims.iter().enumerate())
        .filter(|(axis, _)| *axis != dim)
        .map(|(_, &size)| size)
        .collect()
}
