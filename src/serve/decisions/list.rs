//! A list of decisions. It is written while it is read from the ledger, a page at a time, so that it takes the memory
//! of a page however long it is.

use super::super::error::ApiError;
use super::super::negotiate::{self, Encoding};
use super::options::{rendered, value};
use super::selection::Selection;
use super::table;
use crate::ledger::api::{GROUP, VERSION};
use crate::ledger::{Ledger, Listed, Position, Scope, Versions};
use crate::watch::{AutoscalerKind, ObjectKey};
use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderValue, Response, header};
use axum::response::IntoResponse;
use bytes::Bytes;
use futures::stream;
use serde::Serialize;
use serde_json::{Value, json};
use std::io::{Error, Write as _};
use std::sync::Arc;

/// The size from which on a part of a list with a limit is full, in bytes: a client holds all of a part, and a
/// decision may have thousands of metrics.
const MAX_PART_BYTES: usize = 4 << 20;

/// How a list is written.
#[derive(Clone, Copy)]
pub struct Form {
    syntax: Syntax,
    /// The object of a row, if it is a table.
    row: Option<fn(&Value) -> Value>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Syntax {
    Json,
    /// Indented.
    Pretty,
    Yaml,
}

impl Form {
    /// The form that a client accepts.
    ///
    /// # Errors
    /// 406 if it accepts none, 400 if `includeObject` is invalid.
    pub fn accepted(parts: &Parts, include_object: &str) -> Result<Self, ApiError> {
        let encoding = negotiate::encoding(&parts.headers, true);
        let row = match encoding.ok_or_else(ApiError::not_acceptable)? {
            Encoding::Table => Some(table::object(include_object)?),
            Encoding::Json | Encoding::Yaml | Encoding::Protobuf => None,
        };
        let syntax = match encoding {
            Some(Encoding::Yaml) => Syntax::Yaml,
            _ if negotiate::is_pretty(&parts.uri, &parts.headers) => Syntax::Pretty,
            _ => Syntax::Json,
        };
        Ok(Self { syntax, row })
    }

    fn content_type(self) -> HeaderValue {
        HeaderValue::from_static(match self.syntax {
            Syntax::Yaml => "application/yaml",
            Syntax::Json | Syntax::Pretty => "application/json",
        })
    }

    /// What comes before the items.
    fn head(self) -> String {
        let version = format!("{GROUP}/{VERSION}");
        let (fields, items) = match self.row {
            None => (json!({"apiVersion": version, "kind": "DecisionList"}), "items"),
            Some(_) => {
                let (version, columns) = ("meta.k8s.io/v1", table::columns());
                let table =
                    json!({"apiVersion": version, "kind": "Table", "columnDefinitions": columns});
                (table, "rows")
            }
        };
        match self.syntax {
            Syntax::Yaml => format!("{}{items}:", self.text(&fields, "")),
            _ => {
                let fields = self.text(&fields, "");
                let fields = fields.trim_end_matches(['}', '\n']);
                format!("{fields},{}\"{items}\":[", if self.is_pretty() { "\n  " } else { "" })
            }
        }
    }

    fn is_pretty(self) -> bool {
        self.syntax == Syntax::Pretty
    }

    /// A value, whose lines after the first are indented.
    fn text(self, value: &impl Serialize, indent: &str) -> String {
        let text = match self.syntax {
            Syntax::Json => serde_json::to_string(value).ok(),
            Syntax::Pretty => serde_json::to_string_pretty(value).ok(),
            Syntax::Yaml => serde_saphyr::to_string(value).ok(),
        };
        let text = text.expect("a decision can be written");
        match indent {
            "" => text,
            _ => text.trim_end().replace('\n', &format!("\n{indent}")),
        }
    }

    /// Writes an item.
    fn item(self, out: &mut Vec<u8>, is_first: bool, item: &impl Serialize) {
        let (before, indent) = match self.syntax {
            Syntax::Json => ("", ""),
            Syntax::Pretty => ("\n    ", "    "),
            Syntax::Yaml => ("\n- ", "  "),
        };
        let comma = if is_first || self.syntax == Syntax::Yaml { "" } else { "," };
        let text = self.text(item, indent);
        write!(out, "{comma}{before}{text}").expect("memory takes all");
    }

    /// What comes after the items.
    fn tail(self, is_empty: bool, metadata: &Value) -> String {
        let pretty = if self.is_pretty() { "\n  " } else { "" };
        match self.syntax {
            Syntax::Yaml => {
                let none = if is_empty { " []" } else { "" };
                format!("{none}\n{}", self.text(&json!({"metadata": metadata}), ""))
            }
            _ => {
                let metadata = self.text(metadata, "  ");
                let end = if self.is_pretty() { "\n}\n" } else { "}\n" };
                format!(
                    "{}],{pretty}\"metadata\":{metadata}{end}",
                    if is_empty { "" } else { pretty }
                )
            }
        }
    }
}

/// Where a list continues, and the resource version of its first page: a watch from it misses nothing.
pub struct Place {
    pub version: u64,
    pub after: Option<Position>,
}

impl Place {
    /// The token of a list that continues here.
    fn token(&self, began: u64) -> String {
        let Some(Position { key, kind, sequence }) = &self.after else { return String::new() };
        let kind = match kind {
            AutoscalerKind::Autoscaler => 'a',
            AutoscalerKind::Hpa => 'h',
        };
        format!("{began}/{}/{key}/{kind}/{sequence}", self.version)
    }

