//! OpenAI's wire types, as far as the router reads them.
//!
//! A body is scanned once into its top-level fields, each still the client's own bytes; only what routing
//! needs is read further. What we do not know passes through to the engine as it came.

use std::fmt;

use bytes::Bytes;
use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor, value::SeqAccessDeserializer},
};
use serde_json::value::RawValue;

use super::error::ApiError;

/// The top-level fields of a JSON object, in order, values unparsed.
#[derive(Debug)]
pub(super) struct Fields<'a> {
    text: &'a str,
    /// What names in errors start with: empty for a body, `nvext.` for that object.
    path: &'static str,
    members: Vec<(String, &'a RawValue)>,
}

/// The members of an object, for serde.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Vec<(String, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
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
        let Members(members) = serde_json::from_str(text).map_err(|error| {
            // What serde says of a wrong type quotes the value; of wrong syntax it gives the place alone.
            let problem = if error.is_data() { wrong_type(&error) } else { error.to_string() };
            ApiError::bad_request(format!("the request body is not a JSON object: {problem}"))
        })?;
        Ok(Self { text, path: "", members })
    }

    /// The bytes of a field that is there and not `null`. Of a field given twice the last counts, as for
    /// most parsers.
    pub(super) fn raw(&self, name: &str) -> Option<&'a str> {
        let field = self.members.iter().rev().find(|(field, _)| field == name)?;
        Some(field.1.get()).filter(|&value| value != "null")
    }

    /// The names of all fields, in order.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.members.iter().map(|(name, _)| name.as_str())
    }

    /// A field read as `T`.
    ///
    /// # Errors
    /// 400 that names the field, if it is there and something else. The value is not quoted: it may be a
    /// prompt in the wrong place.
    pub(super) fn get<T: Deserialize<'a>>(&self, name: &str) -> Result<Option<T>, ApiError> {
        let Some(raw) = self.raw(name) else { return Ok(None) };
        serde_json::from_str(raw).map(Some).map_err(|error| {
            let name = format!("{}{name}", self.path);
            ApiError::bad_field(&name, format!("'{name}' is not usable: {}", wrong_type(&error)))
        })
    }

    /// A field that is an object, as its own fields; their names in errors start with `path`.
    ///
    /// # Errors
    /// 400 that names the field, if it is there and not an object.
    pub(super) fn object(&self, name: &str, path: &'static str) -> Result<Option<Self>, ApiError> {
        let members: Option<Members<'a>> = self.get(name)?;
        let text = self.raw(name).unwrap_or_default();
        Ok(members.map(|Members(members)| Self { text, path, members }))
    }

    /// The object without the fields in `drop` and with `add` in front. Every other byte is the client's own,
    /// spaces included: what the engine gets differs in nothing that was not asked for.
    pub(super) fn rewrite(&self, drop: &[&str], add: Option<(&str, &str)>) -> Bytes {
        let add = add.map(|(name, value)| format!("{}:{}", quoted(name), quoted(value)));
        self.replace(drop, add.as_deref())
    }

    /// The same with members that are JSON already, such as `"a":1,"b":2`.
    pub(super) fn replace(&self, drop: &[&str], add: Option<&str>) -> Bytes {
        let open = self.text.find('{').map_or(0, |at| at + 1);
        let mut body = String::with_capacity(self.text.len());
        body.push_str(&self.text[..open]);
        body.push_str(add.unwrap_or_default());
        let mut first = add.is_none();
        let mut from = open;
        for (name, value) in &self.members {
            let end = self.end_of(value);
            // From the end of the value before: the comma, if there was one, then the name, a colon, the value.
            let member = self.text.get(from..end).unwrap_or_default();
            from = end;
            if drop.contains(&name.as_str()) {
                continue;
            }
            match (first, member.trim_start().strip_prefix(',')) {
                (true, Some(bare)) => body.push_str(bare),
                (false, None) => {
                    body.push(',');
                    body.push_str(member);
                }
                _ => body.push_str(member),
            }
            first = false;
        }
        body.push_str(self.text.get(from..).unwrap_or_default());
        Bytes::from(body)
    }

    /// Where a value of this object ends in its text, of which it is a part.
    fn end_of(&self, value: &RawValue) -> usize {
        let start = value.get().as_ptr() as usize - self.text.as_ptr() as usize;
        start + value.get().len()
    }
}

