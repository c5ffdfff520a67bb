//! Loading: order, resuming, threads, memory, and images that cannot be decoded.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use outboard_data::{
    Augment, Batch, DataError, DataSpec, Dataset, DatasetInfo, Image, ImageFolder, Loader,
    LoaderOptions, OnCorrupt, Position, Sample, Split, Transform,
};

fn builtin() -> Arc<dyn Dataset> {
    DataSpec::Builtin.open(Split::Train).unwrap()
}

fn transform(data: &dyn Dataset, side: usize) -> Transform {
    let augment = Augment::for_dataset(data.info(), side);
    Transform::new(data.info(), data.info().channels, side, side, Some(augment)).unwrap()
}

fn load(data: &Arc<dyn Dataset>, options: LoaderOptions) -> Vec<Batch> {
    Loader::new(Arc::clone(data), options)
        .unwrap()
        .map(Result::unwrap)
        .collect()
}

fn same(a: &Batch, b: &Batch) -> bool {
    (a.position, a.next, &a.indices) == (b.position, b.next, &b.indices)
        && a.images == b.images
        && a.targets == b.targets
}

#[test]
fn batches_depend_on_neither_threads_nor_memory() {
    let data = builtin();
    let options = LoaderOptions {
        epochs: Some(2),
        ..LoaderOptions::new(300, 7, transform(&*data, 16))
    };
    let expected = load(&data, options.clone());
    // The last partial batch is kept: 6 x 300 + 200.
    assert_eq!(expected.len(), 14);
    assert_eq!(expected[6].images.dims(), [200, 1, 16, 16]);
    assert_eq!(expected[6].targets.dims(), [200]);
    for (threads, memory_bytes) in [(3, u64::MAX), (2, 0)] {
        let batches = load(
            &data,
            LoaderOptions {
                threads,
                memory_bytes,
                ..options.clone()
            },
        );
        assert_eq!(batches.len(), expected.len());
        assert!(batches.iter().zip(&expected).all(|(a, b)| same(a, b)));
    }
    for epoch in expected.chunks(7) {
        let seen: BTreeSet<usize> = epoch
            .iter()
            .flat_map(|batch| batch.indices.clone())
            .collect();
        assert_eq!(seen.len(), 2000, "every sample once an epoch");
    }
    assert_ne!(
        expected[0].indices, expected[7].indices,
        "each epoch has its own order"
    );
    let other_seed = load(&data, LoaderOptions { seed: 8, ..options });
    assert_ne!(expected[0].indices, other_seed[0].indices);
}

#[test]
fn a_loader_resumes_anywhere() {
    let data = builtin();
    let options = LoaderOptions {
        epochs: Some(2),
        ..LoaderOptions::new(300, 7, transform(&*data, 8))
    };
    let whole = load(&data, options.clone());
    for at in [0, 3, 6, 7, 12] {
        let rest = load(
            &data,
            LoaderOptions {
                start: whole[at].next,
                ..options.clone()
            },
        );
        assert_eq!(rest.len(), whole.len() - at - 1);
        assert!(rest.iter().zip(&whole[at + 1..]).all(|(a, b)| same(a, b)));
    }
    let start = Position { epoch: 0, batch: 7 };
    let error = Loader::new(data, LoaderOptions { start, ..options })
        .unwrap_err()
        .to_string();
    assert!(error.contains("has 7 batches of 300"), "{error}");
}

#[test]
fn measuring_visits_every_sample_in_order_unvaried() {
    let data = DataSpec::Builtin.open(Split::Test).unwrap();
    let plain = Transform::new(data.info(), 1, 28, 28, None).unwrap();
    let batches = load(&data, LoaderOptions::once(200, plain.clone()));
    let indices: Vec<usize> = batches
        .iter()
        .flat_map(|batch| batch.indices.clone())
        .collect();
    assert_eq!(indices, (0..500).collect::<Vec<_>>());
    let sample = data.get(250).unwrap();
    let pixels = batches[1].images.to_f32_vec().unwrap();
    assert_eq!(
        pixels[50 * 784..51 * 784],
        plain.apply(&sample.image, 0, 0, 250)
    );
    assert_eq!(
        batches[1].targets.to_i64_vec().unwrap()[50],
        sample.label as i64
    );
}

/// Counts how many samples were read.
struct Counting {
    info: DatasetInfo,
    read: AtomicUsize,
}

