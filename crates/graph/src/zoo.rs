//! Models that need no PyTorch: built here, with PyTorch's parameter names, so that their bundles load with
//! `load_state_dict` and the other way round.

mod layers;
mod mlp;
mod resnet;
mod vgg;
mod vit;

use crate::{Builder, DType, Graph, GraphError, Loss, LossError, OutputKind, TensorType, ValueId};

/// The models, by name.
pub const NAMES: &[&str] = &[
    "mlp", "resnet18", "resnet34", "resnet50", "vgg11_bn", "vit_tiny",
];

/// The name of the data input that holds the images.
pub const INPUT: &str = "input";

/// The name of the result: the class scores before softmax, `f32[B,classes]`.
pub const LOGITS: &str = "logits";

/// Probability of dropping an element, where neither the caller nor the model says otherwise.
const DROPOUT: f64 = 0.1;

/// What a model of the zoo is built for.
#[derive(Clone, Debug, PartialEq)]
pub struct ZooOptions {
    /// Height and width of an image in pixels.
    pub image_size: usize,
    /// Channels of an image.
    pub channels: usize,
    /// Classes, or numbers predicted.
    pub classes: usize,
    /// Probability of dropping an element, for the models that have dropout; unless given, 0.5 for `vgg11_bn`, 0.1 for `mlp`
    /// and `vit_tiny`.
    pub dropout: Option<f64>,
    /// Height and width of a patch in pixels, for `vit_tiny`; unless given, the largest of 16, 8, 4, 2, 1 that cuts the image
    /// into at least 7 x 7 patches.
    pub patch_size: Option<usize>,
    /// The loss.
    pub loss: Loss,
}

impl Default for ZooOptions {
    /// ImageNet: 224 x 224 colour images of 1000 classes, cross-entropy.
    fn default() -> Self {
        ZooOptions {
            image_size: 224,
            channels: 3,
            classes: 1000,
            dropout: None,
            patch_size: None,
            loss: Loss::default(),
        }
    }
}

/// Why a model could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ZooError {
    /// No such model.
    #[error("no model is named {name:?}; there are {}", NAMES.join(", "))]
    Unknown {
        /// The name.
        name: String,
    },
    /// An option out of range.
    #[error("{model}: {option} is {value}; {reason}")]
    Option {
        /// The model.
        model: String,
        /// The option.
        option: &'static str,
        /// Its value.
        value: String,
        /// What would fit.
        reason: String,
    },
    /// The loss does not fit the model.
    #[error(transparent)]
    Loss(#[from] LossError),
    /// A layer does not fit its input, such as an image too small for the network.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// Builds a model with its loss: data `input` `f32[B,channels,size,size]` and `target`, result `logits`.
///
/// The graph is in canonical form. [`crate::init::weights`] makes its initial weights.
///
/// # Errors
/// See [`ZooError`].
pub fn build(name: &str, options: &ZooOptions) -> Result<Graph, ZooError> {
    let body: fn(&mut Builder, ValueId, &ZooOptions) -> Result<ValueId, ZooError> = match name {
        "mlp" => mlp::forward,
        "resnet18" => |b, x, o| resnet::forward(b, x, o, &resnet::RESNET18),
        "resnet34" => |b, x, o| resnet::forward(b, x, o, &resnet::RESNET34),
        "resnet50" => |b, x, o| resnet::forward(b, x, o, &resnet::RESNET50),
        "vgg11_bn" => vgg::vgg11_bn,
        "vit_tiny" => |b, x, o| vit::forward(b, x, o, &vit::TINY),
        _ => {
            return Err(ZooError::Unknown {
                name: name.to_owned(),
            });
        }
    };
    check(name, options)?;
    let mut b = Builder::new(name);
    let side = options.image_size;
    let image = TensorType::batched(DType::F32, &[options.channels, side, side]);
    let input = b.data(INPUT, image)?;
    let logits = body(&mut b, input, options)?;
    b.output(OutputKind::Result, LOGITS, logits)?;
    options.loss.append(&mut b, logits)?;
    Ok(b.finish().canonicalize()?)
}

fn check(model: &str, options: &ZooOptions) -> Result<(), ZooError> {
    let positive = [
        ("image size", options.image_size),
        ("channels", options.channels),
        ("classes", options.classes),
    ];
    for (option, value) in positive {
        if value == 0 {
            return Err(ZooError::Option {
                model: model.to_owned(),
                option,
                value: value.to_string(),
                reason: "it must be at least 1".into(),
            });
        }
    }
    if let Some(dropout) = options.dropout
        && !(0.0..=1.0).contains(&dropout)
    {
        return Err(ZooError::Option {
            model: model.to_owned(),
            option: "dropout",
            value: dropout.to_string(),
            reason: "a probability is between 0 and 1".into(),
        });
    }
    Ok(())
}
