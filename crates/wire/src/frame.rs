//! The frame table: every frame that may cross a link, its number, its direction and its greatest length.
//!
//! A frame on the wire, all integers little-endian:
//!
//! ```text
//! byte 0        4        6                6 + length
//!      | length | number | payload ...... |
//!      |  u32   |  u16   | `length` bytes |
//! ```
//!
//! The payload of control frames is `postcard` over the twins of `control`; of the data frame it is described in `data`.
//! The payload of both `Hello`s starts with [`MAGIC`] and the protocol's version, so that a stranger or another version is
//! recognised whatever follows.

/// Version of this protocol. It changes whenever a frame of the table changes its meaning or its bytes.
pub const PROTOCOL: u16 = 1;

/// The first bytes in the payload of a `Hello`.
pub const MAGIC: [u8; 8] = *b"OUTBOARD";

/// Bytes of a frame's fixed head.
pub const HEAD_BYTES: usize = 6;

/// Who may send a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The host, to a worker.
    ToWorker,
    /// A worker, to the host.
    ToHost,
    /// Either.
    Both,
}

/// A row of the frame table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameKind {
    /// Its number on the wire; never given to another frame.
    pub number: u16,
    /// Its name in errors and in `docs/protocol.md`.
    pub name: &'static str,
    /// Who may send it.
    pub direction: Direction,
    /// Greatest payload in bytes. The decoder may be given a smaller one for data frames.
    pub limit: u32,
    /// Whether it may come before the peer's `Hello`.
    pub early: bool,
    /// Why the number is not used any more, or never was.
    pub retired: Option<&'static str>,
}

/// The numbers, for code that builds or matches frames.
pub(crate) mod number {
    pub(crate) const HOST_HELLO: u16 = 1;
    pub(crate) const DEVICE_HELLO: u16 = 2;
    pub(crate) const PING: u16 = 3;
    pub(crate) const PONG: u16 = 4;
    pub(crate) const PROBE: u16 = 5;
    pub(crate) const PROBE_RECEIVED: u16 = 6;
    pub(crate) const PROFILE: u16 = 7;
    pub(crate) const PROFILED: u16 = 8;
    pub(crate) const ASSIGN: u16 = 9;
    pub(crate) const READY: u16 = 10;
    pub(crate) const SCHEDULE: u16 = 11;
    pub(crate) const STEP: u16 = 12;
    pub(crate) const GRADIENTS: u16 = 13;
    pub(crate) const COMMIT: u16 = 14;
    pub(crate) const STEP_DONE: u16 = 15;
    pub(crate) const FETCH: u16 = 16;
    pub(crate) const FETCHED: u16 = 17;
    pub(crate) const DROP_RUN: u16 = 18;
    pub(crate) const DROPPED: u16 = 19;
    pub(crate) const FAILED: u16 = 20;
    pub(crate) const HOST_CREDIT: u16 = 21;
    pub(crate) const WORKER_CREDIT: u16 = 22;
    pub(crate) const HOST_BYE: u16 = 23;
    pub(crate) const WORKER_BYE: u16 = 24;
    pub(crate) const DATA: u16 = 32;
}

const KIB: u32 = 1 << 10;
const MIB: u32 = 1 << 20;

const fn row(number: u16, name: &'static str, direction: Direction, limit: u32) -> FrameKind {
    FrameKind {
        number,
        name,
        direction,
        limit,
        early: false,
        retired: None,
    }
}

const fn early(kind: FrameKind) -> FrameKind {
    FrameKind {
        early: true,
        ..kind
    }
}

const fn retired(number: u16, name: &'static str, reason: &'static str) -> FrameKind {
    FrameKind {
        retired: Some(reason),
        ..row(number, name, Direction::Both, 0)
    }
}

/// Every frame number that was ever given, ascending. A number that falls out of use stays here with the reason.
pub const FRAMES: [FrameKind; 26] = {
    use Direction::{Both, ToHost, ToWorker};
    [
        retired(
            0,
            "Zero",
            "a run of zero bytes must never look like a frame",
        ),
        early(row(number::HOST_HELLO, "HostHello", ToWorker, 4 * KIB)),
        early(row(number::DEVICE_HELLO, "DeviceHello", ToHost, 4 * KIB)),
        row(number::PING, "Ping", ToWorker, 64),
        row(number::PONG, "Pong", ToHost, 64),
        row(number::PROBE, "Probe", ToWorker, 64),
        row(number::PROBE_RECEIVED, "ProbeReceived", ToHost, 64),
        row(number::PROFILE, "Profile", ToWorker, 16 * MIB),
        row(number::PROFILED, "Profiled", ToHost, 64 * KIB),
        row(number::ASSIGN, "Assign", ToWorker, 64 * MIB),
        row(number::READY, "Ready", ToHost, 64 * KIB),
        row(number::SCHEDULE, "Schedule", ToWorker, 2 * MIB),
        row(number::STEP, "Step", ToWorker, 512 * KIB),
        row(number::GRADIENTS, "Gradients", ToHost, 16 * MIB),
        row(number::COMMIT, "Commit", ToWorker, 64 * KIB),
        row(number::STEP_DONE, "StepDone", ToHost, 8 * MIB),
        row(number::FETCH, "Fetch", ToWorker, 64),
        row(number::FETCHED, "Fetched", ToHost, 64),
        row(number::DROP_RUN, "DropRun", ToWorker, 64),
        row(number::DROPPED, "Dropped", ToHost, 64),
        early(row(number::FAILED, "Failed", ToHost, 8 * KIB)),
        row(number::HOST_CREDIT, "HostCredit", ToWorker, 64),
        row(number::WORKER_CREDIT, "WorkerCredit", ToHost, 64),
        early(row(number::HOST_BYE, "HostBye", ToWorker, 64)),
        early(row(number::WORKER_BYE, "WorkerBye", ToHost, 8 * KIB)),
        row(number::DATA, "Data", Both, u32::MAX - HEAD_BYTES as u32),
    ]
};

/// The row with this number.
pub fn frame_kind(number: u16) -> Option<&'static FrameKind> {
    FRAMES
        .binary_search_by_key(&number, |kind| kind.number)
        .ok()
        .and_then(|at| FRAMES.get(at))
}

/// The name of a frame number, for errors.
pub(crate) fn frame_name(number: u16) -> &'static str {
    frame_kind(number).map_or("unknown", |kind| kind.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_ascend_so_none_is_given_twice() {
        assert!(
            FRAMES
                .windows(2)
                .all(|pair| pair[0].number < pair[1].number)
        );
        for kind in &FRAMES {
            assert_eq!(frame_kind(kind.number), Some(kind));
        }
        assert_eq!(frame_kind(999), None);
    }

    #[test]
    fn what_may_come_before_hello_is_tiny() {
        for kind in FRAMES.iter().filter(|kind| kind.early) {
            assert!(kind.limit <= 8 * KIB, "{}", kind.name);
        }
    }

    #[test]
    fn the_document_has_every_row_of_the_table() {
        let document = include_str!("../../../docs/protocol.md");
        for kind in &FRAMES {
            let direction = match kind.direction {
                Direction::ToWorker => "host to worker",
                Direction::ToHost => "worker to host",
                Direction::Both => "both",
            };
            let row = match kind.retired {
                Some(reason) => {
                    format!("| {} | `{}` | retired: {reason} |", kind.number, kind.name)
                }
                None => format!("| {} | `{}` | {direction} |", kind.number, kind.name),
            };
            assert!(
                document.contains(&row),
                "docs/protocol.md lacks the row {row}"
            );
        }
    }
}
