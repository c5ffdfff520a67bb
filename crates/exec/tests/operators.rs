//! The reference engine against ATen, operator by operator, corner cases included.
//!
//! `fixtures/make_operators.py` wrote the numbers, in f64.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

use std::collections::BTreeSet;

use outboard_exec::{ExecError, Executor, RandomKey, Reference, ReferenceTensor};
use outboard_graph::{DType, Graph, Op, Tensor};

const FIXTURE: &str = include_str!("fixtures/operators.txt");

struct Case {
    program: Graph,
    text: String,
    inputs: Vec<Vec<f64>>,
    results: Vec<Vec<f64>>,
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut text = String::new();
    for line in FIXTURE.lines() {
        let numbers = |rest: &str| {
            rest.split_whitespace()
                .map(|number| number.parse().unwrap())
                .collect::<Vec<f64>>()
        };
        if let Some(rest) = line.strip_prefix("in") {
            let case: &mut Case = cases.last_mut().unwrap();
            case.inputs.push(numbers(rest));
        } else if let Some(rest) = line.strip_prefix("out") {
            let case: &mut Case = cases.last_mut().unwrap();
            case.results.push(numbers(rest));
        } else {
            text += line;
            text.push('\n');
            if line == "}" {
                let program = text
                    .parse()
                    .unwrap_or_else(|error| panic!("{error}\n{text}"));
                let text = std::mem::take(&mut text);
                cases.push(Case {
                    program,
                    text,
                    inputs: Vec::new(),
                    results: Vec::new(),
                });
            }
        }
    }
    cases
}

fn upload(program: &Graph, index: usize, elements: &[f64]) -> ReferenceTensor {
    let ty = program.ty(program.inputs[index].value).unwrap();
    let dims = ty.concrete().unwrap();
    match ty.dtype {
        DType::I64 => {
            let integers: Vec<i64> = elements.iter().map(|&x| x as i64).collect();
            Reference
                .upload(&Tensor::from_i64(dims, &integers).unwrap())
                .unwrap()
        }
        DType::Bool => {
            let bools: Vec<bool> = elements.iter().map(|&x| x != 0.0).collect();
            Reference
                .upload(&Tensor::from_bool(dims, &bools).unwrap())
                .unwrap()
        }
        _ => ReferenceTensor::from_f64(&dims, elements.to_vec()).unwrap(),
    }
}

/// Sums in another order differ by rounding; everything else must be equal, infinities and NaN too.
fn equal(ours: f64, aten: f64) -> bool {
    ours == aten
        || (ours.is_nan() && aten.is_nan())
        || (ours - aten).abs() <= 1e-12 * aten.abs().max(1.0)
}

#[test]
fn results_are_those_of_aten() {
    let cases = cases();
    let mut seen = BTreeSet::new();
    for case in &cases {
        seen.insert(case.program.nodes[0].op.name());
        let plan = Reference.compile(&case.program).unwrap();
        let inputs = case.inputs.iter().enumerate();
        let inputs = inputs
            .map(|(index, input)| upload(&case.program, index, input))
            .collect();
        let results = Reference.run(&plan, inputs, RandomKey::default()).unwrap();
        assert_eq!(results.len(), case.results.len(), "{}", case.text);
        for (index, (ours, aten)) in results.iter().zip(&case.results).enumerate() {
            let ours = ours.to_f64_vec();
            assert!(
                ours.len() == aten.len() && ours.iter().zip(aten).all(|(&a, &b)| equal(a, b)),
                "result {index} is {ours:?}, ATen gives {aten:?}\n{}",
                case.text
            );
        }
    }
    // Random numbers differ from PyTorch's; `random.rs` tests those.
    let missing: Vec<_> = Op::NAMES
        .iter()
        .filter(|name| !seen.contains(*name))
        .collect();
    assert_eq!(missing, [&"native_dropout"]);
}

/// `program` with one node on these inputs.
fn run(program: &str, inputs: Vec<ReferenceTensor>) -> Result<Vec<Vec<f64>>, ExecError> {
    let plan = Reference.compile(&program.parse().unwrap())?;
    let results = Reference.run(
        &plan,
        inputs,
        RandomKey {
            seed: 1,
            step: 2,
            micro_batch: 3,
        },
    )?;
    Ok(results.iter().map(ReferenceTensor::to_f64_vec).collect())
}

fn floats(dims: &[usize], elements: &[f64]) -> ReferenceTensor {
    ReferenceTensor::from_f64(dims, elements.to_vec()).unwrap()
}

fn integers(elements: &[i64]) -> ReferenceTensor {
    Reference
        .upload(&Tensor::from_i64([elements.len()], elements).unwrap())
        .unwrap()
}

#[test]
fn dropout_multiplies_by_the_mask() {
    let program = r#"graph "dropout" {
  %0: f32[4000] = data "0"
  %1: f32[4000], %2: bool[4000] = native_dropout(%0, p=0.25, key=9)
  return result "output" %1, result "mask" %2
}"#;
    let results = run(program, vec![floats(&[4000], &[3.0; 4000])]).unwrap();
    let mut mask = vec![0; 4000];
    let key = RandomKey {
        seed: 1,
        step: 2,
        micro_batch: 3,
    };
    outboard_exec::dropout_mask(key, 9, 0.25, &mut mask);
    for ((output, kept), expected) in results[0].iter().zip(&results[1]).zip(mask) {
        assert_eq!(*kept, f64::from(expected));
        assert_eq!(*output, 3.0 * f64::from(expected) * (1.0 / 0.75));
    }
}

