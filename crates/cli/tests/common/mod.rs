//! Runs the real binary, with real worker processes and real sockets.

#![allow(dead_code, reason = "each test file uses a part")]

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use serde_json::Value;

/// The full Fashion-MNIST of the Debian package `dataset-fashion-mnist`; tests that need it fail without it.
pub(crate) const FASHION: &str = "fashion-mnist:/usr/share/datasets/fashion-mnist";

/// `outboard` with these arguments, and a profile cache shared by all tests of a file.
pub(crate) fn outboard(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outboard"));
    command
        .args(arguments)
        .stdin(Stdio::null())
        .env("OUTBOARD_CACHE", cache());
    command
}

fn cache() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("profiles")
}

/// What a finished `--json` command printed.
pub(crate) struct Finished {
    pub(crate) code: Option<i32>,
    pub(crate) events: Vec<Value>,
    pub(crate) stderr: String,
}

impl Finished {
    /// The events of this name.
    pub(crate) fn all(&self, name: &str) -> Vec<&Value> {
        self.events
            .iter()
            .filter(|event| event["event"] == name)
            .collect()
    }

    /// The last line, which must be `done`.
    pub(crate) fn done(&self) -> &Value {
        let last = self
            .events
            .last()
            .unwrap_or_else(|| panic!("nothing on standard output\n{}", self.stderr));
        assert_eq!(
            last["event"], "done",
            "exit {:?}, last line {last}\n{}",
            self.code, self.stderr
        );
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        last
    }

    /// The hash of the final weights.
    pub(crate) fn weights(&self) -> String {
        self.done()["weights_sha256"]
            .as_str()
            .expect("weights_sha256")
            .to_owned()
    }

    /// The last line, which must be `error` with this exit code; gives the message.
    pub(crate) fn error(&self, code: i32) -> String {
        assert_eq!(
            self.code,
            Some(code),
            "events {:?}\n{}",
            self.events,
            self.stderr
        );
        let last = self
            .events
            .last()
            .unwrap_or_else(|| panic!("no error line\n{}", self.stderr));
        assert_eq!(last["event"], "error", "{last}");
        assert_eq!(last["exit_code"], code);
        last["message"].as_str().expect("message").to_owned()
    }
}

/// Parses the JSON lines of a finished process.
pub(crate) fn finished(output: Output) -> Finished {
    let stdout = String::from_utf8(output.stdout).expect("utf-8");
    let events = stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON line: {line:?}")))
        .collect();
    Finished {
        code: output.status.code(),
        events,
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Runs to the end.
pub(crate) fn run(arguments: &[&str]) -> Finished {
    finished(outboard(arguments).output().expect("the binary runs"))
}

/// A short run that is cheap enough to repeat: shipped images, a small model.
pub(crate) fn train<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let mut arguments = vec![
        "train",
        "resnet18",
        "--batch",
        "16",
        "--seed",
        "3",
        "--threads",
        "1",
        "--json",
    ];
    arguments.extend(more);
    arguments
}

/// A running process whose JSON lines are read one by one. Dropping it kills it.
pub(crate) struct Running {
    pub(crate) child: Child,
    lines: std::sync::mpsc::Receiver<String>,
}

impl Running {
    /// Starts a `--json` command.
    pub(crate) fn start(arguments: &[&str]) -> Running {
        let mut child = outboard(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let stdout = child.stdout.take().expect("piped");
        let (sender, lines) = std::sync::mpsc::sync_channel(1 << 16);
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Running { child, lines }
    }

    /// The next event of this name; all others before it are dropped.
    pub(crate) fn wait_for(&self, name: &str, limit: Duration) -> Value {
        let end = Instant::now() + limit;
        let mut before = String::new();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let line = match self.lines.recv_timeout(left) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => panic!("no {name:?} within {limit:?}"),
                Err(RecvTimeoutError::Disconnected) => {
                    panic!("it ended without {name:?}; its last line: {before}")
                }
            };
            before.clone_from(&line);
            let event: Value =
                serde_json::from_str(&line).unwrap_or_else(|_| panic!("no JSON line: {line:?}"));
            if event["event"] == name {
                return event;
            }
        }
    }

    /// Sends a signal by its name, such as `INT`.
    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args([&format!("-{name}"), &self.child.id().to_string()])
            .status();
        assert!(status.expect("kill").success());
    }

    /// Waits for the end of the process: exit code, the events not read yet, how long it took.
    pub(crate) fn end(mut self, limit: Duration) -> (Finished, Duration) {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("wait") {
                break status;
            }
            assert!(start.elapsed() < limit, "still running after {limit:?}");
            std::thread::sleep(Duration::from_millis(10));
        };
        let took = start.elapsed();
        let mut events = Vec::new();
        while let Ok(line) = self.lines.recv_timeout(Duration::from_secs(2)) {
            events.push(serde_json::from_str(&line).expect("JSON line"));
        }
        let mut stderr = String::new();
        if let Some(mut pipe) = self.child.stderr.take() {
            std::io::Read::read_to_string(&mut pipe, &mut stderr).expect("utf-8");
        }
        (
            Finished {
                code: status.code(),
                events,
                stderr,
            },
            took,
        )
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Already ended when it was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A worker process on a free port.
pub(crate) struct Worker {
    pub(crate) process: Running,
    pub(crate) address: String,
}

impl Worker {
    pub(crate) fn start(name: &str) -> Worker {
        let process = Running::start(&[
            "worker",
            "--listen",
            "127.0.0.1:0",
            "--json",
            "--threads",
            "1",
            "--name",
            name,
        ]);
        let listening = process.wait_for("listening", Duration::from_secs(20));
        let address = listening["address"].as_str().expect("address").to_owned();
        Worker { process, address }
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) {
        self.process.child.kill().expect("kill");
        self.process.child.wait().expect("wait");
    }

    /// Resident bytes of the process.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.process.child.id()))
            .expect("status");
        let line = text
            .lines()
            .find(|line| line.starts_with("VmRSS:"))
            .expect("VmRSS");
        line.split_whitespace()
            .nth(1)
            .expect("kib")
            .parse::<u64>()
            .expect("number")
            * 1024
    }
}
