//! The only place that knows threads, sockets and the clock: one thread runs the core and all links.
//!
//! ```text
//! application --commands--> [ loop: core ] --writes (one queue a device)--> writer task --> link
//! application <--reports--  [            ] <--events (one queue)----------- reader task <-- link
//! ```
//!
//! Every queue is bounded. Data frames in the queues are bounded in bytes by the core: towards a device by its window and
//! by how much is handed out before `Written` comes back, from a device by the credit that it was granted.

use std::collections::VecDeque;
use std::pin::pin;
use std::time::{Duration, Instant};

use bytes::Bytes;
use outboard_link::{Link, LinkAddress, LinkReader, LinkWriter};
use outboard_wire::{ControlMessage, Frame, HostDecoder, encode_data};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::core::{Cause, Command, Core, DeviceId, DeviceName, Effect, Event, Report};
use crate::host::Connection;
use crate::{HostOptions, RunError};

/// Events, commands and reports that may wait. An event of a large frame holds no more than its sender had credit for.
const QUEUE: usize = 256;
/// Frames that may wait for a link: control frames are small, and data frames are bounded in bytes by the core.
const WRITES: usize = 4096;
/// Bytes of a large frame that are written before the device counts as heard of again.
const WRITE_CHUNK: usize = 256 << 10;
/// How long the last words may take to leave.
const FAREWELL: Duration = Duration::from_millis(500);

/// The application's end: commands in, reports out. Dropping it takes leave of all devices and ends the thread.
#[derive(Debug)]
pub(crate) struct Handle {
    commands: Option<mpsc::Sender<Command>>,
    reports: mpsc::Receiver<Report>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Handle {
    /// Starts the thread, which dials all devices at once.
    pub(crate) fn start(
        options: HostOptions,
        names: Vec<DeviceName>,
        connections: Vec<Connection>,
    ) -> Result<Handle, RunError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| RunError::Usage(format!("cannot start the coordinator: {error}")))?;
        let (commands, command_receiver) = mpsc::channel(QUEUE);
        let (report_sender, reports) = mpsc::channel(QUEUE);
        let thread = std::thread::Builder::new()
            .name("outboard-host".to_owned())
            .spawn(move || {
                runtime.block_on(coordinate(
                    options,
                    names,
                    connections,
                    command_receiver,
                    report_sender,
                ));
                // A resolver that still blocks must not hold up the application.
                runtime.shutdown_background();
            })
            .map_err(|error| RunError::Usage(format!("cannot start the coordinator: {error}")))?;
        Ok(Handle {
            commands: Some(commands),
            reports,
            thread: Some(thread),
        })
    }

    /// Hands a command over; waits while too many are waiting.
    pub(crate) fn send(&self, command: Command) -> Result<(), RunError> {
        let commands = self.commands.as_ref().ok_or(RunError::Stopped)?;
        commands
            .blocking_send(command)
            .map_err(|_| RunError::Stopped)
    }

    /// Waits for the next report.
    pub(crate) fn receive(&mut self) -> Result<Report, RunError> {
        self.reports.blocking_recv().ok_or(RunError::Stopped)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.commands = None;
        self.reports.close();
        if let Some(thread) = self.thread.take() {
            // It ends within `FAREWELL`. A panic in it was told of as `Stopped` already.
            let _ = thread.join();
        }
    }
}

/// A frame for a link.
#[derive(Debug)]
struct Write {
    pieces: [Bytes; 2],
    /// Whether `Written` is to be told.
    is_data: bool,
}

/// The queues of all devices.
#[derive(Debug)]
struct Links {
    writers: Vec<Option<mpsc::Sender<Write>>>,
    tasks: Vec<JoinHandle<()>>,
}

async fn coordinate(
    options: HostOptions,
    names: Vec<DeviceName>,
    connections: Vec<Connection>,
    mut commands: mpsc::Receiver<Command>,
    reports: mpsc::Sender<Report>,
) {
    let start = Instant::now();
    let (event_sender, mut events) = mpsc::channel(QUEUE);
    let mut links = Links {
        writers: Vec::new(),
        tasks: Vec::new(),
    };
    for (index, connection) in connections.into_iter().enumerate() {
        let (writes, write_receiver) = mpsc::channel(WRITES);
        links.writers.push(Some(writes));
        links.tasks.push(tokio::spawn(serve(
            DeviceId(index),
            connection,
            options.connect_timeout,
            event_sender.clone(),
            write_receiver,
        )));
    }
    let mut core = Core::new(options, names);
    let mut due: Option<Duration> = None;
    let mut unread: VecDeque<Report> = VecDeque::new();
    let mut leaving = false;
    while !leaving {
        let timer = due.map(|due| tokio::time::Instant::from_std(start + due));
        let event = tokio::select! {
            biased;
            permit = reports.reserve(), if !unread.is_empty() => {
                match (permit, unread.pop_front()) {
                    (Ok(permit), Some(report)) => permit.send(report),
                    _ => unread.clear(), // The application is gone; its commands end as well.
                }
                continue;
            }
            // Before the timer, so that bytes which have come in count before silence is judged.
            Some(event) = events.recv() => event,
            () = sleep_until(timer), if timer.is_some() => {
                due = None;
                Event::Timer
            }
            command = commands.recv(), if unread.is_empty() => {
                Event::Command(command.unwrap_or(Command::Bye))
            }
        };
        leaving = matches!(event, Event::Command(Command::Bye));
        let mut effects = VecDeque::from(core.handle(start.elapsed(), event));
        while let Some(effect) = effects.pop_front() {
            match effect {
                Effect::SetTimer(at) => due = Some(at),
                Effect::Report(report) => unread.push_back(report),
                other => {
                    if let Some(event) = links.carry_out(other) {
                        effects.extend(core.handle(start.elapsed(), event));
                    }
                }
            }
        }
    }
    drop(events);
    links.writers.clear();
    let farewell = async {
        for task in &mut links.tasks {
            // A task that failed has nothing left to write.
            let _ = task.await;
        }
    };
    // Whoever does not take the last words within this time is left without them.
    let _ = tokio::time::timeout(FAREWELL, farewell).await;
}

