//! Sums and means over dimensions.

use super::array::{Array, flat, for_each_index, strides};
use super::{Call, Fault};

/// The sum over `dims`, or over all when none is named; divided by their number of elements when `mean` is set.
pub(super) fn reduce(call: &Call<'_>, dims: &[usize], mean: bool) -> Result<Vec<Array>, Fault> {
    let (input, shape) = (call.floats(0)?, call.result(0)?);
    let from = call.dims(0)?;
    let reduced = |dim: usize| dims.is_empty() || dims.contains(&dim);
    // The result's shape with its reduced dimensions kept at size 1, which has the same order of elements.
    let kept: Vec<usize> = from
        .iter()
        .enumerate()
        .map(|(dim, &size)| if reduced(dim) { 1 } else { size })
        .collect();
    let to: Vec<usize> = strides(&kept)
        .into_iter()
        .enumerate()
        .map(|(dim, stride)| if reduced(dim) { 0 } else { stride })
        .collect();
    let mut sums = vec![0.0; shape.elements()];
    let mut elements = input.iter();
    for_each_index(from, |index| {
        if let Some(x) = elements.next() {
            sums[flat(index, &to)] += x;
        }
    });
    if mean {
        let count = input.len() as f64 / sums.len() as f64;
        sums.iter_mut().for_each(|sum| *sum /= count);
    }
    Ok(vec![Array::floats(shape, sums)])
}
