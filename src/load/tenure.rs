//! State of a slot index that belongs to one generation at a time.

/// The state of whoever holds a slot index now. State of a generation that is over is out of reach, and
/// nobody can start it again.
#[derive(Debug, Default)]
pub(super) struct Tenure<T> {
    /// Every generation before this one is over.
    generation: u32,
    state: T,
}

impl<T: Default> Tenure<T> {
    /// The state of `generation`, or `None` when that generation is over. A newer generation than the one
    /// known ends the old one and starts empty.
    pub(super) fn of(&mut self, generation: u32) -> Option<&mut T> {
        if is_before(generation, self.generation) {
            return None;
        }
        if generation != self.generation {
            *self = Self { generation, state: T::default() };
        }
        Some(&mut self.state)
    }

    /// Ends `generation`, and with it every older one.
    pub(super) fn end(&mut self, generation: u32) {
        if !is_before(generation, self.generation) {
            *self = Self { generation: generation.wrapping_add(1), state: T::default() };
        }
    }
}

impl<T> Tenure<T> {
    /// As [`Tenure::of`], for readers: what is not known yet is `Some(None)`.
    pub(super) const fn peek(&self, generation: u32) -> Option<Option<&T>> {
        if is_before(generation, self.generation) {
            None
        } else if generation == self.generation {
            Some(Some(&self.state))
        } else {
            Some(None)
        }
    }

    /// The state of the generation that is current.
    pub(super) const fn current(&self) -> &T {
        &self.state
    }
}

/// Whether generation `a` came before `b`. Generations wrap, so the comparison is of their distance.
const fn is_before(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) > u32::MAX / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ended_generation_stays_out_of_reach() {
        let mut tenure = Tenure::<u32>::default();
        *tenure.of(0).unwrap() = 7;
        tenure.end(0);
        assert_eq!((tenure.of(0).copied(), tenure.peek(0)), (None, None));
        assert_eq!((tenure.of(1).copied(), tenure.peek(1)), (Some(0), Some(Some(&0))));
    }

    #[test]
    fn a_newer_generation_starts_empty_and_ends_the_old_one() {
        let mut tenure = Tenure::<u32>::default();
        *tenure.of(0).unwrap() = 7;
        assert_eq!(tenure.peek(3), Some(None));
        *tenure.of(3).unwrap() = 1;
        assert_eq!(tenure.peek(0), None);
        tenure.end(2);
        assert_eq!(tenure.peek(3), Some(Some(&1)), "ending an older generation again changes nothing");
    }

    #[test]
    fn generations_wrap() {
        let mut tenure = Tenure::<u32> { generation: u32::MAX, state: 7 };
        assert_eq!(tenure.peek(u32::MAX), Some(Some(&7)));
        tenure.end(u32::MAX);
        assert_eq!((tenure.peek(u32::MAX), tenure.peek(0)), (None, Some(Some(&0))));
    }
}
