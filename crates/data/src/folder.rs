//! A folder of images for each class: `DIR/train/CLASS/*.png`, `DIR/test/CLASS/*.png`, or `DIR/CLASS/*.png`.

use std::fs;
use std::io::{Cursor, Read};
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use image::{DynamicImage, ImageDecoder, ImageReader, Limits};

use crate::dataset::out_of_range;
use crate::{DataError, Dataset, DatasetInfo, Image, Sample, Split};

/// Endings of files that are taken as images, in lower case.
const ENDINGS: [&str; 5] = ["png", "jpg", "jpeg", "bmp", "webp"];
/// Largest height or width of an image.
const MAX_SIDE: u32 = 1 << 14;
/// Most bytes that a decoder may take for one image.
const MAX_DECODED_BYTES: u64 = 256 << 20;
/// Most bytes of one file.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// Images in folders named after their classes. They are decoded when asked for, with bounded memory.
#[derive(Clone, Debug)]
pub struct ImageFolder {
    info: DatasetInfo,
    /// With their labels, sorted by class and name.
    files: Vec<(PathBuf, usize)>,
}

impl ImageFolder {
    /// The images of `split`: those under `DIR/train`, or `DIR` itself when there is no such folder; and those under
    /// `DIR/test` or `DIR/val`, whose classes are those of the training images.
    ///
    /// # Errors
    /// [`DataError::Layout`] when a folder is missing, has no classes or a class has no images; [`DataError::Io`].
    pub fn open(folder: &Path, split: Split) -> Result<Self, DataError> {
        let train = folder.join("train");
        let train = if train.is_dir() {
            train
        } else {
            folder.to_owned()
        };
        let folders = class_folders(&train)?;
        let classes: Vec<String> = folders.iter().map(|(name, _)| name.clone()).collect();
        let folders = match split {
            Split::Train => folders,
            Split::Test => {
                let test = ["test", "val", "validation"].map(|name| folder.join(name));
                let test = test.iter().find(|test| test.is_dir() && train != *folder).ok_or_else(|| {
                    DataError::layout(
                        folder,
                        "has no images to test on; put them into test/CLASS/, and those to train on into train/CLASS/",
                    )
                })?;
                class_folders(test)?
            }
        };
        let mut files = Vec::new();
        for (name, path) in folders {
            let label = classes.binary_search(&name).map_err(|_| {
                DataError::layout(&path, "is a class that the training images do not have")
            })?;
            let images = images(&path)?;
            if images.is_empty() {
                let reason = format!(
                    "has no images ({}); remove the folder or fill it",
                    ENDINGS.join(", ")
                );
                return Err(DataError::layout(path, reason));
            }
            files.extend(images.into_iter().map(|image| (image, label)));
        }
        let info = DatasetInfo {
            name: folder
                .file_name()
                .map_or("images".into(), |name| name.to_string_lossy())
                .into_owned(),
            classes,
            channels: 3,
            size: None,
            // Of ImageNet, as is usual for photographs.
            mean: vec![0.485, 0.456, 0.406],
            std: vec![0.229, 0.224, 0.225],
            mirrors: true,
        };
        Ok(Self { info, files })
    }

    /// The file of a sample.
    pub fn path(&self, index: usize) -> Option<&Path> {
        self.files.get(index).map(|(path, _)| path.as_path())
    }
}

impl Dataset for ImageFolder {
    fn info(&self) -> &DatasetInfo {
        &self.info
    }

    fn len(&self) -> usize {
        self.files.len()
    }

    fn get(&self, index: usize) -> Result<Sample, DataError> {
        let (path, label) = self
            .files
            .get(index)
            .ok_or_else(|| out_of_range(&self.info, index, self.len()))?;
        let corrupt = |reason: String| DataError::CorruptImage {
            path: path.clone(),
            reason,
        };
        // Decoders promise not to panic; a broken promise costs one image, not the run.
        let image = catch_unwind(|| decode(path))
            .unwrap_or_else(|_| Err("the decoder failed".to_owned()))
            .map_err(corrupt)?;
        Ok(Sample {
            image,
            label: *label,
        })
    }
}

/// The folders in a folder, sorted by name, except hidden ones.
fn class_folders(folder: &Path) -> Result<Vec<(String, PathBuf)>, DataError> {
    let mut classes = Vec::new();
    for entry in fs::read_dir(folder).map_err(|error| DataError::io(folder, error))? {
        let path = entry.map_err(|error| DataError::io(folder, error))?.path();
        let Some(name) = path.file_name() else {
            continue;
        };
        let name = name
            .to_str()
            .map(str::to_owned)
            .ok_or_else(|| DataError::layout(&path, "has a name that is not Unicode; rename it"));
        if path.is_dir() {
            let name = name?;
            if !name.starts_with('.') {
                classes.push((name, path));
            }
        }
    }
    if classes.is_empty() {
        return Err(DataError::layout(
            folder,
            "has no folders; sort the images into one folder for each class, such as cat/1.png and dog/1.png",
        ));
    }
    classes.sort();
    Ok(classes)
}

/// The image files in a folder, sorted by name.
fn images(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let mut images = Vec::new();
    for entry in fs::read_dir(folder).map_err(|error| DataError::io(folder, error))? {
        let path = entry.map_err(|error| DataError::io(folder, error))?.path();
        let ending = path
            .extension()
            .map(|ending| ending.to_string_lossy().to_lowercase());
        if ending.is_some_and(|ending| ENDINGS.contains(&ending.as_str())) && !path.is_dir() {
            images.push(path);
        }
    }
    images.sort();
    Ok(images)
}

fn decode(path: &Path) -> Result<Image, String> {
    let text = |error: std::io::Error| error.to_string();
    // A pipe would block for ever.
    let metadata = fs::metadata(path).map_err(text)?;
    if !metadata.is_file() {
        return Err("it is not a regular file".to_owned());
    }
    let mut bytes = Vec::new();
    let file = fs::File::open(path).map_err(text)?;
    file.take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(text)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(format!("it is larger than {} MiB", MAX_FILE_BYTES >> 20));
    }
    decode_bytes(bytes).map_err(|error| error.to_string())
}

fn decode_bytes(bytes: Vec<u8>) -> Result<Image, image::ImageError> {
    let mut limits = Limits::default();
    limits.max_image_width = Some(MAX_SIDE);
    limits.max_image_height = Some(MAX_SIDE);
    limits.max_alloc = Some(MAX_DECODED_BYTES);
    let mut reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format()?;
    reader.limits(limits.clone());
    let mut decoder = reader.into_decoder()?;
    let (width, height) = decoder.dimensions();
    limits.check_dimensions(width, height)?;
    limits.reserve(decoder.total_bytes())?;
    decoder.set_limits(limits)?;
    // Phones store photographs lying on their side and say so beside them.
    let orientation = decoder.orientation()?;
    let mut image = DynamicImage::from_decoder(decoder)?;
    image.apply_orientation(orientation);
    let image = image.into_rgb8();
    let (width, height) = (image.width() as usize, image.height() as usize);
    let interleaved = image.into_raw();
    let planes = (0..3).flat_map(|channel| interleaved.iter().skip(channel).step_by(3).copied());
    Image::new(3, height, width, planes.collect()).ok_or_else(|| {
        let kind = image::error::ParameterErrorKind::DimensionMismatch;
        image::ImageError::Parameter(image::error::ParameterError::from_kind(kind))
    })
}
