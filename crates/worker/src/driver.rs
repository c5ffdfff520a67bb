//! The only place of this crate that touches links, threads and the clock.
//!
//! ```text
//!   link --read--> decoder --events--> core --effects--> link
//!                                       | ^
//!                                  jobs v | results
//!                                compute thread, in its own rayon pool
//! ```
//!
//! The core runs on the I/O side and never computes, so pings are answered and frames taken in while the engine works.

mod compute;
mod conversation;

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use outboard_exec::Executor;
use outboard_link::{Link, LinkError, Listener};
use outboard_wire::{ControlMessage, DeviceHello, FailureKind, PROTOCOL, WorkerMessage};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::core::CoreOptions;
use compute::Compute;
use conversation::Conversation;

/// Hosts that are told "busy" at once; more are only hung up on.
const REFUSALS: usize = 8;

/// How long another host waits before it is told "busy": the one that is served may be gone already, without the word having
/// come through.
const GRACE: Duration = Duration::from_millis(500);

/// How long a host that is refused may take to read that.
const REFUSAL_TIME: Duration = Duration::from_secs(2);

/// Failures to accept, one after another, after which a listener is given up.
const ACCEPT_FAILURES: u32 = 50;

/// What a worker is, and how patient.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// Name for people.
    pub name: String,
    /// Version and build of the program; profiles are cached by it.
    pub build: String,
    /// Stays the same over restarts of this device.
    pub device_id: String,
    /// Compute threads.
    pub threads: usize,
    /// Bytes that stages may take.
    pub memory_bytes: u64,
    /// Time that a host has to say hello.
    pub hello_timeout: Duration,
    /// Silence after which a host counts as gone. Hosts ping every second, so this only ends links that died without a
    /// word.
    pub silence_timeout: Duration,
    /// Called on the compute thread when a run or a profile has been freed.
    pub freed: fn(),
}

impl Default for WorkerOptions {
    fn default() -> Self {
        WorkerOptions {
            name: "worker".to_owned(),
            build: env!("CARGO_PKG_VERSION").to_owned(),
            device_id: "worker".to_owned(),
            threads: 1,
            memory_bytes: 1 << 30,
            hello_timeout: Duration::from_secs(10),
            silence_timeout: Duration::from_secs(30),
            freed: || (),
        }
    }
}

impl WorkerOptions {
    fn core(&self, engine: &impl Executor) -> CoreOptions {
        let info = engine.info();
        CoreOptions {
            hello: DeviceHello {
                protocol: PROTOCOL,
                build: self.build.clone(),
                name: self.name.clone(),
                device_id: self.device_id.clone(),
                engine: info.name,
                hardware: info.device,
                threads: u32::try_from(self.threads).unwrap_or(u32::MAX),
                memory_bytes: self.memory_bytes,
            },
            hello_timeout: self.hello_timeout,
            silence_timeout: self.silence_timeout,
        }
    }
}

/// Why a worker stopped. A host's mistakes and a lost link never stop it.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// A thread could not be started.
    #[error(
        "the worker's threads could not be started ({0}): close other programs, or ask for fewer `--threads`"
    )]
    Threads(String),
    /// The compute thread is gone.
    #[error("the compute thread ended; start the worker again")]
    ComputeGone,
    /// The listener does not accept any more.
    #[error(transparent)]
    Listener(#[from] LinkError),
}

/// Serves one host after another, for ever. While one is served, others are told that the worker is busy, unless it ends
/// within half a second; while its memory is freed, they wait.
///
/// # Errors
/// [`WorkerError`] when the worker itself cannot go on.
pub async fn serve<E: Executor + 'static>(
    mut listener: Listener,
    engine: E,
    options: WorkerOptions,
) -> Result<(), WorkerError> {
    let core = options.core(&engine);
    let epoch = Instant::now();
    let mut compute = Compute::start(engine, &options, epoch)?;
    let mut refusals = JoinSet::new();
    let mut next = None;
    loop {
        let link = match next.take() {
            Some((link, _)) => link,
            None => accept(&mut listener).await?,
        };
        let mut conversation = Conversation::new(core.clone(), &mut compute, epoch);
        {
            let mut served = std::pin::pin!(conversation.serve(link));
            loop {
                let until = next.as_ref().map(|(_, until)| *until);
                let refused = tokio::select! {
                    ended = &mut served => break ended?,
                    () = conversation::wait(until) => next.take().map(|(link, _)| link),
                    other = accept(&mut listener) => {
                        let other = other?;
                        if next.is_none() {
                            next = Some((other, Instant::now() + GRACE));
                            None
                        } else {
                            Some(other)
                        }
                    }
                };
                while refusals.try_join_next().is_some() {}
                if let Some(link) = refused
                    && refusals.len() < REFUSALS
                {
                    refusals.spawn(timeout(REFUSAL_TIME, refuse(link)));
                }
            }
        }
        conversation.free().await?;
    }
}

/// Serves the host at the other end of a link on threads of its own, until the link ends: the host's own worker.
///
/// # Errors
/// [`WorkerError::Threads`] when they cannot be started. The thread gives what ended it.
pub fn run_link<E: Executor + 'static>(
    link: Link,
    engine: E,
    options: WorkerOptions,
) -> Result<thread::JoinHandle<Result<(), WorkerError>>, WorkerError> {
    let core = options.core(&engine);
    let epoch = Instant::now();
    let mut compute = Compute::start(engine, &options, epoch)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .map_err(threads)?;
    thread::Builder::new()
        .name("outboard-io".to_owned())
        .spawn(move || {
            runtime.block_on(async {
                let mut conversation = Conversation::new(core, &mut compute, epoch);
                conversation.serve(link).await?;
                conversation.free().await
            })
        })
        .map_err(threads)
}

fn threads(error: io::Error) -> WorkerError {
    WorkerError::Threads(error.to_string())
}

/// The next link. Waits a little where the system cannot accept now.
async fn accept(listener: &mut Listener) -> Result<Link, LinkError> {
    let mut failures = 0;
    loop {
        match listener.accept().await {
            Ok(link) => return Ok(link),
            Err(error) if failures >= ACCEPT_FAILURES => return Err(error),
            Err(_) => {
                failures += 1;
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Tells a host that another one is served.
async fn refuse(mut link: Link) -> io::Result<()> {
    let message = WorkerMessage::Failed {
        run: None,
        step: None,
        stage: None,
        kind: FailureKind::Busy,
        message:
            "this worker serves another host: wait until that one is done, or use another device"
                .to_owned(),
    };
    let frame = message.encode().map_err(io::Error::other)?;
    link.writer.write_all(&frame).await?;
    link.writer.shutdown().await?;
    // What is still unread when a socket closes takes the answer with it, so the host's hello is read first.
    let mut unread = [0; 1024];
    while link.reader.read(&mut unread).await? > 0 {}
    Ok(())
}
