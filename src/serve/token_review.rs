//! Authentication of bearer tokens by the API server (TokenReview).
//!
//! A token that was not valid recently may be a guess. Reviews of such unknown tokens queue by the
//! address of the client, and never delay those of known tokens.

use super::seats::{FlowSeats, SeatPool};
use super::user::{AuthenticationError, UserInfo};
use crate::cache;
use crate::kube_error::worded;
use crate::telemetry::Metrics;
use crate::watch::FailureLog;
use governor::clock::DefaultClock;
use governor::state::keyed::HashMapStateStore;
use governor::{Quota, RateLimiter};
use k8s_openapi::api::authentication::v1::{self as api, TokenReview, TokenReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use moka::future::Cache;
use sha2::{Digest, Sha256};
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

type TokenHash = [u8; 32];

/// Authenticates bearer tokens, and caches the reviews by the hash of the token. Cheap to clone.
#[derive(Clone)]
pub struct TokenAuthenticator(Arc<Inner>);

struct Inner {
    client: Client,
    metrics: Arc<Metrics>,
    valid: Cache<TokenHash, Arc<UserInfo>>,
    invalid: Cache<TokenHash, ()>,
    /// The known tokens: those that were valid recently.
    known: Cache<TokenHash, ()>,
    known_token_seats: SeatPool,
    unknown_token_seats: SeatPool,
    unknown_token_seats_by_source: FlowSeats<IpAddr>,
    failures: Mutex<FailureLog>,
    rate_limit: RateLimiter<IpAddr, HashMapStateStore<IpAddr>, DefaultClock>,
}

/// The size of the cache of valid tokens, in bytes.
const VALID_CACHE_BYTES: u64 = 8 << 20;
/// The number of cached invalid tokens, and of known ones.
const CACHED_HASHES: u64 = 16_384;
/// How long a token is known after a review that found it valid.
const KNOWN_TOKEN_TTL: Duration = Duration::from_secs(3600);
/// The number of reviews of known tokens in flight.
const MAX_KNOWN_TOKEN_REVIEWS: usize = 32;
/// The number of reviews of unknown tokens in flight, in total and per address.
const MAX_UNKNOWN_TOKEN_REVIEWS: usize = 16;
const MAX_UNKNOWN_TOKEN_REVIEWS_PER_SOURCE: usize = 4;
/// The rate limit of reviews of unknown tokens, per address: reviews per second, and at once.
const REVIEWS_PER_SECOND: NonZeroU32 = NonZeroU32::new(20).unwrap();
const REVIEW_BURST: NonZeroU32 = NonZeroU32::new(40).unwrap();
/// The number of rate-limited addresses from which on idle ones are dropped.
const MAX_IDLE_SOURCES: usize = 4096;
/// How long a review waits in a queue, and how long it may take.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(2);
const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);

impl TokenAuthenticator {
    /// An authenticator with this client, which caches reviews for `ttl`.
    pub fn new(client: Client, ttl: Duration, metrics: Arc<Metrics>) -> Self {
        let weigh = |_: &TokenHash, user: &Arc<UserInfo>| {
            cache::weight(size_of::<(TokenHash, UserInfo)>() + user.bytes())
        };
        let hashes = |ttl| Cache::builder().max_capacity(CACHED_HASHES).time_to_live(ttl).build();
        let valid = Cache::builder().weigher(weigh).max_capacity(VALID_CACHE_BYTES);
        Self(Arc::new(Inner {
            client,
            metrics,
            valid: valid.time_to_live(ttl).build(),
            invalid: hashes(ttl),
            known: hashes(KNOWN_TOKEN_TTL),
            known_token_seats: SeatPool::new(MAX_KNOWN_TOKEN_REVIEWS),
            unknown_token_seats: SeatPool::new(MAX_UNKNOWN_TOKEN_REVIEWS),
            unknown_token_seats_by_source: FlowSeats::new(MAX_UNKNOWN_TOKEN_REVIEWS_PER_SOURCE),
            failures: Mutex::default(),
            rate_limit: RateLimiter::hashmap(
                Quota::per_second(REVIEWS_PER_SECOND).allow_burst(REVIEW_BURST),
            ),
        }))
    }

