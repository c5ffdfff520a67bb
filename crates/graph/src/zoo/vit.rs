//! Vision transformers (Dosovitskiy et al. 2020, arXiv 2010.11929), as `torchvision.models.vision_transformer` builds them: the
//! same modules, names and order of operators.

use crate::{Builder, Dim, Op, ValueId};

use super::{
    DROPOUT, ZooError, ZooOptions,
    layers::{self, Conv},
};

/// A size.
pub(super) struct Size {
    layers: usize,
    heads: usize,
    width: usize,
    mlp: usize,
}

/// ViT-Ti (Touvron et al. 2020, arXiv 2012.12877, table 1).
pub(super) const TINY: Size = Size {
    layers: 12,
    heads: 3,
    width: 192,
    mlp: 768,
};

const EPS: f64 = 1e-6;

pub(super) fn forward(
    b: &mut Builder,
    input: ValueId,
    options: &ZooOptions,
    size: &Size,
) -> Result<ValueId, ZooError> {
    let patch = patch_size(b, options)?;
    let side = options.image_size / patch;
    let width = size.width;
    // Their order is PyTorch's `state_dict()`'s.
    let class_token = layers::free_parameter(b, "class_token", &[1, 1, width])?;

    let project = Conv {
        from: options.channels,
        to: width,
        kernel: patch,
        stride: patch,
        padding: 0,
        bias: true,
    };
    let x = layers::conv2d(b, "conv_proj", input, project)?;
    // [B, width, side, side] to [B, patches, width], the class token in front.
    let patches = side.saturating_mul(side);
    let samples = Dim::Batch(1);
    let x = layers::view(b, x, [samples, Dim::Fixed(width), Dim::Fixed(patches)])?;
    let x = b.op(
        Op::Permute {
            dims: vec![0, 2, 1],
        },
        &[x],
    )?;
    let class = b.op(
        Op::Expand {
            shape: vec![samples, Dim::Fixed(1), Dim::Fixed(width)],
        },
        &[class_token],
    )?;
    let x = b.op(Op::Cat { dim: 1 }, &[class, x])?;

    let encoder = Encoder {
        tokens: patches.saturating_add(1),
        dropout: options.dropout.unwrap_or(DROPOUT),
        size,
    };
    let x = b.scoped("encoder", |b| encoder.forward(b, x))?;
    let x = b.op(Op::Select { dim: 1, index: 0 }, &[x])?;
    Ok(b.scoped("heads", |b| layers::linear(b, "head", x, options.classes))?)
}

struct Encoder<'a> {
    tokens: usize,
    dropout: f64,
    size: &'a Size,
}

impl Encoder<'_> {
    fn forward(&self, b: &mut Builder, x: ValueId) -> Result<ValueId, ZooError> {
        let width = self.size.width;
        let position = b.parameter("pos_embedding", layers::floats(&[1, self.tokens, width]))?;
        let x = b.op(Op::Add { alpha: 1.0 }, &[x, position])?;
        let mut x = layers::dropout(b, "dropout", x, self.dropout)?;
        for layer in 0..self.size.layers {
            x = b.scoped(format!("layers.encoder_layer_{layer}"), |b| {
                self.block(b, x)
            })?;
        }
        Ok(layers::layer_norm(b, "ln", x, width, EPS)?)
    }

    /// `EncoderBlock`: attention and a perceptron, each normalised before and added after.
    fn block(&self, b: &mut Builder, input: ValueId) -> Result<ValueId, ZooError> {
        let width = self.size.width;
        let x = layers::layer_norm(b, "ln_1", input, width, EPS)?;
        let x = b.scoped("self_attention", |b| self.attention(b, x))?;
        let x = layers::dropout(b, "dropout", x, self.dropout)?;
        let input = b.op(Op::Add { alpha: 1.0 }, &[x, input])?;

        let x = layers::layer_norm(b, "ln_2", input, width, EPS)?;
        let x = b.scoped("mlp", |b| {
            let x = layers::linear(b, "0", x, self.size.mlp)?;
            let x = layers::op(b, "1", Op::Gelu { tanh: false }, &[x])?;
            let x = layers::dropout(b, "2", x, self.dropout)?;
            let x = layers::linear(b, "3", x, width)?;
            layers::dropout(b, "4", x, self.dropout)
        })?;
        Ok(b.op(Op::Add { alpha: 1.0 }, &[input, x])?)
    }

    /// `MultiheadAttention` of a sequence on itself, without attention dropout (torchvision's default).
    fn attention(&self, b: &mut Builder, x: ValueId) -> Result<ValueId, ZooError> {
        let (tokens, width, heads) = (self.tokens, self.size.width, self.size.heads);
        let head = width / heads;
        let samples = Dim::Batch(1);
        let groups = Dim::Batch(heads);

        let packed = layers::linear_named(
            b,
            x,
            width.saturating_mul(3),
            "in_proj_weight",
            "in_proj_bias",
        )?;
        let split = Op::Split {
            sizes: vec![width; 3],
            dim: 2,
        };
        let parts = b.ops(split, &[Some(packed)])?;
        // Each from [B, T, width] to [B * heads, T, head], the key transposed.
        let by_head = [
            samples,
            Dim::Fixed(tokens),
            Dim::Fixed(heads),
            Dim::Fixed(head),
        ];
        let rows = [groups, Dim::Fixed(tokens), Dim::Fixed(head)];
        let columns = [groups, Dim::Fixed(head), Dim::Fixed(tokens)];
        let mut split = [packed; 3];
        for (index, (slot, part)) in split.iter_mut().zip(parts).enumerate() {
            let part = layers::view(b, part, by_head)?;
            let (dims, shape) = match index {
                1 => (vec![0, 2, 3, 1], columns),
                _ => (vec![0, 2, 1, 3], rows),
            };
            let part = b.op(Op::Permute { dims }, &[part])?;
            *slot = layers::view(b, part, shape)?;
        }
        let [query, key, value] = split;

        let scalar = 1.0 / (head as f64).sqrt();
        let query = b.op(Op::MulScalar { scalar }, &[query])?;
        let scores = b.op(Op::Bmm {}, &[query, key])?;
        let weights = b.op(Op::Softmax { dim: 2 }, &[scores])?;
        let mixed = b.op(Op::Bmm {}, &[weights, value])?;

        // [B * heads, T, head] to [B, T, width].
        let mixed = layers::view(
            b,
            mixed,
            [
                samples,
                Dim::Fixed(heads),
                Dim::Fixed(tokens),
                Dim::Fixed(head),
            ],
        )?;
        let mixed = b.op(
            Op::Permute {
                dims: vec![0, 2, 1, 3],
            },
            &[mixed],
        )?;
        let mixed = layers::view(b, mixed, [samples, Dim::Fixed(tokens), Dim::Fixed(width)])?;
        Ok(layers::linear(b, "out_proj", mixed, width)?)
    }
}

/// The side of a patch, which must divide the image's.
fn patch_size(b: &Builder, options: &ZooOptions) -> Result<usize, ZooError> {
    let size = options.image_size;
    let Some(patch) = options.patch_size else {
        let fits = |patch: &usize| size.is_multiple_of(*patch) && size / patch >= 7;
        return Ok([16, 8, 4, 2].into_iter().find(fits).unwrap_or(1));
    };
    if patch == 0 || !size.is_multiple_of(patch) {
        return Err(ZooError::Option {
            model: b.graph().name.clone(),
            option: "patch size",
            value: patch.to_string(),
            reason: format!("it must divide the image's {size} pixels"),
        });
    }
    Ok(patch)
}
