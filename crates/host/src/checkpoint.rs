//! Checkpoints: a folder a step, that is there whole or not at all.
//!
//! ```text
//! DIR/step-000120/weights.safetensors     bundle: graph, and weights under PyTorch's names
//! DIR/step-000120/optimizer.safetensors   NAME/STATE; metadata: step, seed, optimizer, position in the data
//! ```
//!
//! Both files are written into a hidden folder and made durable, then the folder takes its name in one move. Older
//! checkpoints go only after that, so a full disk or a lost power supply leaves the last one as it was. Nothing in a
//! checkpoint depends on the number of devices.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use outboard_graph::{
    Bundle, BundleError, FileError, Graph, Tensor, TensorFile, hex, weights_sha256,
};
use outboard_wire::Optimizer;

use crate::optimizer_text;

/// The bundle's file name.
pub const WEIGHTS_FILE: &str = "weights.safetensors";
/// The optimizer state's file name.
pub const OPTIMIZER_FILE: &str = "optimizer.safetensors";

const STEP_KEY: &str = "outboard.step";
const SEED_KEY: &str = "outboard.seed";
const OPTIMIZER_KEY: &str = "outboard.optimizer";
const POSITION_KEY: &str = "outboard.position";
/// Ties the two files to each other.
const WEIGHTS_KEY: &str = "outboard.weights_sha256";

/// Everything that a run needs to go on.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// The canonical model.
    pub graph: Graph,
    /// Every parameter, frozen weight and buffer.
    pub weights: BTreeMap<String, Tensor>,
    /// The optimizer's state by `NAME/STATE`.
    pub optimizer_state: BTreeMap<String, Tensor>,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// Optimizer steps taken.
    pub step: u64,
    /// Seed of the run.
    pub seed: u64,
    /// Where in the data the next batch begins, in the caller's own words.
    pub position: String,
}

