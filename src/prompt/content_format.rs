//! What can be learnt from a chat template's source before it runs.
//!
//! Templates are written for jinja2 with Hugging Face's extensions. One pass over the block tags
//! (`{% ... %}`) does two things: it rewrites the `generation` blocks that our engine does not
//! know, and it finds out whether the template iterates over a message's content.

use std::borrow::Cow;
use std::ops::Range;

/// The shape in which a template expects `message.content`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContentFormat {
    /// One string; the text parts of a list are joined with line breaks.
    Text,
    /// A list of parts; a string becomes a list of one text part.
    Parts,
}

/// `source` as our template engine takes it: line breaks are `\n` (jinja2 does so too), and
/// `{% generation %}` blocks, which only mark what an assistant wrote, become plain scopes.
pub(super) fn prepare(source: &str) -> String {
    let source: Cow<'_, str> = if source.contains('\r') {
        source.replace("\r\n", "\n").replace('\r', "\n").into()
    } else {
        source.into()
    };
    let mut out = String::with_capacity(source.len());
    let mut copied = 0;
    for block in blocks(&source) {
        let replacement = match source[block.clone()].trim() {
            "generation" => " with ",
            "endgeneration" => " endwith ",
            _ => continue,
        };
        out.push_str(&source[copied..block.start]);
        out.push_str(replacement);
        copied = block.end;
    }
    out.push_str(&source[copied..]);
    out
}

/// Decides as vLLM's `auto` does: [`ContentFormat::Parts`] when some loop runs over the content of
/// a message, or over a variable named `content`.
///
/// A message is the variable of a loop over `messages`, over a name assigned from it, or over a
/// slice or filtering of either. Scopes are ignored: a name means the same everywhere.
pub(super) fn detect(source: &str) -> ContentFormat {
    let statements: Vec<Statement<'_>> =
        blocks(source).filter_map(|block| Statement::parse(&source[block])).collect();
    let mut lists = vec!["messages"];
    // Names may be chained in any order, so follow assignments until nothing new appears.
    loop {
        let known = lists.len();
        for statement in &statements {
            if let Statement::Set { target, value: Access { name, key: None, .. } } = statement
                && lists.contains(name)
                && !lists.contains(target)
            {
                lists.push(target);
            }
        }
        if lists.len() == known {
            break;
        }
    }
    let loops = || {
        statements.iter().filter_map(|statement| match statement {
            Statement::For { target, over } => Some((*target, *over)),
            Statement::Set { .. } => None,
        })
    };
    let messages: Vec<&str> = loops()
        .filter(|(_, over)| over.key.is_none() && lists.contains(&over.name))
        .map(|(target, _)| target)
        .collect();
    let iterates = loops().any(|(_, over)| match over.key {
        Some(key) => key == "content" && messages.contains(&over.name),
        None => over.name == "content" && !over.refined,
    });
    if iterates { ContentFormat::Parts } else { ContentFormat::Text }
}

/// The statements that matter to [`detect`].
enum Statement<'s> {
    For { target: &'s str, over: Access<'s> },
    Set { target: &'s str, value: Access<'s> },
}

impl<'s> Statement<'s> {
    fn parse(block: &'s str) -> Option<Self> {
        let (keyword, rest) = split_name(block)?;
        let (target, rest) = split_name(rest)?;
        match keyword {
            "for" => {
                let (word, rest) = split_name(rest)?;
                let (over, rest) = Access::parse(rest)?;
                // A loop may go on with a condition; anything else means a larger expression.
                let ends = rest.is_empty() || matches!(split_name(rest), Some(("if" | "recursive", _)));
                (word == "in" && ends).then_some(Self::For { target, over })
            }
            "set" => {
                let value = rest.trim_start().strip_prefix('=')?;
                let (value, rest) = Access::parse(value)?;
                rest.is_empty().then_some(Self::Set { target, value })
            }
            _ => None,
        }
    }
}

/// `name`, `name.key` or `name['key']`, perhaps sliced or filtered.
#[derive(Clone, Copy)]
struct Access<'s> {
    name: &'s str,
    key: Option<&'s str>,
    /// A slice or a filter follows.
    refined: bool,
}

impl<'s> Access<'s> {
    /// Reads one access from the start of an expression; returns what follows it.
    fn parse(text: &'s str) -> Option<(Self, &'s str)> {
        let (name, mut rest) = split_name(text)?;
        let mut access = Self { name, key: None, refined: false };
        loop {
            rest = rest.trim_start();
            if let Some(after) = rest.strip_prefix('.') {
                let (key, after) = split_name(after)?;
                access.descend(key)?;
                rest = after;
            } else if let Some(after) = rest.strip_prefix('[') {
                let end = closing(after, b'[', b']')?;
                let inner = after[..end].trim();
                match quoted(inner) {
                    Some(key) => access.descend(key)?,
                    None if inner.contains(':') => access.refined = true,
                    None => return None,
                }
                rest = &after[end + 1..];
            } else if let Some(after) = rest.strip_prefix('|') {
                let (_, after) = split_name(after)?;
                access.refined = true;
                rest = match after.trim_start().strip_prefix('(') {
                    Some(arguments) => &arguments[closing(arguments, b'(', b')')? + 1..],
                    None => after,
                };
            } else {
                return Some((access, rest));
            }
        }
    }

    fn descend(&mut self, key: &'s str) -> Option<()> {
        let first = self.key.is_none() && !self.refined;
        self.key = Some(key);
        first.then_some(())
    }
}

