//! Batch and layer normalisation, softmax.

use crate::{
    Dim, Op, ValueId,
    autodiff::{AutodiffError, Sweep},
};

use super::{Gradients, Rule};

pub(super) fn gradients(sweep: &mut Sweep, rule: &Rule) -> Result<Gradients, AutodiffError> {
    let grad = rule.cotangent()?;
    let node = rule.node;
    match &node.op {
        Op::BatchNormTraining { eps, .. } => {
            let input = sweep.operand(node, 0)?;
            let weight = sweep.optional_operand(node, 1)?;
            let mean = sweep.result(node, 1)?;
            let rstd = sweep.result(node, 2)?;
            let operands = [Some(grad), Some(input), weight, Some(mean), Some(rstd)];
            let results = sweep.push(Op::BatchNormGrad { eps: *eps }, &operands)?;
            Ok(affine(rule, &results))
        }
        Op::BatchNormInference { eps, .. } => batch_norm_inference(sweep, rule, grad, *eps),
        Op::LayerNorm {
            normalized_shape, ..
        } => {
            let input = sweep.operand(node, 0)?;
            let mean = sweep.result(node, 1)?;
            let rstd = sweep.result(node, 2)?;
            let weight = sweep.optional_operand(node, 1)?;
            let op = Op::LayerNormGrad {
                normalized_shape: normalized_shape.clone(),
            };
            let operands = [Some(grad), Some(input), Some(mean), Some(rstd), weight];
            let results = sweep.push(op, &operands)?;
            Ok(affine(rule, &results))
        }
        Op::Softmax { dim } => {
            let output = sweep.result(node, 0)?;
            let gradient = sweep.push1(Op::SoftmaxGrad { dim: *dim }, &[grad, output])?;
            Ok(rule.only([(0, Some(gradient))]))
        }
        Op::LogSoftmax { dim } => {
            let output = sweep.result(node, 0)?;
            let gradient = sweep.push1(Op::LogSoftmaxGrad { dim: *dim }, &[grad, output])?;
            Ok(rule.only([(0, Some(gradient))]))
        }
        _ => Err(rule.no_rule()),
    }
}

/// `(input_grad, weight_grad, bias_grad)` for the operands `(input, weight?, bias?)`.
fn affine(rule: &Rule, results: &[ValueId]) -> Gradients {
    rule.only([
        (0, results.first().copied()),
        (1, results.get(1).copied()),
        (2, results.get(2).copied()),
    ])
}

/// With constant statistics, a batch norm is affine in its input: `y = (x - mean) * rstd * weight + bias`, where
/// `rstd = 1 / sqrt(var + eps)`.
fn batch_norm_inference(
    sweep: &mut Sweep,
    rule: &Rule,
    grad: ValueId,
    eps: f64,
) -> Result<Gradients, AutodiffError> {
    let node = rule.node;
    let ty = sweep.operand_type(node, 0)?;
    let channels: Vec<Dim> = (ty.dims.iter().enumerate())
        .map(|(position, dim)| if position == 1 { *dim } else { Dim::Fixed(1) })
        .collect();
    let others: Vec<usize> = (0..ty.dims.len()).filter(|dim| *dim != 1).collect();
    let view = Op::View { shape: channels };

    let rstd = if rule.wants(0) || rule.wants(1) {
        let variance = sweep.operand(node, 4)?;
        let shifted = sweep.push1(Op::AddScalar { scalar: eps }, &[variance])?;
        Some(sweep.push1(Op::Rsqrt {}, &[shifted])?)
    } else {
        None
    };
    let mut gradients = rule.only([]);
    if let (true, Some(rstd)) = (rule.wants(0), rstd) {
        let scale = match sweep.optional_operand(node, 1)? {
            Some(weight) => sweep.push1(Op::Mul {}, &[weight, rstd])?,
            None => rstd,
        };
        let scale = sweep.push1(view.clone(), &[scale])?;
        let gradient = sweep.push1(Op::Mul {}, &[grad, scale])?;
        if let Some(slot) = gradients.get_mut(0) {
            *slot = Some(gradient);
        }
    }
    if let (true, Some(rstd)) = (rule.wants(1), rstd) {
        let input = sweep.operand(node, 0)?;
        let mean = sweep.operand(node, 3)?;
        let mean = sweep.push1(view.clone(), &[mean])?;
        let rstd = sweep.push1(view, &[rstd])?;
        let centred = sweep.push1(Op::Sub { alpha: 1.0 }, &[input, mean])?;
        let normalised = sweep.push1(Op::Mul {}, &[centred, rstd])?;
        let product = sweep.push1(Op::Mul {}, &[grad, normalised])?;
        let op = Op::Sum {
            dims: others.clone(),
            keepdim: false,
        };
        let gradient = sweep.push1(op, &[product])?;
        if let Some(slot) = gradients.get_mut(1) {
            *slot = Some(gradient);
        }
    }
    if rule.wants(2) {
        let gradient = sweep.push1(
            Op::Sum {
                dims: others,
                keepdim: false,
            },
            &[grad],
        )?;
        if let Some(slot) = gradients.get_mut(2) {
            *slot = Some(gradient);
        }
    }
    Ok(gradients)
}
