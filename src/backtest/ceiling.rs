//! Load that stands below a ceiling: where more was asked for than the pods could carry, what is recorded piles up at what
//! they carry, with the noise that any measurement has.

/// How wide the pile is, as a share of the ceiling: without noise, with that of a counter, and with 2 %.
const WIDTHS: [f64; 3] = [0.005, 0.01, 0.022];
/// So many rows in a row are averaged to see a pile whose noise is wider than that, and how wide it is then: the first that
/// shows one counts. The standard deviation of the noise may be 1 % with the first, and 3 % with the others.
const AVERAGED: [(usize, f64); 3] = [(11, 0.012), (31, 0.022), (31, 0.012)];
/// Averages of more rows than this make a pile of a load that waves about a level, too. Its values are further from their
/// middle than rows that follow each other are from each other, or nearer: at a ceiling there is nothing but noise, in
/// which both are the same.
const FEW_AVERAGED: usize = 11;
const SAME: std::ops::RangeInclusive<f64> = 0.85..=1.12;
/// How many times as many rows are in the pile as in a band of its width just below. At the peak of a wave, however smooth
/// it is, there are 2.42 times as many: it is there as long as sqrt(1) - sqrt(0), and below as long as sqrt(2) - sqrt(1).
const NEAR: f64 = 2.75;
/// The bands below that the pile is compared with, by their distance from it in its width.
const BELOW: [f64; 5] = [0.0, 0.5, 1.0, 2.0, 3.0];
/// And than at any level below, so that a load that has steps by nature has no ceiling.
const FAR: f64 = 1.25;
/// The least and the most of all rows that are in the pile: a load that is always the same is no evidence.
const LEAST_SHARE: f64 = 0.02;
const MOST_SHARE: f64 = 0.9;
/// Fewer rows say nothing of how often a level is reached.
const LEAST_ROWS: usize = 200;
/// The shares of rows above the pile that are tried: its noise, and mistakes of a counter. They are few beside its own.
const ABOVE: [f64; 7] = [0.0, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02];
const FEW_ABOVE: usize = 20;

/// A part of the load at the ceiling: the first and the last row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct AtCeiling {
    pub(super) first: usize,
    pub(super) last: usize,
    /// The ceiling.
    pub(super) level: f64,
}

/// The rows at a ceiling, in parts of rows that follow each other.
pub(super) fn at_ceiling(values: &[f64]) -> Vec<AtCeiling> {
    if values.len() < LEAST_ROWS {
        return Vec::new();
    }
    let mut is_at = vec![false; values.len()];
    let mut level: f64 = 0.0;
    for width in WIDTHS {
        let Some(pile) = Pile::of(values, width) else { continue };
        level = level.max(pile.top);
        values.iter().zip(&mut is_at).for_each(|(value, is_at)| *is_at |= *value > pile.bottom);
    }
    if let Some((top, rows)) = AVERAGED.into_iter().find_map(|of| averaged(values, of)) {
        level = level.max(top);
        rows.for_each(|row| is_at[row] = true);
    }
    let mut parts: Vec<AtCeiling> = Vec::new();
    for index in (0..values.len()).filter(|index| is_at[*index]) {
        match parts.last_mut().filter(|part| part.last + 1 == index) {
            Some(part) => part.last = index,
            None => parts.push(AtCeiling { first: index, last: index, level }),
        }
    }
    parts
}

/// Many values between two levels, and nearly none above.
struct Pile {
    bottom: f64,
    top: f64,
}

impl Pile {
    fn of(values: &[f64], width: f64) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let count = sorted.len();
        let until = |level: f64| sorted.partition_point(|value| *value <= level);
        let within = |bottom: f64, top: f64| until(top) - until(bottom);
        let mut best: Option<(f64, Self)> = None;
        for above in ABOVE {
            let top = *sorted.get(count.checked_sub(1 + (above * count as f64) as usize)?)?;
            let width = width * top;
            let bottom = top - width;
            let rows = within(bottom, top);
            let is_share = (LEAST_SHARE..=MOST_SHARE).contains(&(rows as f64 / count as f64));
            if !is_share || (count - until(top)) * FEW_ABOVE > rows {
                continue;
            }
            let below = BELOW.map(|far| bottom - far * width);
            let below = below.map(|top| within(top - width, top)).into_iter().max()?;
            let ratio = rows as f64 / below.max(1) as f64;
            let is_largest =
                || rows as f64 >= FAR * largest(&sorted[..until(bottom)], width) as f64;
            if ratio >= NEAR && best.as_ref().is_none_or(|(most, _)| ratio > *most) && is_largest()
            {
                best = Some((ratio, Self { bottom, top }));
            }
        }
        best.map(|(_, pile)| pile)
    }
}

