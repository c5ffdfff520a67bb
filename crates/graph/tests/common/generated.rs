//! Graphs from random scripts, and an interpreter over hashes: a value is what was computed, so that two graphs which
//! return the same hashes compute the same thing in the same way.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

use outboard_graph::{
    Builder, DType, Dim, Graph, InputKind, Op, OutputKind, Reduction, Stage, TensorType, ValueId,
};
use proptest::prelude::*;

/// What to append: an operator and two operands, by index.
pub(crate) type Script = Vec<(u8, prop::sample::Index, prop::sample::Index)>;

pub(crate) fn script() -> impl Strategy<Value = Script> {
    let step = (
        0_u8..22,
        any::<prop::sample::Index>(),
        any::<prop::sample::Index>(),
    );
    prop::collection::vec(step, 1..24)
}

/// The graph of a script; steps whose operands do not fit are left out. The last values are returned and make a loss.
pub(crate) fn graph_from_script(script: &Script) -> Graph {
    let mut b = Builder::new("generated");
    let image = TensorType::batched(DType::F32, &[4, 6, 6]);
    let input = b.data("input", image).unwrap();
    let target = b
        .data("target", TensorType::batched(DType::I64, &[]))
        .unwrap();
    let shared = b
        .parameter("shared", TensorType::fixed(DType::F32, &[4, 4]))
        .unwrap();
    let mut values = vec![input, shared];
    for (number, (op, x, y)) in script.iter().enumerate() {
        let (x, y) = (values[x.index(values.len())], values[y.index(values.len())]);
        let made = b.scoped(format!("step{number}"), |b| step(b, *op, x, y, shared));
        values.extend(made);
    }
    let logits = b
        .parameter("logits", TensorType::fixed(DType::F32, &[4, 6, 6]))
        .unwrap();
    let mixed = b.op(Op::Mul {}, &[input, logits]).unwrap();
    let tail: Vec<ValueId> = values
        .iter()
        .rev()
        .take(3)
        .copied()
        .chain([mixed])
        .collect();
    let mut loss = None;
    for value in tail {
        let dims = Vec::new();
        let sum = b.op(
            Op::Sum {
                dims,
                keepdim: false,
            },
            &[value],
        );
        let Ok(sum) = sum else { continue };
        loss = Some(match loss {
            None => sum,
            Some(loss) => b.op(Op::Add { alpha: 1.0 }, &[loss, sum]).unwrap(),
        });
    }
    let weight = b.op(Op::Numel {}, &[target]).unwrap();
    b.output(OutputKind::Result, "last", *values.last().unwrap())
        .unwrap();
    b.output(OutputKind::LossSum, "loss", loss.unwrap())
        .unwrap();
    b.output(OutputKind::LossWeight, "loss", weight).unwrap();
    b.finish()
}

/// Appends one step; gives the values it made, none when the operands do not fit.
fn step(b: &mut Builder, op: u8, x: ValueId, y: ValueId, shared: ValueId) -> Vec<ValueId> {
    let ty = b.ty(x).unwrap().clone();
    let one = |result: Result<ValueId, _>| result.ok().into_iter().collect::<Vec<_>>();
    match op {
        0 => one(b.op(Op::Relu {}, &[x])),
        1 | 2 => one(b.op(Op::Add { alpha: 1.0 }, &[x, y])),
        3 => one(b.op(Op::Mul {}, &[x, y])),
        4 | 5 if ty.rank() == 4 => {
            let weight = b
                .parameter("weight", TensorType::fixed(DType::F32, &[4, 4, 3, 3]))
                .unwrap();
            let op = Op::Convolution {
                stride: vec![1, 1],
                padding: vec![1, 1],
                dilation: vec![1, 1],
                groups: 1,
            };
            one(b.op_optional(op, &[Some(x), Some(weight), None]))
        }
        6 if ty.rank() == 4 => {
            let stats = TensorType::fixed(DType::F32, &[4]);
            let mean = b.buffer("running_mean", stats.clone()).unwrap();
            let var = b.buffer("running_var", stats.clone()).unwrap();
            let op = Op::BatchNormTraining {
                momentum: 0.1,
                eps: 1e-5,
            };
            match b.ops(op, &[Some(x), None, None, Some(mean), Some(var)]) {
                Ok(results) => {
                    let name = b.qualified("running_mean");
                    b.output(OutputKind::BufferUpdate, &name, results[3])
                        .unwrap();
                    vec![results[0]]
                }
                Err(_) => Vec::new(),
            }
        }
        7 => one(b.op(
            Op::Permute {
                dims: (0..ty.rank()).rev().collect(),
            },
            &[shared],
        )),
        8 => one(b.op(
            Op::Permute {
                dims: (0..ty.rank()).rev().collect(),
            },
            &[x],
        )),
        9 => one(b.op(Op::MulScalar { scalar: 0.5 }, &[x])),
        10 => one(b.op(Op::AddScalar { scalar: 2.0 }, &[x])),
        11 => one(b.op(
            Op::Full {
                shape: ty.dims.clone(),
                value: 0.1,
                dtype: DType::F32,
            },
            &[],
        )),
        12 => {
            let results = b.ops(Op::Dropout { p: 0.5, key: 3 }, &[Some(x)]);
            results.map(|results| vec![results[0]]).unwrap_or_default()
        }
        13 => one(b.op(Op::Cat { dim: 0 }, &[x, y])),
        14 if ty.rank() == 4 && !ty.dims[1].is_batch() => {
            let width: usize = ty.dims[1..].iter().map(|dim| dim.factor()).product();
            one(b.op(
                Op::View {
                    shape: vec![ty.dims[0], Dim::Fixed(width)],
                },
                &[x],
            ))
        }
        15 => one(b.op(
            Op::Mean {
                dims: vec![0],
                keepdim: true,
            },
            &[x],
        )),
        16 if ty.rank() > 0 => one(b.op(Op::Softmax { dim: ty.rank() - 1 }, &[x])),
        17 => one(b.op(Op::Mm {}, &[x, y])),
        18 => one(b.op(Op::Clone {}, &[x])),
        19 => one(b.op(Op::Sqrt {}, &[x])),
        20 => {
            let target = ValueId(1);
            let op = Op::NllLoss {
                reduction: Reduction::Sum,
                ignore_index: -100,
            };
            let results = b.ops(op, &[Some(x), Some(target), None]);
            results.map(|results| vec![results[0]]).unwrap_or_default()
        }
        21 => one(b.op(Op::Numel {}, &[x])),
        _ => Vec::new(),
    }
}

