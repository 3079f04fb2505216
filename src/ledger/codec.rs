//! Entries as bytes: numbers as differences to the entry before, in as few bytes as they need. A day
//! of decisions for a thousand restless workloads is millions of entries.

use super::basis::{Basis, Target};
use super::entry::{
    CarriedOut, Constraint, ConstraintKind, Entry, Limit, Measured, MetricStatus, Observed, Reason,
};
use std::sync::Arc;

/// Entries as bytes, in their order.
#[derive(Clone, Debug, Default)]
pub struct Encoded {
    bytes: Vec<u8>,
    bases: Vec<Arc<Basis>>,
    base: Base,
    /// The time of the last decision of all entries: a clock may have jumped back.
    latest: i64,
    entries: u32,
}

/// What an entry is the difference to.
#[derive(Clone, Copy, Debug, Default)]
struct Base {
    sequence: u64,
    version: u64,
    time: i64,
    value: i64,
    generation: i64,
}

const HAS_VALUE: u8 = 1 << 2;
const HAS_RATIO: u8 = 1 << 3;
const HAS_RANGE: u8 = 1 << 4;
const HAS_OTHER_PODS: u8 = 1 << 5;
const HAS_FAILURE: u8 = 1 << 6;
const HAS_TIMES: u8 = 1 << 7;

// Beside `CarriedOut`.
const HAS_LIMITS: u8 = 1 << 5;
const IS_OBSERVED: u8 = 1 << 6;
const HAS_ACCOUNT: u8 = 1 << 7;

/// The ratio of a value and a target, in millionths.
pub fn ratio_millionths(value: i64, target: i64) -> i64 {
    (value as f64 / target as f64 * 1e6).round() as i64
}

impl Encoded {
    /// The number of entries.
    pub fn len(&self) -> usize {
        self.entries as usize
    }

    /// The resource version of the last entry.
    pub fn version(&self) -> u64 {
        self.base.version
    }

    /// The sequence of the last entry.
    pub fn sequence(&self) -> u64 {
        self.base.sequence
    }

    /// The time of the last decision of the last entry.
    pub fn last_time(&self) -> i64 {
        self.base.time
    }

    /// The latest decision of any entry.
    pub fn latest_time(&self) -> i64 {
        self.latest
    }

    /// The size of the bytes alone.
    pub fn data_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The approximate memory in bytes, without bases that `known` is one of.
    pub fn bytes(&self, known: Option<&Arc<Basis>>) -> usize {
        let is_known = |basis: &&Arc<Basis>| known.is_none_or(|known| !Arc::ptr_eq(known, basis));
        let bases: usize = self.bases.iter().filter(is_known).map(|basis| basis.bytes()).sum();
        size_of::<Self>() + self.bytes.capacity() + self.bases.capacity() * 8 + bases
    }

    /// The same without spare capacity.
    pub fn sealed(mut self) -> Self {
        self.bytes.shrink_to_fit();
        self.bases.shrink_to_fit();
        self
    }

    /// Appends an entry.
    pub fn push(&mut self, entry: &Entry) {
        let Base { sequence, version, time, mut value, generation } = self.base;
        let known = self.bases.iter().rposition(|basis| Arc::ptr_eq(basis, &entry.basis));
        let basis = known.unwrap_or_else(|| {
            self.bases.push(entry.basis.clone());
            self.bases.len() - 1
        });
        let out = &mut self.bytes;
        unsigned(out, basis as u64);
        unsigned(out, entry.sequence.wrapping_sub(sequence));
        signed(out, entry.version.wrapping_sub(version) as i64);
        unsigned(out, entry.version.wrapping_sub(entry.added));
        signed(out, entry.first - time);
        signed(out, entry.last - entry.first);
        unsigned(out, entry.count);
        let mut new_generation = generation;
        optional(out, entry.generation.map(|now| now - generation));
        if let Some(now) = entry.generation {
            new_generation = now;
        }
        let current = i64::from(entry.current.unwrap_or_default());
        optional(out, entry.current.map(i64::from));
        optional(out, entry.desired.map(|desired| i64::from(desired) - current));
        optional(out, entry.recommended.map(|replicas| i64::from(replicas) - current));
        out.push(entry.reason as u8 | u8::from(entry.message.is_some()) << 7);
        let account = entry.observed.as_ref().and_then(|observed| observed.account.as_deref());
        let observed = if entry.observed.is_some() { IS_OBSERVED } else { 0 };
        let has_account = if account.is_some() { HAS_ACCOUNT } else { 0 };
        let has_limits = if entry.limits == [None; 2] { 0 } else { HAS_LIMITS };
        out.push(entry.carried as u8 | observed | has_account | has_limits);
        if let Some(message) = &entry.message {
            text(out, message);
        }
        if let Some(observed) = &entry.observed {
            optional(out, observed.desired.map(|desired| i64::from(desired) - current));
            optional(out, observed.scaled.map(|scaled| entry.last - scaled));
        }
        if let Some((values, conditions)) = account {
            text(out, values);
            text(out, conditions);
        }
        unsigned(out, entry.constraints.len() as u64);
        for constraint in &entry.constraints {
            out.push(constraint.kind as u8);
            signed(out, i64::from(constraint.before) - current);
            signed(out, i64::from(constraint.after) - current);
            optional(out, constraint.until.map(|until| until - entry.last));
        }
        for limit in entry.limits.iter().filter(|_| has_limits != 0) {
            out.push(limit.map_or(0, |limit| limit.kind as u8 + 1));
            if let Some(limit) = limit {
                signed(out, i64::from(limit.replicas) - current);
                optional(out, limit.from.map(|from| from - entry.last));
            }
        }
        unsigned(out, entry.metrics.len() as u64);
        for (index, metric) in entry.metrics.iter().enumerate() {
            measured(out, metric, target(&entry.basis, index), (current, entry.last), &mut value);
        }
        self.entries += 1;
        self.latest = self.latest.max(entry.last);
        self.base = Base {
            sequence: entry.sequence,
            version: entry.version,
            time: entry.last,
            value,
            generation: new_generation,
        };
    }