/// The most of these values that are within a width.
fn largest(sorted: &[f64], width: f64) -> usize {
    let (mut first, mut most) = (0, 0);
    for (index, value) in sorted.iter().enumerate() {
        while value - sorted[first] >= width && first < index {
            first += 1;
        }
        most = most.max(index + 1 - first);
    }
    most
}

/// The level of a pile of averages of so many rows, within a width, and the rows that are in them.
fn averaged(
    values: &[f64],
    (rows, width): (usize, f64),
) -> Option<(f64, impl Iterator<Item = usize>)> {
    let count = values.len();
    let around = move |row: usize| row.saturating_sub(rows / 2)..(row + rows / 2 + 1).min(count);
    let mean = |row: usize| {
        let rows = &values[around(row)];
        rows.iter().sum::<f64>() / rows.len() as f64
    };
    let averages: Vec<f64> = (0..count).map(mean).collect();
    let pile = Pile::of(&averages, width)?;
    let inside: Vec<usize> = (0..count).filter(|row| averages[*row] > pile.bottom).collect();
    let is_noise = rows <= FEW_AVERAGED || SAME.contains(&spread(values, &inside)?);
    is_noise.then(|| (pile.top, inside.into_iter().flat_map(around)))
}

/// How far rows are from their middle, as a share of how far each is from the row before. Of noise alone it is 1.
fn spread(values: &[f64], rows: &[usize]) -> Option<f64> {
    let middle = median(rows.iter().map(|row| values[*row]))?;
    let far = median(rows.iter().map(|row| (values[*row] - middle).abs()))?;
    let steps = rows.iter().filter(|row| **row > 0);
    let step = median(steps.map(|row| (values[*row] - values[row - 1]).abs()))?;
    Some(std::f64::consts::SQRT_2 * far / step)
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    let middle = values.len() / 2;
    (!values.is_empty()).then(|| *values.select_nth_unstable_by(middle, f64::total_cmp).1)
}

#[cfg(test)]
mod tests {
    use super::super::load::Load;
    use super::*;

