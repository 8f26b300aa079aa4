//! The engine's own names of a prompt's blocks, recomputed.
//!
//! Routers compare engines' names and never compute them: each engine has its own rule, and may change it. vLLM's can be known from outside,
//! and then a name that is recomputed shows what nothing else does: that the engine keeps prompts apart by the salt and
//! the adapter that they have, and that each block hangs on the one before.
//!
//! ```text
//! name(block) = H(name(block before), tokens, extra keys or nil)         H: --prefix-caching-hash-algo
//! name(before the first) = H(seed)                                       seed: PYTHONHASHSEED, or vLLM's own
//! ```
//!
//! `H` hashes what pickle or CBOR makes of it (`pickle.rs`, `cbor.rs`). Events carry the last 64 bits of a name, or all of it. vLLM's own seed is a
//! fixed word for SHA-256 from 0.30 on; before, and for xxHash, it is random and kept secret. Where the beginning cannot be known,
//! whole names still show that all blocks but the first follow from the one before.

mod cbor;
mod finding;
mod key;
mod pickle;

use key::{Algorithm, Extra, Key};

pub(super) use self::finding::finding;
use crate::event::EngineHash;

/// Seeds of PYTHONHASHSEED that are tried. People who set it want engines to agree, and take a small number.
const SEEDS: std::ops::Range<u32> = 0..100;

/// vLLM's own.
const FIXED_SEED: &str = "vllm-none-hash";

/// A prompt's leading blocks as an engine reported them.
struct Reported<'a> {
    tokens: &'a [u32],
    block_size: usize,
    salt: &'a str,
    /// The adapter's name, and where its weights are, if the engine says.
    lora: Option<(&'a str, Option<&'a str>)>,
    names: &'a [EngineHash],
    /// The whole digest that a name is the end of, where events carried those.
    whole: &'a dyn Fn(EngineHash) -> Option<&'a [u8]>,
}

/// How the names come about.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Rule {
    algorithm: Algorithm,
    seed: Seed,
    /// Whether the salt is hashed into the first block.
    salted: bool,
    /// Whether the adapter is hashed into every block; true without one.
    adapted: bool,
    /// Leading names that follow from it.
    of: usize,
}

/// Where a chain of names begins.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Seed {
    Fixed,
    Given(String),
    /// It cannot be known, nor can the first name.
    Unknown,
}

/// The rule that gives these names; the first name decides, or the second where nobody can know the first.
fn recompute(reported: &Reported<'_>) -> Option<Rule> {
    let first = *reported.names.first()?;
    let forms = Form::all(reported);
    let seeds = [(Seed::Fixed, FIXED_SEED.to_owned()), (Seed::Given("random".into()), "random".into())];
    let seeds = seeds.into_iter().chain(SEEDS.map(|seed| (Seed::Given(seed.to_string()), seed.to_string())));
    for (seed, word) in seeds {
        for algorithm in Algorithm::ALL {
            let Some(beginning) = algorithm.beginning(&word) else { continue };
            for form in &forms {
                let name = form.name(algorithm, &beginning, reported, 0);
                if name.as_deref().is_some_and(|name| is_end(name, first)) {
                    return Some(form.rule(algorithm, seed, chain(algorithm, form, reported, name)));
                }
            }
        }
    }
    let second = *reported.names.get(1)?;
    for algorithm in Algorithm::ALL {
        let Some(parent) = (reported.whole)(first).filter(|name| name.len() == algorithm.len()) else {
            continue;
        };
        for form in &forms {
            let name = form.name(algorithm, parent, reported, 1);
            if name.as_deref().is_some_and(|name| is_end(name, second)) {
                let of = chain(algorithm, form, reported, Some(parent.to_vec()));
                return Some(form.rule(algorithm, Seed::Unknown, of));
            }
        }
    }
    None
}

/// Leading names that follow, the first of which is given.
fn chain(algorithm: Algorithm, form: &Form<'_>, reported: &Reported<'_>, first: Option<Vec<u8>>) -> usize {
    let mut last = first;
    let follows = |(block, &name): (usize, &EngineHash)| {
        last = form.name(algorithm, last.as_deref()?, reported, block);
        last.as_deref().filter(|last| is_end(last, name)).map(|_| ())
    };
    1 + reported.names.iter().enumerate().skip(1).map_while(follows).count()
}

fn is_end(digest: &[u8], name: EngineHash) -> bool {
    digest.ends_with(&name.0.to_be_bytes())
}

/// How what separates prompts is written into a key. It changed from release to release.
struct Form<'a> {
    salt: Option<Extra<'a>>,
    lora: Option<Extra<'a>>,
    salted: bool,
    adapted: bool,
}

