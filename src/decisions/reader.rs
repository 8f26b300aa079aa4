//! Bytes to records.

use std::{
    io::{ErrorKind, Read},
    sync::Arc,
};

use super::{
    Decision, LogError, Outcome, Rule,
    frame::{DECISION, FORMAT, LARGEST, MAGIC, OUTCOME, RULE, RULES, checksum},
    wire::{Malformed, Source, Wire as _},
};

/// One record.
#[derive(Clone, PartialEq, Debug)]
pub enum Entry {
    /// A decision.
    Decision(Box<Decision>),
    /// What came of the request of an earlier one.
    Outcome {
        /// That decision's number.
        number: u64,
        /// What came of it.
        outcome: Outcome,
    },
}

/// How a log ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tail {
    /// After a whole record.
    Whole,
    /// Within a record, as when its writer was killed, or has not finished.
    Torn {
        /// Where that record begins.
        at: u64,
    },
}

/// Reads a log record by record, with the memory of one of them. It ends at the end of the bytes, at a torn record, and after an error.
#[derive(Debug)]
pub struct Reader<R> {
    bytes: R,
    /// Where the next frame begins.
    at: u64,
    record: Vec<u8>,
    rules: Vec<Option<Arc<Rule>>>,
    tail: Tail,
    ended: bool,
}

impl<R: Read> Reader<R> {
    /// A reader of the log that `bytes` begins with.
    ///
    /// # Errors
    /// When it is none, one of another format, or cannot be read.
    pub fn new(mut bytes: R) -> Result<Self, LogError> {
        let mut head = [0; MAGIC.len() + 5];
        let got = fill(&mut bytes, &mut head)?;
        if got < head.len() || !head.starts_with(&MAGIC) {
            return Err(LogError::NotALog);
        }
        let [.., a, b, c, d, length] = head;
        let found = u32::from_le_bytes([a, b, c, d]);
        let mut writer = vec![0; usize::from(length)];
        if fill(&mut bytes, &mut writer)? < writer.len() {
            return Err(LogError::NotALog);
        }
        if found != FORMAT {
            let writer = String::from_utf8_lossy(&writer).into_owned();
            return Err(LogError::OtherFormat { found, writer });
        }
        let at = (head.len() + writer.len()) as u64;
        let rules = vec![None; RULES as usize];
        Ok(Self { bytes, at, record: Vec::new(), rules, tail: Tail::Whole, ended: false })
    }

    /// How the log ended; before its end, [`Tail::Whole`].
    #[must_use]
    pub const fn tail(&self) -> Tail {
        self.tail
    }

    /// Where the next record begins, in bytes.
    #[must_use]
    pub const fn position(&self) -> u64 {
        self.at
    }

    fn next_entry(&mut self) -> Result<Option<Entry>, LogError> {
        while self.frame()? {
            let at = self.at;
            self.at += 8 + self.record.len() as u64;
            let read = self.read_record();
            match read.map_err(|Malformed(problem)| LogError::Corrupt { at, problem })? {
                Some(entry) => return Ok(Some(entry)),
                None => continue,
            }
        }
        Ok(None)
    }

    /// Reads a frame's record; false at the end of the log.
    fn frame(&mut self) -> Result<bool, LogError> {
        let mut head = [0; 8];
        let got = fill(&mut self.bytes, &mut head)?;
        if got < head.len() {
            if got > 0 {
                self.tail = Tail::Torn { at: self.at };
            }
            return Ok(false);
        }
        let [a, b, c, d, s, t, u, v] = head;
        let (length, sum) = (u32::from_le_bytes([a, b, c, d]) as usize, u32::from_le_bytes([s, t, u, v]));
        let corrupt = |problem| LogError::Corrupt { at: self.at, problem };
        if length > LARGEST {
            return Err(corrupt("it says that it is longer than any record is"));
        }
        self.record.clear();
        // By what comes, not by what was announced: a length that lies costs no memory.
        let got = (&mut self.bytes).take(length as u64).read_to_end(&mut self.record)?;
        if got < length {
            self.tail = Tail::Torn { at: self.at };
            return Ok(false);
        }
        if checksum(&self.record) != sum {
            return Err(corrupt("its checksum is another"));
        }
        Ok(true)
    }

    /// What a record is; none for a rule, which is only remembered.
    fn read_record(&mut self) -> Result<Option<Entry>, Malformed> {
        let mut from = Source::new(&self.record);
        let entry = match u8::get(&mut from)? {
            RULE => {
                let number = u64::get(&mut from)?;
                let rule = Arc::new(Rule::get(&mut from)?);
                let place = usize::try_from(number).ok().and_then(|number| self.rules.get_mut(number));
                *place.ok_or(Malformed("its rule has a number beyond all"))? = Some(rule);
                None
            }
            DECISION => {
                let number = u64::get(&mut from)?;
                let rule = usize::try_from(number).ok().and_then(|number| self.rules.get(number)?.clone());
                let rule = rule.ok_or(Malformed("it names a rule that was not written"))?;
                Some(Entry::Decision(Box::new(Decision::take_under(rule, &mut from)?)))
            }
            OUTCOME => {
                let (number, outcome) = (u64::get(&mut from)?, Outcome::get(&mut from)?);
                Some(Entry::Outcome { number, outcome })
            }
            _ => return Err(Malformed("its kind is unknown")),
        };
        if from.is_empty() { Ok(entry) } else { Err(Malformed("it is longer than what it holds")) }
    }
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<Entry, LogError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.next_entry().transpose();
        self.ended = !matches!(next, Some(Ok(_)));
        next
    }
}

/// Reads until `into` is full or the bytes end; how many came.
fn fill(bytes: &mut impl Read, into: &mut [u8]) -> Result<usize, LogError> {
    let mut got = 0;
    while got < into.len() {
        match bytes.read(&mut into[got..]) {
            Ok(0) => break,
            Ok(more) => got += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(got)
}