/// Why a value is not of the type that is read, without the value itself.
fn wrong_type(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let text = text.rsplit_once(" at line ").map_or(text.as_str(), |(text, _)| text);
    if !error.is_data() {
        return text.to_owned();
    }
    // serde: `invalid type: string "the value", expected a boolean`.
    let Some((found, expected)) = text.rsplit_once(", expected ") else {
        let shape = text.strip_prefix("expected ");
        return shape
            .map_or_else(|| "not of the accepted form".to_owned(), |shape| format!("expected {shape}"));
    };
    let found = found.split_once(": ").map_or(found, |(_, found)| found);
    let found = found.split(['"', '`']).next().unwrap_or_default().trim_end();
    let expected = match expected {
        "u32" | "u64" => "a whole number that is not negative",
        "f64" => "a number",
        "a sequence" => "a list",
        other => other,
    };
    format!("expected {expected}, found {found}")
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

    fn rewritten(body: &str, drop: &[&str], add: Option<(&str, &str)>) -> String {
        let rewritten = Fields::parse(body.as_bytes()).unwrap().rewrite(drop, add);
        String::from_utf8(rewritten.to_vec()).unwrap()
    }

    #[test]
    fn what_is_not_dropped_keeps_every_byte() {
        let drop = &["nvext"][..];
        for (body, left) in [
            (
                r#"{"model":"m","x":1.50e3,"nvext":{"a":1},"y":"\u00e9"}"#,
                r#"{"model":"m","x":1.50e3,"y":"\u00e9"}"#,
            ),
            (" { \"nvext\" : {} ,\n \"b\" : [ 1 ] } \n", " {\n \"b\" : [ 1 ] } \n"),
            ("{\"a\" : 1 , \"nvext\":{\",\":1}\t}", "{\"a\" : 1\t}"),
            ("{\"a\":1 ,\"nvext\":1 , \"b\":2}", "{\"a\":1 , \"b\":2}"),
            (r#"{"nvext":{}}"#, "{}"),
            (r#"{"nvext":1,"a":1,"nv\u0065xt":2}"#, r#"{"a":1}"#),
            (r#"{"\u0061":1,"nvext":1}"#, r#"{"\u0061":1}"#),
            (" { } ", " { } "),
        ] {
            assert_eq!(rewritten(body, drop, None), left, "{body}");
            let salted = rewritten(body, drop, Some(("cache_salt", "a\"b")));
            let value: serde_json::Value = serde_json::from_str(&salted).unwrap();
            assert_eq!(value["cache_salt"], "a\"b", "{salted}");
        }
    }

    #[test]
    fn a_field_that_is_replaced_goes_everywhere() {
        let body = r#"{"cache_salt":null,"a":1,"cache_salt":"x"}"#;
        assert_eq!(
            rewritten(body, &["cache_salt"], Some(("cache_salt", "t"))),
            r#"{"cache_salt":"t","a":1}"#
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
        assert_eq!(error.message, "'model' is not usable: expected a string, found integer");
    }

    #[test]
    fn an_error_does_not_quote_the_value() {
        let secret = r#"{"stream":"a secret, expected to stay one","nvext":{"dp_rank":"a secret"},"tags":["a secret"]}"#;
        let fields = Fields::parse(secret.as_bytes()).unwrap();
        let nvext = fields.object("nvext", "nvext.").unwrap().unwrap();
        for error in [
            fields.get::<bool>("stream").unwrap_err(),
            fields.get::<Vec<u32>>("tags").unwrap_err(),
            fields.get::<PromptField>("nvext").unwrap_err(),
            nvext.get::<u32>("dp_rank").unwrap_err(),
            Fields::parse(b"\"a secret\"").unwrap_err(),
        ] {
            assert!(error.message.contains("expected"), "{}", error.message);
            assert!(!error.message.contains("secret"), "{}", error.message);
        }
        assert!(nvext.get::<u32>("dp_rank").unwrap_err().message.contains("'nvext.dp_rank'"));
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
        assert!(first("{}").is_err());
        assert!(first("[1,\"a\"]").is_err());
        assert!(first("[-1]").is_err());
    }
}
