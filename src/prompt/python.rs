//! What chat templates take from Python: how values print, and JSON as `json.dumps` writes it.

use std::fmt::Write;

use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

/// Nothing nests deeper: request bodies are parsed with a limit of 128.
const MAX_DEPTH: usize = 200;

/// A request's JSON as a template value. Key order is kept.
pub(super) fn from_json(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(truth) => Value::from(*truth),
        serde_json::Value::String(text) => Value::from(text.as_str()),
        serde_json::Value::Array(items) => Value::from(items.iter().map(from_json).collect::<Vec<_>>()),
        serde_json::Value::Object(map) => {
            Value::from_pairs(map.iter().map(|(key, item)| (key.as_str(), from_json(item))))
        }
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(integer), _, _) => Value::from(integer),
            (_, Some(integer), _) => Value::from(integer),
            (_, _, Some(float)) => Value::from(float),
            _ => Value::UNDEFINED,
        },
    }
}

/// `str(value)`: how jinja2 prints a value.
pub(super) fn write_str(value: &Value, out: &mut String) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => out.push_str(text),
        None if value.is_undefined() => {}
        None => Writer { out, json: None, depth: 0 }.write(value)?,
    }
    Ok(())
}

/// Python's methods of strings, lists and dictionaries: those of `pycompat`, and a few more.
pub(super) fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    let (Some(text), Some(argument)) = (value.as_str(), arguments.first().and_then(Value::as_str)) else {
        return unknown_method_callback(state, value, name, arguments);
    };
    let list = |texts: &[&str]| Value::from(texts.iter().copied().map(Value::from).collect::<Vec<_>>());
    match (name, arguments.len()) {
        ("removeprefix", 1) => Ok(Value::from(text.strip_prefix(argument).unwrap_or(text))),
        ("removesuffix", 1) => Ok(Value::from(text.strip_suffix(argument).unwrap_or(text))),
        // An empty separator is an error in Python.
        ("partition" | "rpartition" | "rsplit", _) if argument.is_empty() => {
            Err(Error::new(ErrorKind::InvalidOperation, "empty separator"))
        }
        ("partition", 1) => {
            let (before, mark, after) =
                text.split_once(argument).map_or((text, "", ""), |(before, after)| (before, argument, after));
            Ok(list(&[before, mark, after]))
        }
        ("rpartition", 1) => {
            let (before, mark, after) = text
                .rsplit_once(argument)
                .map_or(("", "", text), |(before, after)| (before, argument, after));
            Ok(list(&[before, mark, after]))
        }
        ("rsplit", 1 | 2) => {
            let cuts = arguments.get(1).and_then(Value::as_i64).unwrap_or(-1);
            let pieces = usize::try_from(cuts).map_or(usize::MAX, |cuts| cuts.saturating_add(1));
            let mut split: Vec<&str> = text.rsplitn(pieces, argument).collect();
            split.reverse();
            Ok(list(&split))
        }
        _ => unknown_method_callback(state, value, name, arguments),
    }
}

/// The options of `json.dumps`.
#[derive(Default)]
struct Json {
    ascii: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

/// The filter `tojson` as Hugging Face defines it: `json.dumps` without ASCII escapes by default,
/// and without the HTML escapes of jinja2. The options are `ensure_ascii`, `indent` (a count or a
/// text), `separators` and `sort_keys`, by position or name.
pub(super) fn to_json(value: &Value, arguments: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let arguments = arguments.into_values();
    let (options, positional) = match arguments.split_last() {
        Some((last, rest)) if last.is_kwargs() => (Kwargs::try_from(last.clone())?, rest),
        _ => (Kwargs::from_iter(std::iter::empty::<(String, Value)>()), &arguments[..]),
    };
    let option = |at: usize, name: &str| -> Result<Option<Value>, Error> {
        let given =
            if options.has(name) { Some(options.get::<Value>(name)?) } else { positional.get(at).cloned() };
        Ok(given.filter(|value| !value.is_none()))
    };
    let is_true = |value: Option<Value>| value.is_some_and(|value| value.is_true());
    let ascii = is_true(option(0, "ensure_ascii")?);
    let indent = option(1, "indent")?.map(|indent| match indent.as_str() {
        Some(text) => text.to_owned(),
        None => " ".repeat(usize::try_from(indent.as_i64().unwrap_or(0)).unwrap_or(0).min(64)),
    });
    let (item_separator, key_separator) = match option(2, "separators")? {
        Some(pair) => {
            let text =
                |at| pair.get_item_by_index(at).map(|item| item.as_str().unwrap_or_default().to_owned());
            (text(0)?, text(1)?)
        }
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
    };
    let sort_keys = is_true(option(3, "sort_keys")?);
    options.assert_all_used()?;
    let mut out = String::new();
    let json = Json { ascii, indent, item_separator, key_separator, sort_keys };
    Writer { out: &mut out, json: Some(&json), depth: 0 }.write(value)?;
    Ok(out)
}

/// Writes a value as `repr` does or, with `json`, as `json.dumps` does.
struct Writer<'o> {
    out: &'o mut String,
    json: Option<&'o Json>,
    depth: usize,
}

