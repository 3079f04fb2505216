//! Load that was cut off while new pods started: each ready pod carries as much when others become ready as before, where it
//! would carry less if nothing had been cut off.

use super::candidate::Candidate;
use super::history::WasThere;
use super::load::Load;
use super::recorded::{Recorded, Replicas};
use super::saturation::LowConfidence;
use crate::hpa::ControllerConfig;
use crate::time::UnixMillis;

/// What a pod at its limit carries differs by less than this share for [`BEFORE_MS`],
const STEADY: f64 = 0.02;
const BEFORE_MS: i64 = 60_000;
/// and by less than this share within [`AFTER_MS`] after so many times as many pods are ready: a rate lags.
const SAME: f64 = 0.03;
const AFTER_MS: i64 = 120_000;
const MORE: f64 = 1.1;
/// That is seen so often at least, and as great a share of it is this near to one level, which is the limit. From there it is
/// not seen less often than that each carries less.
const LEAST: usize = 3;
const MOST_OF_THEM: f64 = 0.8;
const NEAR: f64 = 0.04;
/// More than this multiple of the limit is carried in as small a share of the rows at most.
const ABOVE: f64 = 1.06;
const MOST_ABOVE: f64 = 0.001;

/// What was recorded of a workload at a time.
#[derive(Clone, Copy, Debug)]
struct Row {
    time: UnixMillis,
    ready: i64,
    /// The load of each ready pod.
    of_pod: f64,
}

/// The parts of the recorded loads of a candidate that were probably cut off while pods started, by how many were ready. None
/// where pods with a sample were counted, which says nothing of those.
pub fn while_starting(
    candidate: &Candidate,
    recorded: &Recorded,
    was_there: &WasThere,
) -> Vec<LowConfidence> {
    if was_there.is_counted {
        return Vec::new();
    }
    let ready = &was_there.ready;
    let loads = candidate.metrics.iter().zip(&recorded.loads);
    // Of memory each pod holds as much at any time.
    let loads = loads.filter(|(metric, _)| !metric.is_memory());
    let behavior = candidate.spec.behavior.as_ref();
    let tolerance = behavior.and_then(|behavior| behavior.scale_up.tolerance);
    let edge = 1.0 + tolerance.unwrap_or(ControllerConfig::default().tolerance);
    loads.flat_map(|(metric, load)| cut_off(load, ready, edge * metric.target)).collect()
}

/// The same of one load, by what a pod carries when pods are added: there many a load happens to stay for a minute.
fn cut_off(load: &Load, ready: &Replicas, edge: f64) -> Vec<LowConfidence> {
    let row = |(time, value): (UnixMillis, f64)| {
        let ready = ready.at(time).filter(|ready| *ready > 0)?;
        Some(Row { time, ready, of_pod: value / ready as f64 })
    };
    let rows: Vec<Row> = load.points().filter_map(row).collect();
    let limit = limit(&rows).filter(|limit| !is_near(*limit, edge, NEAR));
    let Some(limit) = limit else { return Vec::new() };
    let reason = format!(
        "each ready pod carries {limit:.6}, and no less when more become ready: more may have been asked for than they could carry"
    );
    let at_limit = |row: &Row| row.of_pod >= limit * (1.0 - SAME);
    let parts = rows.chunk_by(|one, other| at_limit(one) == at_limit(other));
    let parts = parts.filter(|part| at_limit(&part[0]));
    parts.map(|part| LowConfidence::new(part[0].time, part[part.len() - 1].time, &reason)).collect()
}

fn is_near(one: f64, other: f64, share: f64) -> bool {
    (one - other).abs() <= other * share
}

