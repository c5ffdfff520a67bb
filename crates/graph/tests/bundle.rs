//! Bundles: what is written comes back, other programs read it, and no bytes do harm.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::collections::BTreeMap;

use bytes::Bytes;
use outboard_graph::{
    Bundle, BundleError, DType, Graph, Tensor, TensorFile, Weights, WeightsError, check_weights,
    hex, weights_sha256,
};
use proptest::prelude::*;

const GRAPH: &str = r#"graph "linear" {
  %0: f32[B,3] = data "input"
  %1: f32[2,3] = parameter "head.weight"
  %2: f32[2] = frozen "head.bias"
  %3: f32[3,2] = permute(%1, dims=[1,0])
  %4: f32[B,2] = addmm(%2, %0, %3)
  return result "output" %4
}
"#;

fn weights() -> Weights {
    BTreeMap::from([
        (
            "head.weight".to_owned(),
            Tensor::from_f32([2, 3], &[1.0, -2.0, 3.5, 0.0, f32::MIN_POSITIVE, 6.0]).unwrap(),
        ),
        (
            "head.bias".to_owned(),
            Tensor::from_f32([2], &[0.5, -0.0]).unwrap(),
        ),
    ])
}

fn bundle() -> Bundle {
    Bundle::new(GRAPH.parse::<Graph>().unwrap(), weights()).unwrap()
}

#[test]
fn a_bundle_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    bundle().write(&path).unwrap();
    let read = Bundle::read(&path).unwrap();
    assert_eq!(read, bundle());
    assert_eq!(read.graph.to_string(), GRAPH);
    // The same content gives the same bytes, and nothing else lies in the folder.
    assert_eq!(
        std::fs::read(&path).unwrap(),
        bundle().to_file().to_bytes().unwrap()
    );
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn the_formats_own_crate_reads_it() {
    let mut file = bundle().to_file();
    let extra = [
        (
            "half",
            Tensor::from_bytes(DType::F16, [3], Bytes::from_static(&[0; 6])).unwrap(),
        ),
        (
            "brain",
            Tensor::from_bytes(DType::BF16, [1], Bytes::from_static(&[1; 2])).unwrap(),
        ),
        ("long", Tensor::from_i64([1], &[-7]).unwrap()),
        (
            "flag",
            Tensor::from_bool([3], &[true, false, true]).unwrap(),
        ),
    ];
    for (name, tensor) in extra {
        file.tensors.insert(name.into(), tensor);
    }
    let bytes = file.to_bytes().unwrap();
    let theirs = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(theirs.len(), file.tensors.len());
    for (name, tensor) in &file.tensors {
        let view = theirs.tensor(name).unwrap();
        assert_eq!(view.shape(), tensor.dims());
        assert_eq!(view.data(), &tensor.data()[..]);
    }
    // And the other way round.
    let views: Vec<_> = theirs.iter().collect();
    let written = safetensors::serialize(views, None).unwrap();
    let read = TensorFile::from_bytes(written.into()).unwrap();
    assert_eq!(read.tensors, file.tensors);
}

#[test]
fn the_hash_is_over_names_types_shapes_and_data() {
    // python3: h=hashlib.sha256(); for each name in order: name+b"\0"+b"f32"+b"\0"+dims as <Q + data
    assert_eq!(
        hex(&weights_sha256(&weights())),
        "6f839d18f6fa24c37a84a1451072139bc43a9b9763fe82f13c38b43efe3d0eae"
    );
    let mut other = weights();
    let bias = other["head.bias"].reshaped([2, 1]).unwrap();
    other.insert("head.bias".into(), bias);
    assert_ne!(weights_sha256(&other), weights_sha256(&weights()));
}

#[test]
fn weights_must_be_the_models() {
    let graph: Graph = GRAPH.parse().unwrap();
    let mut missing = weights();
    missing.remove("head.bias");
    assert_eq!(
        check_weights(&graph, &missing),
        Err(WeightsError::Missing("head.bias".into()))
    );
    let mut extra = weights();
    for number in 0..7 {
        extra.insert(format!("x{number}"), Tensor::scalar(0.0));
    }
    assert_eq!(
        check_weights(&graph, &extra).unwrap_err().to_string(),
        "tensors that the model does not have: x0, x1, x2, x3, x4 and 2 more"
    );
    let mut wrong = weights();
    wrong.insert("head.bias".into(), Tensor::scalar(0.0));
    assert_eq!(
        check_weights(&graph, &wrong).unwrap_err().to_string(),
        "weight \"head.bias\" is f32[], the model's is f32[2]"
    );
}