fn hash(parts: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    hasher.finish()
}

/// The hashes of a graph's outputs by kind and name; activations come in by name.
pub(crate) fn interpret(
    graph: &Graph,
    activations: &HashMap<String, u64>,
) -> BTreeMap<(String, String), u64> {
    let mut values: HashMap<ValueId, u64> = HashMap::new();
    for input in &graph.inputs {
        let value = match input.kind {
            InputKind::Activation => activations[&input.name],
            kind => hash((kind, &input.name)),
        };
        values.insert(input.value, value);
    }
    for node in &graph.nodes {
        let operands: Vec<Option<u64>> = (node.operands.iter())
            .map(|operand| operand.map(|operand| values[&operand]))
            .collect();
        for (position, result) in node.results.iter().enumerate() {
            values.insert(*result, hash((node.op.to_string(), &operands, position)));
        }
    }
    (graph.outputs.iter())
        .map(|output| {
            (
                (output.kind.to_string(), output.name.clone()),
                values[&output.value],
            )
        })
        .collect()
}

/// Checks that stages are sound graphs that pass each other what they need, hold every live node once, and together
/// compute what the whole graph computes.
pub(crate) fn check_stages(graph: &Graph, stages: &[Stage]) {
    let mut activations: HashMap<String, u64> = HashMap::new();
    let mut types: HashMap<String, TensorType> = HashMap::new();
    let mut computed = BTreeMap::new();
    let mut origins = Vec::new();
    for (index, stage) in stages.iter().enumerate() {
        assert_eq!(stage.index, index);
        stage.graph.verify().unwrap();
        // Everything received is used or forwarded, everything sent is received.
        let received = stage
            .graph
            .inputs
            .iter()
            .filter(|i| i.kind == InputKind::Activation);
        let received: HashMap<String, TensorType> = received
            .map(|input| {
                (
                    input.name.clone(),
                    stage.graph.ty(input.value).unwrap().clone(),
                )
            })
            .collect();
        assert_eq!(received, types, "stage {index}");
        assert!(stage.differentiable.iter().all(|name| {
            received.contains_key(name)
                || stage
                    .graph
                    .outputs
                    .iter()
                    .any(|output| output.name == *name)
        }));
        let outputs = interpret(&stage.graph, &activations);
        activations.clear();
        types.clear();
        for output in &stage.graph.outputs {
            let key = (output.kind.to_string(), output.name.clone());
            let value = outputs[&key];
            if output.kind == OutputKind::Activation {
                activations.insert(output.name.clone(), value);
                types.insert(
                    output.name.clone(),
                    stage.graph.ty(output.value).unwrap().clone(),
                );
            } else {
                assert!(computed.insert(key, value).is_none());
            }
        }
        origins.extend(stage.graph.nodes.iter().map(|node| node.origin));
    }
    assert!(activations.is_empty());
    assert_eq!(computed, interpret(graph, &HashMap::new()));
    origins.sort_unstable();
    let live = graph.without_dead_nodes().unwrap();
    let all: Vec<u32> = live.nodes.iter().map(|node| node.origin).collect();
    assert_eq!(origins, all);
}
