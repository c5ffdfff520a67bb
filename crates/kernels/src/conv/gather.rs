//! Convolution as a matrix product whose left matrix is gathered from the image, a block at a time (implicit GEMM).
//!
//! ```text
//!                 depth: taps x channels
//!   positions   [ the pixels that each     ]   x   [ weights: panels of columns ]  =  pixels of the output
//!   of a block  [ position's taps look at  ]
//! ```
//!
//! Forward, the positions are output pixels. Of the input gradient, they are the input pixels of one remainder modulo the
//! stride: those see the same taps, and each output position they look at is a whole number of strides away.

use pulp::{Simd, WithSimd};

use super::Convolution;
use super::axis::Axis;
use crate::crew;
use crate::isa::{Blocking, Isa};
use crate::share::Shared;
use crate::square::{WIDEST, turned};
use crate::tile::{Left, Right, Start, load, store, tile};

/// Register tiles' rows in a block.
const TILES: usize = 8;
/// Depths of a block: its weights stay in the first-level cache, a block's rows in the second.
const DEPTHS: usize = 512;

/// A product to be gathered.
#[derive(Clone, Copy, Debug)]
struct Gather {
    axes: [Axis; 3],
    images: usize,
    groups: usize,
    /// Channels of a group in the source and in the target.
    from: usize,
    to: usize,
    blocking: Blocking,
    /// Channels of a tap, padding included; or of all taps when several share a vector.
    depth: usize,
    is_dense: bool,
    panels: usize,
}

impl Gather {
    fn new(g: &Convolution, axes: [Axis; 3], is_forward: bool, blocking: Blocking) -> Self {
        let (of_input, of_output) = (g.in_channels / g.groups, g.out_channels / g.groups);
        let (from, to) = if is_forward {
            (of_input, of_output)
        } else {
            (of_output, of_input)
        };
        let taps: usize = axes.iter().map(|axis| axis.taps).product();
        // Few channels: padding each tap to a vector would multiply the work.
        let is_dense = from < blocking.lanes;
        let depth = if is_dense {
            (taps * from).next_multiple_of(blocking.lanes)
        } else {
            taps * from.next_multiple_of(blocking.lanes)
        };
        Gather {
            axes,
            images: g.images,
            groups: g.groups,
            from,
            to,
            blocking,
            depth,
            is_dense,
            panels: to.div_ceil(blocking.columns()),
        }
    }

    fn positions(&self) -> usize {
        self.images
            * self
                .axes
                .iter()
                .map(|axis| axis.positions)
                .product::<usize>()
    }

    fn taps(&self) -> usize {
        self.axes.iter().map(|axis| axis.taps).product()
    }

    /// Which of the taps that count a tap of the kernel is.
    #[inline(always)]
    fn slot(&self, g: &Convolution, number: usize) -> Option<usize> {
        let [z, y, x] = self.axes;
        let along = |axis: Axis, tap: usize| {
            let steps = tap.checked_sub(axis.first_tap)?;
            let slot = steps / axis.tap_step;
            (steps % axis.tap_step == 0 && slot < axis.taps).then_some(slot)
        };
        let (line, at_x) = (number / g.kernel[2], number % g.kernel[2]);
        let at_z = along(z, line / g.kernel[1])?;
        Some((at_z * y.taps + along(y, line % g.kernel[1])?) * x.taps + along(x, at_x)?)
    }

    /// Depths of a tap.
    fn of_tap(&self) -> usize {
        if self.is_dense {
            self.from
        } else {
            self.from.next_multiple_of(self.blocking.lanes)
        }
    }

    fn block(&self) -> usize {
        TILES * self.blocking.rows
    }

    fn depths(&self) -> usize {
        if self.is_dense {
            self.depth
        } else {
            DEPTHS.min(self.depth)
        }
    }

    fn weights(&self) -> usize {
        self.groups * self.panels * self.depth * self.blocking.columns()
    }

    /// A block's rows, what its last columns are computed in, a register tile's sums, and a dense row.
    fn of_thread(&self) -> usize {
        let columns = self.blocking.columns();
        self.block() * (self.depths() + columns) + self.blocking.rows * columns + self.depth
    }

    fn scratch(&self, threads: usize) -> usize {
        self.weights() + threads * self.of_thread()
    }

    /// Image and position along each axis.
    #[inline(always)]
    fn place(&self, position: usize) -> (usize, [usize; 3]) {
        let [z, y, x] = [
            self.axes[0].positions,
            self.axes[1].positions,
            self.axes[2].positions,
        ];
        let (line, at_x) = (position / x, position % x);
        let (plane, at_y) = (line / y, line % y);
        (plane / z, [plane % z, at_y, at_x])
    }
}

