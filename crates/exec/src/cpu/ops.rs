//! From an operator to the function that runs it: one arm each, no arithmetic.

use outboard_graph::{DType, Op};
use outboard_kernels::{self as kernels, Softmax};

use super::batch_norm::After;
use super::fuse::{self, Fused};
use super::plan::PlanNode;
use super::pointwise::Binary;
use super::tensor::CpuTensor;
use super::{
    OpError, Workplace, batch_norm, conv, layer_norm, layout, lookup, matmul, parallel, pointwise,
    pool, reduce, softmax,
};
use crate::RandomKey;

/// A node's operands; taking one hands over its handle, so that an operator can work in place on a last use.
pub(super) struct Operands(pub(super) Vec<Option<CpuTensor>>);

impl Operands {
    fn take(&mut self, index: usize) -> Result<CpuTensor, OpError> {
        self.0
            .get_mut(index)
            .and_then(Option::take)
            .ok_or(OpError::Shape)
    }

    fn get(&self, index: usize) -> Result<&CpuTensor, OpError> {
        self.optional(index).ok_or(OpError::Shape)
    }

    fn optional(&self, index: usize) -> Option<&CpuTensor> {
        self.0.get(index)?.as_ref()
    }

    fn take_two(&mut self) -> Result<(CpuTensor, CpuTensor), OpError> {
        Ok((self.take(0)?, self.take(1)?))
    }
}

/// What follows a batch norm in the same pass.
fn after(operands: &Operands, fused: Fused) -> After<'_> {
    After {
        addend: operands.optional(fuse::OPERAND),
        relu: fused.relu,
    }
}

