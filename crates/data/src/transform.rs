//! From an image to the numbers that a model reads: fit to a size, vary, normalise.

use crate::random::Stream;
use crate::{DataError, DatasetInfo, Image};

/// Largest height or width that a model may ask for.
const MAX_SIDE: usize = 1 << 14;

/// Random variation of training images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Augment {
    /// The image is moved by up to this many pixels each way; what comes in is black.
    pub crop_padding: usize,
    /// Half of the images are mirrored left to right.
    pub mirror: bool,
}

impl Augment {
    /// What suits a data set at this size: moves by an eighth of the side, and mirrors where that keeps the class.
    pub fn for_dataset(info: &DatasetInfo, side: usize) -> Self {
        Self {
            crop_padding: side / 8,
            mirror: info.mirrors,
        }
    }
}

/// What happens to every image. The result is `[channels, height, width]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Transform {
    channels: usize,
    height: usize,
    width: usize,
    augment: Option<Augment>,
    /// By channel of the result, of pixels between 0 and 1.
    mean: Vec<f32>,
    std: Vec<f32>,
}

impl Transform {
    /// Fits images to this size and number of channels (1 or 3) and normalises them with the data set's statistics.
    ///
    /// # Errors
    /// [`DataError::Options`] for a size or number of channels that no image has.
    pub fn new(
        info: &DatasetInfo,
        channels: usize,
        height: usize,
        width: usize,
        augment: Option<Augment>,
    ) -> Result<Self, DataError> {
        if !(1..=MAX_SIDE).contains(&height) || !(1..=MAX_SIDE).contains(&width) {
            return Err(DataError::Options(format!(
                "images cannot be {height}x{width}; give a size between 1 and {MAX_SIDE}"
            )));
        }
        let convert = |statistics: &[f32]| match (statistics, channels) {
            (&[grey], 1 | 3) => Some(vec![grey; channels]),
            (colours @ [_, _, _], 3) => Some(colours.to_vec()),
            (colours @ [_, _, _], 1) => Some(vec![colours.iter().sum::<f32>() / 3.0]),
            _ => None,
        };
        match (convert(&info.mean), convert(&info.std)) {
            (Some(mean), Some(std)) if std.iter().all(|&std| std > 0.0) => Ok(Self {
                channels,
                height,
                width,
                augment,
                mean,
                std,
            }),
            _ => Err(DataError::Options(format!(
                "a model of {channels} channels cannot read {}, whose images have {}; give it 1 or 3",
                info.name, info.channels
            ))),
        }
    }

    /// Shape of the result: `[channels, height, width]`.
    pub fn dims(&self) -> [usize; 3] {
        [self.channels, self.height, self.width]
    }

    /// Number of elements of the result.
    pub fn elements(&self) -> usize {
        self.channels * self.height * self.width
    }

    /// Transforms one image. Its random variation depends on the three numbers alone.
    pub fn apply(&self, image: &Image, seed: u64, epoch: u64, index: usize) -> Vec<f32> {
        let planes: Vec<Vec<f32>> = (0..image.channels())
            .map(|channel| self.fit(image, channel))
            .collect();
        let planes = convert_channels(planes, self.channels);
        let variation = self.variation(seed, epoch, index);
        let mut result = Vec::with_capacity(self.elements());
        for ((plane, mean), std) in planes.iter().zip(&self.mean).zip(&self.std) {
            for y in 0..self.height {
                for x in 0..self.width {
                    let x = if variation.mirrored {
                        self.width - 1 - x
                    } else {
                        x
                    };
                    let pixel = self.moved(plane, y, x, variation);
                    result.push((pixel / 255.0 - mean) / std);
                }
            }
        }
        result
    }

    fn variation(&self, seed: u64, epoch: u64, index: usize) -> Variation {
        let Some(Augment {
            crop_padding,
            mirror,
        }) = self.augment
        else {
            return Variation::default();
        };
        let mut stream = Stream::new(b"augment\0", seed, epoch, index as u64);
        let mut offset = || stream.below(2 * crop_padding + 1) as isize - crop_padding as isize;
        let (down, right) = (offset(), offset());
        Variation {
            down,
            right,
            mirrored: mirror && stream.coin(),
        }
    }

