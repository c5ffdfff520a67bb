//! What this computer has to share out among the devices that run on it.

use std::num::NonZero;
use std::path::PathBuf;

use crate::arguments::{CacheArguments, EngineArguments};

/// Share of memory that stages may take on a computer that also does other things.
const MEMORY_SHARE: u64 = 2;

/// Taken where the system does not say how much memory there is.
const UNKNOWN_MEMORY: u64 = 4 << 30;

/// What one device on this computer gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    /// Compute threads.
    pub(crate) threads: usize,
    /// Bytes for stages.
    pub(crate) memory: u64,
}

/// Shares cores and memory out among `devices` (at least 1) on this computer.
pub(crate) fn share(arguments: &EngineArguments, devices: usize) -> Share {
    let devices = devices.max(1);
    Share {
        threads: arguments
            .threads
            .map_or_else(|| (cores() / devices).max(1), usize::from),
        memory: arguments
            .memory
            .unwrap_or_else(|| total_memory() / MEMORY_SHARE / devices as u64),
    }
}

/// Cores that this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// Bytes of memory: `MemTotal` of Linux.
fn total_memory() -> u64 {
    std::fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
            line.split_whitespace().nth(1)?.parse::<u64>().ok()
        })
        .map_or(UNKNOWN_MEMORY, |kib| kib * 1024)
}

/// Keeps freed memory for the next tensor until [`release_memory`]. Left to itself, glibc gives large blocks back at once and
/// gets them anew, page by page, at the next operator: a fifth of the time of a step of ResNet-34.
///
/// One arena, because only the first can grow beyond 64 MiB. To be called before there are other threads.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "the only way to tell glibc")]
pub(crate) fn keep_memory() {
    /// The most that glibc allows: larger blocks are always given back.
    const LARGEST_KEPT: libc::c_int = 32 << 20;
    for (parameter, value) in [
        (libc::M_ARENA_MAX, 1),
        (libc::M_MMAP_THRESHOLD, LARGEST_KEPT),
        (libc::M_TRIM_THRESHOLD, libc::c_int::MAX),
        (libc::M_TOP_PAD, LARGEST_KEPT),
    ] {
        // SAFETY: `mallopt` takes no pointer. What it does not accept it leaves as it is, and things are only slower.
        unsafe { libc::mallopt(parameter, value) };
    }
}

/// Other allocators keep memory by themselves.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn keep_memory() {}

/// Gives memory that was freed back to the system: a worker waits for its next host for days, and glibc would keep it.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "the only way to tell glibc")]
pub(crate) fn release_memory() {
    // SAFETY: `malloc_trim` takes no pointer, and may be called by any thread at any time.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators do so by themselves.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn release_memory() {}

/// The folder of measured profiles: as given, or `outboard` in the user's cache folder. `None` keeps nothing.
pub(crate) fn cache_folder(arguments: &CacheArguments) -> Option<PathBuf> {
    arguments.cache.clone().or_else(|| {
        let home = |variable: &str| {
            std::env::var_os(variable)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        home("XDG_CACHE_HOME")
            .or_else(|| home("HOME").map(|folder| folder.join(".cache")))
            .or_else(|| home("LOCALAPPDATA"))
            .map(|folder| folder.join("outboard"))
    })
}
