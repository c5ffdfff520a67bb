//! Operators of backward programs: each checks its operands against the forward operator it belongs to.

use super::arithmetic::{check_values_per_channel, layer_norm_types, nll_loss_output};
use super::layout::{check_shape, removed, replaced, slice_length};
use super::window::{Convolution, Pool, fixed_dims};
use super::{InferError, Operands, attribute, check_dim};
use crate::{DType, Dim, Op, TensorType};

pub(super) fn infer(op: &Op, operands: Operands<'_>) -> Result<Vec<TensorType>, InferError> {
    let grad = operands.float(0)?;
    let typed = |dims: &[Dim]| TensorType::new(grad.dtype, dims.iter().copied());
    match op {
        Op::ConvolutionInputGrad {
            input_shape,
            stride,
            padding,
            dilation,
            groups,
        } => {
            check_shape("input_shape", input_shape)?;
            let weight = operands.of_dtype(1, grad.dtype)?;
            let weight = fixed_dims(operands, 1, weight)?;
            let window = Convolution {
                stride,
                padding,
                dilation,
                groups: *groups,
            };
            let output = window
                .output(input_shape, &weight)
                .map_err(|error| error.at(operands, 0, 1))?;
            operands.of_type(0, &typed(&output))?;
            Ok(vec![typed(input_shape)])
        }
        Op::ConvolutionWeightGrad {
            weight_shape,
            stride,
            padding,
            dilation,
            groups,
        } => {
            let weight: Vec<Dim> = weight_shape.iter().copied().map(Dim::Fixed).collect();
            check_shape("weight_shape", &weight)?;
            let input = operands.of_dtype(1, grad.dtype)?;
            let window = Convolution {
                stride,
                padding,
                dilation,
                groups: *groups,
            };
            let output = window
                .output(&input.dims, weight_shape)
                .map_err(|error| error.at(operands, 1, 1))?;
            operands.of_type(0, &typed(&output))?;
            Ok(vec![typed(&weight)])
        }
        Op::EmbeddingGrad {
            num_weights,
            padding_idx,
        } => {
            let indices = operands.of_dtype(1, DType::I64)?;
            let fits = grad.rank() == indices.rank() + 1
                && grad.dims.iter().zip(&indices.dims).all(|(a, b)| a == b);
            let width = match grad.dims.last() {
                Some(&width) if fits => width,
                _ => return Err(operands.shape_error(0, format!("{indices} with a width behind"))),
            };
            if padding_idx.is_some_and(|index| index >= *num_weights) {
                return Err(attribute(
                    "padding_idx",
                    format!("must be below {num_weights}"),
                ));
            }
            Ok(vec![typed(&[Dim::Fixed(*num_weights), width])])
        }
        Op::BatchNormGrad { .. } => {
            let input = operands.of_type(1, grad)?;
            let channels = operands.fixed_dim(1, 1)?;
            let stats = TensorType::fixed(grad.dtype, &[channels]);
            operands.optional_of_type(2, &stats)?;
            operands.of_type(3, &stats)?;
            operands.of_type(4, &stats)?;
            check_values_per_channel(input)?;
            Ok(vec![input.clone(), stats.clone(), stats])
        }
        Op::LayerNormGrad { normalized_shape } => {
            let input = operands.of_type(1, grad)?;
            let (stats, weight) = layer_norm_types(operands, 1, normalized_shape)?;
            operands.of_type(2, &stats)?;
            operands.of_type(3, &stats)?;
            operands.optional_of_type(4, &weight)?;
            Ok(vec![input.clone(), weight.clone(), weight])
        }
        Op::SoftmaxGrad { dim } | Op::LogSoftmaxGrad { dim } => {
            check_dim("dim", *dim, grad.rank())?;
            Ok(vec![operands.of_type(1, grad)?.clone()])
        }
        Op::MaxPool2dGrad {
            input_shape,
            kernel_size,
            stride,
            padding,
            dilation,
            ceil_mode,
        } => {
            let pool = Pool {
                kernel_size,
                stride,
                padding,
                dilation,
                ceil_mode: *ceil_mode,
            };
            operands.of_type(1, &grad.with_dtype(DType::I64))?;
            pool_gradient(operands, &pool, input_shape)
        }
        Op::AvgPool2dGrad {
            input_shape,
            kernel_size,
            stride,
            padding,
            ceil_mode,
            divisor_override,
            ..
        } => {
            if *divisor_override == Some(0) {
                return Err(attribute("divisor_override", "must not be zero"));
            }
            let pool = Pool {
                kernel_size,
                stride,
                padding,
                dilation: &[1, 1],
                ceil_mode: *ceil_mode,
            };
            pool_gradient(operands, &pool, input_shape)
        }
        Op::AdaptiveAvgPool2dGrad { input_shape } => {
            check_shape("input_shape", input_shape)?;
            operands.expect_rank(0, 4)?;
            operands.fixed_dim(0, 2)?;
            operands.fixed_dim(0, 3)?;
            match input_shape[..] {
                [samples, channels, Dim::Fixed(_), Dim::Fixed(_)]
                    if grad.dims.first() == Some(&samples)
                        && grad.dims.get(1) == Some(&channels) =>
                {
                    Ok(vec![typed(input_shape)])
                }
                _ => Err(attribute("input_shape", format!("does not pool to {grad}"))),
            }
        }
        Op::ThresholdGrad { threshold } => {
            if !threshold.is_finite() {
                return Err(attribute("threshold", format!("is {threshold}")));
            }
            Ok(vec![operands.of_type(1, grad)?.clone()])
        }
        Op::GeluGrad { .. } | Op::SigmoidGrad {} | Op::TanhGrad {} => {
            Ok(vec![operands.of_type(1, grad)?.clone()])
        }
        Op::DropoutGrad { scale } => {
            if !scale.is_finite() {
                return Err(attribute("scale", format!("is {scale}")));
            }
            operands.of_type(1, &grad.with_dtype(DType::Bool))?;
            Ok(vec![grad.clone()])
        }
        Op::NllLossGrad { reduction, .. } => {
            let output = nll_loss_output(operands, 1, *reduction)?;
            operands.of_type(0, &output)?;
            operands.of_type(4, &TensorType::scalar(output.dtype))?;
            Ok(vec![operands.float(1)?.clone()])
        }
        Op::SliceGrad {
            input_shape,
            dim,
            start,
            end,
            step,
        } => {
            let size = fixed_size(input_shape, *dim)?;
            let length = slice_length(size, *start, *end, *step)?;
            operands.of_type(0, &typed(&replaced(input_shape, *dim, length)))?;
            Ok(vec![typed(input_shape)])
        }
        Op::SelectGrad {
            input_shape,
            dim,
            index,
        } => {
            let size = fixed_size(input_shape, *dim)?;
            if *index >= size {
                return Err(attribute("index", format!("must be below {size}")));
            }
            operands.of_type(0, &typed(&removed(input_shape, *dim)))?;
            Ok(vec![typed(input_shape)])
        }
        _ => Err(attribute("op", "is not a gradient operator")),
    }
}

fn pool_gradient(
    operands: Operands<'_>,
    pool: &Pool<'_>,
    input_shape: &[Dim],
) -> Result<Vec<TensorType>, InferError> {
    check_shape("input_shape", input_shape)?;
    let grad = operands.float(0)?;
    let output = pool
        .output(input_shape)
        .map_err(|error| error.at(operands, 0, 0))?;
    operands.of_type(0, &TensorType::new(grad.dtype, output))?;
    Ok(vec![TensorType::new(
        grad.dtype,
        input_shape.iter().copied(),
    )])
}

/// The size of a dimension of `input_shape` that must be fixed.
fn fixed_size(input_shape: &[Dim], dim: usize) -> Result<usize, InferError> {
    check_shape("input_shape", input_shape)?;
    check_dim("dim", dim, input_shape.len())?;
    input_shape
        .get(dim)
        .and_then(|size| size.fixed())
        .ok_or_else(|| {
            attribute(
                "input_shape",
                format!("depends on the batch in dimension {dim}"),
            )
        })
}
