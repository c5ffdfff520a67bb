//! What waits for a device, and what it may still send us.
//!
//! Edges of the picture, cited below; the windows themselves are [`SendWindow`] and [`ReceiveWindow`].
//!
//! ```text
//!            1 grant                      4 grant
//!   worker a <------ host            host <------ worker b
//!   worker a ------> host ==queue==> host ------> worker b
//!            2 frame      3 waits         5 frame
//!                         for 4           6 written: 1 again, by the same bytes
//! ```
//!
//! A queue (3) holds what the application submitted for at most a few steps, and of other workers' frames no more than the
//! windows granted to them (1), so it needs no bound of its own.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use outboard_wire::{CreditError, DataHeader, HostMessage, ReceiveWindow, SendWindow, Stream};

use super::DeviceId;

/// Bytes of data frames that may lie between the core and a link at once: small, so that a ping does not wait behind
/// seconds of weights, and large enough to keep a fast link busy.
const WRITING_BYTES: u64 = 1 << 20;

/// All streams, most urgent first: what other devices wait for, then what they will wait for.
const STREAMS: [Stream; 3] = [Stream::Stage, Stream::Samples, Stream::Bulk];

fn index(stream: Stream) -> usize {
    match stream {
        Stream::Stage => 0,
        Stream::Samples => 1,
        Stream::Bulk => 2,
    }
}

/// The bytes of a data frame.
#[derive(Clone, Debug)]
pub(super) enum Body {
    /// A tensor of the host's own.
    Payload(Bytes),
    /// A frame as a worker sent it.
    Frame(Bytes),
}

/// A data frame on its way out.
#[derive(Clone, Debug)]
pub(super) struct Outgoing {
    pub(super) header: DataHeader,
    pub(super) body: Body,
    /// Whose window it takes until it is written.
    pub(super) origin: Option<DeviceId>,
    /// When the host had it whole.
    pub(super) queued: Duration,
}

impl Outgoing {
    /// Bytes it takes of a window: the whole frame.
    pub(super) fn cost(&self) -> u64 {
        match &self.body {
            Body::Payload(_) => self.header.frame_bytes().unwrap_or(u64::MAX),
            Body::Frame(frame) => frame.len() as u64,
        }
    }

    pub(super) fn stream(&self) -> Stream {
        self.header.kind.stream()
    }
}

/// What has left of a frame that was handed to the link: everything but its bytes.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) header: DataHeader,
    pub(super) cost: u64,
    pub(super) origin: Option<DeviceId>,
    pub(super) queued: Duration,
}

/// Everything that waits for one device.
#[derive(Debug)]
pub(super) struct Outbox {
    windows: [SendWindow; 3],
    queues: [VecDeque<Outgoing>; 3],
    writing: VecDeque<Sent>,
    writing_bytes: u64,
}

impl Default for Outbox {
    fn default() -> Self {
        Outbox {
            windows: STREAMS.map(SendWindow::new),
            queues: Default::default(),
            writing: VecDeque::new(),
            writing_bytes: 0,
        }
    }
}

impl Outbox {
    /// Edge 3.
    pub(super) fn push(&mut self, outgoing: Outgoing) {
        self.queues[index(outgoing.stream())].push_back(outgoing);
    }

    /// Edge 4.
    pub(super) fn credit(&mut self, stream: Stream, bytes: u64) -> Result<(), CreditError> {
        self.windows[index(stream)].grant(bytes)
    }

    /// The next frame that may be handed to the link (edge 5), most urgent stream first.
    pub(super) fn pop(&mut self) -> Option<Outgoing> {
        if self.writing_bytes >= WRITING_BYTES {
            return None;
        }
        for (window, queue) in self.windows.iter_mut().zip(&mut self.queues) {
            if !window.may_send() {
                continue;
            }
            if let Some(outgoing) = queue.pop_front() {
                let cost = outgoing.cost();
                window.spend(cost).ok()?;
                self.writing_bytes = self.writing_bytes.saturating_add(cost);
                self.writing.push_back(Sent {
                    header: outgoing.header.clone(),
                    cost,
                    origin: outgoing.origin,
                    queued: outgoing.queued,
                });
                return Some(outgoing);
            }
        }
        None
    }

    /// Edge 6: the oldest frame handed to the link has left.
    pub(super) fn written(&mut self) -> Option<Sent> {
        let sent = self.writing.pop_front()?;
        self.writing_bytes = self.writing_bytes.saturating_sub(sent.cost);
        Some(sent)
    }

