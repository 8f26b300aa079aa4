//! The command line of a worker, which carries an engine's arguments beside the worker's own.
//!
//! It is read in three stages: what the worker and the router know is theirs, everything else is the engine's, in the
//! order in which it was given, and after `--` everything is the engine's. What an engine would make of its part is
//! not known here, so only names that nobody else can mean are taken out.

use std::ffi::{OsStr, OsString};

use clap::{Arg, Command};

/// Moves an engine's arguments behind a `--`, where clap leaves them alone; a command line of another subcommand is
/// returned as it is. `root` is the whole command, `arguments` begin with the program's name.
#[must_use]
pub fn set_apart(root: &Command, arguments: Vec<OsString>) -> Vec<OsString> {
    let everywhere = Known { arguments: root.get_arguments().filter(|arg| arg.is_global_set()).collect() };
    let Some(worker) = everywhere.next_word(&arguments, 1).filter(|&at| arguments[at] == "worker") else {
        return arguments;
    };
    let backend = everywhere.next_word(&arguments, worker + 1);
    let command = backend.and_then(|at| root.find_subcommand("worker")?.find_subcommand(&arguments[at]));
    let (Some(backend), Some(command)) = (backend, command) else { return arguments };
    let known =
        Known { arguments: everywhere.arguments.iter().copied().chain(command.get_arguments()).collect() };
    let (mut own, mut engine) = (arguments, Vec::new());
    let mut rest = own.split_off(backend + 1).into_iter().peekable();
    while let Some(argument) = rest.next() {
        if argument == "--" {
            engine.extend(rest);
            break;
        }
        match known.take(&argument) {
            Take::No => engine.push(argument),
            Take::Alone => own.push(argument),
            Take::WithValue => {
                own.push(argument);
                // A value that is missing is clap's to say.
                own.extend(rest.next_if(|value| !value.as_encoded_bytes().starts_with(b"--")));
            }
        }
    }
    if !engine.is_empty() {
        own.push("--".into());
        own.extend(engine);
    }
    own
}

/// The options of a command.
struct Known<'a> {
    arguments: Vec<&'a Arg>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Take {
    No,
    Alone,
    WithValue,
}

impl Known<'_> {
    /// Whether an argument is one of these options.
    fn take(&self, argument: &OsStr) -> Take {
        let Some(text) = argument.to_str() else { return Take::No };
        let Some(long) = text.strip_prefix("--") else {
            return if text == "-h" { Take::Alone } else { Take::No };
        };
        let (name, has_value) = long.split_once('=').map_or((long, false), |(name, _)| (name, true));
        match self.arguments.iter().find(|arg| arg.get_long() == Some(name)) {
            Some(arg) if arg.get_action().takes_values() && !has_value => Take::WithValue,
            Some(_) => Take::Alone,
            // No engine has an option of this kind, so this is a flag of ours that was misspelt or cut short: clap says
            // which. Whoever means an engine's all the same writes it behind the --.
            None if name == "help" || name.starts_with("router-") || name.starts_with("no-router-") => {
                Take::Alone
            }
            None if self.abbreviates(name) => Take::Alone,
            None => Take::No,
        }
    }

    /// Whether a name is the beginning of one of these, and more than its first word: an engine may well have an option of
    /// one word that one of ours begins with, as `--device`.
    fn abbreviates(&self, name: &str) -> bool {
        let mut names = self.arguments.iter().filter_map(|arg| arg.get_long());
        name.contains('-') && names.any(|known| known.starts_with(name))
    }

    /// The position of the first word from `start` on that is neither an option nor an option's value.
    fn next_word(&self, arguments: &[OsString], start: usize) -> Option<usize> {
        let mut at = start;
        while let Some(argument) = arguments.get(at) {
            if !argument.as_encoded_bytes().starts_with(b"-") {
                return Some(at);
            }
            at += if self.take(argument) == Take::WithValue { 2 } else { 1 };
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> Command {
        let flag = |name: &'static str| Arg::new(name).long(name);
        let switch = |name| flag(name).action(clap::ArgAction::SetTrue);
        let backend = Command::new("vllm").arg(flag("own")).arg(switch("on")).arg(flag("router-mode"));
        let backend = backend.arg(switch("load-aware"));
        Command::new("k")
            .arg(flag("log").global(true))
            .subcommand(Command::new("worker").subcommand(backend))
            .subcommand(Command::new("other"))
    }

    fn apart(line: &str) -> String {
        let arguments = line.split(' ').map(OsString::from).collect();
        let arguments: Vec<_> = set_apart(&root(), arguments)
            .into_iter()
            .map(|argument| argument.into_string().unwrap())
            .collect();
        arguments.join(" ")
    }

    #[test]
    fn what_nobody_knows_goes_to_the_engine_in_order() {
        assert_eq!(
            apart("k worker vllm m --own 1 --x 2 --on y -z"),
            "k worker vllm --own 1 --on -- m --x 2 y -z"
        );
        assert_eq!(apart("k worker vllm --x -- --own 1 --help"), "k worker vllm -- --x --own 1 --help");
        assert_eq!(apart("k worker vllm --own=1 --own -1 --x=3"), "k worker vllm --own=1 --own -1 -- --x=3");
        assert_eq!(apart("k worker vllm --own --on"), "k worker vllm --own --on");
    }

    #[test]
    fn names_are_not_abbreviated() {
        assert_eq!(apart("k worker vllm --ow 1"), "k worker vllm -- --ow 1");
        assert_eq!(apart("k worker vllm --load-awar"), "k worker vllm --load-awar");
        assert_eq!(apart("k worker vllm --load"), "k worker vllm -- --load");
    }

    #[test]
    fn a_misspelt_router_flag_is_not_the_engine_s() {
        assert_eq!(apart("k worker vllm --router-mod kv"), "k worker vllm --router-mod -- kv");
    }

    #[test]
    fn options_of_every_command_stand_anywhere() {
        assert_eq!(apart("k --log debug worker vllm --x"), "k --log debug worker vllm -- --x");
        assert_eq!(
            apart("k worker --log=debug vllm --x --log info"),
            "k worker --log=debug vllm --log info -- --x"
        );
    }

    #[test]
    fn other_commands_are_left_alone() {
        for line in [
            "k other --x 1",
            "k",
            "k --log",
            "k worker",
            "k worker unheard-of --x",
            "k --log worker other --x",
        ] {
            assert_eq!(apart(line), line);
        }
    }
}
