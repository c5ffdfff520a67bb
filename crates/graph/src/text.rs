//! The text form: what tests, error messages, bundles and the wire write a graph in.
//!
//! ```text
//! graph "linear" {
//!   %0: f32[B,784] = data "input"
//!   %1: f32[10,784] = parameter "weight"
//!   %2: f32[10] = parameter "bias"
//!   %3: f32[784,10] = permute(%1, dims=[1,0]) @ "head"
//!   %4: f32[B,10] = addmm(%2, %0, %3) @ "head" #1
//!   return result "output" %4
//! }
//! ```
//!
//! A value that is left out is `none`. `@ "scope"` is left out when empty, `#origin` when it is the node's position.
//! What is printed is canonical: parsing and printing it gives the same text.

mod attribute;
mod print;
mod read;

use std::fmt;
use std::str::FromStr;

pub(crate) use attribute::Attribute;
pub(crate) use print::print_call;
pub(crate) use read::{Reader, SyntaxError};

use crate::{Graph, GraphError};

/// Longest text that is parsed, in bytes: 64 MiB.
pub const MAX_TEXT: usize = 64 << 20;

/// Why a text is not a graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// The text does not follow the grammar.
    #[error("line {line}, column {column}: {reason}")]
    Syntax {
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// What was expected.
        reason: String,
    },
    /// The text says something that is not a valid graph.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        print::print_graph(&mut text, self);
        f.write_str(&text)
    }
}

impl FromStr for Graph {
    type Err = TextError;

    /// Parses and verifies.
    fn from_str(text: &str) -> Result<Self, TextError> {
        let graph = read::read_graph(text).map_err(|error| error.located(text))?;
        graph.verify()?;
        Ok(graph)
    }
}

impl Graph {
    /// One node in the text form, for error messages; empty when there is no such node.
    pub fn node_text(&self, node: usize) -> String {
        let mut text = String::new();
        if let Some(found) = self.nodes.get(node) {
            print::print_node(&mut text, self, node, found);
        }
        text
    }
}
