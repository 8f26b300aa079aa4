//! The literal reference index.
