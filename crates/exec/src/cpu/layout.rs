//! Operators that move elements: each copies into a fresh tensor, so that no result keeps a larger one alive.

use burn_backend::Shape;
use burn_backend::ops::FloatTensorOps;
use burn_flex::{Flex, FlexTensor, Layout};
use outboard_graph::DType;

use super::tensor::CpuTensor;

/// `permute`.
pub(super) fn permute(x: CpuTensor, dims: &[usize]) -> CpuTensor {
    CpuTensor::from_flex(x.into_flex().permute(dims))
}

/// `expand`.
pub(super) fn expanded(x: CpuTensor, out_dims: &[usize]) -> CpuTensor {
    let rank = out_dims.len();
    let ones = std::iter::repeat_n(1, rank - x.dims().len());
    let dims: Vec<usize> = ones.chain(x.dims().iter().copied()).collect();
    let x = x.reshaped(&dims).into_flex();
    CpuTensor::from_flex(Flex::float_expand(x, Shape::from(out_dims.to_vec())))
}

/// `cat`.
pub(super) fn concatenated(parts: Vec<CpuTensor>, dim: usize) -> CpuTensor {
    let parts: Vec<FlexTensor> = parts.into_iter().map(CpuTensor::into_flex).collect();
    CpuTensor::from_flex(Flex::float_cat(parts, dim))
}

/// `slice.Tensor` of a positive step.
pub(super) fn sliced(
    x: &CpuTensor,
    dim: usize,
    (start, end, step): (usize, usize, usize),
) -> CpuTensor {
    let layout = x.flex().layout();
    let mut dims = x.dims().to_vec();
    let mut strides = layout.strides().to_vec();
    let mut offset = 0;
    if let (Some(size), Some(stride)) = (dims.get_mut(dim), strides.get_mut(dim)) {
        let (start, end) = (start.min(*size), end.min(*size));
        offset = start * stride.unsigned_abs();
        *size = (end - start).div_ceil(step);
        *stride *= step.cast_signed();
    }
    let layout = Layout::new(Shape::from(dims), strides, offset);
    CpuTensor::from_flex(x.flex().clone().with_layout(layout))
}

/// The adjoint of a slice: zeros of `input_dims` with `grad` at `start`, `start + step`, ...; also of a selected plane.
pub(super) fn slice_grad(
    grad: &CpuTensor,
    input_dims: &[usize],
    dim: usize,
    (start, step): (usize, usize),
) -> CpuTensor {
    let size = input_dims.get(dim).copied().unwrap_or(1);
    let outer: usize = input_dims.iter().take(dim).product();
    let inner: usize = input_dims.iter().skip(dim + 1).product();
    let length = grad.elements() / (outer * inner);
    let mut out = vec![0.0; input_dims.iter().product()];
    let grads = grad.f32s();
    for block in 0..outer {
        for index in 0..length {
            let to = (block * size + start + index * step) * inner;
            let from = (block * length + index) * inner;
            out[to..][..inner].copy_from_slice(&grads[from..][..inner]);
        }
    }
    CpuTensor::from_f32(input_dims, out)
}

/// `constant_pad_nd`: `pad` in pairs from the last dimension backwards; negative crops.
pub(super) fn padded(x: &CpuTensor, pad: &[i64], value: f32, out_dims: &[usize]) -> CpuTensor {
    let rank = out_dims.len();
    // How far each dimension's start moves to the right.
    let mut shift = vec![0_i64; rank];
    for (shift, pair) in shift.iter_mut().rev().zip(pad.chunks(2)) {
        *shift = pair.first().copied().unwrap_or(0);
    }
    let mut out = vec![value; out_dims.iter().product()];
    let in_dims = x.dims();
    let width = in_dims.last().copied().unwrap_or(1);
    let out_width = out_dims.last().copied().unwrap_or(1);
    let row_shift = shift.last().copied().unwrap_or(0);
    // The part of a row that lands inside.
    let from = usize::try_from(-row_shift).unwrap_or(0).min(width);
    let to_start = usize::try_from(row_shift).unwrap_or(0).min(out_width);
    let length = (width - from).min(out_width - to_start);
    for (row, elements) in x.f32s().chunks_exact(width).enumerate() {
        // The row's place, from its second last index backwards.
        let (mut rest, mut out_row, mut stride, mut inside) = (row, 0, 1, true);
        for dim in (0..rank.saturating_sub(1)).rev() {
            let index = (rest % in_dims[dim]) as i64 + shift[dim];
            rest /= in_dims[dim];
            match usize::try_from(index) {
                Ok(index) if index < out_dims[dim] => out_row += index * stride,
                _ => inside = false,
            }
            stride *= out_dims[dim];
        }
        if inside {
            out[out_row * out_width + to_start..][..length]
                .copy_from_slice(&elements[from..][..length]);
        }
    }
    CpuTensor::from_f32(out_dims, out)
}

/// `full`.
pub(super) fn full(dims: &[usize], value: f64, dtype: DType) -> CpuTensor {
    let count = dims.iter().product();
    match dtype {
        DType::F32 => CpuTensor::from_f32(dims, vec![value as f32; count]),
        DType::I64 => CpuTensor::from_i64(dims, vec![value as i64; count]),
        DType::Bool => CpuTensor::from_bool(dims, vec![u8::from(value != 0.0); count]),
        DType::F16 => {
            let bits = half::f16::from_f64(value).to_bits();
            CpuTensor::from_half(dims, vec![bits; count], dtype)
        }
        DType::BF16 => {
            let bits = half::bf16::from_f64(value).to_bits();
            CpuTensor::from_half(dims, vec![bits; count], dtype)
        }
    }
}
