//! Everything that is wrong with a configuration file, found without starting anything.
//!
//! A start stops at the first thing that it cannot use; here the rest is looked at too. The file is looked at alone:
//! flags and environment, which win over it, are not known.

mod document;
mod sets;
mod workers;

use std::{fmt, path::Path};

use ahash::AHashSet;

use super::{
    ConfigError, FrontendArgs, ModelEntry,
    file::ConfigFile,
    flags::{
        Environment, Field, Frontend, OfTheFrontend, Role as _, RouterFlags, Warning, build_router_config,
        problems, row,
    },
    protection,
    workers_flag::parse_tokenizer,
};
use crate::{
    fleet::RouterConfig,
    frontend::PrefillFallback,
    select::{CostModel, Mode},
};
use document::Document;

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Severity {
    /// The frontend would not start, or a worker set would take no requests.
    Error,
    /// Something changes nothing, or does less than it seems to.
    Warning,
    /// It works; there may be something better.
    Hint,
}

/// Something to say of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The line, from 1; `None` if it is about no place in particular.
    pub line: Option<usize>,
    /// What it is, and what to do.
    pub text: String,
}

/// What a check found.
#[derive(Clone, Debug)]
pub struct Report {
    /// What there is to say, in the order of the file's lines.
    pub findings: Vec<Finding>,
    /// What the file makes, in a line.
    pub summary: String,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Hint => "hint",
        })
    }
}

impl Report {
    /// How many findings are of a severity.
    #[must_use]
    pub fn count(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|finding| finding.severity == severity).count()
    }
}

/// Checks the text of the file at `path`. `load` says why a model's tokenizer cannot be used.
#[must_use]
pub fn check(path: &Path, text: &str, load: &dyn Fn(&ModelEntry) -> Result<(), String>) -> Report {
    let mut document = Document::read(path, text);
    let file = std::mem::take(&mut document.file);
    let (router, flags) = check_router(&file, &mut document);
    let models = check_models(&file, &mut document, load);
    let workers = workers::check(&file, (&router, &flags), &models, &mut document);
    let summary = format!(
        "router mode {}, {workers}, {} with a tokenizer",
        router.mode,
        counted(models.len(), "model")
    );
    check_listeners(file, router, &mut document);
    let mut findings = document.findings;
    findings.sort_by_key(|finding| finding.line);
    Report { findings, summary }
}

/// A number and what it counts.
fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// The `[router]` section; where it makes no configuration, the defaults stand in for it.
fn check_router(file: &ConfigFile, document: &mut Document) -> (RouterConfig, OfTheFrontend) {
    let fallback = || (Frontend::default_config().unwrap_or_default(), OfTheFrontend::default());
    let flags = RouterFlags::<Frontend>::none();
    // Nothing but a variable can be wrong here, and there are none.
    let Ok(given) = flags.resolve(&Environment::empty(), Some((&file.path, &file.router))) else {
        return fallback();
    };
    let problems = problems(&given);
    for (field, problem) in &problems {
        document.add(Severity::Error, &place(*field), problem.to_string());
    }
    let built = match build_router_config(&given) {
        Ok(built) => built,
        Err(error) => {
            if problems.is_empty() {
                document.add(Severity::Error, "router", error.to_string());
            }
            return fallback();
        }
    };
    for warning in &built.warnings {
        document.add(Severity::Warning, &subject(warning), warning.to_string());
    }
    let of_the_frontend = built.of_the_frontend();
    if of_the_frontend.enforce_disagg && file.frontend.prefill_fallback == Some(PrefillFallback::Decode) {
        let text = ConfigError::EnforcedFallback.to_string();
        document.add(Severity::Error, &place(Field::EnforceDisagg), text);
    }
    if has_plain_weights(&built.config) {
        document.add(
            Severity::Hint,
            &place(Field::RouterMode),
            format!(
                "router mode kv {PLAIN_WEIGHTS}; in [router] that is router_prefill_load_scale = 20.0 and \
                 router_kv_overlap_score_credit = 2.0, or no router_cost_model"
            ),
        );
    }
    (built.config, of_the_frontend)
}

/// What there is to say of weights that nobody chose.
const PLAIN_WEIGHTS: &str = "with the cost model blocks stands at prefill_load_scale 1 and overlap_score_credit 1, where \
                             blocks in use outweigh blocks cached: long prompts are pulled off their caches. \
                             prefill_load_scale 20 together with overlap_score_credit 2 keeps more of them there, and so does \
                             the cost model time";

