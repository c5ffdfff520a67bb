//! Softmax and its logarithm along a dimension, forward and backward.

use outboard_kernels::{self as kernels, Isa, Softmax};

use super::tensor::CpuTensor;

/// Elements along a dimension, and of all dimensions within it.
fn sizes(dims: &[usize], dim: usize) -> (usize, usize) {
    let length = dims.get(dim).copied().unwrap_or(1);
    (length, dims.iter().skip(dim + 1).product())
}

/// `_softmax` and `_log_softmax`.
pub(super) fn forward(kind: Softmax, mut x: CpuTensor, dim: usize, isa: Isa) -> CpuTensor {
    let (length, inner) = sizes(x.dims(), dim);
    kernels::softmax(kind, x.f32s_unshared(), length, inner, isa);
    x
}

/// `_softmax_backward_data` and `_log_softmax_backward_data`.
pub(super) fn gradient(
    kind: Softmax,
    mut grad: CpuTensor,
    output: &CpuTensor,
    dim: usize,
    isa: Isa,
) -> CpuTensor {
    let (length, inner) = sizes(grad.dims(), dim);
    kernels::softmax_gradient(
        kind,
        grad.f32s_unshared(),
        output.f32s(),
        length,
        inner,
        isa,
    );
    grad
}
