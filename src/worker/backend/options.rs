//! An argument list, taken apart without knowing the options in it.

use std::{fmt::Display, str::FromStr};

use serde_json::Value;

use super::ArgumentError;
use crate::{
    fleet::{Api, ModelType, StreamDirection},
    worker::facts::{KvEvents, Stated},
};

/// The options of an argument list, each with the words behind it, up to the next option.
#[derive(Debug)]
pub(super) struct Options<'a> {
    leading: Vec<&'a str>,
    given: Vec<Given<'a>>,
}

/// One option as it was given.
#[derive(Debug)]
pub(super) struct Given<'a> {
    /// With dashes for underscores, which argparse takes for the same.
    name: String,
    spelled: &'a str,
    words: Vec<&'a str>,
}

impl<'a> Options<'a> {
    pub(super) fn parse(arguments: &'a [String]) -> Self {
        let (mut leading, mut given) = (Vec::<&str>::new(), Vec::<Given<'a>>::new());
        for word in arguments {
            let is_option = word.len() > 1 && word.starts_with('-') && word.parse::<f64>().is_err();
            match (is_option, given.last_mut()) {
                (true, _) => {
                    let (spelled, value) = word
                        .split_once('=')
                        .map_or((word.as_str(), None), |(name, value)| (name, Some(value)));
                    let name = if spelled.starts_with("--") {
                        spelled.replace('_', "-")
                    } else {
                        spelled.to_owned()
                    };
                    given.push(Given { name, spelled, words: value.into_iter().collect() });
                }
                (false, Some(last)) => last.words.push(word),
                (false, None) => leading.push(word),
            }
        }
        Self { leading, given }
    }

    /// The word in front of all options, apart from the name of a subcommand.
    pub(super) fn leading(&self) -> Option<&'a str> {
        self.leading.iter().copied().find(|word| *word != "serve")
    }

    /// The last of the options that go by one of `names`: engines take the last one, too.
    fn last(&self, names: &[&str]) -> Option<&Given<'a>> {
        self.given.iter().rev().find(|given| names.contains(&given.name.as_str()))
    }

    /// Whether a switch is there.
    pub(super) fn has(&self, name: &str) -> Option<&'a str> {
        self.last(&[name]).map(|given| given.spelled)
    }

    /// The first word behind an option.
    pub(super) fn text(&self, names: &[&str]) -> Result<Option<Stated<String>>, ArgumentError> {
        let Some(given) = self.last(names) else { return Ok(None) };
        match given.words.first() {
            Some(word) => Ok(Some(Stated::new((*word).to_owned(), source(given.spelled)))),
            None => Err(error(given.spelled, "it needs a value")),
        }
    }

    /// A number behind an option.
    pub(super) fn number<T: FromStr>(&self, names: &[&str]) -> Result<Option<Stated<T>>, ArgumentError> {
        let Some(text) = self.text(names)? else { return Ok(None) };
        let spelled = self.last(names).map_or("", |given| given.spelled);
        match text.value.parse() {
            Ok(number) => Ok(Some(Stated::new(number, text.by))),
            Err(_) => Err(error(spelled, format!("'{}' is not a whole number that fits", text.value))),
        }
    }

    /// The JSON object behind an option; keys given one by one (`--option.key value`) are put over it.
    fn object(&self, name: &str) -> Result<Option<Stated<Value>>, ArgumentError> {
        let mut object: Option<Stated<Value>> = None;
        for given in &self.given {
            let Some(key) = given.name.strip_prefix(name) else { continue };
            let word = given.words.first().copied().unwrap_or_default();
            let read = serde_json::from_str::<Value>(word);
            match (key, key.strip_prefix('.')) {
                ("", _) => match read {
                    Ok(value @ Value::Object(_)) => object = Some(Stated::new(value, source(given.spelled))),
                    Ok(_) => return Err(error(given.spelled, format!("'{word}' is not a JSON object"))),
                    Err(problem) => {
                        return Err(error(given.spelled, format!("'{word}' is not JSON: {problem}")));
                    }
                },
                (_, Some(key)) => {
                    let empty = || Stated::new(Value::Object(serde_json::Map::new()), source(name));
                    let object = object.get_or_insert_with(empty);
                    object.value[key.replace('-', "_")] = read.unwrap_or_else(|_| Value::from(word));
                }
                _ => {}
            }
        }
        Ok(object)
    }

    /// What `--kv-events-config` says, which vLLM and SGLang spell alike.
    pub(super) fn kv_events(
        &self,
        publishes: impl Fn(&Value) -> bool,
    ) -> Result<Option<Stated<KvEvents>>, ArgumentError> {
        let Some(Stated { value: config, by }) = self.object("--kv-events-config")? else { return Ok(None) };
        if !publishes(&config) {
            return Ok(Some(Stated::new(KvEvents::Silent, by)));
        }
        let text = |key: &str| config[key].as_str().map(str::to_owned);
        let endpoint = text("endpoint").unwrap_or_else(|| "tcp://*:5557".to_owned());
        let direction = match config["bind"].as_bool() {
            Some(true) => StreamDirection::Connect,
            Some(false) => StreamDirection::Bind,
            None => StreamDirection::of_endpoint(&endpoint),
        };
        let replay = text("replay_endpoint");
        Ok(Some(Stated::new(KvEvents::Published { endpoint, replay, direction }, by)))
    }
}

