//! Convolution and its gradients: from an operator's shapes to the kernels.

use outboard_graph::{DType, Op};
use outboard_kernels::Convolution;

use super::Workplace;
use super::tensor::{CpuTensor, Order};

/// The last elements of a list, the missing first ones filled in.
fn axes(list: &[usize], missing: usize) -> [usize; 3] {
    let mut axes = [missing; 3];
    for (axis, value) in axes.iter_mut().rev().zip(list.iter().rev()) {
        *axis = *value;
    }
    axes
}

/// The sizes of a convolution or of one of its gradients, from the shapes of its operands and of its result.
pub(super) fn sizes(
    op: &Op,
    operands: &[Option<&[usize]>],
    result: &[usize],
) -> Option<Convolution> {
    let operand = |index: usize| operands.get(index).copied().flatten();
    let (input, weight, output) = match op {
        Op::Convolution { .. } => (operand(0)?, operand(1)?, result),
        Op::ConvolutionInputGrad { .. } => (result, operand(1)?, operand(0)?),
        Op::ConvolutionWeightGrad { .. } => (operand(1)?, result, operand(0)?),
        _ => return None,
    };
    let (Op::Convolution {
        stride,
        padding,
        dilation,
        groups,
    }
    | Op::ConvolutionInputGrad {
        stride,
        padding,
        dilation,
        groups,
        ..
    }
    | Op::ConvolutionWeightGrad {
        stride,
        padding,
        dilation,
        groups,
        ..
    }) = op
    else {
        return None;
    };
    let ([images, in_channels, input @ ..], [out_channels, _, kernel @ ..]) = (input, weight)
    else {
        return None;
    };
    Some(Convolution {
        images: *images,
        in_channels: *in_channels,
        out_channels: *out_channels,
        groups: *groups,
        input: axes(input, 1),
        output: axes(output.get(2..)?, 1),
        kernel: axes(kernel, 1),
        stride: axes(stride, 1),
        padding: axes(padding, 0),
        dilation: axes(dilation, 1),
    })
}

/// Elements of scratch memory.
pub(super) fn scratch(op: &Op, g: &Convolution, place: &super::Settings) -> usize {
    let (method, threads, isa) = (place.method, place.threads, place.isa);
    match op {
        Op::Convolution { .. } => g.forward_scratch(method, threads, isa),
        Op::ConvolutionInputGrad { .. } => g.input_grad_scratch(method, threads, isa),
        _ => g.weight_grad_scratch(method, threads, isa),
    }
}

/// `convolution`, of a bias or not, and the gradients of its input and weight.
pub(super) fn run(
    op: &Op,
    g: &Convolution,
    first: &CpuTensor,
    second: &CpuTensor,
    bias: Option<&CpuTensor>,
    out_dims: &[usize],
    place: &mut Workplace<'_>,
) -> CpuTensor {
    let (method, isa) = (place.settings.method, place.settings.isa);
    let mut out = place.result(4 * out_dims.iter().product::<usize>());
    let scratch = place.f32s(scratch(op, g, place.settings));
    let (first, second) = (first.f32s(), second.f32s());
    match op {
        Op::Convolution { .. } => {
            let bias = bias.map(CpuTensor::f32s);
            g.forward(method, first, second, bias, out.f32s(), scratch, isa);
        }
        Op::ConvolutionInputGrad { .. } => {
            g.input_grad(method, first, second, out.f32s(), scratch, isa)
        }
        _ => {
            g.weight_grad(method, first, second, out.f32s(), scratch, isa);
            return CpuTensor::from_recycled(DType::F32, Order::First, out_dims, out);
        }
    }
    CpuTensor::from_recycled(DType::F32, Order::Last, out_dims, out)
}
