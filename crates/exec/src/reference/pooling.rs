//! Pooling over planes and its gradients.

use std::ops::Range;

use super::array::{Array, Shape};
use super::{Call, Fault};

/// The planes of an `[..., height, width]` tensor.
struct Planes {
    height: usize,
    width: usize,
}

impl Planes {
    fn of(dims: &[usize]) -> Result<Self, Fault> {
        match dims {
            [.., height, width] if height * width > 0 => Ok(Self {
                height: *height,
                width: *width,
            }),
            _ => Err(Fault(format!("shape {dims:?} has no planes to pool"))),
        }
    }

    fn size(&self) -> usize {
        self.height * self.width
    }
}

fn pair(attribute: &[usize]) -> Result<[usize; 2], Fault> {
    attribute.try_into().map_err(|_| {
        Fault(format!(
            "needs two numbers for height and width, got {attribute:?}"
        ))
    })
}

/// `max_pool2d_with_indices`: a later equal element does not win, a NaN does.
pub(super) fn max_pool(
    call: &Call<'_>,
    kernel_size: &[usize],
    stride: &[usize],
    padding: &[usize],
    dilation: &[usize],
) -> Result<Vec<Array>, Fault> {
    let (kernel, stride) = (pair(kernel_size)?, pair(stride)?);
    let (padding, dilation) = (pair(padding)?, pair(dilation)?);
    let from = Planes::of(call.dims(0)?)?;
    let to = Planes::of(&call.result(0)?.dims)?;
    let taps = |out: usize, axis: usize, size: usize| {
        (0..kernel[axis]).filter_map(move |tap| {
            (out * stride[axis] + tap * dilation[axis])
                .checked_sub(padding[axis])
                .filter(|&at| at < size)
        })
    };
    let (mut values, mut indices) = (Vec::new(), Vec::new());
    for plane in call.floats(0)?.chunks(from.size()) {
        for row in 0..to.height {
            for column in 0..to.width {
                let mut best: Option<(f64, usize)> = None;
                for y in taps(row, 0, from.height) {
                    for x in taps(column, 1, from.width) {
                        let at = y * from.width + x;
                        let value = plane[at];
                        if best.is_none_or(|(most, _)| value > most || value.is_nan()) {
                            best = Some((value, at));
                        }
                    }
                }
                let (value, at) = best.ok_or_else(|| {
                    Fault(format!(
                        "the window of output ({row}, {column}) covers padding alone"
                    ))
                })?;
                values.push(value);
                indices.push(at as i64);
            }
        }
    }
    Ok(vec![
        Array::floats(call.result(0)?, values),
        Array::ints(call.result(1)?, indices),
    ])
}

/// `(grad, indices)`: each gradient goes to the element that won.
pub(super) fn max_pool_grad(call: &Call<'_>) -> Result<Vec<Array>, Fault> {
    let shape = call.result(0)?;
    let (from, to) = (Planes::of(&shape.dims)?, Planes::of(call.dims(0)?)?);
    let mut values = vec![0.0; shape.elements()];
    let grads = call
        .floats(0)?
        .chunks(to.size())
        .zip(call.ints(1)?.chunks(to.size()));
    for (plane, (grads, indices)) in values.chunks_mut(from.size()).zip(grads) {
        for (grad, &index) in grads.iter().zip(indices) {
            let value = usize::try_from(index)
                .ok()
                .and_then(|index| plane.get_mut(index));
            *value.ok_or_else(|| {
                Fault(format!(
                    "index {index} is outside of a plane of {} elements",
                    from.size()
                ))
            })? += grad;
        }
    }
    Ok(vec![Array::floats(shape, values)])
}

/// The attributes of an average pooling.
#[derive(Clone, Copy)]
pub(super) struct Average<'a> {
    pub(super) kernel_size: &'a [usize],
    pub(super) stride: &'a [usize],
    pub(super) padding: &'a [usize],
    pub(super) count_include_pad: bool,
    pub(super) divisor_override: Option<usize>,
}

/// Where each output element takes its mean, and over how many elements.
struct Mean {
    rows: Range<usize>,
    columns: Range<usize>,
    divisor: f64,
}

