//! Convolution by Winograd's minimal filtering, F(4x4, 3x3): 36 products instead of 144 for 4x4 outputs.
//!
//! `Y = A^T [ (G g G^T) . (B^T d B) ] A` for each tile of 4x4 outputs and its 6x6 inputs `d` (Lavin and Gray 2016, section 4).
//! The transforms stand in `transform`.
//!
//! ```text
//!   weights --G g G^T--> V [panel of outputs][point][input][output]          once
//!   image ---B^T d B---> U [point][panel of tiles][chunk of inputs][tile][input]   a block of tiles at a time
//!                        M [point][tile][output] = U V                       36 products
//!   image <--A^T m A---- M
//! ```

#![expect(
    clippy::needless_range_loop,
    reason = "columns of squares: the index is that of the second dimension"
)]

use std::sync::atomic::{AtomicUsize, Ordering};

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::Convolution;
use super::transform::{Input, Output, POINTS, Transform, Weight};
use crate::isa::{Blocking, Isa};
use crate::share::Shared;
use crate::tile::{Left, Right, Start, load, store, tile};

/// How a convolution's tiles are cut into blocks, and where they lie in scratch memory.
#[derive(Clone, Copy, Debug)]
struct Layout {
    blocking: Blocking,
    /// Tiles down and across an image, and of all images.
    down: usize,
    across: usize,
    tiles: usize,
    /// Tiles of a block.
    block: usize,
    /// Input channels, rounded up to vectors.
    inputs: usize,
    /// Panels of outputs, each as wide as a register tile.
    panels: usize,
    /// From a point to the next of `V`, `U` and `M`.
    weight_point: usize,
    input_point: usize,
    output_point: usize,
}

/// Elements of a cache line; a point's data is followed by one, so that points do not fall on the same cache sets.
const LINE: usize = 16;

impl Layout {
    fn new(g: &Convolution, blocking: Blocking) -> Self {
        let (down, across) = (g.output[1].div_ceil(4), g.output[2].div_ceil(4));
        let tiles = g.images * down * across;
        let inputs = g.in_channels.next_multiple_of(blocking.lanes);
        let panels = g.out_channels.div_ceil(blocking.columns());
        let outputs = panels * blocking.columns();
        let fits = BLOCK_ELEMENTS / (POINTS * (inputs + outputs));
        let block = fits.clamp(FEWEST_TILES, MOST_TILES).min(tiles);
        let blocks = tiles.div_ceil(block);
        let block = tiles.div_ceil(blocks).next_multiple_of(blocking.rows);
        Layout {
            blocking,
            down,
            across,
            tiles,
            block,
            inputs,
            panels,
            weight_point: inputs * blocking.columns() + LINE,
            input_point: block * inputs + LINE,
            output_point: block * outputs + LINE,
        }
    }

    fn outputs(&self) -> usize {
        self.panels * self.blocking.columns()
    }

    fn weights(&self) -> usize {
        self.panels * POINTS * self.weight_point
    }

    fn of_block(&self) -> usize {
        POINTS * (self.input_point + self.output_point)
    }
}

/// Elements of a block's `U` and `M` that are aimed at: what a second-level cache holds.
const BLOCK_ELEMENTS: usize = 384 << 10;
const FEWEST_TILES: usize = 56;
const MOST_TILES: usize = 224;

/// Elements of scratch memory.
pub(super) fn scratch(g: &Convolution, threads: usize, isa: Isa) -> usize {
    let layout = Layout::new(g, isa.blocking());
    layout.weights() + threads * layout.of_block()
}

/// `input [N, H, W, C]`, `weight [O, C, 3, 3]`, `out [N, H', W', O]`. With `is_turned`, the weights are those of the convolution
/// that this one is the transposed of: `[C, O, 3, 3]`, taps in reverse.
#[expect(
    clippy::too_many_arguments,
    reason = "operands, result, scratch memory and how"
)]
pub(super) fn run(
    g: &Convolution,
    is_turned: bool,
    input: &[f32],
    weight: &[f32],
    bias: Option<&[f32]>,
    out: &mut [f32],
    scratch: &mut [f32],
    isa: Isa,
) {
    let layout = Layout::new(g, isa.blocking());
    let (weights, rest) = scratch.split_at_mut(layout.weights());
    let shared = Shared::new(weights);
    (0..layout.panels).into_par_iter().for_each(|panel| {
        isa.run(Weights {
            layout: &layout,
            g,
            is_turned,
            weight,
            out: shared,
            panel,
        });
    });
    let blocks = layout.tiles.div_ceil(layout.block);
    let next = AtomicUsize::new(0);
    let out = Shared::new(out);
    rest.par_chunks_exact_mut(layout.of_block())
        .for_each(|scratch| {
            let (u, m) = scratch.split_at_mut(POINTS * layout.input_point);
            loop {
                let block = next.fetch_add(1, Ordering::Relaxed);
                if block >= blocks {
                    break;
                }
                let tiles = (
                    block * layout.block,
                    ((block + 1) * layout.block).min(layout.tiles),
                );
                isa.run(Block {
                    layout: &layout,
                    g,
                    input,
                    weights: shared,
                    bias,
                    u,
                    m,
                    out,
                    tiles,
                });
            }
        });
}

