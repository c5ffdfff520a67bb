//! Whole models: their gradients against central differences, and every cut against no cut, bit for bit.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

mod common;

use common::numbers::Numbers;
use common::{MicroBatch, Named, Outcome, Pipeline};
use outboard_exec::{CpuExecutor, Executor, RandomKey, Reference, ReferenceTensor};
use outboard_graph::zoo::{self, ZooOptions};
use outboard_graph::{Graph, Loss, Stage, Tensor, cut_candidates, init, slice};

const KEY: RandomKey = RandomKey {
    seed: 11,
    step: 2,
    micro_batch: 0,
};

/// An engine with its ways to make and read a scalar.
struct Engine<E: Executor> {
    engine: E,
    scalar: fn(&E, f64) -> E::Tensor,
    number: fn(&E, &E::Tensor) -> f64,
}

fn reference() -> Engine<Reference> {
    Engine {
        engine: Reference,
        scalar: |_, value| ReferenceTensor::from_f64(&[], vec![value]).unwrap(),
        number: |_, scalar| scalar.to_f64_vec()[0],
    }
}

fn cpu() -> Engine<CpuExecutor> {
    Engine {
        engine: CpuExecutor::with_threads(1),
        scalar: |engine, value| engine.upload(&Tensor::scalar(value as f32)).unwrap(),
        number: |engine, scalar| {
            f64::from(engine.download(scalar).unwrap().to_f32_vec().unwrap()[0])
        },
    }
}

impl<E: Executor> Engine<E> {
    fn pipeline(&self, stages: &[Stage]) -> Pipeline<'_, E> {
        Pipeline::new(&self.engine, stages, self.scalar, self.number)
    }

    fn upload(&self, tensors: &Named<Tensor>) -> Named<E::Tensor> {
        let upload = |(name, tensor): (&String, &Tensor)| {
            (name.clone(), self.engine.upload(tensor).unwrap())
        };
        tensors.iter().map(upload).collect()
    }

    fn micro_batches(&self, batch: &[MicroBatch<Tensor>]) -> Vec<MicroBatch<E::Tensor>> {
        let upload = |micro: &MicroBatch<Tensor>| MicroBatch {
            size: micro.size,
            data: self.upload(&micro.data),
        };
        batch.iter().map(upload).collect()
    }
}

/// A model of the zoo, or a text, with initial weights and a batch.
struct Model {
    graph: Graph,
    weights: Named<Tensor>,
    images: Vec<f32>,
    targets: Vec<i64>,
    sample: Vec<usize>,
}

impl Model {
    fn zoo(name: &str, side: usize, dropout: f64, loss: Loss, samples: usize) -> Self {
        let options = ZooOptions {
            image_size: side,
            channels: 1,
            classes: 4,
            dropout: Some(dropout),
            patch_size: (name == "vit_tiny").then_some(side / 2),
            loss,
        };
        Self::new(
            zoo::build(name, &options).unwrap(),
            &[1, side, side],
            samples,
        )
    }

    fn new(graph: Graph, sample: &[usize], samples: usize) -> Self {
        let weights = init::weights(&graph, 5).unwrap();
        let mut numbers = Numbers(9);
        let count = samples * sample.iter().product::<usize>();
        let images = numbers
            .floats(count, -1.0, 1.0)
            .into_iter()
            .map(|x| x as f32)
            .collect();
        let targets = (0..samples).map(|_| numbers.between(0, 3) as i64).collect();
        Self {
            graph,
            weights,
            images,
            targets,
            sample: sample.to_vec(),
        }
    }

    /// The batch in pieces of these sizes.
    fn split(&self, sizes: &[usize]) -> Vec<MicroBatch<Tensor>> {
        let pixels: usize = self.sample.iter().product();
        let mut start = 0;
        let piece = |&size: &usize| {
            let range = start..start + size;
            start = range.end;
            let images = &self.images[range.start * pixels..range.end * pixels];
            let dims = [&[size], &self.sample[..]].concat();
            let data = Named::from([
                ("input".to_owned(), Tensor::from_f32(dims, images).unwrap()),
                (
                    "target".to_owned(),
                    Tensor::from_i64([size], &self.targets[range]).unwrap(),
                ),
            ]);
            MicroBatch { size, data }
        };
        sizes.iter().map(piece).collect()
    }

