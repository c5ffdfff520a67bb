//! Matrix products, by the crate `gemm`.
//!
//! An element of a product is one chain of fused multiply-adds over the inner dimension, in blocks whose length depends on
//! the matrices and on the machine's caches alone: threads share rows and columns, never a sum.

use gemm::Parallelism;
use gemm_common::cache::kernel_params;

/// A matrix within a slice.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    /// Where it lies.
    pub elements: &'a [f32],
    /// Its rows.
    pub rows: usize,
    /// Its columns.
    pub columns: usize,
    /// From a row to the next.
    pub row_step: usize,
    /// From a column to the next.
    pub column_step: usize,
}

impl<'a> Matrix<'a> {
    /// A matrix whose rows lie one after the other.
    pub fn new(elements: &'a [f32], rows: usize, columns: usize) -> Self {
        Matrix {
            elements,
            rows,
            columns,
            row_step: columns,
            column_step: 1,
        }
    }

    /// Rows for columns.
    #[must_use]
    pub fn transposed(self) -> Self {
        Matrix {
            rows: self.columns,
            columns: self.rows,
            row_step: self.column_step,
            column_step: self.row_step,
            ..self
        }
    }

    fn is_inside(&self) -> bool {
        let last = |count: usize, step: usize| count.checked_sub(1)?.checked_mul(step);
        let end = |rows: usize, columns: usize| rows.checked_add(columns);
        last(self.rows, self.row_step)
            .zip(last(self.columns, self.column_step))
            .and_then(|(rows, columns)| end(rows, columns))
            .is_some_and(|last| last < self.elements.len())
    }
}

/// Register tiles of `gemm` on the processors that it knows: rows, columns.
const TILES: [[usize; 2]; 3] = [[48, 8], [24, 4], [16, 4]];

/// The most bytes that a product of `[rows, inner]` and `[inner, columns]` takes meanwhile: both matrices packed, for as
/// many of the inner dimension as `gemm` takes at a time on this processor.
pub fn matmul_bytes(rows: usize, inner: usize, columns: usize) -> u64 {
    let depths = TILES.map(|[of_rows, of_columns]| {
        kernel_params(rows, columns, inner, of_rows, of_columns, size_of::<f32>()).kc
    });
    let deepest = depths.into_iter().max().unwrap_or(inner).min(inner);
    let sides = (rows as u64).saturating_add(columns as u64);
    let padding = (TILES[0][0] + TILES[0][1]) as u64;
    let elements = sides.saturating_add(padding).saturating_mul(deepest as u64);
    elements.saturating_mul(size_of::<f32>() as u64)
}

/// `out = a b`, row after row; with `threads`, on all of rayon's current pool.
///
/// # Panics
/// When sizes do not fit, or one is zero.
pub fn matmul(a: Matrix<'_>, b: Matrix<'_>, out: &mut [f32], threads: bool) {
    assert_eq!(a.columns, b.rows, "the inner dimension");
    assert_eq!(out.len(), a.rows * b.columns, "the product's elements");
    assert!(a.is_inside() && b.is_inside(), "a matrix outside its slice");
    let parallelism = if threads && rayon::current_num_threads() > 1 {
        Parallelism::Rayon(0)
    } else {
        Parallelism::None
    };
    // Steps fit: the matrices lie within slices.
    let [a_rows, a_columns, b_rows, b_columns, out_rows] = [
        a.row_step,
        a.column_step,
        b.row_step,
        b.column_step,
        b.columns,
    ]
    .map(usize::cast_signed);
    // SAFETY: the matrices lie within their slices, and the product has as many elements as `out`.
    unsafe {
        gemm::gemm(
            a.rows,
            b.columns,
            a.columns,
            out.as_mut_ptr(),
            1,
            out_rows,
            false,
            a.elements.as_ptr(),
            a_columns,
            a_rows,
            b.elements.as_ptr(),
            b_columns,
            b_rows,
            0.0,
            1.0,
            false,
            false,
            false,
            parallelism,
        );
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count)
            .map(|i| ((i * 7919 + seed * 104_729) % 1013) as f32 / 506.5 - 1.0)
            .collect()
    }

    proptest! {
        #[test]
        fn products_are_right(
            rows in 1..70_usize,
            inner in 1..300_usize,
            columns in 1..70_usize,
            turned in any::<(bool, bool)>(),
            threads in any::<bool>(),
        ) {
            let (a, b) = (numbers(rows * inner, 1), numbers(inner * columns, 2));
            let of = |elements, rows, columns, turned: bool| match turned {
                false => Matrix::new(elements, rows, columns),
                true => Matrix::new(elements, columns, rows).transposed(),
            };
            let (a, b) = (of(&a, rows, inner, turned.0), of(&b, inner, columns, turned.1));
            let mut out = vec![f32::NAN; rows * columns];
            matmul(a, b, &mut out, threads);
            let at = |m: &Matrix<'_>, row: usize, column: usize| {
                f64::from(m.elements[row * m.row_step + column * m.column_step])
            };
            for (i, out) in out.iter().enumerate() {
                let terms = (0..inner).map(|k| at(&a, i / columns, k) * at(&b, k, i % columns));
                let expected: f64 = terms.sum();
                prop_assert!((f64::from(*out) - expected).abs() <= 1e-6 * inner as f64, "{out} for {expected}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "a matrix outside its slice")]
    fn matrices_stay_inside_their_slices() {
        let long = Matrix {
            row_step: 3,
            ..Matrix::new(&[1.0; 4], 2, 2)
        };
        matmul(long, Matrix::new(&[1.0; 4], 2, 2), &mut [0.0; 4], false);
    }
}
