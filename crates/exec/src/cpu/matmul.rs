//! Matrix products: Burn Flex's, whose `gemm` splits rows and columns over threads but never a sum.
//!
//! An element of a product is one chain of fused multiply-adds over the inner dimension, in blocks whose length depends
//! on the matrices and on the machine's caches alone. So the number of threads does not change its bits (the tests
//! compare them).

use burn_backend::ops::FloatTensorOps;
use burn_backend::{DType as BurnType, Shape};
use burn_flex::{Flex, FlexTensor, Layout};
use rayon::prelude::*;

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

/// `mm` and `bmm`.
pub(super) fn mm(a: CpuTensor, b: CpuTensor) -> CpuTensor {
    CpuTensor::from_flex(Flex::float_matmul(a.into_flex(), b.into_flex()))
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
