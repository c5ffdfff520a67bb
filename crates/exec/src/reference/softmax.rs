//! Softmax, its logarithm, and the losses on it.

use outboard_graph::Reduction;

use super::array::{Array, Axis};
use super::{Call, Fault};

/// `exp(x - max) / sum(exp(x - max))` along a dimension; with `log`, its logarithm.
pub(super) fn softmax(call: &Call<'_>, dim: usize, log: bool) -> Result<Vec<Array>, Fault> {
    let input = call.floats(0)?;
    let mut output = vec![0.0; input.len()];
    for line in Axis::of(call.dims(0)?, dim)?.lines() {
        let largest = line
            .clone()
            .map(|at| input[at])
            .fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = line.clone().map(|at| (input[at] - largest).exp()).sum();
        for at in line {
            let shifted = input[at] - largest;
            output[at] = if log {
                shifted - sum.ln()
            } else {
                shifted.exp() / sum
            };
        }
    }
    Ok(vec![Array::floats(call.result(0)?, output)])
}

/// `(grad, output)`.
pub(super) fn softmax_grad(call: &Call<'_>, dim: usize, log: bool) -> Result<Vec<Array>, Fault> {
    let (grad, output) = (call.floats(0)?, call.floats(1)?);
    let mut values = vec![0.0; grad.len()];
    for line in Axis::of(call.dims(0)?, dim)?.lines() {
        let sum: f64 = line
            .clone()
            .map(|at| if log { grad[at] } else { grad[at] * output[at] })
            .sum();
        for at in line {
            values[at] = if log {
                grad[at] - output[at].exp() * sum
            } else {
                output[at] * (grad[at] - sum)
            };
        }
    }
    Ok(vec![Array::floats(call.result(0)?, values)])
}

/// One sample that counts: where its log-probability stands, and its class's weight.
struct Sample {
    at: usize,
    weight: f64,
}

/// The samples of `(log_probabilities, target, class_weight?)`, which start at operand `first`; `None` where the target
/// is ignored.
fn samples(call: &Call<'_>, first: usize, ignore_index: i64) -> Result<Vec<Option<Sample>>, Fault> {
    let classes = *call
        .dims(first)?
        .last()
        .ok_or_else(|| Fault("needs log-probabilities of classes".to_owned()))?;
    let class_weight = call.optional_floats(first + 2)?;
    call.ints(first + 1)?
        .iter()
        .enumerate()
        .map(|(sample, &target)| {
            if target == ignore_index {
                return Ok(None);
            }
            let class = usize::try_from(target).ok().filter(|&class| class < classes).ok_or_else(|| {
                Fault(format!(
                    "target {target} of sample {sample} is not one of {classes} classes; give the model more classes \
                     or check the labels"
                ))
            })?;
            let weight = class_weight.map_or(1.0, |weights| weights[class]);
            Ok(Some(Sample { at: sample * classes + class, weight }))
        })
        .collect()
}

/// `(log_probabilities, target, class_weight?)` to `(output, total_weight)`. The total weight of an unreduced loss is 0,
/// and a mean over nothing is NaN, as in ATen.
pub(super) fn nll_loss(
    call: &Call<'_>,
    reduction: Reduction,
    ignore_index: i64,
) -> Result<Vec<Array>, Fault> {
    let log_probabilities = call.floats(0)?;
    let samples = samples(call, 0, ignore_index)?;
    let losses = samples.iter().map(|sample| {
        sample
            .as_ref()
            .map_or(0.0, |sample| -sample.weight * log_probabilities[sample.at])
    });
    let total: f64 = samples.iter().flatten().map(|sample| sample.weight).sum();
    let (output, total) = match reduction {
        Reduction::None => (losses.collect(), 0.0),
        Reduction::Sum => (vec![losses.sum()], total),
        Reduction::Mean => (vec![losses.sum::<f64>() / total], total),
    };
    Ok(vec![
        Array::floats(call.result(0)?, output),
        Array::floats(call.result(1)?, vec![total]),
    ])
}

/// `(grad, log_probabilities, target, class_weight?, total_weight)`.
pub(super) fn nll_loss_grad(
    call: &Call<'_>,
    reduction: Reduction,
    ignore_index: i64,
) -> Result<Vec<Array>, Fault> {
    let shape = call.result(0)?;
    let grad = call.floats(0)?;
    let total = *call
        .floats(4)?
        .first()
        .ok_or_else(|| Fault("has no total weight".to_owned()))?;
    let mut values = vec![0.0; shape.elements()];
    for (index, sample) in samples(call, 1, ignore_index)?.into_iter().enumerate() {
        let Some(Sample { at, weight }) = sample else {
            continue;
        };
        values[at] = match reduction {
            Reduction::None => -weight * grad[index],
            Reduction::Sum => -weight * grad[0],
            Reduction::Mean => -weight * grad[0] / total,
        };
    }
    Ok(vec![Array::floats(shape, values)])
}
