//! The weight gradient as a matrix product over positions.
//!
//! ```text
//!   rows: taps x channels of the image   depth: output positions    columns: channels of the gradient
//!   sums [row][column] += (what each position's taps see)^T x (the gradient there), a block of positions at a time
//! ```
//!
//! A block's sums start from zero and are then added up, so that no chain of additions is long. Threads take rows and columns;
//! where there are few of them, positions too are cut into segments, whose sums are added in order.

use pulp::{Simd, WithSimd};

use super::Convolution;
use super::axis::Axis;
use super::gather::copy;
use crate::crew;
use crate::isa::{Blocking, Isa};
use crate::reorder::turn_within;
use crate::share::Shared;
use crate::tile::{Left, Right, Start, load, store, tile};

/// Positions of a block: a panel of their gradient takes a third of the first-level cache.
const POSITIONS: usize = 128;
/// Rows that a thread works on at a time, about.
const ROWS: usize = 192;
/// Panels of columns that a thread works on at a time.
const PANELS: usize = 4;
/// Tasks that are aimed at, blocks of a segment at the least, and sums of all segments together at the most.
const TASKS: usize = 16;
const SEGMENT_BLOCKS: usize = 4;
const SEGMENT_SUMS: usize = 1 << 20;

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
    /// Rows of a part.
    part: usize,
    panels: usize,
    positions: usize,
    /// Positions of a segment: whole blocks.
    segment: usize,
    /// An image is its own matrix: nothing to gather.
    is_pointwise: bool,
}

impl Layout {
    fn new(g: &Convolution, blocking: Blocking) -> Self {
        let axes = std::array::from_fn(|axis| Axis::forward(g, axis));
        let (inputs, outputs) = (g.in_channels / g.groups, g.out_channels / g.groups);
        let taps: usize = g.kernel.iter().product();
        let rows = taps * inputs;
        let positions = g.images * g.output.iter().product::<usize>();
        let mut layout = Layout {
            axes,
            groups: g.groups,
            inputs,
            outputs,
            taps,
            blocking,
            rows,
            part: rows.div_ceil(rows.div_ceil(ROWS)),
            panels: outputs.div_ceil(blocking.columns()),
            positions,
            segment: positions,
            is_pointwise: g.kernel == [1; 3] && g.stride == [1; 3] && g.padding == [0; 3],
        };
        let blocks = positions.div_ceil(POSITIONS);
        let segments = (TASKS / layout.tasks())
            .min(blocks / SEGMENT_BLOCKS)
            .min(SEGMENT_SUMS / (layout.tasks() * layout.sums()))
            .max(1);
        layout.segment = blocks.div_ceil(segments) * POSITIONS;
        layout
    }

    fn parts(&self) -> usize {
        self.rows.div_ceil(self.part)
    }

    fn across(&self) -> usize {
        self.panels.div_ceil(PANELS)
    }

    fn segments(&self) -> usize {
        self.positions.div_ceil(self.segment)
    }

    /// Tasks of a segment.
    fn tasks(&self) -> usize {
        self.groups * self.parts() * self.across()
    }

    fn block(&self) -> usize {
        POSITIONS.min(self.positions)
    }

    fn width(&self) -> usize {
        PANELS.min(self.panels) * self.blocking.columns()
    }

    /// Sums of a task.
    fn sums(&self) -> usize {
        self.part * self.width()
    }

    /// Elements of the segments' sums; of a block's rows, a panel of its gradient, a task's sums and a register tile's.
    fn elements(&self) -> [usize; 2] {
        let kept = if self.segments() > 1 {
            self.segments() * self.tasks() * self.sums()
        } else {
            0
        };
        let columns = self.blocking.columns();
        let rows = if self.is_pointwise { 0 } else { self.part };
        let own = self.block() * (rows + columns)
            + self.sums()
            + self.blocking.rows * columns
            + self.part * columns;
        [kept, own]
    }
}

/// Elements of scratch memory.
pub(super) fn scratch(g: &Convolution, threads: usize, isa: Isa) -> usize {
    let [kept, own] = Layout::new(g, isa.blocking()).elements();
    kept + threads * own
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
    let [kept, own] = layout.elements();
    let (kept, rest) = scratch.split_at_mut(kept);
    let work = Work {
        l: layout,
        input,
        grad,
        kept: Shared::new(kept),
        out: Shared::new(out),
    };
    let tasks = layout.tasks();
    let finishing = if layout.segments() > 1 { tasks } else { 0 };
    let phases = [layout.segments() * tasks, finishing];
    crew::work(rest, own, &phases, |phase, index, own| {
        let part = work.part(index % tasks);
        if phase == 0 {
            isa.run(Sums {
                work,
                part,
                segment: index / tasks,
                own,
            });
        } else {
            isa.run(Finish { work, part, own });
        }
    });
}

