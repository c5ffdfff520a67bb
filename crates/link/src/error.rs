//! What can be wrong with a link, and what to try.

use std::io;
use std::time::Duration;

use thiserror::Error;

use crate::LinkAddress;

/// A link could not be made. Each variant names the address and what to try.
#[derive(Debug, Error)]
pub enum LinkError {
    /// An address that cannot be read.
    #[error(
        "`{text}` is no link address: {cause}; write `tcp://HOST:PORT`, for example `tcp://192.168.1.20:7000`"
    )]
    Address {
        /// What was given.
        text: String,
        /// What is wrong with it.
        cause: &'static str,
    },
    /// The host name is unknown.
    #[error(
        "the host of {address} is not known ({source}): check its spelling, or use the device's IP address"
    )]
    Unknown {
        /// Where to.
        address: LinkAddress,
        /// From the resolver.
        source: io::Error,
    },
    /// Nothing listens there.
    #[error(
        "{address} refused the connection: is `outboard worker` running there, and is this its port?"
    )]
    Refused {
        /// Where to.
        address: LinkAddress,
    },
    /// No answer.
    #[error(
        "{address} did not answer within {} s: is the device on and on this network, does a firewall drop the port, and does its worker listen beyond loopback (`--insecure-listen`)?",
        timeout.as_secs_f64()
    )]
    TimedOut {
        /// Where to.
        address: LinkAddress,
        /// How long was waited.
        timeout: Duration,
    },
    /// No way there.
    #[error(
        "{address} cannot be reached ({source}): are both devices on the same network, and not in a guest network that keeps them apart?"
    )]
    Unreachable {
        /// Where to.
        address: LinkAddress,
        /// From the system.
        source: io::Error,
    },
    /// Another program listens there.
    #[error(
        "{address} is already in use: stop the other program, or listen elsewhere with `--listen` (port 0 takes any free one)"
    )]
    InUse {
        /// Where.
        address: LinkAddress,
    },
    /// Not an address of this machine.
    #[error(
        "{address} is not an address of this machine: listen on `tcp://127.0.0.1:PORT`, or on one that `ip address` shows"
    )]
    NotLocal {
        /// Where.
        address: LinkAddress,
    },
    /// The system does not allow it.
    #[error(
        "{address} is not allowed by the system ({source}): ports under 1024 need privileges, choose a higher one"
    )]
    NotAllowed {
        /// Where.
        address: LinkAddress,
        /// From the system.
        source: io::Error,
    },
    /// Listening beyond loopback must be asked for.
    #[error(
        "{address} can be reached from other machines, and links are not encrypted yet: listen on loopback, or add `--insecure-listen` on a network you trust"
    )]
    NotLoopback {
        /// Where.
        address: LinkAddress,
    },
    /// Anything else.
    #[error("{doing} {address} failed: {source}")]
    Io {
        /// What was done.
        doing: &'static str,
        /// Where.
        address: LinkAddress,
        /// From the system.
        source: io::Error,
    },
}

impl LinkError {
    /// What `connect` said, in terms of what to try.
    pub(crate) fn from_connect(address: &LinkAddress, source: io::Error) -> Self {
        let address = address.clone();
        match source.kind() {
            io::ErrorKind::ConnectionRefused => Self::Refused { address },
            io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::NetworkDown => Self::Unreachable { address, source },
            _ => Self::Io {
                doing: "connecting to",
                address,
                source,
            },
        }
    }

    /// What `bind` said, in terms of what to try.
    pub(crate) fn from_bind(address: &LinkAddress, source: io::Error) -> Self {
        let address = address.clone();
        match source.kind() {
            io::ErrorKind::AddrInUse => Self::InUse { address },
            io::ErrorKind::AddrNotAvailable => Self::NotLocal { address },
            io::ErrorKind::PermissionDenied => Self::NotAllowed { address, source },
            _ => Self::Io {
                doing: "listening on",
                address,
                source,
            },
        }
    }
}