impl Dataset for Counting {
    fn info(&self) -> &DatasetInfo {
        &self.info
    }
    fn len(&self) -> usize {
        1000
    }
    fn get(&self, index: usize) -> Result<Sample, DataError> {
        self.read.fetch_add(1, Ordering::SeqCst);
        let image = Image::new(1, 4, 4, vec![index as u8; 16]).unwrap();
        Ok(Sample { image, label: 0 })
    }
}

#[test]
fn memory_is_bounded_and_threads_end() {
    let info = DatasetInfo {
        name: "counting".to_owned(),
        classes: vec!["one".to_owned()],
        channels: 1,
        size: None,
        mean: vec![0.0],
        std: vec![1.0],
        mirrors: false,
    };
    let data = Arc::new(Counting {
        info,
        read: AtomicUsize::new(0),
    });
    let transform = Transform::new(data.info(), 1, 4, 4, None).unwrap();
    // A batch of 10 takes 10 x (16 x 4 + 8 + 8) bytes; three fit.
    let options = LoaderOptions {
        threads: 4,
        memory_bytes: 2_400,
        ..LoaderOptions::new(10, 0, transform)
    };
    let mut loader = Loader::new(data.clone(), options).unwrap();
    for taken in 1..=20 {
        loader.next().unwrap().unwrap();
        assert!(loader.held_bytes() <= 2_400);
        assert!(
            data.read.load(Ordering::SeqCst) <= 10 * (taken + 3),
            "runs too far ahead"
        );
    }
    // A loader that goes on for ever ends when it is dropped, and its threads with it.
    drop(loader);
    assert_eq!(Arc::strong_count(&data), 1);
}

#[test]
fn a_batch_that_fits_no_memory_is_refused() {
    let data = builtin();
    let transform = transform(&*data, 28);
    for batch in [0, usize::MAX] {
        let options = LoaderOptions::new(batch, 0, transform.clone());
        assert!(matches!(
            Loader::new(data.clone(), options),
            Err(DataError::Options(_))
        ));
    }
}

/// A 2x2 image of one colour.
fn write_image(path: &Path, colour: [u8; 3]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    image::RgbImage::from_pixel(2, 2, image::Rgb(colour))
        .save(path)
        .unwrap();
}

fn folder_of_images() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let train = folder.path().join("train");
    for (name, colour) in [
        ("dog/b.png", [1, 2, 3]),
        ("dog/a.BMP", [4, 5, 6]),
        ("cat/1.webp", [7, 8, 9]),
        ("cat/2.jpeg", [10, 10, 10]),
        ("cat/3.jpg", [20, 20, 20]),
    ] {
        write_image(&train.join(name), colour);
    }
    fs::write(train.join("dog/notes.txt"), "not an image").unwrap();
    write_image(&folder.path().join("val/dog/x.png"), [0, 0, 0]);
    folder
}

#[test]
fn a_folder_of_images_is_read() {
    let folder = folder_of_images();
    let data = ImageFolder::open(folder.path(), Split::Train).unwrap();
    assert_eq!(data.info().classes, ["cat", "dog"]);
    assert_eq!(data.len(), 5);
    let pixels: Vec<(Vec<u8>, usize)> = (0..5)
        .map(|index| data.get(index).unwrap())
        .map(|sample| {
            (
                sample.image.pixels().iter().step_by(4).copied().collect(),
                sample.label,
            )
        })
        .collect();
    let expected: [(&[u8], usize); 5] = [
        (&[7, 8, 9], 0),
        (&[10, 10, 10], 0),
        (&[20, 20, 20], 0),
        (&[4, 5, 6], 1),
        (&[1, 2, 3], 1),
    ];
    assert!(
        pixels
            .iter()
            .zip(expected)
            .all(|(found, wanted)| (&found.0[..], found.1) == wanted)
    );
    let test = ImageFolder::open(folder.path(), Split::Test).unwrap();
    assert_eq!((test.len(), test.get(0).unwrap().label), (1, 1));
}

#[test]
fn folders_that_are_laid_out_wrongly_say_what_to_do() {
    let expect = |folder: &Path, split: Split, reason: &str| {
        let error = ImageFolder::open(folder, split).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    };
    let folder = tempfile::tempdir().unwrap();
    write_image(&folder.path().join("1.png"), [0; 3]);
    expect(
        folder.path(),
        Split::Train,
        "sort the images into one folder for each class",
    );
    fs::create_dir(folder.path().join("cat")).unwrap();
    expect(folder.path(), Split::Train, "cat: has no images");
    write_image(&folder.path().join("cat/1.png"), [0; 3]);
    assert_eq!(
        ImageFolder::open(folder.path(), Split::Train)
            .unwrap()
            .len(),
        1
    );
    expect(folder.path(), Split::Test, "test/CLASS/");
    expect(&folder.path().join("nowhere"), Split::Train, "cannot read");
    let folder = folder_of_images();
    write_image(&folder.path().join("val/bird/x.png"), [0; 3]);
    expect(
        folder.path(),
        Split::Test,
        "bird: is a class that the training images do not have",
    );
}

