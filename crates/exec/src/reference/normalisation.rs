//! Batch and layer normalisation and their gradients.
//!
//! Both normalise groups of elements to mean 0 and variance 1: a batch norm those of a channel, a layer norm those of
//! the last dimensions. With `x` normalised to `y = (x - mean) * rstd` over a group of `n`, and `g` the gradient with
//! respect to `y`, the gradient with respect to `x` is `rstd * (g - mean(g) - y * mean(g * y))`
//! (Ioffe and Szegedy, arXiv 1502.03167, section 3).

use super::array::{Array, Axis};
use super::{Call, Fault};

/// Mean and biased variance.
fn moments(values: impl Iterator<Item = f64> + Clone, count: f64) -> (f64, f64) {
    let mean = values.clone().sum::<f64>() / count;
    let variance = values.map(|x| (x - mean) * (x - mean)).sum::<f64>() / count;
    (mean, variance)
}

/// The flat positions of a channel's elements.
fn channel(axis: Axis, channel: usize) -> impl Iterator<Item = usize> + Clone {
    (0..axis.outer).flat_map(move |sample| {
        let start = (sample * axis.size + channel) * axis.inner;
        start..start + axis.inner
    })
}

fn weight_at(weight: Option<&[f64]>, index: usize, default: f64) -> f64 {
    weight.map_or(default, |weight| weight[index])
}

/// `_native_batch_norm_legit_functional`: see the table in `outboard_graph::Op`.
pub(super) fn batch_norm_training(
    call: &Call<'_>,
    momentum: f64,
    eps: f64,
) -> Result<Vec<Array>, Fault> {
    let axis = Axis::of(call.dims(0)?, 1)?;
    let input = call.floats(0)?;
    let (weight, bias) = (call.optional_floats(1)?, call.optional_floats(2)?);
    let (running_mean, running_var) = (call.floats(3)?, call.floats(4)?);
    let count = (axis.outer * axis.inner) as f64;
    let mut output = vec![0.0; input.len()];
    let [mut means, mut rstds, mut new_means, mut new_vars] = [(); 4].map(|()| Vec::new());
    for c in 0..axis.size {
        let (mean, variance) = moments(channel(axis, c).map(|at| input[at]), count);
        let rstd = 1.0 / (variance + eps).sqrt();
        for at in channel(axis, c) {
            output[at] =
                (input[at] - mean) * rstd * weight_at(weight, c, 1.0) + weight_at(bias, c, 0.0);
        }
        let unbiased = variance * count / (count - 1.0);
        means.push(mean);
        rstds.push(rstd);
        new_means.push(momentum * mean + (1.0 - momentum) * running_mean[c]);
        new_vars.push(momentum * unbiased + (1.0 - momentum) * running_var[c]);
    }
    Ok(vec![
        Array::floats(call.result(0)?, output),
        Array::floats(call.result(1)?, means),
        Array::floats(call.result(2)?, rstds),
        Array::floats(call.result(3)?, new_means),
        Array::floats(call.result(4)?, new_vars),
    ])
}

/// `_native_batch_norm_legit_no_training`: normalises with the running statistics.
pub(super) fn batch_norm_inference(call: &Call<'_>, eps: f64) -> Result<Vec<Array>, Fault> {
    let axis = Axis::of(call.dims(0)?, 1)?;
    let input = call.floats(0)?;
    let (weight, bias) = (call.optional_floats(1)?, call.optional_floats(2)?);
    let (running_mean, running_var) = (call.floats(3)?, call.floats(4)?);
    let mut output = vec![0.0; input.len()];
    for c in 0..axis.size {
        let rstd = 1.0 / (running_var[c] + eps).sqrt();
        for at in channel(axis, c) {
            output[at] = (input[at] - running_mean[c]) * rstd * weight_at(weight, c, 1.0)
                + weight_at(bias, c, 0.0);
        }
    }
    Ok(vec![Array::floats(call.result(0)?, output)])
}