    /// The entries.
    pub fn iter(&self) -> impl Iterator<Item = Entry> + '_ {
        let mut reader = Reader { bytes: &self.bytes };
        let mut base = Base::default();
        (0..self.entries)
            .map(move |_| reader.entry(&mut base, &self.bases).expect("it was written by push"))
    }
}

fn target(basis: &Basis, index: usize) -> Target {
    basis.metrics.get(index).map_or(Target::Invalid, |metric| metric.target)
}

/// The ratio that follows from a value, where it does.
fn implied_ratio(value: Option<i64>, target: Target) -> Option<i64> {
    let target = target.number();
    value.filter(|_| target != 0).map(|value| ratio_millionths(value, target))
}

fn measured(
    out: &mut Vec<u8>,
    metric: &Measured,
    target: Target,
    (current, time): (i64, i64),
    last_value: &mut i64,
) {
    let Measured { value, range, ratio, weighted, queried, age, pods, failure, .. } = metric;
    let has_range =
        value.is_some() && range.is_some_and(|range| Some(range) != value.map(|v| (v, v)));
    let has_ratio = *ratio != implied_ratio(*value, target);
    let has_times = queried.is_some() || age.is_some();
    let has_other_pods = pods[1..] != [0; 3] || weighted.is_some();
    let bit = |flag, is_set| if is_set { flag } else { 0 };
    out.push(
        metric.status as u8
            | bit(HAS_VALUE, value.is_some())
            | bit(HAS_RATIO, has_ratio)
            | bit(HAS_RANGE, has_range)
            | bit(HAS_OTHER_PODS, has_other_pods)
            | bit(HAS_FAILURE, failure.is_some())
            | bit(HAS_TIMES, has_times),
    );
    optional(out, metric.proposed.map(|proposed| i64::from(proposed).wrapping_sub(current)));
    if let Some(value) = *value {
        signed(out, value.wrapping_sub(*last_value));
        *last_value = value;
        if let Some((least, most)) = range.filter(|_| has_range) {
            unsigned(out, value.wrapping_sub(least) as u64);
            unsigned(out, most.wrapping_sub(value) as u64);
        }
    }
    if has_ratio {
        optional(out, *ratio);
    }
    if has_times {
        optional(out, queried.map(|queried| time - queried));
        // Where the time of a sample is not known, its age is that of the query.
        optional(out, age.map(|age| age - queried.map_or(0, |queried| time - queried)));
    }
    let pods = if has_other_pods { &pods[..] } else { &pods[..1] };
    pods.iter().for_each(|count| signed(out, *count));
    if has_other_pods {
        optional(out, *weighted);
    }
    if let Some(failure) = failure {
        text(out, &failure.0);
        text(out, &failure.1);
    }
}

