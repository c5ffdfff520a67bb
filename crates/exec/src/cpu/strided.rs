//! Copies the elements of a view into order.

use burn_flex::Layout;
use rayon::prelude::*;

/// Rows, and columns, that are copied together: where rows are neighbours in the source, its cache lines are used whole.
const TILE: usize = 16;

/// The elements of `source` that `layout` shows, in its order. Its strides are not negative.
pub(super) fn gathered<T: Copy + Default + Send + Sync>(source: &[T], layout: &Layout) -> Vec<T> {
    let mut out = vec![T::default(); layout.num_elements()];
    let dims: &[usize] = layout.shape();
    let (Some((&width, outer)), Some((&stride, strides))) =
        (dims.split_last(), layout.strides().split_last())
    else {
        out.iter_mut()
            .zip(source.get(layout.start_offset()..).unwrap_or_default())
            .for_each(|(out, element)| *out = *element);
        return out;
    };
    let stride = stride.unsigned_abs();
    // Where a row begins in the source: the digits of its number, each times its stride.
    let begin = |row: usize| {
        let digits = outer.iter().zip(strides).rev();
        let (begin, _) = digits.fold(
            (layout.start_offset(), row),
            |(begin, rest), (dim, stride)| (begin + rest % dim * stride.unsigned_abs(), rest / dim),
        );
        begin
    };
    out.par_chunks_mut(TILE * width.max(1))
        .enumerate()
        .for_each(|(tile, rows)| {
            let begins: Vec<usize> = (0..rows.len() / width)
                .map(|row| begin(tile * TILE + row))
                .collect();
            if stride == 1 {
                for (row, begin) in rows.chunks_exact_mut(width).zip(begins) {
                    row.copy_from_slice(&source[begin..][..width]);
                }
                return;
            }
            for column in (0..width).step_by(TILE) {
                let columns = column..(column + TILE).min(width);
                for (row, begin) in rows.chunks_exact_mut(width).zip(&begins) {
                    let from = begin + columns.start * stride;
                    for (index, out) in row[columns.clone()].iter_mut().enumerate() {
                        *out = source[from + index * stride];
                    }
                }
            }
        });
    out
}

#[cfg(test)]
mod tests {
    use burn_backend::Shape;

    use super::*;

    /// Every permutation of a small tensor, with a row that is broadcast and one that skips.
    #[test]
    fn any_strides_give_the_elements_in_order() {
        let source: Vec<u16> = (0..4000).collect();
        let axes = [(3, 700), (17, 40), (1, 5), (19, 2), (2, 0)];
        let mut orders = vec![vec![]];
        for axis in 0..axes.len() {
            orders = orders
                .into_iter()
                .flat_map(|order: Vec<usize>| {
                    (0..=order.len()).map(move |at| {
                        let mut order = order.clone();
                        order.insert(at, axis);
                        order
                    })
                })
                .collect();
        }
        assert_eq!(orders.len(), 120);
        for order in orders {
            let dims: Vec<usize> = order.iter().map(|axis| axes[*axis].0).collect();
            let strides: Vec<isize> = order.iter().map(|axis| axes[*axis].1).collect();
            let layout = Layout::new(Shape::from(dims.clone()), strides.clone(), 7);
            let mut expected = vec![7_usize];
            for (dim, stride) in dims.iter().zip(&strides) {
                expected = expected
                    .iter()
                    .flat_map(|at| (0..*dim).map(move |index| at + index * stride.unsigned_abs()))
                    .collect();
            }
            let expected: Vec<u16> = expected.into_iter().map(|at| source[at]).collect();
            assert_eq!(gathered(&source, &layout), expected, "{order:?}");
        }
    }

    #[test]
    fn no_dimension_is_one_element_and_an_empty_one_none() {
        let scalar = Layout::new(Shape::from(Vec::<usize>::new()), Vec::new(), 2);
        assert_eq!(gathered(&[1_i64, 2, 3], &scalar), [3]);
        let empty = Layout::new(Shape::from(vec![2, 0]), vec![1, 2], 0);
        assert_eq!(gathered(&[1_i64, 2, 3], &empty), [0_i64; 0]);
    }
}
