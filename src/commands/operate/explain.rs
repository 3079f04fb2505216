//! `plimsoll explain`: why an autoscaler has the replicas that it has.

use super::super::shown::Shown;
use super::super::story::{
    Account, Change, Changes, Subject, decided_natively, no_decision, paint, standing, story,
};
use super::decisions::{Unreadable, Wanted, known_since, read};
use super::error::OperateError;
use super::named::{Known, Named, each};
use super::terminal::screen;
use crate::config::{ExplainFlags, Moment, OutputFormat};
use crate::ledger::api::Decision;
use crate::ledger::{parse_time, time};
use crate::time::UnixMillis;
use serde_json::{Value, json};
use std::time::Duration;

/// How far back the decision and the last change are looked for, in ms: the nearest first.
const WINDOWS: [i64; 2] = [3_600_000, 86_400_000];

/// The longest of them.
const DAY: Duration = Duration::from_secs(86_400);

/// The most decisions of a window that are read, in thousands: more than an hour has.
const THOUSANDS: usize = 40;

/// How far ahead a time may be that was asked for, as clocks differ, in ms.
const AHEAD: i64 = 60_000;

/// A decision, and what led to it.
struct Found {
    decision: Decision,
    change: Option<Change>,
    /// The begin of the first decision that was looked at.
    since: UnixMillis,
}

/// How long after the last decision another one would have been made, in ms.
const OVER: i64 = 300_000;

impl Found {
    /// Whether no further decision followed.
    fn is_over(&self, now: UnixMillis) -> bool {
        parse_time(&self.decision.last_time).is_some_and(|last| now - last > OVER)
    }
}

/// Tells of a decision for an autoscaler, or of its status where decisions can't be read.
///
/// # Errors
/// As [`OperateError`] says.
pub async fn explain(flags: &ExplainFlags) -> Result<String, OperateError> {
    each(&flags.object, flags.output, async |named| explain_of(named, flags).await).await
}

async fn explain_of(named: &Named, flags: &ExplainFlags) -> Result<Shown, OperateError> {
    let known = named.known().await?;
    let now = named.now();
    let at = time_of(flags.at, now, named.whose_clock())?;
    // The leader's clock may be ahead of this one: of the present all that there is counts.
    let until = if at == now { UnixMillis::MAX } else { at };
    let is_native = known.as_ref().is_ok_and(|known| known.is_native);
    let period = known.as_ref().map_or(0, |known| known.subject.period);
    let found = match find(named, (at, until), period).await {
        // kube-controller-manager decides since then.
        Ok(Some(found)) if is_native && at == now && found.is_over(now) => {
            return without(named, flags, known, Ok(()), (at, now)).await;
        }
        Ok(Some(found)) => found,
        unfound => return without(named, flags, known, unfound.map(|_| ()), (at, now)).await,
    };
    let mut subject = match known {
        Ok(known) => known.subject,
        // It may be gone, or only its decisions may be read.
        Err(error) => Subject { notes: vec![error.to_string()], ..named.unknown() },
    };
    if at != now {
        // What is said of it now is not what was.
        (subject.faults, subject.notes) = (Vec::new(), Vec::new());
    }
    let Found { decision, change, since } = found;
    let account = Account { subject, decision, change, since, at, now };
    let text = story(&account);
    match flags.output {
        OutputFormat::Text => Ok(Shown::Text(emphasized(&text))),
        OutputFormat::Json | OutputFormat::Yaml => Ok(Shown::Data(as_json(&account, &text))),
    }
}

/// The time that is told of: the present by this clock, if none was asked for.
fn time_of(at: Option<Moment>, now: UnixMillis, clock: &str) -> Result<UnixMillis, OperateError> {
    match at.map_or(now, |at| at.before(now)) {
        at if at.saturating_sub(now) > AHEAD => Err(OperateError::Refused(format!(
            "--at: {} is in the future: it is {} by {clock}",
            time(at),
            time(now)
        ))),
        at => Ok(at.min(now)),
    }
}

/// The text with its first line in bold, where colors are shown.
pub fn emphasized(text: &str) -> String {
    let (head, rest) = text.split_once('\n').unwrap_or((text, ""));
    format!("{}\n{rest}", paint(head, "1", screen().color))
}

fn as_json(account: &Account, text: &str) -> Value {
    let change = account.change.as_ref().map(|change| {
        json!({
            "time": time(change.at),
            "from": change.from,
            "to": change.to,
            "by": change.by.as_str(),
            "why": change.why(),
            "decision": change.decision,
        })
    });
    let Subject { kind, namespace, name, target, .. } = &account.subject;
    json!({
        "kind": kind,
        "namespace": namespace,
        "name": name,
        "target": target,
        "at": time(account.at),
        "decision": account.decision,
        "lastChange": change,
        "story": text.lines().collect::<Vec<_>>(),
    })
}

