//! Wire formats of KV events.
