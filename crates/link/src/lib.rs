//! Byte links: an ordered, reliable stream of bytes in each direction between host and worker.
//!
//! This crate promises to know nothing of messages. A link is dialled by its URL (`tcp://HOST:PORT`, `mem:`) or accepted
//! from a listener; all kinds pass one compliance suite.