    fn train<E: Executor>(
        &self,
        engine: &Engine<E>,
        cuts: &[usize],
        sizes: &[usize],
    ) -> Outcome<E::Tensor> {
        let stages = slice(&self.graph, cuts).unwrap();
        let batch = engine.micro_batches(&self.split(sizes));
        engine
            .pipeline(&stages)
            .train(&engine.upload(&self.weights), &batch, KEY)
    }

    /// Legal cuts, spread over the model.
    fn cuts(&self, count: usize) -> Vec<usize> {
        let legal: Vec<usize> = cut_candidates(&self.graph)
            .unwrap()
            .iter()
            .filter(|cut| cut.is_legal())
            .map(|cut| cut.node)
            .collect();
        let step = legal.len().div_ceil(count).max(1);
        legal.into_iter().step_by(step).collect()
    }
}

/// The directional derivative of the loss against its central difference, in f64.
fn check_directions(model: &Model, sizes: &[usize]) {
    let engine = reference();
    let outcome = model.train(&engine, &[], sizes);
    let pipeline = engine.pipeline(&slice(&model.graph, &[]).unwrap());
    let batch = engine.micro_batches(&model.split(sizes));
    let weights = engine.upload(&model.weights);
    for seed in 0..2 {
        let mut numbers = Numbers(seed);
        let direction: Named<Vec<f64>> = outcome
            .gradients
            .iter()
            .map(|(name, gradient)| {
                (
                    name.clone(),
                    numbers.floats(gradient.to_f64_vec().len(), -1.0, 1.0),
                )
            })
            .collect();
        let slope: f64 = outcome
            .gradients
            .iter()
            .flat_map(|(name, gradient)| {
                gradient
                    .to_f64_vec()
                    .into_iter()
                    .zip(direction[name].clone())
            })
            .map(|(gradient, step)| gradient * step)
            .sum();
        let loss = |length: f64| {
            let mut moved = weights.clone();
            for (name, direction) in &direction {
                let from = &weights[name];
                let to = from
                    .to_f64_vec()
                    .iter()
                    .zip(direction)
                    .map(|(x, d)| x + length * d)
                    .collect();
                moved.insert(
                    name.clone(),
                    ReferenceTensor::from_f64(from.dims(), to).unwrap(),
                );
            }
            pipeline.loss(&moved, &batch, KEY)
        };
        // Small, so that hardly a relu crosses its corner; the rounding of a loss is 1e-16, so 1e-10 of the slope.
        let length = 1e-7;
        let difference = (loss(length) - loss(-length)) / (2.0 * length);
        let error = (slope - difference).abs();
        assert!(
            error <= 1e-6 * slope.abs().max(1.0),
            "{}: slope {slope}, difference {difference}",
            model.graph.name
        );
    }
}

#[test]
fn gradients_of_whole_models_are_slopes() {
    let smoothed = Loss::CrossEntropy {
        ignore_index: -100,
        class_weights: Some(vec![0.5, 1.0, 2.0, 1.5]),
        label_smoothing: 0.1,
    };
    check_directions(&Model::zoo("mlp", 4, 0.2, smoothed, 5), &[3, 2]);
    check_directions(&Model::zoo("vit_tiny", 4, 0.1, Loss::default(), 2), &[1, 1]);
    check_directions(&residual(4), &[2, 2]);
}

