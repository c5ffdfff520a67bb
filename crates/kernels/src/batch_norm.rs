//! Batch norm over `[rows, channels]`: training and inference forward, and backward, with what stands around it in a network
//! done in the same passes.
//!
//! Sums are f64, over blocks of rows of fixed size that are then added in order.

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use crate::Isa;

/// Elements of a block of rows.
const ELEMENTS: usize = 1 << 14;
/// Channels whose sums stay in registers.
const LANES: usize = 16;

/// Rows of a block: a multiple of what is summed before it leaves the registers.
fn rows_at_once(channels: usize) -> usize {
    (ELEMENTS / channels).next_multiple_of(RUN).max(RUN)
}

/// Rows that are summed before the sums leave the registers.
const RUN: usize = 16;

/// Elements of `f64` scratch memory.
pub fn batch_norm_scratch(rows: usize, channels: usize) -> usize {
    (rows.div_ceil(rows_at_once(channels)) + 2) * 2 * channels
}

/// How a channel is normalised: `(x - mean) * scale + shift`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Affine<'a> {
    /// Of each channel.
    pub mean: &'a [f32],
    /// Of each channel.
    pub scale: &'a [f32],
    /// Of each channel.
    pub shift: &'a [f32],
}

/// Mean and biased variance of each channel of `x [rows, channels]`, into `mean` and `variance`.
///
/// # Panics
/// When a slice is too short.
pub fn moments(x: &[f32], mean: &mut [f64], variance: &mut [f64], scratch: &mut [f64], isa: Isa) {
    let channels = mean.len();
    let rows = x.len() / channels;
    let at_once = rows_at_once(channels);
    let blocks = rows.div_ceil(at_once);
    let sums = &mut scratch[..blocks * 2 * channels];
    // Deviations from a value of the channel itself: squares of large means would drown the variance.
    let pivots = &x[..channels];
    (sums.par_chunks_exact_mut(2 * channels))
        .zip(x.par_chunks(at_once * channels))
        .for_each(|(sums, x)| isa.run(Moments { x, pivots, sums }));
    for channel in 0..channels {
        let total = |at: usize| {
            sums.iter()
                .skip(at * channels + channel)
                .step_by(2 * channels)
                .sum::<f64>()
                / rows as f64
        };
        let (first, second) = (total(0), total(1));
        mean[channel] = f64::from(pivots[channel]) + first;
        variance[channel] = (second - first * first).max(0.0);
        // The maximum would hide what is not a number.
        if second.is_nan() {
            variance[channel] = second;
        }
    }
}

struct Moments<'a> {
    x: &'a [f32],
    pivots: &'a [f32],
    sums: &'a mut [f64],
}

impl WithSimd for Moments<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let channels = self.pivots.len();
        let (first, second) = self.sums.split_at_mut(channels);
        first.fill(0.0);
        second.fill(0.0);
        for rows in self.x.chunks(RUN * channels) {
            let mut channel = 0;
            while channel + LANES <= channels {
                let mut pivot = [0.0_f64; LANES];
                (pivot.iter_mut().zip(&self.pivots[channel..]))
                    .for_each(|(to, x)| *to = f64::from(*x));
                let (mut sum, mut square) = ([0.0_f64; LANES], [0.0_f64; LANES]);
                for row in rows.chunks_exact(channels) {
                    let row = &row[channel..channel + LANES];
                    for lane in 0..LANES {
                        let x = f64::from(row[lane]) - pivot[lane];
                        sum[lane] += x;
                        square[lane] += x * x;
                    }
                }
                for lane in 0..LANES {
                    first[channel + lane] += sum[lane];
                    second[channel + lane] += square[lane];
                }
                channel += LANES;
            }
            for row in rows.chunks_exact(channels) {
                for at in channel..channels {
                    let x = f64::from(row[at]) - f64::from(self.pivots[at]);
                    first[at] += x;
                    second[at] += x * x;
                }
            }
        }
    }
}

/// An operand that the output takes the place of, or one that lies elsewhere.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// The output holds it.
    InPlace,
    /// Elsewhere.
    From(&'a [f32]),
}