/// The decision at a time, and the last change until then, of the decisions until a time. One is made each `period` ms.
async fn find(
    named: &Named,
    (at, until): (UnixMillis, UnixMillis),
    period: i64,
) -> Result<Option<Found>, Unreadable> {
    let labels = named.labels();
    let mut found = None;
    for window in WINDOWS {
        let (mut changes, mut change, mut latest, mut since) =
            (Changes::new(period), None, None, None);
        let namespace = Some(&*named.namespace);
        let wanted =
            Wanted { namespace, labels: &labels, since: Some(at - window), thousands: THOUSANDS };
        let is_whole = read(&named.cluster.client, wanted, |decision| {
            let first = parse_time(&decision.first_time).unwrap_or_default();
            if first > until {
                // They are in the order in which they were made: a leader's clock may have been ahead for a while.
                return first.saturating_sub(until) < WINDOWS[1];
            }
            since.get_or_insert(first);
            change = changes.next(&decision).filter(|one| one.at <= until).last().or(change.take());
            latest = Some(decision);
            true
        })
        .await?;
        change = changes.finish().filter(|one| one.at <= until).or(change);
        // The newest are missing then: an hour's are known.
        if !is_whole && found.is_some() {
            break;
        }
        found = latest.zip(since).map(|(decision, since)| Found { decision, change, since });
        if found.as_ref().is_some_and(|found| found.change.is_some()) {
            break;
        }
    }
    Ok(found)
}

/// What is told where there is no decision to tell of.
async fn without(
    named: &Named,
    flags: &ExplainFlags,
    known: Result<Known, OperateError>,
    unfound: Result<(), Unreadable>,
    (at, now): (UnixMillis, UnixMillis),
) -> Result<Shown, OperateError> {
    let known = known?;
    let (first, began) = match unfound {
        Ok(()) => known_since(&named.cluster.client, &named.namespace, &named.labels()).await?,
        Err(_) => (None, None),
    };
    let is_past = matches!(flags.at, Some(Moment::At(_) | Moment::Ago(_)));
    let text = match unfound {
        Err(error) if is_past => return Err(error.into()),
        Ok(()) if is_past => no_decision(&known.subject, (at, DAY), first, began),
        Err(error) => standing(&known.subject, &known.status, &error.to_string(), now),
        Ok(()) if known.is_native => {
            let why = decided_natively("explain", &named.name);
            standing(&known.subject, &known.status, &why, now)
        }
        Ok(()) => {
            let why = "there is no decision in the last 24h";
            standing(&known.subject, &known.status, why, now)
        }
    };
    match flags.output {
        OutputFormat::Text => Ok(Shown::Text(emphasized(&text))),
        OutputFormat::Json | OutputFormat::Yaml => Ok(Shown::Data(json!({
            "kind": known.subject.kind,
            "namespace": known.subject.namespace,
            "name": known.subject.name,
            "at": time(at),
            "decision": null,
            "status": known.json,
            "story": text.lines().collect::<Vec<_>>(),
        }))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{Basis, Entry, decision};
    use crate::watch::{AutoscalerRef, ObjectKey};
    use std::sync::Arc;

    const MINUTE: i64 = 60_000;

    fn decided(minute: i64, sequence: u64) -> Value {
        let basis = Basis::fake([]);
        let mut entry = Entry::at(minute * MINUTE, Arc::new(basis));
        entry.sequence = sequence;
        let key = ObjectKey { namespace: "shop".to_owned(), name: "web".to_owned() };
        serde_json::to_value(decision(&AutoscalerRef::autoscaler(key), &entry, 0)).unwrap()
    }

    /// Two minutes of the leader's clock were an hour ahead.
    #[tokio::test]
    async fn a_decision_that_was_dated_ahead_hides_none_that_came_later() {
        let minutes = [1_000, 1_061, 1_062, 1_003, 1_004, 1_020];
        let items: Vec<_> = minutes.into_iter().zip(1..).map(|(at, n)| decided(at, n)).collect();
        let list = json!({"kind": "DecisionList", "metadata": {}, "items": items});
        let (client, _) = crate::fake::api(move |_| (200, list.clone()));
        let named = Named::fake(client);
        for (at, expected) in [(1_002, 1_000), (1_010, 1_004), (1_030, 1_020)] {
            let times = (at * MINUTE, at * MINUTE);
            let found = find(&named, times, 0).await.unwrap().unwrap();
            assert_eq!(found.decision.first_time, time(expected * MINUTE), "{at}");
        }
    }

    #[test]
    fn a_time_to_come_is_refused() {
        let now = 1_000 * MINUTE;
        let time_of = |at| time_of(at, now, "the cluster's clock");
        assert_eq!(time_of(None).unwrap(), now);
        assert_eq!(time_of(Some(Moment::Ago(MINUTE))).unwrap(), now - MINUTE);
        // A clock may be a little ahead.
        assert_eq!(time_of(Some(Moment::At(now + MINUTE))).unwrap(), now);
        let error = time_of(Some(Moment::At(now + 2 * MINUTE))).unwrap_err().to_string();
        let expected = "1970-01-01T16:42:00.000Z is in the future: it is 1970-01-01T16:40:00.000Z by the cluster's clock";
        assert!(error.contains(expected), "{error}");
    }
}