    /// The user of a token that an address sent.
    ///
    /// # Errors
    /// As `AuthenticationError` says.
    pub async fn authenticate(
        &self,
        token: &str,
        source: IpAddr,
    ) -> Result<Arc<UserInfo>, AuthenticationError> {
        let inner = &*self.0;
        let hash: TokenHash = Sha256::digest(token).into();
        if inner.invalid.contains_key(&hash) {
            inner.metrics.serving.reviewed("token", "cached", Duration::ZERO);
            return Err(AuthenticationError::InvalidCredentials);
        }
        if let Some(user) = inner.valid.get(&hash).await {
            inner.metrics.serving.reviewed("token", "cached", Duration::ZERO);
            return Ok(user);
        }
        // Single-flight: concurrent requests with the same token share one review.
        let review = inner.review(token, hash, source);
        // Boxed, as the future of each request would have room for it.
        let user = Box::pin(inner.valid.try_get_with(hash, review)).await;
        user.map_err(|error| AuthenticationError::clone(&error))
    }
}

impl Inner {
    async fn review(
        &self,
        token: &str,
        hash: TokenHash,
        source: IpAddr,
    ) -> Result<Arc<UserInfo>, AuthenticationError> {
        let seats = self.acquire_seats(self.known.contains_key(&hash), source);
        let seats = tokio::time::timeout(QUEUE_TIMEOUT, seats).await.ok().flatten();
        let Some(_seats) = seats else {
            self.metrics.serving.rejected("token_reviews");
            return Err(AuthenticationError::TooManyReviews);
        };
        let begun = Instant::now();
        let reviewed = self.create_review(token).await;
        let outcome = match &reviewed {
            Ok(Some(_)) => "allowed",
            Ok(None) => "denied",
            Err(_) => "failed",
        };
        self.metrics.serving.reviewed("token", outcome, begun.elapsed());
        self.log(reviewed.as_ref().err());
        match reviewed.map_err(|_| AuthenticationError::Unavailable)? {
            Some(user) => {
                self.known.insert(hash, ()).await;
                Ok(Arc::new(user))
            }
            None => {
                self.invalid.insert(hash, ()).await;
                Err(AuthenticationError::InvalidCredentials)
            }
        }
    }

    /// Logs why a review failed.
    fn log(&self, error: Option<&String>) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        match error {
            None => failures.succeeded(),
            Some(error) => {
                if let Some(failures) = failures.failed() {
                    tracing::warn!(error, failures, "Failed to review token");
                }
            }
        }
    }

    /// Waits for the seats of a review. Returns none if the queue is full or the rate limit is exceeded.
    async fn acquire_seats(&self, is_known: bool, source: IpAddr) -> Option<impl Sized> {
        if is_known {
            return Some(vec![self.known_token_seats.acquire().await?]);
        }
        if self.rate_limit.len() >= MAX_IDLE_SOURCES {
            self.rate_limit.retain_recent();
        }
        self.rate_limit.check_key(&source).ok()?;
        let of_source = self.unknown_token_seats_by_source.of(&source).acquire().await?;
        Some(vec![of_source, self.unknown_token_seats.acquire().await?])
    }

    /// Creates a TokenReview. Returns none if the token is not valid.
    async fn create_review(&self, token: &str) -> Result<Option<UserInfo>, String> {
        let review = TokenReview {
            spec: TokenReviewSpec { token: token.to_owned(), audiences: None },
            ..Default::default()
        };
        let api: Api<TokenReview> = Api::all(self.client.clone());
        let parameters = PostParams::default();
        let created = api.create(&parameters, &review);
        let review = match tokio::time::timeout(REVIEW_TIMEOUT, created).await {
            Ok(Ok(review)) => review,
            Ok(Err(error)) => return Err(worded(&error)),
            Err(_) => return Err("no response in time".to_owned()),
        };
        let status = review.status.unwrap_or_default();
        let user = status.user.filter(|_| status.authenticated == Some(true));
        Ok(user.map(UserInfo::from))
    }
}

