//! Element types and strided views over bytes that somebody else owns.

mod dtype;
mod view;

pub use dtype::DType;
pub use view::View;
