//! The thread team.
