//! The weight gradient as a matrix product over positions.
//!
//! ```text
//!   rows: taps x channels of the image   depth: output positions    columns: channels of the gradient
//!   sums [row][column] += (what each position's taps see)^T x (the gradient there), a block of positions at a time
//! ```
//!
//! A block's sums start from zero and are then added up, so that no chain of additions is long. Threads share rows and
//! columns, never positions.

use std::sync::atomic::{AtomicUsize, Ordering};

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::Convolution;
use super::gather::Axis;
use crate::isa::{Blocking, Isa};
use crate::share::Shared;
use crate::tile::{Left, Right, Start, load, store, tile};

/// Positions of a block.
const POSITIONS: usize = 256;
/// Rows that a thread works on at a time, about.
const ROWS: usize = 192;
/// Panels of columns that a thread works on at a time.
const PANELS: usize = 4;

#[derive(Clone, Copy, Debug)]
struct Layout {
    axes: [Axis; 3],
    groups: usize,
    /// Channels of a group.
    inputs: usize,
    outputs: usize,
    taps: usize,
    blocking: Blocking,
    /// Rows of a group: taps times channels.
    rows: usize,
    panels: usize,
    positions: usize,
    /// An image is its own matrix: nothing to gather.
    is_pointwise: bool,
}

impl Layout {
    fn new(g: &Convolution, blocking: Blocking) -> Self {
        let axes = std::array::from_fn(|axis| Axis::forward(g, axis));
        let (inputs, outputs) = (g.in_channels / g.groups, g.out_channels / g.groups);
        let taps: usize = g.kernel.iter().product();
        Layout {
            axes,
            groups: g.groups,
            inputs,
            outputs,
            taps,
            blocking,
            rows: taps * inputs,
            panels: outputs.div_ceil(blocking.columns()),
            positions: g.images * g.output.iter().product::<usize>(),
            is_pointwise: g.kernel == [1; 3] && g.stride == [1; 3] && g.padding == [0; 3],
        }
    }

    /// Rows of a part, and parts of a group.
    fn part(&self) -> (usize, usize) {
        // Enough parts for some threads even where there are few rows.
        let parts = self
            .rows
            .div_ceil(ROWS)
            .max(4.min(self.rows.div_ceil(self.blocking.rows)));
        (self.rows.div_ceil(parts), parts)
    }

    fn block(&self) -> usize {
        POSITIONS.min(self.positions)
    }

    fn width(&self) -> usize {
        PANELS.min(self.panels) * self.blocking.columns()
    }

    /// A block's rows and columns at the edge, and a part's sums.
    fn of_thread(&self) -> usize {
        let (rows, _) = self.part();
        self.block() * (rows + self.blocking.columns())
            + rows * (self.width() + self.blocking.columns())
    }
}

/// Elements of scratch memory.
pub(super) fn scratch(g: &Convolution, threads: usize, isa: Isa) -> usize {
    threads * Layout::new(g, isa.blocking()).of_thread()
}

/// Weight gradient `[O, C / groups, ...]` from `input [N, ..., C]` and `grad [N, ..., O]`.
pub(super) fn weight_grad(
    g: &Convolution,
    input: &[f32],
    grad: &[f32],
    out: &mut [f32],
    scratch: &mut [f32],
    isa: Isa,
) {
    let layout = &Layout::new(g, isa.blocking());
    let (rows, parts) = layout.part();
    let across = layout.panels.div_ceil(PANELS);
    let tasks = layout.groups * parts * across;
    let next = AtomicUsize::new(0);
    let out = Shared::new(out);
    scratch
        .par_chunks_exact_mut(layout.of_thread())
        .for_each(|scratch| {
            loop {
                let task = next.fetch_add(1, Ordering::Relaxed);
                if task >= tasks {
                    break;
                }
                let (group, task) = (task / (parts * across), task % (parts * across));
                let (part, across) = (task / across, task % across);
                let first = part * rows;
                if first >= layout.rows {
                    continue;
                }
                isa.run(Part {
                    l: layout,
                    input,
                    grad,
                    out,
                    scratch,
                    group,
                    rows: (first, (first + rows).min(layout.rows)),
                    panels: (across * PANELS, ((across + 1) * PANELS).min(layout.panels)),
                });
            }
        });
}

/// Some rows and columns of a group's weights.
struct Part<'a> {
    l: &'a Layout,
    input: &'a [f32],
    grad: &'a [f32],
    out: Shared<'a>,
    scratch: &'a mut [f32],
    group: usize,
    rows: (usize, usize),
    panels: (usize, usize),
}

