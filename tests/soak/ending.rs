//! How a request ended, and whether it may end so.
//!
//! An answer is complete and right, or it is visibly an error. What breaks off has to look broken: HTTP does not say that it is over, and
//! of a stream there is no `[DONE]`. What came before that is the beginning of the right answer.

use serde_json::Value;

use crate::reference::Expected;

/// What came of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    /// All of the answer, and nothing else.
    Complete,
    /// An HTTP error, before the first byte.
    Refused(u16, String),
    /// It broke off, and HTTP said so. A stream has an event that says why, unless it was lost on the way.
    Broken { told: bool },
    /// What must not be.
    Defect(String),
}

/// An answer, as far as it came.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) status: u16,
    pub(crate) bytes: Vec<u8>,
    /// Whether HTTP said that this is all.
    pub(crate) whole: bool,
}

/// The error before the first byte that a worker's death explains: it had the request, and may have run it.
pub(crate) const OF_A_DEATH: (u16, Option<&str>) = (502, Some("worker_reset"));

impl Received {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    /// What it is where `expected` was asked for, as a stream or not.
    pub(crate) fn judge(&self, expected: &Expected, streams: bool) -> Ending {
        match self.status {
            200 if streams => self.judge_stream(expected),
            200 => self.judge_whole(expected),
            _ => self.judge_error(&[OF_A_DEATH]),
        }
    }

    /// What it is where one of these errors was asked for.
    pub(crate) fn judge_error(&self, accepted: &[(u16, Option<&str>)]) -> Ending {
        let json: Value = serde_json::from_slice(&self.bytes).unwrap_or(Value::Null);
        let error = &json["error"];
        let code = error["code"].as_str();
        let fits = |(status, wanted): &(u16, Option<&str>)| {
            *status == self.status && wanted.is_none_or(|wanted| code == Some(wanted))
        };
        match accepted.iter().any(fits) && error["message"].is_string() && self.whole {
            true => Ending::Refused(self.status, code.unwrap_or("no code").to_owned()),
            false => {
                Ending::Defect(format!("{} where none of {accepted:?} is: {}", self.status, self.text()))
            }
        }
    }

    fn judge_whole(&self, expected: &Expected) -> Ending {
        if !self.whole {
            return Ending::Broken { told: false };
        }
        let json: Value = serde_json::from_slice(&self.bytes).unwrap_or(Value::Null);
        let choice = &json["choices"][0];
        let text = choice["message"]["content"].as_str().or_else(|| choice["text"].as_str());
        let came = text.map(|text| Expected { text: text.to_owned(), ..usage(&json) });
        if came.as_ref() == Some(expected) && choice["finish_reason"].is_string() {
            Ending::Complete
        } else {
            Ending::Defect(format!("200 and not the right answer: {}\nexpected {expected:?}", self.text()))
        }
    }

    fn judge_stream(&self, expected: &Expected) -> Ending {
        let text = self.text();
        let events: Vec<_> = text.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect();
        let parsed: Vec<Value> = events.iter().filter_map(|event| serde_json::from_str(event).ok()).collect();
        let piece = |event: &Value| {
            let choice = &event["choices"][0];
            let piece = choice["delta"]["content"].as_str().or_else(|| choice["text"].as_str());
            piece.unwrap_or_default().to_owned()
        };
        let said: String = parsed.iter().map(piece).collect();
        let done = text.ends_with("data: [DONE]\n\n");
        let told = parsed.iter().any(|event| event["error"].is_object());
        let defect = |what: &str| Ending::Defect(format!("{what}: {text}\nexpected {expected:?}"));
        if !expected.text.starts_with(&said) {
            return defect("a stream that says something else");
        }
        match (self.whole, done) {
            (true, true) if told => defect("a stream with an error that looks complete"),
            (true, true) => {
                let counted = parsed.iter().rfind(|event| event["usage"].is_object()).map(usage);
                let came = counted.map(|usage| Expected { text: said, ..usage });
                if came.as_ref() == Some(expected) {
                    Ending::Complete
                } else {
                    defect("a stream that lacks something")
                }
            }
            (true, false) => defect("a stream that was cut and looks clean"),
            // All of it came, and then the worker died: nobody can tell that from a cut.
            (false, true) if said != expected.text => defect("a cut stream with [DONE]"),
            (false, _) => Ending::Broken { told },
        }
    }
}

fn usage(json: &Value) -> Expected {
    let count = |name: &str| json["usage"][name].as_u64().unwrap_or(u64::MAX);
    Expected {
        text: String::new(),
        prompt_tokens: count("prompt_tokens"),
        completion_tokens: count("completion_tokens"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected() -> Expected {
        Expected { text: "ab".to_owned(), prompt_tokens: 3, completion_tokens: 2 }
    }

    fn stream(text: &str, whole: bool) -> Ending {
        Received { status: 200, bytes: text.into(), whole }.judge(&expected(), true)
    }

    fn answer(status: u16, text: &str, whole: bool) -> Ending {
        Received { status, bytes: text.into(), whole }.judge(&expected(), false)
    }

    const FIRST: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
    const SECOND: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"b\"}}]}\n\n";
    const USAGE: &str = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2}}\n\n";
    const ERROR: &str = "data: {\"error\":{\"message\":\"m\"}}\n\n";
    const DONE: &str = "data: [DONE]\n\n";

    #[test]
    fn a_stream_is_whole_and_right_or_looks_broken() {
        let of = |parts: &[&str]| parts.concat();
        let all = [FIRST, SECOND, USAGE, DONE];
        assert_eq!(stream(&of(&all), true), Ending::Complete);
        assert_eq!(stream(&of(&[FIRST, ERROR]), false), Ending::Broken { told: true });
        assert_eq!(stream(&of(&[FIRST]), false), Ending::Broken { told: false });
        for defect in [
            (of(&[FIRST]), true),
            (of(&[FIRST, ERROR]), true),
            (of(&[FIRST, USAGE, DONE]), true),
            (of(&[FIRST, SECOND, DONE]), true),
            (of(&[FIRST, SECOND, SECOND, USAGE, DONE]), true),
            (of(&[FIRST, SECOND, ERROR, USAGE, DONE]), true),
            (of(&[SECOND, FIRST]), false),
            (of(&[FIRST, DONE]), false),
            (String::new(), true),
        ] {
            let (text, whole) = &defect;
            assert!(matches!(stream(text, *whole), Ending::Defect(_)), "{defect:?}");
        }
    }

    #[test]
    fn an_answer_in_one_piece_is_whole_and_right_or_an_error() {
        let right = "{\"choices\":[{\"text\":\"ab\",\"finish_reason\":\"length\"}],\
                     \"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2}}";
        assert_eq!(answer(200, right, true), Ending::Complete);
        assert_eq!(answer(200, &right[..20], false), Ending::Broken { told: false });
        let reset = "{\"error\":{\"message\":\"m\",\"code\":\"worker_reset\"}}";
        assert_eq!(answer(502, reset, true), Ending::Refused(502, "worker_reset".to_owned()));
        for (status, text) in [
            (200, &right[..20]),
            (200, &*right.replace("ab", "ac")),
            (200, &*right.replace(":3", ":4")),
            (502, "{\"error\":{\"message\":\"m\",\"code\":\"worker_unreachable\"}}"),
            (503, "{\"error\":{\"message\":\"m\",\"code\":null}}"),
            (502, "gone"),
        ] {
            assert!(matches!(answer(status, text, true), Ending::Defect(_)), "{status} {text}");
        }
    }
}
