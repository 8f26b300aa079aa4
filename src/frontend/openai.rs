//! OpenAI's wire types, as far as the router reads them.
//!
//! A body is scanned once into its top-level fields, each still the client's own bytes; only what routing
//! needs is read further. What we do not know passes through to the engine as it came.

use std::fmt;

use bytes::Bytes;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error, MapAccess, SeqAccess, Visitor, value::SeqAccessDeserializer},
};
use serde_json::value::RawValue;

use super::error::ApiError;

/// The top-level fields of a JSON object, in order, values unparsed.
#[derive(Debug)]
pub(super) struct Fields<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Vec<(String, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Vec::with_capacity(map.size_hint().unwrap_or(8));
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(fields)
            }
        }
        deserializer.deserialize_map(Collect).map(Self)
    }
}

impl<'a> Fields<'a> {
    /// Reads a body.
    ///
    /// # Errors
    /// 400 for a body that is not a JSON object in UTF-8, with the place.
    pub(super) fn parse(body: &'a [u8]) -> Result<Self, ApiError> {
        if body.is_empty() {
            return Err(ApiError::bad_request("the request body is empty; send a JSON object"));
        }
        let text = std::str::from_utf8(body).map_err(|error| {
            ApiError::bad_request(format!("the request body is not valid UTF-8: {error}"))
        })?;
        serde_json::from_str(text)
            .map_err(|error| ApiError::bad_request(format!("the request body is not a JSON object: {error}")))
    }

    /// The bytes of a field that is there and not `null`. Of a field given twice the last counts, as for
    /// most parsers.
    pub(super) fn raw(&self, name: &str) -> Option<&'a str> {
        let field = self.0.iter().rev().find(|(field, _)| field == name)?;
        Some(field.1.get()).filter(|&value| value != "null")
    }

    /// The names of all fields, in order.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }

    /// A field read as `T`.
    ///
    /// # Errors
    /// 400 that names the field, if it is there and something else.
    pub(super) fn get<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, ApiError> {
        let Some(raw) = self.raw(name) else { return Ok(None) };
        serde_json::from_str(raw)
            .map(Some)
            .map_err(|error| ApiError::bad_field(name, format!("'{name}': {error}")))
    }

    /// The body without the field `drop` and with `add` in front, in place of what the client may have under that
    /// name; every other value is the client's own bytes.
    pub(super) fn rewrite(&self, drop: &str, add: Option<(&str, &str)>) -> Bytes {
        let mut body = String::from("{");
        let added = add.map(|(name, value)| (name.to_owned(), quoted(value)));
        let replaced = add.map(|(name, _)| name);
        let kept = self.0.iter().filter(|(name, _)| name != drop && Some(name.as_str()) != replaced);
        let fields = kept.map(|(name, value)| (quoted(name), value.get().to_owned()));
        let added = added.into_iter().map(|(name, value)| (quoted(&name), value));
        for (position, (name, value)) in added.chain(fields).enumerate() {
            if position > 0 {
                body.push(',');
            }
            body.push_str(&name);
            body.push(':');
            body.push_str(&value);
        }
        body.push('}');
        Bytes::from(body)
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// `prompt` of a completion: text or tokens, one or several. Of several the first is kept, by which the request is
/// routed: engines cache each prompt on its own, and a request goes to one worker.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct PromptField(Option<FirstPrompt>);

/// A single prompt.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum FirstPrompt {
    /// As text.
    Text(String),
    /// As token ids.
    Tokens(Vec<u32>),
}

impl PromptField {
    /// The first prompt; `None` if it is empty or there is none.
    pub(super) fn into_first(self) -> Option<FirstPrompt> {
        self.0.filter(|first| match first {
            FirstPrompt::Text(text) => !text.is_empty(),
            FirstPrompt::Tokens(tokens) => !tokens.is_empty(),
        })
    }
}