/// Remainders of the input gradient, as many as the stride has.
fn remainders(g: &Convolution) -> impl Iterator<Item = [usize; 3]> + use<> {
    let [z, y, x] = g.stride;
    (0..z * y * x).map(move |at| [at / (y * x), at / x % y, at % x])
}

/// Elements of scratch memory of the forward pass.
pub(super) fn forward_scratch(g: &Convolution, threads: usize, isa: Isa) -> usize {
    Gather::new(
        g,
        std::array::from_fn(|axis| Axis::forward(g, axis)),
        true,
        isa.blocking(),
    )
    .scratch(threads)
}

/// Elements of scratch memory of the input gradient.
pub(super) fn input_grad_scratch(g: &Convolution, threads: usize, isa: Isa) -> usize {
    remainders(g)
        .map(|remainder| of_remainder(g, remainder, isa).scratch(threads))
        .max()
        .unwrap_or(0)
}

fn of_remainder(g: &Convolution, remainder: [usize; 3], isa: Isa) -> Gather {
    let axes = std::array::from_fn(|axis| Axis::input_grad(g, axis, remainder[axis]));
    Gather::new(g, axes, false, isa.blocking())
}

/// Forward: `input [N, ..., C]`, `weight [O, C / groups, ...]`, `bias [O]`, `out [N, ..., O]`.
pub(super) fn forward(
    g: &Convolution,
    input: &[f32],
    weight: &[f32],
    bias: Option<&[f32]>,
    out: &mut [f32],
    scratch: &mut [f32],
    isa: Isa,
) {
    let axes = std::array::from_fn(|axis| Axis::forward(g, axis));
    let gather = Gather::new(g, axes, true, isa.blocking());
    run(g, &gather, true, input, weight, bias, out, scratch, isa);
}

/// Input gradient: `grad [N, ..., O]`, `weight [O, C / groups, ...]`, `out [N, ..., C]`.
pub(super) fn input_grad(
    g: &Convolution,
    grad: &[f32],
    weight: &[f32],
    out: &mut [f32],
    scratch: &mut [f32],
    isa: Isa,
) {
    for remainder in remainders(g) {
        let gather = of_remainder(g, remainder, isa);
        run(g, &gather, false, grad, weight, None, out, scratch, isa);
    }
}

#[expect(
    clippy::too_many_arguments,
    reason = "operands, results, scratch memory and how"
)]
fn run(
    g: &Convolution,
    gather: &Gather,
    is_forward: bool,
    source: &[f32],
    weight: &[f32],
    bias: Option<&[f32]>,
    out: &mut [f32],
    scratch: &mut [f32],
    isa: Isa,
) {
    let (weights, rest) = scratch.split_at_mut(gather.weights());
    let weights = Shared::new(weights);
    let positions = gather.positions();
    let blocks = positions.div_ceil(gather.block());
    let threads = rest.len() / gather.of_thread();
    // Where there are few positions, threads share the columns of a block.
    let splits = if blocks >= 4 * threads {
        1
    } else {
        gather.panels.min(4)
    };
    let out = Shared::new(out);
    let phases = [
        gather.groups * gather.panels,
        gather.groups * blocks * splits,
    ];
    crew::work(rest, gather.of_thread(), &phases, |phase, task, scratch| {
        if phase == 0 {
            isa.run(Pack {
                g,
                gather,
                is_forward,
                weight,
                out: weights,
                group: task / gather.panels,
                panel: task % gather.panels,
            });
            return;
        }
        let (split, task) = (task % splits, task / splits);
        let (group, block) = (task % gather.groups, task / gather.groups);
        let first = block * gather.block();
        isa.run(Block {
            gather,
            source,
            // SAFETY: nobody writes them any more.
            weights: unsafe { weights.all() },
            bias,
            out,
            scratch,
            group,
            positions: (first, (first + gather.block()).min(positions)),
            panels: (
                gather.panels * split / splits,
                gather.panels * (split + 1) / splits,
            ),
        });
    });
}

/// A panel of weights `[depth][column]`, zeros where channels end.
struct Pack<'a> {
    g: &'a Convolution,
    gather: &'a Gather,
    is_forward: bool,
    weight: &'a [f32],
    out: Shared<'a>,
    group: usize,
    panel: usize,
}