/// `out = relu?((x - mean) * scale + shift + addend?)`; the rectifier keeps NaN.
///
/// # Panics
/// When lengths differ.
pub fn normalise(
    x: Input<'_>,
    affine: Affine<'_>,
    addend: Option<&[f32]>,
    relu: bool,
    out: &mut [f32],
    isa: Isa,
) {
    let channels = affine.mean.len();
    let at_once = rows_at_once(channels) * channels;
    assert!(
        addend.is_none_or(|addend| addend.len() == out.len()),
        "addend"
    );
    if let Input::From(x) = x {
        assert_eq!(x.len(), out.len(), "input");
    }
    out.par_chunks_mut(at_once)
        .enumerate()
        .for_each(|(block, out)| {
            let range = block * at_once..block * at_once + out.len();
            let x = match x {
                Input::InPlace => None,
                Input::From(x) => Some(&x[range.clone()]),
            };
            let addend = addend.map(|addend| &addend[range]);
            isa.run(Normalise {
                x,
                affine,
                addend,
                relu,
                out,
            });
        });
}

struct Normalise<'a> {
    x: Option<&'a [f32]>,
    affine: Affine<'a>,
    addend: Option<&'a [f32]>,
    relu: bool,
    out: &'a mut [f32],
}

impl WithSimd for Normalise<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Affine { mean, scale, shift } = self.affine;
        let channels = mean.len();
        let (scale, shift) = (&scale[..channels], &shift[..channels]);
        for (row, out) in self.out.chunks_exact_mut(channels).enumerate() {
            let range = row * channels..(row + 1) * channels;
            if let Some(x) = self.x {
                let x = &x[range.clone()];
                for at in 0..channels {
                    out[at] = (x[at] - mean[at]) * scale[at] + shift[at];
                }
            } else {
                for at in 0..channels {
                    out[at] = (out[at] - mean[at]) * scale[at] + shift[at];
                }
            }
            if let Some(addend) = self.addend {
                (out.iter_mut().zip(&addend[range])).for_each(|(out, addend)| *out += addend);
            }
            if self.relu {
                out.iter_mut().for_each(|out| *out = rectified(*out));
            }
        }
    }
}

/// NaN stays NaN.
#[inline(always)]
fn rectified(x: f32) -> f32 {
    if x < 0.0 { 0.0 } else { x }
}

/// Where a rectifier's output lets a gradient pass: where it is above 0, or NaN.
#[inline(always)]
fn passed(grad: f32, output: f32) -> f32 {
    if output <= 0.0 { 0.0 } else { grad }
}

/// A gradient of the output, and the output of the rectifier that it still has to pass, if any.
#[derive(Clone, Copy, Debug)]
pub struct Gradient<'a> {
    /// `[rows, channels]`.
    pub grad: &'a [f32],
    /// `[rows, channels]`.
    pub rectified: Option<&'a [f32]>,
}

/// Sums of `grad` and of `grad * (x - mean)` over each channel.
///
/// # Panics
/// When a slice is too short.
pub fn gradient_sums(
    grad: Gradient<'_>,
    x: &[f32],
    mean: &[f32],
    totals: &mut [f64],
    dots: &mut [f64],
    scratch: &mut [f64],
    isa: Isa,
) {
    let channels = mean.len();
    let at_once = rows_at_once(channels);
    let blocks = (x.len() / channels).div_ceil(at_once);
    assert!(
        grad.grad.len() == x.len() && grad.rectified.is_none_or(|y| y.len() == x.len()),
        "lengths"
    );
    let sums = &mut scratch[..blocks * 2 * channels];
    sums.par_chunks_exact_mut(2 * channels)
        .enumerate()
        .for_each(|(block, sums)| {
            let range = block * at_once * channels..((block + 1) * at_once * channels).min(x.len());
            isa.run(Sums {
                grad: &grad.grad[range.clone()],
                rectified: grad.rectified.map(|y| &y[range.clone()]),
                x: &x[range],
                mean,
                sums,
            });
        });
    for channel in 0..channels {
        let total = |at: usize| {
            sums.iter()
                .skip(at * channels + channel)
                .step_by(2 * channels)
                .sum::<f64>()
        };
        (totals[channel], dots[channel]) = (total(0), total(1));
    }
}

struct Sums<'a> {
    grad: &'a [f32],
    rectified: Option<&'a [f32]>,
    x: &'a [f32],
    mean: &'a [f32],
    sums: &'a mut [f64],
}

