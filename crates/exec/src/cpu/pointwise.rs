//! Operators that work element by element, and their gradients.

use burn_backend::ops::FloatTensorOps;
use burn_flex::Flex;
use half::{bf16, f16};
use outboard_graph::DType;
use rayon::prelude::*;

use super::parallel::{CHUNK, map, zip};
use super::tensor::CpuTensor;
use crate::{RandomKey, dropout_mask, dropout_scale};

/// `relu`: NaN stays NaN.
pub(super) fn relu(x: CpuTensor) -> CpuTensor {
    map(x, |x| if x < 0.0 { 0.0 } else { x })
}

/// `sigmoid`, without overflow on either side.
pub(super) fn sigmoid(x: CpuTensor) -> CpuTensor {
    map(x, |x| {
        if x >= 0.0 {
            1.0 / (1.0 + (-x).exp())
        } else {
            let e = x.exp();
            e / (1.0 + e)
        }
    })
}

/// `pow` with the exponents that ATen computes by simpler means.
pub(super) fn pow(x: CpuTensor, exponent: f64) -> CpuTensor {
    match exponent {
        0.5 => map(x, f32::sqrt),
        1.0 => x,
        2.0 => map(x, |x| x * x),
        3.0 => map(x, |x| x * x * x),
        -0.5 => map(x, |x| 1.0 / x.sqrt()),
        -1.0 => map(x, |x| 1.0 / x),
        -2.0 => map(x, |x| 1.0 / (x * x)),
        _ => map(x, |x| x.powf(exponent as f32)),
    }
}

/// An operator of two operands that broadcast.
#[derive(Clone, Copy)]
pub(super) enum Binary {
    /// `a + alpha * b`.
    Add {
        alpha: f32,
    },
    Mul,
    Div,
}

/// Two operands of one shape in one pass over all threads; others through Flex, which never writes the broadcast operand
/// out.
pub(super) fn binary(a: CpuTensor, b: CpuTensor, op: Binary) -> CpuTensor {
    if a.dims() == b.dims() {
        return match op {
            Binary::Add { alpha: 1.0 } => zip(a, b, |a, b| a + b),
            Binary::Add { alpha: -1.0 } => zip(a, b, |a, b| a - b),
            Binary::Add { alpha } => zip(a, b, |a, b| a + alpha * b),
            Binary::Mul => zip(a, b, |a, b| a * b),
            Binary::Div => zip(a, b, |a, b| a / b),
        };
    }
    let b = match op {
        Binary::Add { alpha } if alpha != 1.0 && alpha != -1.0 => map(b, |b| alpha * b),
        _ => b,
    };
    let rank = a.dims().len().max(b.dims().len());
    let padded = |x: CpuTensor| {
        let ones = std::iter::repeat_n(1, rank - x.dims().len());
        let dims: Vec<usize> = ones.chain(x.dims().iter().copied()).collect();
        x.reshaped(&dims).into_flex()
    };
    let (a, b) = (padded(a), padded(b));
    CpuTensor::from_flex(match op {
        Binary::Add { alpha: -1.0 } => Flex::float_sub(a, b),
        Binary::Add { .. } => Flex::float_add(a, b),
        Binary::Mul => Flex::float_mul(a, b),
        Binary::Div => Flex::float_div(a, b),
    })
}

/// `native_dropout`: output and mask.
pub(super) fn dropout(x: CpuTensor, p: f64, node_key: u64, key: RandomKey) -> [CpuTensor; 2] {
    let mut mask = vec![0; x.elements()];
    dropout_mask(key, node_key, p, &mut mask);
    let mask = CpuTensor::from_bool(x.dims(), mask);
    [masked(x, &mask, dropout_scale(p) as f32), mask]
}

/// `x * mask * scale`, as `native_dropout` and its gradient multiply: what is not finite does not vanish.
pub(super) fn masked(mut x: CpuTensor, mask: &CpuTensor, scale: f32) -> CpuTensor {
    let elements = x.f32s_unshared();
    (elements.par_chunks_mut(CHUNK))
        .zip(mask.bools().par_chunks(CHUNK))
        .for_each(|(x, mask)| {
            for (x, mask) in x.iter_mut().zip(mask) {
                *x = *x * f32::from(*mask) * scale;
            }
        });
    x
}

/// `_to_copy`.
pub(super) fn to_copy(x: CpuTensor, dtype: DType) -> CpuTensor {
    if x.dtype() == dtype {
        return x;
    }
    let dims = x.dims();
    let halves = || {
        let (pairs, _) = x.bytes().as_chunks::<2>();
        pairs.iter().map(|pair| u16::from_ne_bytes(*pair))
    };
    match x.dtype() {
        DType::F32 => from_floats(dims, x.f32s().iter().copied(), dtype),
        DType::F16 => from_floats(dims, halves().map(|h| f16::from_bits(h).to_f32()), dtype),
        DType::BF16 => from_floats(dims, halves().map(|h| bf16::from_bits(h).to_f32()), dtype),
        DType::Bool => from_floats(dims, x.bools().iter().map(|&b| f32::from(b)), dtype),
        DType::I64 => {
            let integers = x.i64s().iter();
            match dtype {
                DType::Bool => {
                    CpuTensor::from_bool(dims, integers.map(|&i| u8::from(i != 0)).collect())
                }
                _ => from_floats(dims, integers.map(|&i| i as f32), dtype),
            }
        }
    }
}

fn from_floats(dims: &[usize], floats: impl Iterator<Item = f32>, dtype: DType) -> CpuTensor {
    match dtype {
        DType::F32 => CpuTensor::from_f32(dims, floats.collect()),
        DType::F16 => {
            let bits = floats.map(|x| f16::from_f32(x).to_bits());
            CpuTensor::from_half(dims, bits.collect(), dtype)
        }
        DType::BF16 => {
            let bits = floats.map(|x| bf16::from_f32(x).to_bits());
            CpuTensor::from_half(dims, bits.collect(), dtype)
        }
        // Towards zero.
        DType::I64 => CpuTensor::from_i64(dims, floats.map(|x| x as i64).collect()),
        DType::Bool => CpuTensor::from_bool(dims, floats.map(|x| u8::from(x != 0.0)).collect()),
    }
}