/// Why a checkpoint could not be saved or loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The disk or the system refused. When saving, what was saved before is untouched.
    #[error("checkpoint {}: {source} while {doing}", .path.display())]
    Io {
        /// File or folder.
        path: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A file could not be read, written or made sense of.
    #[error(transparent)]
    File(#[from] FileError),
    /// The weights and the graph do not fit each other.
    #[error("checkpoint {}: {source}", .path.display())]
    Bundle {
        /// The folder.
        path: PathBuf,
        /// What does not fit.
        source: Box<BundleError>,
    },
    /// The folder holds no checkpoint.
    #[error("{} holds no checkpoint: neither {WEIGHTS_FILE} nor a folder named step-N", .0.display())]
    None(PathBuf),
    /// The optimizer's file does not say what it must, or belongs to other weights.
    #[error("checkpoint {}: {reason}", .path.display())]
    Damaged {
        /// The folder.
        path: PathBuf,
        /// What is wrong and what to try.
        reason: String,
    },
    /// It is a checkpoint of another model.
    #[error("the checkpoint is of another model: {0}")]
    OtherModel(String),
}

impl Checkpoint {
    /// Saves to `folder/step-N` and then removes all but the newest `keep` checkpoints. Gives the new folder.
    ///
    /// # Errors
    ///
    /// When the disk is full or refuses, or the weights do not fit the graph; older checkpoints are untouched then.
    pub fn save(&self, folder: &Path, keep: usize) -> Result<PathBuf, CheckpointError> {
        self.save_by(folder, keep, &|file, path| file.write(path))
    }

    fn save_by(
        &self,
        folder: &Path,
        keep: usize,
        write: &dyn Fn(&TensorFile, &Path) -> Result<(), FileError>,
    ) -> Result<PathBuf, CheckpointError> {
        let place = folder.join(folder_name(self.step));
        let bundle = Bundle::new(self.graph.clone(), self.weights.clone()).map_err(|source| {
            CheckpointError::Bundle {
                path: place.clone(),
                source: Box::new(source),
            }
        })?;
        fs::create_dir_all(folder).map_err(io_error(folder, "making the folder"))?;
        recover(folder)?;
        let making = folder.join(format!(".{}.unfinished", folder_name(self.step)));
        let done = self.write_files(&making, &bundle, write).and_then(|()| {
            if place.exists() {
                // The same step once more: the old one makes way only now that the new one is on the disk.
                let old = folder.join(format!(".{}.replaced", folder_name(self.step)));
                fs::rename(&place, &old).map_err(io_error(&place, "replacing it"))?;
            }
            fs::rename(&making, &place).map_err(io_error(&place, "naming it"))?;
            sync(folder)
        });
        if let Err(error) = done {
            // A disk that is full needs the space; when this fails too, the next save tries again.
            let _ = recover(folder);
            return Err(error);
        }
        recover(folder)?;
        for (_, old) in all(folder)?.into_iter().rev().skip(keep.max(1)) {
            fs::remove_dir_all(&old).map_err(io_error(&old, "removing an old checkpoint"))?;
        }
        Ok(place)
    }

    fn write_files(
        &self,
        making: &Path,
        bundle: &Bundle,
        write: &dyn Fn(&TensorFile, &Path) -> Result<(), FileError>,
    ) -> Result<(), CheckpointError> {
        fs::create_dir(making).map_err(io_error(making, "making the folder"))?;
        write(&bundle.to_file(), &making.join(WEIGHTS_FILE))?;
        let metadata = [
            (STEP_KEY, self.step.to_string()),
            (SEED_KEY, self.seed.to_string()),
            (OPTIMIZER_KEY, optimizer_text::print(&self.optimizer)),
            (POSITION_KEY, self.position.clone()),
            (WEIGHTS_KEY, hex(&bundle.weights_sha256())),
        ];
        let optimizer = TensorFile {
            metadata: metadata.map(|(key, value)| (key.to_owned(), value)).into(),
            tensors: self.optimizer_state.clone(),
        };
        write(&optimizer, &making.join(OPTIMIZER_FILE))?;
        sync(making)
    }

    /// Loads a checkpoint's folder, or the newest of those in `folder`, and verifies all of it.
    ///
    /// # Errors
    ///
    /// When there is none, or a part of it is missing or damaged.
    pub fn load(folder: &Path) -> Result<Checkpoint, CheckpointError> {
        let folder = if folder.join(WEIGHTS_FILE).exists() {
            folder.to_owned()
        } else {
            recover(folder)?;
            latest(folder)?.ok_or_else(|| CheckpointError::None(folder.to_owned()))?
        };
        let damaged = |reason: String| CheckpointError::Damaged {
            path: folder.clone(),
            reason,
        };
        let bundle =
            Bundle::read(&folder.join(WEIGHTS_FILE)).map_err(|source| CheckpointError::Bundle {
                path: folder.clone(),
                source: Box::new(source),
            })?;
        let file = TensorFile::read(&folder.join(OPTIMIZER_FILE))?;
        let text = |key: &str| {
            file.metadata
                .get(key)
                .ok_or_else(|| damaged(format!("{OPTIMIZER_FILE} lacks `{key}`")))
        };
        let number = |key: &str| {
            text(key)?
                .parse::<u64>()
                .map_err(|_| damaged(format!("{OPTIMIZER_FILE}: `{key}` is no number")))
        };
        if *text(WEIGHTS_KEY)? != hex(&weights_sha256(&bundle.weights)) {
            return Err(damaged(format!(
                "{OPTIMIZER_FILE} belongs to other weights than {WEIGHTS_FILE}; resume from an older checkpoint"
            )));
        }
        for (key, state) in &file.tensors {
            let of = key
                .rsplit_once('/')
                .and_then(|(name, _)| bundle.weights.get(name));
            if of.is_none_or(|weight| weight.ty() != state.ty()) {
                return Err(damaged(format!(
                    "optimizer state `{key}` belongs to no parameter"
                )));
            }
        }
        let optimizer = optimizer_text::parse(text(OPTIMIZER_KEY)?)
            .ok_or_else(|| damaged(format!("{OPTIMIZER_FILE} names no known optimizer")))?;
        Ok(Checkpoint {
            optimizer,
            step: number(STEP_KEY)?,
            seed: number(SEED_KEY)?,
            position: text(POSITION_KEY)?.clone(),
            graph: bundle.graph,
            weights: bundle.weights,
            optimizer_state: file.tensors,
        })
    }

    /// That this is a checkpoint of `graph`.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::OtherModel`] with the first difference.
    pub fn check_model(&self, graph: &Graph) -> Result<(), CheckpointError> {
        if self.graph == *graph {
            return Ok(());
        }
        let (saved, wanted) = (self.graph.to_string(), graph.to_string());
        let difference = saved
            .lines()
            .map(Some)
            .chain(std::iter::repeat(None))
            .zip(wanted.lines().map(Some).chain(std::iter::repeat(None)))
            .take_while(|(saved, wanted)| saved.is_some() || wanted.is_some())
            .find(|(saved, wanted)| saved != wanted);
        let show = |line: Option<&str>| line.map_or("nothing more", str::trim).to_owned();
        Err(CheckpointError::OtherModel(match difference {
            Some((saved, wanted)) => {
                format!("it has `{}`, this run `{}`", show(saved), show(wanted))
            }
            None => "their graphs differ".to_owned(),
        }))
    }
}

/// The newest checkpoint in a folder, if there is one.
///
/// # Errors
///
/// When the folder cannot be read.
pub fn latest(folder: &Path) -> Result<Option<PathBuf>, CheckpointError> {
    Ok(all(folder)?.pop().map(|(_, path)| path))
}

fn folder_name(step: u64) -> String {
    format!("step-{step:06}")
}

/// All complete checkpoints, oldest first.
fn all(folder: &Path) -> Result<Vec<(u64, PathBuf)>, CheckpointError> {
    let mut found = Vec::new();
    for path in entries(folder)? {
        let step = path
            .file_name()
            .and_then(|name| name.to_str())
            .and_then(|name| name.strip_prefix("step-"))
            .and_then(|step| step.parse::<u64>().ok());
        if let Some(step) = step
            && path.join(WEIGHTS_FILE).is_file()
            && path.join(OPTIMIZER_FILE).is_file()
        {
            found.push((step, path));
        }
    }
    found.sort_unstable();
    Ok(found)
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, CheckpointError> {
    fs::read_dir(folder)
        .and_then(|entries| {
            entries
                .map(|entry| entry.map(|entry| entry.path()))
                .collect()
        })
        .map_err(io_error(folder, "looking for checkpoints"))
}

/// Removes what an earlier process left when it ended in the middle of a save, and gives a checkpoint its name back whose
/// replacement never came.
fn recover(folder: &Path) -> Result<(), CheckpointError> {
    for path in entries(folder)? {
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let Some(name) = name
            .strip_prefix('.')
            .filter(|name| name.starts_with("step-"))
        else {
            continue;
        };
        if let Some(name) = name.strip_suffix(".replaced") {
            let place = folder.join(name);
            if !place.exists() {
                fs::rename(&path, &place).map_err(io_error(&place, "taking it back"))?;
                continue;
            }
        } else if !name.ends_with(".unfinished") {
            continue;
        }
        fs::remove_dir_all(&path).map_err(io_error(&path, "removing an unfinished save"))?;
    }
    Ok(())
}

/// Makes the names in a folder durable.
fn sync(folder: &Path) -> Result<(), CheckpointError> {
    // Windows opens no folders; its renames are durable in order.
    if cfg!(unix) {
        File::open(folder)
            .and_then(|folder| folder.sync_all())
            .map_err(io_error(folder, "making it durable"))?;
    }
    Ok(())
}

fn io_error(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> CheckpointError {
    let path = path.to_owned();
    move |source| CheckpointError::Io {
        path,
        doing,
        source,
    }
}

#[cfg(test)]
mod tests {
    use outboard_graph::init;
    use outboard_graph::zoo::{self, ZooOptions};

    use super::*;

    fn checkpoint(step: u64, classes: usize) -> Checkpoint {
        let options = ZooOptions {
            image_size: 2,
            channels: 1,
            classes,
            dropout: Some(0.0),
            ..ZooOptions::default()
        };
        let graph = zoo::build("mlp", &options).unwrap();
        let weights = init::weights(&graph, step).unwrap();
        let state = weights
            .iter()
            .map(|(name, tensor)| (format!("{name}/momentum_buffer"), tensor.clone()))
            .collect();
        Checkpoint {
            graph,
            weights,
            optimizer_state: state,
            optimizer: Optimizer::Sgd {
                momentum: 0.9,
                dampening: 0.0,
                weight_decay: 1e-4,
                nesterov: true,
            },
            step,
            seed: 7,
            position: "epoch 1, batch 3".into(),
        }
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = entries(folder)
            .unwrap()
            .iter()
            .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn saves_loads_and_keeps_the_newest() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("made/later");
        for step in [5, 10, 100, 1_000_000] {
            checkpoint(step, 3).save(&folder, 2).unwrap();
        }
        assert_eq!(names(&folder), ["step-000100", "step-1000000"]);
        assert_eq!(Checkpoint::load(&folder).unwrap(), checkpoint(1_000_000, 3));
        assert_eq!(
            Checkpoint::load(&folder.join("step-000100")).unwrap(),
            checkpoint(100, 3)
        );
        // The same step again replaces it.
        let mut again = checkpoint(1_000_000, 3);
        again.position = "elsewhere".into();
        again.save(&folder, 2).unwrap();
        assert_eq!(names(&folder).len(), 2);
        assert_eq!(Checkpoint::load(&folder).unwrap().position, "elsewhere");
    }

    #[test]
    fn a_full_disk_leaves_the_last_checkpoint() {
        let folder = tempfile::tempdir().unwrap();
        checkpoint(1, 3).save(folder.path(), 1).unwrap();
        for fails in [WEIGHTS_FILE, OPTIMIZER_FILE] {
            let full = |file: &TensorFile, path: &Path| {
                if !path.ends_with(fails) {
                    return file.write(path);
                }
                let bytes = file.to_bytes()?;
                fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
                Err(FileError::Io {
                    path: path.to_owned(),
                    doing: "writing it",
                    source: io::ErrorKind::StorageFull.into(),
                })
            };
            let error = checkpoint(2, 3)
                .save_by(folder.path(), 1, &full)
                .unwrap_err();
            assert!(
                matches!(error, CheckpointError::File(FileError::Io { .. })),
                "{error}"
            );
            assert_eq!(names(folder.path()), ["step-000001"]);
            assert_eq!(Checkpoint::load(folder.path()).unwrap(), checkpoint(1, 3));
        }
    }

    #[test]
    fn what_a_killed_process_left_is_no_checkpoint_and_goes() {
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(
            Checkpoint::load(folder.path()),
            Err(CheckpointError::None(_))
        ));
        let half = folder.path().join(".step-000009.unfinished");
        fs::create_dir(&half).unwrap();
        fs::write(half.join(WEIGHTS_FILE), "half").unwrap();
        fs::create_dir(folder.path().join("step-000010")).unwrap();
        assert_eq!(latest(folder.path()).unwrap(), None);
        checkpoint(3, 3).save(folder.path(), 1).unwrap();
        assert_eq!(names(folder.path()), ["step-000003", "step-000010"]);
        assert_eq!(Checkpoint::load(folder.path()).unwrap().step, 3);
        // Killed between the two moves that replace a checkpoint.
        let place = folder.path().join("step-000003");
        fs::rename(&place, folder.path().join(".step-000003.replaced")).unwrap();
        assert_eq!(Checkpoint::load(folder.path()).unwrap().step, 3);
        assert!(place.exists());
    }

    #[test]
    fn another_model_is_refused_with_the_first_difference() {
        let error = checkpoint(1, 3)
            .check_model(&checkpoint(1, 4).graph)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("f32[3") && error.contains("f32[4"),
            "{error}"
        );
        checkpoint(1, 3)
            .check_model(&checkpoint(2, 3).graph)
            .unwrap();
    }

    #[test]
    fn damage_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let place = checkpoint(1, 3).save(folder.path(), 1).unwrap();
        for name in [WEIGHTS_FILE, OPTIMIZER_FILE] {
            let path = place.join(name);
            let good = fs::read(&path).unwrap();
            for length in [0, 7, 8, good.len() / 2, good.len() - 1] {
                fs::write(&path, &good[..length]).unwrap();
                assert!(
                    Checkpoint::load(folder.path()).is_err(),
                    "{name}: {length} bytes"
                );
            }
            fs::write(&path, &good).unwrap();
        }
        // Weights of one step with the optimizer of another.
        let other = checkpoint(2, 3).save(folder.path(), 2).unwrap();
        fs::copy(other.join(WEIGHTS_FILE), place.join(WEIGHTS_FILE)).unwrap();
        let error = Checkpoint::load(&place).unwrap_err();
        assert!(
            error.to_string().contains("belongs to other weights"),
            "{error}"
        );
    }
}
