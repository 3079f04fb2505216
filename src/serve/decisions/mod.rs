//! The API `decisions.plimsoll.dev`: the decision ledger as objects that can be read and watched.

mod options;
mod schema;
mod selection;
mod table;
mod watch;

pub use options::DecisionOptions;
pub use schema::{openapi_v2, openapi_v3};

use super::admission::tenant;
use super::encode::ResponseContent;
use super::error::ApiError;
use super::negotiate::{self, Encoding};
use super::seats::FlowSeats;
use super::seats::SeatPool;
use super::user::UserInfo;
use crate::ledger::api::{GROUP, VERSION};
use crate::ledger::{self, Ledger, Listed, Position, Scope, Versions, decision};
use crate::watch::{AutoscalerKind, ObjectKey};
use axum::http::request::Parts;
use options::{check_version, rendered, since, value};
use selection::Selection;
use serde_json::{Value, json};
use std::sync::Arc;

/// The decisions that are served, and the seats of those who watch them. Cheap to clone.
#[derive(Clone)]
pub struct Decisions {
    ledger: Ledger,
    /// Watches last, so that they do not take the seats of requests.
    watches: SeatPool,
    of_tenant: Arc<FlowSeats<String>>,
}

/// The most watches, and those of one tenant.
const MAX_WATCHES: usize = 500;
const MAX_WATCHES_OF_TENANT: usize = 50;
/// The most decisions of a response, whatever the client asks for: it says how to continue.
const MAX_PAGE: usize = 2_000;

impl Decisions {
    /// The decisions of a ledger.
    pub fn new(ledger: Ledger) -> Self {
        let of_tenant = Arc::new(FlowSeats::new(MAX_WATCHES_OF_TENANT));
        Self { ledger, watches: SeatPool::new(MAX_WATCHES), of_tenant }
    }

    /// The resource versions, if this replica knows all that the leader knows.
    fn versions(&self) -> Result<Versions, ApiError> {
        let versions = self.ledger.versions();
        if versions.is_complete {
            return Ok(versions);
        }
        let message = "this replica does not have the leader's decisions yet; try again";
        Err(ApiError::unavailable(message))
    }

    /// One decision.
    ///
    /// # Errors
    /// 404 if there is none of that name, 503 if this replica does not know.
    pub fn get(
        &self,
        namespace: &str,
        name: &str,
        options: &DecisionOptions,
    ) -> Result<ResponseContent, ApiError> {
        let versions = self.versions()?;
        let missing = || ApiError::not_found(format!("decisions.{GROUP} {name:?} not found"));
        let position = ledger::position(namespace, name).ok_or_else(missing)?;
        let entry = self.ledger.get(&position).ok_or_else(missing)?;
        let Position { key, kind, .. } = position;
        let autoscaler = crate::watch::AutoscalerRef { kind, key };
        let object = value(&decision(&autoscaler, &entry, versions.since));
        Ok(ResponseContent::Tabular(object, table::of(&options.include_object)?))
    }

    /// The decisions of a namespace, or of all.
    ///
    /// # Errors
    /// 400 if a parameter is invalid, 410 if the list can't be continued, 503 if this replica does not
    /// know.
    pub fn list(
        &self,
        namespace: Option<&str>,
        options: &DecisionOptions,
    ) -> Result<ResponseContent, ApiError> {
        let selection = Selection::parse(&options.label_selector, &options.field_selector)?;
        let versions = self.versions()?;
        check_version(options, versions)?;
        let after = match options.continue_from.as_str() {
            "" => None,
            token => Some(continued(token, versions)?),
        };
        let limit = match options.limit.unwrap_or(0) {
            limit @ 1.. => usize::try_from(limit).unwrap_or(MAX_PAGE).min(MAX_PAGE),
            _ => MAX_PAGE,
        };
        let scope = Scope { since: since(options)?, ..selection.scope(namespace) };
        let selects = selection.filter();
        let (found, is_more) = self.ledger.list(&scope, after.as_ref(), limit, selects);
        let mut metadata = json!({"resourceVersion": versions.last.to_string()});
        if let Some(last) = found.last().filter(|_| is_more) {
            metadata["continue"] = continue_token(last, versions).into();
        }
        let items: Vec<Value> =
            found.iter().map(|one| value(&rendered(one, versions.since))).collect();
        let list = json!({
            "kind": "DecisionList",
            "apiVersion": format!("{GROUP}/{VERSION}"),
            "metadata": metadata,
            "items": items,
        });
        Ok(ResponseContent::Tabular(list, table::of(&options.include_object)?))
    }

    /// Watches the decisions of a namespace, or of all.
    ///
    /// # Errors
    /// 400 if a parameter is invalid, 406 if neither JSON nor a table is accepted, 410 if the changes since the
    /// resource version are not known, 429 if the tenant has too many watches, 503 if this replica does not know.
    pub fn watch(
        &self,
        namespace: Option<&str>,
        options: &DecisionOptions,
        parts: &Parts,
        user: Option<&UserInfo>,
    ) -> Result<ResponseContent, ApiError> {
        let selection = Selection::parse(&options.label_selector, &options.field_selector)?;
        let table = match negotiate::encoding(&parts.headers, true) {
            Some(Encoding::Json) => None,
            Some(Encoding::Table) => Some(table::of(&options.include_object)?),
            Some(Encoding::Yaml | Encoding::Protobuf) | None => {
                return Err(ApiError::not_acceptable());
            }
        };
        let versions = self.versions()?;
        let begin = watch::Begin::parse(options, versions)?;
        let tenant = user.map_or("", tenant).to_owned();
        let of_tenant = self.of_tenant.of(tenant).try_acquire();
        let seats = of_tenant.zip(self.watches.try_acquire());
        let seats = seats.ok_or_else(ApiError::too_many_requests)?;
        let scope = selection.scope(namespace);
        let watch = watch::Watch::new(self.ledger.clone(), scope, selection, table, seats);
        Ok(ResponseContent::Response(watch.respond(begin, options)?))
    }
}

/// Where a list goes on after an entry.
fn continue_token(last: &Listed, versions: Versions) -> String {
    let Listed { autoscaler, entry } = last;
    let kind = match autoscaler.kind {
        AutoscalerKind::Autoscaler => 'a',
        AutoscalerKind::Hpa => 'h',
    };
    format!("{}/{}/{kind}/{}", versions.began, autoscaler.key, entry.sequence)
}

fn continued(token: &str, versions: Versions) -> Result<Position, ApiError> {
    let parts: Vec<&str> = token.split('/').collect();
    let parsed = match parts.as_slice() {
        [began, namespace, name, kind, sequence] => {
            let kind = match *kind {
                "a" => Some(AutoscalerKind::Autoscaler),
                "h" => Some(AutoscalerKind::Hpa),
                _ => None,
            };
            let key = ObjectKey { namespace: (*namespace).to_owned(), name: (*name).to_owned() };
            kind.zip(began.parse::<u64>().ok().zip(sequence.parse().ok()))
                .map(|(kind, (began, sequence))| (began, Position { key, kind, sequence }))
        }
        _ => None,
    };
    let (began, position) =
        parsed.ok_or_else(|| ApiError::bad_request("continue: the token is not one of a list"))?;
    match began == versions.began {
        true => Ok(position),
        false => Err(ApiError::expired("another leader has begun: list again")),
    }
}
