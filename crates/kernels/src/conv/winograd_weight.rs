//! The weight gradient by the adjoint of Winograd's filtering: `dG = G^T [ sum of (A dY A^T) . (B^T d B) ] G` over all tiles.
//!
//! ```text
//!   image    --B^T d B---> U [group of tiles][panel of inputs][point][tile][input]      a block of tiles at a time
//!   gradient --A dY A^T--> D [group of tiles][panel of outputs][point][tile][output]
//!                          U^T D, a square of inputs and outputs at a time, 36 products
//!   sums [square][input][tap][output] += G^T (U^T D) G
//! ```
//!
//! Where there are many tiles and few weights, tiles are cut into segments that threads sum up on their own, and the segments'
//! sums are added in order. Else threads transform the same tiles and take squares.

use pulp::{Simd, WithSimd};

use super::Convolution;
use super::transform::{Gradient, Input, POINTS, Product, Transform};
use crate::crew;
use crate::isa::{Blocking, Isa};
use crate::reorder::turn_within;
use crate::share::Shared;
use crate::tile::{Left, Right, Start, load, store, tile};

/// Elements of a cache line, between parts that should not fall on the same sets of a cache.
const LINE: usize = 16;
/// Tiles of a group: what is summed without a jump, and what a thread transforms at a time.
const GROUP: usize = 8;
/// Elements of a block's `U` and `D` that are aimed at.
const BLOCK_ELEMENTS: usize = 512 << 10;
/// A block's tiles, at the least and at the most: what a product reads of them fits the first-level cache.
const FEWEST_TILES: usize = 32;
const MOST_TILES: usize = 128;
/// Segments at the most, and tiles of one at the least.
const MOST_SEGMENTS: usize = 8;
const SEGMENT_TILES: usize = 64;
/// Sums of all segments together at the most.
const SEGMENT_SUMS: usize = 5 << 18;
/// Inputs of a square; as many columns as a register tile has are its outputs.
const SQUARE_INPUTS: usize = 32;
/// Panels of inputs that are used together.
const STRIP: usize = 4;
/// Groups begin a quarter of this apart modulo this, so that a product's groups spread over all sets of a cache.
const SETS: usize = 1024;

/// One of `U` and `D`.
#[derive(Clone, Copy, Debug)]
struct Side {
    /// Channels of a panel.
    width: usize,
    panels: usize,
    point_step: usize,
    panel_step: usize,
    group_step: usize,
}

