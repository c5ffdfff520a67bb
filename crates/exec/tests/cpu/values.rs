//! Values that a verified program can still meet: not finite, or out of range.

use outboard_exec::{CpuExecutor, CpuTensor, ExecError, Executor, RandomKey, StepSize, UpdateRule};
use outboard_graph::{Builder, DType, Graph, InputKind, Op, OutputKind, Tensor, TensorType};

fn program(op: Op, operands: &[TensorType]) -> Graph {
    let mut b = Builder::new("values");
    let operands: Vec<_> = (operands.iter().enumerate())
        .map(|(i, ty)| {
            Some(
                b.input(InputKind::Data, format!("x{i}"), ty.clone())
                    .unwrap(),
            )
        })
        .collect();
    let results = b.scoped("head", |b| b.ops(op, &operands)).unwrap();
    for (i, result) in results.iter().enumerate() {
        b.output(OutputKind::Result, &format!("y{i}"), *result)
            .unwrap();
    }
    b.finish()
}

fn run(op: Op, inputs: &[Tensor]) -> Result<Vec<Tensor>, ExecError> {
    let engine = CpuExecutor::new();
    let types: Vec<_> = inputs.iter().map(Tensor::ty).collect();
    let plan = engine.compile(&program(op, &types))?;
    let inputs = inputs.iter().map(|x| engine.upload(x).unwrap()).collect();
    let outputs = engine.run(&plan, inputs, RandomKey::default())?;
    Ok(outputs
        .iter()
        .map(|y| engine.download(y).unwrap())
        .collect())
}

fn floats(dims: &[usize], x: &[f32]) -> Tensor {
    Tensor::from_f32(dims, x).unwrap()
}

#[test]
fn nan_is_not_hidden() {
    let nan = f32::NAN;
    let y = run(
        Op::Relu {},
        &[floats(&[4], &[nan, -1.0, f32::INFINITY, 2.0])],
    )
    .unwrap();
    let y = y[0].to_f32_vec().unwrap();
    assert!(y[0].is_nan());
    assert_eq!(y[1..], [0.0, f32::INFINITY, 2.0]);

    let pool = Op::MaxPool2d {
        kernel_size: vec![2, 2],
        stride: vec![2, 2],
        padding: vec![0, 0],
        dilation: vec![1, 1],
        ceil_mode: false,
    };
    let infinity = f32::NEG_INFINITY;
    let x = floats(
        &[1, 1, 2, 4],
        &[1.0, nan, infinity, infinity, 5.0, 2.0, infinity, infinity],
    );
    let y = run(pool, &[x]).unwrap();
    let pooled = y[0].to_f32_vec().unwrap();
    assert!(pooled[0].is_nan());
    assert_eq!(pooled[1], infinity);
    // As PyTorch: the NaN's place; the window's first place where nothing is greater than -inf.
    assert_eq!(y[1].to_i64_vec().unwrap(), [1, 2]);

    let y = run(Op::Softmax { dim: 0 }, &[floats(&[2], &[nan, 1.0])]).unwrap();
    assert!(y[0].to_f32_vec().unwrap().iter().all(|x| x.is_nan()));
    let y = run(Op::Softmax { dim: 0 }, &[floats(&[2], &[1e30, -1e30])]).unwrap();
    assert_eq!(y[0].to_f32_vec().unwrap(), [1.0, 0.0]);

    // The gradient passes where the input is NaN, as ATen's `threshold_backward` has it.
    let inputs = [
        floats(&[3], &[1.0, 1.0, 1.0]),
        floats(&[3], &[nan, 0.0, 1.0]),
    ];
    let y = run(Op::ThresholdGrad { threshold: 0.0 }, &inputs).unwrap();
    assert_eq!(y[0].to_f32_vec().unwrap(), [1.0, 0.0, 1.0]);
}

