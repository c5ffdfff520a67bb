use super::*;
use crate::zoo::{self, ZooOptions};

fn small(name: &str) -> Graph {
    let options = ZooOptions {
        image_size: 32,
        channels: 3,
        classes: 100,
        ..ZooOptions::default()
    };
    zoo::build(name, &options).unwrap()
}

struct Moments {
    count: f64,
    mean: f64,
    std: f64,
    largest: f64,
}

fn moments(tensor: &Tensor) -> Moments {
    let elements = tensor.to_f32_vec().unwrap();
    let count = elements.len() as f64;
    let mean = elements.iter().map(|x| f64::from(*x)).sum::<f64>() / count;
    let squares = elements.iter().map(|x| (f64::from(*x) - mean).powi(2));
    Moments {
        count,
        mean,
        std: (squares.sum::<f64>() / count).sqrt(),
        largest: elements
            .iter()
            .map(|x| f64::from(x.abs()))
            .fold(0.0, f64::max),
    }
}

/// Five standard errors: a correct generator fails one seed in two million, and the seed is fixed.
fn expect_spread(tensor: &Tensor, std: f64, excess_kurtosis: f64) -> Moments {
    let found = moments(tensor);
    let error_of_mean = std / found.count.sqrt();
    assert!(
        found.mean.abs() < 5.0 * error_of_mean,
        "mean {} of {std}",
        found.mean
    );
    // The variance of a sample's standard deviation is (kurtosis - 1) / 4n, relative.
    let error_of_std = std * ((excess_kurtosis + 2.0) / (4.0 * found.count)).sqrt();
    assert!(
        (found.std - std).abs() < 5.0 * error_of_std,
        "std {} is not {std}",
        found.std
    );
    found
}

fn expect_normal(tensor: &Tensor, std: f64) {
    let found = expect_spread(tensor, std, 0.0);
    // Of n normal numbers the largest lies near sqrt(2 ln n) standard deviations.
    let typical = std * (2.0 * found.count.ln()).sqrt();
    assert!(
        (0.7..1.5).contains(&(found.largest / typical)),
        "largest {}",
        found.largest
    );
}

fn expect_uniform(tensor: &Tensor, bound: f64) {
    let found = expect_spread(tensor, bound / 3.0_f64.sqrt(), -1.2);
    assert!(
        found.largest <= bound * (1.0 + 1e-6),
        "{} over {bound}",
        found.largest
    );
    assert!(
        found.largest > bound * (1.0 - 20.0 / found.count),
        "{} under {bound}",
        found.largest
    );
}

fn expect_constant(tensor: &Tensor, value: f32) {
    assert!(tensor.to_f32_vec().unwrap().iter().all(|x| *x == value));
}

#[test]
fn resnets_start_as_torchvisions() {
    let weights = weights(&small("resnet18"), 7).unwrap();
    expect_normal(&weights["conv1.weight"], (2.0 / (64.0 * 49.0_f64)).sqrt());
    expect_normal(
        &weights["layer2.0.conv1.weight"],
        (2.0 / (128.0 * 9.0_f64)).sqrt(),
    );
    expect_normal(
        &weights["layer2.0.downsample.0.weight"],
        (2.0 / 128.0_f64).sqrt(),
    );
    expect_uniform(&weights["fc.weight"], (1.0 / 512.0_f64).sqrt());
    expect_uniform(&weights["fc.bias"], (1.0 / 512.0_f64).sqrt());
    expect_constant(&weights["bn1.weight"], 1.0);
    expect_constant(&weights["bn1.bias"], 0.0);
    expect_constant(&weights["bn1.running_mean"], 0.0);
    expect_constant(&weights["bn1.running_var"], 1.0);
    assert_eq!(
        weights["bn1.num_batches_tracked"].to_i64_vec().unwrap(),
        [0]
    );
}

#[test]
fn vision_transformers_start_as_torchvisions() {
    let weights = weights(&small("vit_tiny"), 7).unwrap();
    expect_normal(&weights["conv_proj.weight"], (1.0 / 48.0_f64).sqrt());
    expect_constant(&weights["conv_proj.bias"], 0.0);
    expect_constant(&weights["class_token"], 0.0);
    expect_normal(&weights["encoder.pos_embedding"], 0.02);
    let layer = |name: &str| &weights[&format!("encoder.layers.encoder_layer_5.{name}")];
    let xavier = |a: f64, b: f64| (6.0 / (a + b)).sqrt();
    expect_uniform(layer("self_attention.in_proj_weight"), xavier(192.0, 576.0));
    expect_constant(layer("self_attention.in_proj_bias"), 0.0);
    expect_uniform(
        layer("self_attention.out_proj.weight"),
        (1.0 / 192.0_f64).sqrt(),
    );
    expect_constant(layer("self_attention.out_proj.bias"), 0.0);
    expect_uniform(layer("mlp.0.weight"), xavier(192.0, 768.0));
    expect_normal(layer("mlp.0.bias"), 1e-6);
    expect_uniform(layer("mlp.3.weight"), xavier(192.0, 768.0));
    expect_constant(layer("ln_1.weight"), 1.0);
    expect_constant(layer("ln_2.bias"), 0.0);
    expect_constant(&weights["heads.head.weight"], 0.0);
    expect_constant(&weights["heads.head.bias"], 0.0);
}

#[test]
fn other_models_start_as_torch_nn_does() {
    let weights = weights(&small("mlp"), 7).unwrap();
    expect_uniform(&weights["1.weight"], (1.0 / 3072.0_f64).sqrt());
    expect_uniform(&weights["1.bias"], (1.0 / 3072.0_f64).sqrt());
    expect_uniform(&weights["4.weight"], (1.0 / 256.0_f64).sqrt());
}

#[test]
fn a_tensor_depends_on_its_name_and_the_seed_alone() {
    let graph = small("mlp");
    let mut reordered = graph.clone();
    reordered.inputs.reverse();
    assert_eq!(weights(&graph, 7).unwrap(), weights(&reordered, 7).unwrap());

    let (seven, eight) = (weights(&graph, 7).unwrap(), weights(&graph, 8).unwrap());
    assert_ne!(seven["1.weight"], eight["1.weight"]);

    // Same shape and scheme, other name: other numbers.
    let resnet = weights(&small("resnet18"), 7).unwrap();
    assert_ne!(
        resnet["layer1.0.conv1.weight"],
        resnet["layer1.0.conv2.weight"]
    );
}

/// Stored runs stay repeatable: the stream of a name is part of what a seed means.
#[test]
fn streams_are_pinned() {
    let mut stream = draw::Stream::new(7, "1.weight");
    let drawn: Vec<f64> = (0..3)
        .map(|_| stream.draw(Init::Uniform { bound: 1.0 }))
        .collect();
    assert_eq!(format!("{drawn:.6?}"), "[-0.435179, -0.785281, 0.780502]");
}

#[test]
fn truncation_is_at_two() {
    let mut stream = draw::Stream::new(7, "wide");
    let mut seen: f64 = 0.0;
    for _ in 0..10_000 {
        seen = seen.max(stream.draw(Init::TruncatedNormal { std: 1.5 }).abs());
    }
    assert!((1.99..=2.0).contains(&seen), "{seen}");
}
