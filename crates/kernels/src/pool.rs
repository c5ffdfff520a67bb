//! Pooling over images `[N, H, W, C]`, forward and backward; windows as ATen's CPU kernels walk them.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use crate::Isa;
use crate::share::Shared;

/// Channels that a thread works on at a time.
const CHANNELS: usize = 64;

/// Sizes of a pooling; each pair is height, width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pooling {
    /// Channels.
    pub channels: usize,
    /// Input sizes.
    pub input: [usize; 2],
    /// Output sizes.
    pub output: [usize; 2],
}

impl Pooling {
    fn in_plane(&self) -> usize {
        self.input[0] * self.input[1] * self.channels
    }

    fn out_plane(&self) -> usize {
        self.output[0] * self.output[1] * self.channels
    }
}

/// A window; each pair is height, width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Sizes.
    pub kernel: [usize; 2],
    /// From an output's window to the next.
    pub stride: [usize; 2],
    /// What lies outside on either side.
    pub padding: [usize; 2],
    /// From a tap to the next.
    pub dilation: [usize; 2],
}

impl Window {
    /// The inputs that an output of max pooling looks at along an axis.
    #[inline(always)]
    fn inputs(
        &self,
        axis: usize,
        output: usize,
        size: usize,
    ) -> impl Iterator<Item = usize> + use<> {
        let start = output * self.stride[axis];
        let (dilation, padding) = (self.dilation[axis], self.padding[axis]);
        (0..self.kernel[axis]).filter_map(
            #[inline(always)]
            move |tap| {
                let at = (start + tap * dilation).wrapping_sub(padding);
                (at < size).then_some(at)
            },
        )
    }
}

/// The greatest element of each window, NaN before all, and its place `y * W + x` in its plane.
///
/// # Panics
/// When lengths do not fit the sizes.
pub fn max_pool(
    p: &Pooling,
    window: Window,
    x: &[f32],
    out: &mut [f32],
    places: &mut [i64],
    isa: Isa,
) {
    let width = p.output[1] * p.channels;
    assert_eq!(out.len(), places.len(), "places");
    assert_eq!(x.len() / p.in_plane(), out.len() / p.out_plane(), "images");
    (out.par_chunks_exact_mut(width))
        .zip(places.par_chunks_exact_mut(width))
        .enumerate()
        .for_each(|(line, (out, places))| {
            let (image, row) = (line / p.output[0], line % p.output[0]);
            let x = &x[image * p.in_plane()..][..p.in_plane()];
            isa.run(Max {
                p,
                window,
                x,
                row,
                out,
                places,
            });
        });
}

struct Max<'a> {
    p: &'a Pooling,
    window: Window,
    x: &'a [f32],
    row: usize,
    out: &'a mut [f32],
    places: &'a mut [i64],
}

/// Channels whose greatest stays in registers.
const LANES: usize = 16;

impl WithSimd for Max<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let channels = self.p.channels;
        let pixels = self
            .out
            .chunks_exact_mut(channels)
            .zip(self.places.chunks_exact_mut(channels));
        for (column, (out, places)) in pixels.enumerate() {
            for (index, (out, places)) in out
                .chunks_mut(LANES)
                .zip(places.chunks_mut(LANES))
                .enumerate()
            {
                let (mut best, mut best_at) = ([f32::NEG_INFINITY; LANES], [u32::MAX; LANES]);
                for y in self.window.inputs(0, self.row, self.p.input[0]) {
                    for x in self.window.inputs(1, column, self.p.input[1]) {
                        let at = y * self.p.input[1] + x;
                        let seen = &self.x[at * channels + index * LANES..][..out.len()];
                        let mut greatest = |lane: usize, value: f32| {
                            let takes =
                                value > best[lane] || value.is_nan() || best_at[lane] == u32::MAX;
                            best[lane] = if takes { value } else { best[lane] };
                            best_at[lane] = if takes { at as u32 } else { best_at[lane] };
                        };
                        if let Ok(seen) = <&[f32; LANES]>::try_from(seen) {
                            for (lane, value) in seen.iter().enumerate() {
                                greatest(lane, *value);
                            }
                        } else {
                            for (lane, value) in seen.iter().enumerate() {
                                greatest(lane, *value);
                            }
                        }
                    }
                }
                out.copy_from_slice(&best[..out.len()]);
                for (place, at) in places.iter_mut().zip(best_at) {
                    *place = if at == u32::MAX { 0 } else { i64::from(at) };
                }
            }
        }
    }
}