/// Runs one operator. `results` are the shapes of its results; `key` steers its random numbers.
pub(super) fn run(
    node: &PlanNode,
    mut operands: Operands,
    results: &[&[usize]],
    key: RandomKey,
    place: &mut Workplace<'_>,
) -> Result<Vec<CpuTensor>, OpError> {
    let x = &mut operands;
    let op = &node.op;
    let isa = place.settings.isa;
    let out = results.first().copied().ok_or(OpError::Shape)?;
    let one = match op {
        Op::Convolution { .. }
        | Op::ConvolutionInputGrad { .. }
        | Op::ConvolutionWeightGrad { .. } => {
            let dims: Vec<Option<&[usize]>> =
                x.0.iter()
                    .map(|o| o.as_ref().map(CpuTensor::dims))
                    .collect();
            let g = conv::sizes(op, &dims, out).ok_or(OpError::Shape)?;
            let bias = match op {
                Op::Convolution { .. } => x.optional(2),
                _ => None,
            };
            conv::run(op, &g, x.get(0)?, x.get(1)?, bias, out, place)
        }
        Op::Addmm {} => matmul::addmm(
            x.get(0)?,
            x.get(1)?,
            x.get(2)?,
            node.fused.turned,
            out,
            place,
        )?,
        Op::Mm {} => matmul::mm(x.get(0)?, x.get(1)?, node.fused.turned, out, place)?,
        Op::Bmm {} => matmul::bmm(x.get(0)?, x.get(1)?, out, place)?,
        Op::Embedding { .. } => lookup::embedding(x.get(0)?, x.get(1)?, out)?,
        Op::EmbeddingGrad { padding_idx, .. } => {
            lookup::embedding_grad(x.get(0)?, x.get(1)?, *padding_idx, out)?
        }

        Op::BatchNormTraining { momentum, eps } => {
            let input = x.take(0)?;
            let running = (x.get(3)?, x.get(4)?);
            let (weight, bias) = (x.optional(1), x.optional(2));
            let how = (*momentum, *eps);
            let after = after(x, node.fused);
            let results = batch_norm::training(input, weight, bias, running, how, after, place);
            return Ok(results.into());
        }
        Op::BatchNormInference { eps, .. } => {
            let input = x.take(0)?;
            let running = (x.get(3)?, x.get(4)?);
            let (weight, bias) = (x.optional(1), x.optional(2));
            let after = after(x, node.fused);
            batch_norm::inference(input, weight, bias, running, *eps, after, place)
        }
        Op::BatchNormGrad { .. } => {
            let grad = x.take(0)?;
            let (input, weight) = (x.get(1)?, x.optional(2));
            let saved = (x.get(3)?, x.get(4)?);
            let rectified = x.optional(fuse::OPERAND);
            return Ok(batch_norm::gradient(grad, rectified, input, weight, saved, place).into());
        }
        Op::LayerNorm { eps, .. } => {
            let stats = results.get(1).copied().ok_or(OpError::Shape)?;
            let (weight, bias) = (x.optional(1), x.optional(2));
            return Ok(layer_norm::forward(x.get(0)?, weight, bias, *eps, stats, place).into());
        }
        Op::LayerNormGrad { normalized_shape } => {
            let (grad, input, weight) = (x.get(0)?, x.get(1)?, x.optional(4));
            let stats = (x.get(2)?, x.get(3)?);
            let shape = normalized_shape;
            return Ok(layer_norm::gradient(grad, input, stats, weight, shape, place).into());
        }
        Op::Softmax { dim } => softmax::forward(Softmax::Plain, x.take(0)?, *dim, isa),
        Op::LogSoftmax { dim } => softmax::forward(Softmax::Log, x.take(0)?, *dim, isa),
        Op::SoftmaxGrad { dim } => {
            softmax::gradient(Softmax::Plain, x.take(0)?, x.get(1)?, *dim, isa)
        }
        Op::LogSoftmaxGrad { dim } => {
            softmax::gradient(Softmax::Log, x.take(0)?, x.get(1)?, *dim, isa)
        }

        Op::MaxPool2d { .. } => return Ok(pool::max(op, x.get(0)?, out, place)?.into()),
        Op::MaxPool2dGrad { .. } => pool::max_grad(x.get(0)?, x.get(1)?, out, place)?,
        Op::AvgPool2d { .. } | Op::AdaptiveAvgPool2d { .. } => {
            pool::average(op, x.get(0)?, out, place)
        }
        Op::AvgPool2dGrad { .. } | Op::AdaptiveAvgPool2dGrad { .. } => {
            pool::average_grad(op, x.get(0)?, out, place)
        }

        Op::Relu {} => pointwise::relu(x.take(0)?),
        Op::Gelu { tanh: false } => parallel::map(x.take(0)?, kernels::gelu),
        Op::Gelu { tanh: true } => parallel::map(x.take(0)?, kernels::gelu_tanh),
        Op::Sigmoid {} => pointwise::sigmoid(x.take(0)?),
        Op::Tanh {} => parallel::map(x.take(0)?, f32::tanh),
        Op::Exp {} => parallel::map(x.take(0)?, f32::exp),
        Op::Log {} => parallel::map(x.take(0)?, f32::ln),
        Op::Sqrt {} => parallel::map(x.take(0)?, f32::sqrt),
        Op::Rsqrt {} => parallel::map(x.take(0)?, |x| 1.0 / x.sqrt()),
        Op::Neg {} => parallel::map(x.take(0)?, |x| -x),
        // Counters are integers; inference has seen that the scalar is whole.
        Op::AddScalar { scalar } if x.get(0)?.dtype() == DType::I64 => {
            let (x, scalar) = (x.get(0)?, *scalar as i64);
            let sums = x.i64s().iter().map(|x| x.wrapping_add(scalar));
            CpuTensor::from_i64(x.dims(), sums.collect())
        }
        Op::AddScalar { scalar } => {
            let scalar = *scalar as f32;
            parallel::map(x.take(0)?, |x| x + scalar)
        }
        Op::MulScalar { scalar } => {
            let scalar = *scalar as f32;
            parallel::map(x.take(0)?, |x| x * scalar)
        }
        Op::PowScalar { exponent } => pointwise::pow(x.take(0)?, *exponent),
        Op::Add { alpha } => {
            let alpha = *alpha as f32;
            let (a, b) = x.take_two()?;
            pointwise::binary(a, b, Binary::Add { alpha })
        }
        Op::Sub { alpha } => {
            let alpha = -*alpha as f32;
            let (a, b) = x.take_two()?;
            pointwise::binary(a, b, Binary::Add { alpha })
        }
        Op::Mul {} => {
            let (a, b) = x.take_two()?;
            pointwise::binary(a, b, Binary::Mul)
        }
        Op::Div {} => {
            let (a, b) = x.take_two()?;
            pointwise::binary(a, b, Binary::Div)
        }
        Op::ThresholdGrad { threshold } => {
            let (grad, input) = x.take_two()?;
            let threshold = *threshold as f32;
            // As ATen: the gradient passes where the input is NaN.
            parallel::zip(grad, input, |dy, x| if x <= threshold { 0.0 } else { dy })
        }
        Op::GeluGrad { tanh } => {
            let (grad, input) = x.take_two()?;
            if *tanh {
                parallel::zip(grad, input, kernels::gelu_tanh_gradient)
            } else {
                parallel::zip(grad, input, kernels::gelu_gradient)
            }
        }
        Op::SigmoidGrad {} => {
            let (grad, output) = x.take_two()?;
            parallel::zip(grad, output, |dy, y| dy * (1.0 - y) * y)
        }
        Op::TanhGrad {} => {
            let (grad, output) = x.take_two()?;
            parallel::zip(grad, output, |dy, y| dy * (1.0 - y * y))
        }
        Op::ToCopy { dtype } => pointwise::to_copy(x.take(0)?, *dtype),
        Op::Dropout { p, key: node_key } => {
            return Ok(pointwise::dropout(x.take(0)?, *p, *node_key, key).into());
        }
        Op::DropoutGrad { scale } => {
            let grad = x.take(0)?;
            pointwise::masked(grad, x.get(1)?, *scale as f32)
        }

        Op::Sum { dims, .. } => reduce::sum(x.get(0)?, dims, out, false),
        Op::Mean { dims, .. } => reduce::sum(x.get(0)?, dims, out, true),

        // A shape alone changes.
        Op::View { .. } | Op::Squeeze { .. } | Op::Unsqueeze { .. } => x.take(0)?.reshaped(out),
        Op::Clone {} => x.take(0)?,
        Op::Permute { dims } => layout::permute(x.take(0)?, dims),
        Op::Expand { .. } => layout::expanded(x.take(0)?, out),
        Op::Cat { dim } => {
            let parts = std::mem::take(&mut x.0).into_iter().flatten().collect();
            layout::concatenated(parts, *dim)
        }
        Op::Slice {
            dim,
            start,
            end,
            step,
        } => layout::sliced(x.get(0)?, *dim, (*start, *end, *step)),
        Op::Select { dim, index } => {
            layout::sliced(x.get(0)?, *dim, (*index, index + 1, 1)).reshaped(out)
        }
        Op::Split { sizes, dim } => {
            let mut start = 0;
            let mut parts = Vec::with_capacity(sizes.len());
            for &size in sizes {
                parts.push(layout::sliced(x.get(0)?, *dim, (start, start + size, 1)));
                start += size;
            }
            return Ok(parts);
        }
        Op::ConstantPad { pad, value } => layout::padded(x.get(0)?, pad, *value as f32, out),
        Op::SliceGrad {
            dim, start, step, ..
        } => layout::slice_grad(x.get(0)?, out, *dim, (*start, *step)),
        Op::SelectGrad { dim, index, .. } => layout::slice_grad(x.get(0)?, out, *dim, (*index, 1)),

        Op::Full { value, dtype, .. } => layout::full(out, *value, *dtype),
        Op::Numel {} => CpuTensor::from_f32(&[], vec![x.get(0)?.elements() as f32]),

        Op::NllLoss {
            reduction,
            ignore_index,
        } => {
            let how = (*reduction, *ignore_index);
            return Ok(lookup::nll_loss(x.get(0)?, x.get(1)?, x.optional(2), how, out)?.into());
        }
        Op::NllLossGrad {
            reduction,
            ignore_index,
        } => {
            let how = (*reduction, *ignore_index);
            let (target, weight, total) = (x.get(2)?, x.optional(3), x.get(4)?);
            lookup::nll_loss_grad(x.get(0)?, out, target, weight, total, how)?
        }
    };
    Ok(vec![one])
}