async fn sleep_until(timer: Option<tokio::time::Instant>) {
    match timer {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

impl Links {
    /// Hands a frame to its link's queue; gives an event when that cannot be.
    fn carry_out(&mut self, effect: Effect) -> Option<Event> {
        let (device, encoded, is_data) = match effect {
            Effect::Send { device, message } => (
                device,
                message.encode().map(|bytes| [bytes, Bytes::new()]),
                false,
            ),
            Effect::SendData {
                device,
                header,
                payload,
            } => (device, encode_data(&header, payload), true),
            Effect::Forward { device, frame } => (device, Ok([frame, Bytes::new()]), true),
            Effect::Close { device } => {
                // The writer sends what is queued and closes; one that cannot is ended.
                if let Some(writer) = self.writers.get_mut(device.0) {
                    *writer = None;
                }
                if let Some(task) = self.tasks.get(device.0).map(JoinHandle::abort_handle) {
                    tokio::spawn(async move {
                        tokio::time::sleep(FAREWELL).await;
                        task.abort();
                    });
                }
                return None;
            }
            Effect::SetTimer(_) | Effect::Report(_) => return None,
        };
        let writer = self.writers.get(device.0)?.as_ref()?;
        let cause = match encoded {
            Ok(pieces) => match writer.try_send(Write { pieces, is_data }) {
                Ok(()) => return None,
                Err(mpsc::error::TrySendError::Full(_)) => {
                    format!("{WRITES} frames wait for its link")
                }
                // Its reader says why.
                Err(mpsc::error::TrySendError::Closed(_)) => return None,
            },
            Err(error) => format!("cannot be told: {error}"),
        };
        Some(Event::Closed {
            device,
            cause: Cause::Link(cause),
        })
    }
}

/// One device's link, from dialling to its end.
async fn serve(
    device: DeviceId,
    connection: Connection,
    timeout: Duration,
    events: mpsc::Sender<Event>,
    writes: mpsc::Receiver<Write>,
) {
    let link = match connection {
        Connection::Link(link) => Ok(link),
        Connection::Url(address) => dial(&address, timeout)
            .await
            .map_err(|reason| (address, reason)),
    };
    let Link { reader, writer, .. } = match link {
        Ok(link) => link,
        Err((address, reason)) => {
            let cause = Cause::Dial { address, reason };
            // The loop may have ended; then nobody wants to know.
            let _ = events.send(Event::Closed { device, cause }).await;
            return;
        }
    };
    if events.send(Event::Opened { device }).await.is_err() {
        return;
    }
    let mut writing = pin!(write(device, writer, writes, &events));
    let cause = tokio::select! {
        cause = read(device, reader, &events) => cause,
        ended = &mut writing => {
            // It ends when the core closes the link, or with the cable's error.
            if let Err(error) = ended {
                let cause = Cause::Link(error.to_string());
                let _ = events.send(Event::Closed { device, cause }).await;
            }
            return;
        }
    };
    if let Some(cause) = cause {
        let _ = events.send(Event::Closed { device, cause }).await;
    }
    // What is queued still leaves, until the core closes the link.
    let _ = writing.await;
}

async fn dial(address: &str, timeout: Duration) -> Result<Link, String> {
    let address: LinkAddress = address.parse().map_err(|error| format!("{error}"))?;
    outboard_link::dial(&address, timeout)
        .await
        .map_err(|error| error.to_string())
}

/// Reads until the end; gives its cause, or nothing when the loop has ended.
async fn read(
    device: DeviceId,
    mut reader: LinkReader,
    events: &mpsc::Sender<Event>,
) -> Option<Cause> {
    let mut decoder = HostDecoder::new();
    loop {
        match reader.read_buf(decoder.space()).await {
            Ok(0) => {
                return Some(Cause::Link(match decoder.finish() {
                    Ok(()) => "it closed the connection".to_owned(),
                    Err(error) => error.to_string(),
                }));
            }
            Ok(_) => {}
            Err(error) => return Some(Cause::Link(error.to_string())),
        }
        let mut complete = false;
        loop {
            let event = match decoder.poll() {
                Ok(Some(Frame::Control(message))) => Event::Message { device, message },
                Ok(Some(Frame::Data(frame))) => Event::Data { device, frame },
                Ok(None) => break,
                Err(error) => return Some(Cause::Decode(error)),
            };
            complete = true;
            events.send(event).await.ok()?;
        }
        if !complete {
            // Part of a large frame. A full queue will say the same soon.
            let _ = events.try_send(Event::Heard { device });
        }
    }
}

/// Writes until its queue ends, then shuts the link down.
async fn write(
    device: DeviceId,
    mut writer: LinkWriter,
    mut writes: mpsc::Receiver<Write>,
    events: &mpsc::Sender<Event>,
) -> std::io::Result<()> {
    while let Some(Write { pieces, is_data }) = writes.recv().await {
        for piece in &pieces {
            for chunk in piece.chunks(WRITE_CHUNK) {
                writer.write_all(chunk).await?;
                if piece.len() > WRITE_CHUNK {
                    let _ = events.try_send(Event::Heard { device });
                }
            }
        }
        if writes.is_empty() {
            writer.flush().await?;
        }
        if is_data && events.send(Event::Written { device }).await.is_err() {
            break;
        }
    }
    writer.shutdown().await
}