/// What a pod carries at most, if it shows when more become ready.
fn limit(rows: &[Row]) -> Option<f64> {
    // What each pod carries at a steady rise, and whether it stays as much.
    let rise = |index: usize| {
        let row = rows[index];
        let before = rows[..index].iter().rposition(|one| one.time <= row.time - BEFORE_MS)?;
        let is_steady = rows[before..index].iter().all(|one| one.ready == row.ready)
            && is_near(rows[before].of_pod, row.of_pod, STEADY);
        let after = rows[index + 1..].iter();
        let after = after.take_while(|one| one.time <= row.time + AFTER_MS);
        let more = after.filter(|one| one.ready as f64 >= MORE * row.ready as f64);
        let stays = more.map(|one| is_near(one.of_pod, row.of_pod, SAME));
        let stays = stays.reduce(|one, other| one || other)?;
        (is_steady && row.of_pod > 0.0).then_some((row.of_pod, stays))
    };
    let rises = rows.windows(2).enumerate().filter(|(_, pair)| pair[1].ready > pair[0].ready);
    let rises: Vec<(f64, bool)> = rises.filter_map(|(index, _)| rise(index)).collect();
    let mut carried: Vec<f64> =
        rises.iter().filter_map(|(carried, stays)| stays.then_some(*carried)).collect();
    let count = carried.len();
    if count < LEAST {
        return None;
    }
    let limit = *carried.select_nth_unstable_by(count / 2, f64::total_cmp).1;
    let near = carried.iter().filter(|carried| is_near(**carried, limit, NEAR)).count();
    let less = rises.iter().filter(|(carried, stays)| !stays && is_near(*carried, limit, NEAR));
    let above = rows.iter().filter(|row| row.of_pod > limit * ABOVE).count();
    let is_limit = near as f64 >= MOST_OF_THEM * count as f64
        && near >= LEAST.max(less.count())
        && above as f64 <= MOST_ABOVE * rows.len() as f64;
    is_limit.then_some(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A target of 8, and the default tolerance.
    const EDGE: f64 = 8.8;

    /// What is recorded each minute of a workload whose pods are ready after so many minutes, with a target of 8, and carry
    /// so much at most: its load, its ready pods, and the minutes in which more was asked for.
    fn recorded(asked: &[f64], starts: usize, most: f64) -> (Load, Replicas, Vec<UnixMillis>) {
        let (mut load, mut pods, mut cut) = (Vec::new(), Vec::new(), Vec::new());
        let mut ready = (asked[0] / 8.0).ceil();
        let (mut wanted, mut starting) = (ready, Vec::new());
        for (minute, asked) in asked.iter().enumerate() {
            starting.retain(|(at, count)| {
                ready = if *at <= minute { f64::max(ready, *count) } else { ready };
                *at > minute
            });
            let noise = 1.0 + 0.01 * (((minute * 7_919) % 101) as f64 / 50.0 - 1.0);
            let carried = asked.min(ready * most * noise);
            let time = minute as UnixMillis * 60_000;
            load.push((time, carried, false));
            pods.push((time, ready as i64));
            cut.extend((carried < *asked).then_some(time));
            let needs = (carried / 8.0).ceil();
            if (carried / ready / 8.0 - 1.0).abs() <= 0.1 {
                continue;
            }
            if needs > wanted {
                wanted = needs.min(wanted * 2.0);
                starting.push((minute + starts, wanted));
            } else if starting.is_empty() && minute % 5 == 0 {
                (wanted, ready) = (needs, needs);
            }
        }
        (Load::of(load), Replicas::new(pods), cut)
    }

    /// A week of a daily wave, with this many times as much for twenty minutes each six hours.
    fn jumps(times: f64) -> Vec<f64> {
        let wave =
            |minute: usize| 100.0 + 60.0 * (minute as f64 / 1_440.0 * std::f64::consts::TAU).sin();
        let times = |minute: usize| if minute % 360 < 20 { times } else { 1.0 };
        (0..10_080).map(|minute| wave(minute) * times(minute)).collect()
    }

    #[test]
    fn load_that_ready_pods_could_not_carry_while_others_started_is_marked() {
        for times in [2.0, 3.0] {
            let (load, ready, cut) = recorded(&jumps(times), 3, 10.0);
            let parts = cut_off(&load, &ready, EDGE);
            let is_marked = |time: &&UnixMillis| {
                let time = **time as f64 / 1000.0;
                parts.iter().any(|part| (part.from..=part.to).contains(&time))
            };
            let marked = cut.iter().filter(is_marked).count();
            assert!(
                cut.len() > 100 && marked * 10 >= cut.len() * 9,
                "{times}: {marked} of {}",
                cut.len()
            );
            let all = load.points().filter(|(time, _)| is_marked(&time)).count();
            assert!(all * 10 <= cut.len() * 13, "{times}: {all} of {}", cut.len());
            assert!(parts[0].reason.starts_with("each ready pod carries "), "{}", parts[0].reason);
        }
    }

    /// Growth by a few percent a minute, which is about as fast as pods are added.
    #[test]
    fn load_that_grows_as_fast_as_pods_start_is_not_marked() {
        for (percent, seed) in
            [2.0, 3.0, 4.0].into_iter().flat_map(|one| [(one, 1), (one, 2), (one, 3)])
        {
            for noise in [0.005, 0.01, 0.02] {
                let mut random = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed);
                let mut normal = || {
                    let twelve = (0..12).map(|_| {
                        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        (random >> 33) as f64 / f64::from(1_u32 << 31)
                    });
                    twelve.sum::<f64>() - 6.0
                };
                let growth: f64 = 1.0 + percent / 100.0;
                let asked: Vec<f64> = (0..7 * 1_440)
                    .map(|minute: i32| {
                        let level = f64::min(growth.powi(minute % 180), 5.0);
                        let level = if minute % 180 < 150 { level } else { 1.0 };
                        120.0 * level * (1.0 + noise * normal())
                    })
                    .collect();
                for starts in [1, 2] {
                    let (load, ready, _) = recorded(&asked, starts, f64::INFINITY);
                    let parts = cut_off(&load, &ready, EDGE);
                    assert!(parts.is_empty(), "{percent} {noise} {seed} {starts}");
                }
            }
        }
    }

    #[test]
    fn load_that_was_carried_is_not_marked() {
        for starts in [1, 3] {
            for times in [1.0, 1.5, 2.0, 3.0] {
                let (load, ready, cut) = recorded(&jumps(times), starts, f64::INFINITY);
                assert_eq!(
                    (cut_off(&load, &ready, EDGE), cut),
                    (vec![], vec![]),
                    "{starts} {times}"
                );
            }
            for name in ["crane-00", "crane-02", "crane-08", "crane-14", "worldcup98-may-june"] {
                let path =
                    format!("{}/tests/data/traces/{name}.csv.gz", env!("CARGO_MANIFEST_DIR"));
                let file = flate2::read::MultiGzDecoder::new(std::fs::File::open(path).unwrap());
                let whole = Load::read(std::io::BufReader::new(file)).unwrap();
                let mut sorted: Vec<f64> = whole.points().map(|(_, value)| value).collect();
                sorted.sort_unstable_by(f64::total_cmp);
                for pods in [10.0, 50.0] {
                    let unit = 8.0 * pods / sorted[sorted.len() / 2];
                    let asked: Vec<f64> = whole.points().map(|(_, value)| value * unit).collect();
                    let (load, ready, _) = recorded(&asked, starts, f64::INFINITY);
                    assert_eq!(cut_off(&load, &ready, EDGE), [], "{name} {starts} {pods}");
                }
            }
        }
    }
}
