//! Softmax and its logarithm along the middle dimension of `[outer, length, inner]`, forward and backward, in place.

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use crate::Isa;

/// Elements that a thread takes at a time, about.
const ELEMENTS: usize = 1 << 14;
/// Lines that are worked on side by side, where their elements do not lie so.
const LANES: usize = 16;

/// What becomes of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Softmax {
    /// `exp(x) / sum(exp(x))`.
    Plain,
    /// Its logarithm.
    Log,
}

/// Every line's softmax.
///
/// # Panics
/// When `x` has no whole lines.
pub fn softmax(kind: Softmax, x: &mut [f32], length: usize, inner: usize, isa: Isa) {
    let block = length * inner;
    assert!(block > 0 && x.len().is_multiple_of(block), "whole lines");
    let at_once = ELEMENTS.div_ceil(block) * block;
    x.par_chunks_mut(at_once).for_each(|x| {
        isa.run(Forward {
            kind,
            x,
            length,
            inner,
        });
    });
}

/// The gradient of [`softmax`]'s input, from its output: in place of its output's gradient.
///
/// # Panics
/// When lengths do not fit.
pub fn softmax_gradient(
    kind: Softmax,
    grad: &mut [f32],
    output: &[f32],
    length: usize,
    inner: usize,
    isa: Isa,
) {
    let block = length * inner;
    assert!(block > 0 && grad.len().is_multiple_of(block), "whole lines");
    assert_eq!(grad.len(), output.len(), "lengths");
    let at_once = ELEMENTS.div_ceil(block) * block;
    (grad.par_chunks_mut(at_once))
        .zip(output.par_chunks(at_once))
        .for_each(|(grad, output)| {
            isa.run(Backward {
                kind,
                grad,
                output,
                length,
                inner,
            });
        });
}

/// The greater one; NaN when one is NaN.
#[inline(always)]
fn greater(max: f32, x: f32) -> f32 {
    if max.is_nan() || x <= max { max } else { x }
}

struct Forward<'a> {
    kind: Softmax,
    x: &'a mut [f32],
    length: usize,
    inner: usize,
}

impl WithSimd for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let (length, inner) = (self.length, self.inner);
        for x in self.x.chunks_exact_mut(length * inner) {
            for first in (0..inner).step_by(LANES) {
                let wide = LANES.min(inner - first);
                let mut greatest = [f32::NEG_INFINITY; LANES];
                for line in x.chunks_exact(inner) {
                    for (max, x) in greatest.iter_mut().zip(&line[first..first + wide]) {
                        *max = greater(*max, *x);
                    }
                }
                let mut totals = [0.0_f64; LANES];
                for line in x.chunks_exact_mut(inner) {
                    let line = &mut line[first..first + wide];
                    for ((x, max), total) in line.iter_mut().zip(greatest).zip(&mut totals) {
                        let power = (*x - max).exp();
                        *total += f64::from(power);
                        if self.kind == Softmax::Plain {
                            *x = power;
                        }
                    }
                }
                let last = totals.map(
                    #[inline(always)]
                    |total| match self.kind {
                        Softmax::Plain => total as f32,
                        Softmax::Log => total.ln() as f32,
                    },
                );
                for line in x.chunks_exact_mut(inner) {
                    let line = &mut line[first..first + wide];
                    for ((x, max), last) in line.iter_mut().zip(greatest).zip(last) {
                        match self.kind {
                            Softmax::Plain => *x /= last,
                            Softmax::Log => *x = *x - max - last,
                        }
                    }
                }
            }
        }
    }
}

/// `y * (dy - sum(dy * y))`, and `dy - exp(y) * sum(dy)`.
struct Backward<'a> {
    kind: Softmax,
    grad: &'a mut [f32],
    output: &'a [f32],
    length: usize,
    inner: usize,
}

impl WithSimd for Backward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let (length, inner) = (self.length, self.inner);
        let blocks = self.grad.chunks_exact_mut(length * inner);
        for (grad, output) in blocks.zip(self.output.chunks_exact(length * inner)) {
            for first in (0..inner).step_by(LANES) {
                let wide = LANES.min(inner - first);
                let mut totals = [0.0_f64; LANES];
                for (dy, y) in grad.chunks_exact(inner).zip(output.chunks_exact(inner)) {
                    let pairs = dy[first..first + wide].iter().zip(&y[first..first + wide]);
                    for ((dy, y), total) in pairs.zip(&mut totals) {
                        *total += match self.kind {
                            Softmax::Plain => f64::from(*dy) * f64::from(*y),
                            Softmax::Log => f64::from(*dy),
                        };
                    }
                }
                for (dy, y) in grad.chunks_exact_mut(inner).zip(output.chunks_exact(inner)) {
                    let pairs = dy[first..first + wide]
                        .iter_mut()
                        .zip(&y[first..first + wide]);
                    for ((dy, y), total) in pairs.zip(totals) {
                        let total = total as f32;
                        match self.kind {
                            Softmax::Plain => *dy = (*dy - total) * y,
                            Softmax::Log => *dy -= y.exp() * total,
                        }
                    }
                }
            }
        }
    }
}