impl Side {
    fn new(channels: usize, width: usize) -> Self {
        let panels = channels.div_ceil(width);
        let point_step = GROUP * width + LINE;
        let panel_step = POINTS * point_step;
        let group_step = (panels * panel_step).next_multiple_of(SETS) + SETS / 4;
        Side {
            width,
            panels,
            point_step,
            panel_step,
            group_step,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Layout {
    blocking: Blocking,
    down: usize,
    across: usize,
    tiles: usize,
    /// Tiles of a segment, and of a block: whole groups.
    segment: usize,
    block: usize,
    inputs: Side,
    outputs: Side,
}

impl Layout {
    fn new(g: &Convolution, blocking: Blocking) -> Self {
        let (down, across) = (g.output[1].div_ceil(4), g.output[2].div_ceil(4));
        let tiles = g.images * down * across;
        let inputs = Side::new(g.in_channels, SQUARE_INPUTS);
        let outputs = Side::new(g.out_channels, blocking.columns());
        let squares = inputs.panels * outputs.panels;
        let sums = squares * 9 * SQUARE_INPUTS * blocking.columns();
        let segments = (tiles / SEGMENT_TILES)
            .min(SEGMENT_SUMS / sums)
            .clamp(1, MOST_SEGMENTS);
        // A power of two, to share among threads.
        let segments = 1 << segments.ilog2();
        let segment = tiles.div_ceil(segments).next_multiple_of(GROUP);
        let of_tile = (inputs.group_step + outputs.group_step) / GROUP;
        let block = (BLOCK_ELEMENTS / of_tile).clamp(FEWEST_TILES, MOST_TILES);
        let block = segment.div_ceil(segment.div_ceil(block));
        Layout {
            blocking,
            down,
            across,
            tiles,
            segment,
            block: block.next_multiple_of(GROUP),
            inputs,
            outputs,
        }
    }

    fn segments(&self) -> usize {
        self.tiles.div_ceil(self.segment)
    }

    /// Blocks of a segment.
    fn blocks(&self) -> usize {
        self.segment.min(self.tiles).div_ceil(self.block)
    }

    /// Sums of one square.
    fn sums(&self) -> usize {
        9 * SQUARE_INPUTS * self.blocking.columns()
    }

    fn squares(&self) -> usize {
        self.inputs.panels * self.outputs.panels
    }

    /// The panels of inputs and of outputs of a square. A few panels of inputs stay in the second-level cache while those of
    /// outputs go by.
    fn square(&self, index: usize) -> (usize, usize) {
        let strip = index / (STRIP * self.outputs.panels);
        let high = STRIP.min(self.inputs.panels - strip * STRIP);
        let within = index - strip * STRIP * self.outputs.panels;
        (strip * STRIP + within % high, within / high)
    }

    /// From a point to the next of a square's products.
    fn product_point(&self) -> usize {
        SQUARE_INPUTS * self.blocking.columns() + LINE
    }

    /// Whether sums outlive their square.
    fn keeps_sums(&self) -> bool {
        self.segments() * self.blocks() > 1
    }

    /// Elements of `U` and `D`.
    fn transformed(&self) -> usize {
        self.block / GROUP * (self.inputs.group_step + self.outputs.group_step)
    }

    /// Elements of the kept sums and of what all threads see of `U` and `D`, and of what each thread has for itself: products
    /// and sums of a square, and a segment's own `U` and `D`.
    fn elements(&self) -> [usize; 3] {
        let kept = if self.keeps_sums() {
            self.segments() * self.squares()
        } else {
            0
        };
        let of_square = POINTS * self.product_point() + self.sums();
        if self.segments() > 1 {
            [kept * self.sums(), 0, of_square + self.transformed()]
        } else {
            [kept * self.sums(), self.transformed(), of_square]
        }
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
    let [sums, transformed, own] = Layout::new(g, isa.blocking()).elements();
    sums + transformed + threads * own
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
    let [sums, transformed, own] = layout.elements();
    let (sums, rest) = scratch.split_at_mut(sums);
    let (transformed, rest) = rest.split_at_mut(transformed);
    let work = Work {
        layout,
        g,
        input,
        grad,
        sums: Shared::new(sums),
        out: Shared::new(out),
    };
    if layout.segments() > 1 {
        let of_square = own - layout.transformed();
        let phases = [layout.segments(), layout.squares()];
        crew::work(rest, own, &phases, |phase, index, own| {
            if phase == 1 {
                isa.run(Finish {
                    work,
                    square: index,
                });
                return;
            }
            let (own, transformed) = own.split_at_mut(of_square);
            let sides = Sides::new(layout, transformed);
            for block in 0..layout.blocks() {
                let at = work.block(index, block);
                // The last segment may be shorter.
                if at.count() == 0 {
                    break;
                }
                for group in 0..at.groups() {
                    isa.run(Group {
                        work,
                        sides,
                        at,
                        group,
                    });
                }
                for square in 0..layout.squares() {
                    isa.run(Square {
                        work,
                        sides,
                        own,
                        at,
                        square,
                    });
                }
            }
        });
        return;
    }
    let sides = Sides::new(layout, transformed);
    let phases: Vec<usize> = (0..layout.blocks())
        .flat_map(|block| [work.block(0, block).groups(), layout.squares()])
        .collect();
    crew::work(rest, own, &phases, |phase, index, own| {
        let at = work.block(0, phase / 2);
        if phase % 2 == 0 {
            isa.run(Group {
                work,
                sides,
                at,
                group: index,
            });
        } else {
            isa.run(Square {
                work,
                sides,
                own,
                at,
                square: index,
            });
        }
    });
}

/// What all threads see.
#[derive(Clone, Copy)]
struct Work<'a> {
    layout: &'a Layout,
    g: &'a Convolution,
    input: &'a [f32],
    grad: &'a [f32],
    sums: Shared<'a>,
    out: Shared<'a>,
}

/// `U` and `D` of a block.
#[derive(Clone, Copy)]
struct Sides<'a> {
    u: Shared<'a>,
    d: Shared<'a>,
}

impl<'a> Sides<'a> {
    fn new(layout: &Layout, transformed: &'a mut [f32]) -> Self {
        let (u, d) = transformed.split_at_mut(layout.block / GROUP * layout.inputs.group_step);
        Sides {
            u: Shared::new(u),
            d: Shared::new(d),
        }
    }
}

/// A block of a segment, and its tiles.
#[derive(Clone, Copy)]
struct BlockAt {
    segment: usize,
    tiles: (usize, usize),
    is_first: bool,
    is_last: bool,
}

impl BlockAt {
    fn count(&self) -> usize {
        self.tiles.1 - self.tiles.0
    }

    fn groups(&self) -> usize {
        self.count().div_ceil(GROUP)
    }
}

impl<'a> Work<'a> {
    fn block(&self, segment: usize, block: usize) -> BlockAt {
        let l = self.layout;
        let end = ((segment + 1) * l.segment).min(l.tiles);
        let from = (segment * l.segment + block * l.block).min(end);
        BlockAt {
            segment,
            tiles: (from, (from + l.block).min(end)),
            is_first: block == 0,
            is_last: block + 1 == l.blocks(),
        }
    }

    /// The kept sums of a square.
    ///
    /// # Safety
    /// Nobody else reads or writes them meanwhile.
    unsafe fn sums(&self, segment: usize, square: usize) -> &'a mut [f32] {
        let l = self.layout;
        // SAFETY: the caller's.
        unsafe {
            let at = (segment * l.squares() + square) * l.sums();
            self.sums.part(at, l.sums())
        }
    }

    /// Puts a square's sums where its weights are.
    #[inline(always)]
    fn finish<S: Simd>(&self, s: S, square: usize, sums: &[f32]) {
        let (l, g) = (self.layout, self.g);
        let columns = l.blocking.columns();
        let (of_input, of_output) = l.square(square);
        let first_input = of_input * SQUARE_INPUTS;
        let inputs = SQUARE_INPUTS.min(g.in_channels - first_input);
        let outputs = columns.min(g.out_channels - of_output * columns);
        let first = of_output * columns * g.in_channels + first_input;
        // SAFETY: each square's weights are one thread's, within the result.
        unsafe {
            let to = self.out.at(first * 9);
            turn_within(
                s,
                sums,
                columns,
                [inputs * 9, outputs],
                to,
                g.in_channels * 9,
            );
        }
    }
}

/// The segments' sums of a square, added in order.
struct Finish<'a> {
    work: Work<'a>,
    square: usize,
}