/// The identifier at the start of `text` and what follows it.
fn split_name(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start();
    let end =
        text.find(|character: char| !character.is_alphanumeric() && character != '_').unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

/// The contents of a plain string literal.
fn quoted(text: &str) -> Option<&str> {
    let quote = text.chars().next().filter(|quote| matches!(quote, '\'' | '"'))?;
    let inner = text.get(1..)?.strip_suffix(quote)?;
    (!inner.contains(quote)).then_some(inner)
}

/// Position of the bracket that closes one opened before `text`.
fn closing(text: &str, open: u8, close: u8) -> Option<usize> {
    let bytes = text.as_bytes();
    let (mut depth, mut at) = (0_usize, 0);
    while at < bytes.len() {
        match bytes[at] {
            b'\'' | b'"' => at = skip_string(bytes, at),
            byte if byte == open => depth += 1,
            byte if byte == close && depth == 0 => return Some(at),
            byte if byte == close => depth -= 1,
            _ => {}
        }
        at += 1;
    }
    None
}

/// Position of the last byte of the string literal that starts at `at`.
fn skip_string(bytes: &[u8], at: usize) -> usize {
    let quote = bytes[at];
    let mut end = at + 1;
    while end < bytes.len() && bytes[end] != quote {
        end += if bytes[end] == b'\\' { 2 } else { 1 };
    }
    end
}

/// The insides of all block tags, without the whitespace marks; comments, expressions and raw
/// sections are passed over.
fn blocks(source: &str) -> impl Iterator<Item = Range<usize>> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        loop {
            let open = at + source.get(at..)?.find("{")?;
            match source.as_bytes().get(open + 1) {
                Some(b'#') => at = open + 2 + source[open + 2..].find("#}")? + 2,
                Some(b'{') => at = tag_end(source, open + 2, b"}}")? + 2,
                Some(b'%') => {
                    let end = tag_end(source, open + 2, b"%}")?;
                    at = end + 2;
                    let inner = trim_marks(source, open + 2..end);
                    if source[inner.clone()].trim() == "raw" {
                        at = end_of_raw(source, at)?;
                        continue;
                    }
                    return Some(inner);
                }
                _ => at = open + 1,
            }
        }
    })
}

/// Where the tag whose inside starts at `from` is closed by `close`.
fn tag_end(source: &str, from: usize, close: &[u8; 2]) -> Option<usize> {
    let bytes = source.as_bytes();
    let (mut at, mut depth) = (from, 0_usize);
    while at + 1 < bytes.len() {
        match bytes[at] {
            b'\'' | b'"' => at = skip_string(bytes, at),
            // `}}` closes an expression only when no dictionary is open.
            b'{' => depth += 1,
            _ if depth == 0 && bytes[at..at + 2] == *close => return Some(at),
            b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += 1;
    }
    None
}

fn trim_marks(source: &str, mut inner: Range<usize>) -> Range<usize> {
    if source[inner.clone()].starts_with(['-', '+']) {
        inner.start += 1;
    }
    if source[inner.clone()].ends_with(['-', '+']) {
        inner.end -= 1;
    }
    inner
}

/// The position after `{% endraw %}`.
fn end_of_raw(source: &str, mut at: usize) -> Option<usize> {
    loop {
        let open = at + source.get(at..)?.find("{%")?;
        let end = open + 2 + source[open + 2..].find("%}")?;
        if source[trim_marks(source, open + 2..end)].trim() == "endraw" {
            return Some(end + 2);
        }
        at = open + 2;
    }
}

#[cfg(test)]
mod tests {
    use super::ContentFormat::{Parts, Text};
    use super::*;

    #[test]
    fn loops_over_content_mean_parts() {
        for source in [
            "{% for m in messages %}{% for part in m['content'] %}{{ part.text }}{% endfor %}{% endfor %}",
            "{%- for m in messages[1:] -%}{%- for part in m.content | list -%}{%- endfor -%}{%- endfor -%}",
            "{% set a = messages %}{% set b = a[1:] %}{% for m in b %}{% for p in m[\"content\"] %}{% endfor %}{% endfor %}",
            "{% for m in messages | selectattr('role', 'ne', 'x') if m %}{% for p in m.content %}{% endfor %}{% endfor %}",
            "{% macro show(content) %}{% for item in content %}{% endfor %}{% endmacro %}",
        ] {
            assert_eq!(detect(source), Parts, "{source}");
        }
    }

    #[test]
    fn everything_else_means_text() {
        for source in [
            "{% for m in messages %}{{ m.content }}{% endfor %}",
            "{% for m in messages %}{% for call in m.tool_calls %}{% endfor %}{% endfor %}",
            "{# {% for p in content %} #}{% raw %}{% for p in content %}{% endraw %}",
            "{{ '{% for p in content %}' }}",
            "{% for p in content | list %}{% endfor %}",
            "{% for m in messages %}{% for p in m.content + [1] %}{% endfor %}{% endfor %}",
            "{% for m in messages %}{% for p in m.content[0] %}{% endfor %}{% endfor %}",
            "{% for",
            "{{ {'a': 1}",
            "{",
        ] {
            assert_eq!(detect(source), Text, "{source}");
        }
    }

    #[test]
    fn generation_blocks_become_scopes() {
        assert_eq!(
            prepare("a{%- generation -%}\r\nb{% endgeneration %}{{ 'generation' }}"),
            "a{%- with -%}\nb{% endwith %}{{ 'generation' }}"
        );
        assert_eq!(prepare("{% raw %}{% generation %}{% endraw %}"), "{% raw %}{% generation %}{% endraw %}");
    }
}
