//! Gradients against central differences, in f64 from end to end: every operator, its broadcasting and options, and whole
//! models.
//!
//! A stage is a function of its parameters and activations. Contracted with fixed random cotangents of what it sends, it is
//! a number; the programs `B` and `W` must give that number's derivative by every element.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

use std::collections::BTreeMap;

use outboard_exec::{Executor, RandomKey, Reference, ReferenceTensor};
use outboard_graph::{
    DType, Graph, InputKind, Loss, Op, OutputKind, Stage, StagePrograms, Tensor, TensorType, init,
    stage_programs,
    zoo::{self, ZooOptions},
};
use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};

const KEY: RandomKey = RandomKey {
    seed: 3,
    step: 1,
    micro_batch: 2,
};

/// Values by kind and name.
type Values = BTreeMap<(&'static str, String), ReferenceTensor>;

struct Numbers(ChaCha8Rng);

impl Numbers {
    fn new(seed: u64) -> Numbers {
        Numbers(ChaCha8Rng::seed_from_u64(seed))
    }

    fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * (self.0.next_u32() as f64 / f64::from(u32::MAX))
    }

    fn tensor(&mut self, ty: &TensorType, low: f64, high: f64) -> ReferenceTensor {
        let dims = ty.concrete().unwrap();
        let count = dims.iter().product();
        let elements = (0..count).map(|_| self.between(low, high)).collect();
        ReferenceTensor::from_f64(&dims, elements).unwrap()
    }

    fn indices(&mut self, ty: &TensorType, below: u32) -> ReferenceTensor {
        let dims = ty.concrete().unwrap();
        let count: usize = dims.iter().product();
        let elements: Vec<i64> = (0..count)
            .map(|_| i64::from(self.0.next_u32() % below))
            .collect();
        Reference
            .upload(&Tensor::from_i64(dims, &elements).unwrap())
            .unwrap()
    }
}

/// Runs a program on values that are known by the kind and name of its inputs.
fn run(program: &Graph, known: &Values) -> Values {
    let inputs = (program.inputs.iter())
        .map(|input| known[&(input.kind.name(), input.name.clone())].clone())
        .collect();
    let plan = Reference.compile(program).unwrap();
    let outputs = Reference.run(&plan, inputs, KEY).unwrap();
    let names = program
        .outputs
        .iter()
        .map(|o| (o.kind.name(), o.name.clone()));
    names.zip(outputs).collect()
}

/// One stage with fixed inputs.
struct Check {
    programs: StagePrograms,
    /// Inputs of the forward program.
    inputs: Values,
    /// Cotangents of what it sends; 1 for the loss.
    cotangents: Values,
    /// The inputs that have a gradient.
    wanted: Vec<(&'static str, String)>,
}

impl Check {
    /// Inputs between `low` and `high`; class indices below `classes`.
    fn new(stage: &Stage, batch: usize, range: (f64, f64), classes: u32) -> Check {
        let programs = stage_programs(stage).unwrap();
        let concrete = |graph: &Graph| graph.instantiate(batch).unwrap();
        let programs = StagePrograms {
            forward: concrete(&programs.forward),
            backward: concrete(&programs.backward),
            weight: concrete(&programs.weight),
            normaliser: programs.normaliser.as_ref().map(concrete),
        };
        let mut numbers = Numbers::new(11);
        let mut inputs = Values::new();
        let mut wanted = Vec::new();
        for input in &programs.forward.inputs {
            let ty = programs.forward.ty(input.value).unwrap();
            let value = match ty.dtype {
                DType::I64 => numbers.indices(ty, classes),
                _ => numbers.tensor(ty, range.0, range.1),
            };
            let key = (input.kind.name(), input.name.clone());
            if input.kind == InputKind::Parameter || stage.differentiable.contains(&input.name) {
                wanted.push(key.clone());
            }
            inputs.insert(key, value);
        }
        let mut cotangents = Values::new();
        for input in &programs.backward.inputs {
            if input.kind == InputKind::Cotangent {
                let ty = programs.backward.ty(input.value).unwrap();
                let value = match input.name.as_str() {
                    "loss" => ReferenceTensor::from_f64(&[], vec![1.0]).unwrap(),
                    _ => numbers.tensor(ty, -1.0, 1.0),
                };
                cotangents.insert((input.kind.name(), input.name.clone()), value);
            }
        }
        Check {
            programs,
            inputs,
            cotangents,
            wanted,
        }
    }

