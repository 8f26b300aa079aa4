//! kvroute
fn main() {}
