//! Operators element by element, with broadcasting, and their gradients.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, SQRT_2};

use outboard_graph::DType;

use super::array::{Array, Data, flat, for_each_index, strides};
use super::{Call, Fault};

/// Applies `f` to each element of the operand.
pub(super) fn unary(call: &Call<'_>, f: impl Fn(f64) -> f64) -> Result<Vec<Array>, Fault> {
    let values = call.floats(0)?.iter().map(|&x| f(x)).collect();
    Ok(vec![Array::floats(call.result(0)?, values)])
}

/// `x + scalar`; integers stay integers (inference has seen that the scalar is whole).
pub(super) fn add_scalar(call: &Call<'_>, scalar: f64) -> Result<Vec<Array>, Fault> {
    if call.result(0)?.dtype != DType::I64 {
        return unary(call, |x| x + scalar);
    }
    let values = call.ints(0)?.iter().map(|x| x.wrapping_add(scalar as i64));
    Ok(vec![Array::ints(call.result(0)?, values.collect())])
}

/// Applies `f` to each pair of elements; sizes of 1 and missing leading dimensions repeat.
pub(super) fn binary(call: &Call<'_>, f: impl Fn(f64, f64) -> f64) -> Result<Vec<Array>, Fault> {
    let shape = call.result(0)?;
    let (a, b) = (call.floats(0)?, call.floats(1)?);
    let (a_strides, b_strides) = (
        broadcast_strides(call.dims(0)?, &shape.dims)?,
        broadcast_strides(call.dims(1)?, &shape.dims)?,
    );
    let mut values = Vec::with_capacity(shape.elements());
    for_each_index(&shape.dims, |index| {
        values.push(f(a[flat(index, &a_strides)], b[flat(index, &b_strides)]));
    });
    Ok(vec![Array::floats(shape, values)])
}

/// Strides that read a tensor of shape `from` at the indices of shape `to`.
pub(super) fn broadcast_strides(from: &[usize], to: &[usize]) -> Result<Vec<usize>, Fault> {
    let misfit = || Fault(format!("shape {from:?} does not broadcast to {to:?}"));
    let missing = to.len().checked_sub(from.len()).ok_or_else(misfit)?;
    let mut broadcast = vec![0; missing];
    for ((&size, stride), &wanted) in from.iter().zip(strides(from)).zip(&to[missing..]) {
        broadcast.push(match size {
            1 => 0,
            size if size == wanted => stride,
            _ => return Err(misfit()),
        });
    }
    Ok(broadcast)
}

/// `(grad, x)` of one shape: applies `f` to each pair.
pub(super) fn gradient(call: &Call<'_>, f: impl Fn(f64, f64) -> f64) -> Result<Vec<Array>, Fault> {
    let (grad, x) = (call.floats(0)?, call.floats(1)?);
    if grad.len() != x.len() {
        return Err(Fault(format!(
            "a gradient of {} elements for {}",
            grad.len(),
            x.len()
        )));
    }
    let values = grad.iter().zip(x).map(|(&grad, &x)| f(grad, x)).collect();
    Ok(vec![Array::floats(call.result(0)?, values)])
}

/// Clamps at zero; NaN stays NaN.
pub(super) fn relu(x: f64) -> f64 {
    if x <= 0.0 { 0.0 } else { x }
}

/// `threshold_backward`: where `x` is NaN the gradient passes, as in ATen.
pub(super) fn threshold_grad(threshold: f64) -> impl Fn(f64, f64) -> f64 {
    move |grad, x| if x <= threshold { 0.0 } else { grad }
}

/// A power. ATen takes square roots for the exponents 0.5 and -0.5, which tells for minus infinity alone.
pub(super) fn pow(exponent: f64) -> impl Fn(f64) -> f64 {
    move |x| {
        if exponent == 0.5 {
            x.sqrt()
        } else if exponent == -0.5 {
            1.0 / x.sqrt()
        } else {
            x.powf(exponent)
        }
    }
}

