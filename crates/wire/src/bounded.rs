//! Strings, lists and numbers with bounds, checked when a message is built and again before anything is allocated for one
//! that arrives.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::EncodeError;

/// A string of at most `MAX` bytes, borrowed from the message or the frame.
pub(crate) struct Text<'a, const MAX: usize>(Cow<'a, str>);

impl<'a, const MAX: usize> Text<'a, MAX> {
    /// Refuses a longer string: names and programs mean nothing when cut.
    pub(crate) fn new(what: &'static str, text: &'a str) -> Result<Self, EncodeError> {
        if text.len() > MAX {
            return Err(EncodeError::OutOfBounds {
                what,
                unit: "bytes",
                length: text.len(),
                limit: MAX,
            });
        }
        Ok(Self(Cow::Borrowed(text)))
    }

    /// Cuts a longer string: for texts that only people read.
    pub(crate) fn clipped(text: &'a str) -> Self {
        let mut end = text.len().min(MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        Self(Cow::Borrowed(text.get(..end).unwrap_or_default()))
    }

    pub(crate) fn into_string(self) -> String {
        self.0.into_owned()
    }
}

impl<const MAX: usize> Serialize for Text<'_, MAX> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de: 'a, 'a, const MAX: usize> Deserialize<'de> for Text<'a, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <&'de str>::deserialize(deserializer)?;
        if text.len() > MAX {
            return Err(de::Error::custom("string too long"));
        }
        Ok(Self(Cow::Borrowed(text)))
    }
}

/// A list of at most `MAX` entries.
pub(crate) struct List<T, const MAX: usize>(Vec<T>);

impl<T, const MAX: usize> List<T, MAX> {
    /// Converts every entry of `from`.
    pub(crate) fn new<'a, F>(
        what: &'static str,
        from: &'a [F],
        convert: impl FnMut(&'a F) -> Result<T, EncodeError>,
    ) -> Result<Self, EncodeError> {
        if from.len() > MAX {
            return Err(EncodeError::OutOfBounds {
                what,
                unit: "entries",
                length: from.len(),
                limit: MAX,
            });
        }
        from.iter().map(convert).collect::<Result<_, _>>().map(Self)
    }

    pub(crate) fn into_vec<U>(self, convert: impl FnMut(T) -> U) -> Vec<U> {
        self.0.into_iter().map(convert).collect()
    }
}

impl<T: Serialize, const MAX: usize> Serialize for List<T, MAX> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for List<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<T, const MAX: usize>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Entries<T, MAX> {
            type Value = Vec<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {MAX} entries")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Vec<T>, A::Error> {
                if entries.size_hint().is_some_and(|hint| hint > MAX) {
                    return Err(de::Error::custom("list too long"));
                }
                // Nothing is reserved for entries that have not been read: a short frame may announce many.
                let mut list = Vec::new();
                while let Some(entry) = entries.next_element()? {
                    if list.len() == MAX {
                        return Err(de::Error::custom("list too long"));
                    }
                    list.push(entry);
                }
                Ok(list)
            }
        }

        deserializer
            .deserialize_seq(Entries::<T, MAX>(PhantomData))
            .map(Self)
    }
}

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($type:ident), $test:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(crate) struct $name($type);

        impl $name {
            pub(crate) fn new(what: &'static str, value: $type) -> Result<Self, EncodeError> {
                let test: fn($type) -> bool = $test;
                if test(value) {
                    Ok(Self(value))
                } else {
                    Err(EncodeError::Number { what, value: value.to_string() })
                }
            }

            pub(crate) fn get(self) -> $type {
                self.0
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                self.0.serialize(serializer)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Self::new("", $type::deserialize(deserializer)?)
                    .map_err(|_| de::Error::custom("number out of range"))
            }
        }
    };
}

number!(
    /// A number that is finite.
    Finite(f64),
    f64::is_finite
);
number!(
    /// A single-precision number that is finite.
    FiniteF32(f32),
    f32::is_finite
);
number!(
    /// A measured time: finite and not negative, so that no peer can upset a planner.
    Seconds(f64),
    |value| value.is_finite() && value >= 0.0
);
