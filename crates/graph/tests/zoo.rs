//! The zoo's models are torchvision's: same names, same shapes, same counts.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

use std::collections::BTreeSet;

use outboard_graph::{
    Dim, Graph, InputKind, Loss, OutputKind, TensorType, init,
    zoo::{self, ZooOptions},
};

fn options(image_size: usize, channels: usize, classes: usize) -> ZooOptions {
    ZooOptions {
        image_size,
        channels,
        classes,
        ..ZooOptions::default()
    }
}

fn build(name: &str) -> Graph {
    zoo::build(name, &ZooOptions::default()).unwrap()
}

fn parameters(graph: &Graph) -> usize {
    let parameters = graph
        .inputs
        .iter()
        .filter(|i| i.kind == InputKind::Parameter);
    parameters
        .map(|input| graph.ty(input.value).unwrap().elements(1).unwrap() as usize)
        .sum()
}

fn names(graph: &Graph) -> BTreeSet<String> {
    let weights = graph.inputs.iter().filter(|input| input.kind.is_weight());
    weights.map(|input| input.name.clone()).collect()
}

fn shape(graph: &Graph, name: &str) -> String {
    let input = graph.inputs.iter().find(|input| input.name == name);
    graph
        .ty(input.unwrap_or_else(|| panic!("no {name}")).value)
        .unwrap()
        .to_string()
}

/// Counts as torchvision's documentation gives them for its ImageNet weights; ViT-Ti's as timm does.
#[test]
fn parameter_counts_are_the_published_ones() {
    assert_eq!(parameters(&build("resnet18")), 11_689_512);
    assert_eq!(parameters(&build("resnet34")), 21_797_672);
    assert_eq!(parameters(&build("resnet50")), 25_557_032);
    assert_eq!(parameters(&build("vgg11_bn")), 132_868_840);
    assert_eq!(parameters(&build("vit_tiny")), 5_717_416);
    let mlp = zoo::build("mlp", &options(28, 1, 10)).unwrap();
    assert_eq!(
        parameters(&mlp),
        784 * 256 + 256 + 256 * 128 + 128 + 128 * 10 + 10
    );
}

/// `state_dict()` of torchvision's ResNet, as its constructor makes it.
fn resnet_names(blocks: [usize; 4], convolutions: usize) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let norm = |names: &mut BTreeSet<String>, name: &str| {
        let tensors = [
            "weight",
            "bias",
            "running_mean",
            "running_var",
            "num_batches_tracked",
        ];
        names.extend(tensors.map(|tensor| format!("{name}.{tensor}")));
    };
    names.insert("conv1.weight".into());
    norm(&mut names, "bn1");
    for (layer, blocks) in blocks.into_iter().enumerate() {
        for block in 0..blocks {
            let prefix = format!("layer{}.{block}", layer + 1);
            for conv in 1..=convolutions {
                names.insert(format!("{prefix}.conv{conv}.weight"));
                norm(&mut names, &format!("{prefix}.bn{conv}"));
            }
            // The first block changes the shape; layer1's does so only when bottlenecks widen it.
            if block == 0 && (layer > 0 || convolutions == 3) {
                names.insert(format!("{prefix}.downsample.0.weight"));
                norm(&mut names, &format!("{prefix}.downsample.1"));
            }
        }
    }
    names.extend(["fc.weight".into(), "fc.bias".into()]);
    names
}

#[test]
fn resnets_have_torchvisions_names_and_shapes() {
    assert_eq!(names(&build("resnet18")), resnet_names([2, 2, 2, 2], 2));
    assert_eq!(names(&build("resnet34")), resnet_names([3, 4, 6, 3], 2));
    let resnet50 = build("resnet50");
    assert_eq!(names(&resnet50), resnet_names([3, 4, 6, 3], 3));

    assert_eq!(shape(&resnet50, "conv1.weight"), "f32[64,3,7,7]");
    assert_eq!(
        shape(&resnet50, "layer1.0.downsample.0.weight"),
        "f32[256,64,1,1]"
    );
    assert_eq!(
        shape(&resnet50, "layer4.2.conv2.weight"),
        "f32[512,512,3,3]"
    );
    assert_eq!(
        shape(&resnet50, "layer4.2.conv3.weight"),
        "f32[2048,512,1,1]"
    );
    assert_eq!(shape(&resnet50, "bn1.num_batches_tracked"), "i64[]");
    assert_eq!(shape(&resnet50, "fc.weight"), "f32[1000,2048]");
}

