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
