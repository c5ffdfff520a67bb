//! Types of attributes: each prints and parses, and fixes its symbolic dimensions.

use std::fmt::Write as _;

use super::read::{Reader, SyntaxError};
use crate::{DType, Dim, Reduction};

/// Most elements of a list attribute.
const MAX_LIST: usize = 4096;

/// An attribute of an operator.
pub(crate) trait Attribute {
    /// Appends the text form.
    fn print(&self, text: &mut String);

    /// Reads the text form.
    fn read(reader: &mut Reader<'_>) -> Result<Self, SyntaxError>
    where
        Self: Sized;

    /// Replaces dimensions that depend on the batch; `None` when one does not fit a machine word.
    fn instantiate(&mut self, batch: usize) -> Option<()> {
        let _ = batch;
        Some(())
    }
}

/// Attributes that print as Rust does and parse from one word.
macro_rules! word_attributes {
    ($( $type:ty, $wanted:literal; )*) => {
        $( impl Attribute for $type {
            fn print(&self, text: &mut String) {
                // Writing to a string cannot fail. `Debug` of a float is the shortest text that reads back.
                _ = write!(text, "{self:?}");
            }

            fn read(reader: &mut Reader<'_>) -> Result<Self, SyntaxError> {
                let start = reader.position();
                let word = reader.word()?;
                word.parse().map_err(|_| SyntaxError::new(start, format!("`{word}` is not {}", $wanted)))
            }
        } )*
    };
}

word_attributes! {
    usize, "a size";
    u64, "a number of 64 bits";
    i64, "an integer";
    f64, "a number";
    bool, "true or false";
}

impl Attribute for Dim {
    fn print(&self, text: &mut String) {
        _ = write!(text, "{self}");
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, SyntaxError> {
        let start = reader.position();
        reader
            .word()?
            .parse()
            .map_err(|error| SyntaxError::new(start, format!("{error}")))
    }

    fn instantiate(&mut self, batch: usize) -> Option<()> {
        *self = Dim::Fixed(self.at(batch)?);
        Some(())
    }
}

impl Attribute for DType {
    fn print(&self, text: &mut String) {
        text.push_str(self.name());
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, SyntaxError> {
        let start = reader.position();
        reader
            .word()?
            .parse()
            .map_err(|error| SyntaxError::new(start, format!("{error}")))
    }
}

impl Attribute for Reduction {
    fn print(&self, text: &mut String) {
        text.push_str(self.name());
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, SyntaxError> {
        let start = reader.position();
        let word = reader.word()?;
        Reduction::ALL
            .into_iter()
            .find(|reduction| reduction.name() == word)
            .ok_or_else(|| SyntaxError::new(start, format!("`{word}` is not none, sum or mean")))
    }
}

impl<T: Attribute> Attribute for Option<T> {
    fn print(&self, text: &mut String) {
        match self {
            Some(value) => value.print(text),
            None => text.push_str("none"),
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, SyntaxError> {
        if reader.take_keyword("none") {
            return Ok(None);
        }
        T::read(reader).map(Some)
    }

    fn instantiate(&mut self, batch: usize) -> Option<()> {
        match self {
            Some(value) => value.instantiate(batch),
            None => Some(()),
        }
    }
}

impl<T: Attribute> Attribute for Vec<T> {
    fn print(&self, text: &mut String) {
        text.push('[');
        for (index, element) in self.iter().enumerate() {
            if index > 0 {
                text.push(',');
            }
            element.print(text);
        }
        text.push(']');
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, SyntaxError> {
        reader.expect("[")?;
        let mut list = Vec::new();
        if reader.take("]") {
            return Ok(list);
        }
        loop {
            if list.len() == MAX_LIST {
                return Err(reader.error(format!("a list of more than {MAX_LIST} elements")));
            }
            list.push(T::read(reader)?);
            if reader.take("]") {
                return Ok(list);
            }
            reader.expect(",")?;
        }
    }

    fn instantiate(&mut self, batch: usize) -> Option<()> {
        self.iter_mut()
            .try_for_each(|element| element.instantiate(batch))
    }
}
