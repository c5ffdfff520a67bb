//! Convolution by Winograd's minimal filtering, F(4x4, 3x3): 36 products instead of 144 for 4x4 outputs.
//!
//! `Y = A^T [ (G g G^T) . (B^T d B) ] A` for each tile of 4x4 outputs and its 6x6 inputs `d` (Lavin and Gray 2016, section 4).
//! The transforms stand in `transform`.
//!
//! ```text
//!   weights --G g G^T--> V [panel of outputs][point][input][output]
//!   image ---B^T d B---> U [panel of tiles][chunk of inputs][point][tile][input]
//!                        M [point][tile][output] = U V       36 products of a panel of tiles and a panel of outputs,
//!   image <--A^T m A---- M                                   turned into pixels while they are in the nearest cache
//! ```
//!
//! What a tile's transform writes lies close together, for a processor knows the addresses of few pages at a time.
//!
//! With many tiles, `V` is made once and threads take blocks of tiles. With few, `U` is made once and threads take panels of
//! outputs, of which they make `V` a slice of inputs at a time: transformed weights then never leave the second-level cache.

#![expect(
    clippy::needless_range_loop,
    reason = "columns of squares: the index is that of the second dimension"
)]

use pulp::{Simd, WithSimd};

use super::Convolution;
use super::transform::{Input, Output, POINTS, Transform, Weight};
use crate::crew;
use crate::isa::{Blocking, Isa};
use crate::share::Shared;
use crate::square::{WIDEST, turned};
use crate::tile::{Left, Right, Start, load, store, tile};

/// How a convolution's tiles are cut into blocks, and where they lie in scratch memory.
#[derive(Clone, Copy, Debug)]
struct Layout {
    blocking: Blocking,
    /// Tiles down and across an image, and of all images.
    down: usize,
    across: usize,
    tiles: usize,
    /// Tiles of a block: all of them, where there are few.
    block: usize,
    /// Input channels, rounded up to vectors.
    inputs: usize,
    /// Of these, how many are transformed at a time.
    slice: usize,
    /// Panels of outputs, each as wide as a register tile.
    panels: usize,
    /// From a panel of tiles to the next of `U`.
    input_panel: usize,
    /// From a point to the next of `V`.
    weight_point: usize,
    /// From a panel of tiles to the next of `M`.
    output_panel: usize,
}

/// Elements of a cache line, between parts that should not fall on the same sets of a cache.
const LINE: usize = 16;
/// Elements of a block's `U`, or of a slice's `V`, that are aimed at: half of a second-level cache.
const BLOCK_ELEMENTS: usize = 224 << 10;
/// A block's tiles, at the least and at the most.
const FEWEST_TILES: usize = 56;
const MOST_TILES: usize = 224;
/// From so many tiles on, of few, threads share them.
const PARTED_TILES: usize = 96;
/// Up to so many tiles are few.
const FEW_TILES: usize = 160;

impl Layout {
    fn new(g: &Convolution, blocking: Blocking) -> Self {
        let (down, across) = (g.output[1].div_ceil(4), g.output[2].div_ceil(4));
        let tiles = g.images * down * across;
        let inputs = g.in_channels.next_multiple_of(blocking.lanes);
        let columns = blocking.columns();
        let (mut block, mut slice) = (tiles, inputs);
        if tiles > FEW_TILES {
            let fits = BLOCK_ELEMENTS / (POINTS * inputs);
            block = fits.clamp(FEWEST_TILES, MOST_TILES).min(tiles);
            // Blocks in numbers that threads can share.
            block = tiles.div_ceil(tiles.div_ceil(block).next_multiple_of(4));
        } else {
            let fits = (BLOCK_ELEMENTS / (POINTS * columns)).max(blocking.lanes);
            slice = inputs.div_ceil(inputs.div_ceil(fits));
            slice = slice.next_multiple_of(blocking.lanes);
        }
        Layout {
            blocking,
            down,
            across,
            tiles,
            block,
            inputs,
            slice,
            panels: g.out_channels.div_ceil(columns),
            input_panel: POINTS * blocking.rows * inputs + LINE,
            weight_point: slice * columns + LINE,
            output_panel: POINTS * blocking.rows * columns + LINE,
        }
    }

