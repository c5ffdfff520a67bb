//! Pooling over planes of two dimensions, forward and backward; windows as ATen's CPU kernels walk them.

use rayon::prelude::*;

use super::OpError;
use super::tensor::CpuTensor;

/// Height and width of the last two dimensions.
fn plane(dims: &[usize]) -> [usize; 2] {
    match dims {
        [.., height, width] => [*height, *width],
        [width] => [1, *width],
        [] => [1, 1],
    }
}

/// A pooling's window; each list is height, width.
#[derive(Clone, Copy)]
pub(super) struct Window {
    pub(super) kernel: [usize; 2],
    pub(super) stride: [usize; 2],
    pub(super) padding: [usize; 2],
    pub(super) dilation: [usize; 2],
}

/// The two elements of an attribute, which inference has checked.
pub(super) fn pair(list: &[usize]) -> [usize; 2] {
    match list {
        [height, width, ..] => [*height, *width],
        [size] => [*size, *size],
        [] => [1, 1],
    }
}

impl Window {
    /// The inputs that an output of max pooling looks at along an axis.
    fn inputs(
        &self,
        axis: usize,
        output: usize,
        size: usize,
    ) -> impl Iterator<Item = usize> + use<> {
        let start = output * self.stride[axis];
        let (dilation, padding) = (self.dilation[axis], self.padding[axis]);
        (0..self.kernel[axis]).filter_map(move |tap| {
            (start + tap * dilation)
                .checked_sub(padding)
                .filter(|&input| input < size)
        })
    }
}

/// `max_pool2d_with_indices`: the greatest element of each window, NaN before all, and its place in its plane.
pub(super) fn max(x: &CpuTensor, window: Window, out_dims: &[usize]) -> [CpuTensor; 2] {
    let (input @ [height, width], [out_height, out_width]) = (plane(x.dims()), plane(out_dims));
    let count = out_dims.iter().product();
    let (mut out, mut indices) = (vec![0.0_f32; count], vec![0_i64; count]);
    let out_plane = out_height * out_width;
    (out.par_chunks_mut(out_plane))
        .zip(indices.par_chunks_mut(out_plane))
        .zip(x.f32s().par_chunks(height * width))
        .with_min_len(4)
        .for_each(|((out, indices), x)| {
            let mut positions = out.iter_mut().zip(indices);
            for oy in 0..out_height {
                for ox in 0..out_width {
                    let Some((out, place)) = positions.next() else {
                        return;
                    };
                    let (mut best, mut best_at) = (f32::NEG_INFINITY, None);
                    for y in window.inputs(0, oy, input[0]) {
                        for at in window.inputs(1, ox, input[1]) {
                            let at = y * width + at;
                            let value = x[at];
                            if value > best || value.is_nan() || best_at.is_none() {
                                (best, best_at) = (value, Some(at));
                            }
                        }
                    }
                    *out = best;
                    *place = best_at.unwrap_or(0) as i64;
                }
            }
        });
    [
        CpuTensor::from_f32(out_dims, out),
        CpuTensor::from_i64(out_dims, indices),
    ]
}

/// `max_pool2d_with_indices_backward`.
pub(super) fn max_grad(
    grad: &CpuTensor,
    indices: &CpuTensor,
    input_dims: &[usize],
) -> Result<CpuTensor, OpError> {
    let in_plane = plane(input_dims).iter().product::<usize>();
    let out_plane = plane(grad.dims()).iter().product::<usize>();
    let mut out = vec![0.0; input_dims.iter().product()];
    (out.par_chunks_mut(in_plane))
        .zip(grad.f32s().par_chunks(out_plane))
        .zip(indices.i64s().par_chunks(out_plane))
        .with_min_len(4)
        .try_for_each(|((out, grad), indices)| {
            for (grad, &index) in grad.iter().zip(indices) {
                let place = usize::try_from(index).ok().and_then(|at| out.get_mut(at));
                *place.ok_or_else(|| {
                    OpError::Value(format!("index {index} is outside a plane of {in_plane}"))
                })? += grad;
            }
            Ok(())
        })?;
    Ok(CpuTensor::from_f32(input_dims, out))
}

/// An average pooling's window and divisor.
#[derive(Clone, Copy)]
pub(super) struct Average {
    pub(super) window: Window,
    pub(super) count_include_pad: bool,
    pub(super) divisor: Option<usize>,
}

/// The part of a plane that one output averages, and what its sum is divided by.
struct Part {
    rows: std::ops::Range<usize>,
    columns: std::ops::Range<usize>,
    divisor: f32,
}

