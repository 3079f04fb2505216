//! Lists, in pages of one version.

use super::failure::Failure;
use super::request::Query;
use super::resource::Resource;
use super::selection::{Form, Selection};
use super::state::{State, Stored};
use serde_json::json;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

/// The token of the next page: the version of the list, or 0 for any, and the last key of the page.
fn token(version: u64, key: &str) -> String {
    format!("{version}.{key}")
}

impl State {
    /// A list, or a page of one, as JSON.
    pub fn list(
        &self,
        resource: &Resource,
        selection: &Selection,
        query: &Query<'_>,
        form: Form,
    ) -> Result<Vec<u8>, Failure> {
        let table = self.table(resource);
        let mut after = None;
        let mut version = self.version;
        let mut then = None;
        let limit = match (query.resource_version, query.version_match) {
            ("", "") => query.limit,
            // From kube-apiserver's cache, which knows no pages.
            ("0", "" | "NotOlderThan") => None,
            other => return Err(Failure::unmodelled(format_args!("list at version {other:?}"))),
        };
        if !query.continue_token.is_empty() {
            let parts = query.continue_token.split_once('.');
            let parts = parts.and_then(|(version, key)| Some((version.parse::<u64>().ok()?, key)));
            let Some((asked, key)) = parts else {
                return Err(Failure::bad_request("continue key is not valid"));
            };
            if asked != 0 {
                if asked < table.oldest {
                    return Err(Failure::continue_expired(token(0, key)));
                }
                version = asked;
            }
            then = (asked != 0).then(|| self.objects_at(resource, asked));
            after = Some(key);
        }
        let objects = then.as_ref().unwrap_or(&table.objects);
        let page = page(objects, selection, after, limit);
        let mut metadata = json!({"resourceVersion": version.to_string()});
        if resource.custom && form == Form::Whole {
            metadata["continue"] = "".into();
        }
        if let Some(last) = page.last {
            metadata["continue"] = token(version, last).into();
            if selection.is_plain() {
                metadata["remainingItemCount"] = page.remaining.into();
            }
        }
        Ok(render(resource, &metadata, &page.items, form))
    }
}

struct Page<'a> {
    items: Vec<&'a Arc<Stored>>,
    /// The last key, if there is more.
    last: Option<&'a str>,
    /// The number of objects after it.
    remaining: usize,
}

fn page<'a>(
    objects: &'a BTreeMap<Arc<str>, Arc<Stored>>,
    selection: &Selection,
    after: Option<&str>,
    limit: Option<usize>,
) -> Page<'a> {
    let mut page = Page { items: Vec::new(), last: None, remaining: 0 };
    if let (Some(only), None) = (selection.only(), after) {
        let found = objects.get(only.as_str());
        page.items.extend(found.filter(|found| selection.selects(&only, &found.value)));
        return page;
    }
    let begin = match after {
        Some(after) => Bound::Excluded(after),
        None => Bound::Included(selection.prefix()),
    };
    let range = objects.range::<str, _>((begin, Bound::Unbounded));
    let mut range = range.take_while(|(key, _)| key.starts_with(selection.prefix()));
    while let Some((key, stored)) = range.next() {
        if !selection.selects(key, &stored.value) {
            continue;
        }
        page.items.push(stored);
        if limit.is_some_and(|limit| page.items.len() >= limit) {
            page.remaining = range.count();
            page.last = (page.remaining > 0).then_some(key);
            break;
        }
    }
    page
}

fn render(
    resource: &Resource,
    metadata: &serde_json::Value,
    items: &[&Arc<Stored>],
    form: Form,
) -> Vec<u8> {
    let (kind, version) = match form {
        Form::Whole => (format!("{}List", resource.kind), resource.api_version()),
        Form::Metadata => ("PartialObjectMetadataList".to_owned(), "meta.k8s.io/v1".to_owned()),
    };
    let head = format!(
        "{{\"kind\":\"{kind}\",\"apiVersion\":\"{version}\",\"metadata\":{metadata},\"items\":["
    );
    let mut text = head.into_bytes();
    if items.is_empty() && form == Form::Metadata {
        // As kube-apiserver writes it.
        text.truncate(text.len() - 1);
        text.extend_from_slice(b"null}");
        return text;
    }
    for (number, stored) in items.iter().enumerate() {
        if number > 0 {
            text.push(b',');
        }
        form.append_item(resource, stored, &mut text);
    }
    text.extend_from_slice(b"]}");
    text
}
