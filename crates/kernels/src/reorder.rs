//! From channels first to channels last and back.

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

/// Rows of the result that a thread writes at a time.
const ROWS: usize = 64;

use crate::Isa;
use crate::square::{WIDEST, turned};
use crate::tile::{load, store};

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
    fn with_simd<S: Simd>(self, s: S) {
        let Turn {
            from,
            rows,
            columns,
            first,
            to,
        } = self;
        let (from, count) = (&from[first..], to.len() / rows);
        // SAFETY: `to` has `count` rows of `rows` elements.
        unsafe { turn_within(s, from, columns, [rows, count], to.as_mut_ptr(), rows) };
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
pub(crate) unsafe fn turn_within<S: Simd>(
    s: S,
    from: &[f32],
    from_step: usize,
    [rows, columns]: [usize; 2],
    to: *mut f32,
    to_step: usize,
) {
    let lanes = S::F32_LANES;
    let mut square = [s.splat_f32s(0.0); WIDEST];
    for row in (0..rows).step_by(lanes) {
        for column in (0..columns).step_by(lanes) {
            let (high, wide) = (lanes.min(rows - row), lanes.min(columns - column));
            let is_whole = high == lanes && wide == lanes;
            for (line, at) in square.iter_mut().zip(row..row + high) {
                let from = &from[at * from_step + column..][..wide];
                *line = if is_whole {
                    // SAFETY: a vector's worth.
                    unsafe { load(s, from.as_ptr()) }
                } else {
                    s.partial_load_f32s(from)
                };
            }
            let lines = turned(s, square).into_iter().take(wide);
            for (line, at) in lines.zip(column..) {
                // SAFETY: the caller's.
                unsafe {
                    let to = to.add(at * to_step + row);
                    if is_whole {
                        store(s, to, line);
                    } else {
                        s.partial_store_f32s(std::slice::from_raw_parts_mut(to, high), line);
                    }
                }
            }
        }
    }
}
