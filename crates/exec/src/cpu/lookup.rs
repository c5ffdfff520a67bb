//! Operators that class indices steer: embedding and negative log likelihood. Indices are checked, not trusted.

use outboard_graph::Reduction;

use super::OpError;
use super::tensor::CpuTensor;

fn checked(index: i64, size: usize, what: &str) -> Result<usize, OpError> {
    usize::try_from(index)
        .ok()
        .filter(|&index| index < size)
        .ok_or_else(|| {
            OpError::Value(format!(
                "{what} {index} is out of range: it must be 0 to {}",
                size.saturating_sub(1)
            ))
        })
}

/// `embedding`: rows of `weight [V, D]`.
pub(super) fn embedding(
    weight: &CpuTensor,
    indices: &CpuTensor,
    out_dims: &[usize],
) -> Result<CpuTensor, OpError> {
    let [vocabulary, width] = *weight.dims() else {
        return Err(OpError::Shape);
    };
    let mut out = Vec::with_capacity(indices.elements() * width);
    for &index in indices.i64s() {
        let row = checked(index, vocabulary, "index")?;
        out.extend_from_slice(&weight.f32s()[row * width..][..width]);
    }
    Ok(CpuTensor::from_f32(out_dims, out))
}

/// `embedding_dense_backward`: rows of `grad` added up in order.
pub(super) fn embedding_grad(
    grad: &CpuTensor,
    indices: &CpuTensor,
    padding_idx: Option<usize>,
    out_dims: &[usize],
) -> Result<CpuTensor, OpError> {
    let [vocabulary, width] = *out_dims else {
        return Err(OpError::Shape);
    };
    let mut out = vec![0.0_f32; vocabulary * width];
    for (&index, grad) in indices.i64s().iter().zip(grad.f32s().chunks_exact(width)) {
        let row = checked(index, vocabulary, "index")?;
        if Some(row) != padding_idx {
            let out = &mut out[row * width..][..width];
            out.iter_mut().zip(grad).for_each(|(out, dy)| *out += dy);
        }
    }
    Ok(CpuTensor::from_f32(out_dims, out))
}

/// For each sample its target and class weight; `None` for an ignored one.
fn targets<'a>(
    classes: usize,
    target: &'a CpuTensor,
    class_weight: Option<&'a CpuTensor>,
    ignore_index: i64,
) -> impl Iterator<Item = Result<Option<(usize, f32)>, OpError>> + 'a {
    target.i64s().iter().map(move |&target| {
        if target == ignore_index {
            return Ok(None);
        }
        let class = checked(target, classes, "target")?;
        Ok(Some((class, class_weight.map_or(1.0, |w| w.f32s()[class]))))
    })
}

/// `nll_loss_forward`: loss and total weight (0 without a reduction, as in ATen).
pub(super) fn nll_loss(
    log_probabilities: &CpuTensor,
    target: &CpuTensor,
    class_weight: Option<&CpuTensor>,
    (reduction, ignore_index): (Reduction, i64),
    out_dims: &[usize],
) -> Result<[CpuTensor; 2], OpError> {
    let classes = log_probabilities.dims().last().copied().unwrap_or(1);
    let samples = log_probabilities.f32s().chunks_exact(classes);
    let (mut losses, mut total, mut total_weight) = (Vec::new(), 0.0_f64, 0.0_f64);
    for (sample, target) in samples.zip(targets(classes, target, class_weight, ignore_index)) {
        // An ignored sample counts nothing, even when its log probability is infinite.
        let (loss, weight) = match target? {
            None => (0.0, 0.0),
            Some((class, weight)) => (-sample[class] * weight, weight),
        };
        total += f64::from(loss);
        total_weight += f64::from(weight);
        if reduction == Reduction::None {
            losses.push(loss);
        }
    }
    let scalar = |x: f64| CpuTensor::from_f32(&[], vec![x as f32]);
    Ok(match reduction {
        Reduction::None if out_dims.is_empty() => [scalar(total), scalar(0.0)],
        Reduction::None => [CpuTensor::from_f32(out_dims, losses), scalar(0.0)],
        Reduction::Sum => [scalar(total), scalar(total_weight)],
        Reduction::Mean => [scalar(total / total_weight), scalar(total_weight)],
    })
}

/// `nll_loss_backward`.
pub(super) fn nll_loss_grad(
    grad: &CpuTensor,
    dims: &[usize],
    target: &CpuTensor,
    class_weight: Option<&CpuTensor>,
    total_weight: &CpuTensor,
    (reduction, ignore_index): (Reduction, i64),
) -> Result<CpuTensor, OpError> {
    let classes = dims.last().copied().unwrap_or(1);
    let mut out = vec![0.0; dims.iter().product()];
    let targets = targets(classes, target, class_weight, ignore_index);
    for ((sample, out), target) in out.chunks_exact_mut(classes).enumerate().zip(targets) {
        let Some((class, weight)) = target? else {
            continue;
        };
        let grad = match reduction {
            Reduction::None => grad.f32s()[sample],
            Reduction::Sum => grad.f32s()[0],
            Reduction::Mean => grad.f32s()[0] / total_weight.f32s()[0],
        };
        out[class] = -weight * grad;
    }
    Ok(CpuTensor::from_f32(dims, out))
}
