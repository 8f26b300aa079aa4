//! What a request may say about its own routing: pins, salts and the metadata it wants back.
//!
//! Hints come in `nvext` (Dynamo's extension object, consumed here) and in headers, which win. A malformed
//! header is an absent one, as Dynamo has it; a malformed `nvext` is a 400 that names the key.

use std::time::Duration;

use http::{HeaderMap, header::AsHeaderName};

use super::{bypass, error::ApiError, openai::Fields};
use crate::{
    fleet::SessionId,
    select::{Pin, PinField},
    slot::{Rank, WorkerId},
};

/// The keys of `nvext` that are honoured. Others are ignored, and counted.
#[derive(Default, Debug)]
struct Nvext {
    backend_instance_id: Option<u64>,
    decode_worker_id: Option<u64>,
    prefill_worker_id: Option<u64>,
    dp_rank: Option<u32>,
    prefill_dp_rank: Option<u32>,
    cache_salt: Option<String>,
    extra_fields: Vec<String>,
    annotations: Vec<String>,
    haste: Haste,
    unknown_keys: Vec<String>,
}

/// Keys of `nvext` that this router reads.
const KNOWN_KEYS: [&str; 10] = [
    "backend_instance_id",
    "decode_worker_id",
    "prefill_worker_id",
    "dp_rank",
    "prefill_dp_rank",
    "cache_salt",
    "extra_fields",
    "annotations",
    "agent_hints",
    "router",
];

impl Nvext {
    /// Field by field, so that an error names the one at fault.
    fn read(fields: &Fields<'_>) -> Result<Self, ApiError> {
        let Some(nvext) = fields.object("nvext", "nvext.")? else { return Ok(Self::default()) };
        let unknown = nvext.names().filter(|name| !KNOWN_KEYS.contains(name));
        let mut unknown_keys: Vec<_> = unknown.map(str::to_owned).collect();
        let haste = Haste::read(&nvext, &mut unknown_keys)?;
        Ok(Self {
            backend_instance_id: nvext.get("backend_instance_id")?,
            decode_worker_id: nvext.get("decode_worker_id")?,
            prefill_worker_id: nvext.get("prefill_worker_id")?,
            dp_rank: nvext.get("dp_rank")?,
            prefill_dp_rank: nvext.get("prefill_dp_rank")?,
            cache_salt: nvext.get("cache_salt")?,
            extra_fields: nvext.get("extra_fields")?.unwrap_or_default(),
            annotations: nvext.get("annotations")?.unwrap_or_default(),
            haste,
            unknown_keys,
        })
    }
}

/// What a request says of its own urgency; it matters where requests wait.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Haste {
    /// `agent_hints.strict_priority`.
    pub(super) strict_priority: u32,
    /// `agent_hints.priority`, in seconds, else the older `agent_hints.latency_sensitivity`.
    pub(super) priority_jump: f64,
    /// `router.ttft_target`, which is in milliseconds: its answer has to begin within this time.
    pub(super) first_token_within: Option<Duration>,
}

impl Haste {
    fn read(nvext: &Fields<'_>, unknown_keys: &mut Vec<String>) -> Result<Self, ApiError> {
        let mut haste = Self::default();
        let mut note_unknown = |of: &str, object: &Fields<'_>, known: &[&str]| {
            let unknown = object.names().filter(|name| !known.contains(name));
            unknown_keys.extend(unknown.map(|name| format!("{of}.{name}")));
        };
        if let Some(hints) = nvext.object("agent_hints", "nvext.agent_hints.")? {
            note_unknown("agent_hints", &hints, &["priority", "strict_priority", "latency_sensitivity"]);
            let priority = hints.get("priority")?.map(|priority: i32| f64::from(priority.max(0)));
            let sensitivity: Option<f64> = hints.get("latency_sensitivity")?;
            haste.strict_priority = hints.get("strict_priority")?.unwrap_or(0);
            haste.priority_jump = priority.or(sensitivity).unwrap_or(0.0);
        }
        if let Some(router) = nvext.object("router", "nvext.router.")? {
            note_unknown("router", &router, &["ttft_target"]);
            let target: Option<f64> = router.get("ttft_target")?;
            haste.first_token_within = target.map(milliseconds).transpose()?;
        }
        Ok(haste)
    }

    /// With what the headers say, which win.
    fn with(self, headers: &HeaderMap) -> Self {
        let priority = text(headers, "x-dynamo-request-priority").and_then(|text| text.parse::<i32>().ok());
        let strict = first_number(headers, &["x-dynamo-request-strict-priority"]);
        Self {
            strict_priority: strict
                .and_then(|strict| u32::try_from(strict).ok())
                .unwrap_or(self.strict_priority),
            priority_jump: priority.map_or(self.priority_jump, |priority| f64::from(priority.max(0))),
            ..self
        }
    }
}

