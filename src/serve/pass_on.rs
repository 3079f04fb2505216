//! Requests for metrics that Plimsoll does not know, passed on to another
//! adapter, so that one cluster can run both behind one APIService.

use super::discovery::Offered;
use super::request::{ApiGroup, Version};
use super::response::ApiError;
use crate::cache::{self, Cache};
use crate::prometheus::{Error, Http, Pem, read_roots};
use bytes::{Bytes, BytesMut};
use reqwest::{StatusCode, Url};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

/// Where requests of one group are passed on to.
#[derive(Clone, Debug)]
pub struct Other {
    http: Http,
    url: Url,
    token_file: Option<PathBuf>,
    offered: Cache<(), BTreeSet<Offered>>,
}

/// How another adapter is reached.
#[derive(Clone, Debug)]
pub struct OtherOptions {
    /// Its address, such as `https://keda-metrics-apiserver.keda.svc:443`.
    pub url: String,
    /// Whose certificates it may show.
    pub roots: Option<Pem>,
    /// Whether it may show any.
    pub any_certificate: bool,
    /// A token to show to it; of the pod's service account, if none.
    pub token_file: Option<PathBuf>,
}

/// The other adapters, by group.
pub type Others = BTreeMap<ApiGroup, Other>;

/// How long a request may take.
const REQUEST: Duration = Duration::from_secs(10);
/// How long it is believed what another adapter offers.
const OFFERED: Duration = Duration::from_secs(15);
/// The largest answer passed on, in bytes.
const LARGEST: usize = 16 << 20;
const SERVICE_ACCOUNT_TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

#[derive(Deserialize)]
struct ResourceList {
    #[serde(default)]
    resources: Vec<Resource>,
}

#[derive(Deserialize)]
struct Resource {
    name: String,
    #[serde(default)]
    namespaced: bool,
}

impl Other {
    /// One that is reached like this.
    ///
    /// # Errors
    /// Where an option can't be used; the text says which.
    pub fn new(options: OtherOptions) -> Result<Self, String> {
        let url = Url::parse(&options.url)
            .map_err(|error| format!("{error}; https://NAME.NAMESPACE.svc:PORT was expected"))?;
        if url.scheme() != "https" {
            return Err("https:// was expected: a token goes with each request".to_owned());
        }
        let any_certificate = options.any_certificate;
        let build = move |roots: Option<&Pem>, _: Option<&Pem>| {
            let mut builder = reqwest::Client::builder()
                .timeout(REQUEST)
                .redirect(reqwest::redirect::Policy::none())
                .tls_danger_accept_invalid_certs(any_certificate);
            if let Some(pem) = roots {
                builder = builder.tls_certs_only(read_roots(pem)?);
            } else if any_certificate {
                builder = builder.tls_certs_only([]);
            }
            builder.build().map_err(|error| Error::Settings(error.to_string()))
        };
        let http = Http::with(url.origin().ascii_serialization(), (options.roots, None), build)
            .map_err(|error| error.to_string())?;
        let token_file = options.token_file.or_else(|| {
            let own = PathBuf::from(SERVICE_ACCOUNT_TOKEN);
            own.exists().then_some(own)
        });
        // One entry, whose size the largest answer bounds.
        let offered = cache::of_bytes(LARGEST, OFFERED, |(), _| 0);
        Ok(Self { http, url, token_file, offered })
    }

    /// Passes a request on; the answer as it comes. The path is a canonical one.
    ///
    /// # Errors
    /// 503 where the other adapter does not answer, or with more than is passed on.
    pub async fn get(
        &self,
        path: &str,
        query: Option<&str>,
    ) -> Result<(StatusCode, Bytes), ApiError> {
        let unavailable = |error: String| {
            ApiError::unavailable(format!("the adapter at {} does not answer: {error}", self.url))
        };
        // Host and port are the configured ones, whatever the request says.
        let mut url = self.url.clone();
        url.set_path(path);
        url.set_query(query);
        let mut request = self.http.client().await.get(url).header("accept", "application/json");
        if let Some(file) = &self.token_file {
            let token = tokio::fs::read_to_string(file).await;
            let token =
                token.map_err(|error| unavailable(format!("{}: {error}", file.display())))?;
            request = request.bearer_auth(token.trim());
        }
        let failed = |error: reqwest::Error| unavailable(error.without_url().to_string());
        let mut response = request.send().await.map_err(failed)?;
        let status = response.status();
        let mut body = BytesMut::new();
        while let Some(chunk) = response.chunk().await.map_err(failed)? {
            if body.len() + chunk.len() > LARGEST {
                return Err(unavailable(format!("its answer is larger than {LARGEST} bytes")));
            }
            body.extend_from_slice(&chunk);
        }
        Ok((status, body.freeze()))
    }

    /// What it offers of a group; nothing while it does not answer.
    pub async fn offered(&self, group: ApiGroup) -> BTreeSet<Offered> {
        if let Some(offered) = self.offered.get(&()) {
            return offered;
        }
        let mut offered = BTreeSet::new();
        for version in [Version::V1Beta2, Version::V1Beta1] {
            if !group.versions().contains(&version) {
                continue;
            }
            let path = format!("/apis/{}/{}", group.as_str(), version.as_str());
            match self.get(&path, None).await {
                Ok((StatusCode::OK, body)) => {
                    offered = read(group, &body);
                    break;
                }
                Ok((status, _)) => tracing::debug!(%status, path, "another adapter offers nothing"),
                Err(error) => {
                    tracing::warn!(error = error.message, "could not ask another adapter")
                }
            }
        }
        self.offered.insert((), offered.clone());
        offered
    }
}

fn read(group: ApiGroup, body: &[u8]) -> BTreeSet<Offered> {
    let list: ResourceList = match serde_json::from_slice(body) {
        Ok(list) => list,
        Err(error) => {
            tracing::warn!(%error, "another adapter's discovery can't be read");
            return BTreeSet::new();
        }
    };
    let offered = |resource: Resource| match group {
        ApiGroup::External => Some(Offered::external_metric(resource.name)),
        ApiGroup::Custom => {
            let (of, metric) = resource.name.split_once('/')?;
            Some(Offered::object_metric(of.to_owned(), resource.namespaced, metric.to_owned()))
        }
        ApiGroup::Resource => None,
    };
    list.resources.into_iter().filter_map(offered).collect()
}