// By hand, since an untagged enum would hold every token of a long prompt in a buffer many times its size first.
impl<'de> Deserialize<'de> for PromptField {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Prompt;
        impl<'de> Visitor<'de> for Prompt {
            type Value = PromptField;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, a list of strings, a list of token ids, or a list of such lists")
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(PromptField(Some(FirstPrompt::Text(text.to_owned()))))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                // What comes after the first is read for its type only.
                let first = match list.next_element()? {
                    None => return Ok(PromptField(None)),
                    Some(Item::Token(token)) => {
                        let mut tokens = vec![token];
                        while let Some(token) = list.next_element()? {
                            tokens.push(token);
                        }
                        FirstPrompt::Tokens(tokens)
                    }
                    Some(Item::Text(text)) => {
                        while list.next_element::<String>()?.is_some() {}
                        FirstPrompt::Text(text)
                    }
                    Some(Item::Tokens(tokens)) => {
                        while list.next_element::<Vec<u32>>()?.is_some() {}
                        FirstPrompt::Tokens(tokens)
                    }
                };
                Ok(PromptField(Some(first)))
            }
        }
        deserializer.deserialize_any(Prompt)
    }
}

/// The first element of a list of prompts, or of a prompt in tokens.
enum Item {
    Token(u32),
    Text(String),
    Tokens(Vec<u32>),
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct First;
        impl<'de> Visitor<'de> for First {
            type Value = Item;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, a token id, or a list of token ids")
            }

            fn visit_u64<E: Error>(self, token: u64) -> Result<Item, E> {
                let token = u32::try_from(token);
                token.map(Item::Token).map_err(|_| E::custom("a token id is below 2^32"))
            }

            fn visit_str<E>(self, text: &str) -> Result<Item, E> {
                Ok(Item::Text(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Item, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(list)).map(Item::Tokens)
            }
        }
        deserializer.deserialize_any(First)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_keep_the_client_s_bytes() {
        let body = br#"{"model":"m","x":1.50e3,"nvext":{"a":1},"y":"\u00e9"}"#;
        let fields = Fields::parse(body).unwrap();
        assert_eq!(fields.raw("x"), Some("1.50e3"));
        let rewritten = fields.rewrite("nvext", None);
        assert_eq!(&rewritten[..], br#"{"model":"m","x":1.50e3,"y":"\u00e9"}"#);
        let salted = fields.rewrite("nvext", Some(("cache_salt", "a\"b")));
        assert_eq!(&salted[..16], br#"{"cache_salt":"a"#);
        assert!(serde_json::from_slice::<serde_json::Value>(&salted).is_ok());
        // Of a name given twice engines take the last, which must not be the client's null.
        let null = Fields::parse(br#"{"cache_salt":null,"model":"m"}"#).unwrap();
        assert_eq!(
            &null.rewrite("nvext", Some(("cache_salt", "a")))[..],
            br#"{"cache_salt":"a","model":"m"}"#
        );
    }

    #[test]
    fn what_is_not_an_object_is_refused_with_its_place() {
        for body in [&b""[..], b"[]", b"{", b"{\"a\":}", b"\xff{}", b"{} x", b"null"] {
            let error = Fields::parse(body).unwrap_err();
            assert_eq!(error.status, 400, "{body:?}");
        }
        assert!(Fields::parse(b"{\"a\":}").unwrap_err().message.contains("line 1 column 6"));
    }

    #[test]
    fn a_null_field_is_an_absent_one_and_a_wrong_type_is_named() {
        let fields = Fields::parse(br#"{"stream":null,"model":7}"#).unwrap();
        assert_eq!(fields.get::<bool>("stream").unwrap(), None);
        let error = fields.get::<String>("model").unwrap_err();
        assert!(error.message.contains("'model'"), "{}", error.message);
    }

    #[test]
    fn prompts_come_in_four_forms_and_empty_is_none_of_them() {
        let first = |json: &str| serde_json::from_str::<PromptField>(json).map(PromptField::into_first);
        assert_eq!(first(r#""a""#).unwrap(), Some(FirstPrompt::Text("a".into())));
        assert_eq!(first(r#"["a","b"]"#).unwrap(), Some(FirstPrompt::Text("a".into())));
        assert_eq!(first("[1,2]").unwrap(), Some(FirstPrompt::Tokens(vec![1, 2])));
        assert_eq!(first("[[1],[2]]").unwrap(), Some(FirstPrompt::Tokens(vec![1])));
        for empty in [r#""""#, "[]", r#"[""]"#, "[[]]"] {
            assert_eq!(first(empty).unwrap(), None, "{empty}");
        }
        for wrong in
            ["{}", "7", "[1,\"a\"]", "[\"a\",1]", "[[1],[\"a\"]]", "[-1]", "[4294967296]", "[1.5]", "[null]"]
        {
            assert!(first(wrong).is_err(), "{wrong}");
        }
    }
}