impl WithSimd for Pack<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        let (g, w) = (self.g, self.gather);
        let lanes = S::F32_LANES;
        let columns = w.blocking.columns();
        let size = w.depth * columns;
        // A remainder that no tap looks at.
        if size == 0 {
            return;
        }
        // SAFETY: each panel is one thread's.
        let out = unsafe {
            let at = (self.group * w.panels + self.panel) * size;
            self.out.part(at, size)
        };
        let (first, of_tap) = (self.panel * columns, w.of_tap());
        let wide = columns.min(w.to - first);
        if wide < columns || w.taps() * w.from < w.depth {
            out.fill(0.0);
        }
        let taps: usize = g.kernel.iter().product();
        let (of_input, of_output) = (g.in_channels / g.groups, g.out_channels / g.groups);
        // Lines of neighbouring elements, one a column: forward a line is an output's inputs and taps; of the input gradient,
        // one output at a time, an input's taps.
        let (lines, length, line_step) = if self.is_forward {
            (1, of_input * taps, of_input * taps)
        } else {
            (w.from, taps, taps)
        };
        for line in 0..lines {
            let (output, input) = if self.is_forward {
                (first, 0)
            } else {
                (line, first)
            };
            let start = ((self.group * of_output + output) * of_input + input) * taps;
            if taps == 1 && !self.is_forward {
                let from = &self.weight[start..start + wide];
                out[line * columns..][..wide].copy_from_slice(from);
                continue;
            }
            for element in (0..length).step_by(lanes) {
                let count = lanes.min(length - element);
                for vector in (0..wide).step_by(lanes) {
                    let mut square = [s.splat_f32s(0.0); WIDEST];
                    let high = lanes.min(wide - vector);
                    for (row, value) in square.iter_mut().enumerate().take(high) {
                        let at = start + (vector + row) * line_step + element;
                        // What lies beyond the line's end is not used.
                        *value = if at + lanes <= self.weight.len() {
                            // SAFETY: a vector's worth.
                            unsafe { load(s, self.weight.as_ptr().add(at)) }
                        } else {
                            s.partial_load_f32s(&self.weight[at..at + count])
                        };
                    }
                    let turned = turned(s, square);
                    for (offset, value) in turned.into_iter().enumerate().take(count) {
                        let (channel, number) =
                            ((element + offset) / taps, (element + offset) % taps);
                        let channel = if self.is_forward { channel } else { line };
                        if let Some(tap) = w.slot(g, number) {
                            let to =
                                &mut out[(tap * of_tap + channel) * columns + vector..][..lanes];
                            // SAFETY: a vector's worth.
                            unsafe { store(s, to.as_mut_ptr(), value) };
                        }
                    }
                }
            }
        }
    }
}

/// A block of positions times some panels of columns.
struct Block<'a> {
    gather: &'a Gather,
    source: &'a [f32],
    weights: &'a [f32],
    bias: Option<&'a [f32]>,
    out: Shared<'a>,
    scratch: &'a mut [f32],
    group: usize,
    positions: (usize, usize),
    panels: (usize, usize),
}

