//! Vector-Jacobian products: for each operator, how the gradients of its results become those of its operands.
//!
//! A rule builds nodes in the joint backward graph through [`Sweep`]. It reads a forward value with `operand` or
//! `result`, which saves the value unless it can be recomputed from parameters; each rule reads the cheapest it can: the
//! mask of a dropout, the result of a relu (the next operator saves that one anyway), the indices of a pooling.
//!
//! The formulas are those of PyTorch's `derivatives.yaml`, so that gradients agree with `torch.autograd` to rounding.

mod elementwise;
mod layout;
mod loss;
mod normalise;
mod pool;
mod products;
mod reduce;

use crate::{
    Node, Op, ValueId,
    autodiff::{AutodiffError, Sweep},
};

/// The gradients of a node's operands: one entry an operand, `None` where none is wanted or the gradient is zero.
pub(crate) type Gradients = Vec<Option<ValueId>>;

/// Whether the gradient of result `result` contributes to operand `operand`, whatever the types.
///
/// Integers have no gradient in any case; this tells what an operator treats as constant though it may be a float:
/// the running statistics of a batch norm, the class weights of a loss, the number of elements.
pub(crate) fn passes_gradient(op: &Op, operand: usize, result: usize) -> bool {
    match op {
        Op::Convolution { .. } | Op::Addmm {} | Op::Mm {} | Op::Bmm {} => true,
        Op::Embedding { .. } => operand == 0,
        Op::BatchNormTraining { .. } | Op::BatchNormInference { .. } => operand <= 2 && result == 0,
        Op::LayerNorm { .. } => result == 0,
        Op::Softmax { .. } | Op::LogSoftmax { .. } => true,
        Op::MaxPool2d { .. } | Op::Dropout { .. } => result == 0,
        Op::AvgPool2d { .. } | Op::AdaptiveAvgPool2d { .. } => true,
        Op::Relu {}
        | Op::Gelu { .. }
        | Op::Sigmoid {}
        | Op::Tanh {}
        | Op::Exp {}
        | Op::Log {}
        | Op::Sqrt {}
        | Op::Rsqrt {}
        | Op::Neg {}
        | Op::Add { .. }
        | Op::Sub { .. }
        | Op::Mul {}
        | Op::Div {}
        | Op::AddScalar { .. }
        | Op::MulScalar { .. }
        | Op::PowScalar { .. }
        | Op::ToCopy { .. } => true,
        Op::Sum { .. } | Op::Mean { .. } => true,
        Op::View { .. }
        | Op::Permute { .. }
        | Op::Expand { .. }
        | Op::Clone {}
        | Op::Cat { .. }
        | Op::Slice { .. }
        | Op::Select { .. }
        | Op::Split { .. }
        | Op::Squeeze { .. }
        | Op::Unsqueeze { .. }
        | Op::ConstantPad { .. } => true,
        Op::Full { .. } | Op::Numel {} => false,
        Op::NllLoss { .. } => operand == 0 && result == 0,
        // Gradients are differentiable in truth, but there are no rules: saying "yes" makes that an error, not a zero.
        Op::ConvolutionInputGrad { .. }
        | Op::ConvolutionWeightGrad { .. }
        | Op::EmbeddingGrad { .. }
        | Op::BatchNormGrad { .. }
        | Op::LayerNormGrad { .. }
        | Op::SoftmaxGrad { .. }
        | Op::LogSoftmaxGrad { .. }
        | Op::MaxPool2dGrad { .. }
        | Op::AvgPool2dGrad { .. }
        | Op::AdaptiveAvgPool2dGrad { .. }
        | Op::ThresholdGrad { .. }
        | Op::GeluGrad { .. }
        | Op::SigmoidGrad {}
        | Op::TanhGrad {}
        | Op::DropoutGrad { .. }
        | Op::NllLossGrad { .. }
        | Op::SliceGrad { .. }
        | Op::SelectGrad { .. } => true,
    }
}

