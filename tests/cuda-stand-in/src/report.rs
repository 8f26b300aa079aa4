//! What is told when a context is released: `calls NAME NUMBER`, `left WHAT NUMBER` and `wrong WHAT`, one a line.

use std::fmt::Write as _;

use crate::driver::Driver;

/// The report on what `driver` saw so far.
pub fn of(driver: &Driver) -> String {
    let mut text = String::new();
    for (function, calls) in &driver.calls {
        let _ = writeln!(text, "calls {function} {calls}");
    }
    for (what, number) in driver.left() {
        let _ = writeln!(text, "left {what} {number}");
    }
    for wrong in &driver.wrongs {
        let _ = writeln!(text, "wrong {wrong}");
    }
    text
}
