//! One run of a side.

use crate::decided;
use crate::measure::{Block, Meter};
use crate::round::{ROUND, show_progress};
use crate::sides::{self, Peers, Side};
use crate::world::World;

/// Runs a side until it is warm, and then measures it round by round; before and after, each autoscaler must have a
/// value of its metric.
pub async fn block(world: &World, side: Option<Side>, rounds: usize) -> Block {
    let name = side.map_or("nothing, for comparison", Side::name);
    show_progress(&format!("measuring {name}: {rounds} rounds of {} s", ROUND.as_secs()));
    let running = match side {
        Some(side) => Some(sides::start(world, side).await),
        None => None,
    };
    if side == Some(Side::Alone) {
        Meter::new(world, running.as_ref()).wait_settled().await;
    }
    let path = match side {
        Some(Side::Alone) => Some(decided::AUTOSCALERS),
        Some(Side::Plimsoll | Side::Peers(Peers::Tuned)) => Some(decided::HPAS),
        // By default the peers need minutes to decide for all.
        Some(Side::Peers(Peers::Default)) | None => None,
    };
    let all_decided = async || {
        if let Some(path) = path {
            decided::wait(world, name, path, None).await;
        }
    };
    all_decided().await;
    let warm_up = match side {
        // It has settled.
        Some(Side::Alone) => 0,
        Some(_) => 1,
        // What was created before is still written and compacted.
        None => 2,
    };
    tokio::time::sleep(ROUND * warm_up).await;
    let meter = Meter::new(world, running.as_ref());
    let block = meter.measure(rounds).await;
    all_decided().await;
    // Another side may have left the values.
    if path.is_some() {
        block.check(name, world.size.autoscalers);
    }
    drop(running);
    sides::unregister(world, &sides::CUSTOM_METRICS).await;
    block
}