impl WithSimd for Block<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        let w = self.gather;
        let Blocking { lanes, rows, .. } = crate::isa::blocking::<S>();
        let columns = w.blocking.columns();
        let count = self.positions.1 - self.positions.0;
        let (packed, rest) = self.scratch.split_at_mut(w.block() * w.depths());
        let (edge, rest) = rest.split_at_mut(w.block() * columns);
        let (of_tile, dense) = rest.split_at_mut(rows * columns);
        let channels = w.groups * w.to;
        // Where each position's first channel of the group goes.
        let mut targets = [0_usize; TILES * 14];
        for (index, target) in targets.iter_mut().enumerate().take(count) {
            let (image, at) = w.place(self.positions.0 + index);
            let mut pixel = image;
            for (axis, at) in w.axes.iter().zip(at) {
                pixel = pixel * axis.target + axis.base + at * axis.base_step;
            }
            *target = pixel * channels + self.group * w.to;
        }
        let mut first_bias = [0.0_f32; 64];
        let mut depth = 0;
        loop {
            let depths = w.depths().min(w.depth - depth);
            if w.is_dense {
                dense.fill(0.0);
                for index in 0..count {
                    let position = self.positions.0 + index;
                    if !dense_row_inside(s, w, self.source, position, dense) {
                        dense_row(w, self.source, self.group, position, dense);
                    }
                    let to = index / rows * rows * depths + index % rows * lanes;
                    for chunk in 0..depths / lanes {
                        // SAFETY: a dense row has whole vectors; a block has whole tiles.
                        unsafe {
                            let vector = load(s, dense.as_ptr().add(chunk * lanes));
                            store(
                                s,
                                packed.as_mut_ptr().add(to + chunk * rows * lanes),
                                vector,
                            );
                        }
                    }
                }
            } else {
                for index in 0..count {
                    let to = index / rows * rows * depths + index % rows * lanes;
                    row::<S>(
                        s,
                        w,
                        self.source,
                        self.group,
                        self.positions.0 + index,
                        (depth, depths),
                        |chunk| to + chunk * rows * lanes,
                        packed,
                    );
                }
            }
            let is_last = depth + depths >= w.depth;
            for panel in self.panels.0..self.panels.1 {
                let first = panel * columns;
                let width = columns.min(w.to - first);
                let start = match (depth, self.bias) {
                    (0, None) => Start::Zero,
                    (0, Some(bias)) => {
                        let bias = &bias[self.group * w.to + first..][..width];
                        first_bias[..width].copy_from_slice(bias);
                        Start::Row(first_bias.as_ptr())
                    }
                    _ => Start::Zero,
                };
                let weights = ((self.group * w.panels + panel) * w.depth + depth) * columns;
                for from in (0..count).step_by(rows) {
                    let rows_here = rows.min(count - from);
                    // SAFETY: a block has whole tiles, the weights whole panels; a position's pixel is one thread's.
                    unsafe {
                        let left = Left {
                            start: packed.as_ptr().add(from * depths),
                            row_step: lanes,
                            depth_step: 1,
                            chunk: lanes,
                            chunk_step: rows * lanes,
                            chunks: depths / lanes,
                        };
                        let right =
                            Right::packed(self.weights.as_ptr().add(weights), columns, lanes);
                        let (out, targets) = (self.out, &targets[from..]);
                        let edge = edge.as_mut_ptr().add(from * columns);
                        if depth > 0 {
                            // Sums of their own, so that no chain of additions is long.
                            let here = of_tile.as_mut_ptr();
                            tile(
                                s,
                                rows_here,
                                left,
                                right,
                                #[inline(always)]
                                |row| here.add(row * columns),
                                start,
                            );
                            for (row, target) in targets.iter().enumerate().take(rows_here) {
                                let to = if width == columns {
                                    out.at(target + first)
                                } else {
                                    edge.add(row * columns)
                                };
                                for vector in (0..columns).step_by(lanes) {
                                    let more = load(s, here.add(row * columns + vector));
                                    let sum = s.add_f32s(load(s, to.add(vector)), more);
                                    store(s, to.add(vector), sum);
                                }
                            }
                        } else if width == columns {
                            tile(
                                s,
                                rows_here,
                                left,
                                right,
                                #[inline(always)]
                                |row| out.at(*targets.get_unchecked(row) + first),
                                start,
                            );
                        } else {
                            tile(
                                s,
                                rows_here,
                                left,
                                right,
                                #[inline(always)]
                                |row| edge.add(row * columns),
                                start,
                            );
                        }
                    }
                }
                if width < columns && is_last {
                    for (row, target) in edge.chunks_exact(columns).zip(&targets[..count]) {
                        // SAFETY: the position's pixel is one thread's.
                        unsafe { self.out.part(target + first, width) }
                            .copy_from_slice(&row[..width]);
                    }
                }
            }
            depth += depths;
            if is_last {
                break;
            }
        }
    }
}

/// Copies elements side by side.
///
/// # Safety
/// They can be read and written.
#[inline(always)]
pub(super) unsafe fn copy<S: Simd>(s: S, from: *const f32, to: *mut f32, count: usize) {
    let lanes = S::F32_LANES;
    // SAFETY: the caller's.
    unsafe {
        if count < lanes {
            for index in 0..count {
                *to.add(index) = *from.add(index);
            }
            return;
        }
        for index in (0..count - lanes).step_by(lanes) {
            store(s, to.add(index), load(s, from.add(index)));
        }
        let last = count - lanes;
        store(s, to.add(last), load(s, from.add(last)));
    }
}