    /// The resource version with which the leadership of a token began, and its place.
    ///
    /// # Errors
    /// 400 if it is not one.
    pub fn of(token: &str) -> Result<(u64, Self), ApiError> {
        let parts: Vec<&str> = token.split('/').collect();
        let parsed = match parts.as_slice() {
            [began, version, namespace, name, kind, sequence] => {
                let kind = match *kind {
                    "a" => Some(AutoscalerKind::Autoscaler),
                    "h" => Some(AutoscalerKind::Hpa),
                    _ => None,
                };
                let number = |text: &str| text.parse::<u64>().ok();
                let [namespace, name] = [namespace, name].map(|text| (*text).to_owned());
                let key = Arc::new(ObjectKey { namespace, name });
                let sequence = number(sequence).filter(|sequence| *sequence < u64::MAX);
                kind.zip(sequence).zip(number(began).zip(number(version))).map(
                    |((kind, sequence), (began, version))| {
                        (began, Self { version, after: Some(Position { key, kind, sequence }) })
                    },
                )
            }
            _ => None,
        };
        parsed.ok_or_else(|| ApiError::bad_request("continue: the token is not one of a list"))
    }

    /// Checks whether a list of the leadership that began at a resource version continues here.
    ///
    /// # Errors
    /// 410 if another one has begun since, 504 if the replica that gave the token is ahead of this one.
    pub fn check(&self, began: u64, versions: Versions) -> Result<(), ApiError> {
        if began < versions.began {
            return Err(ApiError::expired("another leader has begun: list again"));
        }
        if began > versions.began || self.version > versions.last {
            return Err(ApiError::too_large_resource_version(self.version, versions.last));
        }
        Ok(())
    }
}

/// A list that is being written.
pub struct List {
    pub ledger: Ledger,
    pub scope: Scope,
    pub selection: Selection,
    pub form: Form,
    /// The resource versions at its first page.
    pub versions: Versions,
    /// Where it continues.
    pub place: Place,
    /// How many decisions may follow, if there is a limit: fewer do if they are large, and the list continues.
    pub left: Option<usize>,
}

/// How far a list is.
struct Writing {
    list: List,
    /// Whether nothing was written, and no item.
    is_new: bool,
    is_empty: bool,
    /// The last decision that was written.
    last: Option<Listed>,
    /// The bytes of all that were.
    bytes: usize,
    is_over: bool,
}

impl List {
    /// The response. Its body fails if another leader begins meanwhile.
    pub fn respond(self) -> Response<Body> {
        let content_type = self.form.content_type();
        let writing = Writing {
            list: self,
            is_new: true,
            is_empty: true,
            last: None,
            bytes: 0,
            is_over: false,
        };
        let pages = stream::try_unfold(writing, async |mut writing| {
            Ok::<_, Error>(writing.next()?.map(|bytes| (bytes, writing)))
        });
        ([(header::CONTENT_TYPE, content_type)], Body::from_stream(pages)).into_response()
    }
}

impl Writing {
    /// The next page; none at the end.
    fn next(&mut self) -> Result<Option<Bytes>, Error> {
        if self.is_over {
            return Ok(None);
        }
        let List { ledger, scope, selection, form, versions, place, left } = &mut self.list;
        if ledger.versions().is_ok_and(|now| now.began != versions.began) {
            return Err(Error::other("another leader has begun"));
        }
        let mut out = Vec::new();
        if std::mem::take(&mut self.is_new) {
            out.extend_from_slice(form.head().as_bytes());
        }
        let page = ledger.list(scope, place.after.as_ref(), selection.filter());
        let mut is_more = page.next.is_some();
        for listed in page.found {
            if !selection.selects(&listed.autoscaler, listed.entry.sequence) {
                continue;
            }
            if left.is_some_and(|left| left == 0 || self.bytes >= MAX_PART_BYTES) {
                // There is one more, which a next list begins with.
                let last = self.last.as_ref().map(Listed::position);
                place.after = last.or(place.after.take());
                (is_more, self.is_over) = (false, true);
                break;
            }
            let decision = rendered(&listed, versions.since);
            let is_first = std::mem::take(&mut self.is_empty);
            let begin = out.len();
            match form.row {
                None => form.item(&mut out, is_first, &decision),
                Some(object) => {
                    let row = table::row(&value(&decision), object);
                    form.item(&mut out, is_first, &row);
                }
            }
            self.bytes += out.len() - begin;
            *left = left.map(|left| left - 1);
            self.last = Some(listed);
        }
        if is_more {
            place.after = page.next;
            return Ok(Some(out.into()));
        }
        let mut metadata = json!({"resourceVersion": place.version.to_string()});
        if self.is_over {
            metadata["continue"] = place.token(versions.began).into();
        }
        self.is_over = true;
        out.extend_from_slice(form.tail(self.is_empty, &metadata).as_bytes());
        Ok(Some(out.into()))
    }
}
