//! In which order operators take and give their tensors.
//!
//! What an operator computes is a matter of its own shapes, never of its neighbours': convolution, batch norm and pooling
//! always work channels last, so that no bit depends on where the graph was cut. What works element by element takes either
//! order, everything else channels first.

use outboard_graph::Op;

use super::fuse::OPERAND;
use super::tensor::Order;

/// The order that an operator wants an operand in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// This one.
    Is(Order),
    /// Whatever it has.
    Any,
    /// All operands in the same: channels last, when one is.
    Alike,
}

/// What an operator wants of operand `index`; `dims` are those of all its operands.
pub(super) fn wanted(op: &Op, index: usize, dims: &[Option<&[usize]>]) -> Wanted {
    let first_two_alike = || dims.first() == dims.get(1);
    match op {
        Op::Convolution { .. }
        | Op::ConvolutionInputGrad { .. }
        | Op::BatchNormTraining { .. }
        | Op::BatchNormInference { .. }
            if index == 0 || index == OPERAND =>
        {
            Wanted::Is(Order::Last)
        }
        Op::ConvolutionWeightGrad { .. } => Wanted::Is(Order::Last),
        Op::BatchNormGrad { .. } if index < 2 || index == OPERAND => Wanted::Is(Order::Last),
        // Without a dimension of images the first is that of channels.
        Op::MaxPool2d { .. }
        | Op::MaxPool2dGrad { .. }
        | Op::AvgPool2d { .. }
        | Op::AvgPool2dGrad { .. }
        | Op::AdaptiveAvgPool2d { .. }
        | Op::AdaptiveAvgPool2dGrad { .. }
            if dims.iter().flatten().all(|dims| dims.len() == 4) =>
        {
            Wanted::Is(Order::Last)
        }
        Op::Relu {}
        | Op::Gelu { .. }
        | Op::Sigmoid {}
        | Op::Tanh {}
        | Op::Exp {}
        | Op::Log {}
        | Op::Sqrt {}
        | Op::Rsqrt {}
        | Op::Neg {}
        | Op::MulScalar { .. }
        | Op::PowScalar { .. }
        | Op::Clone {}
        | Op::Numel {} => Wanted::Any,
        Op::Add { .. } | Op::Sub { .. } | Op::Mul {} | Op::Div {} if first_two_alike() => {
            Wanted::Alike
        }
        Op::ThresholdGrad { .. } | Op::GeluGrad { .. } | Op::SigmoidGrad {} | Op::TanhGrad {} => {
            Wanted::Alike
        }
        _ => Wanted::Is(Order::First),
    }
}

/// The order of an operator's first result, when its operands are in the order they were wanted in; `None` when that
/// depends on operands of unknown order.
pub(super) fn result(
    op: &Op,
    operands: &[Option<Order>],
    dims: &[Option<&[usize]>],
) -> Option<Order> {
    match wanted(op, 0, dims) {
        Wanted::Any => operands.first().copied().flatten(),
        Wanted::Alike if operands.contains(&Some(Order::Last)) => Some(Order::Last),
        Wanted::Alike if operands.iter().all(|order| *order == Some(Order::First)) => {
            Some(Order::First)
        }
        Wanted::Alike => None,
        Wanted::Is(_) if matches!(op, Op::ConvolutionWeightGrad { .. }) => Some(Order::First),
        Wanted::Is(order) => Some(order),
    }
}
