//! The command line.

use std::path::PathBuf;

use crate::measure::Effort;

pub(crate) const HELP: &str = "\
kvroute's prefix index beside SMG's and Dynamo's, on the same operations

  --trace FILE         a Mooncake trace for the workloads A-D, F and H; given again, the one for E.
                       Without it requests are made up
  --workload LETTERS   only these (ABCDEFHSTVW)
  --quick              fewer repetitions and checkpoints, no A and D: two minutes instead of ten
  --repetitions N      how many (5; with --quick 3)
";

/// What was asked for.
#[derive(Debug)]
pub(crate) struct Arguments {
    pub(crate) conversation: Option<PathBuf>,
    pub(crate) synthetic: Option<PathBuf>,
    pub(crate) letters: String,
    pub(crate) effort: Effort,
    pub(crate) help: bool,
}

/// Arguments that make no sense.
#[derive(thiserror::Error, Debug)]
pub(crate) enum ArgumentError {
    #[error("{0} needs a value")]
    NoValue(&'static str),
    #[error("--trace can be given twice: the conversation trace, then the synthetic one")]
    ThirdTrace,
    #[error("--workload: there is no workload {0}; there are {letters}", letters = Effort::FULL.letters)]
    NoSuchWorkload(char),
    #[error("--repetitions: {0:?} is no number above 0")]
    Repetitions(String),
    #[error("unknown argument {0:?}; --help lists them")]
    Unknown(String),
}

impl Arguments {
    /// Understands what comes after the program's name.
    pub(crate) fn parse(given: impl IntoIterator<Item = String>) -> Result<Self, ArgumentError> {
        let mut arguments = Self {
            conversation: None,
            synthetic: None,
            letters: String::new(),
            effort: Effort::FULL,
            help: false,
        };
        let mut wanted = None;
        let mut given = given.into_iter();
        while let Some(argument) = given.next() {
            let mut value = |of| given.next().ok_or(ArgumentError::NoValue(of));
            match argument.as_str() {
                "--trace" => arguments.add_trace(value("--trace")?.into())?,
                "--workload" => arguments.letters = letters(&value("--workload")?)?,
                "--repetitions" => wanted = Some(repetitions(value("--repetitions")?)?),
                "--quick" => arguments.effort = Effort::QUICK,
                "--help" | "-h" => arguments.help = true,
                _ => return Err(ArgumentError::Unknown(argument)),
            }
        }
        if let Some(repetitions) = wanted {
            arguments.effort = arguments.effort.with_repetitions(repetitions);
        }
        if arguments.letters.is_empty() {
            arguments.letters = arguments.effort.letters.to_owned();
        }
        Ok(arguments)
    }

    fn add_trace(&mut self, path: PathBuf) -> Result<(), ArgumentError> {
        let place = if self.conversation.is_none() { &mut self.conversation } else { &mut self.synthetic };
        if place.replace(path).is_some() { Err(ArgumentError::ThirdTrace) } else { Ok(()) }
    }
}

fn letters(value: &str) -> Result<String, ArgumentError> {
    let asked: Vec<char> = value.to_uppercase().chars().filter(|&letter| letter != ',').collect();
    match asked.iter().find(|&&letter| !Effort::FULL.letters.contains(letter)) {
        Some(&letter) => Err(ArgumentError::NoSuchWorkload(letter)),
        None => Ok(asked.into_iter().collect()),
    }
}

fn repetitions(value: String) -> Result<usize, ArgumentError> {
    value.parse().ok().filter(|&number| number > 0).ok_or(ArgumentError::Repetitions(value))
}