impl Average<'_> {
    /// The windows of one plane, row-major.
    fn means(self, from: &Planes, to: &Planes) -> Result<Vec<Mean>, Fault> {
        let (kernel, stride, padding) = (
            pair(self.kernel_size)?,
            pair(self.stride)?,
            pair(self.padding)?,
        );
        // The window on one axis: its length with padding (which `ceil_mode` may overshoot, and then is cut), and
        // what of it lies within the plane.
        let window = |out: usize, axis: usize, size: usize| {
            let start = out * stride[axis];
            let end = (start + kernel[axis]).min(size + 2 * padding[axis]);
            let within = start.saturating_sub(padding[axis]).min(size)
                ..end.saturating_sub(padding[axis]).min(size);
            (end.saturating_sub(start), within)
        };
        let mut means = Vec::with_capacity(to.size());
        for row in 0..to.height {
            for column in 0..to.width {
                let (height, rows) = window(row, 0, from.height);
                let (width, columns) = window(column, 1, from.width);
                let divisor = match self.divisor_override {
                    Some(divisor) => divisor,
                    None if self.count_include_pad => height * width,
                    None => rows.len() * columns.len(),
                };
                means.push(Mean {
                    rows,
                    columns,
                    divisor: divisor as f64,
                });
            }
        }
        Ok(means)
    }
}

pub(super) fn avg_pool(call: &Call<'_>, attributes: Average<'_>) -> Result<Vec<Array>, Fault> {
    let (from, to) = (
        Planes::of(call.dims(0)?)?,
        Planes::of(&call.result(0)?.dims)?,
    );
    forward(call, &from, &attributes.means(&from, &to)?)
}

/// `(grad)`.
pub(super) fn avg_pool_grad(call: &Call<'_>, attributes: Average<'_>) -> Result<Vec<Array>, Fault> {
    let shape = call.result(0)?;
    let (from, to) = (Planes::of(&shape.dims)?, Planes::of(call.dims(0)?)?);
    backward(call, shape, &from, &attributes.means(&from, &to)?)
}

pub(super) fn adaptive_avg_pool(call: &Call<'_>) -> Result<Vec<Array>, Fault> {
    let (from, to) = (
        Planes::of(call.dims(0)?)?,
        Planes::of(&call.result(0)?.dims)?,
    );
    forward(call, &from, &adaptive_means(&from, &to))
}

/// `(grad)`.
pub(super) fn adaptive_avg_pool_grad(call: &Call<'_>) -> Result<Vec<Array>, Fault> {
    let shape = call.result(0)?;
    let (from, to) = (Planes::of(&shape.dims)?, Planes::of(call.dims(0)?)?);
    backward(call, shape, &from, &adaptive_means(&from, &to))
}

/// Output `i` of `n` takes the mean over `floor(i * size / n) .. ceil((i + 1) * size / n)`.
fn adaptive_means(from: &Planes, to: &Planes) -> Vec<Mean> {
    let range =
        |out: usize, outs: usize, size: usize| out * size / outs..((out + 1) * size).div_ceil(outs);
    let mut means = Vec::with_capacity(to.size());
    for row in 0..to.height {
        for column in 0..to.width {
            let rows = range(row, to.height, from.height);
            let columns = range(column, to.width, from.width);
            let divisor = (rows.len() * columns.len()) as f64;
            means.push(Mean {
                rows,
                columns,
                divisor,
            });
        }
    }
    means
}

fn forward(call: &Call<'_>, from: &Planes, means: &[Mean]) -> Result<Vec<Array>, Fault> {
    let shape = call.result(0)?;
    let mut values = Vec::with_capacity(shape.elements());
    for plane in call.floats(0)?.chunks(from.size()) {
        for mean in means {
            let mut sum = 0.0;
            for y in mean.rows.clone() {
                for x in mean.columns.clone() {
                    sum += plane[y * from.width + x];
                }
            }
            // A window over padding alone is zero, whatever its divisor.
            let empty = mean.rows.is_empty() || mean.columns.is_empty();
            values.push(if empty { 0.0 } else { sum / mean.divisor });
        }
    }
    Ok(vec![Array::floats(shape, values)])
}

fn backward(
    call: &Call<'_>,
    shape: &Shape,
    from: &Planes,
    means: &[Mean],
) -> Result<Vec<Array>, Fault> {
    let mut values = vec![0.0; shape.elements()];
    let grads = call.floats(0)?.chunks(means.len().max(1));
    for (plane, grads) in values.chunks_mut(from.size()).zip(grads) {
        for (mean, grad) in means.iter().zip(grads) {
            for y in mean.rows.clone() {
                for x in mean.columns.clone() {
                    plane[y * from.width + x] += grad / mean.divisor;
                }
            }
        }
    }
    Ok(vec![Array::floats(shape, values)])
}