/// `(grad, input, weight?, save_mean, save_rstd)` to the gradients of input, weight and bias.
pub(super) fn batch_norm_grad(call: &Call<'_>) -> Result<Vec<Array>, Fault> {
    let axis = Axis::of(call.dims(1)?, 1)?;
    let (grad, input) = (call.floats(0)?, call.floats(1)?);
    let weight = call.optional_floats(2)?;
    let (means, rstds) = (call.floats(3)?, call.floats(4)?);
    let count = (axis.outer * axis.inner) as f64;
    let mut input_grad = vec![0.0; input.len()];
    let (mut weight_grad, mut bias_grad) = (Vec::new(), Vec::new());
    for c in 0..axis.size {
        let normal = |at: usize| (input[at] - means[c]) * rstds[c];
        let sum: f64 = channel(axis, c).map(|at| grad[at]).sum();
        let dot: f64 = channel(axis, c).map(|at| grad[at] * normal(at)).sum();
        for at in channel(axis, c) {
            let centred = grad[at] - sum / count - normal(at) * dot / count;
            input_grad[at] = centred * rstds[c] * weight_at(weight, c, 1.0);
        }
        weight_grad.push(dot);
        bias_grad.push(sum);
    }
    Ok(vec![
        Array::floats(call.result(0)?, input_grad),
        Array::floats(call.result(1)?, weight_grad),
        Array::floats(call.result(2)?, bias_grad),
    ])
}

fn inner_size(normalized_shape: &[usize]) -> Result<usize, Fault> {
    match normalized_shape.iter().product() {
        0 => Err(Fault("normalises over nothing".to_owned())),
        inner => Ok(inner),
    }
}

/// `(input, weight?, bias?)` to `(output, mean, rstd)`.
pub(super) fn layer_norm(
    call: &Call<'_>,
    normalized_shape: &[usize],
    eps: f64,
) -> Result<Vec<Array>, Fault> {
    let inner = inner_size(normalized_shape)?;
    let input = call.floats(0)?;
    let (weight, bias) = (call.optional_floats(1)?, call.optional_floats(2)?);
    let mut output = Vec::with_capacity(input.len());
    let (mut means, mut rstds) = (Vec::new(), Vec::new());
    for group in input.chunks(inner) {
        let (mean, variance) = moments(group.iter().copied(), inner as f64);
        let rstd = 1.0 / (variance + eps).sqrt();
        output.extend(
            group.iter().enumerate().map(|(i, x)| {
                (x - mean) * rstd * weight_at(weight, i, 1.0) + weight_at(bias, i, 0.0)
            }),
        );
        means.push(mean);
        rstds.push(rstd);
    }
    Ok(vec![
        Array::floats(call.result(0)?, output),
        Array::floats(call.result(1)?, means),
        Array::floats(call.result(2)?, rstds),
    ])
}

/// `(grad, input, mean, rstd, weight?)` to the gradients of input, weight and bias.
pub(super) fn layer_norm_grad(
    call: &Call<'_>,
    normalized_shape: &[usize],
) -> Result<Vec<Array>, Fault> {
    let inner = inner_size(normalized_shape)?;
    let (grad, input) = (call.floats(0)?, call.floats(1)?);
    let (means, rstds) = (call.floats(2)?, call.floats(3)?);
    let weight = call.optional_floats(4)?;
    let mut input_grad = Vec::with_capacity(input.len());
    let (mut weight_grad, mut bias_grad) = (vec![0.0; inner], vec![0.0; inner]);
    let groups = grad
        .chunks(inner)
        .zip(input.chunks(inner))
        .zip(means.iter().zip(rstds));
    for ((grad, x), (mean, rstd)) in groups {
        let normal = |i: usize| (x[i] - mean) * rstd;
        let scaled = |i: usize| grad[i] * weight_at(weight, i, 1.0);
        let sum: f64 = (0..inner).map(scaled).sum();
        let dot: f64 = (0..inner).map(|i| scaled(i) * normal(i)).sum();
        for i in 0..inner {
            let count = inner as f64;
            input_grad.push(rstd * (scaled(i) - sum / count - normal(i) * dot / count));
            weight_grad[i] += grad[i] * normal(i);
            bias_grad[i] += grad[i];
        }
    }
    Ok(vec![
        Array::floats(call.result(0)?, input_grad),
        Array::floats(call.result(1)?, weight_grad),
        Array::floats(call.result(2)?, bias_grad),
    ])
}
