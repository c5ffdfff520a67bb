//! Inputs that any operator accepts: floats above zero, indices within bounds.

use outboard_exec::Executor;
use outboard_graph::{DType, Graph, Node, Op, Tensor, TensorType, ValueId};

/// Makes one set of inputs; the same `seed` makes the same set.
pub(super) fn make<E: Executor>(engine: &E, graph: &Graph, seed: u64) -> Option<Vec<E::Tensor>> {
    graph
        .inputs
        .iter()
        .zip(1_u64..)
        .map(|(input, number)| {
            let ty = &graph.values.get(input.value.0 as usize)?.ty;
            let random = Random(seed.wrapping_mul(0x9E37_79B9).wrapping_add(number));
            let tensor = tensor(graph, input.value, ty, random)?;
            engine.upload(&tensor).ok()
        })
        .collect()
}

/// Counter-based noise (splitmix64): nothing depends on its quality.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Between 1/16 and 1 + 1/16: no logarithm, root or quotient of it is out of range or denormal.
    fn float(&mut self) -> f32 {
        let unit = (self.next() >> 40) as f32 / (1_u64 << 24) as f32;
        unit + 0.0625
    }
}

fn tensor(graph: &Graph, value: ValueId, ty: &TensorType, mut random: Random) -> Option<Tensor> {
    let dims = ty.concrete()?;
    let elements: usize = dims
        .iter()
        .try_fold(1_usize, |product, dim| product.checked_mul(*dim))?;
    let mut data = Vec::new();
    data.try_reserve_exact(elements.checked_mul(ty.dtype.bytes())?)
        .ok()?;
    match ty.dtype {
        DType::F32 => {
            for _ in 0..elements {
                data.extend_from_slice(&random.float().to_le_bytes());
            }
        }
        // The upper half of an f32 is a bf16; for f16 the exponent of 0.5 and a random fraction.
        DType::BF16 => {
            for _ in 0..elements {
                let bits = (random.float().to_bits() >> 16) as u16;
                data.extend_from_slice(&bits.to_le_bytes());
            }
        }
        DType::F16 => {
            for _ in 0..elements {
                let bits = 0x3800 | (random.next() & 0x3FF) as u16;
                data.extend_from_slice(&bits.to_le_bytes());
            }
        }
        DType::Bool => data.extend((0..elements).map(|_| (random.next() & 1) as u8)),
        DType::I64 => {
            let indices = Indices::of(graph, value, &dims);
            for element in 0..elements {
                let index = indices.at(element, &mut random);
                data.extend_from_slice(&index.to_le_bytes());
            }
        }
    }
    Tensor::from_bytes(ty.dtype, dims, data.into()).ok()
}

/// Which integers the consumers of a value accept.
enum Indices {
    /// Anything below.
    Below(u64),
    /// The place in a plane that a pooling window of this output started at.
    Pooled {
        output: [usize; 2],
        plane: [usize; 2],
    },
}

impl Indices {
    fn of(graph: &Graph, value: ValueId, dims: &[usize]) -> Indices {
        let mut bound = u64::MAX;
        for node in &graph.nodes {
            let takes = |operand: usize| node.operands.get(operand) == Some(&Some(value));
            let size = |operand: usize, dim: usize| size(graph, node, operand, dim);
            match &node.op {
                Op::Embedding { .. } if takes(1) => bound = bound.min(size(0, 0)),
                Op::EmbeddingGrad { num_weights, .. } if takes(1) => {
                    bound = bound.min(*num_weights as u64);
                }
                Op::NllLoss { .. } if takes(1) => bound = bound.min(size(0, 1)),
                Op::NllLossGrad { .. } if takes(2) => bound = bound.min(size(1, 1)),
                Op::MaxPool2dGrad { input_shape, .. } if takes(1) => {
                    let plane = match input_shape.as_slice() {
                        [.., height, width] => [height.factor(), width.factor()],
                        _ => [1, 1],
                    };
                    if let [.., height, width] = dims {
                        return Indices::Pooled {
                            output: [*height, *width],
                            plane,
                        };
                    }
                }
                _ => {}
            }
        }
        // Without a consumer that looks things up, small numbers will do.
        Indices::Below(if bound == u64::MAX { 2 } else { bound.max(1) })
    }

    fn at(&self, element: usize, random: &mut Random) -> i64 {
        let index = match self {
            Indices::Below(bound) => random.next() % bound,
            Indices::Pooled {
                output: [height, width],
                plane: [rows, columns],
            } => {
                let (row, column) = (
                    element / width.max(&1) % height.max(&1),
                    element % width.max(&1),
                );
                let row = row.saturating_mul(*rows) / height.max(&1);
                let column = column.saturating_mul(*columns) / width.max(&1);
                row.saturating_mul(*columns).saturating_add(column) as u64
            }
        };
        i64::try_from(index).unwrap_or_default()
    }
}

fn size(graph: &Graph, node: &Node, operand: usize, dim: usize) -> u64 {
    node.operands
        .get(operand)
        .copied()
        .flatten()
        .and_then(|value| graph.values.get(value.0 as usize))
        .and_then(|value| value.ty.dims.get(dim))
        .map_or(1, |dim| dim.factor() as u64)
}
