//! `.safetensors` files: named tensors and text metadata, as PyTorch's ecosystem reads and writes them.
//!
//! The format: eight bytes of header length, a JSON header that gives each tensor's type, shape and place, then all
//! data without gaps (<https://github.com/huggingface/safetensors>). Read here rather than by the crate of that name,
//! because tensors share the file's bytes, duplicate names are refused, sizes are checked without overflow, and
//! writing streams to the disk in an order that is always the same.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Read as _, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::{DType, MAX_RANK, Tensor};

/// Longest header that is read, the format's own limit.
const MAX_HEADER: u64 = 100_000_000;

/// Bytes before the header.
const LENGTH_BYTES: usize = 8;

/// Named tensors with metadata.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TensorFile {
    /// Text by key.
    pub metadata: BTreeMap<String, String>,
    /// Tensors by name.
    pub tensors: BTreeMap<String, Tensor>,
}

/// Why a file could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The disk or the system refused.
    #[error("{}: {source} while {doing}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The bytes are not a `.safetensors` file.
    #[error("{}not a sound .safetensors file: {reason}", .path.as_ref().map(|path| format!("{}: ", path.display())).unwrap_or_default())]
    Malformed {
        /// The file, when the bytes came from one.
        path: Option<PathBuf>,
        /// What is wrong.
        reason: String,
    },
}

fn malformed(reason: impl Into<String>) -> FileError {
    FileError::Malformed {
        path: None,
        reason: reason.into(),
    }
}

impl TensorFile {
    /// Reads a file whole; its tensors share that memory.
    ///
    /// # Errors
    /// When it cannot be read or is not sound; the path is in the error.
    pub fn read(path: &Path) -> Result<Self, FileError> {
        let io = |doing| {
            move |source| FileError::Io {
                path: path.to_owned(),
                doing,
                source,
            }
        };
        // Asked before opening: opening a pipe would wait for a writer.
        let kind = std::fs::metadata(path).map_err(io("opening it"))?;
        if !kind.is_file() {
            let source = io::Error::other("not a regular file");
            return Err(io("opening it")(source));
        }
        let file = File::open(path).map_err(io("opening it"))?;
        let length = file.metadata().map_err(io("opening it"))?.len();
        let mut data = Vec::new();
        usize::try_from(length)
            .map_err(|_| io::ErrorKind::OutOfMemory.into())
            .and_then(|length| {
                data.try_reserve_exact(length)
                    .map_err(|_| io::ErrorKind::OutOfMemory.into())
            })
            .map_err(io("making room for it"))?;
        // No more than what there was room for, should the file grow meanwhile.
        file.take(length)
            .read_to_end(&mut data)
            .map_err(io("reading it"))?;
        TensorFile::from_bytes(data.into()).map_err(|error| match error {
            FileError::Malformed { reason, .. } => FileError::Malformed {
                path: Some(path.to_owned()),
                reason,
            },
            other => other,
        })
    }

    /// Reads a file's bytes; the tensors share them.
    ///
    /// # Errors
    /// When a length, offset, name, type or shape is not sound.
    pub fn from_bytes(bytes: Bytes) -> Result<Self, FileError> {
        let (length, rest) = bytes
            .split_first_chunk::<LENGTH_BYTES>()
            .ok_or_else(|| malformed("shorter than 8 bytes"))?;
        let length = u64::from_le_bytes(*length);
        if length > MAX_HEADER {
            return Err(malformed(format!(
                "its header would have {length} bytes, the most is {MAX_HEADER}"
            )));
        }
        let header = usize::try_from(length)
            .ok()
            .and_then(|length| rest.get(..length))
            .ok_or_else(|| {
                malformed(format!(
                    "cut short: the header has {length} bytes, {} are there",
                    rest.len()
                ))
            })?;
        let data = bytes.slice(LENGTH_BYTES + header.len()..);
        let header: Header = serde_json::from_slice(header)
            .map_err(|error| malformed(format!("its header: {error}")))?;
        let mut tensors = BTreeMap::new();
        for (name, tensor) in header.place(&data)? {
            tensors.insert(name, tensor);
        }
        Ok(TensorFile {
            metadata: header.metadata,
            tensors,
        })
    }

