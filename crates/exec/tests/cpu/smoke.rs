//! A small network through the CPU engine, against numbers worked out by hand.

use outboard_exec::{CpuExecutor, ExecError, Executor, RandomKey};
use outboard_graph::{Builder, DType, Graph, GraphError, Op, OutputKind, Tensor, TensorType};

fn network() -> Result<Graph, GraphError> {
    let mut b = Builder::new("small");
    let x = b.data("input", TensorType::fixed(DType::F32, &[2, 1, 2, 2]))?;
    let w = b.parameter("conv.weight", TensorType::fixed(DType::F32, &[1, 1, 2, 2]))?;
    let mean = b.buffer("bn.running_mean", TensorType::fixed(DType::F32, &[1]))?;
    let var = b.buffer("bn.running_var", TensorType::fixed(DType::F32, &[1]))?;
    let fc = b.parameter("fc.weight", TensorType::fixed(DType::F32, &[1, 2]))?;
    let bias = b.parameter("fc.bias", TensorType::fixed(DType::F32, &[2]))?;
    let conv = b.op_optional(
        Op::Convolution {
            stride: vec![1, 1],
            padding: vec![0, 0],
            dilation: vec![1, 1],
            groups: 1,
        },
        &[Some(x), Some(w), None],
    )?;
    let norm = b.ops(
        Op::BatchNormTraining {
            momentum: 0.1,
            eps: 0.0,
        },
        &[Some(conv), None, None, Some(mean), Some(var)],
    )?;
    let relu = b.op(Op::Relu {}, &[norm[0]])?;
    let flat = b.op(
        Op::View {
            shape: vec![2.into(), 1.into()],
        },
        &[relu],
    )?;
    let y = b.op(Op::Addmm {}, &[bias, flat, fc])?;
    b.output(OutputKind::Result, "output", y)?;
    b.output(OutputKind::BufferUpdate, "bn.running_mean", norm[3])?;
    b.output(OutputKind::BufferUpdate, "bn.running_var", norm[4])?;
    Ok(b.finish())
}

#[test]
fn convolution_norm_relu_linear() {
    let engine = CpuExecutor::new();
    let plan = engine.compile(&network().unwrap()).unwrap();
    let upload = |dims: &[usize], elements: &[f32]| {
        let tensor = Tensor::from_f32(dims, elements).unwrap();
        engine.upload(&tensor).unwrap()
    };
    let inputs = vec![
        // The convolution gives 1 + 2 + 3 + 4 = 10 and 0 + 0 + 0 + 4 = 4: mean 7, deviation 3.
        upload(&[2, 1, 2, 2], &[1.0, 2.0, 3.0, 4.0, 0.0, 0.0, 0.0, 4.0]),
        upload(&[1, 1, 2, 2], &[1.0; 4]),
        upload(&[1], &[1.0]),
        upload(&[1], &[1.0]),
        upload(&[1, 2], &[10.0, -1.0]),
        upload(&[2], &[0.5, 0.25]),
    ];
    let outputs = engine.run(&plan, inputs, RandomKey::default()).unwrap();
    let download = |index: usize| {
        let tensor = engine.download(&outputs[index]).unwrap();
        tensor.to_f32_vec().unwrap()
    };
    // Normalised to 1 and -1, which relu makes 1 and 0.
    assert_eq!(download(0), [10.5, -0.75, 0.5, 0.25]);
    assert_eq!(download(1), [(0.1 * 7.0 + 0.9 * 1.0_f64) as f32]);
    // The variance is 9, unbiased 18.
    assert_eq!(download(2), [(0.1 * 18.0 + 0.9 * 1.0_f64) as f32]);
}

#[test]
fn inputs_are_checked() {
    let engine = CpuExecutor::new();
    let plan = engine.compile(&network().unwrap()).unwrap();
    let error = engine.run(&plan, vec![], RandomKey::default()).unwrap_err();
    assert_eq!(error.to_string(), "the program takes 6 inputs, not 0");
    let scalar = engine.upload(&Tensor::scalar(1.0)).unwrap();
    let error = engine.run(&plan, vec![scalar; 6], RandomKey::default());
    let error = error.unwrap_err();
    assert!(matches!(error, ExecError::Invalid(_)), "{error}");
    assert_eq!(
        error.to_string(),
        "input `input` is f32[2, 1, 2, 2], not f32[]"
    );
}

/// Profiles run on inputs that lie as another program would have left them.
#[test]
fn settled_inputs_give_the_same_bits() {
    let engine = CpuExecutor::with_threads(1);
    let graph: Graph = r#"graph "settled" {
  %0: f32[2,3,5,4] = saved "%0"
  %1: f32[2,7,5,4] = saved "%1"
  %2: f32[7,3,1,1] = parameter "w"
  %3: f32[7,3,1,1] = convolution_backward.weight(%1, %0, weight_shape=[7,3,1,1], stride=[1,1], padding=[0,0], dilation=[1,1], groups=1)
  %4: f32[7,3,1,1] = add.Tensor(%3, %2, alpha=1.0)
  %5: f32[2,3,5,4] = clone(%0)
  return result "w" %4, result "x" %5
}
"#
    .parse()
    .unwrap();
    let plan = engine.compile(&graph).unwrap();
    let inputs: Vec<_> = [vec![2, 3, 5, 4], vec![2, 7, 5, 4], vec![7, 3, 1, 1]]
        .into_iter()
        .map(|dims: Vec<usize>| {
            let count = dims.iter().product();
            let elements: Vec<f32> = (0..count)
                .map(|i: usize| (i * 37 % 19) as f32 / 7.0)
                .collect();
            engine
                .upload(&Tensor::from_f32(dims, &elements).unwrap())
                .unwrap()
        })
        .collect();
    let results = |inputs| {
        let outputs = engine.run(&plan, inputs, RandomKey::default()).unwrap();
        let downloaded = outputs
            .iter()
            .map(|output| engine.download(output).unwrap());
        downloaded.collect::<Vec<_>>()
    };
    let settled = engine.settled(&plan, inputs.clone());
    assert_eq!(results(inputs), results(settled));
}