/// An argument list for the log: what stands behind an option that is named like a secret is left out.
#[must_use]
pub fn without_secrets(arguments: &[String]) -> String {
    let mut hidden = false;
    let mut shown = Vec::with_capacity(arguments.len());
    for word in arguments {
        if !word.starts_with('-') {
            shown.push(if hidden { "..." } else { word.as_str() });
            continue;
        }
        let (name, value) =
            word.split_once('=').map_or((word.as_str(), None), |(name, value)| (name, Some(value)));
        let lower = name.to_ascii_lowercase();
        let mut parts = lower.split(['-', '_', '.']);
        hidden = parts.any(|part| matches!(part, "key" | "token" | "password" | "secret"));
        shown.push(if hidden { name } else { word });
        if hidden && value.is_some() {
            shown.push("...");
        }
    }
    shown.join(" ")
}

/// An engine whose option makes it answer with vectors, and generate nothing.
pub(super) fn embeds(option: Option<&str>) -> Option<Stated<ModelType>> {
    option.map(|option| Stated::new(ModelType::of(&[Api::Embedding]), source(option)))
}

/// How the log names an option as the source of a fact.
pub(super) fn source(spelled: &str) -> String {
    format!("engine argument {spelled}")
}

pub(super) fn error(option: &str, problem: impl Display) -> ArgumentError {
    ArgumentError { option: option.to_owned(), problem: problem.to_string() }
}

#[cfg(test)]
pub(super) fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_logged() {
        let arguments = words("m --api-key a b --port 1 --hf_token=c --max-num-batched-tokens 5");
        let shown = "m --api-key ... ... --port 1 --hf_token ... --max-num-batched-tokens 5";
        assert_eq!(without_secrets(&arguments), shown);
    }

    #[test]
    fn an_option_is_found_however_it_is_spelled_and_the_last_one_counts() {
        let arguments = words("serve m --a_b 1 --a-b=2 --c -5 -d x");
        let options = Options::parse(&arguments);
        assert_eq!(options.leading(), Some("m"));
        assert_eq!(options.number(&["--a-b"]), Ok(Some(Stated::new(2, "engine argument --a-b"))));
        assert_eq!(options.number(&["--c"]), Ok(Some(Stated::new(-5, "engine argument --c"))));
        assert_eq!(
            options.text(&["-d", "--dd"]),
            Ok(Some(Stated::new("x".to_owned(), "engine argument -d")))
        );
        assert_eq!(options.text(&["--e"]), Ok(None));
        assert!(options.number::<u32>(&["-d"]).unwrap_err().to_string().contains("'x'"));
    }
}
