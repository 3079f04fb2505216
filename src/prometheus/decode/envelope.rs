//! The common parts of the responses of Prometheus's API: status, warnings, labels.

use super::super::error::{Error, shortened};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::fmt;

/// A label's name and value.
pub type Label<'a> = (Cow<'a, str>, Cow<'a, str>);

/// The `status` of a successful response. Proxies may send failures with HTTP status 200.
#[derive(Default)]
pub(super) struct Success;

impl<'de> Deserialize<'de> for Success {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Text(status) = Text::deserialize(deserializer)?;
        let other = || D::Error::custom(format!("its status is {:?}", shortened(&status, 100)));
        (status == "success").then_some(Self).ok_or_else(other)
    }
}

/// A string, borrowed if the JSON has no escapes in it.
#[derive(Deserialize)]
pub(super) struct Text<'a>(#[serde(borrow)] pub(super) Cow<'a, str>);

/// The warning of Prometheus if it left series out because of `limit`.
const TRUNCATED: &str = "results truncated due to limit";
/// The prefixes of annotations, which are about the text of a query and the types of its
/// samples, not about missing samples. Source: `PromQLInfo` and
/// `PromQLWarning` of Prometheus's `util/annotations`. Infos have a list of
/// their own, except in old versions and through some proxies.
const ANNOTATIONS: [&str; 2] = ["PromQL warning", "PromQL info"];

/// The warnings of a response. They are read one by one, as there may be millions.
#[derive(Default)]
pub(super) struct Warnings {
    /// Whether series were left out because of `limit`.
    truncated: bool,
    /// The first warning that is not an annotation.
    pub(super) partial: Option<String>,
}

impl<'de> Deserialize<'de> for Warnings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Each;
        impl<'de> Visitor<'de> for Each {
            type Value = Warnings;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("warnings")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Warnings, A::Error> {
                let mut warnings = Warnings::default();
                while let Some(Text(warning)) = seq.next_element()? {
                    warnings.truncated |= warning == TRUNCATED;
                    let harmless = ANNOTATIONS.iter().any(|word| warning.starts_with(word));
                    if !harmless && warnings.partial.is_none() {
                        warnings.partial = Some(shortened(&warning, 300));
                    }
                }
                Ok(warnings)
            }
        }
        deserializer.deserialize_seq(Each)
    }
}

/// Checks that a response is complete. Any warning but an annotation says that a source of
/// series failed, such as a store of Thanos or a remote read, or that there are more warnings than are
/// shown.
pub(super) fn check_complete(
    warnings: Option<Warnings>,
    is_partial: Option<bool>,
) -> Result<(), Error> {
    let warnings = warnings.unwrap_or_default();
    if warnings.truncated {
        let error = "it has more series than the limit of a user's own query";
        return Err(Error::InvalidResponse(error.to_owned()));
    }
    match warnings.partial {
        Some(warning) => Err(Error::Partial(warning)),
        None if is_partial == Some(true) => Err(Error::Partial("isPartial is true".to_owned())),
        None => Ok(()),
    }
}

/// The most labels of a series. Prometheus has tens.
pub(super) const MAX_LABELS: usize = 1_000;
/// Reads the labels of a series into a list that is reused for all series.
pub(super) struct LabelsSeed<'r, 'de>(pub(super) &'r mut Vec<Label<'de>>);

impl<'de> DeserializeSeed<'de> for LabelsSeed<'_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for LabelsSeed<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the labels of a series")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some((Text(name), Text(value))) = map.next_entry()? {
            if self.0.len() == MAX_LABELS {
                return Err(A::Error::custom(format!(
                    "a series has more than {MAX_LABELS} labels"
                )));
            }
            self.0.push((name, value));
        }
        Ok(())
    }
}
