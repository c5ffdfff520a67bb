//! ResNet-18, -34 and -50 (He et al. 2015, arXiv 1512.03385), as `torchvision.models.resnet` builds them: the same modules,
//! names and order of operators; in ResNet-50 the stride is in the 3x3 convolution ("V1.5").

use crate::{Builder, Op, ValueId};

use super::{
    ZooError, ZooOptions,
    layers::{self, Conv},
};

/// A depth.
pub(super) struct Depth {
    /// Blocks of `layer1` to `layer4`.
    blocks: [usize; 4],
    /// Blocks of 1x1, 3x3, 1x1 convolutions instead of two of 3x3.
    bottleneck: bool,
}

pub(super) const RESNET18: Depth = Depth {
    blocks: [2, 2, 2, 2],
    bottleneck: false,
};
pub(super) const RESNET34: Depth = Depth {
    blocks: [3, 4, 6, 3],
    bottleneck: false,
};
pub(super) const RESNET50: Depth = Depth {
    blocks: [3, 4, 6, 3],
    bottleneck: true,
};

/// Channels of a stage's 3x3 convolutions.
const WIDTHS: [usize; 4] = [64, 128, 256, 512];

pub(super) fn forward(
    b: &mut Builder,
    input: ValueId,
    options: &ZooOptions,
    depth: &Depth,
) -> Result<ValueId, ZooError> {
    let stem = Conv {
        from: options.channels,
        to: 64,
        kernel: 7,
        stride: 2,
        padding: 3,
        bias: false,
    };
    let mut x = layers::conv2d(b, "conv1", input, stem)?;
    x = layers::batch_norm2d(b, "bn1", x, 64)?;
    x = layers::op(b, "relu", Op::Relu {}, &[x])?;
    x = b.scoped("maxpool", |b| {
        let op = Op::MaxPool2d {
            kernel_size: vec![3; 2],
            stride: vec![2; 2],
            padding: vec![1; 2],
            dilation: vec![1; 2],
            ceil_mode: false,
        };
        let results = b.ops(op, &[Some(x)])?;
        Ok::<_, ZooError>(results.first().copied().unwrap_or(x))
    })?;

    let expansion = if depth.bottleneck { 4 } else { 1 };
    let mut channels = 64;
    for (index, (blocks, width)) in depth.blocks.into_iter().zip(WIDTHS).enumerate() {
        x = b.scoped(format!("layer{}", index + 1), |b| {
            let mut x = x;
            for block in 0..blocks {
                let block_of = Block {
                    from: channels,
                    width,
                    to: width * expansion,
                    stride: if index > 0 && block == 0 { 2 } else { 1 },
                };
                x = b.scoped(block.to_string(), |b| match depth.bottleneck {
                    true => block_of.bottleneck(b, x),
                    false => block_of.basic(b, x),
                })?;
                channels = block_of.to;
            }
            Ok::<_, ZooError>(x)
        })?;
    }

    x = layers::op(
        b,
        "avgpool",
        Op::AdaptiveAvgPool2d {
            output_size: vec![1; 2],
        },
        &[x],
    )?;
    let samples = b.ty(x)?.dims.first().copied();
    x = layers::view(
        b,
        x,
        samples.into_iter().chain([crate::Dim::Fixed(channels)]),
    )?;
    Ok(layers::linear(b, "fc", x, options.classes)?)
}

/// One residual block.
struct Block {
    from: usize,
    width: usize,
    to: usize,
    stride: usize,
}

impl Block {
    /// `BasicBlock`.
    fn basic(&self, b: &mut Builder, x: ValueId) -> Result<ValueId, ZooError> {
        let mut y = layers::conv2d(b, "conv1", x, conv3x3(self.from, self.width, self.stride))?;
        y = layers::batch_norm2d(b, "bn1", y, self.width)?;
        y = layers::op(b, "relu", Op::Relu {}, &[y])?;
        y = layers::conv2d(b, "conv2", y, conv3x3(self.width, self.to, 1))?;
        y = layers::batch_norm2d(b, "bn2", y, self.to)?;
        self.join(b, x, y)
    }

    /// `Bottleneck`.
    fn bottleneck(&self, b: &mut Builder, x: ValueId) -> Result<ValueId, ZooError> {
        let mut y = layers::conv2d(b, "conv1", x, conv1x1(self.from, self.width, 1))?;
        y = layers::batch_norm2d(b, "bn1", y, self.width)?;
        y = layers::op(b, "relu", Op::Relu {}, &[y])?;
        y = layers::conv2d(b, "conv2", y, conv3x3(self.width, self.width, self.stride))?;
        y = layers::batch_norm2d(b, "bn2", y, self.width)?;
        y = layers::op(b, "relu", Op::Relu {}, &[y])?;
        y = layers::conv2d(b, "conv3", y, conv1x1(self.width, self.to, 1))?;
        y = layers::batch_norm2d(b, "bn3", y, self.to)?;
        self.join(b, x, y)
    }

    /// Adds the skip connection, through a convolution where the shape changes.
    fn join(&self, b: &mut Builder, x: ValueId, y: ValueId) -> Result<ValueId, ZooError> {
        let mut skip = x;
        if self.stride != 1 || self.from != self.to {
            skip = b.scoped("downsample", |b| {
                let conv = conv1x1(self.from, self.to, self.stride);
                let skip = layers::conv2d(b, "0", x, conv)?;
                layers::batch_norm2d(b, "1", skip, self.to)
            })?;
        }
        let sum = b.op(Op::Add { alpha: 1.0 }, &[y, skip])?;
        Ok(layers::op(b, "relu", Op::Relu {}, &[sum])?)
    }
}

fn conv3x3(from: usize, to: usize, stride: usize) -> Conv {
    Conv {
        from,
        to,
        kernel: 3,
        stride,
        padding: 1,
        bias: false,
    }
}

fn conv1x1(from: usize, to: usize, stride: usize) -> Conv {
    Conv {
        from,
        to,
        kernel: 1,
        stride,
        padding: 0,
        bias: false,
    }
}