impl From<api::UserInfo> for UserInfo {
    fn from(user: api::UserInfo) -> Self {
        Self {
            name: user.username.unwrap_or_default(),
            uid: user.uid.unwrap_or_default(),
            groups: user.groups.unwrap_or_default(),
            extra: user.extra.unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::client::Body;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::sync::Semaphore;

    /// An API server for which tokens are valid that begin with `valid`. For others, it responds
    /// after the gate was opened.
    fn api_server(reviews: Arc<AtomicUsize>, gate: Arc<Semaphore>) -> Client {
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let (reviews, gate) = (reviews.clone(), gate.clone());
            async move {
                let body = request.into_body().collect_bytes().await?;
                let review: TokenReview = serde_json::from_slice(&body)?;
                reviews.fetch_add(1, Ordering::SeqCst);
                let valid = review.spec.token.starts_with("valid");
                if !valid {
                    gate.acquire().await?.forget();
                }
                let response = serde_json::json!({
                    "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "metadata": {},
                    "spec": {"token": ""},
                    "status": {"authenticated": valid, "user": {"username": review.spec.token}},
                });
                let body = Body::from(serde_json::to_vec(&response)?);
                Ok::<_, tower::BoxError>(http::Response::new(body))
            }
        });
        Client::new(service, "default")
    }

    fn source(n: u8) -> IpAddr {
        [10, 0, 0, n].into()
    }

    #[tokio::test]
    async fn unknown_tokens_queue_behind_each_other_and_never_delay_known_ones() {
        let (reviews, gate) = (Arc::<AtomicUsize>::default(), Arc::new(Semaphore::new(0)));
        let client = api_server(reviews.clone(), gate.clone());
        let tokens = TokenAuthenticator::new(client, Duration::ZERO, Arc::default());
        let valid =
            async |n| tokens.authenticate("valid", source(n)).await.map(|user| user.name.clone());
        assert_eq!(valid(1).await.unwrap(), "valid");
        for n in 0..200 {
            let tokens = tokens.clone();
            tokio::spawn(
                async move { tokens.authenticate(&format!("guess-{n}"), source(2)).await },
            );
        }
        while reviews.load(Ordering::SeqCst) < 1 + MAX_UNKNOWN_TOKEN_REVIEWS_PER_SOURCE {
            tokio::task::yield_now().await;
        }
        // The cache has a TTL of zero, so that each request needs a review.
        for n in [1, 2, 3] {
            assert_eq!(valid(n).await.unwrap(), "valid");
        }
        let new = tokens.authenticate("valid too", source(3)).await.unwrap();
        assert_eq!(new.name, "valid too");
        assert_eq!(
            reviews.load(Ordering::SeqCst),
            1 + MAX_UNKNOWN_TOKEN_REVIEWS_PER_SOURCE + 3 + 1
        );
    }

    #[tokio::test]
    async fn concurrent_requests_share_one_review_and_invalid_tokens_are_cached() {
        let (reviews, gate) = (Arc::<AtomicUsize>::default(), Arc::new(Semaphore::new(1)));
        let client = api_server(reviews.clone(), gate);
        let tokens = TokenAuthenticator::new(client, Duration::from_secs(60), Arc::default());
        let authenticate = |token: &'static str| tokens.authenticate(token, source(1));
        let together = futures::future::join_all((0..50).map(|_| authenticate("valid"))).await;
        assert!(together.iter().all(Result::is_ok));
        for _ in 0..5 {
            assert_eq!(authenticate("wrong").await, Err(AuthenticationError::InvalidCredentials));
        }
        assert_eq!(reviews.load(Ordering::SeqCst), 2);
    }
}
