//! VGG-11 with batch norm (Simonyan and Zisserman 2014, arXiv 1409.1556, configuration A), as
//! `torchvision.models.vgg11_bn` builds it: the same modules, names and order of operators.

use crate::{Builder, Dim, Op, ValueId};

use super::{
    ZooError, ZooOptions,
    layers::{self, Conv},
};

/// Channels of the 3x3 convolutions; each list ends with a pooling.
const VGG11: [&[usize]; 5] = [&[64], &[128], &[256, 256], &[512, 512], &[512, 512]];

/// Side of what the classifier sees.
const SIDE: usize = 7;
/// Width of the classifier's hidden layers.
const HIDDEN: usize = 4096;
/// torchvision's default.
const DROPOUT: f64 = 0.5;

pub(super) fn vgg11_bn(
    b: &mut Builder,
    input: ValueId,
    options: &ZooOptions,
) -> Result<ValueId, ZooError> {
    let mut from = options.channels;
    let features = b.scoped("features", |b| {
        let (mut x, mut module) = (input, 0);
        for channels in VGG11 {
            for &to in channels {
                let conv = Conv {
                    from,
                    to,
                    kernel: 3,
                    stride: 1,
                    padding: 1,
                    bias: true,
                };
                x = layers::conv2d(b, &module.to_string(), x, conv)?;
                x = layers::batch_norm2d(b, &(module + 1).to_string(), x, to)?;
                x = layers::op(b, &(module + 2).to_string(), Op::Relu {}, &[x])?;
                (from, module) = (to, module + 3);
            }
            let pool = Op::MaxPool2d {
                kernel_size: vec![2; 2],
                stride: vec![2; 2],
                padding: vec![0; 2],
                dilation: vec![1; 2],
                ceil_mode: false,
            };
            let results = b.scoped(module.to_string(), |b| b.ops(pool, &[Some(x)]))?;
            x = results.first().copied().unwrap_or(x);
            module += 1;
        }
        Ok::<_, ZooError>(x)
    })?;
    let pool = Op::AdaptiveAvgPool2d {
        output_size: vec![SIDE; 2],
    };
    let x = layers::op(b, "avgpool", pool, &[features])?;
    let samples = b.ty(x)?.dims.first().copied();
    let flat = Dim::Fixed(from * SIDE * SIDE);
    let mut x = layers::view(b, x, samples.into_iter().chain([flat]))?;
    let dropout = options.dropout.unwrap_or(DROPOUT);
    b.scoped("classifier", |b| {
        for module in [0, 3] {
            x = layers::linear(b, &module.to_string(), x, HIDDEN)?;
            x = layers::op(b, &(module + 1).to_string(), Op::Relu {}, &[x])?;
            x = layers::dropout(b, &(module + 2).to_string(), x, dropout)?;
        }
        Ok(layers::linear(b, "6", x, options.classes)?)
    })
}