fn unsigned(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn signed(out: &mut Vec<u8>, number: i64) {
    unsigned(out, (number << 1 ^ number >> 63) as u64);
}

/// A number that may be missing, which is 0; others are moved by one.
fn optional(out: &mut Vec<u8>, number: Option<i64>) {
    match number {
        None => out.push(0),
        Some(number) => {
            let folded = (number << 1 ^ number >> 63) as u64;
            unsigned(out, folded.saturating_add(1));
        }
    }
}

fn text(out: &mut Vec<u8>, text: &str) {
    unsigned(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

struct Reader<'a> {
    bytes: &'a [u8],
}

fn unfold(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

impl Reader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(*first)
    }

    fn unsigned(&mut self) -> Option<u64> {
        let (mut number, mut shift) = (0_u64, 0);
        loop {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
            shift += 7;
        }
    }

    fn signed(&mut self) -> Option<i64> {
        self.unsigned().map(unfold)
    }

    fn optional(&mut self) -> Option<Option<i64>> {
        Some(self.unsigned()?.checked_sub(1).map(unfold))
    }

    fn replicas(&mut self, current: i64) -> Option<Option<i32>> {
        Some(self.optional()?.map(|number| (number + current) as i32))
    }

    fn text(&mut self) -> Option<String> {
        let length = self.unsigned()? as usize;
        let (text, rest) = self.bytes.split_at_checked(length)?;
        self.bytes = rest;
        String::from_utf8(text.to_vec()).ok()
    }

    fn entry(&mut self, base: &mut Base, bases: &[Arc<Basis>]) -> Option<Entry> {
        let basis = bases.get(self.unsigned()? as usize)?.clone();
        let sequence = base.sequence.wrapping_add(self.unsigned()?);
        let version = base.version.wrapping_add(self.signed()? as u64);
        let added = version.wrapping_sub(self.unsigned()?);
        let first = base.time + self.signed()?;
        let last = first + self.signed()?;
        let count = self.unsigned()?;
        let generation = self.optional()?.map(|change| change + base.generation);
        let current = self.optional()?;
        let present = current.unwrap_or_default();
        let desired = self.replicas(present)?;
        let recommended = self.replicas(present)?;
        let reason = self.byte()?;
        let carried = self.byte()?;
        let is = |flag| carried & flag != 0;
        let (is_observed, has_account, has_limits) =
            (is(IS_OBSERVED), is(HAS_ACCOUNT), is(HAS_LIMITS));
        let carried = carried & !(IS_OBSERVED | HAS_ACCOUNT | HAS_LIMITS);
        let carried = *CarriedOut::ALL.get(usize::from(carried))?;
        let message = match reason >> 7 {
            0 => None,
            _ => Some(self.text()?.into()),
        };
        let reason = *Reason::ALL.get(usize::from(reason & 0x7f))?;
        let observed = match is_observed {
            false => None,
            true => {
                let desired = self.replicas(present)?;
                let scaled = self.optional()?.map(|before| last - before);
                let account = match has_account {
                    true => Some(Box::new((self.text()?, self.text()?))),
                    false => None,
                };
                Some(Observed { desired, scaled, account })
            }
        };
        let constraint = |reader: &mut Self| {
            Some(Constraint {
                kind: *ConstraintKind::ALL.get(usize::from(reader.byte()?))?,
                before: (reader.signed()? + present) as i32,
                after: (reader.signed()? + present) as i32,
                until: reader.optional()?.map(|until| until + last),
            })
        };
        let constraints = (0..self.unsigned()?).map(|_| constraint(self)).collect::<Option<_>>()?;
        let mut limits = [None; 2];
        for limit in limits.iter_mut().filter(|_| has_limits) {
            let Some(kind) = self.byte()?.checked_sub(1) else { continue };
            *limit = Some(Limit {
                kind: *ConstraintKind::ALL.get(usize::from(kind))?,
                replicas: (self.signed()? + present) as i32,
                from: self.optional()?.map(|from| from + last),
            });
        }
        let mut value = base.value;
        let metrics = (0..self.unsigned()? as usize)
            .map(|index| self.measured(target(&basis, index), (present, last), &mut value))
            .collect::<Option<_>>()?;
        let kept = generation.unwrap_or(base.generation);
        *base = Base { sequence, version, time: last, value, generation: kept };
        let current = current.map(|current| current as i32);
        Some(Entry {
            sequence,
            added,
            version,
            first,
            last,
            count,
            generation,
            current,
            recommended,
            desired,
            reason,
            constraints,
            limits,
            carried,
            metrics,
            message,
            observed,
            basis,
        })
    }

    fn measured(
        &mut self,
        target: Target,
        (current, time): (i64, i64),
        last_value: &mut i64,
    ) -> Option<Measured> {
        let flags = self.byte()?;
        let has = |flag| flags & flag != 0;
        let mut metric = Measured::of(*MetricStatus::ALL.get(usize::from(flags & 3))?);
        metric.proposed = self.replicas(current)?;
        if has(HAS_VALUE) {
            let value = last_value.wrapping_add(self.signed()?);
            *last_value = value;
            let (mut least, mut most) = (value, value);
            if has(HAS_RANGE) {
                least = value.wrapping_sub(self.unsigned()? as i64);
                most = value.wrapping_add(self.unsigned()? as i64);
            }
            (metric.value, metric.range) = (Some(value), Some((least, most)));
        }
        metric.ratio = match has(HAS_RATIO) {
            true => self.optional()?,
            false => implied_ratio(metric.value, target),
        };
        if has(HAS_TIMES) {
            metric.queried = self.optional()?.map(|before| time - before);
            let of_query = metric.queried.map_or(0, |queried| time - queried);
            metric.age = self.optional()?.map(|age| age + of_query);
        }
        let counted = if has(HAS_OTHER_PODS) { 4 } else { 1 };
        for count in &mut metric.pods[..counted] {
            *count = self.signed()?;
        }
        if has(HAS_OTHER_PODS) {
            metric.weighted = self.optional()?;
        }
        if has(HAS_FAILURE) {
            metric.failure = Some(Box::new((self.text()?, self.text()?)));
        }
        Some(metric)
    }
}
