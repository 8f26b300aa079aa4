//! What a worker's API is good for.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// A part of an engine's API, which not every model has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Api {
    /// Chats, and what is made of chats: `/v1/chat/completions`, `/v1/responses`, `/v1/messages`.
    Chat,
    /// `/v1/completions`.
    Completions,
    /// `/v1/embeddings`.
    Embedding,
    /// `/v1/images/...`.
    Images,
    /// `/v1/audio/speech`.
    Audios,
    /// `/v1/videos`, `/v1/videos/...`.
    Videos,
    /// Tensors, which no route of OpenAI's API carries.
    Tensor,
}

impl Api {
    /// Every part.
    pub const ALL: [Self; 7] = [
        Self::Chat,
        Self::Completions,
        Self::Embedding,
        Self::Images,
        Self::Audios,
        Self::Videos,
        Self::Tensor,
    ];

    /// The name on a card.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Completions => "completions",
            Self::Embedding => "embedding",
            Self::Images => "images",
            Self::Audios => "audios",
            Self::Videos => "videos",
            Self::Tensor => "tensor",
        }
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// The parts that a worker serves. It is part of the name of its worker set, so two spellings of one are one: it is read
/// in any order and any case, with spaces or without, and written one way.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ModelType(u8);

impl ModelType {
    /// These parts.
    #[must_use]
    pub const fn of(apis: &[Api]) -> Self {
        let (mut bits, mut at) = (0, 0);
        while at < apis.len() {
            bits |= apis[at].bit();
            at += 1;
        }
        Self(bits)
    }

    /// Whether it has that part.
    #[must_use]
    pub const fn serves(self, api: Api) -> bool {
        self.0 & api.bit() != 0
    }

    /// The parts.
    pub fn apis(self) -> impl Iterator<Item = Api> {
        Api::ALL.into_iter().filter(move |&api| self.serves(api))
    }
}

/// Chats and completions: a model that generates text.
impl Default for ModelType {
    fn default() -> Self {
        Self::of(&[Api::Chat, Api::Completions])
    }
}

impl FromStr for ModelType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut read = Self(0);
        for word in text.split(['|', ',']).map(str::trim) {
            let known = Api::ALL.into_iter().find(|api| api.name().eq_ignore_ascii_case(word));
            let api = known.ok_or_else(|| {
                let names = Api::ALL.map(Api::name).join(", ");
                format!("'{word}' is no part of an API; accepted are {names}, joined by | or commas")
            })?;
            read.0 |= api.bit();
        }
        Ok(read)
    }
}

/// The names, joined by bars.
impl fmt::Display for ModelType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.apis().map(Api::name).collect::<Vec<_>>().join("|"))
    }
}

impl fmt::Debug for ModelType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for ModelType {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ModelType {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_type_in_several_spellings_is_one() {
        for spelled in ["chat|completions", "Chat | Completions", "completions,chat", "chat|chat|COMPLETIONS"]
        {
            assert_eq!(spelled.parse(), Ok(ModelType::default()), "{spelled}");
        }
        assert_eq!(ModelType::default().to_string(), "chat|completions");
        for api in Api::ALL {
            let alone: ModelType = api.name().parse().unwrap();
            assert_eq!(alone.apis().collect::<Vec<_>>(), [api]);
        }
    }

    #[test]
    fn an_unknown_part_is_named_with_those_that_are_known() {
        for text in ["", "chta", "chat|", "chat;completions"] {
            let error = text.parse::<ModelType>().unwrap_err();
            assert!(error.contains("accepted are chat, completions, embedding"), "{error}");
        }
    }
}
