//! The weight gradient by the adjoint of Winograd's filtering: `dG = G^T [ sum of (A dY A^T) . (B^T d B) ] G` over all tiles.
//!
//! ```text
//!   image    --B^T d B---> U [point][tile][input]      a block of tiles at a time
//!   gradient --A dY A^T--> D [point][tile][output]
//!                          U^T D, a square of inputs and outputs at a time, 36 products
//!   sums [tap][input][output] += G^T (U^T D) G
//! ```

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::Convolution;
use super::transform::{Gradient, Input, POINTS, Product, Transform};
use crate::isa::{Blocking, Isa};
use crate::share::Shared;
use crate::tile::{Left, Right, Start, load, store, tile};

/// Elements of a cache line; a point's data is followed by one, so that points do not fall on the same cache sets.
const LINE: usize = 16;
/// Elements of a block's `U` and `D` that are aimed at.
const BLOCK_ELEMENTS: usize = 1 << 20;
const FEWEST_TILES: usize = 112;
const MOST_TILES: usize = 448;
/// Inputs of a square; as many columns as a register tile has are its outputs.
const SQUARE_INPUTS: usize = 32;
/// Tiles that a thread transforms at a time.
const TILES_AT_ONCE: usize = 8;

#[derive(Clone, Copy, Debug)]
struct Layout {
    blocking: Blocking,
    down: usize,
    across: usize,
    tiles: usize,
    block: usize,
    inputs: usize,
    outputs: usize,
    input_point: usize,
    output_point: usize,
}

impl Layout {
    fn new(g: &Convolution, blocking: Blocking) -> Self {
        let (down, across) = (g.output[1].div_ceil(4), g.output[2].div_ceil(4));
        let tiles = g.images * down * across;
        let inputs = g.in_channels.next_multiple_of(blocking.lanes);
        let outputs = g.out_channels.next_multiple_of(blocking.columns());
        let fits = BLOCK_ELEMENTS / (POINTS * (inputs + outputs));
        let block = fits.clamp(FEWEST_TILES, MOST_TILES).min(tiles);
        let block = tiles.div_ceil(tiles.div_ceil(block));
        Layout {
            blocking,
            down,
            across,
            tiles,
            block,
            inputs,
            outputs,
            input_point: block * inputs + LINE,
            output_point: block * outputs + LINE,
        }
    }

    fn sums(&self) -> usize {
        9 * self.inputs * self.outputs
    }

    fn square(&self) -> usize {
        POINTS * SQUARE_INPUTS * self.blocking.columns()
    }

    fn place(&self, tile: usize) -> (usize, usize, usize) {
        let (image, within) = (
            tile / (self.down * self.across),
            tile % (self.down * self.across),
        );
        (image, within / self.across * 4, within % self.across * 4)
    }
}

/// Elements of scratch memory.
pub(super) fn scratch(g: &Convolution, threads: usize, isa: Isa) -> usize {
    let l = Layout::new(g, isa.blocking());
    l.sums() + POINTS * (l.input_point + l.output_point) + threads * l.square()
}

/// Weight gradient `[O, C, 3, 3]` from `input [N, H, W, C]` and `grad [N, H', W', O]`.
pub(super) fn run(
    g: &Convolution,
    input: &[f32],
    grad: &[f32],
    out: &mut [f32],
    scratch: &mut [f32],
    isa: Isa,
) {
    let layout = &Layout::new(g, isa.blocking());
    let columns = layout.blocking.columns();
    let (sums, rest) = scratch.split_at_mut(layout.sums());
    let (u, rest) = rest.split_at_mut(POINTS * layout.input_point);
    let (d, squares) = rest.split_at_mut(POINTS * layout.output_point);
    let (sums, u, d) = (Shared::new(sums), Shared::new(u), Shared::new(d));
    for first in (0..layout.tiles).step_by(layout.block) {
        let count = layout.block.min(layout.tiles - first);
        (0..count.div_ceil(TILES_AT_ONCE))
            .into_par_iter()
            .for_each(|part| {
                let from = part * TILES_AT_ONCE;
                isa.run(Tiles {
                    layout,
                    g,
                    input,
                    grad,
                    u,
                    d,
                    first,
                    range: (from, (from + TILES_AT_ONCE).min(count)),
                });
            });
        let down = layout.inputs.div_ceil(SQUARE_INPUTS);
        let across = layout.outputs / columns;
        let next = std::sync::atomic::AtomicUsize::new(0);
        squares
            .par_chunks_exact_mut(layout.square())
            .for_each(|square| {
                loop {
                    let index = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    if index >= down * across {
                        break;
                    }
                    isa.run(Square {
                        layout,
                        u,
                        d,
                        sums,
                        square,
                        count,
                        input: index / across * SQUARE_INPUTS,
                        output: index % across * columns,
                        is_first: first == 0,
                    });
                }
            });
    }
    // Each output's weights lie together: turned a few inputs at a time.
    out.par_chunks_exact_mut(g.in_channels * 9)
        .enumerate()
        .for_each(|(output, out)| {
            for (channel, out) in out.chunks_exact_mut(9).enumerate() {
                for (tap, out) in out.iter_mut().enumerate() {
                    // SAFETY: within the sums, which nobody writes any more.
                    *out = unsafe {
                        *sums.at((tap * layout.inputs + channel) * layout.outputs + output)
                    };
                }
            }
        });
}

/// Tiles of image and gradient, transformed.
struct Tiles<'a> {
    layout: &'a Layout,
    g: &'a Convolution,
    input: &'a [f32],
    grad: &'a [f32],
    u: Shared<'a>,
    d: Shared<'a>,
    first: usize,
    range: (usize, usize),
}