/// A small residual network: convolutions, norms, a strided shortcut and pooling.
fn residual(samples: usize) -> Model {
    let text = r#"graph "residual" {
  %0: f32[B,1,8,8] = data "input"
  %1: i64[B] = data "target"
  %2: f32[4,1,3,3] = parameter "conv1.weight"
  %3: f32[4] = parameter "bn1.weight"
  %4: f32[4] = parameter "bn1.bias"
  %5: f32[4] = buffer "bn1.running_mean"
  %6: f32[4] = buffer "bn1.running_var"
  %7: f32[4,4,3,3] = parameter "conv2.weight"
  %8: f32[4,4,1,1] = parameter "shortcut.weight"
  %9: f32[4,4] = parameter "fc.weight"
  %10: f32[4] = parameter "fc.bias"
  %11: f32[B,4,8,8] = convolution(%0, %2, none, stride=[1,1], padding=[1,1], dilation=[1,1], groups=1)
  %12: f32[B,4,8,8], %13: f32[4], %14: f32[4], %15: f32[4], %16: f32[4] = _native_batch_norm_legit_functional(%11, %3, %4, %5, %6, momentum=0.1, eps=1e-5)
  %17: f32[B,4,8,8] = relu(%12)
  %18: f32[B,4,8,8], %19: i64[B,4,8,8] = max_pool2d_with_indices(%17, kernel_size=[3,3], stride=[1,1], padding=[1,1], dilation=[1,1], ceil_mode=false)
  %20: f32[B,4,4,4] = convolution(%18, %7, none, stride=[2,2], padding=[1,1], dilation=[1,1], groups=1)
  %21: f32[B,4,4,4] = convolution(%17, %8, none, stride=[2,2], padding=[0,0], dilation=[1,1], groups=1)
  %22: f32[B,4,4,4] = add.Tensor(%20, %21, alpha=1.0)
  %23: f32[B,4,4,4] = gelu(%22, tanh=false)
  %24: f32[B,4] = mean.dim(%23, dims=[2,3], keepdim=false)
  %25: f32[4,4] = permute(%9, dims=[1,0])
  %26: f32[B,4] = addmm(%10, %24, %25)
  %27: f32[B,4] = addmm(%10, %26, %9)
  %28: f32[B,4] = _log_softmax(%27, dim=1)
  %29: f32[], %30: f32[] = nll_loss_forward(%28, %1, none, reduction=sum, ignore_index=-100)
  %31: f32[] = sym_numel(%1)
  return result "logits" %27, buffer_update "bn1.running_mean" %15, buffer_update "bn1.running_var" %16, loss_sum "loss" %29, loss_weight "loss" %31
}"#;
    let graph: Graph = text.parse().unwrap();
    Model::new(graph.canonicalize().unwrap(), &[1, 8, 8], samples)
}

/// Everything of an outcome as bytes.
fn bytes<E: Executor>(engine: &E, outcome: &Outcome<E::Tensor>) -> Vec<(String, Vec<u8>)> {
    let mut all = vec![("loss".to_owned(), outcome.loss.to_le_bytes().to_vec())];
    let mut add = |name: String, tensor: &E::Tensor| {
        all.push((name, engine.download(tensor).unwrap().data().to_vec()));
    };
    for (name, results) in &outcome.results {
        for (index, result) in results.iter().enumerate() {
            add(format!("result {name} {index}"), result);
        }
    }
    for (kind, tensors) in [
        ("gradient", &outcome.gradients),
        ("state", &outcome.buffers),
    ] {
        for (name, tensor) in tensors {
            add(format!("{kind} {name}"), tensor);
        }
    }
    all
}

fn check_cuts<E: Executor>(model: &Model, engine: &Engine<E>, sizes: &[usize], count: usize) {
    let whole = bytes(&engine.engine, &model.train(engine, &[], sizes));
    let cuts = model.cuts(count);
    assert!(cuts.len() >= 2, "{} can hardly be cut", model.graph.name);
    // Each cut alone, then all together: as many stages as there are cuts, and one more.
    let mut choices: Vec<Vec<usize>> = cuts.iter().map(|&cut| vec![cut]).collect();
    choices.push(cuts);
    for cuts in choices {
        let cut = bytes(&engine.engine, &model.train(engine, &cuts, sizes));
        assert_eq!(cut.len(), whole.len());
        for (cut, whole) in cut.iter().zip(&whole) {
            assert!(
                cut == whole,
                "{} cut at {cuts:?}: {} differs",
                model.graph.name,
                cut.0
            );
        }
    }
}

