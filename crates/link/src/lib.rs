//! Byte links: an ordered, reliable stream of bytes in each direction between host and worker.
//!
//! This crate promises to know nothing of messages. A link is dialled by its address (`tcp://HOST:PORT`, `mem:NAME`) or
//! accepted from a [`Listener`]; all kinds pass one compliance suite (`tests/compliance.rs`). What is unread by the peer
//! is bounded on every link, so a writer that nobody reads waits.

mod address;
mod error;
mod link;
pub mod memory;
mod tcp;

pub use address::LinkAddress;
pub use error::LinkError;
pub use link::{Link, LinkReader, LinkWriter, ListenOptions, Listener, dial};
