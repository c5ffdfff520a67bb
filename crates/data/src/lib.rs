//! Datasets and loaders.