fn milliseconds(target: f64) -> Result<Duration, ApiError> {
    Duration::try_from_secs_f64(target / 1000.0).map_err(|_| {
        ApiError::bad_field(
            "nvext.router.ttft_target",
            "nvext.router.ttft_target is a number of milliseconds, 0 or more",
        )
    })
}

/// The hints of one request.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Hints {
    /// Where the request must go.
    pub(super) pin: Option<Pin>,
    /// Where its prompt must be computed, if that is done elsewhere.
    pub(super) prefill_pin: Option<Pin>,
    /// Cache namespace by header. It wins over whatever the body says: a gateway sets it, and a tenant must not
    /// talk its way into another's cache.
    pub(super) tenant: Option<String>,
    /// The session that it belongs to.
    pub(super) session: Option<SessionId>,
    /// Cache namespace by `nvext`, for bodies without a `cache_salt` of their own.
    pub(super) cache_salt: Option<String>,
    /// What it says of its own urgency.
    pub(super) haste: Haste,
    /// Which metadata the response shall carry.
    pub(super) metadata: Metadata,
    /// The request only asks where it would go (`query_instance_id`).
    pub(super) query_only: bool,
    /// The client wants to be told if prefill workers are bypassed.
    pub(super) asks_of_bypass: bool,
    /// Whether the body carries an `nvext`, which the engine must not see.
    pub(super) has_nvext: bool,
    /// Keys of `nvext` that nobody reads.
    pub(super) unknown_keys: Vec<String>,
}

/// Response metadata, by opt-in (`nvext.extra_fields`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Metadata {
    /// Which worker served.
    pub(super) worker_id: bool,
    /// How long the parts took.
    pub(super) timing: bool,
}

impl Metadata {
    pub(super) const fn any(self) -> bool {
        self.worker_id || self.timing
    }
}

impl Hints {
    /// Reads the hints of a request.
    ///
    /// # Errors
    /// 400 for an `nvext` of the wrong shape, a rank without a worker, or a tenant that cannot be told.
    pub(super) fn read(headers: &HeaderMap, fields: &Fields<'_>) -> Result<Self, ApiError> {
        let nvext = Nvext::read(fields)?;
        // The header sets both fields, and the decode worker is the one that an aggregated request asks for.
        let worker = first_number(headers, &["x-dynamo-worker-instance-id", "x-worker-instance-id"])
            .or(nvext.decode_worker_id)
            .map(|worker| (worker, PinField::DecodeWorkerId))
            .or(nvext.backend_instance_id.map(|worker| (worker, PinField::BackendInstanceId)));
        let rank = first_number(headers, &["x-dynamo-dp-rank", "x-dp-rank", "x-data-parallel-rank"])
            .and_then(|rank| u32::try_from(rank).ok())
            .or(nvext.dp_rank);
        let pin = match (worker, rank) {
            (Some((worker, field)), rank) => {
                Some(Pin { worker: WorkerId(worker), rank: rank.map(Rank), field })
            }
            (None, Some(_)) => {
                return Err(ApiError::bad_field(
                    "nvext.dp_rank",
                    "a dp_rank needs the worker it belongs to: set nvext.backend_instance_id or the header \
                     x-dynamo-worker-instance-id",
                ));
            }
            (None, None) => None,
        };
        let prefill_pin = prefill_pin(headers, &nvext, rank)?;
        let wants = |name: &str| nvext.extra_fields.iter().any(|field| field == name);
        let tenant = tenant(headers)?;
        Ok(Self {
            pin,
            prefill_pin,
            session: session(headers, tenant.as_deref()),
            tenant,
            haste: nvext.haste.with(headers),
            cache_salt: nvext.cache_salt.filter(|salt| !salt.is_empty()),
            metadata: Metadata { worker_id: wants("worker_id"), timing: wants("timing") },
            query_only: nvext.annotations.iter().any(|a| a.starts_with("query_instance_id:")),
            asks_of_bypass: nvext.annotations.iter().any(|a| a == bypass::MARK.as_str()),
            has_nvext: fields.raw("nvext").is_some(),
            unknown_keys: nvext.unknown_keys,
        })
    }
}

const TENANT: &str = "x-tenant-id";

