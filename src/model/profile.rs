//! Where a session's time goes, operator by operator.

/// Counts and times of a session's steps.
#[derive(Clone, Debug, Default)]
pub struct Profile {}

impl Profile {
    /// As JSON (see `RIE_INFO_PROFILE` in the header).
    pub fn to_json(&self) -> String {
        todo!()
    }
}
