//! Element types of weights.

use half::{bf16, f16};

/// An element type that weights can be used in, as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 half precision.
    F16,
    /// The upper half of an F32.
    BF16,
}

impl DType {
    /// Every type, in the order of the kernel tables.
    pub const ALL: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            DType::F32 => 4,
            DType::F16 | DType::BF16 => 2,
        }
    }

    /// The name SafeTensors uses.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "F32",
            DType::F16 => "F16",
            DType::BF16 => "BF16",
        }
    }

    /// The element stored little-endian in `bytes`, exactly, as f32. `bytes` has [`size`](Self::size) bytes.
    pub fn decode(self, bytes: &[u8]) -> f32 {
        match self {
            DType::F32 => f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
            DType::F16 => f16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
            DType::BF16 => bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
        }
    }
}