/// Skip connections (the residual network), tied weights (its last two layers), dropout (the others).
#[test]
fn no_cut_changes_a_bit_on_the_reference_engine() {
    check_cuts(&residual(5), &reference(), &[3, 2], 40);
    check_cuts(
        &Model::zoo("mlp", 4, 0.3, Loss::default(), 3),
        &reference(),
        &[2, 1],
        40,
    );
    check_cuts(
        &Model::zoo("vit_tiny", 4, 0.1, Loss::default(), 2),
        &reference(),
        &[1, 1],
        4,
    );
}

#[test]
fn no_cut_changes_a_bit_on_the_cpu_engine() {
    check_cuts(&residual(5), &cpu(), &[3, 2], 40);
    check_cuts(
        &Model::zoo("mlp", 4, 0.3, Loss::default(), 3),
        &cpu(),
        &[2, 1],
        40,
    );
    check_cuts(
        &Model::zoo("vit_tiny", 4, 0.1, Loss::default(), 2),
        &cpu(),
        &[1, 1],
        12,
    );
    check_cuts(
        &Model::zoo("resnet18", 32, 0.0, Loss::default(), 4),
        &cpu(),
        &[2, 2],
        8,
    );
}

/// Uneven micro-batches, ignored targets and class weights give the loss and gradients of the batch at once.
#[test]
fn micro_batches_do_not_show() {
    let loss = Loss::CrossEntropy {
        ignore_index: 2,
        class_weights: Some(vec![0.5, 1.0, 2.0, 3.0]),
        label_smoothing: 0.0,
    };
    let mut model = Model::zoo("mlp", 4, 0.0, loss, 7);
    // One micro-batch has no target that counts.
    model.targets = vec![0, 3, 1, 2, 2, 0, 1];
    let engine = reference();
    let whole = model.train(&engine, &[], &[7]);
    for sizes in [&[3, 2, 2][..], &[1; 7], &[6, 1]] {
        let pieces = model.train(&engine, &[], sizes);
        assert_eq!(pieces.loss_weight, whole.loss_weight);
        assert!((pieces.loss - whole.loss).abs() < 1e-14);
        for (name, gradient) in &whole.gradients {
            let pieces = pieces.gradients[name].to_f64_vec();
            let close = gradient
                .to_f64_vec()
                .iter()
                .zip(&pieces)
                .all(|(a, b)| (a - b).abs() < 1e-14);
            assert!(close, "{name} in micro-batches of {sizes:?}");
        }
    }
}

/// Both engines run the same programs: the CPU's f32 stays near the reference's f64.
#[test]
fn engines_agree() {
    for (model, sizes) in [
        (residual(4), [2, 2]),
        (Model::zoo("vit_tiny", 4, 0.1, Loss::default(), 2), [1, 1]),
    ] {
        let exact = model.train(&reference(), &[], &sizes);
        let engine = cpu();
        let rounded = model.train(&engine, &[], &sizes);
        assert!((exact.loss - rounded.loss).abs() < 1e-5 * exact.loss.abs());
        for (name, gradient) in &exact.gradients {
            let gradient = gradient.to_f64_vec();
            let rounded = engine
                .engine
                .download(&rounded.gradients[name])
                .unwrap()
                .to_f32_vec()
                .unwrap();
            let norm = gradient.iter().map(|x| x * x).sum::<f64>().sqrt();
            let error = gradient
                .iter()
                .zip(&rounded)
                .map(|(a, &b)| (a - f64::from(b)).powi(2))
                .sum::<f64>()
                .sqrt();
            assert!(
                error <= 1e-4 * norm + 1e-7,
                "{name}: error {error} of {norm}"
            );
        }
    }
}
