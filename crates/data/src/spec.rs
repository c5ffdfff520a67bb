//! `--data SPEC`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use crate::{
    Cifar10, DataError, Dataset, IdxDataset, ImageFolder, Noise, NoiseSize, Split, builtin,
};

/// Which data, and where it lies; prints and parses as `builtin`, `fashion-mnist:DIR`, `mnist:DIR`, `cifar10:DIR`,
/// `images:DIR` or `noise:CHANNELSxSIDE`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DataSpec {
    /// The subset of Fashion-MNIST that ships with Outboard.
    Builtin,
    /// Fashion-MNIST's four IDX files.
    FashionMnist(PathBuf),
    /// MNIST's four IDX files.
    Mnist(PathBuf),
    /// CIFAR-10's binary files.
    Cifar10(PathBuf),
    /// A folder of images for each class.
    Images(PathBuf),
    /// Made-up images of a size.
    Noise(NoiseSize),
}

impl DataSpec {
    /// Opens one part of the data.
    ///
    /// # Errors
    /// [`DataError`], naming the file and what to try.
    pub fn open(&self, split: Split) -> Result<Arc<dyn Dataset>, DataError> {
        Ok(match self {
            DataSpec::Builtin => Arc::new(builtin::open(split)?),
            DataSpec::FashionMnist(folder) => {
                Arc::new(IdxDataset::open(folder, split, builtin::fashion_mnist())?)
            }
            DataSpec::Mnist(folder) => Arc::new(IdxDataset::open(folder, split, builtin::mnist())?),
            DataSpec::Cifar10(folder) => Arc::new(Cifar10::open(folder, split)?),
            DataSpec::Images(folder) => Arc::new(ImageFolder::open(folder, split)?),
            DataSpec::Noise(size) => Arc::new(Noise::new(*size, split)),
        })
    }
}

impl FromStr for DataSpec {
    type Err = DataError;

    fn from_str(text: &str) -> Result<Self, DataError> {
        if text == "builtin" {
            return Ok(DataSpec::Builtin);
        }
        let unknown = || DataError::Spec(text.to_owned());
        let (kind, folder) = text.split_once(':').ok_or_else(unknown)?;
        if folder.is_empty() {
            return Err(unknown());
        }
        if kind == "noise" {
            return folder.parse().map(DataSpec::Noise).map_err(|()| unknown());
        }
        let folder = PathBuf::from(folder);
        match kind {
            "fashion-mnist" => Ok(DataSpec::FashionMnist(folder)),
            "mnist" => Ok(DataSpec::Mnist(folder)),
            "cifar10" => Ok(DataSpec::Cifar10(folder)),
            "images" => Ok(DataSpec::Images(folder)),
            _ => Err(unknown()),
        }
    }
}

impl fmt::Display for DataSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, folder) = match self {
            DataSpec::Builtin => return f.write_str("builtin"),
            DataSpec::FashionMnist(folder) => ("fashion-mnist", folder),
            DataSpec::Mnist(folder) => ("mnist", folder),
            DataSpec::Cifar10(folder) => ("cifar10", folder),
            DataSpec::Images(folder) => ("images", folder),
            DataSpec::Noise(size) => return write!(f, "noise:{size}"),
        };
        write!(f, "{kind}:{}", folder.display())
    }
}
