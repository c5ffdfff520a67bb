//! Flow control by credits: how many bytes may be on their way or waiting, for each stream and direction.
//!
//! ```text
//!  sender                                  receiver
//!  SendWindow { credit }   --- frame --->  ReceiveWindow { window, held, owed }
//!     spend (1)                               arrived (2)
//!     grant (4)            <-- Credit ---     released, take_grant (3)
//! ```
//!
//! 1. A frame may be sent while credit is above zero, and takes its whole length, so that credit may go below zero by less
//!    than one frame: a tensor larger than the window passes, and a receiver holds at most a window and one frame.
//! 2. A frame that comes while the receiver's own count of that credit is not above zero breaks the protocol.
//! 3. What is consumed is granted again at once; only grants of the same moment are put together. Withholding some until
//!    they are worth a frame would take the withheld bytes out of the window that a schedule counts on.
//! 4. At the start credit is zero. The receiver's first grant is its window.

use crate::error::CreditError;
use crate::message::Stream;

/// Greatest credit: 1 PiB. More is a mistake or an attack on the arithmetic.
pub const CREDIT_LIMIT: u64 = 1 << 50;

/// The sender's side of one stream.
#[derive(Clone, Debug)]
pub struct SendWindow {
    stream: Stream,
    /// Below zero by less than one frame. Both terms are bounded by `CREDIT_LIMIT` and `u64`, far inside `i128`.
    credit: i128,
}

impl SendWindow {
    /// A stream on which nothing may be sent yet.
    pub fn new(stream: Stream) -> Self {
        Self { stream, credit: 0 }
    }

    /// Whether a frame, of any length, may be sent now.
    pub fn may_send(&self) -> bool {
        self.credit > 0
    }

    /// Bytes of credit; negative while a frame longer than the credit is being paid off.
    pub fn credit(&self) -> i128 {
        self.credit
    }

    /// Takes the length of a frame (head included) that is sent now.
    ///
    /// # Errors
    /// [`CreditError::Unbalanced`] without credit; nothing is taken then.
    pub fn spend(&mut self, frame_bytes: u64) -> Result<(), CreditError> {
        if !self.may_send() {
            return Err(CreditError::Unbalanced {
                stream: self.stream,
                bytes: frame_bytes,
                action: "sent",
            });
        }
        self.credit -= i128::from(frame_bytes);
        Ok(())
    }

    /// Adds a `Credit` of the peer.
    ///
    /// # Errors
    /// [`CreditError::Overflow`] beyond [`CREDIT_LIMIT`]; nothing is added then.
    pub fn grant(&mut self, bytes: u64) -> Result<(), CreditError> {
        let credit = self.credit + i128::from(bytes);
        if credit > i128::from(CREDIT_LIMIT) {
            return Err(CreditError::Overflow {
                stream: self.stream,
                bytes,
                limit: CREDIT_LIMIT,
            });
        }
        self.credit = credit;
        Ok(())
    }
}

/// The receiver's side of one stream.
#[derive(Clone, Debug)]
pub struct ReceiveWindow {
    stream: Stream,
    /// Bytes that may be on their way or held.
    window: u64,
    /// Credit that the sender has, as far as this side knows.
    credit: i128,
    /// Bytes that came and are not released yet.
    held: u64,
}

impl ReceiveWindow {
    /// A stream with this window; the sender learns of it by the first [`ReceiveWindow::take_grant`].
    pub fn new(stream: Stream, window: u64) -> Self {
        Self {
            stream,
            window: window.min(CREDIT_LIMIT),
            credit: 0,
            held: 0,
        }
    }

    /// Bytes that came and are not released yet.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// Makes the window larger or smaller. A smaller one takes effect as held bytes are released.
    pub fn resize(&mut self, window: u64) {
        self.window = window.min(CREDIT_LIMIT);
    }

    /// Counts a frame (head included) that came.
    ///
    /// # Errors
    /// [`CreditError::Exceeded`] when the sender had no credit.
    pub fn arrived(&mut self, frame_bytes: u64) -> Result<(), CreditError> {
        if self.credit <= 0 {
            return Err(CreditError::Exceeded {
                stream: self.stream,
                frame_bytes,
            });
        }
        self.credit -= i128::from(frame_bytes);
        self.held = self.held.saturating_add(frame_bytes);
        Ok(())
    }

    /// Counts a frame whose bytes were consumed and need no memory any more.
    ///
    /// # Errors
    /// [`CreditError::Unbalanced`] when fewer bytes are held; nothing is released then.
    pub fn released(&mut self, frame_bytes: u64) -> Result<(), CreditError> {
        self.held = self
            .held
            .checked_sub(frame_bytes)
            .ok_or(CreditError::Unbalanced {
                stream: self.stream,
                bytes: frame_bytes,
                action: "released",
            })?;
        Ok(())
    }