impl WithSimd for Finish<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        let Finish { work, square } = self;
        // SAFETY: the segments are summed up, and each square is one thread's.
        let sums = unsafe { work.sums(0, square) };
        for segment in 1..work.layout.segments() {
            // SAFETY: the same.
            let more = unsafe { work.sums(segment, square) };
            let (sums, _) = S::as_mut_simd_f32s(sums);
            let (more, _) = S::as_simd_f32s(more);
            for (sum, more) in sums.iter_mut().zip(more) {
                *sum = s.add_f32s(*sum, *more);
            }
        }
        work.finish(s, square, sums);
    }
}

/// Tiles of image and gradient, transformed.
struct Group<'a> {
    work: Work<'a>,
    sides: Sides<'a>,
    at: BlockAt,
    group: usize,
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

impl WithSimd for Group<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        let Group {
            work,
            sides,
            at,
            group,
        } = self;
        let (l, g) = (work.layout, work.g);
        let lanes = S::F32_LANES;
        let ([_, height, width], [_, out_height, out_width]) = (g.input, g.output);
        let from = at.tiles.0 + group * GROUP;
        let tiles = (from, (from + GROUP).min(at.tiles.1));
        // SAFETY: groups lie within `U` and `D`, and each is one thread's.
        let (u, d) = unsafe {
            let u = sides.u.at(group * l.inputs.group_step);
            (u, sides.d.at(group * l.outputs.group_step))
        };
        for tile in tiles.0..tiles.1 {
            let (image, y, x) = l.place(tile);
            let from = (y.wrapping_sub(g.padding[1]), x.wrapping_sub(g.padding[2]));
            let plane = height * width * g.in_channels;
            let of_image = &work.input[image * plane..][..plane];
            for channel in (0..g.in_channels).step_by(lanes) {
                let size = [height, width];
                let tiled = pixels::<S, 6>(s, of_image, size, from, g.in_channels, channel);
                let side = &l.inputs;
                let at = channel / side.width * side.panel_step
                    + (tile - tiles.0) * side.width
                    + channel % side.width;
                for (point, value) in Input::both(s, tiled).iter().flatten().enumerate() {
                    // SAFETY: within the group.
                    unsafe { store(s, u.add(at + point * side.point_step), *value) };
                }
            }
            let plane = out_height * out_width * g.out_channels;
            let of_image = &work.grad[image * plane..][..plane];
            for channel in (0..g.out_channels).step_by(lanes) {
                let size = [out_height, out_width];
                let tiled = pixels::<S, 4>(s, of_image, size, (y, x), g.out_channels, channel);
                let side = &l.outputs;
                let at = channel / side.width * side.panel_step
                    + (tile - tiles.0) * side.width
                    + channel % side.width;
                for (point, value) in Gradient::both(s, tiled).iter().flatten().enumerate() {
                    // SAFETY: within the group.
                    unsafe { store(s, d.add(at + point * side.point_step), *value) };
                }
            }
        }
    }
}

