//! A model in one file: its weights under PyTorch's names, its graph in the metadata.

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use crate::tensor_file::{FileError, TensorFile};
use crate::{Graph, Tensor, TensorType, TextError};

/// Metadata key of the graph's text form.
pub const GRAPH_KEY: &str = "outboard.graph";

/// Metadata key of the version of the bundle format.
pub const VERSION_KEY: &str = "outboard.version";

/// The version that is written, and the only one that is read.
pub const VERSION: &str = "1";

/// Tensors by name.
pub type Weights = BTreeMap<String, Tensor>;

/// A graph with the tensors of its parameters, frozen weights and buffers.
#[derive(Clone, Debug, PartialEq)]
pub struct Bundle {
    /// The whole forward graph.
    pub graph: Graph,
    /// A tensor for each weight input of the graph, no more and no less.
    pub weights: Weights,
}

/// Why a file is not a bundle, or weights are not a model's.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BundleError {
    /// It cannot be read or written, or is not a `.safetensors` file.
    #[error(transparent)]
    File(#[from] FileError),
    /// It holds weights but no graph, as a plain PyTorch checkpoint does.
    #[error("no {GRAPH_KEY:?} in the metadata: a plain weights file, not a bundle")]
    NoGraph,
    /// It was written by another version.
    #[error("the bundle has format version {found:?}, this program reads {VERSION:?}")]
    Version {
        /// What the metadata says.
        found: String,
    },
    /// Its graph does not parse or is not valid.
    #[error("the bundle's graph: {0}")]
    Graph(#[from] TextError),
    /// Its weights are not those of its graph.
    #[error(transparent)]
    Weights(#[from] WeightsError),
}

/// Tensors that are not the weights of a graph. Lists name at most a handful.
#[derive(Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// Weights of the graph that are not there.
    #[error("weights of the model are missing: {0}")]
    Missing(String),
    /// Tensors that the graph has no weight for.
    #[error("tensors that the model does not have: {0}")]
    Extra(String),
    /// A tensor of another type or shape.
    #[error("weight {name:?} is {found}, the model's is {wanted}")]
    Type {
        /// PyTorch's name.
        name: String,
        /// The tensor's type.
        found: TensorType,
        /// The graph's type.
        wanted: TensorType,
    },
}

impl Bundle {
    /// Puts a graph and its weights together.
    ///
    /// # Errors
    /// When the weights are not those of the graph, or the graph is not valid.
    pub fn new(graph: Graph, weights: Weights) -> Result<Self, BundleError> {
        graph.verify().map_err(TextError::from)?;
        check_weights(&graph, &weights)?;
        Ok(Bundle { graph, weights })
    }

    /// Reads a bundle.
    ///
    /// # Errors
    /// See [`BundleError`].
    pub fn read(path: &Path) -> Result<Self, BundleError> {
        Bundle::from_file(TensorFile::read(path)?)
    }

    /// Reads a bundle's bytes; the weights share them.
    ///
    /// # Errors
    /// See [`BundleError`].
    pub fn from_bytes(bytes: Bytes) -> Result<Self, BundleError> {
        Bundle::from_file(TensorFile::from_bytes(bytes)?)
    }

    /// Reads a bundle out of a file's content.
    ///
    /// # Errors
    /// See [`BundleError`].
    pub fn from_file(file: TensorFile) -> Result<Self, BundleError> {
        let text = file.metadata.get(GRAPH_KEY).ok_or(BundleError::NoGraph)?;
        let version = file.metadata.get(VERSION_KEY).map_or("", String::as_str);
        if version != VERSION {
            let found = version.chars().take(40).collect();
            return Err(BundleError::Version { found });
        }
        let graph: Graph = text.parse()?;
        check_weights(&graph, &file.tensors)?;
        Ok(Bundle {
            graph,
            weights: file.tensors,
        })
    }

    /// The file's content.
    pub fn to_file(&self) -> TensorFile {
        TensorFile {
            metadata: BTreeMap::from([
                (GRAPH_KEY.to_owned(), self.graph.to_string()),
                (VERSION_KEY.to_owned(), VERSION.to_owned()),
                // What PyTorch's own tools write, and some insist on.
                ("format".to_owned(), "pt".to_owned()),
            ]),
            tensors: self.weights.clone(),
        }
    }

    /// Writes the bundle durably, or leaves what was there.
    ///
    /// # Errors
    /// Those of [`TensorFile::write`].
    pub fn write(&self, path: &Path) -> Result<(), BundleError> {
        Ok(self.to_file().write(path)?)
    }

    /// The hash of the weights: see [`weights_sha256`].
    pub fn weights_sha256(&self) -> [u8; 32] {
        weights_sha256(&self.weights)
    }
}

/// Checks that tensors are the weights of a graph: its parameters, frozen weights and buffers, all and only those, of
/// the right types.
///
/// # Errors
/// The first difference, by kind: missing, extra, type.
pub fn check_weights(graph: &Graph, weights: &Weights) -> Result<(), WeightsError> {
    let wanted: BTreeMap<&str, Option<&TensorType>> = (graph.inputs.iter())
        .filter(|input| input.kind.is_weight())
        .map(|input| (input.name.as_str(), graph.ty(input.value)))
        .collect();
    let missing = wanted.keys().filter(|name| !weights.contains_key(**name));
    if let Some(names) = some_names(missing.copied()) {
        return Err(WeightsError::Missing(names));
    }
    let extra = weights
        .keys()
        .map(String::as_str)
        .filter(|name| !wanted.contains_key(name));
    if let Some(names) = some_names(extra) {
        return Err(WeightsError::Extra(names));
    }
    for (name, ty) in wanted {
        if let (Some(tensor), Some(ty)) = (weights.get(name), ty)
            && tensor.ty() != *ty
        {
            return Err(WeightsError::Type {
                name: name.to_owned(),
                found: tensor.ty(),
                wanted: ty.clone(),
            });
        }
    }
    Ok(())
}

/// The first few names and how many more there are; `None` when there is none.
fn some_names<'a>(names: impl Iterator<Item = &'a str>) -> Option<String> {
    const SHOWN: usize = 5;
    let mut names = names.peekable();
    names.peek()?;
    let shown: Vec<&str> = names.by_ref().take(SHOWN).collect();
    let mut text = shown.join(", ");
    match names.count() {
        0 => {}
        more => text.push_str(&format!(" and {more} more")),
    }
    Some(text)
}

/// SHA-256 over all weights in name order: for each its name, a zero byte, the name of its element type, a zero byte,
/// its dimensions as little-endian 64-bit numbers, and its little-endian data.
///
/// Two models of the same bits have the same hash, wherever and in how many pieces they were trained.
pub fn weights_sha256(weights: &Weights) -> [u8; 32] {
    let mut hash = Sha256::new();
    for (name, tensor) in weights {
        hash.update(name.as_bytes());
        hash.update([0]);
        hash.update(tensor.dtype().name().as_bytes());
        hash.update([0]);
        for &dim in tensor.dims() {
            hash.update((dim as u64).to_le_bytes());
        }
        hash.update(tensor.data());
    }
    hash.finalize().into()
}

/// A hash as people and `--json` write it: lower-case hexadecimal.
pub fn hex(hash: &[u8]) -> String {
    use std::fmt::Write as _;
    hash.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        _ = write!(text, "{byte:02x}");
        text
    })
}