/// Gradient of the input of [`max_pool`]; false when a place is outside its plane.
///
/// # Panics
/// When lengths do not fit the sizes.
#[must_use]
pub fn max_pool_gradient(p: &Pooling, grad: &[f32], places: &[i64], out: &mut [f32]) -> bool {
    let images = out.len() / p.in_plane();
    assert_eq!(grad.len(), places.len(), "places");
    assert_eq!(grad.len() / p.out_plane(), images, "images");
    out.par_chunks_mut(1 << 16).for_each(|out| out.fill(0.0));
    let parts = p.channels.div_ceil(CHANNELS);
    let pixels = p.input[0] * p.input[1];
    let inside = AtomicBool::new(true);
    let out = Shared::new(out);
    (0..images * parts).into_par_iter().for_each(|index| {
        let (image, first) = (index / parts, index % parts * CHANNELS);
        let count = CHANNELS.min(p.channels - first);
        let from = image * p.out_plane()..(image + 1) * p.out_plane();
        let lines = grad[from.clone()]
            .chunks_exact(p.channels)
            .zip(places[from].chunks_exact(p.channels));
        for (grad, places) in lines {
            let channels = first..first + count;
            for (lane, (grad, place)) in grad[channels.clone()]
                .iter()
                .zip(&places[channels])
                .enumerate()
            {
                let Some(place) = usize::try_from(*place).ok().filter(|place| *place < pixels)
                else {
                    inside.store(false, Ordering::Relaxed);
                    return;
                };
                // SAFETY: within the image; these channels of it are one thread's.
                unsafe {
                    *out.at(image * p.in_plane() + place * p.channels + first + lane) += grad
                };
            }
        }
    });
    inside.into_inner()
}

/// What an output of an average pooling averages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Averaged {
    /// Windows.
    Windows {
        /// The window; not dilated.
        window: Window,
        /// Whether padding counts in the divisor.
        count_include_pad: bool,
        /// Instead of the count.
        divisor: Option<usize>,
    },
    /// From `floor(i * in / out)` to `ceil((i + 1) * in / out)`.
    Adaptive,
}

/// The part of a plane that one output averages, and what its sum is divided by.
struct Part {
    rows: Range<usize>,
    columns: Range<usize>,
    divisor: f32,
}

impl Averaged {
    fn part(&self, p: &Pooling, at: [usize; 2]) -> Part {
        match *self {
            Averaged::Windows {
                window,
                count_include_pad,
                divisor,
            } => {
                let axis = |axis: usize| {
                    let start = at[axis] * window.stride[axis];
                    let padding = window.padding[axis];
                    // In ATen a window of `ceil_mode` ends with the padding on the right.
                    let end = (start + window.kernel[axis]).min(p.input[axis] + 2 * padding);
                    let clip = |at: usize| at.saturating_sub(padding).min(p.input[axis]);
                    (clip(start)..clip(end), end - start)
                };
                let ((rows, high), (columns, wide)) = (axis(0), axis(1));
                let counted = if count_include_pad {
                    high * wide
                } else {
                    rows.len() * columns.len()
                };
                Part {
                    rows,
                    columns,
                    divisor: divisor.unwrap_or(counted) as f32,
                }
            }
            Averaged::Adaptive => {
                let range = |axis: usize| {
                    let (input, output) = (p.input[axis], p.output[axis]);
                    at[axis] * input / output..((at[axis] + 1) * input).div_ceil(output)
                };
                let (rows, columns) = (range(0), range(1));
                let divisor = (rows.len() * columns.len()) as f32;
                Part {
                    rows,
                    columns,
                    divisor,
                }
            }
        }
    }
}