    /// Forgets what waits, for good or because its run is over; gives back whose windows it took.
    pub(super) fn clear(&mut self) -> Vec<Outgoing> {
        self.queues
            .iter_mut()
            .flat_map(|queue| queue.drain(..))
            .collect()
    }

    /// Forgets what is being written too: the link is gone.
    pub(super) fn abandon(&mut self) -> Vec<Sent> {
        self.writing_bytes = 0;
        self.writing.drain(..).collect()
    }
}

/// What a device may still send.
#[derive(Debug)]
pub(super) struct Inbox {
    windows: [ReceiveWindow; 3],
}

impl Inbox {
    /// A device that may have so many bytes of each stream on their way or in the host's memory.
    pub(super) fn new(window: u64) -> Self {
        Inbox {
            windows: STREAMS.map(|stream| ReceiveWindow::new(stream, window)),
        }
    }

    /// Edge 2.
    pub(super) fn arrived(&mut self, stream: Stream, cost: u64) -> Result<(), CreditError> {
        self.windows[index(stream)].arrived(cost)
    }

    /// These bytes are in the host's memory no more.
    pub(super) fn released(&mut self, stream: Stream, cost: u64) {
        // Only what arrived is released, each frame once, so this cannot fail; were it to, the window would be too small.
        let _ = self.windows[index(stream)].released(cost);
    }

    /// Edge 1: everything that is to be granted now.
    pub(super) fn grants(&mut self) -> impl Iterator<Item = HostMessage> {
        STREAMS
            .into_iter()
            .zip(&mut self.windows)
            .filter_map(|(stream, window)| {
                let bytes = window.take_grant()?;
                Some(HostMessage::Credit { stream, bytes })
            })
    }
}

#[cfg(test)]
mod tests {
    use outboard_graph::DType;
    use outboard_wire::{DataKind, TensorEncoding};

    use super::*;

    fn frame(kind: DataKind, bytes: usize) -> Outgoing {
        Outgoing {
            header: DataHeader {
                run: 1,
                step: 0,
                kind,
                stage: 0,
                micro_batch: 0,
                name: "x".into(),
                dtype: DType::Bool,
                dims: vec![bytes as u64],
                encoding: TensorEncoding::F32,
            },
            body: Body::Frame(vec![0; bytes].into()),
            origin: None,
            queued: Duration::ZERO,
        }
    }

    #[test]
    fn a_frame_larger_than_the_window_goes_and_the_next_waits_for_all_of_it() {
        let mut outbox = Outbox::default();
        outbox.push(frame(DataKind::Weight, 1000));
        outbox.push(frame(DataKind::Weight, 10));
        assert!(outbox.pop().is_none());
        outbox.credit(Stream::Bulk, 100).unwrap();
        assert_eq!(outbox.pop().map(|frame| frame.cost()), Some(1000));
        outbox.credit(Stream::Bulk, 900).unwrap();
        assert!(outbox.pop().is_none());
        outbox.credit(Stream::Bulk, 1).unwrap();
        assert_eq!(outbox.pop().map(|frame| frame.cost()), Some(10));
        assert_eq!(outbox.written().map(|sent| sent.cost), Some(1000));
        assert_eq!(outbox.written().map(|sent| sent.cost), Some(10));
        assert!(outbox.written().is_none());
    }

    #[test]
    fn stage_traffic_overtakes_weights_but_little_more_than_a_mebibyte_lies_before_the_link() {
        let mut outbox = Outbox::default();
        for stream in STREAMS {
            outbox.credit(stream, 1 << 40).unwrap();
        }
        for _ in 0..3 {
            outbox.push(frame(DataKind::Weight, 700_000));
        }
        assert!(outbox.pop().is_some());
        outbox.push(frame(DataKind::Cotangent, 700_000));
        assert_eq!(
            outbox.pop().map(|frame| frame.header.kind),
            Some(DataKind::Cotangent)
        );
        assert!(outbox.pop().is_none());
    }

    #[test]
    fn an_own_tensor_counts_with_its_head() {
        let mut own = frame(DataKind::Input, 100);
        own.body = Body::Payload(vec![0; 100].into());
        assert_eq!(own.cost(), own.header.frame_bytes().unwrap());
        assert!(own.cost() > 100);
    }
}
