//! Matrix products: from an operator's tensors to the kernels.

use outboard_graph::DType;
use outboard_kernels::{Matrix, matmul};
use rayon::prelude::*;

use super::parallel::CHUNK;
use super::tensor::{CpuTensor, Order};
use super::{OpError, Workplace};

/// The factors' turns: whether each one's rows are read as columns.
pub(super) type Turns = [bool; 2];

/// The last two sizes, and the product of those before.
fn sizes(x: &CpuTensor) -> Result<(usize, usize, usize), OpError> {
    match *x.dims() {
        [ref batches @ .., rows, columns] => Ok((batches.iter().product(), rows, columns)),
        _ => Err(OpError::Shape),
    }
}

fn matrix(elements: &[f32], (_, rows, columns): (usize, usize, usize), turned: bool) -> Matrix<'_> {
    let matrix = Matrix::new(elements, rows, columns);
    if turned { matrix.transposed() } else { matrix }
}

/// `bmm`: batches of products.
pub(super) fn bmm(
    a: &CpuTensor,
    b: &CpuTensor,
    out_dims: &[usize],
    place: &Workplace<'_>,
) -> Result<CpuTensor, OpError> {
    let (of_a, of_b) = (sizes(a)?, sizes(b)?);
    let size = of_a.1 * of_b.2;
    let mut out = place.result(4 * of_a.0 * size);
    (out.f32s().par_chunks_exact_mut(size))
        .zip(a.f32s().par_chunks_exact(of_a.1 * of_a.2))
        .zip(b.f32s().par_chunks_exact(of_b.1 * of_b.2))
        .for_each(|((out, a), b)| {
            matmul(matrix(a, of_a, false), matrix(b, of_b, false), out, false)
        });
    Ok(CpuTensor::from_recycled(
        DType::F32,
        Order::First,
        out_dims,
        out,
    ))
}

/// `mm`.
pub(super) fn mm(
    a: &CpuTensor,
    b: &CpuTensor,
    [turn_a, turn_b]: Turns,
    out_dims: &[usize],
    place: &Workplace<'_>,
) -> Result<CpuTensor, OpError> {
    let mut out = place.result(4 * out_dims.iter().product::<usize>());
    let a = matrix(a.f32s(), sizes(a)?, turn_a);
    let b = matrix(b.f32s(), sizes(b)?, turn_b);
    matmul(a, b, out.f32s(), true);
    Ok(CpuTensor::from_recycled(
        DType::F32,
        Order::First,
        out_dims,
        out,
    ))
}

/// `bias + a @ b`, the bias expanded to the product's shape.
pub(super) fn addmm(
    bias: &CpuTensor,
    a: &CpuTensor,
    b: &CpuTensor,
    turns: Turns,
    out_dims: &[usize],
    place: &Workplace<'_>,
) -> Result<CpuTensor, OpError> {
    let mut product = mm(a, b, turns, out_dims, place)?;
    let columns = out_dims.last().copied().unwrap_or(1);
    let (rows_of_bias, columns_of_bias) = match *bias.dims() {
        [rows, columns] => (rows, columns),
        [columns] => (1, columns),
        _ => (1, 1),
    };
    let bias = bias.f32s();
    let rows_at_once = CHUNK.div_ceil(columns);
    let out = product.f32s_unshared();
    (out.par_chunks_mut(rows_at_once * columns).enumerate()).for_each(|(chunk, out)| {
        for (row, out) in out.chunks_exact_mut(columns).enumerate() {
            let row = if rows_of_bias == 1 {
                0
            } else {
                chunk * rows_at_once + row
            };
            let bias = &bias[row * columns_of_bias..][..columns_of_bias];
            if let [bias] = *bias {
                out.iter_mut().for_each(|out| *out += bias);
            } else {
                out.iter_mut()
                    .zip(bias)
                    .for_each(|(out, bias)| *out += bias);
            }
        }
    });
    Ok(product)
}