impl<'a> Form<'a> {
    /// Those that keep prompts apart first, the newest of them before the older.
    fn all(reported: &Reported<'a>) -> Vec<Self> {
        let salt = reported.salt;
        let salts = [Some(Extra::Tuple(vec!["cache_salt", salt])), Some(Extra::Text(salt)), None];
        let mut loras = Vec::new();
        if let Some((name, path)) = reported.lora {
            loras.extend(path.map(|path| Some(Extra::Tuple(vec!["lora", name, path]))));
            loras.extend([Some(Extra::Tuple(vec!["lora", name])), Some(Extra::Text(name))]);
        }
        loras.push(None);
        let mut forms = Vec::new();
        for lora in loras {
            for salt in &salts {
                let (salted, adapted) = (salt.is_some(), lora.is_some() || reported.lora.is_none());
                forms.push(Self { salt: salt.clone(), lora: lora.clone(), salted, adapted });
            }
        }
        forms.sort_by_key(|form| !(form.salted && form.adapted));
        forms
    }

    /// The name of a block after one whose name is `parent`.
    fn name(
        &self,
        algorithm: Algorithm,
        parent: &[u8],
        reported: &Reported<'_>,
        block: usize,
    ) -> Option<Vec<u8>> {
        let size = reported.block_size;
        let tokens = reported.tokens.get(block * size..(block + 1) * size)?;
        let salt = self.salt.iter().filter(|_| block == 0);
        let extra: Vec<_> = self.lora.iter().chain(salt).cloned().collect();
        algorithm.block(&Key { parent, tokens, extra: &extra })
    }

    fn rule(&self, algorithm: Algorithm, seed: Seed, of: usize) -> Rule {
        // The salt is in the first name alone, of which nothing is known then.
        let salted = self.salted || seed == Seed::Unknown;
        Rule { algorithm, seed, salted, adapted: self.adapted, of }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// What Python makes of prompts; tests/fixtures/vllm_block_names.py says how.
    fn cases() -> Vec<Value> {
        let text = include_str!("../../../tests/fixtures/vllm_block_names.json");
        serde_json::from_str::<Value>(text).unwrap()["cases"].as_array().unwrap().clone()
    }

    fn digests(case: &Value) -> Vec<Vec<u8>> {
        let names = case["names"].as_array().unwrap();
        names.iter().map(|name| hex::decode(name.as_str().unwrap()).unwrap()).collect()
    }

    fn end(digest: &[u8]) -> EngineHash {
        EngineHash(u64::from_be_bytes(*digest.last_chunk().unwrap()))
    }

    /// The rule that a case's names are found to follow; `whole`: events carry all of a name.
    fn recomputed(case: &Value, whole: bool) -> Option<Rule> {
        let tokens: Vec<u32> = case["tokens"]
            .as_array()
            .unwrap()
            .iter()
            .map(|t| u32::try_from(t.as_u64().unwrap()).unwrap())
            .collect();
        let digests = digests(case);
        let names: Vec<_> = digests.iter().map(|digest| end(digest)).collect();
        let find = |name| digests.iter().find(|digest| whole && end(digest) == name).map(Vec::as_slice);
        recompute(&Reported {
            tokens: &tokens,
            block_size: usize::try_from(case["block_size"].as_u64().unwrap()).unwrap(),
            salt: case["salt"].as_str().unwrap(),
            lora: case["lora"].as_str().map(|name| (name, case["path"].as_str())),
            names: &names,
            whole: &find,
        })
    }

    #[test]
    fn names_that_python_makes_are_recomputed() {
        let cases = cases();
        assert!(cases.len() >= 20, "the fixture lost cases");
        for case in cases {
            let about = case["about"].as_str().unwrap();
            let rule = recomputed(&case, false);
            if case["seed"] == "secret" {
                assert_eq!(rule, None, "{about}: the ends of names show nothing");
                let rule = recomputed(&case, true).unwrap_or_else(|| panic!("{about}"));
                assert_eq!(
                    (rule.algorithm.name(), &rule.seed),
                    (case["algorithm"].as_str().unwrap(), &Seed::Unknown)
                );
                assert_eq!(
                    (rule.of, rule.adapted),
                    (digests(&case).len(), case["adapted"] == true),
                    "{about}"
                );
                continue;
            }
            let rule = rule.unwrap_or_else(|| panic!("{about}"));
            let seed = match case["seed"].as_str().unwrap() {
                FIXED_SEED => Seed::Fixed,
                given => Seed::Given(given.to_owned()),
            };
            assert_eq!(
                (rule.algorithm.name(), rule.seed),
                (case["algorithm"].as_str().unwrap(), seed),
                "{about}"
            );
            let hashed = (case["salted"] == true, case["adapted"] == true);
            assert_eq!((rule.of, (rule.salted, rule.adapted)), (digests(&case).len(), hashed), "{about}");
        }
    }

    #[test]
    fn names_of_another_rule_are_not() {
        let mut case = cases()[0].clone();
        case["names"][0] = Value::from("00".repeat(32));
        case["names"][1] = Value::from("01".repeat(32));
        assert_eq!(recomputed(&case, true), None);
    }

    #[test]
    fn a_chain_ends_where_a_name_does_not_follow() {
        let mut case = cases()[0].clone();
        case["names"][2] = Value::from("00".repeat(32));
        assert_eq!(recomputed(&case, false).unwrap().of, 2);
    }
}
