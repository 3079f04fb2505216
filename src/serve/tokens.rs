//! Whose a bearer token is: the API server says (TokenReview).
//!
//! A token that was never seen to be valid may be a guess. Guesses wait for each
//! other, by the address that they come from, and never for a valid token.

use super::admission::{Room, Shares};
use super::identity::{Identity, Unidentified};
use crate::cache;
use crate::telemetry::Metrics;
use crate::watch::Failures;
use governor::clock::DefaultClock;
use governor::state::keyed::HashMapStateStore;
use governor::{Quota, RateLimiter};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use kube::api::PostParams;
use kube::{Api, Client};
use moka::future::Cache;
use sha2::{Digest, Sha256};
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

type Hash = [u8; 32];

/// Tells whose tokens are. They are kept as hashes, for a short time.
#[derive(Clone)]
pub struct Tokens(Arc<Inner>);

struct Inner {
    client: Client,
    metrics: Arc<Metrics>,
    valid: Cache<Hash, Arc<Identity>>,
    invalid: Cache<Hash, ()>,
    /// Tokens that were valid lately; to ask about them again is no guess.
    seen: Cache<Hash, ()>,
    renewals: Room,
    guesses: Room,
    guesses_by_source: Shares<IpAddr>,
    failures: Mutex<Failures>,
    rate: RateLimiter<IpAddr, HashMapStateStore<IpAddr>, DefaultClock>,
}

/// How many bytes of valid tokens' users are kept.
const VALID: u64 = 8 << 20;
/// How many invalid tokens are remembered, and how many that were valid lately.
const HASHES: u64 = 16_384;
/// For how long a token that was valid is no guess.
const SEEN: Duration = Duration::from_secs(3600);
/// How many reviews of tokens that were valid lately are under way at once.
const RENEWALS: usize = 32;
/// How many reviews of other tokens are, altogether and for one address.
const GUESSES: usize = 16;
const GUESSES_BY_SOURCE: usize = 4;
/// How many of those one address may ask for each second, and at once.
const RATE: NonZeroU32 = NonZeroU32::new(20).unwrap();
const BURST: NonZeroU32 = NonZeroU32::new(40).unwrap();
/// Of how many addresses the rate is kept before those that asked long ago are forgotten.
const SOURCES: usize = 4096;
/// How long a review waits for its turn, and how long it may take.
const WAIT: Duration = Duration::from_secs(2);
const REVIEW: Duration = Duration::from_secs(10);

impl Tokens {
    /// One that asks over this client, and believes an answer for so long.
    pub fn new(client: Client, age: Duration, metrics: Arc<Metrics>) -> Self {
        let weigh = |_: &Hash, identity: &Arc<Identity>| {
            cache::weight(size_of::<(Hash, Identity)>() + identity.bytes())
        };
        let hashes = |age| Cache::builder().max_capacity(HASHES).time_to_live(age).build();
        Self(Arc::new(Inner {
            client,
            metrics,
            valid: Cache::builder().weigher(weigh).max_capacity(VALID).time_to_live(age).build(),
            invalid: hashes(age),
            seen: hashes(SEEN),
            renewals: Room::new(RENEWALS),
            guesses: Room::new(GUESSES),
            guesses_by_source: Shares::new(GUESSES_BY_SOURCE),
            failures: Mutex::default(),
            rate: RateLimiter::hashmap(Quota::per_second(RATE).allow_burst(BURST)),
        }))
    }

    /// Whose a token is that came from an address.
    ///
    /// # Errors
    /// As [`Unidentified`] says.
    pub async fn identify(&self, token: &str, source: IpAddr) -> Result<Identity, Unidentified> {
        let inner = &*self.0;
        let hash: Hash = Sha256::digest(token).into();
        if inner.invalid.contains_key(&hash) {
            inner.metrics.serving.reviewed("token", "cached", Duration::ZERO);
            return Err(Unidentified::Unknown);
        }
        if let Some(identity) = inner.valid.get(&hash).await {
            inner.metrics.serving.reviewed("token", "cached", Duration::ZERO);
            return Ok(Identity::clone(&identity));
        }
        // Those who show the same token at the same time wait for one review.
        let review = inner.review(token, hash, source);
        match inner.valid.try_get_with(hash, review).await {
            Ok(identity) => Ok(Identity::clone(&identity)),
            Err(error) => Err(Unidentified::clone(&error)),
        }
    }
}

impl Inner {
    async fn review(
        &self,
        token: &str,
        hash: Hash,
        source: IpAddr,
    ) -> Result<Arc<Identity>, Unidentified> {
        let turn = self.turn(self.seen.contains_key(&hash), source);
        let turn = tokio::time::timeout(WAIT, turn).await.ok().flatten();
        let Some(_turn) = turn else {
            self.metrics.serving.rejected("token_reviews");
            return Err(Unidentified::TooMany);
        };
        let begun = Instant::now();
        let asked = self.ask(token).await;
        let outcome = match &asked {
            Ok(Some(_)) => "allowed",
            Ok(None) => "denied",
            Err(_) => "failed",
        };
        self.metrics.serving.reviewed("token", outcome, begun.elapsed());
        self.tell(asked.as_ref().err());
        match asked.map_err(|_| Unidentified::Unavailable)? {
            Some(identity) => {
                self.seen.insert(hash, ()).await;
                Ok(Arc::new(identity))
            }
            None => {
                self.invalid.insert(hash, ()).await;
                Err(Unidentified::Unknown)
            }
        }
    }