impl Writer<'_> {
    fn write(&mut self, value: &Value) -> Result<(), Error> {
        match value.kind() {
            ValueKind::Undefined if self.json.is_some() => {
                return Err(Error::new(ErrorKind::BadSerialization, "an undefined value is not JSON"));
            }
            ValueKind::Undefined => self.out.push_str("Undefined"),
            ValueKind::None => self.out.push_str(if self.json.is_some() { "null" } else { "None" }),
            ValueKind::Bool => self.out.push_str(match (value.is_true(), self.json.is_some()) {
                (true, true) => "true",
                (true, false) => "True",
                (false, true) => "false",
                (false, false) => "False",
            }),
            ValueKind::Number => self.write_number(value),
            ValueKind::String => self.write_text(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.write_list(value)?,
            ValueKind::Map => self.write_map(value)?,
            _ if self.json.is_some() => {
                return Err(Error::new(ErrorKind::BadSerialization, "this kind of value is not JSON"));
            }
            _ => self.out.push_str(&value.to_string()),
        }
        Ok(())
    }

    fn write_number(&mut self, value: &Value) {
        if value.is_integer() {
            self.out.push_str(&value.to_string());
            return;
        }
        let float = f64::try_from(value.clone()).unwrap_or(f64::NAN);
        // Rust's Debug and Python's repr agree on the digits and on when to use an exponent, but
        // not on how to write it.
        let text = format!("{float:?}");
        match text.split_once('e') {
            Some((digits, exponent)) => {
                let (sign, exponent) = match exponent.strip_prefix('-') {
                    Some(exponent) => ('-', exponent),
                    None => ('+', exponent),
                };
                let digits = digits.strip_suffix(".0").unwrap_or(digits);
                // Writing to a string cannot fail.
                let _ = write!(self.out, "{digits}e{sign}{exponent:0>2}");
            }
            None => self.out.push_str(match text.as_str() {
                "inf" => "Infinity",
                "-inf" => "-Infinity",
                other => other,
            }),
        }
    }

    fn write_text(&mut self, text: &str) {
        let (quote, ascii) = match self.json {
            Some(json) => ('"', json.ascii),
            None if text.contains('\'') && !text.contains('"') => ('"', false),
            None => ('\'', false),
        };
        self.out.push(quote);
        for character in text.chars() {
            self.write_character(character, quote, ascii);
        }
        self.out.push(quote);
    }

    fn write_character(&mut self, character: char, quote: char, ascii: bool) {
        // Writing to a string cannot fail.
        match character {
            '\\' => self.out.push_str("\\\\"),
            '\n' => self.out.push_str("\\n"),
            '\r' => self.out.push_str("\\r"),
            '\t' => self.out.push_str("\\t"),
            '\u{8}' if self.json.is_some() => self.out.push_str("\\b"),
            '\u{c}' if self.json.is_some() => self.out.push_str("\\f"),
            character if character == quote => self.out.extend(['\\', quote]),
            character if character < ' ' && self.json.is_some() => {
                let _ = write!(self.out, "\\u{:04x}", u32::from(character));
            }
            character if self.json.is_none() && character.is_control() => {
                let _ = write!(self.out, "\\x{:02x}", u32::from(character));
            }
            character if ascii && !character.is_ascii() => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    let _ = write!(self.out, "\\u{unit:04x}");
                }
            }
            character => self.out.push(character),
        }
    }

    fn write_list(&mut self, list: &Value) -> Result<(), Error> {
        self.open('[')?;
        let mut empty = true;
        for item in list.try_iter()? {
            self.begin_item(empty);
            empty = false;
            self.write(&item)?;
        }
        self.close(']', empty);
        Ok(())
    }

    fn write_map(&mut self, map: &Value) -> Result<(), Error> {
        let mut keys: Vec<Value> = map.try_iter()?.collect();
        if self.json.is_some_and(|json| json.sort_keys) {
            keys.sort();
        }
        self.open('{')?;
        for (at, key) in keys.iter().enumerate() {
            self.begin_item(at == 0);
            if self.json.is_some() && key.as_str().is_none() {
                // JSON knows only text as keys.
                self.out.push('"');
                self.write(key)?;
                self.out.push('"');
            } else {
                self.write(key)?;
            }
            self.out.push_str(self.json.map_or(": ", |json| &json.key_separator));
            self.write(&map.get_item(key)?)?;
        }
        self.close('}', keys.is_empty());
        Ok(())
    }

    fn open(&mut self, bracket: char) -> Result<(), Error> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(Error::new(ErrorKind::InvalidOperation, "a value nests too deeply"));
        }
        self.out.push(bracket);
        Ok(())
    }

    fn begin_item(&mut self, first: bool) {
        if !first {
            self.out.push_str(self.json.map_or(", ", |json| &json.item_separator));
        }
        self.break_line(self.depth);
    }

    fn close(&mut self, bracket: char, empty: bool) {
        self.depth -= 1;
        if !empty {
            self.break_line(self.depth);
        }
        self.out.push(bracket);
    }

    fn break_line(&mut self, depth: usize) {
        if let Some(indent) = self.json.and_then(|json| json.indent.as_ref()) {
            self.out.push('\n');
            for _ in 0..depth {
                self.out.push_str(indent);
            }
        }
    }
}