    /// Writes to anything that takes bytes. The same content always gives the same bytes.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write_to(&self, writer: &mut impl Write) -> io::Result<()> {
        // Wide elements first, so that every tensor is aligned to its elements; then by name.
        let mut order: Vec<(&String, &Tensor)> = self.tensors.iter().collect();
        order.sort_by_key(|(_, tensor)| std::cmp::Reverse(tensor.dtype().bytes()));
        let mut header = serde_json::Map::new();
        if !self.metadata.is_empty() {
            header.insert(METADATA_KEY.into(), serde_json::to_value(&self.metadata)?);
        }
        let mut offset = 0_usize;
        for (name, tensor) in &order {
            let end = offset + tensor.data().len();
            let entry = Entry {
                dtype: file_dtype(tensor.dtype()).into(),
                shape: tensor.dims().to_vec(),
                data_offsets: (offset, end),
            };
            header.insert((*name).clone(), serde_json::to_value(entry)?);
            offset = end;
        }
        let mut header = serde_json::to_vec(&header)?;
        // The data starts at a multiple of eight bytes.
        header.resize(header.len().next_multiple_of(8), b' ');
        if header.len() as u64 > MAX_HEADER {
            return Err(io::Error::other(
                "more names than the format's header holds",
            ));
        }
        writer.write_all(&(header.len() as u64).to_le_bytes())?;
        writer.write_all(&header)?;
        for (_, tensor) in order {
            writer.write_all(tensor.data())?;
        }
        Ok(())
    }

    /// The file's bytes.
    ///
    /// # Errors
    /// When the header would be longer than the format allows.
    pub fn to_bytes(&self) -> Result<Bytes, FileError> {
        let mut bytes = Vec::new();
        self.write_to(&mut bytes)
            .map_err(|error| malformed(error.to_string()))?;
        Ok(bytes.into())
    }

    /// Writes the file and makes it durable, or leaves what was there: the bytes go to a temporary file in the same
    /// folder that takes the name when all of them are on the disk.
    ///
    /// # Errors
    /// When a step of that fails, with the path.
    pub fn write(&self, path: &Path) -> Result<(), FileError> {
        let io = |doing| {
            move |source| FileError::Io {
                path: path.to_owned(),
                doing,
                source,
            }
        };
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let mut builder = tempfile::Builder::new();
        builder.prefix(".outboard-").suffix(".partial");
        // Temporary files are private by default; a model gets what the owner's umask gives any file.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let mut temporary = builder
            .tempfile_in(folder)
            .map_err(io("making a temporary file beside it"))?;
        let mut writer = BufWriter::with_capacity(1 << 20, temporary.as_file_mut());
        self.write_to(&mut writer)
            .and_then(|()| writer.flush())
            .map_err(io("writing it"))?;
        drop(writer);
        temporary
            .as_file()
            .sync_all()
            .map_err(io("making it durable"))?;
        temporary
            .persist(path)
            .map_err(|error| io("replacing it")(error.error))?;
        // The new name is durable once its folder is.
        #[cfg(unix)]
        File::open(folder)
            .and_then(|folder| folder.sync_all())
            .map_err(io("making its name durable"))?;
        Ok(())
    }
}

const METADATA_KEY: &str = "__metadata__";

fn file_dtype(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "F32",
        DType::F16 => "F16",
        DType::BF16 => "BF16",
        DType::I64 => "I64",
        DType::Bool => "BOOL",
    }
}

/// One tensor of the header.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (usize, usize),
}

/// The header, tensors in the order of the file.
#[derive(Default)]
struct Header {
    metadata: BTreeMap<String, String>,
    entries: BTreeMap<String, Entry>,
}

impl Header {
    /// The tensors over their bytes; the data must be theirs without gap, overlap or rest.
    fn place(&self, data: &Bytes) -> Result<Vec<(String, Tensor)>, FileError> {
        let mut entries: Vec<(&String, &Entry)> = self.entries.iter().collect();
        entries.sort_by_key(|(_, entry)| entry.data_offsets);
        let mut offset = 0_usize;
        let mut tensors = Vec::with_capacity(entries.len());
        for (name, entry) in entries {
            let (start, end) = entry.data_offsets;
            if start != offset || end < start {
                return Err(malformed(format!(
                    "tensor {name:?} lies at {start}..{end}, expected at {offset}"
                )));
            }
            if end > data.len() {
                return Err(malformed(format!(
                    "cut short: tensor {name:?} ends at {end}, the data has {} bytes",
                    data.len()
                )));
            }
            let dtype = (DType::ALL.into_iter())
                .find(|dtype| file_dtype(*dtype) == entry.dtype)
                .ok_or_else(|| {
                    malformed(format!(
                        "tensor {name:?} is {}; convert it to F32, F16, BF16, I64 or BOOL",
                        entry.dtype
                    ))
                })?;
            if entry.shape.len() > MAX_RANK {
                return Err(malformed(format!(
                    "tensor {name:?} has {} dimensions, the most is {MAX_RANK}",
                    entry.shape.len()
                )));
            }
            let tensor = Tensor::from_bytes(dtype, entry.shape.clone(), data.slice(start..end))
                .map_err(|error| malformed(format!("tensor {name:?}: {error}")))?;
            tensors.push((name.clone(), tensor));
            offset = end;
        }
        if offset != data.len() {
            return Err(malformed(format!(
                "{} bytes behind the last tensor",
                data.len() - offset
            )));
        }
        Ok(tensors)
    }
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct HeaderVisitor;

        impl<'de> Visitor<'de> for HeaderVisitor {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of tensors by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut header = Header::default();
                let mut has_metadata = false;
                while let Some(name) = map.next_key::<String>()? {
                    let twice = if name == METADATA_KEY {
                        header.metadata = map.next_value()?;
                        std::mem::replace(&mut has_metadata, true)
                    } else {
                        let entry = map.next_value()?;
                        header.entries.insert(name.clone(), entry).is_some()
                    };
                    if twice {
                        return Err(A::Error::custom(format_args!("{name:?} stands twice")));
                    }
                }
                Ok(header)
            }
        }

        deserializer.deserialize_map(HeaderVisitor)
    }
}