impl Sums<'_> {
    #[inline(always)]
    fn of<const RECTIFIED: bool>(self) {
        let channels = self.mean.len();
        let (totals, dots) = self.sums.split_at_mut(channels);
        totals.fill(0.0);
        dots.fill(0.0);
        let y = self.rectified.unwrap_or(self.grad);
        let size = RUN * channels;
        let blocks = self
            .grad
            .chunks(size)
            .zip(self.x.chunks(size))
            .zip(y.chunks(size));
        for ((grad, x), y) in blocks {
            let mut channel = 0;
            while channel + LANES <= channels {
                let mut mean = [0.0_f64; LANES];
                (mean.iter_mut().zip(&self.mean[channel..]))
                    .for_each(|(to, x)| *to = f64::from(*x));
                let (mut total, mut dot) = ([0.0_f64; LANES], [0.0_f64; LANES]);
                for row in 0..grad.len() / channels {
                    let at = row * channels + channel;
                    let (grad, x, y) = (
                        &grad[at..at + LANES],
                        &x[at..at + LANES],
                        &y[at..at + LANES],
                    );
                    for lane in 0..LANES {
                        let dy = f64::from(if RECTIFIED {
                            passed(grad[lane], y[lane])
                        } else {
                            grad[lane]
                        });
                        total[lane] += dy;
                        dot[lane] += dy * (f64::from(x[lane]) - mean[lane]);
                    }
                }
                for lane in 0..LANES {
                    totals[channel + lane] += total[lane];
                    dots[channel + lane] += dot[lane];
                }
                channel += LANES;
            }
            for row in 0..grad.len() / channels {
                for at in channel..channels {
                    let index = row * channels + at;
                    let dy = f64::from(if RECTIFIED {
                        passed(grad[index], y[index])
                    } else {
                        grad[index]
                    });
                    totals[at] += dy;
                    dots[at] += dy * (f64::from(x[index]) - f64::from(self.mean[at]));
                }
            }
        }
    }
}

impl WithSimd for Sums<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        if self.rectified.is_some() {
            self.of::<true>();
        } else {
            self.of::<false>();
        }
    }
}

/// How a channel's input gradient is made: `grad * scale + ((x - mean) * slope + shift)`.
#[derive(Clone, Copy, Debug)]
pub struct Terms<'a> {
    /// Of each channel.
    pub mean: &'a [f32],
    /// Of each channel.
    pub scale: &'a [f32],
    /// Of each channel.
    pub slope: &'a [f32],
    /// Of each channel.
    pub shift: &'a [f32],
}

/// `out = grad * scale + ((x - mean) * slope + shift)`.
///
/// # Panics
/// When lengths differ.
pub fn input_gradient(
    grad: Input<'_>,
    rectified: Option<&[f32]>,
    x: &[f32],
    terms: Terms<'_>,
    out: &mut [f32],
    isa: Isa,
) {
    let channels = terms.mean.len();
    let at_once = rows_at_once(channels) * channels;
    assert!(
        x.len() == out.len() && rectified.is_none_or(|y| y.len() == out.len()),
        "lengths"
    );
    if let Input::From(grad) = grad {
        assert_eq!(grad.len(), out.len(), "gradient");
    }
    out.par_chunks_mut(at_once)
        .enumerate()
        .for_each(|(block, out)| {
            let range = block * at_once..block * at_once + out.len();
            let grad = match grad {
                Input::InPlace => None,
                Input::From(grad) => Some(&grad[range.clone()]),
            };
            let rectified = rectified.map(|y| &y[range.clone()]);
            isa.run(InputGradient {
                grad,
                rectified,
                x: &x[range],
                terms,
                out,
            });
        });
}

struct InputGradient<'a> {
    grad: Option<&'a [f32]>,
    rectified: Option<&'a [f32]>,
    x: &'a [f32],
    terms: Terms<'a>,
    out: &'a mut [f32],
}

impl WithSimd for InputGradient<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Terms {
            mean,
            scale,
            slope,
            shift,
        } = self.terms;
        let channels = mean.len();
        let (scale, slope, shift) = (&scale[..channels], &slope[..channels], &shift[..channels]);
        let rows = self
            .out
            .chunks_exact_mut(channels)
            .zip(self.x.chunks_exact(channels));
        for (row, (out, x)) in rows.enumerate() {
            let range = row * channels..(row + 1) * channels;
            if let Some(grad) = self.grad {
                out.copy_from_slice(&grad[range.clone()]);
            }
            if let Some(y) = self.rectified {
                (out.iter_mut().zip(&y[range])).for_each(|(out, y)| *out = passed(*out, *y));
            }
            for at in 0..channels {
                out[at] = out[at] * scale[at] + ((x[at] - mean[at]) * slope[at] + shift[at]);
            }
        }
    }
}