    /// The credit to send now, if any: call it at the start, and once after all that was released at a moment.
    pub fn take_grant(&mut self) -> Option<u64> {
        let owed = i128::from(self.window) - i128::from(self.held) - self.credit;
        let grant = u64::try_from(owed).ok().filter(|&grant| grant > 0)?;
        self.credit += i128::from(grant);
        Some(grant)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    #[test]
    fn the_edges_of_the_picture() {
        let mut sender = SendWindow::new(Stream::Stage);
        let mut receiver = ReceiveWindow::new(Stream::Stage, 100);
        // (4) Nothing may be sent before the first grant, which is the window.
        assert!(!sender.may_send());
        assert!(sender.spend(1).is_err());
        assert_eq!(receiver.take_grant(), Some(100));
        assert_eq!(receiver.take_grant(), None);
        sender.grant(100).unwrap();
        // (1) A frame longer than the window passes.
        sender.spend(60).unwrap();
        sender.spend(500).unwrap();
        assert_eq!(sender.credit(), -460);
        assert!(!sender.may_send());
        // (2) Both sides count alike.
        receiver.arrived(60).unwrap();
        receiver.arrived(500).unwrap();
        assert_eq!(
            receiver.arrived(1),
            Err(CreditError::Exceeded {
                stream: Stream::Stage,
                frame_bytes: 1
            })
        );
        // (3) What is released comes back, whatever is still held.
        receiver.released(500).unwrap();
        assert_eq!(receiver.take_grant(), Some(500));
        sender.grant(500).unwrap();
        assert_eq!(sender.credit(), 40);
        assert_eq!(receiver.held(), 60);
    }

    #[test]
    fn a_window_grows_at_once_and_shrinks_as_bytes_are_released() {
        let mut receiver = ReceiveWindow::new(Stream::Bulk, 100);
        assert_eq!(receiver.take_grant(), Some(100));
        receiver.resize(150);
        assert_eq!(receiver.take_grant(), Some(50));
        receiver.resize(20);
        assert_eq!(receiver.take_grant(), None);
        receiver.arrived(140).unwrap();
        receiver.released(140).unwrap();
        assert_eq!(receiver.take_grant(), Some(10));
    }

    #[test]
    fn mistakes_and_attacks_are_errors() {
        let mut sender = SendWindow::new(Stream::Samples);
        assert!(matches!(
            sender.grant(u64::MAX),
            Err(CreditError::Overflow { .. })
        ));
        sender.grant(CREDIT_LIMIT).unwrap();
        assert!(sender.grant(1).is_err());
        let mut receiver = ReceiveWindow::new(Stream::Samples, u64::MAX);
        assert_eq!(receiver.take_grant(), Some(CREDIT_LIMIT));
        assert!(matches!(
            receiver.released(1),
            Err(CreditError::Unbalanced { .. })
        ));
    }

    proptest::proptest! {
        /// Whatever the order of arrivals and releases: no violation, never more held or on its way than a window and a
        /// frame, and everything gets through.
        #[test]
        fn a_sender_that_keeps_the_rules_is_never_refused_and_never_stuck(
            window in 1_u64..1000,
            frames in proptest::collection::vec(1_u64..1500, 1..60),
            choices in proptest::collection::vec(0_u8..3, 400),
        ) {
            let largest = frames.iter().copied().max().unwrap_or(0);
            let mut sender = SendWindow::new(Stream::Stage);
            let mut receiver = ReceiveWindow::new(Stream::Stage, window);
            let mut to_send: VecDeque<u64> = frames.into();
            let (mut flying, mut held, mut grants) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
            grants.extend(receiver.take_grant());
            // After the chosen moves, everything is moved until nothing can.
            for choice in choices.into_iter().chain([0, 1, 2, 3].into_iter().cycle().take(4000)) {
                match choice {
                    0 => if sender.may_send() && let Some(frame) = to_send.pop_front() {
                        sender.spend(frame).unwrap();
                        flying.push_back(frame);
                    },
                    1 => if let Some(frame) = flying.pop_front() {
                        receiver.arrived(frame).unwrap();
                        held.push_back(frame);
                    },
                    2 => if let Some(frame) = held.pop_front() {
                        receiver.released(frame).unwrap();
                        grants.extend(receiver.take_grant());
                    },
                    _ => if let Some(grant) = grants.pop_front() {
                        sender.grant(grant).unwrap();
                    },
                }
                let outstanding: u64 = flying.iter().sum::<u64>() + receiver.held();
                proptest::prop_assert!(outstanding < window + largest);
            }
            proptest::prop_assert!(to_send.is_empty());
        }
    }
}
