//! A link and a listener of any kind.

use std::fmt;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};

use crate::{LinkAddress, LinkError, memory, tcp};

/// The incoming half. It ends (reads nothing) when the peer has shut down its writer, and fails when the peer is lost.
pub type LinkReader = Box<dyn AsyncRead + Send + Unpin>;

/// The outgoing half. `shutdown` ends the peer's reader and leaves the other direction open; so does dropping it.
pub type LinkWriter = Box<dyn AsyncWrite + Send + Unpin>;

/// A connection. Dropping both halves closes it.
pub struct Link {
    /// Bytes from the peer.
    pub reader: LinkReader,
    /// Bytes to the peer.
    pub writer: LinkWriter,
    /// For people: what it runs over (`tcp 127.0.0.1:40112 -> 127.0.0.1:7000`).
    pub description: String,
    /// The peer's end. Of an accepted TCP link it is where the peer dialled from.
    pub peer: LinkAddress,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("description", &self.description)
            .finish_non_exhaustive()
    }
}

/// Connects, trying every address that the host name has, within `timeout` altogether.
///
/// # Errors
/// [`LinkError`] when there is no connection by then.
pub async fn dial(address: &LinkAddress, timeout: Duration) -> Result<Link, LinkError> {
    match address {
        LinkAddress::Tcp { host, port } => tcp::dial(address, host, *port, timeout).await,
        LinkAddress::Memory { name } => {
            match tokio::time::timeout(timeout, memory::dial(address, name)).await {
                Ok(link) => link,
                Err(_) => Err(LinkError::TimedOut {
                    address: address.clone(),
                    timeout,
                }),
            }
        }
    }
}

/// How to listen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListenOptions {
    /// Accept connections from other machines too. Links are not encrypted yet, so this must be asked for.
    pub allow_non_loopback: bool,
}

/// Accepts links.
#[derive(Debug)]
pub struct Listener {
    kind: Kind,
    address: LinkAddress,
}

#[derive(Debug)]
enum Kind {
    Tcp(tcp::Listener),
    Memory(memory::Listener),
}

impl Listener {
    /// Starts to listen. A TCP port of 0 takes any free one, which [`Listener::address`] then tells.
    ///
    /// # Errors
    /// [`LinkError`] when the address cannot be listened on, or is not loopback and `options` do not allow that.
    pub async fn bind(address: &LinkAddress, options: ListenOptions) -> Result<Self, LinkError> {
        match address {
            LinkAddress::Tcp { host, port } => {
                let listener = tcp::Listener::bind(address, host, *port, options).await?;
                let address = listener.address(address)?;
                Ok(Self {
                    kind: Kind::Tcp(listener),
                    address,
                })
            }
            LinkAddress::Memory { name } => Ok(Self {
                kind: Kind::Memory(memory::Listener::bind(address, name)?),
                address: address.clone(),
            }),
        }
    }

    /// Where it listens.
    pub fn address(&self) -> &LinkAddress {
        &self.address
    }

    /// The next connection. May be dropped and called again without losing one.
    ///
    /// # Errors
    /// [`LinkError::Io`] when the system cannot accept now (out of file descriptors, say); wait a moment and try again.
    pub async fn accept(&mut self) -> Result<Link, LinkError> {
        match &mut self.kind {
            Kind::Tcp(listener) => listener.accept(&self.address).await,
            Kind::Memory(listener) => listener.accept(&self.address).await,
        }
    }
}
