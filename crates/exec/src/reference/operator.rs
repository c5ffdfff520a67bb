//! Which function computes which operator.

use outboard_graph::{DType, Op};

use super::array::{Array, Data};
use super::convolution::{self, Window};
use super::pooling::{self, Average};
use super::{Call, Fault};
use super::{elementwise, layout, linear, normalisation, reduction, softmax};

/// Computes the results of an operator.
pub(super) fn evaluate(op: &Op, call: &Call<'_>) -> Result<Vec<Array>, Fault> {
    use elementwise::{binary, gradient, unary};
    match op {
        Op::Convolution {
            stride,
            padding,
            dilation,
            groups,
        } => convolution::convolution(
            call,
            Window {
                stride,
                padding,
                dilation,
                groups: *groups,
            },
        ),
        Op::ConvolutionInputGrad {
            stride,
            padding,
            dilation,
            groups,
            ..
        } => convolution::input_grad(
            call,
            Window {
                stride,
                padding,
                dilation,
                groups: *groups,
            },
        ),
        Op::ConvolutionWeightGrad {
            stride,
            padding,
            dilation,
            groups,
            ..
        } => convolution::weight_grad(
            call,
            Window {
                stride,
                padding,
                dilation,
                groups: *groups,
            },
        ),

        Op::Addmm {} => linear::addmm(call),
        Op::Mm {} => linear::mm(call),
        Op::Bmm {} => linear::bmm(call),
        Op::Embedding { .. } => linear::embedding(call),
        Op::EmbeddingGrad {
            num_weights,
            padding_idx,
        } => linear::embedding_grad(call, *num_weights, *padding_idx),

        Op::BatchNormTraining { momentum, eps } => {
            normalisation::batch_norm_training(call, *momentum, *eps)
        }
        Op::BatchNormInference { eps, .. } => normalisation::batch_norm_inference(call, *eps),
        Op::BatchNormGrad { .. } => normalisation::batch_norm_grad(call),
        Op::LayerNorm {
            normalized_shape,
            eps,
        } => normalisation::layer_norm(call, normalized_shape, *eps),
        Op::LayerNormGrad { normalized_shape } => {
            normalisation::layer_norm_grad(call, normalized_shape)
        }

        Op::Softmax { dim } => softmax::softmax(call, *dim, false),
        Op::LogSoftmax { dim } => softmax::softmax(call, *dim, true),
        Op::SoftmaxGrad { dim } => softmax::softmax_grad(call, *dim, false),
        Op::LogSoftmaxGrad { dim } => softmax::softmax_grad(call, *dim, true),
        Op::NllLoss {
            reduction,
            ignore_index,
        } => softmax::nll_loss(call, *reduction, *ignore_index),
        Op::NllLossGrad {
            reduction,
            ignore_index,
        } => softmax::nll_loss_grad(call, *reduction, *ignore_index),

        Op::MaxPool2d {
            kernel_size,
            stride,
            padding,
            dilation,
            ..
        } => pooling::max_pool(call, kernel_size, stride, padding, dilation),
        Op::MaxPool2dGrad { .. } => pooling::max_pool_grad(call),
        Op::AvgPool2d {
            kernel_size,
            stride,
            padding,
            count_include_pad,
            divisor_override,
            ceil_mode: _,
        } => pooling::avg_pool(
            call,
            Average {
                kernel_size,
                stride,
                padding,
                count_include_pad: *count_include_pad,
                divisor_override: *divisor_override,
            },
        ),
        Op::AvgPool2dGrad {
            kernel_size,
            stride,
            padding,
            count_include_pad,
            divisor_override,
            ceil_mode: _,
            input_shape: _,
        } => pooling::avg_pool_grad(
            call,
            Average {
                kernel_size,
                stride,
                padding,
                count_include_pad: *count_include_pad,
                divisor_override: *divisor_override,
            },
        ),
        Op::AdaptiveAvgPool2d { .. } => pooling::adaptive_avg_pool(call),
        Op::AdaptiveAvgPool2dGrad { .. } => pooling::adaptive_avg_pool_grad(call),

        Op::Relu {} => unary(call, elementwise::relu),
        Op::Gelu { tanh } => unary(call, elementwise::gelu(*tanh)),
        Op::Sigmoid {} => unary(call, elementwise::sigmoid),
        Op::Tanh {} => unary(call, f64::tanh),
        Op::Exp {} => unary(call, f64::exp),
        Op::Log {} => unary(call, f64::ln),
        Op::Sqrt {} => unary(call, f64::sqrt),
        Op::Rsqrt {} => unary(call, |x| 1.0 / x.sqrt()),
        Op::Neg {} => unary(call, |x| -x),
        Op::AddScalar { scalar } => elementwise::add_scalar(call, *scalar),
        Op::MulScalar { scalar } => unary(call, |x| x * scalar),
        Op::PowScalar { exponent } => unary(call, elementwise::pow(*exponent)),
        Op::Add { alpha } => binary(call, |a, b| a + alpha * b),
        Op::Sub { alpha } => binary(call, |a, b| a - alpha * b),
        Op::Mul {} => binary(call, |a, b| a * b),
        Op::Div {} => binary(call, |a, b| a / b),
        Op::ToCopy { .. } => elementwise::to_copy(call),
        Op::Dropout { p, key } => elementwise::dropout(call, *p, *key),
        Op::DropoutGrad { scale } => elementwise::dropout_grad(call, *scale),
        Op::ThresholdGrad { threshold } => gradient(call, elementwise::threshold_grad(*threshold)),
        Op::GeluGrad { tanh } => gradient(call, elementwise::gelu_grad(*tanh)),
        Op::SigmoidGrad {} => gradient(call, |grad, y| grad * y * (1.0 - y)),
        Op::TanhGrad {} => gradient(call, |grad, y| grad * (1.0 - y * y)),

        Op::Sum { dims, .. } => reduction::reduce(call, dims, false),
        Op::Mean { dims, .. } => reduction::reduce(call, dims, true),

        Op::View { .. } | Op::Squeeze { .. } | Op::Unsqueeze { .. } | Op::Clone {} => {
            layout::reshape(call)
        }
        Op::Permute { dims } => layout::permute(call, dims),
        Op::Expand { .. } => layout::expand(call),
        Op::Cat { dim } => layout::cat(call, *dim),
        Op::Slice {
            dim, start, step, ..
        } => layout::slice(call, *dim, *start, *step),
        Op::SliceGrad {
            dim,
            start,
            end,
            step,
            ..
        } => layout::slice_grad(call, *dim, *start, *end, *step),
        Op::Select { dim, index } => layout::select(call, *dim, *index),
        Op::SelectGrad { dim, index, .. } => layout::select_grad(call, *dim, *index),
        Op::Split { sizes, dim } => layout::split(call, sizes, *dim),
        Op::ConstantPad { pad, value } => layout::constant_pad(call, pad, *value),

        Op::Full { value, .. } => {
            let shape = call.result(0)?;
            let count = shape.elements();
            Ok(vec![match shape.dtype {
                DType::I64 => Array::ints(shape, vec![*value as i64; count]),
                DType::Bool => Array::bools(shape, vec![*value != 0.0; count]),
                _ => Array::floats(shape, vec![*value; count]),
            }])
        }
        Op::Numel {} => {
            let count = match &call.operand(0)?.data {
                Data::Float(values) => values.len(),
                Data::Int(values) => values.len(),
                Data::Bool(values) => values.len(),
            };
            Ok(vec![Array::floats(call.result(0)?, vec![count as f64])])
        }
    }
}

/// Bytes that an operator takes beside its operands and results, at most.
pub(super) fn scratch_bytes(op: &Op, operand_elements: u64, result_elements: u64) -> u64 {
    let elements = match op {
        // Where each element comes from.
        Op::Cat { .. } => result_elements.saturating_mul(2 * 16),
        // The mask as bytes.
        Op::Dropout { .. } => result_elements,
        // What each sample counts for.
        Op::NllLoss { .. } | Op::NllLossGrad { .. } => operand_elements.saturating_mul(32),
        // Where each output element takes its mean.
        Op::AvgPool2d { .. } | Op::AdaptiveAvgPool2d { .. } => {
            result_elements.saturating_mul(2 * 40)
        }
        Op::AvgPool2dGrad { .. } | Op::AdaptiveAvgPool2dGrad { .. } => {
            operand_elements.saturating_mul(2 * 40)
        }
        // Vectors that grow take up to twice what they hold, and as much again while they move.
        Op::MaxPool2d { .. } | Op::LayerNorm { .. } | Op::LayerNormGrad { .. } | Op::Bmm {} => {
            result_elements.saturating_mul(2 * 8)
        }
        _ => 0,
    };
    // Indices, strides and the like.
    elements.saturating_add(4096)
}
