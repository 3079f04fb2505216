//! Forwards requests for metrics that Plimsoll does not know to another adapter, so that both can
//! serve one APIService.

use super::discovery::ServedResource;
use super::error::ApiError;
use super::request::{ApiGroup, Version};
use crate::cache::{self, Cache};
use crate::k8s::SERVICE_ACCOUNT;
use crate::prometheus::{Error, Http, Pem, read_roots};
use bytes::{Bytes, BytesMut};
use reqwest::{StatusCode, Url};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The adapter that requests of one API group are forwarded to.
#[derive(Clone, Debug)]
pub struct ForwardTarget {
    http: Http,
    url: Url,
    token_file: Option<PathBuf>,
    discovery: Cache<(), BTreeSet<ServedResource>>,
}

/// The options of a [`ForwardTarget`].
#[derive(Clone, Debug)]
pub struct ForwardOptions {
    /// The URL, such as `https://keda-metrics-apiserver.keda.svc:443`.
    pub url: String,
    /// The trusted CAs; those of the system, if none.
    pub roots: Option<Pem>,
    /// Whether its certificate is not verified.
    pub insecure_skip_tls_verify: bool,
    /// The file of the bearer token; that of the pod's service account, if none.
    pub token_file: Option<PathBuf>,
}

/// The adapters that requests are forwarded to, by API group.
pub type ForwardTargets = BTreeMap<ApiGroup, ForwardTarget>;

/// The longest time for a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long discovery of an adapter is cached.
const DISCOVERY_TTL: Duration = Duration::from_secs(15);
/// The largest response that is forwarded, in bytes.
const MAX_RESPONSE_BYTES: usize = 16 << 20;

#[derive(Deserialize)]
struct ApiResourceList {
    #[serde(default)]
    resources: Vec<ForwardedResource>,
}

#[derive(Deserialize)]
struct ForwardedResource {
    name: String,
    #[serde(default)]
    namespaced: bool,
}

impl ForwardTarget {
    /// A target with these options.
    ///
    /// # Errors
    /// If an option is invalid; the text says which.
    pub fn new(options: ForwardOptions) -> Result<Self, String> {
        let url = Url::parse(&options.url)
            .map_err(|error| format!("{error}; https://NAME.NAMESPACE.svc:PORT was expected"))?;
        if url.scheme() != "https" {
            return Err("https:// was expected: a token goes with each request".to_owned());
        }
        let skip_verify = options.insecure_skip_tls_verify;
        let build = move |roots: Option<&Pem>, _: Option<&Pem>| {
            let mut builder = reqwest::Client::builder()
                .timeout(REQUEST_TIMEOUT)
                .redirect(reqwest::redirect::Policy::none())
                .tls_danger_accept_invalid_certs(skip_verify);
            if let Some(pem) = roots {
                builder = builder.tls_certs_only(read_roots(pem)?);
            } else if skip_verify {
                builder = builder.tls_certs_only([]);
            }
            builder.build().map_err(|error| Error::Settings(error.to_string()))
        };
        let http = Http::with(url.origin().ascii_serialization(), (options.roots, None), build)
            .map_err(|error| error.to_string())?;
        let token_file = options.token_file.or_else(|| {
            let path = Path::new(SERVICE_ACCOUNT).join("token");
            path.exists().then_some(path)
        });
        // One entry, bounded by the largest response.
        let discovery = cache::of_bytes(MAX_RESPONSE_BYTES, DISCOVERY_TTL, |(), _| 0);
        Ok(Self { http, url, token_file, discovery })
    }

    /// Forwards a request, and returns the response as it is. `path` must be canonical.
    ///
    /// # Errors
    /// 503 if the adapter does not respond, or its response is too large.
    pub async fn get(
        &self,
        path: &str,
        query: Option<&str>,
    ) -> Result<(StatusCode, Bytes), ApiError> {
        let unavailable = |error: String| {
            ApiError::failed(format!("the adapter at {} does not respond: {error}", self.url))
        };
        // Host and port are always the configured ones.
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
            if body.len() + chunk.len() > MAX_RESPONSE_BYTES {
                return Err(unavailable(format!(
                    "the response is larger than {MAX_RESPONSE_BYTES} bytes"
                )));
            }
            body.extend_from_slice(&chunk);
        }
        Ok((status, body.freeze()))
    }

    /// The resources of a group that it serves; none while it does not respond.
    pub async fn served_resources(&self, group: ApiGroup) -> BTreeSet<ServedResource> {
        if let Some(resources) = self.discovery.get(&()) {
            return resources;
        }
        let mut resources = BTreeSet::new();
        for version in [Version::V1Beta2, Version::V1Beta1] {
            if !group.versions().contains(&version) {
                continue;
            }
            let path = format!("/apis/{}/{}", group.as_str(), version.as_str());
            match self.get(&path, None).await {
                Ok((StatusCode::OK, body)) => {
                    resources = parse_discovery(group, &body);
                    break;
                }
                Ok((status, _)) => {
                    tracing::debug!(%status, path, "Forward target has no discovery");
                }
                Err(error) => {
                    tracing::warn!(
                        error = error.message,
                        "Failed to read discovery of forward target"
                    );
                }
            }
        }
        self.discovery.insert((), resources.clone());
        resources
    }
}

fn parse_discovery(group: ApiGroup, body: &[u8]) -> BTreeSet<ServedResource> {
    let list: ApiResourceList = match serde_json::from_slice(body) {
        Ok(list) => list,
        Err(error) => {
            tracing::warn!(
                error = error.to_string(),
                "Failed to parse discovery of forward target"
            );
            return BTreeSet::new();
        }
    };
    let served = |resource: ForwardedResource| match group {
        ApiGroup::External => Some(ServedResource::external_metric(resource.name)),
        ApiGroup::Custom => {
            let (name, metric) = resource.name.split_once('/')?;
            let (name, metric) = (name.to_owned(), metric.to_owned());
            Some(ServedResource::object_metric(name, resource.namespaced, metric))
        }
        ApiGroup::Resource | ApiGroup::Decisions => None,
    };
    list.resources.into_iter().filter_map(served).collect()
}
