//! Layer normalisation, forward and backward; statistics in f64, as ATen's CPU kernels take them.

use rayon::prelude::*;

use super::parallel::{CHUNK, sum, sum2};
use super::tensor::CpuTensor;

/// `native_layer_norm`: output, mean and 1 / standard deviation of each row of `width` elements.
pub(super) fn forward(
    x: &CpuTensor,
    weight: Option<&CpuTensor>,
    bias: Option<&CpuTensor>,
    width: usize,
    eps: f64,
    stats_dims: &[usize],
) -> [CpuTensor; 3] {
    let rows = x.elements() / width;
    let mut out = vec![0.0; x.elements()];
    let (mut means, mut rstds) = (vec![0.0; rows], vec![0.0; rows]);
    let at_once = CHUNK.div_ceil(width);
    (out.par_chunks_mut(at_once * width))
        .zip(x.f32s().par_chunks(at_once * width))
        .zip(means.par_chunks_mut(at_once))
        .zip(rstds.par_chunks_mut(at_once))
        .for_each(|(((out, x), means), rstds)| {
            let rows = out.chunks_exact_mut(width).zip(x.chunks_exact(width));
            for ((out, x), (mean_out, rstd_out)) in rows.zip(means.iter_mut().zip(rstds)) {
                let mean = sum(x, |x| x) / width as f64;
                let variance = sum(x, |x| (x - mean) * (x - mean)) / width as f64;
                let rstd = (1.0 / (variance + eps).sqrt()) as f32;
                let mean = mean as f32;
                (*mean_out, *rstd_out) = (mean, rstd);
                for (out, x) in out.iter_mut().zip(x) {
                    *out = (x - mean) * rstd;
                }
                if let Some(weight) = weight {
                    (out.iter_mut().zip(weight.f32s())).for_each(|(out, w)| *out *= w);
                }
                if let Some(bias) = bias {
                    (out.iter_mut().zip(bias.f32s())).for_each(|(out, b)| *out += b);
                }
            }
        });
    [
        CpuTensor::from_f32(x.dims(), out),
        CpuTensor::from_f32(stats_dims, means),
        CpuTensor::from_f32(stats_dims, rstds),
    ]
}

/// Columns of a layer norm's weight gradient that a thread sums at a time.
const COLUMNS: usize = 64;

/// `native_layer_norm_backward`: gradients of input, weight and bias; the formula of batch norm along rows.
pub(super) fn gradient(
    grad: &CpuTensor,
    x: &CpuTensor,
    mean: &CpuTensor,
    rstd: &CpuTensor,
    weight: Option<&CpuTensor>,
    normalized_shape: &[usize],
) -> [CpuTensor; 3] {
    let width: usize = normalized_shape.iter().product();
    let weight = weight.map(CpuTensor::f32s);
    let (grads, inputs) = (grad.f32s(), x.f32s());
    let (means, rstds) = (mean.f32s(), rstd.f32s());
    let mut out = vec![0.0; inputs.len()];
    let at_once = CHUNK.div_ceil(width);
    (out.par_chunks_mut(at_once * width).enumerate()).for_each(|(chunk, out)| {
        for (index, out) in out.chunks_exact_mut(width).enumerate() {
            let row = chunk * at_once + index;
            let (dy, x) = (
                &grads[row * width..][..width],
                &inputs[row * width..][..width],
            );
            let (mean, rstd) = (means[row], rstds[row]);
            match weight {
                None => out.copy_from_slice(dy),
                Some(weight) => {
                    (out.iter_mut().zip(dy.iter().zip(weight)))
                        .for_each(|(o, (dy, w))| *o = dy * w);
                }
            }
            let total = sum(out, |dy| dy) / width as f64;
            let center = f64::from(mean);
            let dot = sum2(out, x, |dy, x| dy * (x - center)) / width as f64;
            let slope = (-dot * f64::from(rstd) * f64::from(rstd)) as f32;
            let shift = -total as f32;
            for (out, x) in out.iter_mut().zip(x) {
                *out = (*out + ((x - mean) * slope + shift)) * rstd;
            }
        }
    });
    let (mut weight_grad, mut bias_grad) = (vec![0.0; width], vec![0.0; width]);
    (weight_grad.par_chunks_mut(COLUMNS).enumerate())
        .zip(bias_grad.par_chunks_mut(COLUMNS))
        .for_each(|((chunk, weight_grad), bias_grad)| {
            let (mut of_weight, mut of_bias) = ([0.0_f64; COLUMNS], [0.0_f64; COLUMNS]);
            let (from, columns) = (chunk * COLUMNS, weight_grad.len());
            let rows = grads.chunks_exact(width).zip(inputs.chunks_exact(width));
            for ((dy, x), (mean, rstd)) in rows.zip(means.iter().zip(rstds)) {
                let elements = dy[from..][..columns].iter().zip(&x[from..][..columns]);
                for ((dy, x), (w, b)) in elements.zip(of_weight.iter_mut().zip(&mut of_bias)) {
                    *w += f64::from(*dy) * f64::from((x - mean) * rstd);
                    *b += f64::from(*dy);
                }
            }
            (weight_grad.iter_mut().zip(of_weight)).for_each(|(out, sum)| *out = sum as f32);
            (bias_grad.iter_mut().zip(of_bias)).for_each(|(out, sum)| *out = sum as f32);
        });
    [
        CpuTensor::from_f32(x.dims(), out),
        CpuTensor::from_f32(normalized_shape, weight_grad),
        CpuTensor::from_f32(normalized_shape, bias_grad),
    ]
}
