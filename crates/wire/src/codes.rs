//! One byte for each value of the small enums. A code, once given, keeps its meaning.

use outboard_graph::DType;
use outboard_schedule::Kind;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::message::{DataKind, FailureKind, StateKind, StepMode, Stream, TensorEncoding};

/// An enum that travels as one byte.
pub(crate) trait Coded: Copy {
    fn code(self) -> u8;
    fn from_code(code: u8) -> Option<Self>;
}

macro_rules! codes {
    ($type:ident { $($variant:ident = $code:literal),+ $(,)? }) => {
        impl Coded for $type {
            fn code(self) -> u8 {
                match self { $($type::$variant => $code),+ }
            }
            fn from_code(code: u8) -> Option<Self> {
                match code { $($code => Some($type::$variant),)+ _ => None }
            }
        }
    };
}

codes!(DType { F32 = 0, F16 = 1, BF16 = 2, I64 = 3, Bool = 4 });
codes!(TensorEncoding { F32 = 0, F16 = 1, BF16 = 2 });
codes!(DataKind {
    Input = 0,
    Activation = 1,
    Cotangent = 2,
    Result = 3,
    Weight = 4,
    OptimizerState = 5,
    SharedGradient = 6,
    Probe = 7,
});
codes!(Stream { Samples = 0, Stage = 1, Bulk = 2 });
codes!(StateKind { Weights = 0, Optimizer = 1 });
codes!(StepMode { Train = 0, Evaluate = 1 });
codes!(FailureKind {
    Busy = 0,
    Protocol = 1,
    Program = 2,
    Memory = 3,
    Hash = 4,
    Compute = 5,
    Order = 6,
});
codes!(Kind { Forward = 0, Backward = 1, Weight = 2 });

/// A coded enum inside a `postcard` twin.
#[derive(Clone, Copy)]
pub(crate) struct Code<T>(pub(crate) T);

impl<T: Coded> Serialize for Code<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(self.0.code())
    }
}

impl<'de, T: Coded> Deserialize<'de> for Code<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let code = u8::deserialize(deserializer)?;
        T::from_code(code)
            .map(Code)
            .ok_or_else(|| de::Error::custom("unknown code"))
    }
}
