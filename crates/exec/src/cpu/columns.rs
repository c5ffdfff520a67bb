//! Patches of images as columns of a matrix (im2col), a tile of output positions at a time.
//!
//! ```text
//!                    positions of the tile, over all images: image 0 | image 1 | ...
//!   channel 0, tap 0 [ x x x x x x 0 | ...                       ]   one row of memory each; a row is filled
//!   channel 0, tap 1 [ x x x x x 0 0 | ...                       ]   run by run, a run being what one output
//!   ...                                                              row has in the tile
//! ```

use rayon::prelude::*;

/// A convolution's sizes, with three spatial axes; missing ones are 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    pub(super) images: usize,
    pub(super) in_channels: usize,
    pub(super) out_channels: usize,
    pub(super) groups: usize,
    pub(super) input: [usize; 3],
    pub(super) output: [usize; 3],
    pub(super) kernel: [usize; 3],
    pub(super) stride: [usize; 3],
    pub(super) padding: [usize; 3],
    pub(super) dilation: [usize; 3],
}

/// The last elements of a list, the missing first ones filled in.
fn axes(list: &[usize], missing: usize) -> [usize; 3] {
    let mut axes = [missing; 3];
    for (axis, value) in axes.iter_mut().rev().zip(list.iter().rev()) {
        *axis = *value;
    }
    axes
}

impl Geometry {
    /// From the shapes `[N, C, ...]`, `[O, C / groups, ...]` and `[N, O, ...]`, which inference has checked.
    pub(super) fn new(
        input: &[usize],
        weight: &[usize],
        output: &[usize],
        (stride, padding, dilation): (&[usize], &[usize], &[usize]),
        groups: usize,
    ) -> Option<Self> {
        let ([images, in_channels, input @ ..], [out_channels, _, kernel @ ..]) = (input, weight)
        else {
            return None;
        };
        Some(Geometry {
            images: *images,
            in_channels: *in_channels,
            out_channels: *out_channels,
            groups,
            input: axes(input, 1),
            output: axes(output.get(2..)?, 1),
            kernel: axes(kernel, 1),
            stride: axes(stride, 1),
            padding: axes(padding, 0),
            dilation: axes(dilation, 1),
        })
    }

    /// The convolution over this one's output gradient that gives its input gradient: the kernel turned round, all
    /// strides 1. `None` when this one skips inputs or is padded beyond its kernel.
    pub(super) fn transposed(&self) -> Option<Self> {
        let mut padding = [0; 3];
        for (axis, padding) in padding.iter_mut().enumerate() {
            let reach = (self.kernel[axis] - 1) * self.dilation[axis];
            *padding = reach.checked_sub(self.padding[axis])?;
        }
        (self.stride == [1; 3]).then_some(Geometry {
            in_channels: self.out_channels,
            out_channels: self.in_channels,
            input: self.output,
            output: self.input,
            padding,
            ..*self
        })
    }

    /// Whether each output position sees exactly its own input position.
    pub(super) fn is_pointwise(&self) -> bool {
        self.kernel == [1; 3] && self.stride == [1; 3] && self.padding == [0; 3]
    }

    /// Taps of the kernel.
    pub(super) fn taps(&self) -> usize {
        self.kernel.iter().product()
    }

    /// Rows of a group's column matrix: its input channels times taps.
    pub(super) fn rows(&self) -> usize {
        self.in_channels / self.groups * self.taps()
    }

    /// Elements of an input plane.
    pub(super) fn in_plane(&self) -> usize {
        self.input.iter().product()
    }

    /// Elements of an output plane.
    pub(super) fn out_plane(&self) -> usize {
        self.output.iter().product()
    }

    /// Output positions of all images.
    pub(super) fn positions(&self) -> usize {
        self.images * self.out_plane()
    }

    /// Calls `visit(image, z, y, x of the first, length)` for each run of positions in one output row.
    fn runs(&self, start: usize, end: usize, mut visit: impl FnMut(Run)) {
        let [_, height, width] = self.output;
        let mut position = start;
        while position < end {
            let (line, x) = (position / width, position % width);
            let (plane, y) = (line / height, line % height);
            let (image, z) = (plane / self.output[0], plane % self.output[0]);
            let length = (width - x).min(end - position);
            visit(Run {
                image,
                z,
                y,
                x,
                length,
            });
            position += length;
        }
    }

