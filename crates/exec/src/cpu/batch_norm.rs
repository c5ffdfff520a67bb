//! Batch normalisation, forward and backward; statistics in f64, as ATen's CPU kernels take them.

use outboard_graph::DType;
use outboard_kernels::{self as kernels, Affine, Gradient, Input, Terms};

use super::Workplace;
use super::tensor::{CpuTensor, Order};

/// Rows and channels of `[N, C, ...]` with the channels last.
fn sizes(x: &CpuTensor) -> (usize, usize) {
    let channels = x.dims().get(1).copied().unwrap_or(1);
    (x.elements() / channels, channels)
}

/// Elements of `f32` scratch memory for a tensor of some shape.
pub(super) fn scratch(dims: &[usize]) -> usize {
    let channels = dims.get(1).copied().unwrap_or(1);
    let rows = dims.iter().product::<usize>() / channels;
    2 * (kernels::batch_norm_scratch(rows, channels) + 2 * channels)
}

fn at(list: Option<&CpuTensor>, index: usize, missing: f32) -> f32 {
    list.map_or(missing, |list| list.f32s()[index])
}

/// What follows a batch norm in the same pass: `+ addend`, then a rectifier.
#[derive(Clone, Copy, Default)]
pub(super) struct After<'a> {
    pub(super) addend: Option<&'a CpuTensor>,
    pub(super) relu: bool,
}

fn normalise(
    mut x: CpuTensor,
    affine: Affine<'_>,
    after: After<'_>,
    place: &Workplace<'_>,
) -> CpuTensor {
    let addend = after.addend.map(CpuTensor::f32s);
    let isa = place.settings.isa;
    if let Some(elements) = x.f32s_mut() {
        kernels::normalise(Input::InPlace, affine, addend, after.relu, elements, isa);
        return x;
    }
    let mut out = place.result(4 * x.elements());
    kernels::normalise(
        Input::From(x.f32s()),
        affine,
        addend,
        after.relu,
        out.f32s(),
        isa,
    );
    CpuTensor::from_recycled(DType::F32, Order::Last, x.dims(), out)
}

/// `_native_batch_norm_legit_functional`: output, mean, 1 / standard deviation, and the new running statistics. The
/// running variance takes the unbiased variance (Burn's takes the biased one).
pub(super) fn training(
    x: CpuTensor,
    weight: Option<&CpuTensor>,
    bias: Option<&CpuTensor>,
    (running_mean, running_var): (&CpuTensor, &CpuTensor),
    (momentum, eps): (f64, f64),
    after: After<'_>,
    place: &mut Workplace<'_>,
) -> [CpuTensor; 5] {
    let (rows, channels) = sizes(&x);
    let count = rows as f64;
    let need = scratch(x.dims());
    let isa = place.settings.isa;
    let (moments, rest) = place.f64s(need).split_at_mut(2 * channels);
    let (means, variances) = moments.split_at_mut(channels);
    kernels::moments(x.f32s(), means, variances, rest, isa);
    let rstd = |variance: f64| 1.0 / (variance + eps).sqrt();
    let running = |old: &CpuTensor, now: &[f64], factor: f64| {
        let mixed = (old.f32s().iter().zip(now)).map(|(old, now)| {
            (momentum * (now * factor) + (1.0 - momentum) * f64::from(*old)) as f32
        });
        CpuTensor::from_f32(&[channels], mixed.collect())
    };
    let running = [
        running(running_mean, means, 1.0),
        running(running_var, variances, count / (count - 1.0)),
    ];
    let mean: Vec<f32> = means.iter().map(|mean| *mean as f32).collect();
    let rstds: Vec<f32> = variances
        .iter()
        .map(|variance| rstd(*variance) as f32)
        .collect();
    let scale: Vec<f32> = (variances.iter().enumerate())
        .map(|(channel, variance)| (rstd(*variance) * f64::from(at(weight, channel, 1.0))) as f32)
        .collect();
    let shift: Vec<f32> = (0..channels)
        .map(|channel| at(bias, channel, 0.0))
        .collect();
    let affine = Affine {
        mean: &mean,
        scale: &scale,
        shift: &shift,
    };
    let out = normalise(x, affine, after, place);
    let [running_mean, running_var] = running;
    let of_channels = |elements| CpuTensor::from_f32(&[channels], elements);
    [
        out,
        of_channels(mean),
        of_channels(rstds),
        running_mean,
        running_var,
    ]
}

