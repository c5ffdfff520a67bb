//! Matrix products and embeddings.

use super::array::{Array, flat, for_each_index};
use super::elementwise::broadcast_strides;
use super::{Call, Fault};

/// `(a, b)`: `[n, m] @ [m, p]`.
pub(super) fn mm(call: &Call<'_>) -> Result<Vec<Array>, Fault> {
    let values = product(matrix(call, 0)?, matrix(call, 1)?)?;
    Ok(vec![Array::floats(call.result(0)?, values)])
}

/// `(bias, a, b)`: `bias + a @ b`.
pub(super) fn addmm(call: &Call<'_>) -> Result<Vec<Array>, Fault> {
    let shape = call.result(0)?;
    let mut values = product(matrix(call, 1)?, matrix(call, 2)?)?;
    let bias = call.floats(0)?;
    let bias_strides = broadcast_strides(call.dims(0)?, &shape.dims)?;
    let mut element = values.iter_mut();
    for_each_index(&shape.dims, |index| {
        if let Some(value) = element.next() {
            *value += bias[flat(index, &bias_strides)];
        }
    });
    Ok(vec![Array::floats(shape, values)])
}

/// `(a, b)`: `[batch, n, m] @ [batch, m, p]`.
pub(super) fn bmm(call: &Call<'_>) -> Result<Vec<Array>, Fault> {
    let (&[batch, n, m], &[b_batch, b_m, p]) = (call.dims(0)?, call.dims(1)?) else {
        return Err(Fault("needs two operands of three dimensions".to_owned()));
    };
    if batch != b_batch || n * m == 0 || b_m * p == 0 {
        return Err(Fault(format!("batches of {batch} and {b_batch} matrices")));
    }
    let mut values = Vec::with_capacity(batch * n * p);
    for (a, b) in call
        .floats(0)?
        .chunks(n * m)
        .zip(call.floats(1)?.chunks(b_m * p))
    {
        values.extend(product((a, n, m), (b, b_m, p))?);
    }
    Ok(vec![Array::floats(call.result(0)?, values)])
}

fn matrix<'a>(call: &Call<'a>, operand: usize) -> Result<(&'a [f64], usize, usize), Fault> {
    match *call.dims(operand)? {
        [rows, columns] => Ok((call.floats(operand)?, rows, columns)),
        ref dims => Err(Fault(format!(
            "operand {operand} of shape {dims:?} is no matrix"
        ))),
    }
}

fn product(
    (a, n, m): (&[f64], usize, usize),
    (b, b_m, p): (&[f64], usize, usize),
) -> Result<Vec<f64>, Fault> {
    if m != b_m {
        return Err(Fault(format!("[{n}, {m}] times [{b_m}, {p}]")));
    }
    let mut values = vec![0.0; n * p];
    for i in 0..n {
        for k in 0..m {
            for j in 0..p {
                values[i * p + j] += a[i * m + k] * b[k * p + j];
            }
        }
    }
    Ok(values)
}

/// `(weight, indices)`.
pub(super) fn embedding(call: &Call<'_>) -> Result<Vec<Array>, Fault> {
    let (weight, rows, width) = matrix(call, 0)?;
    let shape = call.result(0)?;
    let mut values = Vec::with_capacity(shape.elements());
    for &index in call.ints(1)? {
        let row = row(index, rows)?;
        values.extend_from_slice(&weight[row * width..(row + 1) * width]);
    }
    Ok(vec![Array::floats(shape, values)])
}

/// `(grad, indices)`: each row's gradients added up; the padding row gets none.
pub(super) fn embedding_grad(
    call: &Call<'_>,
    num_weights: usize,
    padding_idx: Option<usize>,
) -> Result<Vec<Array>, Fault> {
    let shape = call.result(0)?;
    let &[_, width] = &shape.dims[..] else {
        return Err(Fault("the weight of an embedding is a matrix".to_owned()));
    };
    let mut values = vec![0.0; shape.elements()];
    if width > 0 {
        for (grad, &index) in call.floats(0)?.chunks(width).zip(call.ints(1)?) {
            let row = row(index, num_weights)?;
            if padding_idx != Some(row) {
                for (sum, grad) in values[row * width..].iter_mut().zip(grad) {
                    *sum += grad;
                }
            }
        }
    }
    Ok(vec![Array::floats(shape, values)])
}

fn row(index: i64, rows: usize) -> Result<usize, Fault> {
    usize::try_from(index)
        .ok()
        .filter(|&row| row < rows)
        .ok_or_else(|| {
            Fault(format!(
                "index {index} is outside of an embedding of {rows} rows; check the vocabulary"
            ))
        })
}