    fn moved(&self, plane: &[f32], y: usize, x: usize, variation: Variation) -> f32 {
        let y = y
            .checked_add_signed(variation.down)
            .filter(|&y| y < self.height);
        let x = x
            .checked_add_signed(variation.right)
            .filter(|&x| x < self.width);
        match (y, x) {
            (Some(y), Some(x)) => plane[y * self.width + x],
            _ => 0.0,
        }
    }

    /// Scales a plane until it covers the wanted size, keeping its proportions, and takes the middle.
    fn fit(&self, image: &Image, channel: usize) -> Vec<f32> {
        let (height, width) = (image.height(), image.width());
        let plane = image.plane(channel);
        if (height, width) == (self.height, self.width) {
            return plane.iter().map(|&pixel| f32::from(pixel)).collect();
        }
        let scale = (height as f64 / self.height as f64).min(width as f64 / self.width as f64);
        let rows = taps(height, self.height, scale);
        let columns = taps(width, self.width, scale);
        // Columns first, for the rows that the result needs.
        let mut narrow = Vec::with_capacity(height * self.width);
        for row in plane.chunks_exact(width) {
            for taps in &columns {
                let sum: f32 = taps
                    .iter()
                    .map(|&(at, weight)| f32::from(row[at]) * weight)
                    .sum();
                narrow.push(sum);
            }
        }
        let mut result = Vec::with_capacity(self.height * self.width);
        for taps in &rows {
            for x in 0..self.width {
                let sum: f32 = taps
                    .iter()
                    .map(|&(at, weight)| narrow[at * self.width + x] * weight)
                    .sum();
                result.push(sum);
            }
        }
        result
    }
}

#[derive(Clone, Copy, Default)]
struct Variation {
    down: isize,
    right: isize,
    mirrored: bool,
}

/// For each output position, the input positions it reads with their weights: bilinear, widened when shrinking so that
/// every input counts (as Pillow and torchvision's `antialias=True` do).
fn taps(input: usize, output: usize, scale: f64) -> Vec<Vec<(usize, f32)>> {
    let radius = scale.max(1.0);
    let offset = (input as f64 - output as f64 * scale) / 2.0;
    (0..output)
        .map(|position| {
            let centre = offset + (position as f64 + 0.5) * scale;
            let first = (centre - radius).floor().max(0.0) as usize;
            let last = ((centre + radius).ceil() as usize).min(input);
            let weights: Vec<(usize, f64)> = (first..last)
                .map(|at| (at, 1.0 - ((at as f64 + 0.5 - centre) / radius).abs()))
                .filter(|&(_, weight)| weight > 0.0)
                .collect();
            let total: f64 = weights.iter().map(|(_, weight)| weight).sum();
            weights
                .into_iter()
                .map(|(at, weight)| (at, (weight / total) as f32))
                .collect()
        })
        .collect()
}

