//! Profiles on disk: one JSON file for each device and build.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{DeviceKey, DeviceProfile};

/// Version of the file's layout; files of another one are ignored.
const VERSION: u32 = 1;
/// Largest file that is read.
const MAX_BYTES: u64 = 64 << 20;

/// A folder of profiles.
#[derive(Clone, Debug)]
pub struct ProfileCache {
    folder: PathBuf,
}

/// What the cache had.
#[derive(Debug)]
pub enum Cached {
    /// A profile of exactly this device and build.
    Found(DeviceProfile),
    /// None was saved yet.
    Absent,
    /// There is a file that cannot be used, for this reason; measuring again replaces it.
    Ignored {
        /// The file.
        path: PathBuf,
        /// For people.
        reason: String,
    },
}

/// A profile could not be saved; the one saved before is untouched.
#[derive(Debug, thiserror::Error)]
#[error("cannot save the profile of {device} to {path:?}: {source}")]
pub struct CacheError {
    /// The device's id.
    pub device: String,
    /// Where to.
    pub path: PathBuf,
    /// Why.
    pub source: std::io::Error,
}

#[derive(Serialize, Deserialize)]
struct File {
    version: u32,
    profile: DeviceProfile,
}

impl ProfileCache {
    /// A cache in this folder, which is made when something is saved.
    pub fn new(folder: impl Into<PathBuf>) -> ProfileCache {
        ProfileCache {
            folder: folder.into(),
        }
    }

    /// The file of a device and build. Its name is a hash, since ids and builds may hold any character.
    pub fn path(&self, key: &DeviceKey) -> PathBuf {
        let mut hash = Sha256::new();
        for part in [
            &key.device_id,
            &key.build,
            &key.engine,
            &key.threads.to_string(),
        ] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        }
        let digits: String = hash
            .finalize()
            .iter()
            .take(12)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        self.folder.join(format!("profile-{digits}.json"))
    }

    /// Loads a profile. Never fails: what cannot be used is ignored, with the reason.
    pub fn load(&self, key: &DeviceKey) -> Cached {
        let path = self.path(key);
        match read(&path) {
            Ok(None) => Cached::Absent,
            Ok(Some(profile)) if profile.key == *key => Cached::Found(profile),
            Ok(Some(_)) => Cached::Ignored {
                path,
                reason: "it belongs to another device or build".into(),
            },
            Err(reason) => Cached::Ignored { path, reason },
        }
    }

    /// Saves what was measured, in one move: a reader sees the old file or the new one, also when the disk fills up. What the
    /// device could not run is not kept: with more memory, or with nobody leaving early, it may the next time.
    ///
    /// # Errors
    /// When the folder cannot be made or the file not written.
    pub fn save(&self, profile: &DeviceProfile) -> Result<(), CacheError> {
        let path = self.path(&profile.key);
        write(&self.folder, &path, profile).map_err(|source| CacheError {
            device: profile.key.device_id.clone(),
            path,
            source,
        })
    }
}

fn read(path: &Path) -> Result<Option<DeviceProfile>, String> {
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let mut text = Vec::new();
    file.take(MAX_BYTES + 1)
        .read_to_end(&mut text)
        .map_err(|error| error.to_string())?;
    if text.len() as u64 > MAX_BYTES {
        return Err(format!("it is larger than {MAX_BYTES} bytes"));
    }
    let file: File = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    if file.version != VERSION {
        return Err(format!(
            "its layout is version {}, not {VERSION}",
            file.version
        ));
    }
    let sound = |seconds: &f64| seconds.is_finite() && *seconds >= 0.0;
    if !file
        .profile
        .seconds
        .values()
        .chain([&file.profile.action_seconds])
        .all(sound)
    {
        return Err("it holds a time that is negative or not finite".into());
    }
    Ok(Some(file.profile))
}

fn write(folder: &Path, path: &Path, profile: &DeviceProfile) -> std::io::Result<()> {
    fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    let profile = DeviceProfile {
        unsupported: BTreeSet::new(),
        ..profile.clone()
    };
    let text = serde_json::to_vec_pretty(&File {
        version: VERSION,
        profile,
    })?;
    file.write_all(&text)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OpSignature;

    fn profile() -> DeviceProfile {
        let key = DeviceKey {
            device_id: "a/../b".into(),
            build: "1".into(),
            engine: "cpu".into(),
            threads: 2,
        };
        let mut profile = DeviceProfile::new(key, 1 << 30);
        profile.record(OpSignature("relu".into()), Some(1.25e-5));
        profile.record(OpSignature("gelu".into()), None);
        profile.record(OpSignature("tanh".into()), Some(f64::NAN));
        profile
    }

    #[test]
    fn saves_and_loads() {
        let folder = tempfile::tempdir().unwrap();
        let cache = ProfileCache::new(folder.path().join("made/later"));
        let profile = profile();
        assert!(matches!(cache.load(&profile.key), Cached::Absent));
        cache.save(&profile).unwrap();
        cache.save(&profile).unwrap();
        // What it could not run under that run's memory budget is asked again.
        let kept = DeviceProfile {
            unsupported: BTreeSet::new(),
            ..profile.clone()
        };
        assert!(matches!(cache.load(&profile.key), Cached::Found(found) if found == kept));
        assert_eq!(
            fs::read_dir(folder.path().join("made/later"))
                .unwrap()
                .count(),
            1
        );
        assert_eq!(profile.seconds.len(), 1);
        let wanted = ["gelu", "relu", "tanh"]
            .map(|name| OpSignature(name.into()))
            .into();
        assert_eq!(profile.missing(&wanted), [&OpSignature("tanh".into())]);
        assert_eq!(kept.missing(&wanted).len(), 2);
    }

    #[test]
    fn another_build_is_another_profile() {
        let folder = tempfile::tempdir().unwrap();
        let cache = ProfileCache::new(folder.path());
        let profile = profile();
        cache.save(&profile).unwrap();
        let newer = DeviceKey {
            build: "2".into(),
            ..profile.key.clone()
        };
        assert!(matches!(cache.load(&newer), Cached::Absent));
        fs::rename(cache.path(&profile.key), cache.path(&newer)).unwrap();
        assert!(
            matches!(cache.load(&newer), Cached::Ignored { reason, .. } if reason.contains("another device"))
        );
    }

    #[test]
    fn damaged_files_are_ignored_and_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let cache = ProfileCache::new(folder.path());
        let profile = profile();
        cache.save(&profile).unwrap();
        let path = cache.path(&profile.key);
        let good = fs::read(&path).unwrap();
        for length in 0..good.len() {
            fs::write(&path, &good[..length]).unwrap();
            assert!(
                matches!(cache.load(&profile.key), Cached::Ignored { .. }),
                "{length} bytes"
            );
        }
        for (from, to) in [
            ("0.0000125", "-1.0"),
            ("\"version\": 1", "\"version\": 9"),
            ("0.0000125", "1e999"),
        ] {
            let text = String::from_utf8(good.clone()).unwrap();
            assert!(text.contains(from), "{text}");
            fs::write(&path, text.replace(from, to)).unwrap();
            assert!(
                matches!(cache.load(&profile.key), Cached::Ignored { .. }),
                "{to}"
            );
        }
        cache.save(&profile).unwrap();
        assert!(matches!(cache.load(&profile.key), Cached::Found(_)));
    }
}
