//! The IDX format of the MNIST family (<http://yann.lecun.com/exdb/mnist/>), plain or gzipped.
//!
//! ```text
//! 00 00 | 08: unsigned bytes | number of dimensions | each dimension as u32, big-endian | the bytes, row-major
//! ```

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;

use crate::dataset::out_of_range;
use crate::{DataError, Dataset, DatasetInfo, Image, Sample, Split};

/// Most bytes of content that a file may declare: a hundred times what Fashion-MNIST has.
const MAX_BYTES: usize = 1 << 32;

/// An array of bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idx {
    /// Shape, outermost dimension first.
    pub dims: Vec<usize>,
    /// Content, row-major.
    pub data: Vec<u8>,
}

impl Idx {
    /// Reads a file, unpacking it when it starts like gzip.
    ///
    /// # Errors
    /// [`DataError::Io`] and [`DataError::Format`], with the file's name.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let file = File::open(path).map_err(|error| DataError::io(path, error))?;
        Self::read(path, BufReader::new(file))
    }

    /// Reads an array from bytes; `path` is for error messages.
    ///
    /// # Errors
    /// As [`Idx::open`].
    pub fn read(path: &Path, mut bytes: impl io::BufRead) -> Result<Self, DataError> {
        let start = bytes
            .fill_buf()
            .map_err(|error| DataError::io(path, error))?;
        if start.starts_with(&[0x1f, 0x8b]) {
            Self::parse(path, MultiGzDecoder::new(bytes))
        } else {
            Self::parse(path, bytes)
        }
    }

    fn parse(path: &Path, mut bytes: impl Read) -> Result<Self, DataError> {
        let broken = |error: io::Error| match error.kind() {
            io::ErrorKind::UnexpectedEof => truncated(path),
            io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => DataError::format(
                path,
                format!("damaged gzip data ({error}); download it again"),
            ),
            _ => DataError::io(path, error),
        };
        let mut magic = [0; 4];
        bytes.read_exact(&mut magic).map_err(broken)?;
        let rank = match magic {
            [0, 0, 0x08, rank @ 1..=4] => rank,
            [0, 0, 0x08, rank] => {
                return Err(DataError::format(
                    path,
                    format!("has {rank} dimensions, not 1 to 4"),
                ));
            }
            _ => {
                let reason = format!(
                    "starts with {magic:02x?}, not like an IDX file of bytes (00 00 08); is it another file?"
                );
                return Err(DataError::format(path, reason));
            }
        };
        let mut dims = Vec::new();
        for _ in 0..rank {
            let mut dim = [0; 4];
            bytes.read_exact(&mut dim).map_err(broken)?;
            dims.push(u32::from_be_bytes(dim) as usize);
        }
        let size = dims
            .iter()
            .try_fold(1_usize, |size, &dim| size.checked_mul(dim))
            .filter(|&size| size <= MAX_BYTES)
            .ok_or_else(|| DataError::format(path, format!("declares an absurd shape {dims:?}")))?;
        // Grows with what is there, not with what the header says; one byte more shows a file that is too long.
        let mut data = Vec::new();
        bytes
            .take(size as u64 + 1)
            .read_to_end(&mut data)
            .map_err(broken)?;
        match data.len() {
            found if found < size => Err(truncated(path)),
            found if found > size => Err(DataError::format(
                path,
                format!("goes on after its {size} bytes of {dims:?}"),
            )),
            _ => Ok(Self { dims, data }),
        }
    }
}

fn truncated(path: &Path) -> DataError {
    DataError::format(path, "ends too early; was the download interrupted?")
}

/// Images and labels from two IDX files, held in memory.
#[derive(Clone, Debug)]
pub struct IdxDataset {
    info: DatasetInfo,
    path: PathBuf,
    height: usize,
    width: usize,
    pixels: Vec<u8>,
    labels: Vec<u8>,
}

impl IdxDataset {
    /// The files of `split` in a folder, under the names that the MNIST family uses, with or without `.gz`.
    ///
    /// # Errors
    /// [`DataError`], naming the file.
    pub fn open(folder: &Path, split: Split, info: DatasetInfo) -> Result<Self, DataError> {
        let stem = match split {
            Split::Train => "train",
            Split::Test => "t10k",
        };
        let images = find(folder, &format!("{stem}-images"), "idx3-ubyte")?;
        let labels = find(folder, &format!("{stem}-labels"), "idx1-ubyte")?;
        Self::new(
            info,
            images.clone(),
            Idx::open(&images)?,
            &labels,
            Idx::open(&labels)?,
        )
    }

    /// Joins images `[n, height, width]` and labels `[n]`; the paths are for error messages.
    ///
    /// # Errors
    /// [`DataError::Format`] when the two do not fit together.
    pub fn new(
        mut info: DatasetInfo,
        images_path: PathBuf,
        images: Idx,
        labels_path: &Path,
        labels: Idx,
    ) -> Result<Self, DataError> {
        let &[count, height, width] = &images.dims[..] else {
            let reason = format!("has shape {:?}, not [images, height, width]", images.dims);
            return Err(DataError::format(images_path, reason));
        };
        if images.data.is_empty() {
            return Err(DataError::format(images_path, "holds no image"));
        }
        if labels.dims != [count] {
            let reason = format!(
                "has shape {:?}, but {} holds {count} images; take both from the same place",
                labels.dims,
                images_path.display()
            );
            return Err(DataError::format(labels_path, reason));
        }
        let classes = info.classes.len();
        if let Some(at) = labels
            .data
            .iter()
            .position(|&label| usize::from(label) >= classes)
        {
            let reason = format!(
                "label {at} is {}, but there are {classes} classes",
                labels.data[at]
            );
            return Err(DataError::format(labels_path, reason));
        }
        info.size = Some((height, width));
        Ok(Self {
            info,
            path: images_path,
            height,
            width,
            pixels: images.data,
            labels: labels.data,
        })
    }
}

impl Dataset for IdxDataset {
    fn info(&self) -> &DatasetInfo {
        &self.info
    }

    fn len(&self) -> usize {
        self.labels.len()
    }

    fn get(&self, index: usize) -> Result<Sample, DataError> {
        let size = self.height * self.width;
        let pixels = self.pixels.chunks_exact(size).nth(index);
        let (Some(pixels), Some(&label)) = (pixels, self.labels.get(index)) else {
            return Err(out_of_range(&self.info, index, self.len()));
        };
        let image = Image::new(1, self.height, self.width, pixels.to_vec())
            .ok_or_else(|| DataError::format(&self.path, "holds empty images"))?;
        Ok(Sample {
            image,
            label: label.into(),
        })
    }
}

/// `train-images-idx3-ubyte`, `train-images.idx3-ubyte`, and either with `.gz`.
fn find(folder: &Path, stem: &str, ending: &str) -> Result<PathBuf, DataError> {
    let names = ["-", "."].map(|dot| format!("{stem}{dot}{ending}"));
    let candidates = names
        .iter()
        .flat_map(|name| [name.clone(), format!("{name}.gz")]);
    candidates
        .map(|name| folder.join(name))
        .find(|path| path.is_file())
        .ok_or_else(|| {
            let [name, _] = names;
            let reason = if folder.is_dir() {
                format!("has no {name} or {name}.gz; is this the folder with the downloaded files?")
            } else {
                "is not a folder".to_owned()
            };
            DataError::layout(folder, reason)
        })
}