/// The products of a square of inputs and outputs.
struct Square<'a> {
    work: Work<'a>,
    sides: Sides<'a>,
    own: &'a mut [f32],
    at: BlockAt,
    square: usize,
}

impl WithSimd for Square<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        let Square {
            work,
            sides,
            own,
            at: block,
            square,
        } = self;
        let (l, g) = (work.layout, work.g);
        let Blocking { lanes, rows, .. } = crate::isa::blocking::<S>();
        let columns = l.blocking.columns();
        let (of_input, of_output) = l.square(square);
        let inputs = SQUARE_INPUTS.min(g.in_channels - of_input * SQUARE_INPUTS);
        let (products, sums) = own.split_at_mut(POINTS * l.product_point());
        let parts = inputs.div_ceil(rows);
        // Whole groups, then what is left: unwritten tiles of a group are nobody's.
        let (groups, left_over) = (block.count() / GROUP, block.count() % GROUP);
        for point in 0..POINTS {
            for part in 0..parts {
                let (from, to) = (part * inputs / parts, (part + 1) * inputs / parts);
                let at = point * l.product_point() + from * columns;
                let mut start = Start::Zero;
                for (group, chunk, chunks) in [(0, GROUP, groups), (groups, left_over, 1)] {
                    if chunk * chunks == 0 {
                        continue;
                    }
                    // SAFETY: within `U`, `D` and the products, whose widths are rounded up.
                    unsafe {
                        let left = Left {
                            start: sides.u.at(group * l.inputs.group_step
                                + of_input * l.inputs.panel_step
                                + point * l.inputs.point_step
                                + from),
                            row_step: 1,
                            depth_step: SQUARE_INPUTS,
                            chunk,
                            chunk_step: l.inputs.group_step,
                            chunks,
                        };
                        let right = Right {
                            start: sides.d.at(group * l.outputs.group_step
                                + of_output * l.outputs.panel_step
                                + point * l.outputs.point_step),
                            depth_step: columns,
                            chunk_step: l.outputs.group_step,
                        };
                        let out = products.as_mut_ptr().add(at);
                        tile(
                            s,
                            to - from,
                            left,
                            right,
                            #[inline(always)]
                            |row| out.add(row * columns),
                            start,
                        );
                    }
                    start = Start::Sum;
                }
            }
        }
        let sums = if l.keeps_sums() {
            // SAFETY: each square of a segment is one thread's.
            unsafe { work.sums(block.segment, square) }
        } else {
            sums
        };
        for input in 0..inputs {
            for vector in 0..l.blocking.vectors {
                let mut tiled = [[s.splat_f32s(0.0); 6]; 6];
                for (point, value) in tiled.iter_mut().flatten().enumerate() {
                    let at = point * l.product_point() + input * columns + vector * lanes;
                    debug_assert!(at + lanes <= products.len());
                    // SAFETY: within the products.
                    *value = unsafe { load(s, products.as_ptr().add(at)) };
                }
                for (tap, value) in Product::both(s, tiled).iter().flatten().enumerate() {
                    let at = (input * 9 + tap) * columns + vector * lanes;
                    debug_assert!(at + lanes <= sums.len());
                    // SAFETY: within the sums.
                    unsafe {
                        let to = sums.as_mut_ptr().add(at);
                        let value = if block.is_first {
                            *value
                        } else {
                            s.add_f32s(load(s, to), *value)
                        };
                        store(s, to, value);
                    }
                }
            }
        }
        if block.is_last && l.segments() == 1 {
            work.finish(s, square, sums);
        }
    }
}