    fn has_few_tiles(&self) -> bool {
        self.tiles <= FEW_TILES
    }

    /// `U` of a block.
    fn inputs_of_block(&self) -> usize {
        self.block.div_ceil(self.blocking.rows) * self.input_panel
    }

    /// `V` of a panel of outputs.
    fn weights_of_panel(&self) -> usize {
        POINTS * self.weight_point
    }

    /// What is shared by all threads, and what each has for itself.
    fn elements(&self) -> (usize, usize) {
        if self.has_few_tiles() {
            let panels_of_tiles = self.tiles.div_ceil(self.blocking.rows);
            let own = self.weights_of_panel() + panels_of_tiles * self.output_panel;
            (self.inputs_of_block(), own)
        } else {
            let own = self.inputs_of_block() + self.output_panel;
            (self.panels * self.weights_of_panel(), own)
        }
    }

    /// Image, and the first output row and column of a tile.
    #[inline(always)]
    fn place(&self, tile: usize) -> (usize, usize, usize) {
        let (image, within) = (
            tile / (self.down * self.across),
            tile % (self.down * self.across),
        );
        (image, within / self.across * 4, within % self.across * 4)
    }

    /// Panels of `count` tiles, and the tiles of one: about equal.
    #[inline(always)]
    fn panels_of(&self, count: usize) -> usize {
        count.div_ceil(self.blocking.rows)
    }

    #[inline(always)]
    fn tiles_of(panel: usize, panels: usize, count: usize) -> (usize, usize) {
        (panel * count / panels, (panel + 1) * count / panels)
    }
}

/// Elements of scratch memory.
pub(super) fn scratch(g: &Convolution, threads: usize, isa: Isa) -> usize {
    let (shared, own) = Layout::new(g, isa.blocking()).elements();
    shared + threads * own
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
    let layout = &Layout::new(g, isa.blocking());
    let (shared, own) = layout.elements();
    let (shared, rest) = scratch.split_at_mut(shared);
    let work = Work {
        layout,
        g,
        is_turned,
        input,
        weight,
        bias,
        shared: Shared::new(shared),
        out: Shared::new(out),
    };
    if layout.has_few_tiles() {
        let panels_of_tiles = layout.panels_of(layout.tiles);
        // Two threads read one another's tiles more slowly than they transform weights twice, unless weights are most of it.
        let is_alone = rest.len() < 2 * own || rayon::current_num_threads() == 1;
        let parts = if is_alone || layout.tiles < PARTED_TILES {
            1
        } else {
            2
        };
        let phases = [panels_of_tiles, parts * layout.panels];
        crew::work(rest, own, &phases, |phase, index, own| match phase {
            0 => isa.run(Inputs { work, panel: index }),
            _ => {
                let part = index / layout.panels;
                isa.run(Panel {
                    work,
                    own,
                    tiles: (
                        part * panels_of_tiles / parts,
                        (part + 1) * panels_of_tiles / parts,
                    ),
                    panel: index % layout.panels,
                });
            }
        });
    } else {
        let phases = [layout.panels, layout.tiles.div_ceil(layout.block)];
        crew::work(rest, own, &phases, |phase, index, own| match phase {
            0 => isa.run(Weights { work, panel: index }),
            _ => {
                let from = index * layout.block;
                let tiles = (from, (from + layout.block).min(layout.tiles));
                isa.run(Block { work, own, tiles });
            }
        });
    }
}

/// What all threads see.
#[derive(Clone, Copy)]
struct Work<'a> {
    layout: &'a Layout,
    g: &'a Convolution,
    is_turned: bool,
    input: &'a [f32],
    weight: &'a [f32],
    bias: Option<&'a [f32]>,
    /// `U` where there are few tiles, else `V`.
    shared: Shared<'a>,
    out: Shared<'a>,
}

/// `U` of a panel of tiles, of few.
struct Inputs<'a> {
    work: Work<'a>,
    panel: usize,
}

impl WithSimd for Inputs<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        let Inputs { work, panel } = self;
        let layout = work.layout;
        let tiles = Layout::tiles_of(panel, layout.panels_of(layout.tiles), layout.tiles);
        // SAFETY: each panel of `U` is written by one thread.
        unsafe { work.inputs(s, tiles, work.shared.at(panel * layout.input_panel)) };
    }
}

