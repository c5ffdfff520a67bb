//! The register tile: a few rows times a few vectors of a matrix product, all sums in registers.
//!
//! ```text
//!                      right: one row of vectors a depth
//!                      [ b b b b | b b b b ]
//!   left: a column  a  [ + + + + | + + + + ]
//!   of elements     a  [ + + + + | + + + + ]   each element is one chain of multiply-adds over the depth
//!   a depth         a  [ + + + + | + + + + ]
//! ```

use pulp::Simd;

use crate::isa::{ROWS_OF_1, ROWS_OF_4, ROWS_OF_8, ROWS_OF_16, blocking};

/// Where the elements of the left matrix lie: in `chunks` runs of depths.
#[derive(Clone, Copy)]
pub(crate) struct Left {
    /// The first row at the first depth.
    pub(crate) start: *const f32,
    /// From a row to the next.
    pub(crate) row_step: usize,
    /// From a depth to the next within a chunk.
    pub(crate) depth_step: usize,
    /// Depths of a chunk.
    pub(crate) chunk: usize,
    /// From a chunk to the next.
    pub(crate) chunk_step: usize,
    /// Chunks.
    pub(crate) chunks: usize,
}

/// Where the rows of the right matrix lie.
#[derive(Clone, Copy)]
pub(crate) struct Right {
    /// The first column at the first depth.
    pub(crate) start: *const f32,
    /// From a depth to the next within a chunk.
    pub(crate) depth_step: usize,
    /// From a chunk of the left matrix's depths to the next.
    pub(crate) chunk_step: usize,
}

impl Right {
    /// Rows one after the other, whatever the left matrix's chunks.
    pub(crate) fn packed(start: *const f32, depth_step: usize, chunk: usize) -> Self {
        Right {
            start,
            depth_step,
            chunk_step: chunk * depth_step,
        }
    }
}

/// What the sums start from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// Zero.
    Zero,
    /// What the output holds.
    Sum,
    /// A row that all rows start from: as many elements as a tile has columns.
    Row(*const f32),
}

/// Reads a vector from anywhere.
///
/// # Safety
/// A vector's worth of elements can be read.
#[inline(always)]
pub(crate) unsafe fn load<S: Simd>(_: S, from: *const f32) -> S::f32s {
    // SAFETY: the caller's; any bits are a vector.
    unsafe { from.cast::<S::f32s>().read_unaligned() }
}

/// Writes a vector to anywhere.
///
/// # Safety
/// A vector's worth of elements can be written.
#[inline(always)]
pub(crate) unsafe fn store<S: Simd>(_: S, to: *mut f32, vector: S::f32s) {
    // SAFETY: the caller's.
    unsafe { to.cast::<S::f32s>().write_unaligned(vector) }
}

/// `ROWS` rows of a product.
///
/// # Safety
/// All elements that `left`, `right` and `start` describe can be read, `VECTORS` vectors at each of `outputs(0..ROWS)` can
/// be written.
#[inline(always)]
unsafe fn rows<S: Simd, const ROWS: usize, const VECTORS: usize>(
    simd: S,
    left: Left,
    right: Right,
    outputs: impl Fn(usize) -> *mut f32,
    start: Start,
) {
    let lanes = S::F32_LANES;
    let zero = simd.splat_f32s(0.0);
    let mut sums = [[zero; VECTORS]; ROWS];
    // SAFETY: every address is within what the caller vouches for.
    unsafe {
        match start {
            Start::Zero => {}
            Start::Sum => {
                for (row, sums) in sums.iter_mut().enumerate() {
                    for (v, sum) in sums.iter_mut().enumerate() {
                        *sum = load(simd, outputs(row).add(v * lanes));
                    }
                }
            }
            Start::Row(from) => {
                for sums in &mut sums {
                    for (v, sum) in sums.iter_mut().enumerate() {
                        *sum = load(simd, from.add(v * lanes));
                    }
                }
            }
        }
        for chunk in 0..left.chunks {
            let mut elements = left.start.add(chunk * left.chunk_step);
            let mut at = right.start.add(chunk * right.chunk_step);
            for _ in 0..left.chunk {
                let mut line = [zero; VECTORS];
                for (v, vector) in line.iter_mut().enumerate() {
                    *vector = load(simd, at.add(v * lanes));
                }
                for (row, sums) in sums.iter_mut().enumerate() {
                    let element = simd.splat_f32s(*elements.add(row * left.row_step));
                    for (sum, vector) in sums.iter_mut().zip(line) {
                        *sum = simd.mul_add_e_f32s(element, vector, *sum);
                    }
                }
                at = at.add(right.depth_step);
                elements = elements.add(left.depth_step);
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            for (v, sum) in sums.iter().enumerate() {
                store(simd, outputs(row).add(v * lanes), *sum);
            }
        }
    }
}

macro_rules! some_rows {
    ($count:expr, $vectors:literal, [$($rows:literal)*], $arguments:tt) => {
        match $count {
            $($rows => some_rows!(@call $rows, $vectors, $arguments),)*
            _ => debug_assert!(false, "a tile has no {} rows", $count),
        }
    };
    (@call $rows:literal, $vectors:literal, ($($argument:expr),*)) => {
        rows::<S, $rows, $vectors>($($argument),*)
    };
}

/// `count` rows, at most a tile's, of a product as wide as a tile.
///
/// # Safety
/// As for the fields: all elements that `left`, `right` and `start` describe can be read, a tile's columns at each of
/// `outputs(0..count)` can be written.
#[inline(always)]
pub(crate) unsafe fn tile<S: Simd>(
    simd: S,
    count: usize,
    left: Left,
    right: Right,
    outputs: impl Fn(usize) -> *mut f32,
    start: Start,
) {
    // Each list goes up to the constant of its width.
    const { assert!(ROWS_OF_16 <= 14 && ROWS_OF_8 <= 6 && ROWS_OF_4 <= 8 && ROWS_OF_1 <= 2) };
    debug_assert!(count <= blocking::<S>().rows);
    // SAFETY: the caller's.
    unsafe {
        match S::F32_LANES {
            16 => {
                some_rows!(count, 2, [1 2 3 4 5 6 7 8 9 10 11 12 13 14], (simd, left, right, outputs, start))
            }
            8 => some_rows!(count, 2, [1 2 3 4 5 6], (simd, left, right, outputs, start)),
            4 => some_rows!(count, 2, [1 2 3 4 5 6 7 8], (simd, left, right, outputs, start)),
            _ => some_rows!(count, 4, [1 2], (simd, left, right, outputs, start)),
        }
    }
}