/// Whose request it is. One that cannot be told is not nobody's: it would share the caches of those who have no tenant, or choose one.
fn tenant(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let mut lines = headers.get_all(TENANT).iter();
    let Some(first) = lines.next() else { return Ok(None) };
    if lines.any(|line| line != first) {
        return Err(ApiError::bad_request("the header x-tenant-id names several tenants; send it once"));
    }
    let name = std::str::from_utf8(first.as_bytes());
    let name = name.map_err(|_| ApiError::bad_request("the header x-tenant-id is not UTF-8"))?.trim();
    Ok((!name.is_empty()).then(|| name.to_owned()))
}

/// Headers that name a session, the first of them that is there counts.
const SESSION: [&str; 5] = [
    "x-dynamo-session-id",
    "x-claude-code-agent-id",
    "x-claude-code-session-id",
    "thread-id",
    "x-session-id",
];

fn session(headers: &HeaderMap, tenant: Option<&str>) -> Option<SessionId> {
    SESSION.iter().find_map(|&name| SessionId::of(tenant, &text(headers, name)?))
}

/// The pin of the prefill hop. Its rank is its own, else the request's.
fn prefill_pin(headers: &HeaderMap, nvext: &Nvext, rank: Option<u32>) -> Result<Option<Pin>, ApiError> {
    let worker = first_number(headers, &["x-dynamo-prefill-instance-id", "x-prefill-instance-id"]);
    let own = first_number(headers, &["x-dynamo-prefill-dp-rank", "x-prefill-dp-rank"])
        .and_then(|rank| u32::try_from(rank).ok())
        .or(nvext.prefill_dp_rank)
        // How Dynamo's gateway says that there is none.
        .filter(|&rank| rank != u32::MAX);
    match worker.or(nvext.prefill_worker_id) {
        Some(worker) => {
            let rank = own.or(rank).map(Rank);
            Ok(Some(Pin { worker: WorkerId(worker), rank, field: PinField::PrefillWorkerId }))
        }
        None if own.is_some() => Err(ApiError::bad_field(
            "nvext.prefill_dp_rank",
            "a prefill_dp_rank needs the worker it belongs to: set nvext.prefill_worker_id or the header \
             x-dynamo-prefill-instance-id",
        )),
        None => Ok(None),
    }
}

fn text(headers: &HeaderMap, name: impl AsHeaderName) -> Option<String> {
    headers.get(name)?.to_str().ok().map(|value| value.trim().to_owned())
}

