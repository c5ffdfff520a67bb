//! Two small networks, trained for one batch, against PyTorch: loss, gradients and running statistics.
//!
//! `fixtures/make_models.py` wrote the numbers, in f64.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

mod common;

use common::{MicroBatch, Named, Pipeline};
use outboard_exec::{Executor, RandomKey, Reference, ReferenceTensor};
use outboard_graph::{Graph, Stage, Tensor, slice};

const FIXTURE: &str = include_str!("fixtures/models.txt");

#[derive(Default)]
struct Model {
    text: String,
    weights: Named<Vec<f64>>,
    input: Vec<f64>,
    targets: Vec<i64>,
    loss: f64,
    gradients: Named<Vec<f64>>,
    state: Named<Vec<f64>>,
}

fn models() -> Vec<Model> {
    let mut models: Vec<Model> = Vec::new();
    for line in FIXTURE.lines() {
        if line.starts_with("graph") {
            models.push(Model::default());
        }
        let model = models.last_mut().unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let numbers = || {
            words[2..]
                .iter()
                .map(|number| number.parse().unwrap())
                .collect()
        };
        match words[0] {
            "weight" => drop(model.weights.insert(words[1].to_owned(), numbers())),
            "data" => model.input = numbers(),
            "target" => model.targets = words[1..].iter().map(|n| n.parse().unwrap()).collect(),
            "loss" => model.loss = words[2].parse().unwrap(),
            "gradient" => drop(model.gradients.insert(words[1].to_owned(), numbers())),
            "state" => drop(model.state.insert(words[1].to_owned(), numbers())),
            _ => {
                model.text += line;
                model.text.push('\n');
            }
        }
    }
    models
}

fn close(ours: &ReferenceTensor, torch: &[f64], what: &str) {
    let ours = ours.to_f64_vec();
    let close = ours
        .iter()
        .zip(torch)
        .all(|(a, b)| (a - b).abs() <= 1e-12 * b.abs().max(1.0));
    assert!(
        ours.len() == torch.len() && close,
        "{what} is {ours:?}, PyTorch gives {torch:?}"
    );
}

impl Model {
    /// Samples `start..start + size` of the batch.
    fn micro_batch(&self, graph: &Graph, start: usize, size: usize) -> MicroBatch<ReferenceTensor> {
        let ty = graph.ty(graph.inputs[0].value).unwrap();
        let dims = ty.sizes(size).unwrap();
        let sample: usize = dims[1..].iter().product();
        let input = self.input[start * sample..(start + size) * sample].to_vec();
        let target = Tensor::from_i64([size], &self.targets[start..start + size]).unwrap();
        let data = Named::from([
            (
                "input".to_owned(),
                ReferenceTensor::from_f64(&dims, input).unwrap(),
            ),
            ("target".to_owned(), Reference.upload(&target).unwrap()),
        ]);
        MicroBatch { size, data }
    }

    fn check(&self, stages: &[Stage], graph: &Graph, sizes: &[usize], statistics: bool) {
        let weights = graph.inputs.iter().filter(|input| input.kind.is_weight());
        let weights = weights
            .map(|input| {
                let dims = graph.ty(input.value).unwrap().concrete().unwrap();
                let elements = self.weights[&input.name].clone();
                (
                    input.name.clone(),
                    ReferenceTensor::from_f64(&dims, elements).unwrap(),
                )
            })
            .collect();
        let mut start = 0;
        let batch: Vec<_> = sizes
            .iter()
            .map(|&size| {
                start += size;
                self.micro_batch(graph, start - size, size)
            })
            .collect();
        assert_eq!(start, self.targets.len());
        let scalar = |_: &Reference, x| ReferenceTensor::from_f64(&[], vec![x]).unwrap();
        let pipeline = Pipeline::new(&Reference, stages, scalar, |_, x| x.to_f64_vec()[0]);
        let outcome = pipeline.train(&weights, &batch, RandomKey::default());
        let loss = ReferenceTensor::from_f64(&[], vec![outcome.loss]).unwrap();
        close(&loss, &[self.loss], "the loss");
        assert_eq!(outcome.gradients.len(), self.gradients.len());
        for (name, gradient) in &self.gradients {
            close(
                &outcome.gradients[name],
                gradient,
                &format!("the gradient of {name}"),
            );
        }
        if statistics {
            for (name, state) in &self.state {
                close(&outcome.buffers[name], state, name);
            }
        }
    }
}

#[test]
fn a_batch_at_once_is_pytorchs() {
    let models = models();
    assert_eq!(models.len(), 2);
    for model in models {
        let graph: Graph = model.text.parse().unwrap();
        let graph = graph.canonicalize().unwrap();
        let cut = graph.nodes.len() / 2;
        model.check(
            &slice(&graph, &[]).unwrap(),
            &graph,
            &[model.targets.len()],
            true,
        );
        model.check(
            &slice(&graph, &[cut]).unwrap(),
            &graph,
            &[model.targets.len()],
            true,
        );
    }
}

/// Without BatchNorm, micro-batches of any sizes give PyTorch's whole batch, though one has only an ignored target.
#[test]
fn micro_batches_are_pytorchs_batch() {
    let models = models();
    let attention = models.iter().find(|model| model.state.is_empty()).unwrap();
    let graph: Graph = attention.text.parse().unwrap();
    let graph = graph.canonicalize().unwrap();
    let stages = slice(&graph, &[graph.nodes.len() / 2]).unwrap();
    for sizes in [&[2, 2][..], &[3, 1], &[1, 1, 1, 1]] {
        attention.check(&stages, &graph, sizes, false);
    }
}