/// The scale should not be raised alone either, but whoever did has chosen it.
fn has_plain_weights(config: &RouterConfig) -> bool {
    let RouterConfig { mode, tuning } = config;
    let plain = tuning.prefill_load_scale == 1.0 && tuning.overlap_score_credit == 1.0;
    *mode == Mode::Kv && tuning.cost_model == CostModel::Blocks && plain
}

fn place(field: Field) -> String {
    format!("router.{}", row(field).file_key())
}

/// The place that a warning is about.
fn subject(warning: &Warning) -> String {
    match warning {
        Warning::Overruled { setting, .. } => place(setting.field),
        Warning::Idle { settings, .. } => {
            settings.first().map_or_else(|| "router".to_owned(), |setting| place(setting.field))
        }
        Warning::OldName { .. } | Warning::Inherits { .. } => "router".to_owned(),
    }
}

/// The models that have a tokenizer, by name; `*` stands for every other.
fn check_models(
    file: &ConfigFile,
    document: &mut Document,
    load: &dyn Fn(&ModelEntry) -> Result<(), String>,
) -> AHashSet<String> {
    let of_list = file.frontend.tokenizer.iter().map(|text| parse_tokenizer(text));
    let of_list = of_list.map(|entry| ("frontend.tokenizer".to_owned(), entry));
    let of_tables = file.model.iter().map(|entry| entry.check().map(|()| entry.clone()));
    let of_tables = document.kept("model").into_iter().zip(of_tables);
    let entries: Vec<_> = of_list.chain(of_tables).collect();
    let mut named = AHashSet::new();
    for (place, entry) in entries {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => {
                document.add(Severity::Error, &place, error.to_string());
                continue;
            }
        };
        if !named.insert(entry.name.clone()) {
            let text = format!("model '{}' has a tokenizer already, which counts; leave one out", entry.name);
            document.add(Severity::Warning, &place, text);
        } else if let Err(problem) = load(&entry) {
            let text = format!("tokenizer {} (model '{}'): {problem}", entry.tokenizer.display(), entry.name);
            document.add(Severity::Error, &place, text);
        }
    }
    named
}