/// Applies the rule of `node`. `cotangents` has an entry a result, `wanted` one an operand; at least one of each is set.
pub(crate) fn gradients(
    sweep: &mut Sweep,
    node: &Node,
    cotangents: &[Option<ValueId>],
    wanted: &[bool],
) -> Result<Gradients, AutodiffError> {
    let rule = Rule {
        node,
        cotangents,
        wanted,
    };
    match &node.op {
        Op::Convolution { .. } | Op::Addmm {} | Op::Mm {} | Op::Bmm {} | Op::Embedding { .. } => {
            products::gradients(sweep, &rule)
        }
        Op::BatchNormTraining { .. }
        | Op::BatchNormInference { .. }
        | Op::LayerNorm { .. }
        | Op::Softmax { .. }
        | Op::LogSoftmax { .. } => normalise::gradients(sweep, &rule),
        Op::MaxPool2d { .. } | Op::AvgPool2d { .. } | Op::AdaptiveAvgPool2d { .. } => {
            pool::gradients(sweep, &rule)
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
        | Op::Add { .. }
        | Op::Sub { .. }
        | Op::Mul {}
        | Op::Div {}
        | Op::AddScalar { .. }
        | Op::MulScalar { .. }
        | Op::PowScalar { .. }
        | Op::ToCopy { .. }
        | Op::Dropout { .. } => elementwise::gradients(sweep, &rule),
        Op::Sum { .. } | Op::Mean { .. } => reduce::gradients(sweep, &rule),
        Op::View { .. }
        | Op::Permute { .. }
        | Op::Expand { .. }
        | Op::Clone {}
        | Op::Cat { .. }
        | Op::Slice { .. }
        | Op::Select { .. }
        | Op::Split { .. }
        | Op::Squeeze { .. }
        | Op::Unsqueeze { .. }
        | Op::ConstantPad { .. } => layout::gradients(sweep, &rule),
        Op::NllLoss { .. } => loss::gradients(sweep, &rule),
        Op::Full { .. }
        | Op::Numel {}
        | Op::ConvolutionInputGrad { .. }
        | Op::ConvolutionWeightGrad { .. }
        | Op::EmbeddingGrad { .. }
        | Op::BatchNormGrad { .. }
        | Op::LayerNormGrad { .. }
        | Op::SoftmaxGrad { .. }
        | Op::LogSoftmaxGrad { .. }
        | Op::MaxPool2dGrad { .. }
        | Op::AvgPool2dGrad { .. }
        | Op::AdaptiveAvgPool2dGrad { .. }
        | Op::ThresholdGrad { .. }
        | Op::GeluGrad { .. }
        | Op::SigmoidGrad {}
        | Op::TanhGrad {}
        | Op::DropoutGrad { .. }
        | Op::NllLossGrad { .. }
        | Op::SliceGrad { .. }
        | Op::SelectGrad { .. } => Err(rule.no_rule()),
    }
}

/// What a rule is asked.
pub(crate) struct Rule<'a> {
    /// The forward node.
    pub(crate) node: &'a Node,
    /// The gradients of its results; `None` where no gradient arrives.
    pub(crate) cotangents: &'a [Option<ValueId>],
    /// The operands whose gradient is wanted.
    pub(crate) wanted: &'a [bool],
}

impl Rule<'_> {
    /// The gradient of the first result.
    pub(crate) fn cotangent(&self) -> Result<ValueId, AutodiffError> {
        self.cotangents
            .first()
            .copied()
            .flatten()
            .ok_or_else(|| self.no_rule())
    }

    /// Whether the gradient of this operand is wanted.
    pub(crate) fn wants(&self, operand: usize) -> bool {
        self.wanted.get(operand).copied().unwrap_or(false)
    }

    /// No gradient for any operand but those given.
    pub(crate) fn only<const N: usize>(&self, given: [(usize, Option<ValueId>); N]) -> Gradients {
        let mut gradients = vec![None; self.node.operands.len()];
        for (operand, gradient) in given {
            if let Some(slot) = gradients.get_mut(operand) {
                *slot = gradient;
            }
        }
        gradients
    }

    pub(crate) fn no_rule(&self) -> AutodiffError {
        AutodiffError::NoRule {
            op: self.node.op.name(),
            scope: self.node.scope.clone(),
        }
    }
}
