//! One conversation over one link: moves bytes between the link and the core.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use bytes::buf::Chain;
use bytes::{Buf, Bytes};
use outboard_link::{Link, LinkReader, LinkWriter};
use outboard_wire::{ControlMessage, Frame, WorkerDecoder, encode_data};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep_until, timeout};

use super::WorkerError;
use super::compute::Compute;
use crate::core::{CoreOptions, Worker};
use crate::event::{Effect, Event};

/// Bytes of control frames that wait to be written before nothing more is read: a host that does not listen is not heard.
const CONTROL_BYTES: usize = 1 << 20;

/// How long the last frames have to leave, and the host to close its side.
const CLOSE_TIME: Duration = Duration::from_secs(2);

/// A frame on its way out.
struct Leaving {
    bytes: Chain<Bytes, Bytes>,
    /// Of a control frame, its length.
    control: Option<usize>,
}

/// A host being served: its core, and what moves between it and the link.
pub(super) struct Conversation<'a> {
    core: Worker,
    compute: &'a mut Compute,
    epoch: Instant,
    outgoing: VecDeque<Leaving>,
    control_bytes: usize,
    timer: Option<Instant>,
    closing: bool,
}

impl<'a> Conversation<'a> {
    /// With a host that has just been accepted or has just dialled.
    pub(super) fn new(options: CoreOptions, compute: &'a mut Compute, epoch: Instant) -> Self {
        Conversation {
            core: Worker::new(options),
            compute,
            epoch,
            outgoing: VecDeque::new(),
            control_bytes: 0,
            timer: None,
            closing: false,
        }
    }

    /// Serves the host until the link is gone. [`Conversation::free`] must follow.
    pub(super) async fn serve(&mut self, link: Link) -> Result<(), WorkerError> {
        let Link {
            mut reader,
            mut writer,
            ..
        } = link;
        self.talk(&mut reader, &mut writer).await?;
        // Whatever is left of the link goes now, so that the host sees its end while memory is freed.
        drop((reader, writer));
        self.handle(Event::LinkClosed)
    }

    /// Waits until the compute side has ended the job at work and freed everything.
    pub(super) async fn free(mut self) -> Result<(), WorkerError> {
        while !self.core.is_over() {
            let done = self.compute.result().await?;
            self.handle(Event::ComputeDone(done))?;
        }
        Ok(())
    }
}

/// What happened to a link.
enum Happened {
    Read(io::Result<usize>),
    Wrote(io::Result<usize>),
    Computed(Result<crate::event::JobDone, WorkerError>),
    Time,
}

impl Conversation<'_> {
    /// Moves bytes until the link fails, ends or is to be closed.
    async fn talk(
        &mut self,
        reader: &mut LinkReader,
        writer: &mut LinkWriter,
    ) -> Result<(), WorkerError> {
        let mut decoder = WorkerDecoder::new();
        self.handle(Event::Timer)?;
        while !self.closing {
            let happened = {
                let may_read = self.control_bytes < CONTROL_BYTES;
                let timer = self.timer;
                let next = self.outgoing.front_mut();
                tokio::select! {
                    read = reader.read_buf(decoder.space()), if may_read => Happened::Read(read),
                    wrote = write(writer, next) => Happened::Wrote(wrote),
                    done = self.compute.result() => Happened::Computed(done),
                    () = wait(timer) => Happened::Time,
                }
            };
            match happened {
                Happened::Read(Ok(1..)) => self.hear(&mut decoder)?,
                // The end of the stream or of the cable.
                Happened::Read(Ok(0) | Err(_)) | Happened::Wrote(Err(_)) => return Ok(()),
                Happened::Wrote(Ok(_)) => self.wrote()?,
                Happened::Computed(done) => self.handle(Event::ComputeDone(done?))?,
                Happened::Time => {
                    self.timer = None;
                    self.handle(Event::Timer)?;
                }
            }
        }
        // A host that does not take the last words misses them.
        let _ = timeout(CLOSE_TIME, self.close(reader, writer)).await;
        Ok(())
    }

    fn hear(&mut self, decoder: &mut WorkerDecoder) -> Result<(), WorkerError> {
        while !self.closing {
            let event = match decoder.poll() {
                Ok(None) => break,
                Ok(Some(Frame::Control(message))) => Event::Message(message),
                Ok(Some(Frame::Data(frame))) => Event::Data(frame),
                Err(error) => Event::Malformed {
                    reason: error.to_string(),
                },
            };
            self.handle(event)?;
        }
        Ok(())
    }

    fn wrote(&mut self) -> Result<(), WorkerError> {
        while let Some(leaving) = self
            .outgoing
            .pop_front_if(|leaving| !leaving.bytes.has_remaining())
        {
            match leaving.control {
                Some(bytes) => self.control_bytes = self.control_bytes.saturating_sub(bytes),
                None => self.handle(Event::DataWritten)?,
            }
        }
        Ok(())
    }

    fn handle(&mut self, event: Event) -> Result<(), WorkerError> {
        let now = self.epoch.elapsed();
        for effect in self.core.handle(now, event) {
            match effect {
                Effect::Send(message) => match message.encode() {
                    Ok(frame) => {
                        self.control_bytes = self.control_bytes.saturating_add(frame.len());
                        let control = Some(frame.len());
                        let bytes = frame.chain(Bytes::new());
                        self.outgoing.push_back(Leaving { bytes, control });
                    }
                    // Only a report larger than any real model's is beyond a frame: the host would wait in vain.
                    Err(_) => self.closing = true,
                },
                Effect::SendData { header, payload } => match encode_data(&header, payload) {
                    Ok([head, payload]) => {
                        let bytes = head.chain(payload);
                        self.outgoing.push_back(Leaving {
                            bytes,
                            control: None,
                        });
                    }
                    Err(_) => self.closing = true,
                },
                Effect::Compute(id, job) => self.compute.submit(id, job)?,
                Effect::CancelCompute => self.compute.cancel(),
                Effect::SetTimer(at) => self.timer = self.epoch.checked_add(at),
                Effect::CloseLink => self.closing = true,
            }
        }
        Ok(())
    }

    /// Writes what is left, ends the stream and waits for the host to do so.
    async fn close(&mut self, reader: &mut LinkReader, writer: &mut LinkWriter) -> io::Result<()> {
        while let Some(mut leaving) = self.outgoing.pop_front() {
            while leaving.bytes.has_remaining() {
                writer.write_buf(&mut leaving.bytes).await?;
            }
        }
        writer.shutdown().await?;
        // What is still unread when a socket closes takes the last words with it.
        let mut unread = vec![0; 64 << 10];
        while reader.read(&mut unread).await? > 0 {}
        Ok(())
    }
}

/// Writes some of a frame; waits for ever when there is none. May be dropped without losing bytes.
async fn write(writer: &mut LinkWriter, next: Option<&mut Leaving>) -> io::Result<usize> {
    match next {
        Some(leaving) => {
            let wrote = writer.write_buf(&mut leaving.bytes).await?;
            if wrote == 0 && leaving.bytes.has_remaining() {
                return Err(io::ErrorKind::WriteZero.into());
            }
            Ok(wrote)
        }
        None => std::future::pending().await,
    }
}

/// Until then; for ever where no time is set.
pub(super) async fn wait(timer: Option<Instant>) {
    match timer {
        Some(at) => sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}