pub(super) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `sqrt(2 / pi)`.
const TANH_SCALE: f64 = SQRT_2 * FRAC_2_SQRT_PI * 0.5;
const TANH_CUBIC: f64 = 0.044715;

/// `x * Phi(x)`, or its approximation by tanh (Hendrycks and Gimpel, arXiv 1606.08415).
pub(super) fn gelu(tanh: bool) -> impl Fn(f64) -> f64 {
    move |x| {
        if tanh {
            0.5 * x * (1.0 + (TANH_SCALE * (x + TANH_CUBIC * x * x * x)).tanh())
        } else {
            x * normal_cdf(x)
        }
    }
}

pub(super) fn gelu_grad(tanh: bool) -> impl Fn(f64, f64) -> f64 {
    move |grad, x| {
        let slope = if tanh {
            let t = (TANH_SCALE * (x + TANH_CUBIC * x * x * x)).tanh();
            let inner = TANH_SCALE * (1.0 + 3.0 * TANH_CUBIC * x * x);
            0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * inner
        } else {
            let density = (-0.5 * x * x).exp() * FRAC_2_SQRT_PI * FRAC_1_SQRT_2 * 0.5;
            normal_cdf(x) + x * density
        };
        grad * slope
    }
}

fn normal_cdf(x: f64) -> f64 {
    0.5 * (1.0 + libm::erf(x * FRAC_1_SQRT_2))
}

/// Converts the element type: floats towards zero when they become integers, anything but zero is true.
pub(super) fn to_copy(call: &Call<'_>) -> Result<Vec<Array>, Fault> {
    let (input, shape) = (call.operand(0)?, call.result(0)?);
    let array = match (&input.data, shape.dtype) {
        (Data::Float(x), DType::I64) => Array::ints(shape, x.iter().map(|&x| x as i64).collect()),
        (Data::Float(x), DType::Bool) => Array::bools(shape, x.iter().map(|&x| x != 0.0).collect()),
        (Data::Float(x), _) => Array::floats(shape, x.clone()),
        (Data::Int(x), DType::I64) => Array::ints(shape, x.clone()),
        (Data::Int(x), DType::Bool) => Array::bools(shape, x.iter().map(|&x| x != 0).collect()),
        (Data::Int(x), _) => Array::floats(shape, x.iter().map(|&x| x as f64).collect()),
        (Data::Bool(x), DType::I64) => Array::ints(shape, x.iter().map(|&x| x.into()).collect()),
        (Data::Bool(x), DType::Bool) => Array::bools(shape, x.clone()),
        (Data::Bool(x), _) => {
            Array::floats(shape, x.iter().map(|&x| f64::from(u8::from(x))).collect())
        }
    };
    Ok(vec![array])
}

/// `(input)` to `(input * mask * scale, mask)`.
pub(super) fn dropout(call: &Call<'_>, p: f64, key: u64) -> Result<Vec<Array>, Fault> {
    let input = call.floats(0)?;
    let mut bytes = vec![0; input.len()];
    crate::dropout_mask(call.key, key, p, &mut bytes);
    let mask: Vec<bool> = bytes.into_iter().map(|kept| kept == 1).collect();
    let output = masked(input, &mask, crate::dropout_scale(p));
    Ok(vec![
        Array::floats(call.result(0)?, output),
        Array::bools(call.result(1)?, mask),
    ])
}

/// `(grad, mask)`.
pub(super) fn dropout_grad(call: &Call<'_>, scale: f64) -> Result<Vec<Array>, Fault> {
    let values = masked(call.floats(0)?, call.operand(1)?.as_bools()?, scale);
    Ok(vec![Array::floats(call.result(0)?, values)])
}

/// A product, so that NaN stays NaN where the mask is 0.
fn masked(x: &[f64], mask: &[bool], scale: f64) -> Vec<f64> {
    x.iter()
        .zip(mask)
        .map(|(x, &kept)| x * f64::from(u8::from(kept)) * scale)
        .collect()
}