#[test]
fn vgg_has_torchvisions_names_and_shapes() {
    let vgg = build("vgg11_bn");
    let mut expected = BTreeSet::new();
    for conv in [0, 4, 8, 11, 15, 18, 22, 25] {
        for tensor in ["weight", "bias"] {
            expected.insert(format!("features.{conv}.{tensor}"));
        }
        for tensor in [
            "weight",
            "bias",
            "running_mean",
            "running_var",
            "num_batches_tracked",
        ] {
            expected.insert(format!("features.{}.{tensor}", conv + 1));
        }
    }
    for linear in [0, 3, 6] {
        for tensor in ["weight", "bias"] {
            expected.insert(format!("classifier.{linear}.{tensor}"));
        }
    }
    assert_eq!(names(&vgg), expected);
    assert_eq!(shape(&vgg, "features.25.weight"), "f32[512,512,3,3]");
    assert_eq!(shape(&vgg, "classifier.0.weight"), "f32[4096,25088]");
}

#[test]
fn every_buffer_is_updated_once() {
    for name in zoo::NAMES {
        let graph = build(name);
        let buffers = graph
            .inputs
            .iter()
            .filter(|input| input.kind == InputKind::Buffer);
        let buffers: Vec<_> = buffers.map(|input| input.name.clone()).collect();
        let updates = graph
            .outputs
            .iter()
            .filter(|o| o.kind == OutputKind::BufferUpdate);
        let updates: BTreeSet<_> = updates.map(|output| output.name.clone()).collect();
        assert_eq!(buffers.len(), updates.len(), "{name}");
        assert!(
            buffers.iter().all(|buffer| updates.contains(buffer)),
            "{name}"
        );
    }
}

#[test]
fn vit_has_torchvisions_names_and_shapes() {
    let mut expected = BTreeSet::from(
        [
            "class_token",
            "conv_proj.weight",
            "conv_proj.bias",
            "encoder.pos_embedding",
            "encoder.ln.weight",
            "encoder.ln.bias",
            "heads.head.weight",
            "heads.head.bias",
        ]
        .map(String::from),
    );
    for layer in 0..12 {
        let tensors = [
            "ln_1.weight",
            "ln_1.bias",
            "self_attention.in_proj_weight",
            "self_attention.in_proj_bias",
            "self_attention.out_proj.weight",
            "self_attention.out_proj.bias",
            "ln_2.weight",
            "ln_2.bias",
            "mlp.0.weight",
            "mlp.0.bias",
            "mlp.3.weight",
            "mlp.3.bias",
        ];
        expected.extend(tensors.map(|t| format!("encoder.layers.encoder_layer_{layer}.{t}")));
    }
    let graph = build("vit_tiny");
    assert_eq!(names(&graph), expected);
    assert_eq!(shape(&graph, "encoder.pos_embedding"), "f32[1,197,192]");
    assert_eq!(shape(&graph, "conv_proj.weight"), "f32[192,3,16,16]");
    assert_eq!(
        shape(
            &graph,
            "encoder.layers.encoder_layer_3.self_attention.in_proj_weight"
        ),
        "f32[576,192]"
    );
    // Small images get small patches.
    let small = zoo::build("vit_tiny", &options(32, 1, 10)).unwrap();
    assert_eq!(shape(&small, "encoder.pos_embedding"), "f32[1,65,192]");
}

#[test]
fn models_take_other_images_and_give_logits_for_the_batch() {
    for name in zoo::NAMES {
        for size in [28, 32, 64] {
            // Five poolings leave nothing of 28 pixels, in PyTorch too.
            if (*name, size) == ("vgg11_bn", 28) {
                assert!(zoo::build(name, &options(size, 1, 10)).is_err());
                continue;
            }
            let graph = zoo::build(name, &options(size, 1, 10)).unwrap();
            let result = graph
                .outputs
                .iter()
                .find(|o| o.kind == OutputKind::Result)
                .unwrap();
            let expected: TensorType = "f32[B,10]".parse().unwrap();
            assert_eq!(graph.ty(result.value), Some(&expected), "{name} at {size}");
            let losses = [OutputKind::LossSum, OutputKind::LossWeight];
            for kind in losses {
                let loss = graph
                    .outputs
                    .iter()
                    .find(|output| output.kind == kind)
                    .unwrap();
                assert_eq!(graph.ty(loss.value).unwrap().to_string(), "f32[]");
            }
        }
    }
}

