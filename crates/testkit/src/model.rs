//! A small model with everything that is hard to cut.

use outboard_graph::{Builder, DType, Graph, Loss, LossError, Op, OutputKind, TensorType};

const WIDTH: usize = 6;

/// A canonical model of six numbers a sample: a weight used at both ends, a skip over the middle, dropout, running
/// statistics, cross-entropy.
///
/// Nodes: 0 mm, 1 relu, 2 dropout, 3 mm, 4 add (skip from 1), 5 batch norm, 6 mm (the weight of 0 again), 7 mm, loss.
///
/// # Errors
/// Where the graph crate does not take its operators any more.
pub fn tied(classes: usize) -> Result<Graph, LossError> {
    let mut b = Builder::new("tied");
    let square = TensorType::fixed(DType::F32, &[WIDTH, WIDTH]);
    let vector = TensorType::fixed(DType::F32, &[WIDTH]);
    let input = b.data("input", TensorType::batched(DType::F32, &[WIDTH]))?;
    let tied = b.parameter("tied.weight", square.clone())?;
    let middle = b.parameter("middle.weight", square)?;
    let gamma = b.parameter("bn.weight", vector.clone())?;
    let beta = b.parameter("bn.bias", vector.clone())?;
    let mean = b.buffer("bn.running_mean", vector.clone())?;
    let var = b.buffer("bn.running_var", vector)?;
    let head = b.parameter(
        "head.weight",
        TensorType::fixed(DType::F32, &[WIDTH, classes]),
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
    b.output(OutputKind::BufferUpdate, "bn.running_mean", norm[3])?;
    b.output(OutputKind::BufferUpdate, "bn.running_var", norm[4])?;
    let x = b.op(Op::Mm {}, &[norm[0], tied])?;
    let logits = b.op(Op::Mm {}, &[x, head])?;
    b.output(OutputKind::Result, "logits", logits)?;
    Loss::default().append(&mut b, logits)?;
    Ok(b.finish().canonicalize()?)
}