#[test]
fn values_out_of_range_are_named() {
    let embedding = r#"graph "embedding" {
  %0: f32[4,2] = data "weight"
  %1: i64[1] = data "indices"
  %2: f32[1,2] = embedding(%0, %1, padding_idx=none) @ "tokens"
  return result "0" %2
}"#;
    for index in [4, -1, i64::MIN, i64::MAX] {
        let error = run(
            embedding,
            vec![floats(&[4, 2], &[0.0; 8]), integers(&[index])],
        );
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains("tokens") && error.contains(&index.to_string()),
            "{error}"
        );
    }
    let loss = r#"graph "loss" {
  %0: f32[1,3] = data "0"
  %1: i64[1] = data "1"
  %2: f32[], %3: f32[] = nll_loss_forward(%0, %1, none, reduction=sum, ignore_index=-100)
  return result "0" %2
}"#;
    for target in [3, -1] {
        let error = run(loss, vec![floats(&[1, 3], &[0.0; 3]), integers(&[target])]);
        assert!(
            error
                .unwrap_err()
                .to_string()
                .contains("is not one of 3 classes")
        );
    }
    let pool = r#"graph "pool" {
  %0: f32[1,1,1,1] = data "grad"
  %1: i64[1,1,1,1] = data "indices"
  %2: f32[1,1,2,2] = max_pool2d_with_indices_backward(%0, %1, input_shape=[1,1,2,2], kernel_size=[2,2], stride=[2,2], padding=[0,0], dilation=[1,1], ceil_mode=false)
  return result "0" %2
}"#;
    for index in [4, -1] {
        let index = Tensor::from_i64([1, 1, 1, 1], &[index]).unwrap();
        let inputs = vec![
            floats(&[1, 1, 1, 1], &[1.0]),
            Reference.upload(&index).unwrap(),
        ];
        assert!(
            run(pool, inputs)
                .unwrap_err()
                .to_string()
                .contains("outside of a plane")
        );
    }
}

#[test]
fn inputs_must_be_what_the_program_says() {
    let program = r#"graph "small" {
  %0: f32[2] = data "x"
  %1: f32[2] = relu(%0)
  return result "y" %1
}"#;
    for inputs in [
        vec![],
        vec![floats(&[3], &[0.0; 3])],
        vec![integers(&[1, 2])],
    ] {
        assert!(matches!(run(program, inputs), Err(ExecError::Invalid(_))));
    }
    let symbolic = program.replace("[2]", "[B]");
    let error = Reference
        .compile(&symbolic.parse().unwrap())
        .unwrap_err()
        .to_string();
    assert!(error.contains("instantiate the program first"), "{error}");
    assert!(ReferenceTensor::from_f64(&[2, usize::MAX], vec![0.0; 2]).is_err());
}

/// The peak counts what is alive: here two vectors of a thousand f64 at any node, though five are made.
#[test]
fn memory_is_freed_after_the_last_use() {
    let chain = r#"graph "chain" {
  %0: f32[1000] = data "x"
  %1: f32[1000] = relu(%0)
  %2: f32[1000] = neg(%1)
  %3: f32[1000] = exp(%2)
  %4: f32[1000] = neg(%3)
  return result "y" %4
}"#;
    let peak =
        |text: &str| Reference.peak_bytes(&Reference.compile(&text.parse().unwrap()).unwrap());
    assert!((16_000..24_000).contains(&peak(chain)), "{}", peak(chain));
    // Returned early, %1 stays.
    let kept = chain.replace("return ", "return result \"kept\" %1, ");
    assert!((24_000..32_000).contains(&peak(&kept)), "{}", peak(&kept));
}

#[test]
fn sums_norms_and_steps() {
    let mut sum = None;
    Reference
        .accumulate(&mut sum, floats(&[2], &[1.0, 2.0]))
        .unwrap();
    let first = sum.clone().unwrap();
    Reference
        .accumulate(&mut sum, floats(&[2], &[0.5, -2.0]))
        .unwrap();
    assert_eq!(sum.as_ref().unwrap().to_f64_vec(), [1.5, 0.0]);
    assert_eq!(
        first.to_f64_vec(),
        [1.0, 2.0],
        "what someone else holds does not change"
    );
    assert!(
        Reference
            .accumulate(&mut sum, floats(&[3], &[0.0; 3]))
            .is_err()
    );
    assert_eq!(
        Reference
            .sum_of_squares(&floats(&[2], &[3.0, -4.0]))
            .unwrap(),
        25.0
    );
    assert!(
        Reference
            .sum_of_squares(&floats(&[2], &[3.0, f64::NAN]))
            .unwrap()
            .is_nan()
    );

    let rule = outboard_exec::UpdateRule::Sgd {
        momentum: 0.5,
        dampening: 0.0,
        weight_decay: 0.0,
        nesterov: false,
    };
    let mut parameter = floats(&[1], &[1.0]);
    let mut state = Vec::new();
    for (step, expected) in [0.9, 0.75].into_iter().enumerate() {
        let size = outboard_exec::StepSize {
            step: step as u64,
            learning_rate: 0.1,
            gradient_scale: 0.5,
        };
        Reference
            .update(
                &rule,
                size,
                &mut parameter,
                &floats(&[1], &[2.0]),
                &mut state,
            )
            .unwrap();
        assert!((parameter.to_f64_vec()[0] - expected).abs() < 1e-15);
    }
    assert_eq!(state[0].to_f64_vec(), [1.5]);
}
