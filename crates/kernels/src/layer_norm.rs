//! Layer norm over rows of `[rows, width]`, forward and backward; statistics in f64, as ATen's CPU kernels take them.

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use crate::Isa;
use crate::sums::{sum, sum_of_pairs};

/// Elements that a thread takes at a time.
const ELEMENTS: usize = 1 << 14;
/// Columns of the weight's gradient that a thread sums at a time.
const COLUMNS: usize = 64;

/// Output, and mean and 1 / standard deviation of each row: as many as `means` and `rstds` have.
///
/// # Panics
/// When lengths do not fit.
#[expect(clippy::too_many_arguments, reason = "operands, results and how")]
pub fn layer_norm(
    x: &[f32],
    weight: Option<&[f32]>,
    bias: Option<&[f32]>,
    eps: f64,
    out: &mut [f32],
    means: &mut [f32],
    rstds: &mut [f32],
    isa: Isa,
) {
    assert!(
        x.len() == out.len() && means.len() == rstds.len(),
        "lengths"
    );
    let width = x.len() / means.len();
    let at_once = ELEMENTS.div_ceil(width);
    (out.par_chunks_mut(at_once * width))
        .zip(x.par_chunks(at_once * width))
        .zip(means.par_chunks_mut(at_once))
        .zip(rstds.par_chunks_mut(at_once))
        .for_each(|(((out, x), means), rstds)| {
            isa.run(Rows {
                x,
                weight,
                bias,
                eps,
                out,
                means,
                rstds,
            });
        });
}

struct Rows<'a> {
    x: &'a [f32],
    weight: Option<&'a [f32]>,
    bias: Option<&'a [f32]>,
    eps: f64,
    out: &'a mut [f32],
    means: &'a mut [f32],
    rstds: &'a mut [f32],
}

impl WithSimd for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let width = self.x.len() / self.means.len();
        let rows = self.out.chunks_exact_mut(width);
        let rows = rows.zip(self.x.chunks_exact(width));
        let stats = self.means.iter_mut().zip(self.rstds);
        for ((out, x), (mean_out, rstd_out)) in rows.zip(stats) {
            let mean = sum(
                x,
                #[inline(always)]
                |x| x,
            ) / width as f64;
            let variance = sum(
                x,
                #[inline(always)]
                |x| (x - mean) * (x - mean),
            ) / width as f64;
            let rstd = (1.0 / (variance + self.eps).sqrt()) as f32;
            let mean = mean as f32;
            (*mean_out, *rstd_out) = (mean, rstd);
            for (out, x) in out.iter_mut().zip(x) {
                *out = (x - mean) * rstd;
            }
            if let Some(weight) = self.weight {
                for (out, weight) in out.iter_mut().zip(weight) {
                    *out *= weight;
                }
            }
            if let Some(bias) = self.bias {
                for (out, bias) in out.iter_mut().zip(bias) {
                    *out += bias;
                }
            }
        }
    }
}

/// What a layer norm's gradients are made of: its input, its statistics, its weight, and the gradient of its output.
#[derive(Clone, Copy, Debug)]
pub struct LayerNormGradient<'a> {
    /// `[rows, width]`.
    pub grad: &'a [f32],
    /// `[rows, width]`.
    pub x: &'a [f32],
    /// Of each row.
    pub means: &'a [f32],
    /// Of each row.
    pub rstds: &'a [f32],
    /// Of each column.
    pub weight: Option<&'a [f32]>,
}

impl LayerNormGradient<'_> {
    /// Gradients of input `[rows, width]`, weight and bias `[width]`.
    ///
    /// # Panics
    /// When lengths do not fit.
    pub fn gradients(self, input: &mut [f32], weight: &mut [f32], bias: &mut [f32], isa: Isa) {
        let width = weight.len();
        assert!(
            self.x.len() == input.len()
                && self.grad.len() == input.len()
                && self.means.len() * width == input.len()
                && bias.len() == width,
            "lengths"
        );
        let at_once = ELEMENTS.div_ceil(width);
        (input.par_chunks_mut(at_once * width).enumerate()).for_each(|(chunk, out)| {
            isa.run(OfRows {
                of: self,
                width,
                first: chunk * at_once,
                out,
            });
        });
        (weight.par_chunks_mut(COLUMNS).enumerate())
            .zip(bias.par_chunks_mut(COLUMNS))
            .for_each(|((chunk, weight), bias)| {
                isa.run(OfColumns {
                    of: self,
                    width,
                    first: chunk * COLUMNS,
                    weight,
                    bias,
                });
            });
    }
}

struct OfRows<'a> {
    of: LayerNormGradient<'a>,
    width: usize,
    first: usize,
    out: &'a mut [f32],
}

impl WithSimd for OfRows<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let (of, width) = (self.of, self.width);
        for (index, out) in self.out.chunks_exact_mut(width).enumerate() {
            let row = self.first + index;
            let (dy, x) = (
                &of.grad[row * width..][..width],
                &of.x[row * width..][..width],
            );
            let (mean, rstd) = (of.means[row], of.rstds[row]);
            match of.weight {
                None => out.copy_from_slice(dy),
                Some(weight) => {
                    for (out, (dy, weight)) in out.iter_mut().zip(dy.iter().zip(weight)) {
                        *out = dy * weight;
                    }
                }
            }
            let total = sum(
                out,
                #[inline(always)]
                |dy| dy,
            ) / width as f64;
            let center = f64::from(mean);
            let dot = sum_of_pairs(
                out,
                x,
                #[inline(always)]
                |dy, x| dy * (x - center),
            ) / width as f64;
            let slope = (-dot * f64::from(rstd) * f64::from(rstd)) as f32;
            let shift = -total as f32;
            for (out, x) in out.iter_mut().zip(x) {
                *out = (*out + ((x - mean) * slope + shift)) * rstd;
            }
        }
    }
}

struct OfColumns<'a> {
    of: LayerNormGradient<'a>,
    width: usize,
    first: usize,
    weight: &'a mut [f32],
    bias: &'a mut [f32],
}

impl WithSimd for OfColumns<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let of = self.of;
        let (mut of_weight, mut of_bias) = ([0.0_f64; COLUMNS], [0.0_f64; COLUMNS]);
        let columns = self.weight.len();
        let rows = of.grad.chunks_exact(self.width);
        let rows = rows.zip(of.x.chunks_exact(self.width));
        for ((dy, x), (mean, rstd)) in rows.zip(of.means.iter().zip(of.rstds)) {
            let elements = dy[self.first..][..columns]
                .iter()
                .zip(&x[self.first..][..columns]);
            for ((dy, x), (w, b)) in elements.zip(of_weight.iter_mut().zip(&mut of_bias)) {
                *w += f64::from(*dy) * f64::from((x - mean) * rstd);
                *b += f64::from(*dy);
            }
        }
        for (out, sum) in self.weight.iter_mut().zip(of_weight) {
            *out = sum as f32;
        }
        for (out, sum) in self.bias.iter_mut().zip(of_bias) {
            *out = sum as f32;
        }
    }
}
