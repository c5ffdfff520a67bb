//! Data on its way out: in order on each stream, never more than the host's credit, never much in the link's hands.

use std::collections::VecDeque;

use bytes::Bytes;
use outboard_wire::{CreditError, DataHeader, DataKind, SendWindow, Stream, WorkerMessage};

use crate::event::Effect;

/// Bytes of data frames that may lie between the core and the link at once: small, so that an answer to a ping does not
/// wait behind seconds of weights, and large enough to keep a fast link busy.
const WRITING_BYTES: u64 = 1 << 20;

/// Something that leaves in its turn.
#[derive(Debug)]
enum Item {
    Data(DataHeader, Bytes),
    /// A control message that must not overtake the data before it.
    Then(WorkerMessage),
}

#[derive(Debug)]
struct Lane {
    window: SendWindow,
    queue: VecDeque<Item>,
    bytes: u64,
}

/// What waits to be sent.
#[derive(Debug)]
pub(crate) struct Outbox {
    /// In order of urgency.
    lanes: [Lane; 3],
    writing: VecDeque<u64>,
    writing_bytes: u64,
}

/// All streams, in order of urgency.
pub(crate) const STREAMS: [Stream; 3] = [Stream::Stage, Stream::Samples, Stream::Bulk];

impl Outbox {
    pub(crate) fn new() -> Self {
        Outbox {
            lanes: STREAMS.map(|stream| Lane {
                window: SendWindow::new(stream),
                queue: VecDeque::new(),
                bytes: 0,
            }),
            writing: VecDeque::new(),
            writing_bytes: 0,
        }
    }

    fn lane(&mut self, stream: Stream) -> &mut Lane {
        let [stage, samples, bulk] = &mut self.lanes;
        match stream {
            Stream::Stage => stage,
            Stream::Samples => samples,
            Stream::Bulk => bulk,
        }
    }

    pub(crate) fn push(&mut self, header: DataHeader, payload: Bytes) {
        let lane = self.lane(header.kind.stream());
        lane.bytes = lane.bytes.saturating_add(payload.len() as u64);
        lane.queue.push_back(Item::Data(header, payload));
    }

    /// Sends a control message once the data now waiting on the stream has been handed out.
    pub(crate) fn then(&mut self, stream: Stream, message: WorkerMessage) {
        self.lane(stream).queue.push_back(Item::Then(message));
    }

    /// Takes the host's credit.
    pub(crate) fn grant(&mut self, stream: Stream, bytes: u64) -> Result<(), CreditError> {
        self.lane(stream).window.grant(bytes)
    }

    /// The oldest frame handed out has left.
    pub(crate) fn written(&mut self) {
        if let Some(bytes) = self.writing.pop_front() {
            self.writing_bytes = self.writing_bytes.saturating_sub(bytes);
        }
    }

    /// Bytes of tensors that wait, those in the link's hands too.
    pub(crate) fn backlog(&self) -> u64 {
        self.lanes.iter().fold(self.writing_bytes, |sum, lane| {
            sum.saturating_add(lane.bytes)
        })
    }

    /// Forgets what a run wanted to send and has not.
    pub(crate) fn forget_run(&mut self, run: u32) {
        for lane in &mut self.lanes {
            lane.queue.retain(|item| match item {
                Item::Data(header, _) => header.run != run || header.kind == DataKind::Probe,
                Item::Then(_) => false,
            });
            lane.bytes = lane
                .queue
                .iter()
                .map(|item| match item {
                    Item::Data(_, payload) => payload.len() as u64,
                    Item::Then(_) => 0,
                })
                .fold(0, u64::saturating_add);
        }
    }

    /// Hands out everything that may go now.
    pub(crate) fn flush(&mut self, effects: &mut Vec<Effect>) {
        for lane in &mut self.lanes {
            loop {
                match lane.queue.front() {
                    Some(Item::Data(..))
                        if self.writing_bytes >= WRITING_BYTES || !lane.window.may_send() =>
                    {
                        break;
                    }
                    None => break,
                    Some(_) => {}
                }
                match lane.queue.pop_front() {
                    Some(Item::Data(header, payload)) => {
                        let bytes = header.frame_bytes().unwrap_or(u64::MAX);
                        // `may_send` was just asked, so there is credit to spend.
                        let _ = lane.window.spend(bytes);
                        lane.bytes = lane.bytes.saturating_sub(payload.len() as u64);
                        self.writing.push_back(bytes);
                        self.writing_bytes = self.writing_bytes.saturating_add(bytes);
                        effects.push(Effect::SendData { header, payload });
                    }
                    Some(Item::Then(message)) => effects.push(Effect::Send(message)),
                    None => break,
                }
            }
        }
    }
}
