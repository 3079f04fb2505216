//! Keeps what decisions remember in a ConfigMap of Plimsoll's own namespace, so
//! that a restart begins no stabilization window anew. The API server is there
//! anyway, outlives pods and nodes, and takes one small write for all autoscalers.

use crate::hpa::Memory;
use crate::leader::Permit;
use crate::watch::{ObjectKey, Subject, SubjectKind};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::io::{Read, Write};
use std::time::Duration;

/// Where the memory is kept.
#[derive(Clone)]
pub struct Keeper {
    api: Api<ConfigMap>,
    name: String,
}

/// The memory of one autoscaler.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    /// The UID of the object: one that was made anew starts anew.
    pub uid: String,
    /// What is remembered.
    pub memory: Memory,
}

/// All that is kept, as it is written.
#[derive(Serialize, Deserialize)]
struct All {
    /// The form; what has another is not read.
    version: u32,
    autoscalers: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    kind: String,
    namespace: String,
    name: String,
    #[serde(flatten)]
    kept: Kept,
}

const VERSION: u32 = 1;
/// The key in the ConfigMap.
const KEY: &str = "memory.json.gz";
/// The most that is written; an object may have one MiB altogether.
const LARGEST: usize = 900 << 10;
/// The most that is read back; far more than what fits into an object when compressed.
const LARGEST_TEXT: u64 = 256 << 20;
/// How long reading may take before decisions start without.
const PATIENCE: Duration = Duration::from_secs(15);

impl Keeper {
    /// Keeps it beside the Lease of this namespace and name.
    pub fn new(client: Client, (namespace, name): (&str, &str)) -> Self {
        Self { api: Api::namespaced(client, namespace), name: format!("{name}-memory") }
    }

    /// What was kept. Where it can't be read, decisions start anew, which holds
    /// replicas for a window longer.
    pub async fn load(&self) -> Vec<(Subject, Kept)> {
        let start = tokio::time::Instant::now();
        let mut wait = Duration::from_millis(100);
        let read = loop {
            let request = tokio::time::timeout(PATIENCE / 3, self.api.get_opt(&self.name));
            match request.await {
                Ok(Ok(read)) => break read,
                Ok(Err(kube::Error::Api(status))) if status.code == 403 => {
                    tracing::warn!(error = status.message, "may not read what decisions remember");
                    break None;
                }
                failed if start.elapsed() > PATIENCE => {
                    tracing::warn!(?failed, "can't read what decisions remember; they start anew");
                    break None;
                }
                _ => tokio::time::sleep(wait).await,
            }
            wait = (wait * 2).min(Duration::from_secs(2));
        };
        let data = read.and_then(|map| map.binary_data?.remove(KEY));
        match data.map(|data| decode(&data.0)) {
            None => Vec::new(),
            Some(Ok(kept)) => {
                tracing::info!(autoscalers = kept.len(), "read what decisions remember");
                kept
            }
            Some(Err(error)) => {
                tracing::warn!(
                    configmap = self.name,
                    error,
                    "can't read what decisions remember; they start anew"
                );
                Vec::new()
            }
        }
    }

    /// Writes it; whether that went well.
    pub async fn save(&self, permit: &Permit, all: Vec<(Subject, Kept)>) -> bool {
        let count = all.len();
        let encoded = tokio::task::spawn_blocking(move || encode(all, LARGEST)).await;
        let data = match encoded {
            Ok((data, left)) => {
                if left < count {
                    tracing::warn!(
                        left_out = count - left,
                        "what decisions remember does not fit into a ConfigMap"
                    );
                }
                data
            }
            Err(error) => {
                tracing::error!(%error, "could not encode what is remembered");
                return false;
            }
        };
        let map = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": self.name, "labels": {"app.kubernetes.io/name": "plimsoll"}},
            "binaryData": {KEY: ByteString(data)},
        });
        let parameters = PatchParams::apply("plimsoll").force();
        let patch = Patch::Apply(map);
        match permit.write(self.api.patch_metadata(&self.name, &parameters, &patch)).await {
            Ok(_) => {
                tracing::debug!(autoscalers = count, "wrote what decisions remember");
                true
            }
            Err(error) => {
                let error = super::message(&error);
                tracing::warn!(configmap = self.name, error, "can't write what decisions remember");
                false
            }
        }
    }
}

