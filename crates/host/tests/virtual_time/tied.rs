//! A model whose weight is used in two stages.

use outboard_graph::{Builder, DType, Graph, GraphError, Loss, Op, OutputKind, TensorType};

const WIDTH: usize = 6;
const CLASSES: usize = 10;

/// What is hard to cut: a weight used at both ends, a skip over the middle, dropout, running statistics.
pub(crate) fn tied() -> Graph {
    let graph = build().expect("a model");
    graph.canonicalize().expect("a canonical graph")
}

fn build() -> Result<Graph, GraphError> {
    let mut b = Builder::new("tied");
    let square = TensorType::fixed(DType::F32, &[WIDTH, WIDTH]);
    let vector = TensorType::fixed(DType::F32, &[WIDTH]);
    let input = b.data("input", TensorType::batched(DType::F32, &[WIDTH]))?;
    let tied = b.parameter("tied.weight", square.clone())?;
    let middle = b.parameter("middle.weight", square)?;
    let gamma = b.parameter("norm.weight", vector.clone())?;
    let beta = b.parameter("norm.bias", vector.clone())?;
    let mean = b.buffer("norm.running_mean", vector.clone())?;
    let var = b.buffer("norm.running_var", vector)?;
    let head = b.parameter(
        "head.weight",
        TensorType::fixed(DType::F32, &[WIDTH, CLASSES]),
    )?;
    let x = b.op(Op::Mm {}, &[input, tied])?;
    let skip = b.op(Op::Relu {}, &[x])?;
    let dropped = b.ops(Op::Dropout { p: 0.25, key: 9 }, &[Some(skip)])?[0];
    let x = b.op(Op::Mm {}, &[dropped, middle])?;
    let x = b.op(Op::Add { alpha: 1.0 }, &[x, skip])?;
    let norm = Op::BatchNormTraining {
        momentum: 0.1,
        eps: 1e-5,
    };
    let norm = b.ops(norm, &[x, gamma, beta, mean, var].map(Some))?;
    b.output(OutputKind::BufferUpdate, "norm.running_mean", norm[3])?;
    b.output(OutputKind::BufferUpdate, "norm.running_var", norm[4])?;
    let x = b.op(Op::Mm {}, &[norm[0], tied])?;
    let logits = b.op(Op::Mm {}, &[x, head])?;
    b.output(OutputKind::Result, "logits", logits)?;
    Loss::default()
        .append(&mut b, logits)
        .expect("scores of classes");
    Ok(b.finish())
}
