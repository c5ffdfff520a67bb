//! What can be wrong with data.

use std::path::{Path, PathBuf};

/// Why data could not be had, which file is at fault and what to try.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The operating system refused.
    #[error("cannot read {path}: {source}", path = path.display())]
    Io {
        /// File or folder.
        path: PathBuf,
        /// Its words.
        source: std::io::Error,
    },
    /// A file that is not what it should be.
    #[error("{path}: {reason}", path = path.display())]
    Format {
        /// File.
        path: PathBuf,
        /// What is wrong and what to try.
        reason: String,
    },
    /// A folder that is not laid out as expected.
    #[error("{path}: {reason}", path = path.display())]
    Layout {
        /// Folder.
        path: PathBuf,
        /// What is missing and what to try.
        reason: String,
    },
    /// One image of many that cannot be decoded.
    #[error("{path} cannot be decoded: {reason}; remove it, or let corrupt images be skipped", path = path.display())]
    CorruptImage {
        /// File.
        path: PathBuf,
        /// The decoder's words.
        reason: String,
    },
    /// Not one image of an epoch could be decoded.
    #[error("{dataset}: none of {images} images could be decoded, the first because: {first}")]
    NothingReadable {
        /// Data set.
        dataset: String,
        /// Images tried.
        images: usize,
        /// Why the first failed.
        first: String,
    },
    /// A data specification that is none.
    #[error(
        "unknown data `{0}`; give builtin, fashion-mnist:DIR, mnist:DIR, cifar10:DIR, images:DIR or noise:3x224"
    )]
    Spec(String),
    /// Options that make no sense.
    #[error("{0}")]
    Options(String),
}

impl DataError {
    pub(crate) fn io(path: impl AsRef<Path>, source: std::io::Error) -> Self {
        DataError::Io {
            path: path.as_ref().to_owned(),
            source,
        }
    }

    pub(crate) fn format(path: impl AsRef<Path>, reason: impl Into<String>) -> Self {
        DataError::Format {
            path: path.as_ref().to_owned(),
            reason: reason.into(),
        }
    }

    pub(crate) fn layout(path: impl AsRef<Path>, reason: impl Into<String>) -> Self {
        DataError::Layout {
            path: path.as_ref().to_owned(),
            reason: reason.into(),
        }
    }
}