/// `V` of a panel of outputs, for many tiles.
struct Weights<'a> {
    work: Work<'a>,
    panel: usize,
}

impl WithSimd for Weights<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        let Weights { work, panel } = self;
        let layout = work.layout;
        // SAFETY: each panel of `V` is written by one thread.
        unsafe {
            let v = work.shared.at(panel * layout.weights_of_panel());
            work.weights(s, panel, (0, layout.inputs), v);
        }
    }
}

/// A panel of outputs, for some of few tiles.
struct Panel<'a> {
    work: Work<'a>,
    own: &'a mut [f32],
    /// Panels of tiles.
    tiles: (usize, usize),
    panel: usize,
}

impl WithSimd for Panel<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        let Panel {
            work,
            own,
            tiles,
            panel,
        } = self;
        let layout = work.layout;
        let (v, m) = own.split_at_mut(layout.weights_of_panel());
        let panels = layout.panels_of(layout.tiles);
        assert!(m.len() >= panels * layout.output_panel);
        for first in (0..layout.inputs).step_by(layout.slice) {
            let inputs = (first, (first + layout.slice).min(layout.inputs));
            // SAFETY: `V` and `M` are this thread's; nobody writes `U` any more.
            unsafe {
                work.weights(s, panel, inputs, v.as_mut_ptr());
                for index in tiles.0..tiles.1 {
                    let (from, to) = Layout::tiles_of(index, panels, layout.tiles);
                    let u = work.shared.at(index * layout.input_panel);
                    let m = m.as_mut_ptr().add(index * layout.output_panel);
                    work.products(s, to - from, inputs, u, v.as_ptr(), m);
                }
            }
        }
        for index in tiles.0..tiles.1 {
            let tiles = Layout::tiles_of(index, panels, layout.tiles);
            work.outputs(s, tiles, panel, &m[index * layout.output_panel..]);
        }
    }
}

/// A block of many tiles, from image to image.
struct Block<'a> {
    work: Work<'a>,
    own: &'a mut [f32],
    tiles: (usize, usize),
}

impl WithSimd for Block<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        let Block { work, own, tiles } = self;
        let layout = work.layout;
        let (u, m) = own.split_at_mut(layout.inputs_of_block());
        let count = tiles.1 - tiles.0;
        let panels = layout.panels_of(count);
        assert!(u.len() >= panels * layout.input_panel && m.len() >= layout.output_panel);
        let of = |index: usize| {
            let (from, to) = Layout::tiles_of(index, panels, count);
            (tiles.0 + from, tiles.0 + to)
        };
        for index in 0..panels {
            // SAFETY: `U` is this thread's.
            unsafe { work.inputs(s, of(index), u.as_mut_ptr().add(index * layout.input_panel)) };
        }
        for panel in 0..layout.panels {
            for index in 0..panels {
                let tiles = of(index);
                // SAFETY: `U` and `M` are this thread's; nobody writes `V` any more.
                unsafe {
                    let u = u.as_ptr().add(index * layout.input_panel);
                    let v = work.shared.at(panel * layout.weights_of_panel());
                    let all = (0, layout.inputs);
                    work.products(s, tiles.1 - tiles.0, all, u, v, m.as_mut_ptr());
                }
                work.outputs(s, tiles, panel, m);
            }
        }
    }
}

/// The taps of as many inputs as a vector has elements, one after the other; each of as many outputs.
type Taps = [[f32; WIDEST]; 9 * WIDEST];

