//! From channels first to channels last and back.

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

/// A square that stays in the first-level cache while it is turned.
const SQUARE: usize = 16;
/// Rows of the result that a thread writes at a time.
const ROWS: usize = 64;

use crate::Isa;

/// `to [N, columns, rows]` of `from [N, rows, columns]`.
///
/// # Panics
/// When the lengths are not `N * rows * columns`.
pub fn turn(from: &[f32], rows: usize, columns: usize, to: &mut [f32], isa: Isa) {
    let plane = rows * columns;
    assert_eq!(from.len(), to.len(), "lengths");
    assert!(
        plane > 0 && from.len().is_multiple_of(plane),
        "not whole planes"
    );
    if rows == 1 || columns == 1 {
        to.copy_from_slice(from);
        return;
    }
    to.par_chunks_mut(plane)
        .zip(from.par_chunks(plane))
        .for_each(|(to, from)| {
            to.par_chunks_mut(ROWS * rows)
                .enumerate()
                .for_each(|(part, to)| {
                    isa.run(Turn {
                        from,
                        rows,
                        columns,
                        first: part * ROWS,
                        to,
                    });
                });
        });
}

struct Turn<'a> {
    from: &'a [f32],
    rows: usize,
    columns: usize,
    first: usize,
    to: &'a mut [f32],
}

impl WithSimd for Turn<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Turn {
            from,
            rows,
            columns,
            first,
            to,
        } = self;
        let (from, count) = (&from[first..], to.len() / rows);
        // SAFETY: `to` has `count` rows of `rows` elements.
        unsafe { turn_within(from, columns, [rows, count], to.as_mut_ptr(), rows) };
    }
}

/// Turns a matrix of `size` rows and columns, whose rows lie `from_step` apart in `from` and whose columns shall lie
/// `to_step` apart in `to`.
///
/// # Panics
/// When `from` is too short.
///
/// # Safety
/// All columns can be written.
#[inline(always)]
pub(crate) unsafe fn turn_within(
    from: &[f32],
    from_step: usize,
    [rows, columns]: [usize; 2],
    to: *mut f32,
    to_step: usize,
) {
    for row in (0..rows).step_by(SQUARE) {
        for column in (0..columns).step_by(SQUARE) {
            let (high, wide) = (SQUARE.min(rows - row), SQUARE.min(columns - column));
            let mut square = [[0.0_f32; SQUARE]; SQUARE];
            for (line, at) in square.iter_mut().zip(row..row + high) {
                line[..wide].copy_from_slice(&from[at * from_step + column..][..wide]);
            }
            for at in 0..wide {
                // SAFETY: the caller's.
                let to = unsafe {
                    let to = to.add((column + at) * to_step + row);
                    std::slice::from_raw_parts_mut(to, high)
                };
                for (to, line) in to.iter_mut().zip(&square) {
                    *to = line[at];
                }
            }
        }
    }
}