/// What the taps of a position see, side by side, where all see pixels and neighbouring taps neighbouring ones. False where
/// that is not so.
#[inline(always)]
fn dense_row_inside<S: Simd>(
    s: S,
    w: &Gather,
    source: &[f32],
    position: usize,
    out: &mut [f32],
) -> bool {
    let [z, y, x] = w.axes;
    let (image, at) = w.place(position);
    let first = (z.inside(at[0]), y.inside(at[1]), x.inside(at[2]));
    let (Some(first_z), Some(first_y), Some(first_x)) = first else {
        return false;
    };
    if x.step != 1 || w.groups != 1 {
        return false;
    }
    let run = x.taps * w.from;
    let mut done = 0;
    for tap_z in 0..z.taps {
        for tap_y in 0..y.taps {
            let at_z = first_z.wrapping_add_signed(tap_z as isize * z.step);
            let at_y = first_y.wrapping_add_signed(tap_y as isize * y.step);
            let pixel = ((image * z.source + at_z) * y.source + at_y) * x.source + first_x;
            debug_assert!(pixel * w.from + run <= source.len() && done + run <= out.len());
            // SAFETY: all taps look at pixels; there is room for all of them.
            unsafe {
                copy(
                    s,
                    source.as_ptr().add(pixel * w.from),
                    out.as_mut_ptr().add(done),
                    run,
                );
            }
            done += run;
        }
    }
    true
}

/// What the taps of a position see, side by side.
fn dense_row(w: &Gather, source: &[f32], group: usize, position: usize, out: &mut [f32]) {
    let [z, y, x] = w.axes;
    let (image, at) = w.place(position);
    let channels = w.groups * w.from;
    out.fill(0.0);
    let mut lines = out.chunks_exact_mut((x.taps * w.from).max(1));
    for tap_z in 0..z.taps {
        for tap_y in 0..y.taps {
            let Some(line) = lines.next() else { return };
            let (Some(at_z), Some(at_y)) = (z.look(at[0], tap_z), y.look(at[1], tap_y)) else {
                continue;
            };
            let first = ((image * z.source + at_z) * y.source + at_y) * x.source;
            if x.step == 1 && w.groups == 1 {
                // Neighbouring taps see neighbouring pixels.
                let start = (at[2] * x.walk) as isize + x.first;
                let (from, to) = (
                    start.max(0),
                    (start + x.taps as isize).min(x.source as isize),
                );
                if from < to {
                    let skip = (from - start) as usize * w.from;
                    let run =
                        &source[(first + from as usize) * w.from..(first + to as usize) * w.from];
                    line[skip..skip + run.len()].copy_from_slice(run);
                }
                continue;
            }
            for (tap, line) in line.chunks_exact_mut(w.from).enumerate() {
                if let Some(at_x) = x.look(at[2], tap) {
                    let pixel = (first + at_x) * channels + group * w.from;
                    line.copy_from_slice(&source[pixel..][..w.from]);
                }
            }
        }
    }
}

/// A range of depths of what the taps of a position see, a vector at a time; `to(n)` is where the `n`th goes.
#[inline(always)]
#[expect(
    clippy::too_many_arguments,
    reason = "what, which part of it, and where to"
)]
fn row<S: Simd>(
    s: S,
    w: &Gather,
    source: &[f32],
    group: usize,
    position: usize,
    (depth, depths): (usize, usize),
    to: impl Fn(usize) -> usize,
    out: &mut [f32],
) {
    let lanes = S::F32_LANES;
    let of_tap = w.of_tap();
    let [z, y, x] = w.axes;
    let (image, at) = w.place(position);
    let channels = w.groups * w.from;
    let mut done = 0;
    while done < depths {
        let (tap, channel) = ((depth + done) / of_tap, (depth + done) % of_tap);
        let run = (of_tap - channel).min(depths - done);
        let look = |axis: Axis, at: usize, tap: usize| axis.look(at, tap);
        let pixel = match (
            look(z, at[0], tap / (y.taps * x.taps)),
            look(y, at[1], tap / x.taps % y.taps),
            look(x, at[2], tap % x.taps),
        ) {
            (Some(z_at), Some(y_at), Some(x_at)) => Some(
                (((image * z.source + z_at) * y.source + y_at) * x.source + x_at) * channels
                    + group * w.from,
            ),
            _ => None,
        };
        for chunk in 0..run / lanes {
            let channel = channel + chunk * lanes;
            let vector = match pixel {
                None => s.splat_f32s(0.0),
                Some(pixel) if channel + lanes <= w.from => {
                    debug_assert!(pixel + channel + lanes <= source.len());
                    // SAFETY: the pixel is inside the image.
                    unsafe { load(s, source.as_ptr().add(pixel + channel)) }
                }
                Some(pixel) => s.partial_load_f32s(&source[pixel + channel..pixel + w.from]),
            };
            let at = to(done / lanes + chunk);
            debug_assert!(at + lanes <= out.len());
            // SAFETY: a block has whole tiles.
            unsafe { store(s, out.as_mut_ptr().add(at), vector) };
        }
        done += run;
    }
}