    /// Logs why the API server could not be asked.
    fn tell(&self, error: Option<&String>) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        match error {
            None => failures.end(),
            Some(error) => {
                if let Some(failures) = failures.one_more() {
                    tracing::warn!(error, failures, "Failed to review a token");
                }
            }
        }
    }

    /// Waits until a token may be asked about; none where too many wait.
    async fn turn(&self, seen: bool, source: IpAddr) -> Option<impl Sized> {
        if seen {
            return Some(vec![self.renewals.take().await?]);
        }
        if self.rate.len() >= SOURCES {
            self.rate.retain_recent();
        }
        self.rate.check_key(&source).ok()?;
        let own = self.guesses_by_source.of(source).take().await?;
        Some(vec![own, self.guesses.take().await?])
    }

    async fn ask(&self, token: &str) -> Result<Option<Identity>, String> {
        let review = TokenReview {
            spec: TokenReviewSpec { token: token.to_owned(), audiences: None },
            ..Default::default()
        };
        let api: Api<TokenReview> = Api::all(self.client.clone());
        let parameters = PostParams::default();
        let asked = api.create(&parameters, &review);
        let review = match tokio::time::timeout(REVIEW, asked).await {
            Ok(Ok(review)) => review,
            Ok(Err(error)) => return Err(error.to_string()),
            Err(_) => return Err("no answer in time".to_owned()),
        };
        let status = review.status.unwrap_or_default();
        let user = status.user.filter(|_| status.authenticated == Some(true));
        Ok(user.map(Identity::from))
    }
}

impl From<UserInfo> for Identity {
    fn from(user: UserInfo) -> Self {
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

    /// An API server that knows tokens that begin with `valid`, and answers when it is let.
    fn api_server(asked: Arc<AtomicUsize>, gate: Arc<Semaphore>) -> Client {
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let (asked, gate) = (asked.clone(), gate.clone());
            async move {
                let body = request.into_body().collect_bytes().await?;
                let review: TokenReview = serde_json::from_slice(&body)?;
                asked.fetch_add(1, Ordering::SeqCst);
                let valid = review.spec.token.starts_with("valid");
                if !valid {
                    gate.acquire().await?.forget();
                }
                let answer = serde_json::json!({
                    "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "metadata": {},
                    "spec": {"token": ""},
                    "status": {"authenticated": valid, "user": {"username": review.spec.token}},
                });
                let body = Body::from(serde_json::to_vec(&answer)?);
                Ok::<_, tower::BoxError>(http::Response::new(body))
            }
        });
        Client::new(service, "default")
    }

    fn source(n: u8) -> IpAddr {
        [10, 0, 0, n].into()
    }

    #[tokio::test]
    async fn guesses_wait_for_each_other_and_valid_tokens_for_none() {
        let (asked, gate) = (Arc::<AtomicUsize>::default(), Arc::new(Semaphore::new(0)));
        let client = api_server(asked.clone(), gate.clone());
        let tokens = Tokens::new(client, Duration::ZERO, Arc::default());
        let valid = async |n| tokens.identify("valid", source(n)).await.map(|who| who.name);
        assert_eq!(valid(1).await.unwrap(), "valid");
        for n in 0..200 {
            let tokens = tokens.clone();
            tokio::spawn(async move { tokens.identify(&format!("guess-{n}"), source(2)).await });
        }
        while asked.load(Ordering::SeqCst) < 1 + GUESSES_BY_SOURCE {
            tokio::task::yield_now().await;
        }
        // Its entry is too old each time, so that it is asked about anew.
        for n in [1, 2, 3] {
            assert_eq!(valid(n).await.unwrap(), "valid");
        }
        let new = tokens.identify("valid too", source(3)).await.unwrap();
        assert_eq!(new.name, "valid too");
        assert_eq!(asked.load(Ordering::SeqCst), 1 + GUESSES_BY_SOURCE + 3 + 1);
    }

    #[tokio::test]
    async fn one_token_is_asked_about_once_and_a_wrong_one_is_remembered_apart() {
        let (asked, gate) = (Arc::<AtomicUsize>::default(), Arc::new(Semaphore::new(1)));
        let client = api_server(asked.clone(), gate);
        let tokens = Tokens::new(client, Duration::from_secs(60), Arc::default());
        let ask = |token: &'static str| tokens.identify(token, source(1));
        let together = futures::future::join_all((0..50).map(|_| ask("valid"))).await;
        assert!(together.iter().all(Result::is_ok));
        for _ in 0..5 {
            assert_eq!(ask("wrong").await, Err(Unidentified::Unknown));
        }
        assert_eq!(asked.load(Ordering::SeqCst), 2);
    }
}