    /// Repeatable noise from 0 to 1.
    fn noise(row: usize, salt: u64) -> f64 {
        let mut x = (row as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ salt;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// About normal, with a standard deviation of 1.
    fn normal(row: usize) -> f64 {
        (1..=12).map(|salt| noise(row, salt * 0x1234_5677)).sum::<f64>() - 6.0
    }

    fn share_found(load: &[f64], limit: f64, recorded: &[f64]) -> (f64, f64) {
        let mut is_found = vec![false; load.len()];
        for part in at_ceiling(recorded) {
            is_found[part.first..=part.last].fill(true);
        }
        let cut = load.iter().zip(&is_found).filter(|(value, _)| **value > limit);
        let (count, found) = cut.fold((0, 0), |(count, found), (_, is_found)| {
            (count + 1, found + usize::from(*is_found))
        });
        let all = is_found.iter().filter(|is_found| **is_found).count();
        (f64::from(found as u32) / f64::from(count), all as f64 / f64::from(count))
    }

    fn trace(name: &str) -> Vec<f64> {
        let path = format!("{}/tests/data/traces/{name}.csv.gz", env!("CARGO_MANIFEST_DIR"));
        let file = flate2::read::MultiGzDecoder::new(std::fs::File::open(path).unwrap());
        let load = Load::read(std::io::BufReader::new(file)).unwrap();
        load.points().map(|(_, value)| value).collect()
    }

    #[test]
    fn load_that_was_cut_off_is_found_with_the_noise_of_a_measurement() {
        for name in ["crane-00", "crane-02", "crane-08", "crane-14", "nab-elb_request_count_8c0756"]
        {
            let load = trace(name);
            let mut sorted = load.clone();
            sorted.sort_unstable_by(f64::total_cmp);
            for (share, jitters) in
                [(0.5, [0.0, 0.004, 0.02]), (0.75, [0.0, 0.004, 0.02]), (0.9, [0.0, 0.002, 0.004])]
            {
                let limit = sorted[(load.len() as f64 * share) as usize];
                for jitter in jitters {
                    let carried = |(row, value): (usize, &f64)| {
                        value.min(limit * (1.0 - jitter * noise(row, 0)))
                    };
                    let recorded: Vec<f64> = load.iter().enumerate().map(carried).collect();
                    let (found, _) = share_found(&load, limit, &recorded);
                    assert!(found >= 0.9, "{name} {share} {jitter}: {found}");
                }
            }
        }
    }

    #[test]
    fn noise_of_three_percent_hides_no_ceiling() {
        for step in [15, 60, 300] {
            let rows = 4 * 86_400 / step;
            let wave = |row: usize| {
                let day = (row * step) as f64 / 86_400.0;
                900.0 + 600.0 * (day * std::f64::consts::TAU).sin()
            };
            let load: Vec<f64> =
                (0..rows).map(|row| wave(row) * (1.0 + 0.02 * normal(row))).collect();
            assert_eq!(at_ceiling(&load), [], "{step}");
            for deviation in [0.004, 0.01, 0.02, 0.03] {
                let recorded: Vec<f64> = load
                    .iter()
                    .enumerate()
                    .map(|(row, load)| load.min(1_000.0 * (1.0 + deviation * normal(row + rows))))
                    .collect();
                let (found, all) = share_found(&load, 1_000.0, &recorded);
                assert!(found >= 0.9 && all < 1.2, "{step} {deviation}: {found} {all}");
            }
        }
    }

    #[test]
    fn a_noisy_ceiling_of_a_noisy_load_is_found() {
        let normals: Vec<f64> = (0..2 * 10_080).map(normal).collect();
        let of_load = |share: f64, limits: &[f64], deviations: &[f64]| {
            let wave = |row: usize| {
                let day = row as f64 / 1_440.0;
                (100.0 + 60.0 * (day * std::f64::consts::TAU).sin()) * (1.0 + share * normals[row])
            };
            let load: Vec<f64> = (0..10_080).map(wave).collect();
            assert_eq!(at_ceiling(&load), [], "{share}");
            for limit in limits {
                for deviation in deviations {
                    let carried = |(row, value): (usize, &f64)| {
                        value.min(limit * (1.0 + deviation * normals[10_080 + row]))
                    };
                    let recorded: Vec<f64> = load.iter().enumerate().map(carried).collect();
                    let (found, all) = share_found(&load, *limit, &recorded);
                    let what = format!("{share} {limit} {deviation}: {found} {all}");
                    assert!(found >= 0.9 && all < 1.25, "{what}");
                }
            }
        };
        for share in [0.0, 0.01, 0.03] {
            of_load(share, &[150.0, 140.0, 120.0], &[0.01, 0.02, 0.03]);
        }
        of_load(0.05, &[140.0, 120.0], &[0.02, 0.03]);
        of_load(0.05, &[150.0], &[0.01, 0.02]);
    }

    #[test]
    fn traces_that_are_cut_off_are_found_with_noise_of_three_percent() {
        for (name, deviations) in [("crane-00", &[0.02, 0.03][..]), ("crane-14", &[0.02])] {
            let load = trace(name);
            let mut sorted = load.clone();
            sorted.sort_unstable_by(f64::total_cmp);
            for share in [0.5, 0.8] {
                let limit = sorted[(load.len() as f64 * share) as usize];
                for deviation in deviations {
                    let carried = |(row, value): (usize, &f64)| {
                        value.min(limit * (1.0 + deviation * normal(row)))
                    };
                    let recorded: Vec<f64> = load.iter().enumerate().map(carried).collect();
                    let (found, _) = share_found(&load, limit, &recorded);
                    assert!(found >= 0.9, "{name} {share} {deviation}: {found}");
                }
            }
        }
    }

    #[test]
    fn no_trace_that_was_recorded_whole_has_a_ceiling() {
        for name in [
            "crane-00",
            "crane-02",
            "crane-08",
            "crane-14",
            "nab-Twitter_volume_GOOG",
            "nab-ec2_cpu_utilization_5f5533",
            "nab-elb_request_count_8c0756",
            "worldcup98-may-june",
        ] {
            assert_eq!(at_ceiling(&trace(name)), [], "{name}");
        }
    }

    #[test]
    fn waves_steps_and_constants_have_no_ceiling() {
        let rows = |value: &dyn Fn(usize) -> f64| (0..5_760).map(value).collect::<Vec<f64>>();
        let wave = |row: usize| 100.0 + 60.0 * (row as f64 / 120.0).sin();
        assert_eq!(at_ceiling(&rows(&wave)), []);
        assert_eq!(at_ceiling(&rows(&|row| wave(row) + 4.0 * noise(row, 0))), []);
        assert_eq!(at_ceiling(&rows(&|row| (row / 60 % 5) as f64 * 10.0)), []);
        assert_eq!(at_ceiling(&rows(&|_| 95.0)), []);
        assert_eq!(at_ceiling(&rows(&|row| 95.0 * (1.0 + 0.02 * noise(row, 0)))), []);
        assert_eq!(at_ceiling(&rows(&|_| 0.0)), []);
        assert_eq!(at_ceiling(&[]), []);
        assert_eq!(at_ceiling(&[20.0, 30.0, 80.0, 80.0, 80.0]), []);
    }
}
