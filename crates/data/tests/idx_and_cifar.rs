//! Files of the MNIST family and of CIFAR-10: whole, missing, truncated, hostile, mutated.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

use std::fs;
use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use outboard_data::{Cifar10, DataSpec, Dataset, Idx, Split};
use proptest::prelude::*;

/// Three 2x2 images.
const IMAGES: &[u8] = b"\0\0\x08\x03\0\0\0\x03\0\0\0\x02\0\0\0\x02abcdefghijkl";
const LABELS: &[u8] = b"\0\0\x08\x01\0\0\0\x03\x09\0\x05";

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn read(bytes: &[u8]) -> Result<Idx, String> {
    Idx::read(Path::new("file"), bytes).map_err(|error| error.to_string())
}

fn open(spec: &str, folder: &Path, split: Split) -> Result<std::sync::Arc<dyn Dataset>, String> {
    let spec: DataSpec = format!("{spec}:{}", folder.display()).parse().unwrap();
    spec.open(split).map_err(|error| error.to_string())
}

#[test]
fn plain_and_gzipped_files_are_read() {
    for (names, pack) in [
        (
            ["train-images-idx3-ubyte", "train-labels-idx1-ubyte"],
            false,
        ),
        (
            ["train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"],
            true,
        ),
        (
            ["train-images.idx3-ubyte", "train-labels.idx1-ubyte"],
            false,
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in names.iter().zip([IMAGES, LABELS]) {
            let bytes = if pack { gzip(bytes) } else { bytes.to_vec() };
            fs::write(folder.path().join(name), bytes).unwrap();
        }
        let data = open("mnist", folder.path(), Split::Train).unwrap();
        assert_eq!((data.len(), data.info().size), (3, Some((2, 2))));
        let sample = data.get(2).unwrap();
        assert_eq!((sample.image.pixels(), sample.label), (&b"ijkl"[..], 5));
        assert!(
            data.get(3)
                .unwrap_err()
                .to_string()
                .contains("there is no sample 3")
        );
        let error = open("mnist", folder.path(), Split::Test).err().unwrap();
        assert!(error.contains("has no t10k-images-idx3-ubyte"), "{error}");
    }
    let error = open("mnist", Path::new("/nowhere"), Split::Train)
        .err()
        .unwrap();
    assert_eq!(error, "/nowhere: is not a folder");
}

#[test]
fn headers_are_not_believed() {
    let expect = |bytes: &[u8], reason: &str| {
        let error = read(bytes).unwrap_err();
        assert!(
            error.starts_with("file: ") && error.contains(reason),
            "{error}"
        );
    };
    expect(b"", "ends too early");
    expect(b"\0\0\x08", "ends too early");
    expect(b"PK\x03\x04", "another file");
    expect(b"\0\0\x0d\x01\0\0\0\x01", "another file");
    expect(b"\0\0\x08\x05", "5 dimensions");
    expect(
        b"\0\0\x08\x03\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        "absurd shape",
    );
    // Four gigabytes declared, none there: refused without taking the memory.
    expect(b"\0\0\x08\x01\xff\xff\xff\xff", "ends too early");
    expect(&IMAGES[..IMAGES.len() - 1], "ends too early");
    expect(&[IMAGES, b"m"].concat(), "goes on after");
    let packed = gzip(IMAGES);
    expect(&packed[..packed.len() - 9], "ends too early");
    let mut damaged = packed;
    *damaged.last_mut().unwrap() ^= 1;
    expect(&damaged, "damaged gzip data");
}

#[test]
fn images_and_labels_must_fit_together() {
    let cases: [(&[u8], &[u8], &str); 4] = [
        (IMAGES, b"\0\0\x08\x01\0\0\0\x02\x09\0", "holds 3 images"),
        (IMAGES, b"\0\0\x08\x01\0\0\0\x03\x09\0\x0a", "label 2 is 10"),
        (LABELS, LABELS, "not [images, height, width]"),
        (
            b"\0\0\x08\x03\0\0\0\0\0\0\0\x02\0\0\0\x02",
            LABELS,
            "holds no image",
        ),
    ];
    for (images, labels, reason) in cases {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("t10k-images-idx3-ubyte"), images).unwrap();
        fs::write(folder.path().join("t10k-labels-idx1-ubyte"), labels).unwrap();
        let error = open("fashion-mnist", folder.path(), Split::Test)
            .err()
            .unwrap();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn the_built_in_data_is_balanced() {
    for (split, each) in [(Split::Train, 200), (Split::Test, 50)] {
        let data = DataSpec::Builtin.open(split).unwrap();
        assert_eq!((data.len(), data.info().classes.len()), (10 * each, 10));
        let mut counts = [0; 10];
        let mut brightness = 0_u64;
        for index in 0..data.len() {
            let sample = data.get(index).unwrap();
            counts[sample.label] += 1;
            brightness += sample
                .image
                .pixels()
                .iter()
                .map(|&pixel| u64::from(pixel))
                .sum::<u64>();
        }
        assert_eq!(counts, [each; 10]);
        // The mean that pixels are normalised with is the data's.
        let mean = brightness as f64 / (data.len() * 28 * 28) as f64 / 255.0;
        assert!(
            (mean - f64::from(data.info().mean[0])).abs() < 0.01,
            "{mean}"
        );
    }
}

fn cifar_record(label: u8) -> Vec<u8> {
    let mut record = vec![label];
    record.extend((0..3072_usize).map(|at| (at / 1024 * 100 + at % 100) as u8));
    record
}

#[test]
fn cifar_is_read_and_checked() {
    let folder = tempfile::tempdir().unwrap();
    let unpacked = folder.path().join("cifar-10-batches-bin");
    fs::create_dir(&unpacked).unwrap();
    let error = open("cifar10", folder.path(), Split::Train).err().unwrap();
    assert!(error.contains("has no data_batch_1.bin; unpack"), "{error}");
    for batch in 1..=5 {
        let name = format!("data_batch_{batch}.bin");
        fs::write(
            unpacked.join(name),
            [cifar_record(batch), cifar_record(0)].concat(),
        )
        .unwrap();
    }
    for folder in [folder.path(), &unpacked] {
        let data = open("cifar10", folder, Split::Train).unwrap();
        assert_eq!(data.len(), 10);
        let sample = data.get(4).unwrap();
        assert_eq!(data.info().classes[sample.label], "cat");
        assert_eq!(
            (sample.image.channels(), sample.image.pixels()[1024]),
            (3, 124)
        );
    }
    let test = unpacked.join("test_batch.bin");
    for (bytes, reason) in [
        (cifar_record(10), "label 10, not 0 to 9"),
        (cifar_record(1)[1..].to_vec(), "not a multiple of 3073"),
        (Vec::new(), "not a multiple of 3073"),
    ] {
        fs::write(&test, bytes).unwrap();
        let error = Cifar10::open(folder.path(), Split::Test)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("test_batch.bin") && error.contains(reason),
            "{error}"
        );
    }
}

#[test]
fn specs_print_and_parse() {
    for text in [
        "builtin",
        "fashion-mnist:/a/b",
        "mnist:.",
        "cifar10:C:\\data",
        "images:a:b",
        "noise:3x224",
    ] {
        assert_eq!(text.parse::<DataSpec>().unwrap().to_string(), text);
    }
    for text in [
        "",
        "mnist",
        "mnist:",
        "imagenet:/a",
        "builtin:/a",
        "noise:7x0",
    ] {
        let error = text.parse::<DataSpec>().unwrap_err().to_string();
        assert!(error.contains("give builtin, fashion-mnist:DIR"), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 512, ..ProptestConfig::default() })]

    /// Whatever bytes stand in a file: an array whose size fits its shape, or an error.
    #[test]
    fn mutated_idx_files_never_panic(
        packed: bool,
        cut in 0_usize..64,
        flips in prop::collection::vec((0_usize..64, 0_u8..8), 0..4),
    ) {
        let mut bytes = if packed { gzip(IMAGES) } else { IMAGES.to_vec() };
        let length = bytes.len();
        for (at, bit) in flips {
            bytes[at % length] ^= 1 << bit;
        }
        bytes.truncate(length - cut % length);
        if let Ok(idx) = read(&bytes) {
            prop_assert_eq!(idx.dims.iter().product::<usize>(), idx.data.len());
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = read(&bytes);
        let _ = read(&[&b"\0\0\x08"[..], &bytes].concat());
        let _ = read(&[&b"\x1f\x8b\x08"[..], &bytes].concat());
    }

    #[test]
    fn mutated_cifar_files_never_panic(cut in 0_usize..3073, at in 0_usize..3073, byte: u8) {
        let folder = tempfile::tempdir().unwrap();
        let mut bytes = cifar_record(3);
        bytes[at] = byte;
        bytes.truncate(3073 - cut);
        fs::write(folder.path().join("test_batch.bin"), &bytes).unwrap();
        let opened = Cifar10::open(folder.path(), Split::Test);
        prop_assert_eq!(opened.is_ok(), cut == 0 && bytes[0] < 10);
    }
}
