//! Batch and layer normalisation, forward and backward; statistics in f64, as ATen's CPU kernels take them.

use rayon::prelude::*;

use super::parallel::{CHUNK, sum, sum2};
use super::tensor::CpuTensor;

/// Images, channels and elements of a plane of `[N, C, ...]`.
fn sizes(dims: &[usize]) -> (usize, usize, usize) {
    let images = dims.first().copied().unwrap_or(1);
    let channels = dims.get(1).copied().unwrap_or(1);
    (images, channels, dims.iter().skip(2).product())
}

/// The planes of one channel.
fn planes(
    x: &[f32],
    channels: usize,
    plane: usize,
    channel: usize,
) -> impl Iterator<Item = &[f32]> {
    x.chunks_exact(plane).skip(channel).step_by(channels)
}

/// Planes handed to a thread at a time.
fn planes_at_once(plane: usize) -> usize {
    CHUNK.div_ceil(plane)
}

/// What a channel is normalised with: `(x - mean) * scale + shift`.
#[derive(Clone, Copy)]
struct Affine {
    mean: f32,
    scale: f32,
    shift: f32,
}

fn normalise(mut x: CpuTensor, affine: &[Affine]) -> CpuTensor {
    let (_, channels, plane) = sizes(x.dims());
    let at_once = planes_at_once(plane);
    let affine_of = |chunk: usize, index: usize| affine[(chunk * at_once + index) % channels];
    if let Some(elements) = x.f32s_mut() {
        (elements.par_chunks_mut(plane * at_once).enumerate()).for_each(|(chunk, planes)| {
            for (index, plane) in planes.chunks_exact_mut(plane).enumerate() {
                let Affine { mean, scale, shift } = affine_of(chunk, index);
                plane
                    .iter_mut()
                    .for_each(|x| *x = (*x - mean) * scale + shift);
            }
        });
        return x;
    }
    let mut out = vec![0.0; x.elements()];
    (out.par_chunks_mut(plane * at_once).enumerate())
        .zip(x.f32s().par_chunks(plane * at_once))
        .for_each(|((chunk, out), x)| {
            let planes = out.chunks_exact_mut(plane).zip(x.chunks_exact(plane));
            for (index, (out, x)) in planes.enumerate() {
                let Affine { mean, scale, shift } = affine_of(chunk, index);
                (out.iter_mut().zip(x)).for_each(|(o, x)| *o = (*x - mean) * scale + shift);
            }
        });
    CpuTensor::from_f32(x.dims(), out)
}

fn at(list: Option<&CpuTensor>, index: usize, missing: f32) -> f32 {
    list.map_or(missing, |list| list.f32s()[index])
}

/// `_native_batch_norm_legit_functional`: output, mean, 1 / standard deviation, and the new running statistics. The
/// running variance takes the unbiased variance (Burn's takes the biased one).
pub(super) fn batch_training(
    x: CpuTensor,
    weight: Option<&CpuTensor>,
    bias: Option<&CpuTensor>,
    (running_mean, running_var): (&CpuTensor, &CpuTensor),
    (momentum, eps): (f64, f64),
) -> [CpuTensor; 5] {
    let (images, channels, plane) = sizes(x.dims());
    let count = (images * plane) as f64;
    let moments: Vec<(f64, f64)> = (0..channels)
        .into_par_iter()
        .map(|channel| {
            let planes = || planes(x.f32s(), channels, plane, channel);
            let mean = planes().map(|plane| sum(plane, |x| x)).sum::<f64>() / count;
            let squares = planes().map(|plane| sum(plane, |x| (x - mean) * (x - mean)));
            (mean, squares.sum::<f64>() / count)
        })
        .collect();
    let rstd = |variance: f64| 1.0 / (variance + eps).sqrt();
    let affine: Vec<Affine> = (moments.iter().enumerate())
        .map(|(channel, &(mean, variance))| Affine {
            mean: mean as f32,
            scale: (rstd(variance) * f64::from(at(weight, channel, 1.0))) as f32,
            shift: at(bias, channel, 0.0),
        })
        .collect();
    let running = |old: &CpuTensor, new: &dyn Fn((f64, f64)) -> f64| {
        let old = old.f32s().iter().zip(&moments);
        let mixed = old
            .map(|(old, now)| (momentum * new(*now) + (1.0 - momentum) * f64::from(*old)) as f32);
        CpuTensor::from_f32(&[channels], mixed.collect())
    };
    let of_channels =
        |f: &dyn Fn((f64, f64)) -> f64| moments.iter().map(|&m| f(m) as f32).collect::<Vec<_>>();
    [
        normalise(x, &affine),
        CpuTensor::from_f32(&[channels], of_channels(&|(mean, _)| mean)),
        CpuTensor::from_f32(&[channels], of_channels(&|(_, variance)| rstd(variance))),
        running(running_mean, &|(mean, _)| mean),
        running(running_var, &|(_, variance)| {
            variance * count / (count - 1.0)
        }),
    ]
}