/// The image files, whole or cut at each length, and with bytes flipped: an image or an error that names the file.
#[test]
fn damaged_images_never_panic() {
    let folder = folder_of_images();
    let data = ImageFolder::open(folder.path(), Split::Train).unwrap();
    for index in 0..data.len() {
        let path = data.path(index).unwrap().to_owned();
        let whole = fs::read(&path).unwrap();
        let step = (whole.len() / 40).max(1);
        for at in (0..whole.len()).step_by(step) {
            let mut flipped = whole.clone();
            flipped[at] ^= 0xff;
            for bytes in [&whole[..at], &flipped] {
                fs::write(&path, bytes).unwrap();
                match data.get(index) {
                    Ok(_) => {}
                    Err(DataError::CorruptImage { path: named, .. }) => assert_eq!(named, path),
                    Err(error) => panic!("{error}"),
                }
            }
        }
        fs::write(&path, whole).unwrap();
        assert!(data.get(index).is_ok());
    }
}

/// A PNG header that declares 65535 x 65535 pixels must not take 12 GiB.
#[test]
fn absurd_sizes_are_refused() {
    let folder = folder_of_images();
    let data = ImageFolder::open(folder.path(), Split::Train).unwrap();
    let path = data.path(4).unwrap();
    // A BMP of 65535 x 65535 pixels of 24 bits.
    let mut bytes =
        b"BM\x36\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0\xff\xff\0\0\xff\xff\0\0\x01\0\x18\0".to_vec();
    bytes.resize(54, 0);
    fs::write(path, bytes).unwrap();
    let error = data.get(4).unwrap_err().to_string();
    assert!(error.contains("b.png cannot be decoded"), "{error}");
    assert!(error.to_lowercase().contains("exceed"), "{error}");
}

#[test]
fn corrupt_images_are_fatal_or_skipped_and_named() {
    let folder = folder_of_images();
    let data: Arc<dyn Dataset> = Arc::new(ImageFolder::open(folder.path(), Split::Train).unwrap());
    fs::write(folder.path().join("train/cat/2.jpeg"), "no image at all").unwrap();
    fs::remove_file(folder.path().join("train/dog/b.png")).unwrap();
    let transform = Transform::new(data.info(), 3, 4, 4, None).unwrap();
    let options = LoaderOptions::once(2, transform);

    let mut loader = Loader::new(data.clone(), options.clone()).unwrap();
    let error = loader.next().unwrap().unwrap_err().to_string();
    assert!(error.contains("2.jpeg cannot be decoded"), "{error}");
    assert!(error.contains("let corrupt images be skipped"), "{error}");
    assert!(loader.next().is_none(), "an error ends the loader");

    let options = LoaderOptions {
        on_corrupt: OnCorrupt::Skip,
        ..options
    };
    let mut loader = Loader::new(data.clone(), options.clone()).unwrap();
    let first = loader.next().unwrap().unwrap();
    assert_eq!(first.indices, [0]);
    assert_eq!(first.images.dims(), [1, 3, 4, 4]);
    assert_eq!(first.skipped[0].index, 1);
    assert!(first.skipped[0].reason.contains("2.jpeg"));
    assert_eq!(loader.next().unwrap().unwrap().indices, [2, 3]);
    // The last batch has nothing left; the epoch ends with an error rather than in silence.
    let error = loader.next().unwrap().unwrap_err().to_string();
    assert!(
        error.contains("none of 1 images could be decoded") && error.contains("b.png"),
        "{error}"
    );

    // In an endless run it is reported with the next batch instead.
    let mut loader = Loader::new(
        data,
        LoaderOptions {
            epochs: Some(2),
            ..options
        },
    )
    .unwrap();
    let third = loader.nth(2).unwrap().unwrap();
    assert_eq!(third.position, Position { epoch: 1, batch: 0 });
    assert_eq!(
        third
            .skipped
            .iter()
            .map(|skipped| skipped.index)
            .collect::<Vec<_>>(),
        [4, 1]
    );
}
