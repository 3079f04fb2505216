//! `plimsoll history`: the changes of an autoscaler's replicas.

use super::super::story::{Listing, no_decision};
use super::decisions::{Wanted, read};
use super::error::OperateError;
use super::explain::{emphasized, printed};
use super::named::Named;
use super::terminal::screen;
use crate::config::{HistoryFlags, OutputFormat};

/// The most decisions that are read, in thousands.
const THOUSANDS: usize = 100;

/// Lists the changes of a span of time, with a chart.
///
/// # Errors
/// As [`OperateError`] says.
pub async fn history(flags: &HistoryFlags) -> Result<String, OperateError> {
    let named = Named::of(&flags.object).await?;
    let known = named.read().await;
    let now = named.now();
    let from = now.saturating_sub(i64::try_from(flags.since.as_millis()).unwrap_or(i64::MAX));
    let (labels, mut listing) = (named.labels(), Listing::default());
    let namespace = Some(&*named.namespace);
    let since = Some(from.max(0));
    let wanted = Wanted { namespace, labels: &labels, since, thousands: THOUSANDS };
    let is_whole = read(&named.client, wanted, |decision| {
        listing.push(&decision, (from, now));
        true
    })
    .await?;
    if listing.is_empty() {
        let known = known?;
        return Ok(emphasized(&no_decision(&known.subject, now, None, None)));
    }
    let subject = known.map_or_else(|_| named.unknown(), |known| known.subject);
    match flags.output {
        OutputFormat::Text => {
            let text = listing.text(&subject, (from, now), screen());
            let cut = format!(
                "The newest are missing, after {THOUSANDS},000 decisions: a shorter --since has them\n"
            );
            Ok(if is_whole { text } else { text + &cut })
        }
        OutputFormat::Json => Ok(printed(&listing.json(&subject, (from, now)))),
    }
}
