//! `plimsoll history`: the changes of an autoscaler's replicas.

use super::super::shown::Shown;
use super::super::story::{Listing, decided_natively, no_decision};
use super::decisions::{Wanted, known_since, read};
use super::error::OperateError;
use super::explain::emphasized;
use super::named::{Named, each};
use super::terminal::screen;
use crate::config::{HistoryFlags, OutputFormat};

/// The most decisions that are read, in thousands.
const THOUSANDS: usize = 100;

/// Lists the changes of a span of time, with a chart.
///
/// # Errors
/// As [`OperateError`] says.
pub async fn history(flags: &HistoryFlags) -> Result<String, OperateError> {
    each(&flags.object, flags.output, async |named| history_of(named, flags).await).await
}

async fn history_of(named: &Named, flags: &HistoryFlags) -> Result<Shown, OperateError> {
    let known = named.known().await?;
    let now = named.now();
    let from = now.saturating_sub(i64::try_from(flags.since.as_millis()).unwrap_or(i64::MAX));
    let period = known.as_ref().map_or(0, |known| known.subject.period);
    let (labels, mut listing) = (named.labels(), Listing::new(period));
    let namespace = Some(&*named.namespace);
    let since = Some(from.max(0));
    let wanted = Wanted { namespace, labels: &labels, since, thousands: THOUSANDS };
    let is_whole = read(&named.cluster.client, wanted, |decision| {
        listing.push(&decision, (from, now));
        true
    })
    .await?;
    listing.finish((from, now));
    let (subject, is_native) = match known {
        Ok(known) => (known.subject, known.is_native),
        Err(error) if listing.is_empty() => return Err(error),
        Err(_) => (named.unknown(), false),
    };
    match flags.output {
        OutputFormat::Text if listing.is_empty() => {
            let (first, began) =
                known_since(&named.cluster.client, &named.namespace, &labels).await?;
            let mut text = no_decision(&subject, (now, flags.since), first, began);
            if is_native {
                text += &format!("Note      {}\n", decided_natively("history", &named.name));
            }
            Ok(Shown::Text(emphasized(&text)))
        }
        OutputFormat::Text => {
            let text = listing.text(&subject, (from, now), screen());
            let cut = format!(
                "The newest are missing, after {THOUSANDS},000 decisions: a shorter --since has them\n"
            );
            Ok(Shown::Text(if is_whole { text } else { text + &cut }))
        }
        OutputFormat::Json | OutputFormat::Yaml => {
            let mut json = listing.json(&subject, (from, now));
            json["complete"] = is_whole.into();
            Ok(Shown::Data(json))
        }
    }
}