    /// The input line that a run meets at a tap; `None` in the padding.
    fn line(&self, run: Run, tap: [usize; 3]) -> Option<usize> {
        let at = |axis: usize, position: usize| {
            (position * self.stride[axis] + tap[axis] * self.dilation[axis])
                .checked_sub(self.padding[axis])
                .filter(|&index| index < self.input[axis])
        };
        Some(at(0, run.z)? * self.input[1] + at(1, run.y)?)
    }

    /// The part `from..to` of a run whose inputs at this tap lie inside the line, and the first one's input.
    fn inside(&self, run: Run, tap_x: usize) -> (usize, usize, usize) {
        let (stride, padding, size) = (self.stride[2], self.padding[2], self.input[2]);
        let shift = tap_x * self.dilation[2];
        // x * stride + shift - padding in 0..size
        let first = padding.saturating_sub(shift).div_ceil(stride);
        let last = (size + padding).saturating_sub(shift).div_ceil(stride);
        let from = first.clamp(run.x, run.x + run.length);
        let to = last.clamp(from, run.x + run.length);
        let input = (from * stride + shift).saturating_sub(padding);
        (from - run.x, to - run.x, input)
    }

    fn tap(&self, tap: usize) -> [usize; 3] {
        let [_, height, width] = self.kernel;
        [tap / (height * width), tap / width % height, tap % width]
    }
}

/// Positions that follow each other in one output row.
#[derive(Clone, Copy)]
struct Run {
    image: usize,
    z: usize,
    y: usize,
    x: usize,
    length: usize,
}

/// Fills `columns`, `[rows of the group, end - start]`, with the patches of positions `start..end`.
pub(super) fn gather(
    g: &Geometry,
    group: usize,
    input: &[f32],
    (start, end): (usize, usize),
    columns: &mut [f32],
) {
    let length = end - start;
    let (taps, plane) = (g.taps(), g.in_plane());
    let first_channel = group * (g.in_channels / g.groups);
    columns
        .par_chunks_mut(length)
        .enumerate()
        .with_min_len(4)
        .for_each(|(row, columns)| {
            let (channel, tap) = (first_channel + row / taps, g.tap(row % taps));
            let mut columns = columns;
            g.runs(start, end, |run| {
                let (out, rest) = std::mem::take(&mut columns).split_at_mut(run.length);
                columns = rest;
                let Some(line) = g.line(run, tap) else {
                    out.fill(0.0);
                    return;
                };
                let (from, to, at) = g.inside(run, tap[2]);
                out[..from].fill(0.0);
                out[to..].fill(0.0);
                if from == to {
                    return;
                }
                let base = (run.image * g.in_channels + channel) * plane + line * g.input[2] + at;
                let out = &mut out[from..to];
                if g.stride[2] == 1 {
                    out.copy_from_slice(&input[base..][..to - from]);
                } else {
                    let input = input[base..].iter().step_by(g.stride[2]);
                    out.iter_mut().zip(input).for_each(|(out, x)| *out = *x);
                }
            });
        });
}

/// The adjoint of [`gather`]: adds `columns` into the gradient of the input, plane by plane.
pub(super) fn scatter_add(
    g: &Geometry,
    group: usize,
    columns: &[f32],
    (start, end): (usize, usize),
    input_grad: &mut [f32],
) {
    let length = end - start;
    let (taps, plane) = (g.taps(), g.in_plane());
    let group_channels = g.in_channels / g.groups;
    let channels = group * group_channels..(group + 1) * group_channels;
    let images = start / g.out_plane()..end.div_ceil(g.out_plane());
    let first_plane = images.start * g.in_channels;
    input_grad[first_plane * plane..images.end * g.in_channels * plane]
        .par_chunks_mut(plane)
        .enumerate()
        .for_each(|(index, grad)| {
            let (image, channel) = (images.start + index / g.in_channels, index % g.in_channels);
            if !channels.contains(&channel) {
                return;
            }
            let begin = start.max(image * g.out_plane());
            let end = end.min((image + 1) * g.out_plane());
            for tap in 0..taps {
                let row = (channel - channels.start) * taps + tap;
                let mut columns = &columns[row * length + (begin - start)..][..end - begin];
                let tap = g.tap(tap);
                g.runs(begin, end, |run| {
                    let (values, rest) = columns.split_at(run.length);
                    columns = rest;
                    let Some(line) = g.line(run, tap) else { return };
                    let (from, to, at) = g.inside(run, tap[2]);
                    if from == to {
                        return;
                    }
                    let grad = &mut grad[line * g.input[2] + at..];
                    let values = &values[from..to];
                    if g.stride[2] == 1 {
                        grad.iter_mut().zip(values).for_each(|(g, v)| *g += v);
                    } else {
                        let grad = grad.iter_mut().step_by(g.stride[2]);
                        grad.zip(values).for_each(|(g, v)| *g += v);
                    }
                });
            }
        });
}