/// `V` of a panel of outputs.
struct Weights<'a> {
    layout: &'a Layout,
    g: &'a Convolution,
    is_turned: bool,
    weight: &'a [f32],
    out: Shared<'a>,
    panel: usize,
}

impl WithSimd for Weights<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        let Weights {
            layout,
            g,
            is_turned,
            weight,
            out,
            panel,
        } = self;
        let lanes = S::F32_LANES;
        let columns = layout.blocking.columns();
        let mut gathered = [[0.0_f32; 16]; 9];
        for channel in 0..layout.inputs {
            for vector in 0..layout.blocking.vectors {
                let first = panel * columns + vector * lanes;
                for lane in 0..lanes {
                    let output = first + lane;
                    let inside = output < g.out_channels && channel < g.in_channels;
                    let kernel = if !inside {
                        &[0.0; 9]
                    } else if is_turned {
                        &weight[(channel * g.out_channels + output) * 9..][..9]
                    } else {
                        &weight[(output * g.in_channels + channel) * 9..][..9]
                    };
                    for (tap, line) in gathered.iter_mut().enumerate() {
                        line[lane] = kernel[if is_turned { 8 - tap } else { tap }];
                    }
                }
                // SAFETY: `gathered` has 16 lanes; each panel is written by one thread, within `V`.
                unsafe {
                    let tap = |y: usize, x: usize| load(s, gathered[y * 3 + x].as_ptr());
                    let mut half = [[s.splat_f32s(0.0); 3]; 6];
                    for x in 0..3 {
                        let column = Weight::apply(s, [tap(0, x), tap(1, x), tap(2, x)]);
                        for (y, value) in column.into_iter().enumerate() {
                            half[y][x] = value;
                        }
                    }
                    for (y, row) in half.into_iter().enumerate() {
                        for (x, value) in Weight::apply(s, row).into_iter().enumerate() {
                            let point = panel * POINTS + y * 6 + x;
                            let at =
                                point * layout.weight_point + channel * columns + vector * lanes;
                            store(s, out.at(at), value);
                        }
                    }
                }
            }
        }
    }
}

/// A block of tiles, from image to image.
struct Block<'a> {
    layout: &'a Layout,
    g: &'a Convolution,
    input: &'a [f32],
    weights: Shared<'a>,
    bias: Option<&'a [f32]>,
    u: &'a mut [f32],
    m: &'a mut [f32],
    out: Shared<'a>,
    tiles: (usize, usize),
}

impl Layout {
    /// Image, and the first output row and column of a tile.
    #[inline(always)]
    fn place(&self, tile: usize) -> (usize, usize, usize) {
        let (image, within) = (
            tile / (self.down * self.across),
            tile % (self.down * self.across),
        );
        (image, within / self.across * 4, within % self.across * 4)
    }
}

impl WithSimd for Block<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, s: S) {
        let count = self.tiles.1 - self.tiles.0;
        for index in 0..count {
            self.input_tile(s, index);
        }
        // SAFETY: `U`, `V` and `M` have room for whole panels.
        unsafe { self.products(s, count) };
        for index in 0..count {
            self.output_tile(s, index);
        }
    }
}

