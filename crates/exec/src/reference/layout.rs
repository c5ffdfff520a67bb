//! Operators that move elements without computing: every one says where each element of its result comes from.

use super::array::{Array, Data, Shape, flat, for_each_index, strides};
use super::elementwise::broadcast_strides;
use super::{Call, Fault};

/// The same elements in order, in the result's shape: `view`, `squeeze`, `unsqueeze`, `clone`.
pub(super) fn reshape(call: &Call<'_>) -> Result<Vec<Array>, Fault> {
    let input = call.operand(0)?;
    Ok(vec![Array {
        dims: call.result(0)?.dims.clone(),
        ..input.clone()
    }])
}

/// Dimension `i` of the result is dimension `dims[i]` of the operand.
pub(super) fn permute(call: &Call<'_>, dims: &[usize]) -> Result<Vec<Array>, Fault> {
    let input = call.operand(0)?;
    let from = strides(&input.dims);
    let by_result: Option<Vec<usize>> = dims.iter().map(|&dim| from.get(dim).copied()).collect();
    let by_result = by_result.ok_or_else(|| Fault(format!("cannot permute by {dims:?}")))?;
    let array = input.gather(&call.result(0)?.dims, 0.0, |index| {
        Some(flat(index, &by_result))
    })?;
    Ok(vec![array])
}

pub(super) fn expand(call: &Call<'_>) -> Result<Vec<Array>, Fault> {
    let (input, shape) = (call.operand(0)?, call.result(0)?);
    let strides = broadcast_strides(&input.dims, &shape.dims)?;
    Ok(vec![input.gather(&shape.dims, 0.0, |index| {
        Some(flat(index, &strides))
    })?])
}

