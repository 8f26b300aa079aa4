//! A frontend and engines, all of them real processes, under mixed load for as long as it is told, while engines are killed and
//! come back, clients leave, bodies are malformed and the routing configuration changes.
//!
//! Every answer is held against what an engine that nobody disturbs says to the same request: it is complete and right, or it is
//! visibly an error. Afterwards nothing may be left: no load, no waiting request, no memory, no descriptor. `ci/soak.sh` runs it.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

#[path = "../process/mod.rs"]
mod process;
#[path = "../rig/mod.rs"]
mod rig;

mod chaos;
mod client;
mod conversation;
mod ending;
mod malformed;
mod reference;
mod settings;
mod tally;
mod user;
mod vitals;
mod world;

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    chaos::Chaos,
    settings::Settings,
    user::User,
    vitals::{Sampler, Vitals},
    world::World,
};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "it takes minutes: ci/soak.sh runs it"]
async fn soak() {
    let settings = Settings::from_environment();
    println!("{settings}");
    let world = Arc::new(World::start().await);
    // Everybody has asked once, so that what is opened for the first request is open.
    let mut users: Vec<_> = (0..settings.users).map(|number| User::new(number, &settings, &world)).collect();
    for user in &mut users {
        user.ask().await;
    }
    world.settle().await;
    let quiet = Vitals::of(world.router.id());
    let end = Instant::now() + settings.length;
    let sampler = Sampler::start(world.router.id());
    let users: Vec<_> = users.into_iter().map(|user| tokio::spawn(user.run(end))).collect();
    let chaos = tokio::spawn(Chaos::new(&settings, &world).run(end));
    report(&world, end, settings.length).await;
    let samples = sampler.stop();
    for user in users {
        user.await.unwrap();
    }
    let done = chaos.await.unwrap();
    world.settle().await;
    let left = Vitals::of(world.router.id());

    println!("{done}\n{}", world.tally);
    let mut problems = world.tally.defects();
    problems.extend(samples.growth());
    println!("quiet before: {quiet}; quiet after: {left}");
    if left.descriptors != quiet.descriptors {
        problems.push(format!("{} descriptors after {} before", left.descriptors, quiet.descriptors));
    }
    problems.extend(done.too_little(settings.length));
    let world = Arc::into_inner(world).expect("everybody else has ended");
    problems.extend(world.stop().await);
    assert!(problems.is_empty(), "seed {}:\n{}", settings.seed, problems.join("\n"));
    println!("soak passed: nothing lost, nothing cut without a word, nothing left");
}

/// Says now and then how far it is, until the end or until too much went wrong.
async fn report(world: &World, end: Instant, length: Duration) {
    let pause = (length / 6).clamp(Duration::from_secs(10), Duration::from_secs(120));
    while Instant::now() < end {
        tokio::time::sleep_until(end.min(Instant::now() + pause)).await;
        let left = end.saturating_duration_since(Instant::now()).as_secs();
        println!("{left:>5} s left; {}; {}", world.tally.short(), Vitals::of(world.router.id()));
        assert!(
            world.tally.defects().len() < 20,
            "too much went wrong:\n{}",
            world.tally.defects().join("\n")
        );
    }
}