/// A tile's pixels `[N, H, W, C]` from `(y, x)` on; zero outside the image.
#[inline(always)]
pub(super) fn pixels<S: Simd, const N: usize>(
    s: S,
    image: &[f32],
    [height, width]: [usize; 2],
    (y, x): (usize, usize),
    channels: usize,
    channel: usize,
) -> [[S::f32s; N]; N] {
    let lanes = S::F32_LANES;
    let inside = y < height && x < width && y + N <= height && x + N <= width;
    let whole = channel + lanes <= channels;
    let mut tile = [[s.splat_f32s(0.0); N]; N];
    for (row, line) in tile.iter_mut().enumerate() {
        for (column, value) in line.iter_mut().enumerate() {
            let (y, x) = (y.wrapping_add(row), x.wrapping_add(column));
            if inside || (y < height && x < width) {
                let at = (y * width + x) * channels + channel;
                *value = if whole {
                    debug_assert!(at + lanes <= image.len());
                    // SAFETY: the pixel is inside the image.
                    unsafe { load(s, image.as_ptr().add(at)) }
                } else {
                    s.partial_load_f32s(&image[at..at + channels - channel])
                };
            }
        }
    }
    tile
}

impl WithSimd for Tiles<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        let (l, g) = (self.layout, self.g);
        let lanes = S::F32_LANES;
        let [_, height, width] = g.input;
        let [_, out_height, out_width] = g.output;
        for index in self.range.0..self.range.1 {
            let (image, y, x) = l.place(self.first + index);
            let plane = height * width * g.in_channels;
            let pixels_of = &self.input[image * plane..][..plane];
            let from = (y.wrapping_sub(g.padding[1]), x.wrapping_sub(g.padding[2]));
            for channel in (0..l.inputs).step_by(lanes) {
                let tile =
                    pixels::<S, 6>(s, pixels_of, [height, width], from, g.in_channels, channel);
                let tile = Input::both(s, tile);
                for (point, value) in tile.iter().flatten().enumerate() {
                    // SAFETY: within `U`; each tile is one thread's.
                    unsafe {
                        store(
                            s,
                            self.u
                                .at(point * l.input_point + index * l.inputs + channel),
                            *value,
                        )
                    };
                }
            }
            let plane = out_height * out_width * g.out_channels;
            let pixels_of = &self.grad[image * plane..][..plane];
            for channel in (0..g.out_channels.next_multiple_of(lanes)).step_by(lanes) {
                let tile = pixels::<S, 4>(
                    s,
                    pixels_of,
                    [out_height, out_width],
                    (y, x),
                    g.out_channels,
                    channel,
                );
                let tile = Gradient::both(s, tile);
                for (point, value) in tile.iter().flatten().enumerate() {
                    // SAFETY: within `D`; each tile is one thread's.
                    unsafe {
                        store(
                            s,
                            self.d
                                .at(point * l.output_point + index * l.outputs + channel),
                            *value,
                        )
                    };
                }
            }
        }
    }
}

/// The products of a square of inputs and outputs.
struct Square<'a> {
    layout: &'a Layout,
    u: Shared<'a>,
    d: Shared<'a>,
    sums: Shared<'a>,
    square: &'a mut [f32],
    count: usize,
    input: usize,
    output: usize,
    is_first: bool,
}

impl WithSimd for Square<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        let l = self.layout;
        let Blocking { lanes, rows, .. } = crate::isa::blocking::<S>();
        let columns = l.blocking.columns();
        let inputs = SQUARE_INPUTS.min(l.inputs - self.input);
        let parts = inputs.div_ceil(rows);
        for point in 0..POINTS {
            for part in 0..parts {
                let (from, to) = (part * inputs / parts, (part + 1) * inputs / parts);
                // SAFETY: within `U`, `D` and the square, whose sizes are rounded up to vectors.
                unsafe {
                    let left = Left {
                        start: self.u.at(point * l.input_point + self.input + from),
                        row_step: 1,
                        depth_step: l.inputs,
                        chunk: self.count,
                        chunk_step: 0,
                        chunks: 1,
                    };
                    let right = Right {
                        start: self.d.at(point * l.output_point + self.output),
                        depth_step: l.outputs,
                    };
                    let out = self
                        .square
                        .as_mut_ptr()
                        .add((point * SQUARE_INPUTS + from) * columns);
                    tile(
                        s,
                        to - from,
                        left,
                        right,
                        |row| out.add(row * columns),
                        Start::Zero,
                    );
                }
            }
        }
        for input in 0..inputs {
            for vector in 0..l.blocking.vectors {
                let at = |point: usize| (point * SQUARE_INPUTS + input) * columns + vector * lanes;
                let mut products = [[s.splat_f32s(0.0); 6]; 6];
                for (point, value) in products.iter_mut().flatten().enumerate() {
                    // SAFETY: within the square.
                    *value = unsafe { load(s, self.square.as_ptr().add(at(point))) };
                }
                let taps = Product::both(s, products);
                for (tap, value) in taps.iter().flatten().enumerate() {
                    // SAFETY: within the sums; each square is one thread's.
                    unsafe {
                        let to = self
                            .sums
                            .at((tap * l.inputs + self.input + input) * l.outputs
                                + self.output
                                + vector * lanes);
                        let value = if self.is_first {
                            *value
                        } else {
                            s.add_f32s(load(s, to), *value)
                        };
                        store(s, to, value);
                    }
                }
            }
        }
    }
}
