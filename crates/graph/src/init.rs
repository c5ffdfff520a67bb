//! Initial weights: PyTorch's defaults and torchvision's schemes, from a seed.
//!
//! Every tensor is drawn from its own stream, keyed by the seed and its name: adding, removing or reordering parameters
//! changes no other one. The distributions are PyTorch's; the numbers are not (its generator is not ours).

mod draw;

use std::collections::BTreeMap;

use crate::{Dim, Graph, Input, InputKind, Op, Tensor, TensorError, ValueId};

use draw::Stream;

/// How one tensor starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// Every element the same.
    Constant(f64),
    /// Between `-bound` and `bound`.
    Uniform {
        /// Largest magnitude.
        bound: f64,
    },
    /// Normal around 0.
    Normal {
        /// Standard deviation.
        std: f64,
    },
    /// Normal around 0, drawn again while outside of -2 to 2 (`torch.nn.init.trunc_normal_`'s default bounds, which are
    /// absolute).
    TruncatedNormal {
        /// Standard deviation before truncation.
        std: f64,
    },
}

/// Why there are no initial weights for a graph.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InitError {
    /// A weight whose shape depends on the batch.
    #[error("{name:?} has a shape that depends on the batch, so it cannot be a weight")]
    Symbolic {
        /// The weight.
        name: String,
    },
    /// The tensor could not be made.
    #[error("{name:?}: {source}")]
    Tensor {
        /// The weight.
        name: String,
        /// What is wrong.
        source: TensorError,
    },
}

/// Initial values of all parameters, frozen weights and buffers of a graph, by name.
///
/// Equal seeds give equal bytes. The scheme is torchvision's for graphs of the zoo's ResNets and vision transformers, told by
/// the graph's name, and else that of the `torch.nn` module that a weight belongs to, told by the operator that reads it.
///
/// # Errors
/// See [`InitError`].
pub fn weights(graph: &Graph, seed: u64) -> Result<BTreeMap<String, Tensor>, InitError> {
    let inputs = graph.inputs.iter().filter(|input| input.kind.is_weight());
    inputs
        .map(|input| Ok((input.name.clone(), tensor(graph, input, seed)?)))
        .collect()
}

fn tensor(graph: &Graph, input: &Input, seed: u64) -> Result<Tensor, InitError> {
    let name = || input.name.clone();
    let ty = graph.ty(input.value);
    let symbolic = || InitError::Symbolic { name: name() };
    let dims = ty.and_then(|ty| ty.concrete()).ok_or_else(symbolic)?;
    let dtype = ty.map(|ty| ty.dtype).ok_or_else(symbolic)?;

    let tensor = |source| InitError::Tensor {
        name: name(),
        source,
    };
    // Refuses sizes beyond the limits before any memory is taken.
    let zeros = Tensor::zeros(dtype, dims.clone()).map_err(tensor)?;
    let init = spec(graph, input);
    if !dtype.is_float() || init == Init::Constant(0.0) {
        return Ok(zeros);
    }
    let mut stream = Stream::new(seed, &input.name);
    let elements: Vec<f32> = (0..zeros.elements())
        .map(|_| stream.draw(init) as f32)
        .collect();
    Tensor::from_f32(dims, &elements).map_err(tensor)
}

/// How a weight of a graph starts.
pub fn spec(graph: &Graph, input: &Input) -> Init {
    let role = Role::of(graph, input);
    if input.kind == InputKind::Buffer {
        return role.module_default();
    }
    let family = [("resnet", resnet as Scheme), ("vgg", vgg), ("vit_", vit)];
    let scheme = (family.iter()).find(|(prefix, _)| graph.name.starts_with(prefix));
    scheme
        .and_then(|(_, scheme)| scheme(&input.name, &role))
        .unwrap_or_else(|| role.module_default())
}

/// Where a family differs from its modules' defaults.
type Scheme = fn(&str, &Role) -> Option<Init>;

/// `torchvision.models.resnet.ResNet.__init__`: Kaiming-normal convolutions, by fan-out.
fn resnet(_: &str, role: &Role) -> Option<Init> {
    match role {
        Role::Convolution { fan_out, .. } => Some(Init::Normal {
            std: (2.0 / fan_out).sqrt(),
        }),
        _ => None,
    }
}

/// `torchvision.models.vgg.VGG.__init__`.
fn vgg(_: &str, role: &Role) -> Option<Init> {
    match role {
        Role::Convolution { fan_out, .. } => Some(Init::Normal {
            std: (2.0 / fan_out).sqrt(),
        }),
        Role::Linear { .. } => Some(Init::Normal { std: 0.01 }),
        Role::ConvolutionBias { .. } | Role::LinearBias { .. } => Some(Init::Constant(0.0)),
        _ => None,
    }
}

