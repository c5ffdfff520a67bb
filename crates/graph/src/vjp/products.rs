//! Convolutions, matrix products and embeddings.

use crate::{
    Dim, Op, TensorType, ValueId,
    autodiff::{AutodiffError, Sweep},
};

use super::{Gradients, Rule};

pub(super) fn gradients(sweep: &mut Sweep, rule: &Rule) -> Result<Gradients, AutodiffError> {
    let grad = rule.cotangent()?;
    let node = rule.node;
    match &node.op {
        Op::Convolution {
            stride,
            padding,
            dilation,
            groups,
        } => {
            let mut gradients = rule.only([]);
            if rule.wants(0) {
                let weight = sweep.operand(node, 1)?;
                let op = Op::ConvolutionInputGrad {
                    input_shape: sweep.operand_type(node, 0)?.dims,
                    stride: stride.clone(),
                    padding: padding.clone(),
                    dilation: dilation.clone(),
                    groups: *groups,
                };
                set(&mut gradients, 0, sweep.push1(op, &[grad, weight])?);
            }
            if rule.wants(1) {
                let input = sweep.operand(node, 0)?;
                let Some(weight_shape) = fixed(&sweep.operand_type(node, 1)?) else {
                    return Err(sweep.unsupported(
                        node,
                        "the weight's shape depends on the batch; give it fixed sizes",
                    ));
                };
                let op = Op::ConvolutionWeightGrad {
                    weight_shape,
                    stride: stride.clone(),
                    padding: padding.clone(),
                    dilation: dilation.clone(),
                    groups: *groups,
                };
                set(&mut gradients, 1, sweep.push1(op, &[grad, input])?);
            }
            if rule.wants(2) {
                let rank = sweep.ty(grad)?.dims.len();
                let dims = (0..rank).filter(|dim| *dim != 1).collect();
                set(
                    &mut gradients,
                    2,
                    sweep.push1(
                        Op::Sum {
                            dims,
                            keepdim: false,
                        },
                        &[grad],
                    )?,
                );
            }
            Ok(gradients)
        }
        Op::Addmm {} => {
            let mut gradients = rule.only([]);
            if rule.wants(0) {
                let bias = sweep.operand_type(node, 0)?;
                set(&mut gradients, 0, sweep.unbroadcast(grad, &bias)?);
            }
            product(sweep, rule, &mut gradients, grad, 1)?;
            Ok(gradients)
        }
        Op::Mm {} | Op::Bmm {} => {
            let mut gradients = rule.only([]);
            product(sweep, rule, &mut gradients, grad, 0)?;
            Ok(gradients)
        }
        Op::Embedding { padding_idx } => {
            let indices = sweep.operand(node, 1)?;
            let weight = sweep.operand_type(node, 0)?;
            let Some(Dim::Fixed(num_weights)) = weight.dims.first().copied() else {
                return Err(sweep.unsupported(
                    node,
                    "the number of embeddings depends on the batch; give it a fixed size",
                ));
            };
            let op = Op::EmbeddingGrad {
                num_weights,
                padding_idx: *padding_idx,
            };
            let gradient = sweep.push1(op, &[grad, indices])?;
            Ok(rule.only([(0, Some(gradient))]))
        }
        _ => Err(rule.no_rule()),
    }
}

/// The gradients of the factors of `a @ b`, which are the operands `first` and `first + 1`:
/// `grad @ b^T` and `a^T @ grad`.
fn product(
    sweep: &mut Sweep,
    rule: &Rule,
    gradients: &mut Gradients,
    grad: ValueId,
    first: usize,
) -> Result<(), AutodiffError> {
    let batched = matches!(rule.node.op, Op::Bmm {});
    let (op, transposed): (Op, &[usize]) = match batched {
        true => (Op::Bmm {}, &[0, 2, 1]),
        false => (Op::Mm {}, &[1, 0]),
    };
    if rule.wants(first) {
        let b = sweep.operand(rule.node, first + 1)?;
        let b = sweep.permute(b, transposed)?;
        set(gradients, first, sweep.push1(op.clone(), &[grad, b])?);
    }
    if rule.wants(first + 1) {
        let a = sweep.operand(rule.node, first)?;
        let a = sweep.permute(a, transposed)?;
        set(gradients, first + 1, sweep.push1(op, &[a, grad])?);
    }
    Ok(())
}

fn set(gradients: &mut Gradients, operand: usize, gradient: ValueId) {
    if let Some(slot) = gradients.get_mut(operand) {
        *slot = Some(gradient);
    }
}

fn fixed(ty: &TensorType) -> Option<Vec<usize>> {
    (ty.dims.iter())
        .map(|dim| match dim {
            Dim::Fixed(size) => Some(*size),
            Dim::Batch(_) => None,
        })
        .collect()
}
