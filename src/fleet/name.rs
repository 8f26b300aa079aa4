//! What a card's texts may be. They are in log lines, metrics and errors, where a line break would make lines of its own and
//! an escape would speak to the terminal.

use thiserror::Error;

/// Bytes that a name has at most: the path of a model directory is one.
const LONGEST_NAME: usize = 256;

/// Bytes that a URL or an endpoint has at most.
pub(super) const LONGEST_ADDRESS: usize = 2048;

/// Why a text cannot be on a card. The text is not repeated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum NameError {
    /// No request could name it.
    #[error("must not be empty; accepted are 1 to 256 bytes without control characters")]
    Empty,
    /// It would fill the log.
    #[error("has {bytes} bytes; accepted are 1 to {most} bytes without control characters")]
    Long {
        /// How many it has.
        bytes: usize,
        /// How many it may have.
        most: usize,
    },
    /// It would forge lines of the log, or speak to the terminal.
    #[error(
        "has the control character U+{code:04X}; accepted are 1 to {most} bytes without control characters"
    )]
    Control {
        /// The first of them.
        code: u32,
        /// How many bytes there may be.
        most: usize,
    },
}

/// Whether a model, an adapter, or a part of a worker set's address can have this name.
///
/// # Errors
/// What is wrong with it.
pub fn check_name(name: &str) -> Result<(), NameError> {
    if name.is_empty() { Err(NameError::Empty) } else { check_text(name, LONGEST_NAME) }
}

pub(super) fn check_text(text: &str, most: usize) -> Result<(), NameError> {
    if text.len() > most {
        return Err(NameError::Long { bytes: text.len(), most });
    }
    let control = text.chars().find(|character| character.is_control());
    control.map_or(Ok(()), |character| Err(NameError::Control { code: u32::from(character), most }))
}
