//! Element types, strided views over bytes that somebody else owns, and aligned scratch memory.

mod aligned;
mod dtype;
mod view;

pub use aligned::AlignedBuffer;
pub use dtype::DType;
pub use view::View;
