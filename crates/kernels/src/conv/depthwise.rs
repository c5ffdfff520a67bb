//! Convolution of each channel with its own kernel: no product to speak of, vectors of channels all the way.

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::Convolution;
use super::axis::Axis;
use crate::isa::Isa;
use crate::share::Shared;

/// Whether each output channel sees one input channel of its own.
pub(super) fn applies(g: &Convolution) -> bool {
    g.groups > 1 && g.groups == g.in_channels && g.groups == g.out_channels
}

/// Elements of scratch memory: the kernels, tap by tap.
pub(super) fn scratch(g: &Convolution) -> usize {
    g.kernel.iter().product::<usize>() * g.in_channels
}

/// Forward, and with `is_forward` false the input gradient: `source`, `weight [C, 1, ...]`, `out`.
#[expect(
    clippy::too_many_arguments,
    reason = "operands, result, scratch memory and how"
)]
pub(super) fn run(
    g: &Convolution,
    is_forward: bool,
    source: &[f32],
    weight: &[f32],
    bias: Option<&[f32]>,
    out: &mut [f32],
    scratch: &mut [f32],
    isa: Isa,
) {
    let channels = g.in_channels;
    let taps: usize = g.kernel.iter().product();
    for (tap, line) in scratch.chunks_exact_mut(channels).enumerate().take(taps) {
        (line.iter_mut().enumerate())
            .for_each(|(channel, out)| *out = weight[channel * taps + tap]);
    }
    let scratch = &*scratch;
    let (sizes, from) = if is_forward {
        (g.output, g.input)
    } else {
        (g.input, g.output)
    };
    let width = sizes[2] * channels;
    out.par_chunks_exact_mut(width)
        .enumerate()
        .for_each(|(line, out)| {
            isa.run(Line {
                g,
                is_forward,
                source,
                from,
                weight: scratch,
                bias,
                line,
                sizes,
                out,
            });
        });
}

/// A row of pixels of the target.
struct Line<'a> {
    g: &'a Convolution,
    is_forward: bool,
    source: &'a [f32],
    from: [usize; 3],
    weight: &'a [f32],
    bias: Option<&'a [f32]>,
    line: usize,
    sizes: [usize; 3],
    out: &'a mut [f32],
}

/// The source pixel that a tap of a target pixel looks at.
#[inline(always)]
fn look(
    g: &Convolution,
    is_forward: bool,
    axis: usize,
    at: usize,
    tap: usize,
    size: usize,
) -> Option<usize> {
    let reach = tap * g.dilation[axis];
    let source = if is_forward {
        (at * g.stride[axis] + reach).checked_sub(g.padding[axis])?
    } else {
        let from = (at + g.padding[axis]).checked_sub(reach)?;
        if !from.is_multiple_of(g.stride[axis]) {
            return None;
        }
        from / g.stride[axis]
    };
    (source < size).then_some(source)
}

impl WithSimd for Line<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        let (g, channels) = (self.g, self.g.in_channels);
        let (image, at_z, at_y) = (
            self.line / self.sizes[1] / self.sizes[0],
            self.line / self.sizes[1] % self.sizes[0],
            self.line % self.sizes[1],
        );
        for (at_x, out) in self.out.chunks_exact_mut(channels).enumerate() {
            match self.bias {
                Some(bias) => out.copy_from_slice(bias),
                None => out.fill(0.0),
            }
            let mut tap = 0;
            for z in 0..g.kernel[0] {
                for y in 0..g.kernel[1] {
                    for x in 0..g.kernel[2] {
                        let seen = (
                            look(g, self.is_forward, 0, at_z, z, self.from[0]),
                            look(g, self.is_forward, 1, at_y, y, self.from[1]),
                            look(g, self.is_forward, 2, at_x, x, self.from[2]),
                        );
                        if let (Some(z), Some(y), Some(x)) = seen {
                            let pixel =
                                ((image * self.from[0] + z) * self.from[1] + y) * self.from[2] + x;
                            let source = &self.source[pixel * channels..][..channels];
                            add_product(s, out, source, &self.weight[tap * channels..][..channels]);
                        }
                        tap += 1;
                    }
                }
            }
        }
    }
}

/// `out += a * b`.
#[inline(always)]
fn add_product<S: Simd>(s: S, out: &mut [f32], a: &[f32], b: &[f32]) {
    let (out, out_rest) = S::as_mut_simd_f32s(out);
    let (a, a_rest) = S::as_simd_f32s(a);
    let (b, b_rest) = S::as_simd_f32s(b);
    for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
        *out = s.mul_add_e_f32s(*a, *b, *out);
    }
    if !out_rest.is_empty() {
        let (a, b) = (s.partial_load_f32s(a_rest), s.partial_load_f32s(b_rest));
        let sum = s.mul_add_e_f32s(a, b, s.partial_load_f32s(out_rest));
        s.partial_store_f32s(out_rest, sum);
    }
}

/// Channels that a thread works on at a time in the weight gradient.
const CHANNELS: usize = 16;

/// Weight gradient `[C, 1, ...]`.
pub(super) fn weight_grad(g: &Convolution, input: &[f32], grad: &[f32], out: &mut [f32], isa: Isa) {
    let taps: usize = g.kernel.iter().product();
    let out = Shared::new(out);
    let parts = g.in_channels.div_ceil(CHANNELS);
    (0..parts * taps).into_par_iter().for_each(|index| {
        let (part, tap) = (index / taps, index % taps);
        let first = part * CHANNELS;
        isa.run(Tap {
            g,
            input,
            grad,
            out,
            tap,
            taps,
            first,
            count: CHANNELS.min(g.in_channels - first),
        });
    });
}

/// One tap of some channels.
struct Tap<'a> {
    g: &'a Convolution,
    input: &'a [f32],
    grad: &'a [f32],
    out: Shared<'a>,
    tap: usize,
    taps: usize,
    first: usize,
    count: usize,
}

impl WithSimd for Tap<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        let g = self.g;
        let axes: [Axis; 3] = [
            Axis::forward(g, 0),
            Axis::forward(g, 1),
            Axis::forward(g, 2),
        ];
        let [_, ky, kx] = g.kernel;
        let tap = [self.tap / (ky * kx), self.tap / kx % ky, self.tap % kx];
        let channels = g.in_channels;
        let mut sums = [0.0_f64; CHANNELS];
        // A row's sum in f32, the rows' in f64.
        for line in 0..g.images * g.output[0] * g.output[1] {
            let (plane, y) = (line / g.output[1], line % g.output[1]);
            let (image, z) = (plane / g.output[0], plane % g.output[0]);
            let (Some(z), Some(y)) = (axes[0].look(z, tap[0]), axes[1].look(y, tap[1])) else {
                continue;
            };
            let mut row = [0.0_f32; CHANNELS];
            for x in 0..g.output[2] {
                if let Some(seen) = axes[2].look(x, tap[2]) {
                    let pixel = ((image * g.input[0] + z) * g.input[1] + y) * g.input[2] + seen;
                    let a = &self.input[pixel * channels + self.first..][..self.count];
                    let b = &self.grad[(line * g.output[2] + x) * channels + self.first..]
                        [..self.count];
                    add_product(s, &mut row[..self.count], a, b);
                }
            }
            (sums.iter_mut().zip(row)).for_each(|(sum, row)| *sum += f64::from(row));
        }
        for (channel, sum) in sums.iter().enumerate().take(self.count) {
            // SAFETY: within the weights; this tap of this channel is one thread's.
            unsafe { *self.out.at((self.first + channel) * self.taps + self.tap) = *sum as f32 };
        }
    }
}