/// `_native_batch_norm_legit_no_training`.
pub(super) fn inference(
    x: CpuTensor,
    weight: Option<&CpuTensor>,
    bias: Option<&CpuTensor>,
    (running_mean, running_var): (&CpuTensor, &CpuTensor),
    eps: f64,
    after: After<'_>,
    place: &Workplace<'_>,
) -> CpuTensor {
    let scale: Vec<f32> = (running_var.f32s().iter().enumerate())
        .map(|(channel, variance)| {
            let rstd = 1.0 / (f64::from(*variance) + eps).sqrt();
            (rstd * f64::from(at(weight, channel, 1.0))) as f32
        })
        .collect();
    let shift: Vec<f32> = (0..scale.len())
        .map(|channel| at(bias, channel, 0.0))
        .collect();
    let affine = Affine {
        mean: running_mean.f32s(),
        scale: &scale,
        shift: &shift,
    };
    normalise(x, affine, after, place)
}

/// `native_batch_norm_backward` in training mode: gradients of input, weight and bias. `rectified` is the output of a
/// rectifier that the gradient passes first.
///
/// With `h = (x - mean) * rstd` and sums over a channel's `n` elements (Ioffe and Szegedy 2015, section 3):
/// `dx = weight * rstd * (dy - sum(dy) / n - h * sum(dy * h) / n)`.
pub(super) fn gradient(
    mut grad: CpuTensor,
    rectified: Option<&CpuTensor>,
    x: &CpuTensor,
    weight: Option<&CpuTensor>,
    (mean, rstd): (&CpuTensor, &CpuTensor),
    place: &mut Workplace<'_>,
) -> [CpuTensor; 3] {
    let (rows, channels) = sizes(x);
    let count = rows as f64;
    let (mean, rstd) = (mean.f32s(), rstd.f32s());
    let rectified = rectified.map(CpuTensor::f32s);
    let isa = place.settings.isa;
    let (sums, rest) = place.f64s(scratch(x.dims())).split_at_mut(2 * channels);
    let (totals, dots) = sums.split_at_mut(channels);
    let of = Gradient {
        grad: grad.f32s(),
        rectified,
    };
    kernels::gradient_sums(of, x.f32s(), mean, totals, dots, rest, isa);
    // dx = dy * scale + (x - mean) * slope + shift
    let (mut scales, mut slopes, mut shifts) = (
        vec![0.0; channels],
        vec![0.0; channels],
        vec![0.0; channels],
    );
    for channel in 0..channels {
        let rstd = f64::from(rstd[channel]);
        dots[channel] *= rstd;
        let scale = rstd * f64::from(at(weight, channel, 1.0));
        scales[channel] = scale as f32;
        slopes[channel] = (-scale * rstd * dots[channel] / count) as f32;
        shifts[channel] = (-scale * totals[channel] / count) as f32;
    }
    let terms = Terms {
        mean,
        scale: &scales,
        slope: &slopes,
        shift: &shifts,
    };
    let of_channels = |sums: &[f64]| {
        CpuTensor::from_f32(&[channels], sums.iter().map(|sum| *sum as f32).collect())
    };
    let (weight_grad, bias_grad) = (of_channels(dots), of_channels(totals));
    let input_grad = if let Some(elements) = grad.f32s_mut() {
        kernels::input_gradient(Input::InPlace, rectified, x.f32s(), terms, elements, isa);
        grad
    } else {
        let mut out = place.result(4 * x.elements());
        kernels::input_gradient(
            Input::From(grad.f32s()),
            rectified,
            x.f32s(),
            terms,
            out.f32s(),
            isa,
        );
        CpuTensor::from_recycled(DType::F32, Order::Last, x.dims(), out)
    };
    [input_grad, weight_grad, bias_grad]
}
