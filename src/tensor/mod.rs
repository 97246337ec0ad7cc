//! Element types, quantized formats, strided views over bytes that somebody else owns, and aligned scratch memory.

mod aligned;
mod dtype;
pub mod quant;
mod view;

pub use aligned::AlignedBuffer;
pub use dtype::DType;
pub use quant::Quant;
pub use view::View;