/// The data, and of how many it is. Where all don't fit, those come first of
/// which more is remembered than what they see anyway when they start anew.
fn encode(mut all: Vec<(Subject, Kept)>, largest: usize) -> (Vec<u8>, usize) {
    let remembered = |kept: &Kept| {
        let Memory { recommendations, ups, downs } = &kept.memory;
        recommendations.len() + ups.len() + downs.len()
    };
    all.sort_by_key(|(_, kept)| std::cmp::Reverse(remembered(kept)));
    let entry = |(subject, kept): (Subject, Kept)| Entry {
        kind: subject.kind.as_str().to_owned(),
        namespace: subject.key.namespace,
        name: subject.key.name,
        kept,
    };
    let mut all = All { version: VERSION, autoscalers: all.into_iter().map(entry).collect() };
    loop {
        let text = serde_json::to_vec(&all).expect("it is plain data");
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        let data = encoder.write_all(&text).and_then(|()| encoder.finish());
        let data = data.expect("a Vec takes all that is written to it");
        if data.len() <= largest {
            return (data, all.autoscalers.len());
        }
        let fits = all.autoscalers.len() * largest / data.len();
        all.autoscalers.truncate(fits * 9 / 10);
    }
}

fn decode(data: &[u8]) -> Result<Vec<(Subject, Kept)>, String> {
    let mut text = Vec::new();
    let read = GzDecoder::new(data).take(LARGEST_TEXT).read_to_end(&mut text);
    read.map_err(|error| error.to_string())?;
    let all: All = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    if all.version != VERSION {
        return Err(format!("its version is {}, not {VERSION}", all.version));
    }
    let subject = |entry: Entry| {
        let key = ObjectKey { namespace: entry.namespace, name: entry.name };
        let kinds = [SubjectKind::Autoscaler, SubjectKind::Hpa];
        let kind = kinds.into_iter().find(|kind| kind.as_str() == entry.kind)?;
        Some((Subject { kind, key }, entry.kept))
    };
    Ok(all.autoscalers.into_iter().filter_map(subject).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hpa::Recommendation;

    fn kept(number: usize, recommendations: usize) -> (Subject, Kept) {
        let key = ObjectKey { namespace: "shop".to_owned(), name: format!("web-{number}") };
        let recommendation = |n: usize| Recommendation {
            replicas: (n * number) as i32,
            time: 1_700_000_000_000 + (n * number) as i64 * 7_919,
        };
        let recommendations = (0..recommendations).map(recommendation).collect();
        let memory = Memory { recommendations, ..Memory::default() };
        (Subject::autoscaler(key), Kept { uid: format!("{number:032x}"), memory })
    }

    #[test]
    fn what_is_kept_is_read_back() {
        let all: Vec<_> = (0..100).map(|number| kept(number, 3)).collect();
        let (data, count) = encode(all.clone(), LARGEST);
        assert_eq!((count, decode(&data).unwrap()), (100, all));
        assert!(decode(b"no gzip").is_err());
    }

    #[test]
    fn what_does_not_fit_is_left_out_beginning_with_what_is_seen_anyway() {
        let all: Vec<_> =
            (0..1_000).map(|number| kept(number, if number % 8 == 0 { 5 } else { 1 })).collect();
        let (data, count) = encode(all, 8 << 10);
        assert!(data.len() <= 8 << 10 && count < 1_000, "{count}");
        let read = decode(&data).unwrap();
        let full = read.iter().filter(|(_, kept)| kept.memory.recommendations.len() == 5);
        assert_eq!(full.count(), 125);
    }
}