impl Block<'_> {
    #[inline(always)]
    fn input_tile<S: Simd>(&mut self, s: S, index: usize) {
        let (layout, g) = (self.layout, self.g);
        let lanes = S::F32_LANES;
        let rows = layout.blocking.rows;
        let (image, y, x) = layout.place(self.tiles.0 + index);
        let [_, height, width] = g.input;
        let channels = g.in_channels;
        // First input row and column; wraps below zero where the tile begins in the padding.
        let (y, x) = (y.wrapping_sub(g.padding[1]), x.wrapping_sub(g.padding[2]));
        let inside = y < height && x < width && y + 6 <= height && x + 6 <= width;
        let zero = s.splat_f32s(0.0);
        let start = index / rows * rows * layout.inputs + index % rows * lanes;
        for chunk in 0..layout.inputs / lanes {
            let channel = chunk * lanes;
            let whole = channel + lanes <= channels;
            let mut half = [[zero; 6]; 6];
            for column in 0..6 {
                let mut d = [zero; 6];
                for (row, d) in d.iter_mut().enumerate() {
                    let (y, x) = (y.wrapping_add(row), x.wrapping_add(column));
                    if inside || (y < height && x < width) {
                        let at = ((image * height + y) * width + x) * channels + channel;
                        *d = if whole {
                            // SAFETY: the pixel is inside the image.
                            unsafe { load(s, self.input.as_ptr().add(at)) }
                        } else {
                            s.partial_load_f32s(&self.input[at..at + channels - channel])
                        };
                    }
                }
                for (row, value) in Input::apply(s, d).into_iter().enumerate() {
                    half[row][column] = value;
                }
            }
            for (row, half) in half.into_iter().enumerate() {
                for (column, value) in Input::apply(s, half).into_iter().enumerate() {
                    let at = (row * 6 + column) * layout.input_point + start + chunk * rows * lanes;
                    debug_assert!(at + lanes <= self.u.len());
                    // SAFETY: `U` has room for whole panels of tiles.
                    unsafe { store(s, self.u.as_mut_ptr().add(at), value) };
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn products<S: Simd>(&mut self, s: S, count: usize) {
        let layout = self.layout;
        let Blocking { lanes, rows, .. } = crate::isa::blocking::<S>();
        let columns = layout.blocking.columns();
        let outputs = layout.outputs();
        for point in 0..POINTS {
            for panel in 0..layout.panels {
                for first in (0..count).step_by(rows) {
                    // SAFETY: the caller's.
                    unsafe {
                        let left = Left {
                            start: self
                                .u
                                .as_ptr()
                                .add(point * layout.input_point + first * layout.inputs),
                            row_step: lanes,
                            depth_step: 1,
                            chunk: lanes,
                            chunk_step: rows * lanes,
                            chunks: layout.inputs / lanes,
                        };
                        let right = Right {
                            start: self
                                .weights
                                .at((panel * POINTS + point) * layout.weight_point),
                            depth_step: columns,
                        };
                        let to = self
                            .m
                            .as_mut_ptr()
                            .add(point * layout.output_point + first * outputs + panel * columns);
                        tile(
                            s,
                            rows.min(count - first),
                            left,
                            right,
                            |row| to.add(row * outputs),
                            Start::Zero,
                        );
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn output_tile<S: Simd>(&mut self, s: S, index: usize) {
        let (layout, g) = (self.layout, self.g);
        let lanes = S::F32_LANES;
        let outputs = layout.outputs();
        let (image, y, x) = layout.place(self.tiles.0 + index);
        let [_, height, width] = g.output;
        let (rows, columns) = (4.min(height - y), 4.min(width - x));
        let zero = s.splat_f32s(0.0);
        for channel in (0..g.out_channels).step_by(lanes) {
            let left = lanes.min(g.out_channels - channel);
            let mut half = [[zero; 6]; 4];
            for column in 0..6 {
                let mut m = [zero; 6];
                for (row, m) in m.iter_mut().enumerate() {
                    let at = (row * 6 + column) * layout.output_point + index * outputs + channel;
                    debug_assert!(at + lanes <= self.m.len());
                    // SAFETY: `M` has whole panels.
                    *m = unsafe { load(s, self.m.as_ptr().add(at)) };
                }
                for (row, value) in Output::apply(s, m).into_iter().enumerate() {
                    half[row][column] = value;
                }
            }
            let bias = self.bias.map_or(zero, |bias| {
                s.partial_load_f32s(&bias[channel..channel + left])
            });
            for (row, half) in half.into_iter().enumerate().take(rows) {
                let line = Output::apply(s, half);
                for (column, value) in line.into_iter().enumerate().take(columns) {
                    let at = ((image * height + y + row) * width + x + column) * g.out_channels
                        + channel;
                    let value = s.add_f32s(value, bias);
                    // SAFETY: the pixel is inside the image, and belongs to this tile alone.
                    unsafe {
                        if left == lanes {
                            store(s, self.out.at(at), value);
                        } else {
                            s.partial_store_f32s(self.out.part(at, left), value);
                        }
                    }
                }
            }
        }
    }
}
