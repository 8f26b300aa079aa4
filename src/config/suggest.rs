//! What somebody may have meant by a name that nobody knows.

/// The name among `known` that is nearest to `name`, if one is near: a letter or two wrong, missing, too many or in
/// each other's place, for longer names three.
pub(super) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = 1 + name.chars().count().min(16) / 8;
    let distances = known.into_iter().map(|known| (distance(name, known), known));
    distances
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

/// serde's error for an unknown field, with the known one that may have been meant. Other errors stay as they are.
pub(super) fn with_suggestion(message: &str) -> String {
    let quoted = |text: &'_ str| text.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let Some((_, rest)) = message.split_once("unknown field ") else { return message.to_owned() };
    let names = quoted(rest);
    let Some((unknown, known)) = names.split_first() else { return message.to_owned() };
    match nearest(unknown, known.iter().map(String::as_str)) {
        Some(meant) => format!("{message}; did you mean `{meant}`?"),
        None => message.to_owned(),
    }
}

/// How many letters have to be put in, taken out, replaced or swapped with their neighbour to make one text of the other
/// (optimal string alignment).
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    // The last two rows of the table; `rows[2]` is being written.
    let mut rows = [Vec::new(), (0..=other.len()).collect::<Vec<_>>(), Vec::new()];
    for (i, a) in one.iter().enumerate() {
        rows[2] = vec![i + 1];
        for (j, b) in other.iter().enumerate() {
            let replaced = rows[1][j] + usize::from(a != b);
            let mut least = replaced.min(rows[1][j + 1] + 1).min(rows[2][j] + 1);
            if i > 0 && j > 0 && *a == other[j - 1] && one[i - 1] == *b {
                least = least.min(rows[0][j - 1] + 1);
            }
            rows[2].push(least);
        }
        rows.rotate_left(1);
    }
    rows[1].last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_letter_more_less_other_or_swapped_is_one() {
        for (one, other, expected) in [
            ("port", "port", 0),
            ("prot", "port", 1),
            ("pot", "port", 1),
            ("portt", "port", 1),
            ("pert", "port", 1),
            ("", "port", 4),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!((distance(one, other), distance(other, one)), (expected, expected), "{one} {other}");
        }
    }

    #[test]
    fn only_what_is_near_is_meant() {
        let keys = ["port", "host", "admin_host", "router_kv_overlap_score_credit"];
        for (name, meant) in [
            ("prot", Some("port")),
            ("hots", Some("host")),
            ("admin-host", Some("admin_host")),
            ("router_kv_overlap_scor_cerdit", Some("router_kv_overlap_score_credit")),
            ("template", None),
            ("x", None),
        ] {
            assert_eq!(nearest(name, keys), meant, "{name}");
        }
    }

    #[test]
    fn a_suggestion_is_one_of_those_that_the_error_lists() {
        let error = "unknown field `prot`, expected one of `host`, `port`";
        assert_eq!(with_suggestion(error), format!("{error}; did you mean `port`?"));
        let error = "unknown field `wroker`, expected `worker` or `model`";
        assert_eq!(with_suggestion(error), format!("{error}; did you mean `worker`?"));
        for other in ["unknown field `zzz`, expected `worker`", "missing field `url`", "unknown field "] {
            assert_eq!(with_suggestion(other), other);
        }
    }
}
