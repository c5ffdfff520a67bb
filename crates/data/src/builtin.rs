//! The data set that ships with Outboard: 2,000 training and 500 test images of Fashion-MNIST, balanced over the classes.
//!
//! `builtin/make.py` made it; its licence stands beside it.

use std::path::{Path, PathBuf};

use crate::{DataError, DatasetInfo, Idx, IdxDataset, Split};

const TRAIN_IMAGES: &[u8] = include_bytes!("../builtin/train-images-idx3-ubyte.gz");
const TRAIN_LABELS: &[u8] = include_bytes!("../builtin/train-labels-idx1-ubyte.gz");
const TEST_IMAGES: &[u8] = include_bytes!("../builtin/t10k-images-idx3-ubyte.gz");
const TEST_LABELS: &[u8] = include_bytes!("../builtin/t10k-labels-idx1-ubyte.gz");

pub(crate) fn open(split: Split) -> Result<IdxDataset, DataError> {
    let (images, labels) = match split {
        Split::Train => (TRAIN_IMAGES, TRAIN_LABELS),
        Split::Test => (TEST_IMAGES, TEST_LABELS),
    };
    let path = Path::new("builtin");
    let info = DatasetInfo {
        name: "builtin".to_owned(),
        ..fashion_mnist()
    };
    IdxDataset::new(
        info,
        PathBuf::from(path),
        Idx::read(path, images)?,
        path,
        Idx::read(path, labels)?,
    )
}

/// Fashion-MNIST (Xiao, Rasul and Vollgraf, arXiv 1708.07747); mean and deviation of its training images.
pub(crate) fn fashion_mnist() -> DatasetInfo {
    let classes = [
        "t-shirt",
        "trouser",
        "pullover",
        "dress",
        "coat",
        "sandal",
        "shirt",
        "sneaker",
        "bag",
        "ankle boot",
    ];
    DatasetInfo {
        name: "fashion-mnist".to_owned(),
        classes: classes.map(str::to_owned).to_vec(),
        channels: 1,
        size: Some((28, 28)),
        mean: vec![0.2860],
        std: vec![0.3530],
        mirrors: true,
    }
}

/// MNIST (LeCun and others, 1998); mean and deviation of its training images.
pub(crate) fn mnist() -> DatasetInfo {
    DatasetInfo {
        name: "mnist".to_owned(),
        classes: (0..10).map(|digit| digit.to_string()).collect(),
        channels: 1,
        size: Some((28, 28)),
        mean: vec![0.1307],
        std: vec![0.3081],
        mirrors: false,
    }
}
