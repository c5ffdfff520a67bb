//! A multi-layer perceptron: `Sequential(Flatten, Linear, ReLU, Dropout, Linear, ReLU, Dropout, Linear)`, so the parameters
//! are `1.weight`, `1.bias`, `4.weight`, ... as in PyTorch.

use crate::{Builder, Op, ValueId};

use super::{DROPOUT, ZooError, ZooOptions, layers};

/// Widths of the hidden layers.
const HIDDEN: [usize; 2] = [256, 128];

pub(super) fn forward(
    b: &mut Builder,
    input: ValueId,
    options: &ZooOptions,
) -> Result<ValueId, ZooError> {
    let dims = b.ty(input)?.dims.clone();
    let features = (dims.iter().skip(1)).fold(1_usize, |n, dim| n.saturating_mul(dim.factor()));
    let shape = dims
        .into_iter()
        .take(1)
        .chain([crate::Dim::Fixed(features)]);
    let mut x = b.scoped("0", |b| layers::view(b, input, shape))?;
    let dropout = options.dropout.unwrap_or(DROPOUT);
    let mut module = 1;
    for width in HIDDEN {
        x = layers::linear(b, &module.to_string(), x, width)?;
        x = layers::op(b, &(module + 1).to_string(), Op::Relu {}, &[x])?;
        x = layers::dropout(b, &(module + 2).to_string(), x, dropout)?;
        module += 3;
    }
    Ok(layers::linear(b, &module.to_string(), x, options.classes)?)
}
