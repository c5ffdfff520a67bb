//! Pooling over planes of two dimensions: from an operator's shapes to the kernels.

use outboard_graph::{DType, Op};
use outboard_kernels::{self as kernels, Averaged, Isa, Pooling, Window};

use super::tensor::{CpuTensor, Order};
use super::{OpError, Workplace};

/// The two elements of an attribute, which inference has checked.
fn pair(list: &[usize]) -> [usize; 2] {
    match list {
        [height, width, ..] => [*height, *width],
        [size] => [*size, *size],
        [] => [1, 1],
    }
}

/// Sizes of a pooling from `[N, C, H, W]`; of other shapes every plane is an image of one channel.
fn sizes(input: &[usize], output: &[usize]) -> Pooling {
    let plane = |dims: &[usize]| match dims {
        [.., height, width] => [*height, *width],
        [width] => [1, *width],
        [] => [1, 1],
    };
    Pooling {
        channels: if let [_, channels, _, _] = *input {
            channels
        } else {
            1
        },
        input: plane(input),
        output: plane(output),
    }
}

/// The order that pooling works in.
fn order(dims: &[usize]) -> Order {
    if dims.len() == 4 {
        Order::Last
    } else {
        Order::First
    }
}

/// `max_pool2d_with_indices`.
pub(super) fn max(
    op: &Op,
    x: &CpuTensor,
    out_dims: &[usize],
    place: &Workplace<'_>,
) -> Result<[CpuTensor; 2], OpError> {
    let Op::MaxPool2d {
        kernel_size,
        stride,
        padding,
        dilation,
        ..
    } = op
    else {
        return Err(OpError::Shape);
    };
    let window = Window {
        kernel: pair(kernel_size),
        stride: pair(stride),
        padding: pair(padding),
        dilation: pair(dilation),
    };
    let count: usize = out_dims.iter().product();
    let (mut out, mut places) = (place.result(4 * count), place.result(8 * count));
    kernels::max_pool(
        &sizes(x.dims(), out_dims),
        window,
        x.f32s(),
        out.f32s(),
        places.i64s(),
        Isa::best(),
    );
    let order = order(out_dims);
    Ok([
        CpuTensor::from_recycled(DType::F32, order, out_dims, out),
        CpuTensor::from_recycled(DType::I64, order, out_dims, places),
    ])
}

/// `max_pool2d_with_indices_backward`.
pub(super) fn max_grad(
    grad: &CpuTensor,
    places: &CpuTensor,
    input_dims: &[usize],
    place: &Workplace<'_>,
) -> Result<CpuTensor, OpError> {
    let sizes = sizes(input_dims, grad.dims());
    let mut out = place.result(4 * input_dims.iter().product::<usize>());
    if !kernels::max_pool_gradient(&sizes, grad.f32s(), places.i64s(), out.f32s()) {
        let [height, width] = sizes.input;
        return Err(OpError::Value(format!(
            "an index is outside its plane of {height}x{width}"
        )));
    }
    Ok(CpuTensor::from_recycled(
        DType::F32,
        order(input_dims),
        input_dims,
        out,
    ))
}

fn averaged(op: &Op) -> Averaged {
    match op {
        Op::AvgPool2d {
            kernel_size,
            stride,
            padding,
            count_include_pad,
            divisor_override,
            ..
        }
        | Op::AvgPool2dGrad {
            kernel_size,
            stride,
            padding,
            count_include_pad,
            divisor_override,
            ..
        } => Averaged::Windows {
            window: Window {
                kernel: pair(kernel_size),
                stride: pair(stride),
                padding: pair(padding),
                dilation: [1, 1],
            },
            count_include_pad: *count_include_pad,
            divisor: *divisor_override,
        },
        _ => Averaged::Adaptive,
    }
}

/// `avg_pool2d` and `_adaptive_avg_pool2d`.
pub(super) fn average(
    op: &Op,
    x: &CpuTensor,
    out_dims: &[usize],
    place: &Workplace<'_>,
) -> CpuTensor {
    let mut out = place.result(4 * out_dims.iter().product::<usize>());
    kernels::avg_pool(
        &sizes(x.dims(), out_dims),
        averaged(op),
        x.f32s(),
        out.f32s(),
        Isa::best(),
    );
    CpuTensor::from_recycled(DType::F32, order(out_dims), out_dims, out)
}

/// Their gradients.
pub(super) fn average_grad(
    op: &Op,
    grad: &CpuTensor,
    input_dims: &[usize],
    place: &Workplace<'_>,
) -> CpuTensor {
    let mut out = place.result(4 * input_dims.iter().product::<usize>());
    let sizes = sizes(input_dims, grad.dims());
    kernels::avg_pool_gradient(&sizes, averaged(op), grad.f32s(), out.f32s(), Isa::best());
    CpuTensor::from_recycled(DType::F32, order(input_dims), input_dims, out)
}