/// Grey becomes three equal planes; colour becomes grey by the weights of ITU-R BT.601.
fn convert_channels(planes: Vec<Vec<f32>>, channels: usize) -> Vec<Vec<f32>> {
    match (&planes[..], channels) {
        ([grey], _) => vec![grey.clone(); channels],
        ([red, green, blue], 1) => {
            let grey = red.iter().zip(green).zip(blue);
            vec![
                grey.map(|((r, g), b)| 0.299 * r + 0.587 * g + 0.114 * b)
                    .collect(),
            ]
        }
        _ => planes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(channels: usize) -> DatasetInfo {
        DatasetInfo {
            name: "test".to_owned(),
            classes: vec!["a".to_owned()],
            channels,
            size: None,
            mean: vec![0.0; channels],
            std: vec![1.0 / 255.0; channels],
            mirrors: true,
        }
    }

    /// A transform whose results are pixels from 0 to 255.
    fn pixels(channels: usize, wanted: usize, height: usize, width: usize) -> Transform {
        Transform::new(&info(channels), wanted, height, width, None).unwrap()
    }

    fn close(result: &[f32], expected: &[f32]) {
        assert_eq!(result.len(), expected.len());
        for (a, b) in result.iter().zip(expected) {
            assert!((a - b).abs() < 1e-3, "{result:?} is not {expected:?}");
        }
    }

    #[test]
    fn the_same_size_is_left_alone_and_normalised() {
        let image = Image::new(1, 1, 2, vec![0, 255]).unwrap();
        let mut info = info(1);
        (info.mean, info.std) = (vec![0.5], vec![0.25]);
        let transform = Transform::new(&info, 1, 1, 2, None).unwrap();
        assert_eq!(transform.apply(&image, 0, 0, 0), [-2.0, 2.0]);
    }

    /// Expected values from `torch.nn.functional.interpolate(mode="bilinear", antialias=True)`.
    #[test]
    fn resizing_is_bilinear() {
        let image = Image::new(1, 1, 2, vec![0, 100]).unwrap();
        // Twice as wide and, to keep proportions, twice as high; the middle row of the result is cut out.
        close(
            &pixels(1, 1, 1, 4).apply(&image, 0, 0, 0),
            &[0.0, 25.0, 75.0, 100.0],
        );
        let image = Image::new(1, 2, 4, vec![10, 20, 30, 40, 50, 60, 70, 80]).unwrap();
        close(
            &pixels(1, 1, 1, 2).apply(&image, 0, 0, 0),
            &[37.142_857, 52.857_143],
        );
    }

    #[test]
    fn proportions_are_kept_and_the_middle_is_taken() {
        let image = Image::new(1, 2, 4, vec![1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
        close(
            &pixels(1, 1, 2, 2).apply(&image, 0, 0, 0),
            &[2.0, 3.0, 6.0, 7.0],
        );
    }

    #[test]
    fn channels_are_converted() {
        let grey = Image::new(1, 1, 1, vec![7]).unwrap();
        close(&pixels(1, 3, 1, 1).apply(&grey, 0, 0, 0), &[7.0, 7.0, 7.0]);
        let colour = Image::new(3, 1, 1, vec![10, 20, 30]).unwrap();
        close(&pixels(3, 1, 1, 1).apply(&colour, 0, 0, 0), &[18.15]);
        assert!(Transform::new(&info(3), 2, 8, 8, None).is_err());
        assert!(Transform::new(&info(3), 3, 0, 8, None).is_err());
        assert!(Transform::new(&info(3), 3, 8, usize::MAX, None).is_err());
    }

    #[test]
    fn variation_moves_and_mirrors_by_seed() {
        let image = Image::new(1, 3, 3, (1..=9).collect()).unwrap();
        let augment = Some(Augment {
            crop_padding: 1,
            mirror: true,
        });
        let transform = Transform::new(&info(1), 1, 3, 3, augment).unwrap();
        let results: Vec<Vec<f32>> = (0..200).map(|i| transform.apply(&image, 7, 0, i)).collect();
        let contains = |wanted: [f32; 9]| {
            results
                .iter()
                .any(|result| result.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-3))
        };
        assert!(contains([1., 2., 3., 4., 5., 6., 7., 8., 9.]), "as it is");
        assert!(contains([3., 2., 1., 6., 5., 4., 9., 8., 7.]), "mirrored");
        assert!(
            contains([0., 0., 0., 0., 1., 2., 0., 4., 5.]),
            "down and right, black behind"
        );
        assert!(
            contains([5., 6., 0., 8., 9., 0., 0., 0., 0.]),
            "up and left"
        );
        assert_eq!(transform.apply(&image, 7, 0, 3), results[3]);
        let other_epoch: Vec<Vec<f32>> =
            (0..200).map(|i| transform.apply(&image, 7, 1, i)).collect();
        assert_ne!(results, other_epoch);
    }
}