impl Work<'_> {
    /// `V` of some inputs of a panel of outputs.
    ///
    /// # Safety
    /// `v` has room for it, and is the caller's alone.
    #[inline(always)]
    unsafe fn weights<S: Simd>(&self, s: S, panel: usize, inputs: (usize, usize), v: *mut f32) {
        let layout = self.layout;
        let lanes = S::F32_LANES;
        let columns = layout.blocking.columns();
        let mut taps = [[0.0; WIDEST]; 9 * WIDEST];
        for vector in 0..layout.blocking.vectors {
            let output = panel * columns + vector * lanes;
            for first in (inputs.0..inputs.1).step_by(lanes) {
                self.taps(s, output, first, &mut taps);
                for (index, kernel) in taps.chunks_exact(9).enumerate().take(lanes) {
                    let mut lines = [s.splat_f32s(0.0); 9];
                    for (tap, line) in lines.iter_mut().enumerate() {
                        let tap = if self.is_turned { 8 - tap } else { tap };
                        // SAFETY: a line is as long as the widest vector.
                        *line = unsafe { load(s, kernel[tap].as_ptr()) };
                    }
                    let mut half = [[s.splat_f32s(0.0); 3]; 6];
                    for x in 0..3 {
                        let column = Weight::apply(s, [lines[x], lines[3 + x], lines[6 + x]]);
                        for (y, value) in column.into_iter().enumerate() {
                            half[y][x] = value;
                        }
                    }
                    let at = (first + index - inputs.0) * columns + vector * lanes;
                    for (y, row) in half.into_iter().enumerate() {
                        for (x, value) in Weight::apply(s, row).into_iter().enumerate() {
                            // SAFETY: the caller's.
                            unsafe {
                                store(s, v.add(at + (y * 6 + x) * layout.weight_point), value)
                            };
                        }
                    }
                }
            }
        }
    }

    /// Taps of inputs and outputs from some on; zeros beyond the last.
    #[inline(always)]
    fn taps<S: Simd>(&self, s: S, output: usize, input: usize, taps: &mut Taps) {
        let (g, lanes) = (self.g, S::F32_LANES);
        // From an input's kernel to the next input's, and from an output's to the next output's.
        let (next_input, next_output) = if self.is_turned {
            (g.out_channels * 9, 9)
        } else {
            (9, g.in_channels * 9)
        };
        let first = input * next_input + output * next_output;
        let inside = input + lanes <= g.in_channels && output + lanes <= g.out_channels;
        // Turned kernels are read by whole vectors, beyond their ends.
        let last =
            first + (lanes - 1) * (next_input + next_output) + 9usize.next_multiple_of(lanes);
        let mut rows = [s.splat_f32s(0.0); WIDEST];
        if inside && !self.is_turned {
            for part in 0..9 {
                for (lane, row) in rows.iter_mut().enumerate().take(lanes) {
                    let from = &self.weight[first + lane * next_output + part * lanes..][..lanes];
                    // SAFETY: a vector's worth.
                    *row = unsafe { load(s, from.as_ptr()) };
                }
                let lines = taps[part * lanes..][..lanes].iter_mut();
                for (line, row) in lines.zip(turned(s, rows)) {
                    // SAFETY: a line is as long as the widest vector.
                    unsafe { store(s, line.as_mut_ptr(), row) };
                }
            }
        } else if inside && last <= self.weight.len() {
            for index in 0..lanes {
                for tap in (0..9).step_by(lanes) {
                    for (lane, row) in rows.iter_mut().enumerate().take(lanes) {
                        let at = first + index * next_input + lane * next_output + tap;
                        let from = &self.weight[at..][..lanes];
                        // SAFETY: a vector's worth.
                        *row = unsafe { load(s, from.as_ptr()) };
                    }
                    let lines = taps[index * 9 + tap..index * 9 + 9.min(tap + lanes)].iter_mut();
                    for (line, row) in lines.zip(turned(s, rows)) {
                        // SAFETY: a line is as long as the widest vector.
                        unsafe { store(s, line.as_mut_ptr(), row) };
                    }
                }
            }
        } else {
            for (index, kernel) in taps.chunks_exact_mut(9).enumerate().take(lanes) {
                for (tap, line) in kernel.iter_mut().enumerate() {
                    for (lane, element) in line.iter_mut().enumerate().take(lanes) {
                        let inside =
                            input + index < g.in_channels && output + lane < g.out_channels;
                        let at = first + index * next_input + lane * next_output + tap;
                        *element = if inside { self.weight[at] } else { 0.0 };
                    }
                }
            }
        }
    }

    /// `U` of a panel of tiles.
    ///
    /// # Safety
    /// `u` has room for it, and is the caller's alone.
    #[inline(always)]
    unsafe fn inputs<S: Simd>(&self, s: S, tiles: (usize, usize), u: *mut f32) {
        let (layout, g) = (self.layout, self.g);
        let lanes = S::F32_LANES;
        let [_, height, width] = g.input;
        let channels = g.in_channels;
        let point = layout.blocking.rows * lanes;
        let zero = s.splat_f32s(0.0);
        for index in tiles.0..tiles.1 {
            let (image, y, x) = layout.place(index);
            // First input row and column; wraps below zero where the tile begins in the padding.
            let (y, x) = (y.wrapping_sub(g.padding[1]), x.wrapping_sub(g.padding[2]));
            let inside = y < height && x < width && y + 6 <= height && x + 6 <= width;
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
                let at = chunk * POINTS * point + (index - tiles.0) * lanes;
                for (row, half) in half.into_iter().enumerate() {
                    for (column, value) in Input::apply(s, half).into_iter().enumerate() {
                        // SAFETY: the caller's.
                        unsafe { store(s, u.add(at + (row * 6 + column) * point), value) };
                    }
                }
            }
        }
    }

    /// `M` of a panel of `count` tiles and a panel of outputs, by some inputs: the first ones begin the sums. `V` holds
    /// these inputs alone, `U` all.
    ///
    /// # Safety
    /// `u`, `v` and `m` are panels; nobody writes them meanwhile.
    #[inline(always)]
    unsafe fn products<S: Simd>(
        &self,
        s: S,
        count: usize,
        inputs: (usize, usize),
        u: *const f32,
        v: *const f32,
        m: *mut f32,
    ) {
        let layout = self.layout;
        let Blocking { lanes, rows, .. } = crate::isa::blocking::<S>();
        let columns = layout.blocking.columns();
        let start = if inputs.0 == 0 {
            Start::Zero
        } else {
            Start::Sum
        };
        for point in 0..POINTS {
            // SAFETY: the caller's.
            unsafe {
                let left = Left {
                    start: u.add((inputs.0 / lanes * POINTS + point) * rows * lanes),
                    row_step: lanes,
                    depth_step: 1,
                    chunk: lanes,
                    chunk_step: POINTS * rows * lanes,
                    chunks: (inputs.1 - inputs.0) / lanes,
                };
                let right = Right::packed(v.add(point * layout.weight_point), columns, lanes);
                let m = m.add(point * rows * columns);
                tile(
                    s,
                    count,
                    left,
                    right,
                    #[inline(always)]
                    |row| m.add(row * columns),
                    start,
                );
            }
        }
    }

    /// The pixels of a panel of tiles and a panel of outputs.
    #[inline(always)]
    fn outputs<S: Simd>(&self, s: S, tiles: (usize, usize), panel: usize, m: &[f32]) {
        let (layout, g) = (self.layout, self.g);
        let Blocking { lanes, rows, .. } = crate::isa::blocking::<S>();
        let columns = layout.blocking.columns();
        let [_, height, width] = g.output;
        let zero = s.splat_f32s(0.0);
        assert!(m.len() >= POINTS * rows * columns);
        for index in tiles.0..tiles.1 {
            let (image, y, x) = layout.place(index);
            let (high, wide) = (4.min(height - y), 4.min(width - x));
            for vector in 0..layout.blocking.vectors {
                let channel = panel * columns + vector * lanes;
                if channel >= g.out_channels {
                    break;
                }
                let left = lanes.min(g.out_channels - channel);
                let mut half = [[zero; 6]; 4];
                for column in 0..6 {
                    let mut products = [zero; 6];
                    for (row, product) in products.iter_mut().enumerate() {
                        let at = ((row * 6 + column) * rows + index - tiles.0) * columns;
                        // SAFETY: within the panel, whose length was asserted.
                        *product = unsafe { load(s, m.as_ptr().add(at + vector * lanes)) };
                    }
                    for (row, value) in Output::apply(s, products).into_iter().enumerate() {
                        half[row][column] = value;
                    }
                }
                let bias = self.bias.map_or(zero, |bias| {
                    s.partial_load_f32s(&bias[channel..channel + left])
                });
                for (row, half) in half.into_iter().enumerate().take(high) {
                    let line = Output::apply(s, half);
                    for (column, value) in line.into_iter().enumerate().take(wide) {
                        let pixel = (image * height + y + row) * width + x + column;
                        let at = pixel * g.out_channels + channel;
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
}