#[test]
fn dropout_is_there_when_asked_for_and_each_has_its_own_key() {
    let keys = |dropout: Option<f64>| -> Vec<u64> {
        let options = ZooOptions {
            dropout,
            ..options(32, 3, 10)
        };
        let graph = zoo::build("vit_tiny", &options).unwrap();
        let keys = graph.nodes.iter().filter_map(|node| match node.op {
            outboard_graph::Op::Dropout { key, .. } => Some(key),
            _ => None,
        });
        keys.collect()
    };
    assert_eq!(keys(Some(0.0)), Vec::<u64>::new());
    let keys = keys(Some(0.1));
    assert_eq!(keys.len(), 1 + 3 * 12);
    assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), keys.len());
}

#[test]
fn losses_accept_their_settings_and_refuse_nonsense() {
    let with = |loss: Loss| {
        let options = ZooOptions {
            loss,
            ..options(28, 1, 3)
        };
        zoo::build("mlp", &options)
    };
    let cross_entropy = |class_weights, label_smoothing| Loss::CrossEntropy {
        ignore_index: -1,
        class_weights,
        label_smoothing,
    };
    for loss in [
        Loss::MeanSquaredError,
        cross_entropy(None, 0.1),
        cross_entropy(Some(vec![1.0, 1.0, 1.0]), 0.0),
        cross_entropy(Some(vec![0.5, 0.5, 2.0]), 0.1),
    ] {
        let graph = with(loss.clone()).unwrap();
        let target = graph
            .inputs
            .iter()
            .find(|input| input.name == "target")
            .unwrap();
        assert_eq!(
            graph.ty(target.value).unwrap().dims[0],
            Dim::Batch(1),
            "{loss:?}"
        );
    }
    let error = |loss| with(loss).unwrap_err().to_string();
    assert_eq!(
        error(cross_entropy(Some(vec![1.0]), 0.0)),
        "class weights: 1 weights for 3 classes"
    );
    assert_eq!(
        error(cross_entropy(Some(vec![1.0, f32::NAN, 1.0]), 0.0)),
        "class weights: NaN is not a weight; give finite numbers from 0 on"
    );
    assert_eq!(
        error(cross_entropy(None, 1.5)),
        "label smoothing is 1.5; it must be between 0 and 1"
    );
}

#[test]
fn options_out_of_range_say_what_would_fit() {
    let error =
        |name: &str, options: &ZooOptions| zoo::build(name, options).unwrap_err().to_string();
    assert_eq!(
        error("resnet", &options(32, 3, 10)),
        "no model is named \"resnet\"; there are mlp, resnet18, resnet34, resnet50, vgg11_bn, vit_tiny"
    );
    assert_eq!(
        error("mlp", &options(0, 3, 10)),
        "mlp: image size is 0; it must be at least 1"
    );
    let dropout = ZooOptions {
        dropout: Some(f64::NAN),
        ..options(32, 3, 10)
    };
    assert_eq!(
        error("vit_tiny", &dropout),
        "vit_tiny: dropout is NaN; a probability is between 0 and 1"
    );
    let patch = ZooOptions {
        patch_size: Some(5),
        ..options(32, 3, 10)
    };
    assert_eq!(
        error("vit_tiny", &patch),
        "vit_tiny: patch size is 5; it must divide the image's 32 pixels"
    );
    // Sizes that no memory holds are an error of shapes, not a panic.
    for name in zoo::NAMES {
        assert!(
            zoo::build(name, &options(usize::MAX, usize::MAX, usize::MAX)).is_err(),
            "{name}"
        );
    }
}

#[test]
fn initial_weights_cover_the_state_dict() {
    for name in zoo::NAMES {
        let graph = zoo::build(name, &options(32, 1, 10)).unwrap();
        let weights = init::weights(&graph, 7).unwrap();
        assert_eq!(
            weights.keys().cloned().collect::<BTreeSet<_>>(),
            names(&graph),
            "{name}"
        );
        for input in graph.inputs.iter().filter(|input| input.kind.is_weight()) {
            assert_eq!(
                weights[&input.name].ty(),
                *graph.ty(input.value).unwrap(),
                "{}",
                input.name
            );
        }
    }
}
