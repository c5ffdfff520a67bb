//! What a data set is.

use crate::DataError;

/// A decoded image.
///
/// Invariant, kept by the constructor: `pixels.len() == channels * height * width`, none of them zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    channels: usize,
    height: usize,
    width: usize,
    pixels: Vec<u8>,
}

impl Image {
    /// An image from its planes, `[channels, height, width]`; `None` when the numbers do not fit or one is zero.
    pub fn new(channels: usize, height: usize, width: usize, pixels: Vec<u8>) -> Option<Self> {
        let size = channels.checked_mul(height)?.checked_mul(width)?;
        (size == pixels.len() && size > 0).then_some(Self {
            channels,
            height,
            width,
            pixels,
        })
    }

    /// Planes: 1 for grey, 3 for red, green and blue.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Rows.
    pub fn height(&self) -> usize {
        self.height
    }

    /// Columns.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The pixels, `[channels, height, width]`.
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// One plane, row-major.
    pub(crate) fn plane(&self, channel: usize) -> &[u8] {
        let size = self.height * self.width;
        self.pixels
            .chunks_exact(size)
            .nth(channel)
            .unwrap_or_default()
    }
}

/// An image with its class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The image.
    pub image: Image,
    /// Index into [`DatasetInfo::classes`].
    pub label: usize,
}

/// Which part of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Split {
    /// To train on.
    Train,
    /// To measure on.
    Test,
}

/// What is common to all samples of a data set.
#[derive(Clone, Debug, PartialEq)]
pub struct DatasetInfo {
    /// For people: `fashion-mnist`.
    pub name: String,
    /// Class names, by label.
    pub classes: Vec<String>,
    /// 1 for grey, 3 for colour.
    pub channels: usize,
    /// Height and width of the images, when all have the same.
    pub size: Option<(usize, usize)>,
    /// Mean of each channel, of pixels between 0 and 1.
    pub mean: Vec<f32>,
    /// Standard deviation of each channel, of pixels between 0 and 1.
    pub std: Vec<f32>,
    /// Whether a mirrored image still shows its class: a shoe does, a digit does not.
    pub mirrors: bool,
}

/// A set of labelled images that can be read in any order, from any thread.
pub trait Dataset: Send + Sync {
    /// What is common to all samples.
    fn info(&self) -> &DatasetInfo;

    /// Number of samples; at least 1.
    fn len(&self) -> usize;

    /// Never, or it would not be a data set.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads and decodes one sample.
    ///
    /// # Errors
    /// [`DataError::CorruptImage`] for a sample that others do not depend on; anything else ends the run.
    fn get(&self, index: usize) -> Result<Sample, DataError>;
}

pub(crate) fn out_of_range(info: &DatasetInfo, index: usize, len: usize) -> DataError {
    DataError::Options(format!(
        "{} has {len} samples, there is no sample {index}",
        info.name
    ))
}