/// Means over parts of each plane.
///
/// # Panics
/// When lengths do not fit the sizes.
pub fn avg_pool(p: &Pooling, averaged: Averaged, x: &[f32], out: &mut [f32], isa: Isa) {
    let width = p.output[1] * p.channels;
    assert_eq!(x.len() / p.in_plane(), out.len() / p.out_plane(), "images");
    out.par_chunks_exact_mut(width)
        .enumerate()
        .for_each(|(line, out)| {
            let (image, row) = (line / p.output[0], line % p.output[0]);
            let x = &x[image * p.in_plane()..][..p.in_plane()];
            for (column, out) in out.chunks_exact_mut(p.channels).enumerate() {
                let part = averaged.part(p, [row, column]);
                isa.run(Mean { p, part, x, out });
            }
        });
}

struct Mean<'a> {
    p: &'a Pooling,
    part: Part,
    x: &'a [f32],
    out: &'a mut [f32],
}

impl WithSimd for Mean<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Mean { p, part, x, out } = self;
        if part.rows.is_empty() || part.columns.is_empty() {
            out.fill(0.0);
            return;
        }
        for (index, out) in out.chunks_mut(LANES).enumerate() {
            let mut sums = [0.0_f64; LANES];
            for row in part.rows.clone() {
                for column in part.columns.clone() {
                    let pixel = (row * p.input[1] + column) * p.channels + index * LANES;
                    (sums.iter_mut().zip(&x[pixel..][..out.len()]))
                        .for_each(|(sum, x)| *sum += f64::from(*x));
                }
            }
            (out.iter_mut().zip(sums))
                .for_each(|(out, sum)| *out = (sum / f64::from(part.divisor)) as f32);
        }
    }
}

/// Gradient of the input of [`avg_pool`].
///
/// # Panics
/// When lengths do not fit the sizes.
pub fn avg_pool_gradient(p: &Pooling, averaged: Averaged, grad: &[f32], out: &mut [f32], isa: Isa) {
    let images = out.len() / p.in_plane();
    assert_eq!(grad.len() / p.out_plane(), images, "images");
    out.par_chunks_mut(1 << 16).for_each(|out| out.fill(0.0));
    let parts = p.channels.div_ceil(CHANNELS);
    let out = Shared::new(out);
    (0..images * parts).into_par_iter().for_each(|index| {
        let (image, first) = (index / parts, index % parts * CHANNELS);
        let count = CHANNELS.min(p.channels - first);
        for (at, grad) in grad[image * p.out_plane()..][..p.out_plane()]
            .chunks_exact(p.channels)
            .enumerate()
        {
            let part = averaged.part(p, [at / p.output[1], at % p.output[1]]);
            isa.run(Spread {
                p,
                part,
                grad: &grad[first..first + count],
                out,
                start: image * p.in_plane() + first,
            });
        }
    });
}

struct Spread<'a> {
    p: &'a Pooling,
    part: Part,
    grad: &'a [f32],
    out: Shared<'a>,
    start: usize,
}

impl WithSimd for Spread<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for row in self.part.rows {
            for column in self.part.columns.clone() {
                let pixel = (row * self.p.input[1] + column) * self.p.channels;
                // SAFETY: within the image; these channels of it are one thread's.
                let out = unsafe { self.out.part(self.start + pixel, self.grad.len()) };
                (out.iter_mut().zip(self.grad))
                    .for_each(|(out, grad)| *out += grad / self.part.divisor);
            }
        }
    }
}
