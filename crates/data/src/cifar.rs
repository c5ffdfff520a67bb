//! CIFAR-10, binary version (<https://www.cs.toronto.edu/~kriz/cifar.html>): records of a label and 32x32 pixels in
//! three planes.

use std::fs;
use std::path::{Path, PathBuf};

use crate::dataset::out_of_range;
use crate::{DataError, Dataset, DatasetInfo, Image, Sample, Split};

const SIDE: usize = 32;
const CHANNELS: usize = 3;
const RECORD: usize = 1 + CHANNELS * SIDE * SIDE;
/// Most bytes of one file: a hundred times what a real one has.
const MAX_BYTES: u64 = 100 * 10_000 * RECORD as u64;

const CLASSES: [&str; 10] = [
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
];

/// CIFAR-10, held in memory.
#[derive(Clone, Debug)]
pub struct Cifar10 {
    info: DatasetInfo,
    path: PathBuf,
    records: Vec<u8>,
}

impl Cifar10 {
    /// The `.bin` files of `split` in a folder, or in `cifar-10-batches-bin` within it, as the archive unpacks.
    ///
    /// # Errors
    /// [`DataError`], naming the file.
    pub fn open(folder: &Path, split: Split) -> Result<Self, DataError> {
        let unpacked = folder.join("cifar-10-batches-bin");
        let folder = if unpacked.is_dir() { &unpacked } else { folder };
        let names: &[&str] = match split {
            Split::Train => &[
                "data_batch_1.bin",
                "data_batch_2.bin",
                "data_batch_3.bin",
                "data_batch_4.bin",
                "data_batch_5.bin",
            ],
            Split::Test => &["test_batch.bin"],
        };
        let mut records = Vec::new();
        for name in names {
            let path = folder.join(name);
            let length = match fs::metadata(&path) {
                Ok(metadata) => metadata.len(),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    let reason = format!(
                        "has no {name}; unpack cifar-10-binary.tar.gz (the binary version) there"
                    );
                    return Err(DataError::layout(folder, reason));
                }
                Err(error) => return Err(DataError::io(path, error)),
            };
            if length > MAX_BYTES {
                return Err(DataError::format(
                    path,
                    format!("is {length} bytes long, which is absurd"),
                ));
            }
            let bytes = fs::read(&path).map_err(|error| DataError::io(&path, error))?;
            check(&path, &bytes)?;
            records.extend_from_slice(&bytes);
        }
        Ok(Self {
            info: info(),
            path: folder.to_owned(),
            records,
        })
    }
}

fn info() -> DatasetInfo {
    DatasetInfo {
        name: "cifar10".to_owned(),
        classes: CLASSES.map(str::to_owned).to_vec(),
        channels: CHANNELS,
        size: Some((SIDE, SIDE)),
        mean: vec![0.4914, 0.4822, 0.4465],
        std: vec![0.2470, 0.2435, 0.2616],
        mirrors: true,
    }
}

/// Checks one file's records.
fn check(path: &Path, bytes: &[u8]) -> Result<(), DataError> {
    if bytes.is_empty() || !bytes.len().is_multiple_of(RECORD) {
        let reason = format!(
            "is {} bytes long, not a multiple of {RECORD}; was the download interrupted, or is it another version?",
            bytes.len()
        );
        return Err(DataError::format(path, reason));
    }
    let labels = bytes.iter().step_by(RECORD);
    for (record, &label) in labels.enumerate() {
        if usize::from(label) >= CLASSES.len() {
            let reason = format!(
                "record {record} has label {label}, not 0 to 9; is it CIFAR-10's binary version?"
            );
            return Err(DataError::format(path, reason));
        }
    }
    Ok(())
}

impl Dataset for Cifar10 {
    fn info(&self) -> &DatasetInfo {
        &self.info
    }

    fn len(&self) -> usize {
        self.records.len() / RECORD
    }

    fn get(&self, index: usize) -> Result<Sample, DataError> {
        let Some((&label, pixels)) = self
            .records
            .chunks_exact(RECORD)
            .nth(index)
            .and_then(<[u8]>::split_first)
        else {
            return Err(out_of_range(&self.info, index, self.len()));
        };
        let image = Image::new(CHANNELS, SIDE, SIDE, pixels.to_vec())
            .ok_or_else(|| DataError::format(&self.path, "holds a short record"))?;
        Ok(Sample {
            image,
            label: label.into(),
        })
    }
}