impl Average {
    fn part(&self, [oy, ox]: [usize; 2], input: [usize; 2]) -> Part {
        let mut padded = 1;
        let mut axis = |axis: usize, output: usize| {
            let Window {
                kernel,
                stride,
                padding,
                ..
            } = self.window;
            let start = output * stride[axis];
            // In ATen a window of `ceil_mode` ends with the padding on the right.
            let end = (start + kernel[axis]).min(input[axis] + 2 * padding[axis]);
            padded *= end - start;
            let clip = |at: usize| at.saturating_sub(padding[axis]).min(input[axis]);
            clip(start)..clip(end)
        };
        let (rows, columns) = (axis(0, oy), axis(1, ox));
        let inside = rows.len() * columns.len();
        let counted = if self.count_include_pad {
            padded
        } else {
            inside
        };
        Part {
            rows,
            columns,
            divisor: self.divisor.unwrap_or(counted) as f32,
        }
    }
}

/// The part of a plane that one output of adaptive pooling averages: from `floor(i * in / out)` to
/// `ceil((i + 1) * in / out)`.
fn adaptive(output: [usize; 2], [oy, ox]: [usize; 2], input: [usize; 2]) -> Part {
    let range = |axis: usize, at: usize| {
        at * input[axis] / output[axis]..((at + 1) * input[axis]).div_ceil(output[axis])
    };
    let (rows, columns) = (range(0, oy), range(1, ox));
    let divisor = (rows.len() * columns.len()) as f32;
    Part {
        rows,
        columns,
        divisor,
    }
}

fn average(
    x: &CpuTensor,
    out_dims: &[usize],
    part: impl Fn([usize; 2]) -> Part + Sync,
) -> CpuTensor {
    let ([height, width], [out_height, out_width]) = (plane(x.dims()), plane(out_dims));
    let mut out = vec![0.0; out_dims.iter().product()];
    (out.par_chunks_mut(out_height * out_width))
        .zip(x.f32s().par_chunks(height * width))
        .with_min_len(4)
        .for_each(|(out, x)| {
            for (at, out) in out.iter_mut().enumerate() {
                let part = part([at / out_width, at % out_width]);
                if part.rows.is_empty() || part.columns.is_empty() {
                    continue;
                }
                let rows = part.rows.map(|row| &x[row * width..][..width]);
                let sums = rows.map(|row| {
                    let elements = row[part.columns.clone()].iter();
                    elements.map(|x| f64::from(*x)).sum::<f64>()
                });
                *out = (sums.sum::<f64>() / f64::from(part.divisor)) as f32;
            }
        });
    CpuTensor::from_f32(out_dims, out)
}

fn average_grad(
    grad: &CpuTensor,
    input_dims: &[usize],
    part: impl Fn([usize; 2]) -> Part + Sync,
) -> CpuTensor {
    let ([height, width], [out_height, out_width]) = (plane(input_dims), plane(grad.dims()));
    let mut out = vec![0.0; input_dims.iter().product()];
    (out.par_chunks_mut(height * width))
        .zip(grad.f32s().par_chunks(out_height * out_width))
        .with_min_len(4)
        .for_each(|(out, grad)| {
            for (at, grad) in grad.iter().enumerate() {
                let part = part([at / out_width, at % out_width]);
                let share = grad / part.divisor;
                for row in part.rows {
                    let row = &mut out[row * width..][..width];
                    let row = &mut row[part.columns.clone()];
                    row.iter_mut().for_each(|out| *out += share);
                }
            }
        });
    CpuTensor::from_f32(input_dims, out)
}

/// `avg_pool2d`.
pub(super) fn avg(x: &CpuTensor, pool: Average, out_dims: &[usize]) -> CpuTensor {
    let input = plane(x.dims());
    average(x, out_dims, |at| pool.part(at, input))
}

/// `avg_pool2d_backward`.
pub(super) fn avg_grad(grad: &CpuTensor, pool: Average, input_dims: &[usize]) -> CpuTensor {
    let input = plane(input_dims);
    average_grad(grad, input_dims, |at| pool.part(at, input))
}

/// `_adaptive_avg_pool2d`.
pub(super) fn adaptive_avg(x: &CpuTensor, out_dims: &[usize]) -> CpuTensor {
    let (input, output) = (plane(x.dims()), plane(out_dims));
    average(x, out_dims, |at| adaptive(output, at, input))
}

/// `_adaptive_avg_pool2d_backward`.
pub(super) fn adaptive_avg_grad(grad: &CpuTensor, input_dims: &[usize]) -> CpuTensor {
    let (input, output) = (plane(input_dims), plane(grad.dims()));
    average_grad(grad, input_dims, |at| adaptive(output, at, input))
}
