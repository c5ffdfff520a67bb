//! What is to be computed: a model, its data, and how the two fit.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use outboard_data::{Augment, DataSpec, Dataset, DatasetInfo, Split, Transform};
use outboard_graph::{
    Bundle, DType, Dim, Graph, InputKind, OutputKind, Tensor, TensorType, init, slice, zoo,
};

use crate::arguments::{self, WorkArguments};
use crate::exit::{Usage, require};

/// Images smaller than this leave convolutional networks nothing to pool; they are enlarged unless a size is given.
const LEAST_SIDE: usize = 32;

/// A model and the data it learns from.
pub(crate) struct Work {
    /// The whole model, canonical, with a symbolic batch and its loss.
    pub(crate) graph: Graph,
    /// Weights that came with the model; `None` for a model of the zoo, which begins from a seed.
    weights: Option<BTreeMap<String, Tensor>>,
    /// Training data.
    pub(crate) train: Arc<dyn Dataset>,
    /// Where it comes from.
    pub(crate) spec: DataSpec,
    /// What is done to test images, and to training images before augmentation.
    pub(crate) transform: Transform,
    /// Name of the model's image input.
    pub(crate) images: String,
    /// Name of the model's target input.
    pub(crate) targets: String,
    /// Name of the class scores.
    pub(crate) scores: String,
    side: usize,
}

impl Work {
    /// Opens model and data.
    pub(crate) fn open(arguments: &WorkArguments) -> Result<Work> {
        let spec: DataSpec = arguments.data.parse()?;
        let train = spec.open(Split::Train)?;
        let info = train.info().clone();
        let asked = arguments.image_size.map(|side| side as usize);
        let (graph, weights) = if zoo::NAMES.contains(&arguments.model.as_str()) {
            let side = asked.unwrap_or_else(|| natural_side(&info));
            (from_zoo(&arguments.model, &info, side)?, None)
        } else {
            let path = Path::new(&arguments.model);
            require!(
                path.exists(),
                "there is no model named {}; give {} or the path of a bundle",
                arguments.model,
                zoo::NAMES.join(", ")
            );
            let bundle = Bundle::read(path)?;
            (bundle.graph, Some(bundle.weights))
        };
        let ports = Ports::of(&graph)?;
        let [channels, height, width] = ports.image;
        require!(
            height == width && asked.is_none_or(|side| side == height),
            "{} takes images of {height} x {width} pixels; leave --image-size out",
            arguments.model
        );
        require!(
            ports.classes >= info.classes.len(),
            "{} tells {} classes apart, the data has {}",
            arguments.model,
            ports.classes,
            info.classes.len()
        );
        let transform = Transform::new(&info, channels, height, width, None)?;
        Ok(Work {
            graph,
            weights,
            train,
            spec,
            transform,
            images: ports.images,
            targets: ports.targets,
            scores: ports.scores,
            side: height,
        })
    }

    /// The weights to begin with.
    pub(crate) fn initial_weights(&self, seed: u64) -> Result<BTreeMap<String, Tensor>> {
        match &self.weights {
            Some(weights) => Ok(weights.clone()),
            None => Ok(init::weights(&self.graph, seed)?),
        }
    }

    /// What is done to training images.
    pub(crate) fn training_transform(&self, augment: arguments::Augment) -> Result<Transform> {
        let info = self.train.info();
        let augment = match augment {
            arguments::Augment::None => None,
            arguments::Augment::CropFlip => Some(Augment::for_dataset(info, self.side)),
        };
        let [channels, height, width] = self.transform.dims();
        Ok(Transform::new(info, channels, height, width, augment)?)
    }
}

/// A model of the zoo for colour images of ImageNet's classes.
pub(crate) fn zoo_model(name: &str, side: usize) -> Result<Graph> {
    let options = zoo::ZooOptions {
        image_size: side,
        ..zoo::ZooOptions::default()
    };
    zoo::build(name, &options).map_err(|error| Usage(error.to_string()).into())
}

/// A model's forward pass in evaluation mode, without what only the loss needs.
pub(crate) fn for_inference(graph: &Graph) -> Result<Graph> {
    let stages = slice(&graph.evaluation()?, &[])?;
    let stage = stages
        .into_iter()
        .next()
        .context("a model without a stage")?;
    Ok(stage.graph)
}

/// The side that images get where none is asked for.
fn natural_side(info: &DatasetInfo) -> usize {
    info.size
        .map_or(224, |(height, width)| height.max(width))
        .max(LEAST_SIDE)
}

fn from_zoo(name: &str, info: &DatasetInfo, side: usize) -> Result<Graph> {
    let options = zoo::ZooOptions {
        image_size: side,
        channels: info.channels,
        classes: info.classes.len(),
        ..zoo::ZooOptions::default()
    };
    zoo::build(name, &options).map_err(|error| Usage(error.to_string()).into())
}

/// The inputs and outputs of an image classifier.
struct Ports {
    images: String,
    image: [usize; 3],
    targets: String,
    scores: String,
    classes: usize,
}

impl Ports {
    fn of(graph: &Graph) -> Result<Ports> {
        let data = || {
            let inputs = graph
                .inputs
                .iter()
                .filter(|input| input.kind == InputKind::Data);
            inputs.filter_map(|input| Some((input.name.clone(), graph.ty(input.value)?)))
        };
        let images = data().find_map(|(name, ty)| Some((name, image_dims(ty)?)));
        let targets = data().find(|(_, ty)| ty.dtype == DType::I64 && ty.dims == [Dim::Batch(1)]);
        let scores = graph.outputs.iter().find_map(|output| {
            let ty = graph.ty(output.value)?;
            match (output.kind, ty.dtype, ty.dims.as_slice()) {
                (OutputKind::Result, DType::F32, [Dim::Batch(1), Dim::Fixed(classes)]) => {
                    Some((output.name.clone(), *classes))
                }
                _ => None,
            }
        });
        match (images, targets, scores) {
            (Some((images, image)), Some((targets, _)), Some((scores, classes))) => {
                Ok(Ports { images, image, targets, scores, classes })
            }
            _ => Err(Usage(format!(
                "{} is no image classifier: training takes images f32[B,C,H,W] and targets i64[B] and needs scores f32[B,classes]",
                graph.name
            ))
            .into()),
        }
    }
}

fn image_dims(ty: &TensorType) -> Option<[usize; 3]> {
    match (ty.dtype, ty.dims.as_slice()) {
        (
            DType::F32,
            [
                Dim::Batch(1),
                Dim::Fixed(channels),
                Dim::Fixed(height),
                Dim::Fixed(width),
            ],
        ) => Some([*channels, *height, *width]),
        _ => None,
    }
}
