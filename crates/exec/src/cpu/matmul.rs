//! Matrix products: Burn Flex's, whose `gemm` splits rows and columns over threads but never a sum.
//!
//! An element of a product is one chain of fused multiply-adds over the inner dimension, in blocks whose length depends
//! on the matrices and on the machine's caches alone. So the number of threads does not change its bits (the tests
//! compare them).

use burn_backend::ops::FloatTensorOps;
use burn_backend::{DType as BurnType, Shape};
use burn_flex::{Flex, FlexTensor, Layout};
use rayon::prelude::*;

use super::layout;
use super::parallel::CHUNK;
use super::tensor::CpuTensor;

/// A matrix, or a batch of matrices, within a tensor: nothing is copied.
pub(super) struct View<'a> {
    pub(super) tensor: &'a CpuTensor,
    pub(super) offset: usize,
    pub(super) dims: &'a [usize],
    pub(super) strides: &'a [usize],
}

impl View<'_> {
    fn flex(&self) -> FlexTensor {
        let strides = self.strides.iter().map(|&stride| stride.cast_signed());
        let layout = Layout::new(
            Shape::from(self.dims.to_vec()),
            strides.collect(),
            self.offset,
        );
        FlexTensor::from_arc(self.tensor.flex().data_arc(), layout, BurnType::F32)
    }
}

/// `a @ b`; leading dimensions are batches.
pub(super) fn product(a: View<'_>, b: View<'_>) -> CpuTensor {
    CpuTensor::from_flex(Flex::float_matmul(a.flex(), b.flex()))
}

/// Most columns of a product that `gemm` computes at its best.
pub(super) const BLOCK: usize = 128;

/// Cuts `0..size` into as few parts of at most [`BLOCK`] as can be, all about equal.
pub(super) fn blocks(size: usize) -> impl Iterator<Item = (usize, usize)> {
    let parts = size.div_ceil(BLOCK);
    (0..parts).map(move |part| (part * size / parts, (part + 1) * size / parts))
}

/// Whether a product is worth rearranging its right factor for.
pub(super) fn is_large(rows: usize, inner: usize, columns: usize) -> bool {
    rows >= 32 && inner >= 16 && columns >= 16
}

/// `bmm`.
pub(super) fn bmm(a: CpuTensor, b: CpuTensor) -> CpuTensor {
    CpuTensor::from_flex(Flex::float_matmul(a.into_flex(), b.into_flex()))
}

/// `mm`, by the products that `gemm` is best at (see `conv`).
pub(super) fn mm(a: CpuTensor, b: CpuTensor) -> CpuTensor {
    let (&[rows, inner], &[_, columns]) = (a.dims(), b.dims()) else {
        return bmm(a, b);
    };
    if !is_large(rows, inner, columns) {
        return bmm(a, b);
    }
    let b = layout::permute(b, &[1, 0]);
    let mut out = Vec::new();
    for (from, to) in blocks(columns) {
        let part = product(
            View {
                tensor: &a,
                offset: 0,
                dims: &[rows, inner],
                strides: &[inner, 1],
            },
            View {
                tensor: &b,
                offset: from * inner,
                dims: &[inner, to - from],
                strides: &[1, inner],
            },
        );
        if to - from == columns {
            return part;
        }
        if out.is_empty() {
            out.resize(rows * columns, 0.0);
        }
        let lines = out.chunks_exact_mut(columns);
        for (line, part) in lines.zip(part.f32s().chunks_exact(to - from)) {
            line[from..to].copy_from_slice(part);
        }
    }
    CpuTensor::from_f32(&[rows, columns], out)
}

/// `bias + a @ b`, the bias expanded to the product's shape.
pub(super) fn addmm(bias: &CpuTensor, a: CpuTensor, b: CpuTensor) -> CpuTensor {
    let mut product = mm(a, b);
    let columns = product.dims().last().copied().unwrap_or(1);
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
    product
}
