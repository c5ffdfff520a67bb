//! One device as the coordinator sees it: whether it lives, its clock, its windows.

use std::collections::VecDeque;
use std::time::Duration;

use outboard_wire::{DeviceHello, HostMessage};

use super::flow::{Inbox, Outbox};

/// Round trips remembered: enough that one of them was not held up by a computation, few enough that clocks which drift by
/// 100 ppm are off by less than a millisecond.
const REMEMBERED_PINGS: usize = 8;

/// How far a device has come.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Stand {
    /// No link yet.
    Dialling,
    /// Its hello is awaited until this time.
    Greeting { until: Duration },
    /// It takes part.
    Up,
    /// It is gone for good, with the cause.
    Gone { cause: String },
}

/// What a device is called.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceName {
    /// Name for people.
    pub text: String,
    /// Whether this stands only until the device says its own name.
    pub until_hello: bool,
}

impl From<String> for DeviceName {
    /// A name that stays.
    fn from(text: String) -> Self {
        DeviceName {
            text,
            until_hello: false,
        }
    }
}

/// A device.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) name: DeviceName,
    pub(super) stand: Stand,
    pub(super) hello: Option<DeviceHello>,
    pub(super) heard: Duration,
    pub(super) outbox: Outbox,
    pub(super) inbox: Inbox,
    next_ping: Duration,
    nonce: u64,
    /// Pings without an answer: nonce and time sent.
    unanswered: VecDeque<(u64, Duration)>,
    /// Round trip and offset of the clock, latest last.
    round_trips: VecDeque<(Duration, i64)>,
}

impl Device {
    pub(super) fn new(name: DeviceName, receive_window_bytes: u64) -> Self {
        Device {
            name,
            stand: Stand::Dialling,
            hello: None,
            heard: Duration::ZERO,
            outbox: Outbox::default(),
            inbox: Inbox::new(receive_window_bytes),
            next_ping: Duration::ZERO,
            nonce: 0,
            unanswered: VecDeque::new(),
            round_trips: VecDeque::new(),
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.stand == Stand::Up
    }

    /// A ping, if it is time for one.
    pub(super) fn ping(&mut self, now: Duration, every: Duration) -> Option<HostMessage> {
        if !self.is_up() || now < self.next_ping {
            return None;
        }
        self.next_ping = now + every;
        Some(self.ping_now(now))
    }

    /// A ping, whether or not it is time.
    pub(super) fn ping_now(&mut self, now: Duration) -> HostMessage {
        self.nonce += 1;
        self.unanswered.push_back((self.nonce, now));
        if self.unanswered.len() > REMEMBERED_PINGS {
            self.unanswered.pop_front();
        }
        HostMessage::Ping { nonce: self.nonce }
    }

    /// When the device next needs attention.
    pub(super) fn deadline(&self, timeout: Duration) -> Option<Duration> {
        match &self.stand {
            Stand::Greeting { until } => Some(*until),
            Stand::Up => Some(self.next_ping.min(self.heard + timeout)),
            Stand::Dialling | Stand::Gone { .. } => None,
        }
    }

    /// Takes an answer to a ping; one that was not asked for is ignored, it can do no harm.
    pub(super) fn pong(&mut self, now: Duration, nonce: u64, clock_micros: u64) {
        let Some(at) = self.unanswered.iter().position(|(sent, _)| *sent == nonce) else {
            return;
        };
        let sent = self.unanswered.drain(..=at).next_back();
        let Some((_, sent)) = sent else { return };
        let round_trip = now.saturating_sub(sent);
        let middle = micros(sent + round_trip / 2);
        self.round_trips
            .push_back((round_trip, middle.wrapping_sub_unsigned(clock_micros)));
        if self.round_trips.len() > REMEMBERED_PINGS {
            self.round_trips.pop_front();
        }
    }

    /// The shortest recent round trip.
    pub(super) fn round_trip(&self) -> Option<Duration> {
        self.round_trips.iter().map(|(trip, _)| *trip).min()
    }

    /// A time on the worker's clock, on the host's; zero where it would lie before the host's start.
    pub(super) fn on_host_clock(&self, clock_micros: u64) -> Duration {
        let offset = self
            .round_trips
            .iter()
            .min_by_key(|(trip, _)| *trip)
            .map_or(0, |(_, offset)| *offset);
        let micros = i128::from(clock_micros) + i128::from(offset);
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    }
}

/// As a signed number of microseconds; saturates after 292,000 years.
fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_offset_comes_from_the_fastest_round_trip() {
        let mut device = Device::new("a".to_owned().into(), 1);
        device.stand = Stand::Up;
        // The worker's clock is 500 s ahead. The first answer was late by a second on its way back.
        let second = Duration::from_secs(1);
        device.ping_now(100 * second);
        device.pong(101 * second, 1, 600_000_000);
        device.ping_now(102 * second);
        device.pong(102 * second + Duration::from_millis(2), 2, 602_001_000);
        assert_eq!(device.round_trip(), Some(Duration::from_millis(2)));
        assert_eq!(device.on_host_clock(605_000_000), 105 * second);
        assert_eq!(device.on_host_clock(0), Duration::ZERO);
        // Nonsense is ignored.
        device.pong(103 * second, 77, 5);
        assert_eq!(device.on_host_clock(605_000_000), 105 * second);
    }
}