#[test]
fn other_files_are_refused() {
    let plain = TensorFile {
        metadata: BTreeMap::from([("format".into(), "pt".into())]),
        tensors: weights(),
    };
    assert!(matches!(
        Bundle::from_file(plain),
        Err(BundleError::NoGraph)
    ));
    let mut newer = bundle().to_file();
    newer.metadata.insert("outboard.version".into(), "2".into());
    assert!(matches!(
        Bundle::from_file(newer),
        Err(BundleError::Version { found }) if found == "2"
    ));
    let mut broken = bundle().to_file();
    let text = GRAPH.replace("%4: f32[B,2]", "%4: f32[B,3]");
    broken.metadata.insert("outboard.graph".into(), text);
    assert!(matches!(
        Bundle::from_file(broken),
        Err(BundleError::Graph(_))
    ));
    let folder = tempfile::tempdir().unwrap();
    let error = Bundle::read(folder.path()).unwrap_err().to_string();
    assert!(error.contains("not a regular file"), "{error}");
    let error = Bundle::read(std::path::Path::new("/nowhere/model.safetensors")).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("/nowhere/model.safetensors: "),
        "{error}"
    );
}

#[track_caller]
fn malformed(header: &str, data: usize, reason: &str) {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    let error = TensorFile::from_bytes(bytes.into()).unwrap_err();
    assert!(error.to_string().contains(reason), "{error}");
}

#[test]
fn hostile_headers_are_named() {
    let huge = [u64::MAX.to_le_bytes(), 0_u64.to_le_bytes()].concat();
    let error = TensorFile::from_bytes(huge.into()).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("its header would have 18446744073709551615 bytes")
    );
    malformed(
        r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#,
        3,
        "cut short: tensor \"a\"",
    );
    malformed(
        r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#,
        5,
        "1 bytes behind the last tensor",
    );
    malformed(
        r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#,
        4,
        "has 8 bytes, not 4",
    );
    malformed(
        r#"{"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}}"#,
        8,
        "is F64; convert it",
    );
    malformed(
        r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#,
        8,
        "expected at 0",
    );
    malformed(
        r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#,
        4,
        "expected at 4",
    );
    malformed(
        r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#,
        8,
        "\"a\" stands twice",
    );
    malformed(
        r#"{"a":{"dtype":"F32","shape":[18446744073709551615,18446744073709551615],"data_offsets":[0,4]}}"#,
        4,
        "does not fit this machine",
    );
    malformed(
        r#"{"a":{"dtype":"F32","shape":[],"data_offsets":[0,18446744073709551615]}}"#,
        4,
        "cut short",
    );
    malformed(
        r#"{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#,
        4,
        "its header",
    );
    malformed(
        r#"{"a":{"dtype":"BOOL","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}}"#,
        1,
        "9 dimensions",
    );
    malformed("{", 0, "its header");
    let nested = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    malformed(&nested, 0, "its header");
}

#[test]
fn every_truncation_is_an_error() {
    let bytes = bundle().to_file().to_bytes().unwrap();
    for length in 0..bytes.len() {
        assert!(
            Bundle::from_bytes(bytes.slice(..length)).is_err(),
            "{length}"
        );
    }
}

#[test]
fn a_failed_write_leaves_the_old_file() {
    let folder = tempfile::tempdir().unwrap();
    // The name is a folder with something in it: taking the name fails as the last step.
    let path = folder.path().join("model.safetensors");
    std::fs::create_dir(&path).unwrap();
    std::fs::write(path.join("old"), "old").unwrap();
    let error = bundle().write(&path).unwrap_err().to_string();
    assert!(error.contains("while replacing it"), "{error}");
    assert_eq!(std::fs::read_to_string(path.join("old")).unwrap(), "old");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);

    let nowhere = folder.path().join("no/such/folder/model.safetensors");
    let error = bundle().write(&nowhere).unwrap_err().to_string();
    assert!(
        error.contains("making a temporary file beside it"),
        "{error}"
    );
}

#[cfg(unix)]
#[test]
fn a_bundle_is_as_private_as_any_file() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    bundle().write(&path).unwrap();
    let plain = folder.path().join("plain");
    std::fs::write(&plain, "").unwrap();
    let mode = |path| std::fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&path), mode(&plain));
}

proptest! {
    #![proptest_config(common::config(2000))]

    /// Flipped bytes: an error, or a sound bundle with weights of the graph's types.
    #[test]
    fn no_flipped_byte_panics(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = bundle().to_file().to_bytes().unwrap().to_vec();
        for (place, byte) in flips {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        if let Ok(read) = Bundle::from_bytes(bytes.into()) {
            read.graph.verify().unwrap();
            prop_assert_eq!(check_weights(&read.graph, &read.weights), Ok(()));
        }
    }
}