/// `torchvision.models.vision_transformer`: `VisionTransformer`, `Encoder`, `MLPBlock` and `MultiheadAttention`.
fn vit(name: &str, role: &Role) -> Option<Init> {
    let xavier = |role: &Role| match role {
        Role::Linear { fan_in, fan_out } => Some(Init::Uniform {
            bound: (6.0 / (fan_in + fan_out)).sqrt(),
        }),
        _ => None,
    };
    match (name, role) {
        ("class_token", _) => Some(Init::Constant(0.0)),
        ("encoder.pos_embedding", _) => Some(Init::Normal { std: 0.02 }),
        (_, Role::Convolution { fan_in, .. }) => Some(Init::TruncatedNormal {
            std: (1.0 / fan_in).sqrt(),
        }),
        (_, Role::ConvolutionBias { .. }) => Some(Init::Constant(0.0)),
        _ if name.starts_with("heads.head.") => Some(Init::Constant(0.0)),
        _ if name.ends_with(".self_attention.in_proj_weight") => xavier(role),
        _ if name.contains(".self_attention.") && name.ends_with("bias") => {
            Some(Init::Constant(0.0))
        }
        _ if name.contains(".mlp.") && name.ends_with(".weight") => xavier(role),
        _ if name.contains(".mlp.") => Some(Init::Normal { std: 1e-6 }),
        _ => None,
    }
}

/// What a weight is to the operator that reads it.
enum Role {
    Convolution {
        fan_in: f64,
        fan_out: f64,
    },
    ConvolutionBias {
        fan_in: f64,
    },
    Linear {
        fan_in: f64,
        fan_out: f64,
    },
    LinearBias {
        fan_in: f64,
    },
    Embedding,
    /// A scale of a normalisation, or a running variance.
    One,
    Other,
}

impl Role {
    /// `torch.nn`'s `reset_parameters`.
    fn module_default(&self) -> Init {
        match self {
            // kaiming_uniform_(a=sqrt(5)) is sqrt(6 / ((1 + 5) fan_in)).
            Role::Convolution { fan_in, .. }
            | Role::ConvolutionBias { fan_in }
            | Role::Linear { fan_in, .. }
            | Role::LinearBias { fan_in } => Init::Uniform {
                bound: (1.0 / fan_in).sqrt(),
            },
            Role::Embedding => Init::Normal { std: 1.0 },
            Role::One => Init::Constant(1.0),
            Role::Other => Init::Constant(0.0),
        }
    }

    /// The role at the first operator that reads the weight, past operators that only move its elements.
    fn of(graph: &Graph, input: &Input) -> Role {
        let mut value = input.value;
        for node in &graph.nodes {
            let Some(position) = node
                .operands
                .iter()
                .position(|operand| *operand == Some(value))
            else {
                continue;
            };
            let moves = matches!(
                node.op,
                Op::View { .. } | Op::Permute { .. } | Op::Clone {} | Op::Unsqueeze { .. }
            );
            match node.results.first() {
                Some(result) if moves => value = *result,
                _ => return Role::at(graph, &node.op, &node.operands, position),
            }
        }
        Role::Other
    }

    fn at(graph: &Graph, op: &Op, operands: &[Option<ValueId>], position: usize) -> Role {
        let sizes = |operand: usize| -> Vec<f64> {
            let value = operands.get(operand).copied().flatten();
            let dims = value
                .and_then(|value| graph.ty(value))
                .map(|ty| ty.dims.as_slice());
            let sizes = dims.unwrap_or_default().iter().map(|dim| match dim {
                Dim::Fixed(size) | Dim::Batch(size) => *size as f64,
            });
            sizes.collect()
        };
        match (op, position) {
            (Op::Convolution { .. }, 1 | 2) => {
                let weight = sizes(1);
                let window: f64 = weight.iter().skip(2).product();
                let fan = |dim: usize| weight.get(dim).copied().unwrap_or(1.0) * window;
                match position {
                    // As PyTorch's `_calculate_fan_in_and_fan_out`, which ignores groups in the fan-out.
                    1 => Role::Convolution {
                        fan_in: fan(1),
                        fan_out: fan(0),
                    },
                    _ => Role::ConvolutionBias { fan_in: fan(1) },
                }
            }
            (Op::Addmm {}, 0) => Role::LinearBias {
                fan_in: sizes(2).first().copied().unwrap_or(1.0),
            },
            (Op::Addmm {}, 2) | (Op::Mm {}, 1) => {
                let weight = sizes(position);
                Role::Linear {
                    fan_in: weight.first().copied().unwrap_or(1.0),
                    fan_out: weight.get(1).copied().unwrap_or(1.0),
                }
            }
            (Op::Embedding { .. }, 0) => Role::Embedding,
            (Op::BatchNormTraining { .. } | Op::BatchNormInference { .. }, 1 | 4)
            | (Op::LayerNorm { .. }, 1) => Role::One,
            _ => Role::Other,
        }
    }
}

#[cfg(test)]
mod tests;