#[test]
fn an_index_out_of_range_is_an_error_that_names_the_node() {
    let target = |index| Tensor::from_i64([1], &[index]).unwrap();
    let nll = || Op::NllLoss {
        reduction: outboard_graph::Reduction::Sum,
        ignore_index: -100,
    };
    for index in [3, -1, i64::MAX] {
        let weight = floats(&[3], &[1.0; 3]);
        let error = run(nll(), &[floats(&[1, 3], &[0.0; 3]), target(index), weight]).unwrap_err();
        assert!(matches!(error, ExecError::Value { .. }), "{error:?}");
    }
    let error = run(
        Op::Embedding { padding_idx: None },
        &[floats(&[3, 2], &[0.0; 6]), target(3)],
    )
    .unwrap_err();
    assert!(matches!(error, ExecError::Value { .. }), "{error:?}");
    let text = error.to_string();
    assert!(
        text.contains("embedding") && text.contains("head"),
        "{text}"
    );
    assert!(
        text.contains("index 3 is out of range: it must be 0 to 2"),
        "{text}"
    );

    let grad = Op::MaxPool2dGrad {
        input_shape: vec![1.into(), 1.into(), 2.into(), 2.into()],
        kernel_size: vec![2, 2],
        stride: vec![2, 2],
        padding: vec![0, 0],
        dilation: vec![1, 1],
        ceil_mode: false,
    };
    let place = Tensor::from_i64([1, 1, 1, 1], &[4]).unwrap();
    let error = run(grad, &[floats(&[1, 1, 1, 1], &[1.0]), place]).unwrap_err();
    assert!(matches!(error, ExecError::Value { .. }), "{error:?}");
}

#[test]
fn what_the_engine_cannot_run_is_refused_when_compiled() {
    let engine = CpuExecutor::new();
    let half = TensorType::fixed(DType::F16, &[2]);
    let error = engine.compile(&program(Op::Relu {}, std::slice::from_ref(&half)));
    assert!(matches!(error, Err(ExecError::Unsupported { .. })));
    let symbolic = TensorType::batched(DType::F32, &[2]);
    let error = engine
        .compile(&program(Op::Relu {}, &[symbolic]))
        .unwrap_err();
    assert!(error.to_string().contains("instantiate"), "{error}");
}

#[test]
fn a_tensor_that_someone_holds_is_never_changed() {
    let engine = CpuExecutor::new();
    let ty = TensorType::fixed(DType::F32, &[3]);
    let plan = engine.compile(&program(Op::Neg {}, &[ty])).unwrap();
    let x = engine.upload(&floats(&[3], &[1.0, 2.0, 3.0])).unwrap();
    let y = engine
        .run(&plan, vec![x.clone()], RandomKey::default())
        .unwrap();
    let read = |x: &CpuTensor| engine.download(x).unwrap().to_f32_vec().unwrap();
    assert_eq!(read(&x), [1.0, 2.0, 3.0]);
    assert_eq!(read(&y[0]), [-1.0, -2.0, -3.0]);

    let mut sum = None;
    engine.accumulate(&mut sum, x.clone()).unwrap();
    engine.accumulate(&mut sum, x.clone()).unwrap();
    assert_eq!(read(sum.as_ref().unwrap()), [2.0, 4.0, 6.0]);
    assert_eq!(read(&x), [1.0, 2.0, 3.0]);
    assert_eq!(engine.sum_of_squares(&x).unwrap(), 14.0);

    let mut parameter = x.clone();
    let rule = UpdateRule::Sgd {
        momentum: 0.5,
        dampening: 0.0,
        weight_decay: 0.0,
        nesterov: false,
    };
    let mut state = Vec::new();
    let size = |step| StepSize {
        step,
        learning_rate: 1.0,
        gradient_scale: 1.0,
    };
    engine
        .update(&rule, size(0), &mut parameter, &y[0], &mut state)
        .unwrap();
    assert_eq!(read(&parameter), [2.0, 4.0, 6.0]);
    let kept = state.clone();
    engine
        .update(&rule, size(1), &mut parameter, &y[0], &mut state)
        .unwrap();
    assert_eq!(read(&parameter), [3.5, 7.0, 10.5]);
    assert_eq!(read(&kept[0]), [-1.0, -2.0, -3.0]);
    assert_eq!(read(&state[0]), [-1.5, -3.0, -4.5]);
    assert_eq!(read(&x), [1.0, 2.0, 3.0]);
}