/// `_native_batch_norm_legit_no_training`.
pub(super) fn batch_inference(
    x: CpuTensor,
    weight: Option<&CpuTensor>,
    bias: Option<&CpuTensor>,
    (running_mean, running_var): (&CpuTensor, &CpuTensor),
    eps: f64,
) -> CpuTensor {
    let running = running_mean.f32s().iter().zip(running_var.f32s());
    let affine: Vec<Affine> = (running.enumerate())
        .map(|(channel, (&mean, &variance))| {
            let rstd = 1.0 / (f64::from(variance) + eps).sqrt();
            Affine {
                mean,
                scale: (rstd * f64::from(at(weight, channel, 1.0))) as f32,
                shift: at(bias, channel, 0.0),
            }
        })
        .collect();
    normalise(x, &affine)
}

/// `native_batch_norm_backward` in training mode: gradients of input, weight and bias.
///
/// With `h = (x - mean) * rstd` and sums over a channel's `n` elements (Ioffe and Szegedy 2015, section 3):
/// `dx = weight * rstd * (dy - sum(dy) / n - h * sum(dy * h) / n)`.
pub(super) fn batch_grad(
    mut grad: CpuTensor,
    x: &CpuTensor,
    weight: Option<&CpuTensor>,
    mean: &CpuTensor,
    rstd: &CpuTensor,
) -> [CpuTensor; 3] {
    let (images, channels, plane) = sizes(x.dims());
    let count = (images * plane) as f64;
    let (mean, rstd) = (mean.f32s(), rstd.f32s());
    let sums: Vec<(f64, f64)> = (0..channels)
        .into_par_iter()
        .map(|channel| {
            let grads = || planes(grad.f32s(), channels, plane, channel);
            let inputs = planes(x.f32s(), channels, plane, channel);
            let mean = f64::from(mean[channel]);
            let total = grads().map(|dy| sum(dy, |dy| dy)).sum::<f64>();
            let products = grads().zip(inputs);
            let dot = products.map(|(dy, x)| sum2(dy, x, |dy, x| dy * (x - mean)));
            (total, dot.sum::<f64>() * f64::from(rstd[channel]))
        })
        .collect();
    // dx = dy * scale + (x - mean) * slope + shift
    let terms: Vec<[f32; 4]> = (sums.iter().enumerate())
        .map(|(channel, (total, dot))| {
            let rstd = f64::from(rstd[channel]);
            let scale = rstd * f64::from(at(weight, channel, 1.0));
            let slope = -scale * rstd * dot / count;
            let shift = -scale * total / count;
            [mean[channel], scale as f32, slope as f32, shift as f32]
        })
        .collect();
    let at_once = planes_at_once(plane);
    let dims = x.dims().to_vec();
    let x = x.f32s();
    let terms_of = |chunk: usize, index: usize| terms[(chunk * at_once + index) % channels];
    let input_grad = if let Some(elements) = grad.f32s_mut() {
        (elements.par_chunks_mut(plane * at_once).enumerate())
            .zip(x.par_chunks(plane * at_once))
            .for_each(|((chunk, grads), x)| {
                let planes = grads.chunks_exact_mut(plane).zip(x.chunks_exact(plane));
                for (index, (grads, x)) in planes.enumerate() {
                    let [mean, scale, slope, shift] = terms_of(chunk, index);
                    for (dy, x) in grads.iter_mut().zip(x) {
                        *dy = *dy * scale + ((x - mean) * slope + shift);
                    }
                }
            });
        grad
    } else {
        let mut out = vec![0.0; x.len()];
        (out.par_chunks_mut(plane * at_once).enumerate())
            .zip(x.par_chunks(plane * at_once))
            .zip(grad.f32s().par_chunks(plane * at_once))
            .for_each(|(((chunk, out), x), grads)| {
                let planes = out.chunks_exact_mut(plane).zip(x.chunks_exact(plane));
                for (index, ((out, x), grads)) in planes.zip(grads.chunks_exact(plane)).enumerate()
                {
                    let [mean, scale, slope, shift] = terms_of(chunk, index);
                    for ((out, x), dy) in out.iter_mut().zip(x).zip(grads) {
                        *out = dy * scale + ((x - mean) * slope + shift);
                    }
                }
            });
        CpuTensor::from_f32(&dims, out)
    };
    let (bias_grad, weight_grad) = sums.iter().map(|&(a, b)| (a as f32, b as f32)).unzip();
    [
        input_grad,
        CpuTensor::from_f32(&[channels], weight_grad),
        CpuTensor::from_f32(&[channels], bias_grad),
    ]
}

/// `native_layer_norm`: output, mean and 1 / standard deviation of each row of `width` elements.
pub(super) fn layer(
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

/// `native_layer_norm_backward`: gradients of input, weight and bias; the formula of [`batch_grad`] along rows.
pub(super) fn layer_grad(
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
