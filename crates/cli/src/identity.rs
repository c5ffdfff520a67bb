//! What a worker on this computer says of itself.

use std::time::UNIX_EPOCH;

use outboard_exec::{CpuExecutor, Executor};
use outboard_worker::WorkerOptions;

use crate::resources::Share;

/// The options of a worker with this name and share of the computer.
pub(crate) fn worker_options(name: String, share: Share) -> WorkerOptions {
    WorkerOptions {
        name,
        build: build(),
        device_id: device_id(),
        threads: share.threads,
        memory_bytes: share.memory,
        freed: crate::resources::release_memory,
        ..WorkerOptions::default()
    }
}

/// The computer's name, or `computer`.
pub(crate) fn computer_name() -> String {
    read_line("/proc/sys/kernel/hostname")
        .or_else(|| std::env::var("HOSTNAME").ok())
        .or_else(|| std::env::var("COMPUTERNAME").ok())
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "computer".to_owned())
}

/// Version, and what tells this executable from another build of the same version: measured profiles belong to one build.
fn build() -> String {
    let version = env!("CARGO_PKG_VERSION");
    let executable = std::env::current_exe().and_then(std::fs::metadata);
    let modified = executable.and_then(|file| Ok((file.len(), file.modified()?)));
    match modified {
        Ok((bytes, time)) => {
            let seconds = time
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_secs());
            format!("{version}+{bytes:x}.{seconds:x}")
        }
        Err(_) => version.to_owned(),
    }
}

/// The machine and its processor: a disk that moves to another computer brings no profiles along.
fn device_id() -> String {
    let machine = read_line("/etc/machine-id").unwrap_or_else(computer_name);
    format!("{machine} {}", CpuExecutor::with_threads(1).info().device)
}

fn read_line(path: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    text.lines()
        .next()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
}