/// What is left of `[frontend]`: its listeners, their files and limits.
fn check_listeners(file: ConfigFile, router: RouterConfig, document: &mut Document) {
    let mut file = ConfigFile { worker: Vec::new(), model: Vec::new(), ..file };
    file.frontend.tokenizer.clear();
    if let Err(error) = FrontendArgs::default().plan(router, &[], Some(file)) {
        let place = match error {
            ConfigError::OpenAdmin(_) => "frontend.admin_host".to_owned(),
            ConfigError::Token { .. } => "frontend.admin_token_file".to_owned(),
            ConfigError::ApiKeys(_) => "frontend.api_keys_file".to_owned(),
            ConfigError::WorkerKey { .. } => "frontend.worker_api_key_file".to_owned(),
            ConfigError::HeaderBytes(_) => "frontend.max_header_bytes".to_owned(),
            ConfigError::BodyBytes(_) => "frontend.max_body_bytes".to_owned(),
            ConfigError::Certificate { flag, .. } | ConfigError::Half { given: flag, .. } => {
                protection::place(flag)
            }
            _ => "frontend".to_owned(),
        };
        document.add(Severity::Error, &place, error.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each finding as `LINE SEVERITY TEXT`.
    fn found(text: &str) -> Vec<String> {
        let load = |entry: &ModelEntry| {
            if entry.tokenizer.starts_with("/there") { Ok(()) } else { Err("not there".to_owned()) }
        };
        let report = check(Path::new("f.toml"), text, &load);
        let line = |finding: &Finding| {
            let line = finding.line.map_or_else(|| "-".to_owned(), |line| line.to_string());
            format!("{line} {} {}", finding.severity, finding.text)
        };
        report.findings.iter().map(line).collect()
    }

    /// Every finding begins and goes on as expected, and there is no other.
    fn expect(text: &str, expected: &[(&str, &str)]) {
        let found = found(text);
        assert_eq!(found.len(), expected.len(), "{found:#?}");
        for (found, (begins, contains)) in found.iter().zip(expected) {
            assert!(found.starts_with(begins) && found.contains(contains), "{found} / {begins} {contains}");
        }
    }

    const TOKENIZER: &str = "[[model]]\nname = '*'\ntokenizer = '/there'\n";

    #[test]
    fn a_good_file_has_nothing_to_say() {
        expect(&format!("{TOKENIZER}[[worker]]\nurl = 'http://a:1'\nmodel = 'm'"), &[]);
        expect("", &[]);
    }

    #[test]
    fn every_key_that_does_not_read_is_named_with_its_line() {
        expect(
            "[frontend]\nport = 99999\nprot = 1\nrouter_mode = 'kv'\n\n[router]\nrouter_temperature = -1\nx = 2\n\
             [[worker]]\nmodel = 'm'\n[[model]]\nname = 'm'\ntokenizer = '/there'\ntemplate = 1\n[[wroker]]\na = 1",
            &[
                ("2 error frontend.port:", "99999"),
                ("3 error frontend.prot: unknown field", "port"),
                ("4 error frontend.router_mode: unknown field", "belongs into [router]"),
                ("7 error router.router_temperature:", "non-negative"),
                ("8 error router.x: unknown key", "router_mode"),
                ("9 error worker: missing field", "url"),
                ("14 error model.template: unknown field", "chat_template"),
                ("15 error wroker: unknown field", "worker"),
            ],
        );
    }

    #[test]
    fn text_that_is_no_toml_is_an_error() {
        expect("[frontend\nport = 1", &[("1 error", "")]);
    }

    #[test]
    fn all_refusals_and_impossible_mixes_are_told_at_once() {
        expect(
            "[router]\nrouter_mode = 'kv'\nrouter_replica_sync = true\nuse_remote_indexer = true\n\
             router_track_output_blocks = true\nrouter_track_active_blocks = false",
            &[
                ("3 error", "each frontend knows its own requests only"),
                ("4 error", "each frontend has its own index"),
                ("5 error router_track_output_blocks requires", "f.toml"),
            ],
        );
    }

    #[test]
    fn weights_without_kv_are_warned_of_and_blocks_without_weights_hinted_at() {
        expect(
            "[router]\nrouter_mode = 'round-robin'\nrouter_prefill_load_scale = 20.0",
            &[("3 warning", "changes nothing")],
        );
        let blocks = "[router]\nrouter_mode = 'kv'\nrouter_cost_model = 'blocks'";
        expect(blocks, &[("2 hint", "router_prefill_load_scale = 20.0")]);
        expect(&format!("{blocks}\nrouter_prefill_load_scale = 20.0"), &[]);
        expect("[router]\nrouter_mode = 'kv'", &[]);
    }

    #[test]
    fn an_open_admin_listener_and_a_contradiction_are_errors() {
        expect(
            "[frontend]\nadmin_host = '0.0.0.0'\nprefill_fallback = 'decode'\n[router]\nenforce_disagg = true",
            &[("2 error", "not a loopback address"), ("5 error", "contradict")],
        );
    }

    #[test]
    fn tokenizers_are_looked_for() {
        expect(
            "[frontend]\ntokenizer = ['m=/gone']\n[[model]]\nname = 'm'\ntokenizer = '/there'",
            &[("2 error tokenizer /gone (model 'm')", "not there"), ("3 warning", "already")],
        );
        let without = "[[worker]]\nurl = 'http://a:1'\nmodel = 'm'";
        expect(without, &[("1 hint model 'm' has no tokenizer", "/tokenize")]);
    }

    #[test]
    fn workers_that_cannot_be_used_are_named() {
        expect(
            &format!(
                "{TOKENIZER}[[worker]]\nurl = 'ftp://a:1'\nmodel = 'm'\n[[worker]]\nurl = 'http://b:1'\nmodel = 'm'\n\
                 [[worker]]\nurl = 'http://b:1'\nmodel = 'm'"
            ),
            &[("4 error worker ftp://a:1: url", "not usable"), ("10 error worker http://b:1", "twice")],
        );
    }

    #[test]
    fn workers_of_a_set_that_differ_stop_it_or_wait() {
        let workers = "[[worker]]\nurl = 'http://a:1'\nmodel = 'm'\n[[worker]]\nurl = 'http://b:1'\nmodel = 'm'\n\
                       block_size = 32\n";
        let stop = format!("{TOKENIZER}{workers}");
        expect(&stop, &[("7 error worker set m@default.backend.generate/aggregated", "block_size")]);
        let keep_first = format!("{stop}[frontend]\non_config_mismatch = 'keep-first'");
        expect(&keep_first, &[("7 warning worker set", "http://b:1")]);
    }

    #[test]
    fn a_key_that_was_misspelt_is_told_what_may_have_been_meant() {
        expect(
            "[frontend]\nprot = 1\n[router]\nrouter_mod = 'kv'\noverlap_score_credit = 2.0\n[[worker]]\nurl = 'http://a:1'\n\
             model = 'm'\nblocksize = 16\nrouter_config = { router_mode = 'kv', kv_router_config = { router_temprature = 1 } }",
            &[
                ("2 error frontend.prot", "did you mean `port`?"),
                ("4 error router.router_mod", "did you mean `router_mode`?"),
                ("5 error router.overlap_score_credit", "did you mean `router_kv_overlap_score_credit`?"),
                ("9 error worker.blocksize", "did you mean `block_size`?"),
                ("10 error worker.router_config", "did you mean `router_temperature`?"),
            ],
        );
    }

    /// A file with these `[[worker]]` tables, after a tokenizer and `[router]`.
    fn of_workers(router: &str, workers: &[&str]) -> String {
        let workers = (1..).zip(workers).map(|(number, worker)| {
            format!("[[worker]]\nurl = 'http://a:{number}'\nmodel = 'm'\n{worker}\n")
        });
        format!("{TOKENIZER}[router]\n{router}\n{}", workers.collect::<String>())
    }

    #[test]
    fn prefill_and_decode_workers_that_stand_alone_are_warned_of() {
        let prefill = "worker_type = 'prefill'";
        let decode = "worker_type = 'decode'";
        expect(
            &of_workers("", &[prefill]),
            &[("6 warning worker set m@", "prefill workers alone serve nobody")],
        );
        let elsewhere = format!("{decode}\nnamespace = 'other'");
        expect(
            &of_workers("", &[prefill, &elsewhere]),
            &[("6 warning worker set m@default", "no decode worker")],
        );
        expect(&of_workers("", &[prefill, decode]), &[]);
        expect(&of_workers("", &[decode]), &[]);
        expect(
            &of_workers("enforce_disagg = true", &[decode]),
            &[("6 warning worker set m@", "are refused until")],
        );
    }

    #[test]
    fn a_kv_set_without_events_is_warned_of() {
        let kv = "router_mode = 'kv'\nrouter_prefill_load_scale = 20.0";
        let events = "kv_events_endpoint = 'tcp://*:5557'";
        expect(&of_workers(kv, &[events]), &[]);
        expect(
            &of_workers(kv, &["", ""]),
            &[(
                "7 warning worker set m@",
                "none of its workers has kv_events_endpoint: what is cached there is guessed",
            )],
        );
        expect(
            &of_workers(kv, &[events, ""]),
            &[("7 warning worker set m@", "http://a:2 has no kv_events_endpoint")],
        );
        // Who goes by load alone needs none.
        expect(&of_workers("load_aware = true", &[""]), &[]);
        expect(
            &of_workers("router_mode = 'random'", &[events]),
            &[("6 hint worker set m@", "router mode random does not look at it")],
        );
    }

    #[test]
    fn weights_that_others_leave_nothing_to_weigh_are_warned_of() {
        let kv = "[router]\nrouter_mode = 'kv'\n";
        for (text, findings) in [
            (
                "router_track_prefill_tokens = false\nrouter_prefill_load_scale = 20.0\n\
                 router_kv_overlap_score_credit = 2.0",
                &[("4 warning", "without prefill"), ("5 warning", "without prefill")][..],
            ),
            (
                "router_prefill_load_scale = 0\nrouter_host_cache_hit_weight = 1",
                &[("4 warning", "prefill_load_scale is 0")],
            ),
            (
                "router_kv_overlap_score_credit = 0\nrouter_kv_overlap_score_credit_decay = 1",
                &[("4 warning", "overlap_score_credit is 0")],
            ),
            (
                "router_track_active_blocks = false\nrouter_assume_kv_reuse = false",
                &[("4 warning", "no blocks are counted")],
            ),
        ] {
            expect(&format!("{kv}{text}"), findings);
        }
    }

    #[test]
    fn what_a_card_or_a_set_does_not_look_at_is_told() {
        let card =
            "router_config = { router_mode = 'random', kv_router_config = { router_temperature = 0.5 } }";
        expect(
            &of_workers("", &[card]),
            &[("9 warning worker http://a:1: router_config: router_temperature changes nothing", "random")],
        );
        let weighted = "router_mode = 'device-aware-weighted'\nrouter_accelerator_to_cpu_ratio = 4";
        expect(&of_workers(weighted, &["", ""]), &[("7 hint worker set m@", "device = \"cpu\"")]);
        expect(&of_workers(weighted, &["", "device = 'cpu'"]), &[]);
        expect(
            &of_workers("router_accelerator_to_cpu_ratio = 4", &[""]),
            &[("5 hint router_accelerator_to_cpu_ratio = 4", "changes nothing here")],
        );
    }

    #[test]
    fn workers_of_other_namespaces_would_be_left_out() {
        expect(
            &of_workers("namespace = 'a'", &["namespace = 'a'", "namespace = 'b'"]),
            &[("10 warning worker http://a:2 is left out", "namespace 'b' is not served here")],
        );
    }
}
