//! What stands for traces in a binary that cannot make any.

use std::{convert::Infallible, fmt};

use http::{HeaderMap, StatusCode, request::Parts};

use super::{OtlpEndpoint, Step, TracesError};
use crate::{
    frontend::{access_log::Written, place::Placed, request_id::RequestId},
    metrics::Page,
    proxy::{End, ProxyError},
};

/// There are none.
#[derive(Default)]
pub(in crate::frontend) struct Traces(());

/// No request has one.
#[derive(Clone)]
pub(in crate::frontend) struct Trace(Infallible);

/// Nor a span of its own.
pub(in crate::frontend) struct RequestSpan(Infallible);

/// Nor one of a part of it.
pub(in crate::frontend) struct Part(Infallible);

impl Traces {
    pub(in crate::frontend) fn open(_: &OtlpEndpoint) -> Result<Self, TracesError> {
        Err(TracesError::NotBuilt)
    }

    pub(in crate::frontend) fn begin(&self, _: &RequestId, _: &Parts) -> Option<RequestSpan> {
        None
    }

    pub(in crate::frontend) fn flush(&self) -> bool {
        true
    }

    pub(in crate::frontend) fn write(&self, page: &mut Page<'_>) -> fmt::Result {
        super::write(page, [0; 2], false)
    }
}

impl RequestSpan {
    pub(in crate::frontend) fn id(&self) -> String {
        match self.0 {}
    }

    pub(in crate::frontend) fn trace(&self) -> Trace {
        match self.0 {}
    }

    pub(in crate::frontend) fn end(self, _: &Written) {
        match self.0 {}
    }
}

impl Trace {
    pub(in crate::frontend) fn step(&self, _: Step) -> Part {
        match self.0 {}
    }

    pub(in crate::frontend) fn attempt(&self, _: &Placed, _: &Parts) -> Part {
        match self.0 {}
    }
}

impl Part {
    pub(in crate::frontend) fn placed(self, _: &Placed) {
        match self.0 {}
    }

    pub(in crate::frontend) fn refused(self, _: StatusCode) {
        match self.0 {}
    }

    pub(in crate::frontend) fn carry(&self, _: &mut HeaderMap) {
        match self.0 {}
    }

    pub(in crate::frontend) fn answered(&mut self, _: StatusCode) {
        match self.0 {}
    }

    pub(in crate::frontend) fn over(self, _: End) {
        match self.0 {}
    }

    pub(in crate::frontend) fn failed(self, _: &ProxyError) {
        match self.0 {}
    }
}
