//! Status codes and error messages. Every fallible function of the crate returns [`Result`].

use std::fmt;

/// What went wrong, as the C ABI numbers it. Numbers are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Status {
    /// A NULL pointer, a size or a value outside its documented range.
    InvalidArgument = -1,
    /// A handle that is stale, foreign, freed or of another kind.
    Handle = -2,
    /// The object is in use by another call.
    Busy = -3,
    /// A file cannot be opened or read.
    Io = -4,
    /// A file is not what it should be: malformed SafeTensors, JSON, tokenizer.
    Format = -5,
    /// `config.json` lacks a key or holds an impossible value.
    Config = -6,
    /// A tensor is missing, misshapen or of a type that cannot be used.
    Tensor = -7,
    /// Well-formed, but outside what this version does (an architecture, a RoPE type, an option key).
    Unsupported = -8,
    /// The model directory has no tokenizer, or the tokenizer refused the text.
    Tokenizer = -9,
    /// Text that is not valid UTF-8.
    Utf8 = -10,
    /// A token id outside the vocabulary.
    Token = -11,
    /// The caller's buffer is too small; the needed size is reported and nothing is consumed.
    BufferTooSmall = -12,
    /// The session's context is full; nothing was changed.
    ContextFull = -13,
    /// An allocation failed.
    NoMemory = -14,
    /// Cancelled by the host; the session stands at its last committed token.
    Cancelled = -15,
    /// NaN logits, or no token left to choose.
    Numeric = -16,
    /// A defect of this library; the object it hit is poisoned.
    Internal = -17,
    /// The call does not fit the object's state (an empty session asked for logits, a poisoned session).
    State = -18,
    /// Bytes saved by another model, another format or with other options.
    Mismatch = -19,
    /// The model has no chat template, or the template failed.
    Template = -20,
}

/// A status and a message that names the thing, its place, what was expected and what was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The code a host branches on.
    pub status: Status,
    /// The sentence a person reads.
    pub message: String,
}

/// The crate's result.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error of `status` with `message`.
    pub fn new(status: Status, message: impl Into<String>) -> Self {
        Error { status, message: message.into() }
    }

    /// Puts `place: ` before the message.
    pub fn at(mut self, place: &str) -> Self {
        self.message = format!("{place}: {}", self.message);
        self
    }

    /// The graver of two errors of one step: a defect, else this one.
    pub fn or_defect(self, other: Error) -> Self {
        if other.status == Status::Internal { other } else { self }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.status, self.message)
    }
}

impl std::error::Error for Error {}

impl From<std::collections::TryReserveError> for Error {
    fn from(e: std::collections::TryReserveError) -> Self {
        Error::new(Status::NoMemory, e.to_string())
    }
}

/// `err!(Config, "num_heads: expected {a}, found {b}")` builds an [`Error`].
#[macro_export]
#[doc(hidden)]
macro_rules! err {
    ($status:ident, $($arg:tt)*) => {
        $crate::error::Error::new($crate::error::Status::$status, format!($($arg)*))
    };
}

/// `bail!(Config, "…")` returns `Err(err!(Config, "…"))`.
#[macro_export]
#[doc(hidden)]
macro_rules! bail {
    ($status:ident, $($arg:tt)*) => { return Err($crate::err!($status, $($arg)*)) };
}
