//! From decoded batches to events that the index can apply.

/// Turns decoded batches into events.
#[derive(Debug)]
pub struct Normaliser;

/// What was dropped, by reason.
#[derive(Debug)]
pub struct Rejections;