/// Collects rows of `[N, C, plane]` at positions `start..end` into `[channels, end - start]`.
pub(super) fn collect(
    planes: &[f32],
    all_channels: usize,
    plane: usize,
    channels: std::ops::Range<usize>,
    (start, end): (usize, usize),
    out: &mut [f32],
) {
    out.par_chunks_mut(end - start)
        .zip(channels)
        .with_min_len(4)
        .for_each(|(out, channel)| {
            let mut out = out;
            let mut position = start;
            while position < end {
                let (image, at) = (position / plane, position % plane);
                let length = (plane - at).min(end - position);
                let (part, rest) = std::mem::take(&mut out).split_at_mut(length);
                out = rest;
                let base = (image * all_channels + channel) * plane + at;
                part.copy_from_slice(&planes[base..][..length]);
                position += length;
            }
        });
}

/// Positions that a thread rearranges at a time.
const POSITIONS: usize = 64;

/// [`collect`] with positions outermost: `[end - start, channels]`.
pub(super) fn collect_transposed(
    planes: &[f32],
    all_channels: usize,
    plane: usize,
    channels: std::ops::Range<usize>,
    (start, _): (usize, usize),
    out: &mut [f32],
) {
    let width = channels.len();
    (out.par_chunks_mut(POSITIONS * width).enumerate()).for_each(|(chunk, out)| {
        for (column, channel) in channels.clone().enumerate() {
            let to = out[column..].iter_mut().step_by(width);
            for (position, to) in (start + chunk * POSITIONS..).zip(to) {
                let (image, at) = (position / plane, position % plane);
                *to = planes[(image * all_channels + channel) * plane + at];
            }
        }
    });
}

/// Channels that a thread spreads at a time: their elements lie side by side in the matrix.
const CHANNELS: usize = 16;

/// The inverse of [`collect_transposed`]: spreads `[end - start, channels]` over `[N, C, plane]`, adding a bias a channel.
pub(super) fn spread_transposed(
    matrix: &[f32],
    all_channels: usize,
    plane: usize,
    channels: std::ops::Range<usize>,
    (start, end): (usize, usize),
    bias: Option<&[f32]>,
    planes: &mut [f32],
) {
    let width = channels.len();
    for image in start / plane..end.div_ceil(plane) {
        let begin = start.max(image * plane);
        let end = end.min((image + 1) * plane);
        let (first, matrix) = (begin - image * plane, &matrix[(begin - start) * width..]);
        let from = (image * all_channels + channels.start) * plane;
        (planes[from..][..width * plane].par_chunks_mut(plane * CHANNELS))
            .enumerate()
            .for_each(|(chunk, planes)| {
                let columns = chunk * CHANNELS..(chunk * CHANNELS + planes.len() / plane);
                // A stretch of positions after the other, so that what a channel reads is still near for the next one.
                for stretch in (0..end - begin).step_by(POSITIONS) {
                    let stretch = stretch..(stretch + POSITIONS).min(end - begin);
                    for (column, plane) in columns.clone().zip(planes.chunks_exact_mut(plane)) {
                        let bias = bias.map_or(0.0, |bias| bias[channels.start + column]);
                        let out = &mut plane[first..][stretch.clone()];
                        let values = matrix[stretch.start * width + column..].iter();
                        let values = values.step_by(width);
                        out.iter_mut().zip(values).for_each(|(o, v)| *o = v + bias);
                    }
                }
            });
    }
}
