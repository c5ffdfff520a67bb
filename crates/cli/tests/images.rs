//! Folders of images, with some that cannot be read.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking; clippy only knows that of functions marked as tests"
)]

mod common;

use std::path::Path;

use common::run;

/// Two classes of eight small images; some are cut short or are no images at all.
fn folder(corrupt: &[(&str, &[u8])]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("folder");
    for part in ["train", "test"] {
        for (class, name) in ["boots", "shirts"].into_iter().enumerate() {
            let place = folder.path().join(part).join(name);
            std::fs::create_dir_all(&place).expect("folder");
            for index in 0..8 {
                std::fs::write(
                    place.join(format!("{index}.pgm.bmp")),
                    bitmap(class * 128 + index),
                )
                .expect("write");
            }
        }
    }
    for (name, bytes) in corrupt {
        std::fs::write(folder.path().join("train/boots").join(name), bytes).expect("write");
    }
    folder
}

/// A grey 8x8 image as an uncompressed 24-bit bitmap.
fn bitmap(grey: usize) -> Vec<u8> {
    let pixels = vec![u8::try_from(grey).expect("a grey"); 8 * 8 * 3];
    let mut file = b"BM".to_vec();
    file.extend((54 + pixels.len() as u32).to_le_bytes());
    file.extend([0; 4]);
    file.extend(54_u32.to_le_bytes());
    for value in [40_u32, 8, 8] {
        file.extend(value.to_le_bytes());
    }
    file.extend(1_u16.to_le_bytes());
    file.extend(24_u16.to_le_bytes());
    file.extend([0; 24]);
    file.extend(pixels);
    file
}

fn train(folder: &Path, more: &[&str]) -> common::Finished {
    let data = format!("images:{}", folder.display());
    let mut arguments = vec![
        "train",
        "mlp",
        "--data",
        &data,
        "--image-size",
        "8",
        "--batch",
        "4",
        "--threads",
        "1",
        "--json",
    ];
    arguments.extend(more);
    run(&arguments)
}

#[test]
fn a_folder_of_images_trains() {
    let folder = folder(&[]);
    let done = train(folder.path(), &["--epochs", "2", "--eval"]);
    assert!(done.done()["test_accuracy"].is_number());
    assert!(done.all("corrupt_image").is_empty());
}

#[test]
fn corrupt_images_are_named_and_counted() {
    let cut = &bitmap(9)[..80];
    let folder = folder(&[
        ("cut.bmp", cut),
        ("letter.png", b"Dear all,"),
        ("empty.jpg", b""),
    ]);
    let done = train(folder.path(), &["--epochs", "1"]);
    assert_eq!(done.done()["corrupt_images"], 3);
    for name in ["cut.bmp", "letter.png", "empty.jpg"] {
        let told = done.all("corrupt_image");
        assert!(
            told.iter().any(|event| event["reason"]
                .as_str()
                .is_some_and(|reason| reason.contains(name))),
            "{told:?}"
        );
        assert!(done.stderr.contains(name), "{}", done.stderr);
    }
}

#[test]
fn a_corrupt_image_is_fatal_when_asked() {
    let folder = folder(&[("letter.png", b"Dear all,")]);
    let message = train(folder.path(), &["--epochs", "1", "--corrupt", "fail"]).error(2);
    assert!(message.contains("letter.png"), "{message}");
}

#[test]
fn a_folder_without_images_is_named() {
    let empty = tempfile::tempdir().expect("folder");
    let message = train(empty.path(), &["--epochs", "1"]).error(2);
    assert!(
        message.contains(&empty.path().display().to_string()),
        "{message}"
    );
}