/// What all threads see.
#[derive(Clone, Copy)]
struct Work<'a> {
    l: &'a Layout,
    input: &'a [f32],
    grad: &'a [f32],
    kept: Shared<'a>,
    out: Shared<'a>,
}

/// Some rows and columns of a group's weights.
#[derive(Clone, Copy)]
struct Part {
    task: usize,
    group: usize,
    rows: (usize, usize),
    panels: (usize, usize),
}

impl<'a> Work<'a> {
    fn part(&self, task: usize) -> Part {
        let l = self.l;
        let (rest, across) = (task / l.across(), task % l.across());
        let (group, part) = (rest / l.parts(), rest % l.parts());
        Part {
            task,
            group,
            rows: (part * l.part, ((part + 1) * l.part).min(l.rows)),
            panels: (across * PANELS, ((across + 1) * PANELS).min(l.panels)),
        }
    }

    /// A segment's sums of a part.
    ///
    /// # Safety
    /// Nobody else reads or writes them meanwhile.
    unsafe fn sums(&self, segment: usize, part: Part) -> &'a mut [f32] {
        let l = self.l;
        // SAFETY: the caller's.
        unsafe {
            let at = (segment * l.tasks() + part.task) * l.sums();
            self.kept.part(at, l.sums())
        }
    }

    /// Puts a part's sums where its weights are. A row is a tap and a channel; weights lie by output, channel, tap.
    #[inline(always)]
    fn finish<S: Simd>(&self, s: S, part: Part, sums: &[f32], turned: &mut [f32]) {
        let l = self.l;
        let columns = l.blocking.columns();
        let rows = part.rows.1 - part.rows.0;
        for panel in part.panels.0..part.panels.1 {
            let offset = (panel - part.panels.0) * columns;
            let outputs = columns.min(l.outputs - panel * columns);
            assert!(turned.len() >= rows * columns);
            // SAFETY: there are so many columns of so many rows.
            unsafe {
                let to = turned.as_mut_ptr();
                turn_within(s, &sums[offset..], l.width(), [rows, outputs], to, rows);
            }
            for (index, line) in turned.chunks_exact(rows).enumerate().take(outputs) {
                let output = part.group * l.outputs + panel * columns + index;
                let (mut tap, mut channel) = (part.rows.0 / l.inputs, part.rows.0 % l.inputs);
                for sum in line {
                    // SAFETY: within the weights; this row and column are one thread's.
                    unsafe {
                        *self.out.at((output * l.inputs + channel) * l.taps + tap) = *sum;
                    }
                    channel += 1;
                    if channel == l.inputs {
                        (tap, channel) = (tap + 1, 0);
                    }
                }
            }
        }
    }
}

/// The sums of a part over a segment.
struct Sums<'a> {
    work: Work<'a>,
    part: Part,
    segment: usize,
    own: &'a mut [f32],
}

