//! Datasets and loaders.
//!
//! This crate promises that batches depend on the data, the seed and the position alone: not on threads, nor on where
//! a run was interrupted. Memory is bounded in bytes. Whatever stands in a file, the worst that comes of it is an error
//! that names the file and says what to try. It never touches the network.

mod builtin;
mod cifar;
mod dataset;
mod error;
mod folder;
mod idx;
mod loader;
mod noise;
mod random;
mod spec;
mod transform;

pub use cifar::Cifar10;
pub use dataset::{Dataset, DatasetInfo, Image, Sample, Split};
pub use error::DataError;
pub use folder::ImageFolder;
pub use idx::{Idx, IdxDataset};
pub use loader::{Batch, Loader, LoaderOptions, OnCorrupt, Position, Skipped};
pub use noise::{Noise, NoiseSize};
pub use random::epoch_order;
pub use spec::DataSpec;
pub use transform::{Augment, Transform};
