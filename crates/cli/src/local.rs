//! Worker processes on this computer: started with `--workers N`, ended with the process that started them.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::arguments::Conv;
use crate::resources::Share;

/// How long a worker process may take to listen; it only has to load a program that is already in memory.
const START_LIMIT: Duration = Duration::from_secs(20);

/// A worker process. Dropping it ends the process.
#[derive(Debug)]
pub(crate) struct LocalWorker {
    child: Child,
    /// Where it listens.
    pub(crate) address: String,
}

impl LocalWorker {
    /// Starts this very program as `outboard worker` on a free loopback port.
    pub(crate) fn start(name: &str, share: Share, conv: Conv) -> Result<LocalWorker> {
        let program =
            std::env::current_exe().context("cannot find this program to start workers with")?;
        let mut command = Command::new(program);
        command
            .args([
                "worker",
                "--listen",
                "127.0.0.1:0",
                "--json",
                "--exit-with-parent",
                "--name",
                name,
            ])
            .args([
                "--threads",
                &share.threads.to_string(),
                "--memory",
                &share.memory.to_string(),
                "--conv",
                conv.name(),
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        #[cfg(unix)]
        {
            use std::os::unix::process::CommandExt;
            // Ctrl-C in the terminal goes to this process alone: it saves a checkpoint with the worker's help.
            command.process_group(0);
        }
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let stdout = child
            .stdout
            .take()
            .context("a worker process without standard output")?;
        let mut worker = LocalWorker {
            child,
            address: String::new(),
        };
        worker.address = first_address(name, stdout)?;
        Ok(worker)
    }
}

/// The address in the worker's first line, within [`START_LIMIT`].
fn first_address(name: &str, stdout: std::process::ChildStdout) -> Result<String> {
    let (sender, receiver) = mpsc::sync_channel(1);
    std::thread::spawn(move || {
        let mut lines = BufReader::new(stdout).lines();
        // The receiver may have given up; then nobody wants the line.
        let _ = sender.send(lines.next());
        // Keep the pipe open and empty for as long as the worker lives.
        for _ in lines {}
    });
    let line = match receiver.recv_timeout(START_LIMIT) {
        Ok(Some(Ok(line))) => line,
        Ok(_) => bail!("{name} ended before it listened; its own message is above"),
        Err(_) => bail!("{name} did not listen within {} s", START_LIMIT.as_secs()),
    };
    let event: Value =
        serde_json::from_str(&line).with_context(|| format!("{name} printed {line:?}"))?;
    match event["address"].as_str() {
        Some(address) => Ok(address.to_owned()),
        None => bail!("{name} printed no address: {line}"),
    }
}

impl Drop for LocalWorker {
    fn drop(&mut self) {
        // It also ends by itself when its standard input closes; killing makes that prompt. Both may fail only because
        // it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