    /// The number that the stage is a function to.
    fn value(&self, inputs: &Values) -> f64 {
        let outputs = run(&self.programs.forward, inputs);
        let terms = self.cotangents.iter().map(|((_, name), cotangent)| {
            let kind = match name.as_str() {
                "loss" => OutputKind::LossSum,
                _ => OutputKind::Activation,
            };
            let output = outputs[&(kind.name(), name.clone())].to_f64_vec();
            let products = output
                .iter()
                .zip(cotangent.to_f64_vec())
                .map(|(a, b)| a * b);
            products.sum::<f64>()
        });
        terms.sum()
    }

    /// The gradients that the programs give; the uses of a parameter added up.
    fn gradients(&self) -> BTreeMap<(&'static str, String), Vec<f64>> {
        let forward = run(&self.programs.forward, &self.inputs);
        let mut known = self.inputs.clone();
        known.extend(forward);
        known.extend(self.cotangents.clone());
        let backward = run(&self.programs.backward, &known);
        known.extend(backward.clone());
        let weight = run(&self.programs.weight, &known);

        let mut gradients: BTreeMap<(&'static str, String), Vec<f64>> = BTreeMap::new();
        for ((kind, name), value) in backward.into_iter().chain(weight) {
            let key = if kind == OutputKind::Cotangent.name() {
                (InputKind::Activation.name(), name)
            } else if kind == OutputKind::ParameterGradient.name() {
                let name = name.rsplit_once('#').unwrap().0.to_owned();
                (InputKind::Parameter.name(), name)
            } else {
                continue;
            };
            let value = value.to_f64_vec();
            match gradients.get_mut(&key) {
                None => drop(gradients.insert(key, value)),
                Some(sum) => sum.iter_mut().zip(value).for_each(|(sum, x)| *sum += x),
            }
        }
        gradients
    }

    /// Compares up to `limit` elements of each input with `(f(x + h) - f(x - h)) / 2h`. The error of the quotient grows with
    /// h^2, that of rounding with 2^-53 / h.
    fn compare(&self, what: &str, limit: usize, h: f64) {
        let gradients = self.gradients();
        assert!(!self.wanted.is_empty(), "{what}");
        let mut numbers = Numbers::new(5);
        for key in &self.wanted {
            let Some(gradient) = gradients.get(key) else {
                panic!("{what}: no gradient of {key:?}");
            };
            let input = &self.inputs[key];
            let elements = input.to_f64_vec();
            assert_eq!(elements.len(), gradient.len(), "{what}: {key:?}");
            let scale = gradient.iter().fold(1.0, |max: f64, g| max.max(g.abs()));
            let count = elements.len().min(limit);
            for nth in 0..count {
                let index = match elements.len() <= limit {
                    true => nth,
                    false => numbers.0.next_u32() as usize % elements.len(),
                };
                let moved = |by: f64| {
                    let mut elements = elements.clone();
                    elements[index] += by;
                    let moved = ReferenceTensor::from_f64(input.dims(), elements).unwrap();
                    let mut inputs = self.inputs.clone();
                    inputs.insert(key.clone(), moved);
                    self.value(&inputs)
                };
                let expected = (moved(h) - moved(-h)) / (2.0 * h);
                let found = gradient[index];
                let error = (found - expected).abs() / scale;
                assert!(
                    error < 2e-7,
                    "{what}: d/d{}[{index}] is {expected} but the program gives {found}",
                    key.1
                );
            }
        }
    }
}

/// Inputs that the cases below name.
const PREAMBLE: &str = r#"
  %0: f32[B,3] = activation "%0"
  %1: f32[B,3,5] = activation "%1"
  %2: f32[3,5] = parameter "matrix"
  %3: f32[3] = parameter "row"
  %4: f32[B,4,7,6] = activation "%4"
  %5: f32[6,2,3,3] = parameter "kernel"
  %6: f32[4] = parameter "channels"
  %7: i64[B] = data "indices"
  %8: f32[4] = buffer "statistics"
  %9: f32[B,1,5] = activation "%9"
  %10: f32[6] = parameter "outputs"
  %11: f32[B,5,2] = activation "%11"
  %12: f32[5] = parameter "columns"
  %13: f32[2,3] = parameter "table"
  %14: f32[4,1,3,2] = parameter "deep"
"#;

/// A node, and the range of its operands. Results count from `%15`; those of a float type are sent.
const CASES: &[(&str, f64, f64)] = &[
    // Products.
    (
        "%15: f32[B,6,4,3] = convolution(%4, %5, %10, stride=[2,2], padding=[1,1], dilation=[1,1], groups=2)",
        -1.0,
        1.0,
    ),
    (
        "%15: f32[B,6,3,6] = convolution(%4, %5, none, stride=[1,1], padding=[0,2], dilation=[2,2], groups=2)",
        -1.0,
        1.0,
    ),
    (
        "%15: f32[B,4,3,5] = convolution(%4, %14, %6, stride=[2,1], padding=[0,0], dilation=[1,1], groups=4)",
        -1.0,
        1.0,
    ),
    ("%15: f32[B,5] = addmm(%12, %0, %2)", -1.0, 1.0),
    ("%15: f32[B,5] = mm(%0, %2)", -1.0, 1.0),
    ("%15: f32[B,3,2] = bmm(%1, %11)", -1.0, 1.0),
    (
        "%15: f32[B,3] = embedding(%13, %7, padding_idx=none)",
        -1.0,
        1.0,
    ),
    // Normalisation.
    (
        "%15: f32[B,4,7,6], %16: f32[4], %17: f32[4], %18: f32[4], %19: f32[4] = _native_batch_norm_legit_functional(%4, %6, %6, %8, %8, momentum=0.1, eps=1e-5)",
        -1.0,
        1.0,
    ),
    (
        "%15: f32[B,4,7,6], %16: f32[4], %17: f32[4], %18: f32[4], %19: f32[4] = _native_batch_norm_legit_functional(%4, none, none, %8, %8, momentum=0.1, eps=0.1)",
        -1.0,
        1.0,
    ),
    (
        "%15: f32[B,4,7,6] = _native_batch_norm_legit_no_training(%4, %6, %6, %8, %8, momentum=0.1, eps=0.1)",
        0.1,
        1.0,
    ),
    (
        "%15: f32[B,4,7,6] = _native_batch_norm_legit_no_training(%4, none, none, %8, %8, momentum=0.1, eps=0.1)",
        0.1,
        1.0,
    ),
    (
        "%15: f32[B,3,5], %16: f32[B,3,1], %17: f32[B,3,1] = native_layer_norm(%1, %12, %12, normalized_shape=[5], eps=1e-5)",
        -1.0,
        1.0,
    ),
    (
        "%15: f32[B,3,5], %16: f32[B,1,1], %17: f32[B,1,1] = native_layer_norm(%1, %2, none, normalized_shape=[3,5], eps=1e-5)",
        -1.0,
        1.0,
    ),
    (
        "%15: f32[B,3,5], %16: f32[B,3,1], %17: f32[B,3,1] = native_layer_norm(%1, none, none, normalized_shape=[5], eps=1e-5)",
        -1.0,
        1.0,
    ),
    ("%15: f32[B,3,5] = _softmax(%1, dim=1)", -2.0, 2.0),
    ("%15: f32[B,3,5] = _log_softmax(%1, dim=2)", -2.0, 2.0),
    // Pooling.
    (
        "%15: f32[B,4,4,3], %16: i64[B,4,4,3] = max_pool2d_with_indices(%4, kernel_size=[3,3], stride=[2,2], padding=[1,1], dilation=[1,1], ceil_mode=false)",
        -1.0,
        1.0,
    ),
    (
        "%15: f32[B,4,3,2], %16: i64[B,4,3,2] = max_pool2d_with_indices(%4, kernel_size=[2,2], stride=[2,3], padding=[0,0], dilation=[2,1], ceil_mode=true)",
        -1.0,
        1.0,
    ),
    (
        "%15: f32[B,4,4,3] = avg_pool2d(%4, kernel_size=[2,2], stride=[2,2], padding=[0,0], ceil_mode=true, count_include_pad=true, divisor_override=none)",
        -1.0,
        1.0,
    ),
    (
        "%15: f32[B,4,4,3] = avg_pool2d(%4, kernel_size=[3,3], stride=[2,2], padding=[1,1], ceil_mode=false, count_include_pad=false, divisor_override=none)",
        -1.0,
        1.0,
    ),
    (
        "%15: f32[B,4,4,3] = avg_pool2d(%4, kernel_size=[3,3], stride=[2,2], padding=[1,1], ceil_mode=false, count_include_pad=true, divisor_override=4)",
        -1.0,
        1.0,
    ),
    (
        "%15: f32[B,4,2,4] = _adaptive_avg_pool2d(%4, output_size=[2,4])",
        -1.0,
        1.0,
    ),
    // Element by element.
    ("%15: f32[B,3] = relu(%0)", -1.0, 1.0),
    ("%15: f32[B,3] = gelu(%0, tanh=false)", -2.0, 2.0),
    ("%15: f32[B,3] = gelu(%0, tanh=true)", -2.0, 2.0),
    ("%15: f32[B,3] = sigmoid(%0)", -2.0, 2.0),
    ("%15: f32[B,3] = tanh(%0)", -2.0, 2.0),
    ("%15: f32[B,3] = exp(%0)", -1.0, 1.0),
    ("%15: f32[B,3] = log(%0)", 0.5, 2.0),
    ("%15: f32[B,3] = sqrt(%0)", 0.5, 2.0),
    ("%15: f32[B,3] = rsqrt(%0)", 0.5, 2.0),
    ("%15: f32[B,3] = neg(%0)", -1.0, 1.0),
    ("%15: f32[B,3] = add.Tensor(%0, %3, alpha=2.0)", -1.0, 1.0),
    ("%15: f32[B,3,5] = add.Tensor(%2, %9, alpha=1.0)", -1.0, 1.0),
    ("%15: f32[B,3,5] = sub.Tensor(%9, %1, alpha=1.0)", -1.0, 1.0),
    (
        "%15: f32[B,3,5] = sub.Tensor(%12, %1, alpha=0.5)",
        -1.0,
        1.0,
    ),
    ("%15: f32[B,3,5] = mul.Tensor(%1, %9)", -1.0, 1.0),
    ("%15: f32[B,3] = mul.Tensor(%0, %0)", -1.0, 1.0),
    ("%15: f32[B,3,5] = div.Tensor(%9, %1)", 0.5, 2.0),
    ("%15: f32[B,3,5] = div.Tensor(%1, %12)", 0.5, 2.0),
    ("%15: f32[B,3] = add.Scalar(%0, scalar=2.0)", -1.0, 1.0),
    ("%15: f32[B,3] = mul.Scalar(%0, scalar=-2.5)", -1.0, 1.0),
    (
        "%15: f32[B,3] = pow.Tensor_Scalar(%0, exponent=2.0)",
        -1.0,
        1.0,
    ),
    (
        "%15: f32[B,3] = pow.Tensor_Scalar(%0, exponent=3.0)",
        -1.0,
        1.0,
    ),
    (
        "%15: f32[B,3] = pow.Tensor_Scalar(%0, exponent=-0.5)",
        0.5,
        2.0,
    ),
    (
        "%15: f32[B,3] = pow.Tensor_Scalar(%0, exponent=1.0)",
        -1.0,
        1.0,
    ),
    (
        "%15: f32[B,3] = pow.Tensor_Scalar(%0, exponent=0.0)",
        -1.0,
        1.0,
    ),
    ("%15: f32[B,3] = _to_copy(%0, dtype=f32)", -1.0, 1.0),
    (
        "%15: f32[B,3,5], %16: bool[B,3,5] = native_dropout(%1, p=0.4, key=9)",
        -1.0,
        1.0,
    ),
    (
        "%15: f32[B,3,5], %16: bool[B,3,5] = native_dropout(%1, p=1.0, key=9)",
        -1.0,
        1.0,
    ),
    // Reductions.
    (
        "%15: f32[B,7] = sum.dim_IntList(%4, dims=[1,3], keepdim=false)",
        -1.0,
        1.0,
    ),
    (
        "%15: f32[] = sum.dim_IntList(%4, dims=[], keepdim=false)",
        -1.0,
        1.0,
    ),
    (
        "%15: f32[1,3,1] = sum.dim_IntList(%1, dims=[0,2], keepdim=true)",
        -1.0,
        1.0,
    ),
    (
        "%15: f32[B,4] = mean.dim(%4, dims=[2,3], keepdim=false)",
        -1.0,
        1.0,
    ),
    (
        "%15: f32[1,3,5] = mean.dim(%1, dims=[0], keepdim=true)",
        -1.0,
        1.0,
    ),
    (
        "%15: f32[3] = mean.dim(%1, dims=[0,2], keepdim=false)",
        -1.0,
        1.0,
    ),
    (
        "%15: f32[] = mean.dim(%1, dims=[], keepdim=false)",
        -1.0,
        1.0,
    ),
    // Layout.
    ("%15: f32[3B,5] = view(%1, shape=[3B,5])", -1.0, 1.0),
    ("%15: f32[4,6,B,7] = permute(%4, dims=[1,3,0,2])", -1.0, 1.0),
    ("%15: f32[2,B,3,5] = expand(%9, shape=[2,B,3,5])", -1.0, 1.0),
    ("%15: f32[B,3] = clone(%0)", -1.0, 1.0),
    ("%15: f32[B,7,5] = cat(%1, %9, %1, dim=1)", -1.0, 1.0),
    (
        "%15: f32[B,4,3,6] = slice.Tensor(%4, dim=2, start=1, end=7, step=2)",
        -1.0,
        1.0,
    ),
    (
        "%15: f32[B,7,6] = select.int(%4, dim=1, index=2)",
        -1.0,
        1.0,
    ),
    (
        "%15: f32[B,1,7,6], %16: f32[B,3,7,6] = split_with_sizes(%4, sizes=[1,3], dim=1)",
        -1.0,
        1.0,
    ),
    ("%15: f32[B,5] = squeeze.dims(%9, dims=[1])", -1.0, 1.0),
    ("%15: f32[B,3,1,5] = unsqueeze(%1, dim=2)", -1.0, 1.0),
    (
        "%15: f32[B,4,8,8] = constant_pad_nd(%4, pad=[3,-1,-1,2], value=1.0)",
        -1.0,
        1.0,
    ),
    // Losses.
    (
        "%15: f32[B], %16: f32[] = nll_loss_forward(%0, %7, none, reduction=none, ignore_index=0)",
        0.1,
        1.0,
    ),
    (
        "%15: f32[], %16: f32[] = nll_loss_forward(%0, %7, none, reduction=sum, ignore_index=1)",
        0.1,
        1.0,
    ),
    (
        "%15: f32[], %16: f32[] = nll_loss_forward(%0, %7, none, reduction=mean, ignore_index=-100)",
        0.1,
        1.0,
    ),
];

fn case(node: &str, returned: &[usize]) -> Stage {
    let returned: Vec<String> = (returned.iter())
        .map(|value| format!("activation \"%{value}\" %{value}"))
        .collect();
    let returned = returned.join(", ");
    let text = format!("graph \"case\" {{{PREAMBLE}  {node}\n  return {returned}\n}}\n");
    // Inputs that the node does not read have no gradient to compare.
    let operands = node
        .split_once('(')
        .map(|(_, operands)| operands)
        .unwrap_or_default();
    let reads = |name: &str| {
        operands
            .split([',', ')'])
            .any(|operand| operand.trim() == name)
    };
    let graph: Graph = text
        .parse()
        .unwrap_or_else(|error| panic!("{error}\n{text}"));
    let received = graph
        .inputs
        .iter()
        .filter(|input| input.kind == InputKind::Activation);
    let mut differentiable: Vec<String> = received
        .map(|input| input.name.clone())
        .filter(|name| reads(name))
        .collect();
    differentiable.extend((15..20).map(|value| format!("%{value}")));
    Stage {
        index: 1,
        graph,
        differentiable: differentiable.into_iter().collect(),
    }
}

#[test]
fn every_operator_agrees_with_central_differences() {
    for (node, low, high) in CASES {
        // The statistics that a norm or a dropout also gives are not differentiated, nor are integers.
        let returned: &[usize] = match node.contains("split_with_sizes") {
            true => &[15, 16],
            false => &[15],
        };
        let stage = case(node, returned);
        Check::new(&stage, 3, (*low, *high), 2).compare(node, usize::MAX, 1e-5);
    }
}

#[test]
fn no_differentiable_operator_is_forgotten() {
    let mut missing: Vec<&str> = Op::NAMES.to_vec();
    missing.retain(|name| {
        let call = format!(" = {name}(");
        !CASES.iter().any(|(node, _, _)| node.contains(&call))
    });
    // Sources have no gradient; gradients have none of their own here.
    missing.retain(|name| !["full", "sym_numel"].contains(name) && !name.contains("_backward"));
    assert_eq!(missing, Vec::<&str>::new());
}

#[test]
fn a_split_of_which_one_piece_is_used() {
    let node = "%15: f32[B,1,7,6], %16: f32[B,3,7,6] = split_with_sizes(%4, sizes=[1,3], dim=1)";
    Check::new(&case(node, &[16]), 2, (-1.0, 1.0), 2).compare(node, usize::MAX, 1e-5);
    let node = "%15: f32[B,1,7,6], %16: f32[B,2,7,6], %17: f32[B,1,7,6] = split_with_sizes(%4, sizes=[1,2,1], dim=1)";
    Check::new(&case(node, &[15, 17]), 2, (-1.0, 1.0), 2).compare(node, usize::MAX, 1e-5);
}

/// Chains of weights, weights with several uses, values with several readers.
#[test]
fn tied_and_derived_weights() {
    let text = r#"graph "tied" {
  %0: f32[B,4] = data "input"
  %1: f32[4,4] = parameter "weight"
  %2: f32[4] = parameter "bias"
  %3: f32[4,4] = permute(%1, dims=[1,0])
  %4: f32[B,4] = addmm(%2, %0, %3)
  %5: f32[B,4] = tanh(%4)
  %6: f32[B,4] = mul.Tensor(%5, %5)
  %7: f32[B,4] = mm(%6, %1)
  %8: f32[4] = exp(%2)
  %9: f32[4,4] = mul.Tensor(%1, %8)
  %10: f32[4,4] = add.Tensor(%9, %3, alpha=0.5)
  %11: f32[B,4] = mm(%7, %10)
  %12: f32[B,4] = add.Tensor(%11, %5, alpha=1.0)
  %13: f32[B,4] = mul.Tensor(%12, %4)
  %14: f32[] = sum.dim_IntList(%13, dims=[], keepdim=false)
  return loss_sum "loss" %14
}
"#;
    for graph in [
        text.parse::<Graph>().unwrap(),
        text.parse::<Graph>().unwrap().canonicalize().unwrap(),
    ] {
        let stage = Stage::whole(graph);
        Check::new(&stage, 3, (-1.0, 1.0), 2).compare("tied", usize::MAX, 1e-5);
    }
}

fn small(loss: Loss) -> ZooOptions {
    ZooOptions {
        image_size: 8,
        channels: 2,
        classes: 5,
        loss,
        ..ZooOptions::default()
    }
}

#[test]
fn losses_and_a_perceptron() {
    let cross_entropy = |class_weights: Option<Vec<f32>>, label_smoothing| Loss::CrossEntropy {
        ignore_index: 1,
        class_weights,
        label_smoothing,
    };
    let weights = Some(vec![0.5, 1.0, 1.0, 2.0, 0.25]);
    for loss in [
        cross_entropy(None, 0.0),
        cross_entropy(weights.clone(), 0.0),
        cross_entropy(weights, 0.2),
        cross_entropy(None, 1.0),
        Loss::MeanSquaredError,
    ] {
        let what = format!("{loss:?}");
        let stage = Stage::whole(zoo::build("mlp", &small(loss)).unwrap());
        Check::new(&stage, 4, (-0.2, 0.2), 5).compare(&what, 6, 1e-5);
    }
}

/// Whole models start from their own initial weights, so that activations are of a sensible size. The head of a vision
/// transformer starts with zeros, which would hide everything before it. A step this small crosses no kink of a relu.
#[test]
fn whole_models() {
    for (name, image_size) in [("resnet18", 32), ("vit_tiny", 8)] {
        let options = ZooOptions {
            image_size,
            patch_size: (name == "vit_tiny").then_some(4),
            ..small(Loss::default())
        };
        let graph = zoo::build(name, &options).unwrap();
        let weights = init::weights(&graph, 7).unwrap();
        let mut check = Check::new(&Stage::whole(graph), 3, (-1.0, 1.0), 5);
        for (key, value) in &mut check.inputs {
            if let Some(weight) = weights.get(&key.1)
                && !key.1.starts_with("heads.head.")
            {
                *value = Reference.upload(weight).unwrap();
            }
        }
        let every = check.wanted.len() / 4;
        check.wanted = check.wanted.into_iter().step_by(every.max(1)).collect();
        check.compare(name, 1, 1e-7);
    }
}