/// The operands one after the other along a dimension.
pub(super) fn cat(call: &Call<'_>, dim: usize) -> Result<Vec<Array>, Fault> {
    let shape = call.result(0)?;
    let parts: Vec<&Array> = (0..call.operands.len())
        .map(|index| call.operand(index))
        .collect::<Result<_, _>>()?;
    // Which operand and which position along the dimension stand at each position of the result.
    let mut origin = Vec::new();
    for (part, array) in parts.iter().enumerate() {
        origin.extend((0..*array.dims.get(dim).unwrap_or(&0)).map(|at| (part, at)));
    }
    let steps: Vec<Vec<usize>> = parts.iter().map(|array| strides(&array.dims)).collect();
    let mut sources = Vec::with_capacity(shape.elements());
    for_each_index(&shape.dims, |index| {
        let (part, at) = origin[index[dim]];
        let mut index = index.to_vec();
        index[dim] = at;
        sources.push((part, flat(&index, &steps[part])));
    });
    fn pick<'a, T: Copy + 'a>(
        sources: &[(usize, usize)],
        parts: &[&'a Array],
        of: impl Fn(&'a Array) -> Result<&'a [T], Fault>,
    ) -> Result<Vec<T>, Fault> {
        let parts: Vec<&[T]> = parts
            .iter()
            .map(|array| of(array))
            .collect::<Result<_, _>>()?;
        Ok(sources.iter().map(|&(part, at)| parts[part][at]).collect())
    }
    let array = match call.operand(0)?.data {
        Data::Float(_) => Array::floats(shape, pick(&sources, &parts, Array::as_floats)?),
        Data::Int(_) => Array::ints(shape, pick(&sources, &parts, Array::as_ints)?),
        Data::Bool(_) => Array::bools(shape, pick(&sources, &parts, Array::as_bools)?),
    };
    Ok(vec![array])
}

/// Every `step`-th element along a dimension, from `start` on.
pub(super) fn slice(
    call: &Call<'_>,
    dim: usize,
    start: usize,
    step: usize,
) -> Result<Vec<Array>, Fault> {
    Ok(vec![slice_of(
        call.operand(0)?,
        call.result(0)?,
        dim,
        start,
        step,
    )?])
}

fn slice_of(
    input: &Array,
    shape: &Shape,
    dim: usize,
    start: usize,
    step: usize,
) -> Result<Array, Fault> {
    let strides = strides(&input.dims);
    let along = *strides
        .get(dim)
        .ok_or_else(|| Fault(format!("has no dimension {dim}")))?;
    input.gather(&shape.dims, 0.0, |index| {
        let skipped = index[dim] * (step - 1);
        Some(flat(index, &strides) + (start + skipped) * along)
    })
}

/// Consecutive pieces along a dimension, one for each size.
pub(super) fn split(call: &Call<'_>, sizes: &[usize], dim: usize) -> Result<Vec<Array>, Fault> {
    let mut start = 0;
    let mut pieces = Vec::with_capacity(sizes.len());
    for (index, size) in sizes.iter().enumerate() {
        pieces.push(slice_of(
            call.operand(0)?,
            call.result(index)?,
            dim,
            start,
            1,
        )?);
        start += size;
    }
    Ok(pieces)
}

/// One plane of a dimension, without it.
pub(super) fn select(call: &Call<'_>, dim: usize, at: usize) -> Result<Vec<Array>, Fault> {
    let input = call.operand(0)?;
    let strides = strides(&input.dims);
    if dim >= strides.len() {
        return Err(Fault(format!("has no dimension {dim}")));
    }
    let (before, behind) = strides.split_at(dim);
    let array = input.gather(&call.result(0)?.dims, 0.0, |index| {
        let (outer, inner) = index.split_at(dim);
        Some(flat(outer, before) + at * behind[0] + flat(inner, &behind[1..]))
    })?;
    Ok(vec![array])
}

/// `(grad)`: zeros with the gradient where the slice was.
pub(super) fn slice_grad(
    call: &Call<'_>,
    dim: usize,
    start: usize,
    end: usize,
    step: usize,
) -> Result<Vec<Array>, Fault> {
    let grad = call.operand(0)?;
    let strides = strides(&grad.dims);
    let array = grad.gather(&call.result(0)?.dims, 0.0, |index| {
        let at = index[dim];
        if at < start || at >= end || !(at - start).is_multiple_of(step) {
            return None;
        }
        let mut source = index.to_vec();
        source[dim] = (at - start) / step;
        Some(flat(&source, &strides))
    })?;
    Ok(vec![array])
}

/// `(grad)`: zeros with the gradient in the plane that was selected.
pub(super) fn select_grad(call: &Call<'_>, dim: usize, at: usize) -> Result<Vec<Array>, Fault> {
    let grad = call.operand(0)?;
    let strides = strides(&grad.dims);
    let array = grad.gather(&call.result(0)?.dims, 0.0, |index| {
        if index[dim] != at {
            return None;
        }
        let (outer, inner) = (&index[..dim], &index[dim + 1..]);
        Some(flat(outer, &strides[..dim]) + flat(inner, &strides[dim..]))
    })?;
    Ok(vec![array])
}

/// Pairs of amounts from the last dimension backwards; negative ones crop.
pub(super) fn constant_pad(call: &Call<'_>, pad: &[i64], value: f64) -> Result<Vec<Array>, Fault> {
    let input = call.operand(0)?;
    let strides = strides(&input.dims);
    let rank = input.dims.len();
    let before = |dim: usize| pad.get(2 * (rank - 1 - dim)).copied().unwrap_or(0);
    let array = input.gather(&call.result(0)?.dims, value, |index| {
        let mut source = Vec::with_capacity(rank);
        for (dim, (&at, &size)) in index.iter().zip(&input.dims).enumerate() {
            let at = (at as i64).checked_sub(before(dim))?;
            source.push(usize::try_from(at).ok().filter(|&at| at < size)?);
        }
        Some(flat(&source, &strides))
    })?;
    Ok(vec![array])
}