impl WithSimd for Sums<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        let Sums {
            work,
            part,
            segment,
            own,
        } = self;
        let l = work.l;
        let Blocking {
            lanes,
            rows: tile_rows,
            vectors,
        } = crate::isa::blocking::<S>();
        let columns = l.blocking.columns();
        let (rows, width) = (part.rows.1 - part.rows.0, l.width());
        let gathered = if l.is_pointwise {
            0
        } else {
            l.block() * l.part
        };
        let (packed, rest) = own.split_at_mut(gathered);
        let (right, rest) = rest.split_at_mut(l.block() * columns);
        let (sums, rest) = rest.split_at_mut(l.sums());
        let (of_tile, turned) = rest.split_at_mut(tile_rows * columns);
        let sums = if l.segments() > 1 {
            // SAFETY: each part of a segment is one thread's.
            unsafe { work.sums(segment, part) }
        } else {
            sums
        };
        let (in_channels, out_channels) = (l.groups * l.inputs, l.groups * l.outputs);
        let tiles = rows.div_ceil(tile_rows);
        let start = segment * l.segment;
        let end = (start + l.segment).min(l.positions);
        for first in (start..end).step_by(POSITIONS) {
            let count = POSITIONS.min(end - first);
            if !l.is_pointwise {
                for (index, line) in packed.chunks_exact_mut(rows).enumerate().take(count) {
                    let position = first + index;
                    if !gather_inside(s, l, work.input, position, part.rows.0, line) {
                        gather(l, work.input, part.group, position, part.rows.0, line);
                    }
                }
            }
            for panel in part.panels.0..part.panels.1 {
                let column = panel * columns;
                let wide = columns.min(l.outputs - column);
                // Side by side: rows a power of two apart would share few sets of the cache.
                for (index, line) in right.chunks_exact_mut(columns).enumerate().take(count) {
                    let at = (first + index) * out_channels + part.group * l.outputs + column;
                    let from = &work.grad[at..][..wide];
                    if wide == columns {
                        for vector in 0..vectors {
                            // SAFETY: both have as many elements as columns.
                            unsafe {
                                let value = load(s, from.as_ptr().add(vector * lanes));
                                store(s, line.as_mut_ptr().add(vector * lanes), value);
                            }
                        }
                    } else {
                        line[..wide].copy_from_slice(from);
                        line[wide..].fill(0.0);
                    }
                }
                for index in 0..tiles {
                    let (from, to) = (index * rows / tiles, (index + 1) * rows / tiles);
                    let (begin, depth_step) = if l.is_pointwise {
                        let at = first * in_channels + part.group * l.inputs + part.rows.0 + from;
                        (&work.input[at..], in_channels)
                    } else {
                        (&packed[from..], rows)
                    };
                    let left = Left {
                        start: begin.as_ptr(),
                        row_step: 1,
                        depth_step,
                        chunk: count,
                        chunk_step: 0,
                        chunks: 1,
                    };
                    let right = Right::packed(right.as_ptr(), columns, count);
                    let offset = column - part.panels.0 * columns;
                    // SAFETY: the rows are within the part, the positions within image and gradient.
                    unsafe {
                        let here = of_tile.as_mut_ptr();
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
                            for vector in 0..vectors {
                                let at = (from + row) * width + offset + vector * lanes;
                                debug_assert!(at + lanes <= sums.len());
                                let sum = sums.as_mut_ptr().add(at);
                                let mut value = load(s, here.add(row * columns + vector * lanes));
                                if first > start {
                                    value = s.add_f32s(load(s, sum), value);
                                }
                                store(s, sum, value);
                            }
                        }
                    }
                }
            }
        }
        if l.segments() == 1 {
            work.finish(s, part, sums, turned);
        }
    }
}

/// The segments' sums of a part, added in order.
struct Finish<'a> {
    work: Work<'a>,
    part: Part,
    own: &'a mut [f32],
}

impl WithSimd for Finish<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        let Finish { work, part, own } = self;
        // SAFETY: the segments are summed up, and each part is one thread's.
        let sums = unsafe { work.sums(0, part) };
        for segment in 1..work.l.segments() {
            // SAFETY: the same.
            let more = unsafe { work.sums(segment, part) };
            let (sums, _) = S::as_mut_simd_f32s(sums);
            let (more, _) = S::as_simd_f32s(more);
            for (sum, more) in sums.iter_mut().zip(more) {
                *sum = s.add_f32s(*sum, *more);
            }
        }
        work.finish(s, part, sums, own);
    }
}

/// What the taps of a position see, from a row on, where all see pixels and neighbouring taps neighbouring ones. False where
/// that is not so.
#[inline(always)]
fn gather_inside<S: Simd>(
    s: S,
    l: &Layout,
    input: &[f32],
    position: usize,
    first: usize,
    out: &mut [f32],
) -> bool {
    let [z, y, x] = l.axes;
    if x.step != 1 || l.groups != 1 {
        return false;
    }
    let (line, at_x) = (position / x.positions, position % x.positions);
    let (plane, at_y) = (line / y.positions, line % y.positions);
    let (image, at_z) = (plane / z.positions, plane % z.positions);
    let inside = (z.inside(at_z), y.inside(at_y), x.inside(at_x));
    let (Some(first_z), Some(first_y), Some(first_x)) = inside else {
        return false;
    };
    let of_run = x.taps * l.inputs;
    let (mut run, mut within) = (first / of_run, first % of_run);
    let mut done = 0;
    while done < out.len() {
        let length = (of_run - within).min(out.len() - done);
        let at_z = first_z.wrapping_add_signed((run / y.taps) as isize * z.step);
        let at_y = first_y.wrapping_add_signed((run % y.taps) as isize * y.step);
        let pixel = ((image * z.source + at_z) * y.source + at_y) * x.source + first_x;
        let at = pixel * l.inputs + within;
        debug_assert!(at + length <= input.len());
        // SAFETY: all taps look at pixels; there is room for what is left.
        unsafe {
            let to = out.as_mut_ptr().add(done);
            copy(s, input.as_ptr().add(at), to, length);
        }
        done += length;
        (run, within) = (run + 1, 0);
    }
    true
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
