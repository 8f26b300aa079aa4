//! The mock engine.
