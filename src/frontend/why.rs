//! What a candidate costs, and why it won or lost, for people and programs.

use serde_json::{Value, json};

use crate::select::{
    Mode, Row,
    cost::{Cost, blocks::BlockCost, time::TimeCost},
};

/// The terms in the unit that stands beside them; `decay` has none. What weighs them is in `router_config`; the total is
/// divided by the weight of the devices, where that is told.
pub(super) fn cost_object(cost: &Cost) -> Value {
    let mut object = match cost {
        Cost::Time(TimeCost {
            queue,
            own_prefill,
            surcharge,
            replication,
            harm,
            context,
            requests,
            session,
            first_token,
            seconds_per_token,
            decay,
            ..
        }) => json!({
            "queue": queue,
            "own_prefill": own_prefill,
            "surcharge": surcharge,
            // What is taken off is shown as it counts.
            "replication": 0.0 - replication,
            "harm": harm,
            "context": context,
            "requests": requests,
            "session": 0.0 - session,
            "first_token": first_token,
            "seconds_per_token": seconds_per_token,
            "decay": decay,
        }),
        Cost::Blocks(BlockCost { decay, credit, prefill, decode, requests, session, .. }) => json!({
            "prefill": prefill,
            "decode": decode,
            "requests": requests,
            "session": 0.0 - session,
            "credit": credit,
            "decay": decay,
        }),
    };
    object["total"] = json!(cost.total());
    object["unit"] = json!(cost.model().unit());
    object
}

/// One sentence on why the candidate at `position` of `rows` won or lost against the one that was `chosen`, by which mode.
pub(super) fn why(position: usize, row: &Row, chosen: Option<(usize, Mode)>, rows: &[Row]) -> String {
    if let Some(exclusion) = row.exclusion {
        return format!("excluded: {exclusion}");
    }
    let Some((winner, mode)) = chosen else { return "not reached: the request was refused".to_owned() };
    if winner == position {
        let session = if row.tied.is_some() { ", where the session is" } else { "" };
        return format!("chosen by {mode}{session}");
    }
    let winner = &rows[winner];
    let weights = weights_apart(row, winner) + &slow_starts_apart(row, winner);
    let told = match (&row.cost, &winner.cost) {
        (Some(own), Some(best)) if own.total() > best.total() => match (own, best) {
            (Cost::Time(own), Cost::Time(best)) => in_seconds((row, own), (winner, best)),
            _ => in_blocks(row, winner, own.total() - best.total()),
        },
        (Some(_), Some(_)) => "costs the same; ties are drawn".to_owned(),
        _ if row.load.requests != winner.load.requests => format!(
            "{} requests in flight against the chosen one's {}",
            row.load.requests, winner.load.requests
        ),
        _ => format!("not picked by {mode}"),
    };
    told + &weights
}

/// What the devices of two rows weigh, where it is not the same.
fn weights_apart(row: &Row, winner: &Row) -> String {
    let weight = |row: &Row| row.device.map_or(1.0, |terms| terms.weight);
    if weight(row) == weight(winner) {
        return String::new();
    }
    format!(", on devices that weigh {:.2} against {:.2}", weight(row), weight(winner))
}

/// The same of rows that start slowly.
fn slow_starts_apart(row: &Row, winner: &Row) -> String {
    if row.slow_start == winner.slow_start {
        return String::new();
    }
    format!(", as new or recovered it weighs {:.2} against {:.2}", row.slow_start, winner.slow_start)
}

fn in_seconds((row, own): (&Row, &TimeCost), (winner, best): (&Row, &TimeCost)) -> String {
    format!(
        "costs {:.4} seconds more than the chosen one: {} blocks cached or on their way against {}, {:.4} s of prefill before \
         it against {:.4} s, {} requests in flight against {}",
        own.total - best.total,
        row.predicted.total(),
        winner.predicted.total(),
        own.queue,
        best.queue,
        row.load.requests,
        winner.load.requests,
    )
}

fn in_blocks(row: &Row, winner: &Row, more: f64) -> String {
    format!(
        "costs {more:.2} blocks more than the chosen one: {} blocks overlap against {}, {} prefill tokens waiting against {}, {} \
         decode blocks against {}",
        row.overlap.total(),
        winner.overlap.total(),
        row.load.prefill_tokens,
        winner.load.prefill_tokens,
        row.load.decode_blocks,
        winner.load.decode_blocks,
    )
}
