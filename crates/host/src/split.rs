//! The split of a batch into micro-batches.

use bytes::BytesMut;
use outboard_graph::{Dim, Tensor, TensorType};

use crate::RunError;

/// Sizes of the micro-batches of a batch: as many as asked for, or the most below that of which every one has at least
/// `smallest` samples; the first `batch % m` have one sample more, as `torch.tensor_split` does it.
///
/// # Errors
///
/// [`RunError::Batch`] when the whole batch is smaller than `smallest`, or empty.
pub fn micro_batch_sizes(
    batch: usize,
    wanted: usize,
    smallest: usize,
) -> Result<Vec<usize>, RunError> {
    let smallest = smallest.max(1);
    if batch < smallest {
        return Err(RunError::Batch(format!(
            "it has {batch} samples; the model needs {smallest} at least (batch normalisation needs more than one \
             value a channel)"
        )));
    }
    let count = wanted.clamp(1, batch / smallest);
    let (size, longer) = (batch / count, batch % count);
    Ok((0..count)
        .map(|index| size + usize::from(index < longer))
        .collect())
}

/// Slices a batch's tensor into micro-batches of these sizes, sharing its bytes. `ty` is its type in the graph: a tensor
/// without a batch dimension goes whole to every micro-batch.
///
/// # Errors
///
/// [`RunError::Batch`] when the tensor's element type or shape is not that of `ty` for the sum of `sizes`.
pub fn split(
    name: &str,
    tensor: &Tensor,
    ty: &TensorType,
    sizes: &[usize],
) -> Result<Vec<Tensor>, RunError> {
    let batch: usize = sizes.iter().sum();
    let wanted = ty
        .sizes(batch)
        .ok_or_else(|| RunError::Batch(format!("`{name}` is too large")))?;
    if tensor.dtype() != ty.dtype || tensor.dims() != wanted {
        return Err(RunError::Batch(format!(
            "`{name}` is {} {:?}, the model takes {} {wanted:?}",
            tensor.dtype().name(),
            tensor.dims(),
            ty.dtype.name()
        )));
    }
    let each = match ty.dims.first() {
        Some(Dim::Batch(each)) => *each,
        _ if ty.dims.iter().all(|dim| matches!(dim, Dim::Fixed(_))) => {
            return Ok(vec![tensor.clone(); sizes.len()]);
        }
        _ => {
            return Err(RunError::Batch(format!(
                "`{name}` has its batch in another dimension than the first"
            )));
        }
    };
    let row_bytes = tensor.data().len().checked_div(each * batch).unwrap_or(0);
    let mut start = 0;
    sizes
        .iter()
        .map(|size| {
            let rows = each * size;
            let bytes = start..start + rows * row_bytes;
            start = bytes.end;
            let mut dims = tensor.dims().to_vec();
            if let Some(first) = dims.first_mut() {
                *first = rows;
            }
            Tensor::from_bytes(tensor.dtype(), dims, tensor.data().slice(bytes))
                .map_err(|error| RunError::Batch(format!("`{name}`: {error}")))
        })
        .collect()
}

/// Joins the micro-batches of a result again: along its first dimension where that is the batch; a result without a batch
/// dimension is that of the first micro-batch.
///
/// # Errors
///
/// [`RunError::Batch`] when a part's element type or shape is not that of `ty` for its size.
pub fn join(
    name: &str,
    ty: &TensorType,
    sizes: &[usize],
    parts: &[&Tensor],
) -> Result<Tensor, RunError> {
    let wrong = |what: String| RunError::Batch(format!("result `{name}`: {what}"));
    let mut data = BytesMut::new();
    for (size, part) in sizes.iter().zip(parts) {
        let wanted = ty.sizes(*size);
        if part.dtype() != ty.dtype || Some(part.dims()) != wanted.as_deref() {
            return Err(wrong(format!(
                "a micro-batch of {size} has shape {:?}",
                part.dims()
            )));
        }
        data.extend_from_slice(part.data());
    }
    let Some(first) = parts.first() else {
        return Err(wrong("no micro-batch".to_owned()));
    };
    if !ty.dims.first().is_some_and(|dim| dim.is_batch()) {
        return Ok((*first).clone());
    }
    let dims = ty
        .sizes(sizes.iter().sum())
        .ok_or_else(|| wrong("it is too large".to_owned()))?;
    Tensor::from_bytes(ty.dtype, dims, data.freeze()).map_err(|error| wrong(error.to_string()))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use outboard_graph::DType;

    use super::*;

    #[test]
    fn the_first_micro_batches_are_the_longer_ones() {
        assert_eq!(micro_batch_sizes(10, 4, 1), Ok(vec![3, 3, 2, 2]));
        assert_eq!(micro_batch_sizes(32, 4, 1), Ok(vec![8, 8, 8, 8]));
    }

    #[test]
    fn a_small_batch_has_fewer_micro_batches() {
        assert_eq!(micro_batch_sizes(3, 4, 1), Ok(vec![1, 1, 1]));
        assert_eq!(micro_batch_sizes(7, 4, 2), Ok(vec![3, 2, 2]));
        assert_eq!(micro_batch_sizes(1, 4, 1), Ok(vec![1]));
        assert!(micro_batch_sizes(1, 4, 2).is_err());
        assert!(micro_batch_sizes(0, 4, 1).is_err());
    }

    #[test]
    fn every_split_sums_to_the_batch_and_respects_the_smallest() {
        for batch in 1..40 {
            for wanted in 1..12 {
                for smallest in 1..5 {
                    let Ok(sizes) = micro_batch_sizes(batch, wanted, smallest) else {
                        assert!(batch < smallest);
                        continue;
                    };
                    assert_eq!(sizes.iter().sum::<usize>(), batch);
                    assert!(sizes.len() <= wanted);
                    assert!(sizes.iter().all(|size| *size >= smallest));
                    assert!(sizes.len() == wanted || batch / (sizes.len() + 1) < smallest);
                }
            }
        }
    }

    #[test]
    fn slices_share_the_batch_bytes_in_order() {
        let data = Bytes::from_iter((0..20u8).flat_map(|v| i64::from(v).to_le_bytes()));
        let batch = Tensor::from_bytes(DType::I64, vec![10, 2], data).unwrap();
        let ty = TensorType {
            dtype: DType::I64,
            dims: vec![Dim::Batch(2), Dim::Fixed(2)],
        };
        let parts = split("input", &batch, &ty, &[3, 2]).unwrap();
        assert_eq!(parts[0].dims(), [6, 2]);
        assert_eq!(parts[1].dims(), [4, 2]);
        assert_eq!(parts[1].data()[..8], 12i64.to_le_bytes());
        assert!(split("input", &batch, &ty, &[3, 3]).is_err());
        let parts: Vec<&Tensor> = parts.iter().collect();
        assert_eq!(join("input", &ty, &[3, 2], &parts), Ok(batch));
        assert!(join("input", &ty, &[2, 3], &parts).is_err());
    }
}
