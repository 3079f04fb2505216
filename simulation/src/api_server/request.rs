//! What a request asks for: its path and its query.

use super::failure::Failure;
use super::resource::{self, NAMESPACES, Resource};
use super::writes::Part;
use std::borrow::Cow;

/// The objects of a path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path<'a> {
    pub resource: &'static Resource,
    /// Empty for all namespaces, and for what has none.
    pub namespace: &'a str,
    /// Empty for a collection.
    pub name: &'a str,
    pub part: Part,
}

impl<'a> Path<'a> {
    /// The objects of a path.
    ///
    /// # Errors
    /// If there is no such resource.
    pub fn parse(path: &'a str) -> Result<Self, Failure> {
        let unknown = || Failure::unmodelled(format_args!("path {path:?}"));
        let mut segments = path.split('/').skip(1);
        let mut next = || segments.next().unwrap_or_default();
        let (group, version) = match next() {
            "api" => ("", next()),
            "apis" => (next(), next()),
            _ => return Err(unknown()),
        };
        let mut rest = [next(), next(), next(), next(), next()];
        if !next().is_empty() {
            return Err(unknown());
        }
        let mut namespace = "";
        if rest[0] == "namespaces" && !matches!(rest[2], "" | "status" | "finalize") {
            namespace = rest[1];
            rest = [rest[2], rest[3], rest[4], "", ""];
        }
        let [plural, name, subresource, extra, _] = rest;
        let resource = resource::find(group, version, plural).ok_or_else(unknown)?;
        let part = match subresource {
            "" => Part::Main,
            "status" if resource.status => Part::Status,
            "scale" if resource.scale.is_some() => Part::Scale,
            _ => return Err(unknown()),
        };
        let lacks_namespace = resource.namespaced && namespace.is_empty() && !name.is_empty();
        let is_nested = std::ptr::eq(resource, &NAMESPACES) && !namespace.is_empty();
        if lacks_namespace || is_nested || !extra.is_empty() {
            return Err(unknown());
        }
        Ok(Self { resource, namespace, name, part })
    }
}

/// The parameters of a query. Those that make no difference here are left out.
#[derive(Clone, Debug, Default)]
pub(super) struct Query<'a> {
    pub watch: bool,
    pub bookmarks: bool,
    pub timeout_seconds: Option<u64>,
    pub limit: Option<usize>,
    pub continue_token: Cow<'a, str>,
    pub resource_version: &'a str,
    pub version_match: &'a str,
    pub labels: Cow<'a, str>,
    pub fields: Cow<'a, str>,
    pub field_manager: Cow<'a, str>,
    pub force: bool,
    pub grace_period_seconds: Option<i64>,
}

impl<'a> Query<'a> {
    /// Parses a query.
    ///
    /// # Errors
    /// If there is a parameter that is not modelled.
    pub fn parse(text: &'a str) -> Result<Self, Failure> {
        let mut query = Self::default();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let unknown = || Failure::unmodelled(format_args!("parameter {pair:?}"));
            match name {
                "watch" => query.watch = is_true(value),
                "allowWatchBookmarks" => query.bookmarks = is_true(value),
                "timeoutSeconds" => {
                    query.timeout_seconds = Some(value.parse().map_err(|_| unknown())?);
                }
                "limit" => {
                    let limit = value.parse::<usize>().map_err(|_| unknown())?;
                    query.limit = (limit > 0).then_some(limit);
                }
                "continue" => query.continue_token = decoded(value),
                "resourceVersion" => query.resource_version = value,
                "resourceVersionMatch" => query.version_match = value,
                "labelSelector" => query.labels = decoded(value),
                "fieldSelector" => query.fields = decoded(value),
                "fieldManager" => query.field_manager = decoded(value),
                "force" => query.force = is_true(value),
                "gracePeriodSeconds" => {
                    query.grace_period_seconds = Some(value.parse().map_err(|_| unknown())?);
                }
                // The server's time limit: whatever it does here, it does at once.
                "timeout" | "pretty" => {}
                _ => return Err(unknown()),
            }
        }
        Ok(query)
    }
}

fn is_true(value: &str) -> bool {
    matches!(value, "true" | "1")
}

/// A text without percent-encoding.
fn decoded(text: &str) -> Cow<'_, str> {
    if !text.contains(['%', '+']) {
        return text.into();
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, others @ ..] = rest {
        rest = others;
        let hex =
            |digit: u8| char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        bytes.push(match (*first, others) {
            (b'+', _) => b' ',
            (b'%', [high, low, after @ ..]) => match (hex(*high), hex(*low)) {
                (Some(high), Some(low)) => {
                    rest = after;
                    high * 16 + low
                }
                _ => b'%',
            },
            (other, _) => other,
        });
    }
    String::from_utf8_lossy(&bytes).into_owned().into()
}
