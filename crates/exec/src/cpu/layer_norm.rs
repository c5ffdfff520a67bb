//! Layer normalisation, forward and backward.

use outboard_graph::DType;
use outboard_kernels::{self as kernels, LayerNormGradient};

use super::Workplace;
use super::tensor::{CpuTensor, Order};

/// `native_layer_norm`: output, mean and 1 / standard deviation of each row of some elements.
pub(super) fn forward(
    x: &CpuTensor,
    weight: Option<&CpuTensor>,
    bias: Option<&CpuTensor>,
    eps: f64,
    stats_dims: &[usize],
    place: &Workplace<'_>,
) -> [CpuTensor; 3] {
    let rows = stats_dims.iter().product();
    let mut out = place.result(4 * x.elements());
    let (mut means, mut rstds) = (vec![0.0; rows], vec![0.0; rows]);
    let (weight, bias) = (weight.map(CpuTensor::f32s), bias.map(CpuTensor::f32s));
    let isa = place.settings.isa;
    kernels::layer_norm(
        x.f32s(),
        weight,
        bias,
        eps,
        out.f32s(),
        &mut means,
        &mut rstds,
        isa,
    );
    [
        CpuTensor::from_recycled(DType::F32, Order::First, x.dims(), out),
        CpuTensor::from_f32(stats_dims, means),
        CpuTensor::from_f32(stats_dims, rstds),
    ]
}

/// `native_layer_norm_backward`: gradients of input, weight and bias; the formula of batch norm along rows.
pub(super) fn gradient(
    grad: &CpuTensor,
    x: &CpuTensor,
    (mean, rstd): (&CpuTensor, &CpuTensor),
    weight: Option<&CpuTensor>,
    normalized_shape: &[usize],
    place: &Workplace<'_>,
) -> [CpuTensor; 3] {
    let width = normalized_shape.iter().product();
    let of = LayerNormGradient {
        grad: grad.f32s(),
        x: x.f32s(),
        means: mean.f32s(),
        rstds: rstd.f32s(),
        weight: weight.map(CpuTensor::f32s),
    };
    let mut out = place.result(4 * x.elements());
    let (mut weight_grad, mut bias_grad) = (vec![0.0; width], vec![0.0; width]);
    of.gradients(
        out.f32s(),
        &mut weight_grad,
        &mut bias_grad,
        place.settings.isa,
    );
    [
        CpuTensor::from_recycled(DType::F32, Order::First, x.dims(), out),
        CpuTensor::from_f32(normalized_shape, weight_grad),
        CpuTensor::from_f32(normalized_shape, bias_grad),
    ]
}