impl WithSimd for Part<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        let l = self.l;
        let Blocking {
            lanes,
            rows: tile_rows,
            ..
        } = crate::isa::blocking::<S>();
        let columns = l.blocking.columns();
        let rows = self.rows.1 - self.rows.0;
        let width = (self.panels.1 - self.panels.0) * columns;
        let (packed, rest) = self.scratch.split_at_mut(l.block() * rows);
        let (edge, rest) = rest.split_at_mut(l.block() * columns);
        let (sums, part_sums) = rest.split_at_mut(rows * width);
        let out_channels = l.groups * l.outputs;
        let in_channels = l.groups * l.inputs;
        let tiles = rows.div_ceil(tile_rows);
        for first in (0..l.positions).step_by(l.block()) {
            let count = l.block().min(l.positions - first);
            if !l.is_pointwise {
                for index in 0..count {
                    gather(
                        l,
                        self.input,
                        self.group,
                        first + index,
                        self.rows.0,
                        &mut packed[index * rows..][..rows],
                    );
                }
            }
            for panel in self.panels.0..self.panels.1 {
                let column = panel * columns;
                let wide = columns.min(l.outputs - column);
                let at = first * out_channels + self.group * l.outputs + column;
                let right = if wide == columns {
                    Right {
                        // SAFETY: the positions are inside the gradient.
                        start: unsafe { self.grad.as_ptr().add(at) },
                        depth_step: out_channels,
                        chunk_step: 0,
                    }
                } else {
                    for (index, line) in edge.chunks_exact_mut(columns).enumerate().take(count) {
                        line[..wide]
                            .copy_from_slice(&self.grad[at + index * out_channels..][..wide]);
                        line[wide..].fill(0.0);
                    }
                    Right {
                        start: edge.as_ptr(),
                        depth_step: columns,
                        chunk_step: 0,
                    }
                };
                for index in 0..tiles {
                    let (from, to) = (index * rows / tiles, (index + 1) * rows / tiles);
                    let (start, depth_step) = if l.is_pointwise {
                        let at = first * in_channels + self.group * l.inputs + self.rows.0 + from;
                        (&self.input[at..], in_channels)
                    } else {
                        (&packed[from..], rows)
                    };
                    let left = Left {
                        start: start.as_ptr(),
                        row_step: 1,
                        depth_step,
                        chunk: count,
                        chunk_step: 0,
                        chunks: 1,
                    };
                    let offset = column - self.panels.0 * columns;
                    // SAFETY: the rows are within the part, the positions within image and gradient.
                    unsafe {
                        if first == 0 {
                            let to_sums = sums.as_mut_ptr().add(from * width + offset);
                            tile(
                                s,
                                to - from,
                                left,
                                right,
                                #[inline(always)]
                                |row| to_sums.add(row * width),
                                Start::Zero,
                            );
                        } else {
                            let here = part_sums.as_mut_ptr();
                            tile(
                                s,
                                to - from,
                                left,
                                right,
                                #[inline(always)]
                                |row| here.add(row * columns),
                                Start::Zero,
                            );
                            for row in 0..to - from {
                                for vector in 0..l.blocking.vectors {
                                    let sum = sums
                                        .as_mut_ptr()
                                        .add((from + row) * width + offset + vector * lanes);
                                    let more = load(s, here.add(row * columns + vector * lanes));
                                    store(s, sum, s.add_f32s(load(s, sum), more));
                                }
                            }
                        }
                    }
                }
            }
        }
        // A row is a tap and a channel; the weights lie by output, channel, tap.
        let outputs = l.outputs.min(self.panels.1 * columns) - self.panels.0 * columns;
        for column in 0..outputs {
            let output = self.group * l.outputs + self.panels.0 * columns + column;
            for row in 0..rows {
                let (tap, channel) = (
                    (self.rows.0 + row) / l.inputs,
                    (self.rows.0 + row) % l.inputs,
                );
                // SAFETY: within the weights; this row and column are one thread's.
                unsafe {
                    *self.out.at((output * l.inputs + channel) * l.taps + tap) =
                        sums[row * width + column]
                };
            }
        }
    }
}

/// What the taps of a position see, from a row on.
#[inline(always)]
fn gather(l: &Layout, input: &[f32], group: usize, position: usize, first: usize, out: &mut [f32]) {
    let [z, y, x] = l.axes;
    let (line, at_x) = (position / x.positions, position % x.positions);
    let (plane, at_y) = (line / y.positions, line % y.positions);
    let (image, at_z) = (plane / z.positions, plane % z.positions);
    let channels = l.groups * l.inputs;
    // Neighbouring taps see neighbouring pixels: one run of memory.
    let taps = if x.step == 1 && l.groups == 1 {
        x.taps
    } else {
        1
    };
    let of_run = taps * l.inputs;
    let mut done = 0;
    while done < out.len() {
        let (run, within) = ((first + done) / of_run, (first + done) % of_run);
        let length = (of_run - within).min(out.len() - done);
        let to = &mut out[done..done + length];
        let tap = run * taps;
        done += length;
        let seen = (
            z.look(at_z, tap / (y.taps * x.taps)),
            y.look(at_y, tap / x.taps % y.taps),
        );
        let (Some(z_at), Some(y_at)) = seen else {
            to.fill(0.0);
            continue;
        };
        let line = &input[((image * z.source + z_at) * y.source + y_at) * x.source * channels..]
            [..x.source * channels];
        // The run's part inside the line, in elements of the run.
        let start = (at_x * x.walk + tap % x.taps * x.step.unsigned_abs()) as isize + x.first;
        let inside = |at: isize| {
            (at.clamp(0, taps as isize) as usize * l.inputs).clamp(within, within + length) - within
        };
        let (from, end) = (inside(-start), inside(x.source as isize - start));
        to[..from].fill(0.0);
        to[end.max(from)..].fill(0.0);
        if from < end {
            let element = start * channels as isize + (group * l.inputs + within + from) as isize;
            to[from..end].copy_from_slice(&line[element as usize..][..end - from]);
        }
    }
}