fn first_number(headers: &HeaderMap, names: &[&str]) -> Option<u64> {
    names.iter().find_map(|&name| text(headers, name)?.parse().ok())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn read(headers: &[(&'static str, &'static str)], body: &str) -> Result<Hints, ApiError> {
        let mut map = HeaderMap::new();
        for &(name, value) in headers {
            map.insert(name, HeaderValue::from_static(value));
        }
        Hints::read(&map, &Fields::parse(body.as_bytes()).unwrap())
    }

    fn pin(hints: &Hints) -> Option<(u64, Option<u32>)> {
        hints.pin.map(|pin| (pin.worker.0, pin.rank.map(|rank| rank.0)))
    }

    #[test]
    fn headers_win_over_the_body() {
        let body = r#"{"nvext":{"backend_instance_id":1,"dp_rank":4}}"#;
        assert_eq!(pin(&read(&[], body).unwrap()), Some((1, Some(4))));
        let headers = [("x-worker-instance-id", "2"), ("x-dp-rank", "0")];
        assert_eq!(pin(&read(&headers, body).unwrap()), Some((2, Some(0))));
    }

    #[test]
    fn the_decode_worker_is_the_more_specific_pin() {
        let body = r#"{"nvext":{"backend_instance_id":1,"decode_worker_id":3}}"#;
        assert_eq!(pin(&read(&[], body).unwrap()), Some((3, None)));
    }

    #[test]
    fn a_malformed_header_is_an_absent_one() {
        assert_eq!(read(&[("x-worker-instance-id", "two")], "{}").unwrap().pin, None);
    }

    #[test]
    fn a_rank_alone_names_nobody() {
        assert_eq!(read(&[("x-dp-rank", "1")], "{}").unwrap_err().status, 400);
        assert_eq!(read(&[], r#"{"nvext":{"dp_rank":1}}"#).unwrap_err().status, 400);
    }

    #[test]
    fn the_prefill_hop_has_a_pin_of_its_own() {
        let prefill = |headers: &[_], body: &str| {
            let pin = read(headers, body).unwrap().prefill_pin;
            pin.map(|pin| (pin.worker.0, pin.rank.map(|rank| rank.0)))
        };
        let body =
            r#"{"nvext":{"prefill_worker_id":1,"prefill_dp_rank":2,"decode_worker_id":3,"dp_rank":4}}"#;
        assert_eq!(prefill(&[], body), Some((1, Some(2))));
        assert_eq!(pin(&read(&[], body).unwrap()), Some((3, Some(4))));
        let headers = [("x-prefill-instance-id", "7"), ("x-prefill-dp-rank", "4294967295")];
        assert_eq!(prefill(&headers, body), Some((7, Some(4))), "unset, so the request's");
        assert_eq!(prefill(&[], r#"{"nvext":{"backend_instance_id":1}}"#), None);
        assert_eq!(read(&[("x-prefill-dp-rank", "1")], "{}").unwrap_err().status, 400);
    }

    #[test]
    fn a_tenant_is_told_or_the_request_refused() {
        let read = |lines: &[&[u8]]| {
            let value = |line: &&[u8]| (TENANT.parse().unwrap(), HeaderValue::from_bytes(line).unwrap());
            tenant(&lines.iter().map(value).collect::<HeaderMap>()).map_err(|error| error.status.as_u16())
        };
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&[b" "]), Ok(None));
        assert_eq!(read(&[b" acme "]), Ok(Some("acme".into())));
        assert_eq!(read(&["müller".as_bytes()]), Ok(Some("müller".into())));
        assert_eq!(read(&[b"acme", b"acme"]), Ok(Some("acme".into())));
        assert_eq!(read(&[b"acme", b"victim"]), Err(400));
        assert_eq!(read(&[b"m\xfcller"]), Err(400));
    }

    #[test]
    fn a_session_is_named_by_a_header_and_belongs_to_its_tenant() {
        let session = |headers: &[_]| read(headers, "{}").unwrap().session;
        assert_eq!(session(&[]), None);
        let a = session(&[("x-session-id", "a")]);
        assert!(a.is_some());
        for name in SESSION {
            assert_eq!(session(&[(name, "a")]), a, "{name}");
            assert_eq!(session(&[(name, " ")]), None, "{name}");
        }
        assert_eq!(session(&[("x-session-id", "b"), ("x-dynamo-session-id", "a")]), a);
        assert_eq!(session(&[("x-dynamo-session-id", ""), ("thread-id", "a")]), a);
        assert_ne!(session(&[("x-session-id", "a"), ("x-tenant-id", "t")]), a);
    }

    #[test]
    fn urgency_is_read_and_headers_win() {
        let haste = |headers: &[_], body: &str| read(headers, body).unwrap().haste;
        let body =
            r#"{"nvext":{"agent_hints":{"priority":3,"strict_priority":2},"router":{"ttft_target":1500.0}}}"#;
        let first_token_within = Some(Duration::from_millis(1500));
        let expected = Haste { strict_priority: 2, priority_jump: 3.0, first_token_within };
        assert_eq!(haste(&[], body), expected);
        let headers = [("x-dynamo-request-priority", "-5"), ("x-dynamo-request-strict-priority", "7")];
        assert_eq!(haste(&headers, body), Haste { strict_priority: 7, priority_jump: 0.0, ..expected });
        let malformed = [("x-dynamo-request-priority", "soon"), ("x-dynamo-request-strict-priority", "-1")];
        assert_eq!(haste(&malformed, body), expected);
        let old = r#"{"nvext":{"agent_hints":{"latency_sensitivity":2.5,"osl":9}}}"#;
        assert_eq!(haste(&[], old).priority_jump, 2.5);
        assert_eq!(read(&[], old).unwrap().unknown_keys, ["agent_hints.osl"]);
        let negative = r#"{"nvext":{"agent_hints":{"priority":-1,"latency_sensitivity":2.5}}}"#;
        assert_eq!(haste(&[], negative).priority_jump, 0.0);
        for wrong in [
            r#"{"nvext":{"router":{"ttft_target":-1}}}"#,
            r#"{"nvext":{"agent_hints":{"strict_priority":-1}}}"#,
            r#"{"nvext":{"agent_hints":7}}"#,
        ] {
            assert_eq!(read(&[], wrong).unwrap_err().status, 400, "{wrong}");
        }
    }

    #[test]
    fn metadata_is_opt_in_and_unknown_keys_are_reported() {
        let hints = read(
            &[("x-tenant-id", "acme")],
            r#"{"nvext":{"extra_fields":["timing","engine_data"],"greed_sampling":true,"annotations":["query_instance_id:"]}}"#,
        )
        .unwrap();
        assert_eq!(hints.metadata, Metadata { worker_id: false, timing: true });
        assert_eq!(hints.unknown_keys, ["greed_sampling"]);
        assert_eq!((hints.tenant.as_deref(), hints.cache_salt), (Some("acme"), None));
        assert!(hints.query_only && hints.has_nvext);
        assert!(!read(&[], "{}").unwrap().metadata.any());
    }
}
