//! The numbers of a frontend, written to the metrics page when it is scraped.
//!
//! What is about one idea is written where the idea is; here are the order of the page, and what has no place of its own.

mod events;
mod ranks;
mod requests;
mod sets;

use std::{
    fmt::{self, Debug},
    sync::Arc,
};

use super::{
    app::App, connections, devices, drift, health_checks, index_memory, index_snapshot, overlaps, parity,
    tokenising,
};
use crate::metrics::{Exposition, Page, Source};
pub(super) use ranks::Ranks;

/// The page as text.
pub(super) fn text(app: &Arc<App>) -> Result<String, fmt::Error> {
    let mut page = Exposition::new();
    page.add(Numbers(Arc::clone(app)));
    page.text()
}

struct Numbers(Arc<App>);

impl Debug for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Numbers")
    }
}

impl Source for Numbers {
    fn write(&self, page: &mut Page<'_>) -> fmt::Result {
        let app = &self.0;
        let view = app.fleet.view();
        requests::requests(app, page)?;
        requests::choices(app, page)?;
        app.decisions.write(page)?;
        doors(app, page)?;
        requests::stages(app, page)?;
        tokenising::write(app, page)?;
        overlaps::write(app, page)?;
        sets::sets(app, &view, page)?;
        let ranks = Ranks::of(&view, app.fleet.now_ms());
        ranks.write(page)?;
        health_checks::write(app, &ranks, page)?;
        devices::write(&view, app.fleet.now_ms(), page)?;
        parity::write(app, &view, page)?;
        drift::write(&ranks, page)?;
        index_memory::write(app, &view, page)?;
        index_snapshot::write(app, page)?;
        events::events(app, page)
    }
}

/// Who gets in, over what, and what is written of it.
fn doors(app: &App, page: &mut Page<'_>) -> fmt::Result {
    app.gate.write(page)?;
    let listeners = [("public", &*app.public_connections), ("admin", &*app.admin_connections)];
    connections::write(&listeners, page)?;
    app.files.write(page)?;
    app.routing.write(&app.fleet, page)?;
    app.access_log.write(page)?;
    app.traces.write(page)
}
