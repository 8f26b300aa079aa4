//! What runs beside an engine, and the mock engine that stands in for one.

pub mod mock;
