//! The API `decisions.plimsoll.dev`: the decision ledger as objects that can be read and watched.

mod list;
mod options;
mod schema;
mod selection;
mod table;
#[cfg(test)]
mod tests;
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
use crate::ledger::api::GROUP;
use crate::ledger::{self, Behind, Ledger, Position, Scope, Versions, decision};
use crate::watch::AutoscalerRef;
use axum::http::request::Parts;
use list::{Form, List, Place};
use options::{check_version, since, value};
use selection::Selection;
use std::sync::{Arc, OnceLock};

/// The decisions that are served, and the seats of those who watch them. Cheap to clone.
#[derive(Clone)]
pub struct Decisions {
    ledger: Ledger,
    /// Watches last, so that they do not take the seats of requests.
    watches: SeatPool,
    of_tenant: Arc<FlowSeats<String>>,
    /// Those of other replicas, which have the same name as this one.
    of_replicas: SeatPool,
    own_name: Arc<OnceLock<String>>,
}

/// The most watches, and those of one tenant.
const MAX_WATCHES: usize = 500;
const MAX_WATCHES_OF_TENANT: usize = 50;
/// The most watches of other replicas, besides.
const MAX_WATCHES_OF_REPLICAS: usize = 32;

impl Decisions {
    /// The decisions of a ledger. `own_name` is the user name of the replicas, once it is known.
    pub fn new(ledger: Ledger, own_name: Arc<OnceLock<String>>) -> Self {
        let of_tenant = Arc::new(FlowSeats::new(MAX_WATCHES_OF_TENANT));
        let of_replicas = SeatPool::new(MAX_WATCHES_OF_REPLICAS);
        Self { ledger, watches: SeatPool::new(MAX_WATCHES), of_tenant, of_replicas, own_name }
    }

    /// Whether decisions are kept. Where they are not, discovery does not list them: who caches all that may be listed, such
    /// as Argo CD, would fail at them.
    pub fn are_kept(&self) -> bool {
        self.ledger.versions() != Err(Behind::Off)
    }

    /// The resource versions, if this replica knows all that the leader knows.
    fn versions(&self) -> Result<Versions, ApiError> {
        self.ledger.versions().map_err(|behind| match behind {
            Behind::Off => ApiError::not_kept(behind.to_string()),
            Behind::NotCopied | Behind::For(_) => ApiError::unavailable(behind.to_string()),
        })
    }

    /// The same; waits a little if a later one is asked for, of which another replica may have told.
    async fn versions_from(&self, wanted: Option<u64>) -> Result<Versions, ApiError> {
        if let Some(wanted) = wanted.filter(|_| self.ledger.is_on()) {
            self.ledger.reached(wanted).await;
        }
        self.versions()
    }

    /// One decision.
    ///
    /// # Errors
    /// 404 if there is none of that name, 405 if none are kept, 503 if this replica does not know.
    pub async fn get(
        &self,
        namespace: &str,
        name: &str,
        options: &DecisionOptions,
    ) -> Result<ResponseContent, ApiError> {
        let versions = self.versions_from(options.version()?).await?;
        check_version(options, versions)?;
        let missing = || ApiError::not_found(format!("decisions.{GROUP} {name:?} not found"));
        let position = ledger::position(namespace, name).ok_or_else(missing)?;
        let entry = self.ledger.get(&position).await.ok_or_else(missing)?;
        let Position { key, kind, .. } = position;
        let object = value(&decision(&AutoscalerRef { kind, key }, &entry, versions.since));
        Ok(ResponseContent::Tabular(object, table::whole(&options.include_object)?))
    }

    /// The decisions of a namespace, or of all.
    ///
    /// # Errors
    /// 400 or 422 if a parameter is invalid, 405 if none are kept, 406 if no form of it is accepted, 410 if the list can't be continued, 503 if
    /// this replica does not know, 504 if it does not yet.
    pub async fn list(
        &self,
        namespace: Option<&str>,
        options: &DecisionOptions,
        parts: &Parts,
    ) -> Result<ResponseContent, ApiError> {
        options.check(false)?;
        let selection = Selection::parse(&options.label_selector, &options.field_selector)?;
        let form = Form::accepted(parts, &options.include_object)?;
        let continued = match options.continue_from.as_str() {
            "" => None,
            token => Some(Place::of(token)?),
        };
        let wanted = continued.as_ref().map(|(_, place)| place.version);
        let versions = self.versions_from(wanted.or(options.version()?)).await?;
        check_version(options, versions)?;
        let place = match continued {
            None => Place { version: versions.last, after: None },
            Some((began, place)) => {
                place.check(began, versions)?;
                place
            }
        };
        let left = options.limit.and_then(|limit| usize::try_from(limit).ok());
        let left = left.filter(|limit| *limit > 0);
        let ledger = self.ledger.clone();
        let scope = Scope { since: since(options)?, ..selection.scope(namespace) };
        let list = List { ledger, scope, selection, form, versions, place, left };
        Ok(ResponseContent::Response(list.respond()))
    }

    /// Watches the decisions of a namespace, or of all.
    ///
    /// # Errors
    /// 400 or 422 if a parameter is invalid, 405 if none are kept, 406 if neither JSON nor a table is accepted, 429 if the tenant has too many
    /// watches, 503 if this replica does not know.
    pub async fn watch(
        &self,
        namespace: Option<&str>,
        options: &DecisionOptions,
        parts: &Parts,
        user: Option<&UserInfo>,
    ) -> Result<ResponseContent, ApiError> {
        options.check(true)?;
        let selection = Selection::parse(&options.label_selector, &options.field_selector)?;
        let table = match negotiate::encoding_of_events(&parts.headers) {
            Some(Encoding::Table) => Some(table::object(&options.include_object)?),
            Some(_) => None,
            None => return Err(ApiError::not_acceptable()),
        };
        let is_replica = user.is_some_and(|user| self.own_name.get() == Some(&user.name));
        let seats = match is_replica {
            true => self.of_replicas.try_acquire().map(|seat| vec![seat]),
            false => {
                let of_tenant = self.of_tenant.of(user.map_or("", tenant));
                let seats = of_tenant.try_acquire().zip(self.watches.try_acquire());
                seats.map(|(of_tenant, seat)| vec![of_tenant, seat])
            }
        };
        let seats = seats.ok_or_else(ApiError::too_many_requests)?;
        let versions = self.versions_from(options.version()?).await?;
        let begin = watch::Begin::parse(options, versions)?;
        let scope = selection.scope(namespace);
        let watch = watch::Watch::new(self.ledger.clone(), scope, selection, table, seats);
        Ok(ResponseContent::Response(watch.respond(begin, versions, options, is_replica)))
    }
}
