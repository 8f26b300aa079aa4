//! Prompts that pass from a prefill engine to a decode engine: `kv_transfer_params`, in the fields of vLLM's
//! `NixlConnector`.
//!
//! Nothing is transferred, and nobody listens where the answer points. Its block ids are stand-ins whose number is
//! the prompt's, so that a decode engine notices a prompt that is not the one that was computed.

use serde_json::{Value, json};

use super::App;
use super::body::Sampling;
use super::error::ApiError;
use crate::worker::mock::settings::Role;

impl Sampling {
    fn asks_for(&self, what: &str) -> bool {
        let params = self.kv_transfer_params.as_ref();
        params.and_then(|params| params.get(what)).and_then(Value::as_bool) == Some(true)
    }
}

impl App {
    /// Whether another engine is to go on with the prompt that this one computes.
    pub(super) fn hands_over(&self, sampling: &Sampling) -> bool {
        self.settings.role == Role::Prefill && sampling.asks_for("do_remote_decode")
    }

    /// Whether another engine has computed the prompt.
    pub(super) fn takes_over(&self, sampling: &Sampling) -> bool {
        self.settings.role == Role::Decode && sampling.asks_for("do_remote_prefill")
    }

    /// What a decode engine is told of a prompt that was computed here under the name `request`.
    pub(super) fn transfer_params(&self, request: &str, prompt_tokens: usize) -> Value {
        json!({
            "do_remote_prefill": true,
            "do_remote_decode": false,
            "remote_block_ids": (1..=self.blocks(prompt_tokens)).collect::<Vec<_>>(),
            "remote_engine_id": "mock",
            "remote_request_id": request,
            "remote_host": self.settings.http.ip().to_string(),
            "remote_port": 5600,
            "tp_size": 1,
        })
    }

    /// Refuses to take over a prompt of another length than was computed.
    pub(super) fn check_transfer(&self, sampling: &Sampling, prompt_tokens: usize) -> Result<(), ApiError> {
        if !self.takes_over(sampling) {
            return Ok(());
        }
        let params = sampling.kv_transfer_params.as_ref();
        let remote = params.and_then(|params| params.get("remote_block_ids")).and_then(Value::as_array);
        let (remote, own) = (remote.map_or(0, Vec::len), self.blocks(prompt_tokens));
        if remote == own {
            return Ok(());
        }
        let message = format!("{remote} remote blocks for a prompt of {own}");
        Err(ApiError::bad_request(Some("kv_transfer_params"), message))
    }

    fn blocks(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.settings.block_size as usize)
    }
}
