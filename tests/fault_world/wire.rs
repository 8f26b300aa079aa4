//! Batches as engines write them: maps or arrays, names as numbers or digests.

use kvroute::{
    event::EngineHash,
    worker::mock::{CacheEvent, Namespace, StoredRun},
};
use rmpv::Value;

/// Something that an engine says of its cache.
pub(crate) enum Told {
    /// Of its GPU, or of everything.
    Gpu(CacheEvent),
    /// Blocks were copied to host memory: said with their tokens, or by their names alone.
    HostStored { run: StoredRun, by_name: bool },
    /// Blocks left host memory.
    HostRemoved(Vec<EngineHash>),
}

/// How an engine writes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Dialect {
    /// Events as maps, names as unsigned numbers: vLLM from 0.24 on.
    Maps,
    /// Events as arrays, names as digests of 32 bytes: vLLM before, when told to.
    Digests,
    /// Events as maps, names as signed numbers: SGLang.
    Signed,
}

impl Dialect {
    pub(crate) const ALL: [Self; 3] = [Self::Maps, Self::Digests, Self::Signed];

    /// One batch; `seconds` by the engine's clock.
    pub(crate) fn batch(self, seconds: f64, rank: u32, events: &[Told]) -> Vec<u8> {
        let events = events.iter().map(|event| self.event(event)).collect();
        let batch = Value::Array(vec![seconds.into(), Value::Array(events), rank.into()]);
        let mut bytes = Vec::new();
        rmpv::encode::write_value(&mut bytes, &batch).unwrap();
        bytes
    }

    fn event(self, event: &Told) -> Value {
        match event {
            Told::Gpu(CacheEvent::Stored(run)) => self.stored(run, "GPU", false),
            Told::Gpu(CacheEvent::Removed(name)) => self.removed(&[*name], "GPU"),
            Told::Gpu(CacheEvent::Cleared) => self.fields("AllBlocksCleared", Vec::new()),
            Told::HostStored { run, by_name } => self.stored(run, "CPU", *by_name),
            Told::HostRemoved(names) => self.removed(names, "CPU"),
        }
    }

    fn stored(self, run: &StoredRun, medium: &str, by_name: bool) -> Value {
        let lora = run.namespace.lora.as_ref();
        let tokens =
            if by_name { Vec::new() } else { run.tokens.iter().map(|&token| token.into()).collect() };
        let fields = vec![
            ("block_hashes", self.names(&run.names)),
            ("parent_block_hash", run.parent.map_or(Value::Nil, |name| self.name(name))),
            ("token_ids", Value::Array(tokens)),
            ("block_size", run.block_size.into()),
            ("lora_id", lora.map_or(Value::Nil, |lora| lora.id.into())),
            ("medium", medium.into()),
            ("lora_name", lora.map_or(Value::Nil, |lora| lora.name.as_str().into())),
            ("extra_keys", extra_keys(run)),
            ("group_idx", 0.into()),
            ("kv_cache_spec_kind", "full_attention".into()),
        ];
        self.fields("BlockStored", fields)
    }

    fn removed(self, names: &[EngineHash], medium: &str) -> Value {
        let fields =
            vec![("block_hashes", self.names(names)), ("medium", medium.into()), ("group_idx", 0.into())];
        self.fields("BlockRemoved", fields)
    }

    fn fields(self, tag: &str, fields: Vec<(&str, Value)>) -> Value {
        match self {
            Self::Digests => Value::Array(
                [tag.into()].into_iter().chain(fields.into_iter().map(|(_, value)| value)).collect(),
            ),
            Self::Maps | Self::Signed => {
                let tag = ("type".into(), tag.into());
                Value::Map(
                    [tag]
                        .into_iter()
                        .chain(fields.into_iter().map(|(key, value)| (key.into(), value)))
                        .collect(),
                )
            }
        }
    }

    fn names(self, names: &[EngineHash]) -> Value {
        Value::Array(names.iter().map(|&name| self.name(name)).collect())
    }

    fn name(self, EngineHash(name): EngineHash) -> Value {
        match self {
            Self::Maps => name.into(),
            Self::Signed => name.cast_signed().into(),
            Self::Digests => {
                let mut digest = vec![0x5a; 24];
                digest.extend(name.to_be_bytes());
                Value::Binary(digest)
            }
        }
    }
}

/// The same batch with nil in the place of the first name that it takes away; `None` if it takes away none, or cannot be read.
pub(crate) fn without_a_removal(batch: &[u8]) -> Option<Vec<u8>> {
    let mut batch = rmpv::decode::read_value(&mut &*batch).ok()?;
    let Value::Array(parts) = &mut batch else { return None };
    let Value::Array(events) = parts.get_mut(1)? else { return None };
    *events.iter_mut().find_map(first_removed)? = Value::Nil;
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, &batch).unwrap();
    Some(bytes)
}

fn first_removed(event: &mut Value) -> Option<&mut Value> {
    let names = match event {
        Value::Array(fields) if fields[0].as_str() == Some("BlockRemoved") => &mut fields[1],
        Value::Map(fields) if fields[0].1.as_str() == Some("BlockRemoved") => &mut fields[1].1,
        _ => return None,
    };
    match names {
        Value::Array(names) => names.first_mut(),
        _ => None,
    }
}

/// One entry a block: the adapter's name, and the salt with the first block of a sequence.
fn extra_keys(run: &StoredRun) -> Value {
    let Namespace { lora, salt, .. } = &*run.namespace;
    let of_block = |at: usize| {
        let salt = salt.as_ref().filter(|_| at == 0 && run.parent.is_none()).map(String::as_str);
        let keys: Vec<Value> =
            lora.iter().map(|lora| lora.name.as_str()).chain(salt).map(Into::into).collect();
        if keys.is_empty() { Value::Nil } else { Value::Array(keys) }
    };
    Value::Array((0..run.names.len()).map(of_block).collect())
}
