//! Checkpoints of the scaling history, in a ConfigMap of Plimsoll's own namespace, so that no
//! stabilization window starts empty after a restart. The API server outlives pods and nodes, and
//! one small write holds the history of all autoscalers.
//!
//! Times are stored as ages, beside kube-apiserver's time of the write: the clocks of nodes don't
//! matter.

use super::requests::{message, send};
use crate::blocking;
use crate::clock::Clock;
use crate::hpa::{LONGEST_MS, ScalingHistory};
use crate::leader::{FencingToken, NAME_LABEL};
use crate::telemetry::Metrics;
use crate::time::UnixMillis;
use crate::watch::{AutoscalerKind, AutoscalerRef, ObjectKey};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{PartialObjectMeta, Patch, PatchParams, Request};
use kube::{Api, Client};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Reads and writes checkpoints.
#[derive(Clone)]
pub struct CheckpointStore {
    api: Api<ConfigMap>,
    name: String,
    clock: Clock,
    metrics: Arc<Metrics>,
    /// Data that was found and could not be decoded.
    undecodable: Arc<Mutex<Option<Undecodable>>>,
}

/// Data that another version of Plimsoll wrote. It is kept until no window looks back to it, in case
/// that version runs again.
struct Undecodable {
    data: Vec<u8>,
    until: Instant,
}

/// The scaling history of one autoscaler. Its times are those of this process's clock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Checkpoint {
    /// The UID of the object: a recreated object starts without history.
    pub uid: String,
    /// Recommendations and scale events. It is stored as `memory`, like the keys of the ConfigMap and
    /// its name: another name would lose the history on an upgrade.
    #[serde(rename = "memory")]
    pub history: ScalingHistory,
    /// `status.lastScaleTime` of the last change of the scale in `history`, in Unix seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_scale: Option<i64>,
    /// The replicas after that change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_replicas: Option<i32>,
    /// Since when, and until when, no replica is removed because the metrics were missing.
    #[serde(default, rename = "held", skip_serializing_if = "Option::is_none")]
    pub withheld: Option<(UnixMillis, UnixMillis)>,
}

impl Checkpoint {
    /// The same by a clock that is ahead by `by`.
    fn shifted(self, by: UnixMillis) -> Self {
        let withheld = self.withheld.map(|(since, until)| (since + by, until + by));
        Self { history: self.history.shifted(by), withheld, ..self }
    }
}

/// The stored document.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    /// The format: in 1 times are of a wall clock, in 2 they are negative ages, in ms.
    version: u32,
    /// kube-apiserver's time of the write, at most; none if it was not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    written_at: Option<UnixMillis>,
    autoscalers: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    kind: String,
    namespace: String,
    name: String,
    #[serde(flatten)]
    checkpoint: Checkpoint,
}

const VERSION: u32 = 2;
/// What an autoscaler takes besides its history, in entries of a history.
const ENTRY_LENGTH: usize = 4;
/// The keys in the ConfigMap: of the checkpoints, and of data that could not be decoded.
const CHECKPOINTS_KEY: &str = "memory.json.gz";
const UNDECODABLE_KEY: &str = "unread-memory.gz";
/// The maximum size of the data, in bytes; an object may have 1 MiB altogether.
const MAX_CHECKPOINT_BYTES: usize = 900 << 10;
/// The maximum size of preserved data that could not be decoded.
const MAX_UNDECODABLE_BYTES: usize = MAX_CHECKPOINT_BYTES / 4 * 3;
/// The maximum size of the document when decompressed: far more than fits when compressed.
const MAX_DECOMPRESSED_BYTES: u64 = 256 << 20;
/// The time limit of reading.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

impl CheckpointStore {
    /// A store beside the Lease of this namespace and name.
    pub fn new(
        client: Client,
        (namespace, name): (&str, &str),
        clock: Clock,
        metrics: Arc<Metrics>,
    ) -> Self {
        let api = Api::namespaced(client, namespace);
        Self { api, name: format!("{name}-memory"), clock, metrics, undecodable: Arc::default() }
    }

    /// Reads all checkpoints.
    ///
    /// # Errors
    /// If the ConfigMap could not be read; it must not be overwritten then.
    pub async fn load(&self) -> Result<Vec<(AutoscalerRef, Checkpoint)>, String> {
        let read = match tokio::time::timeout(READ_TIMEOUT, self.api.get_opt(&self.name)).await {
            Ok(Ok(read)) => read,
            Ok(Err(error)) => return Err(message(&error)),
            Err(_) => return Err(format!("the API server did not answer within {READ_TIMEOUT:?}")),
        };
        let mut data = read.and_then(|map| map.binary_data).unwrap_or_default();
        let (now, server) = (self.clock.elapsed(), self.clock.server());
        let mut all = Vec::new();
        // Preserved data is used if the newer data can't be decoded, and preserved again if it can't
        // be decoded either.
        for key in [CHECKPOINTS_KEY, UNDECODABLE_KEY] {
            let Some(ByteString(data)) = data.remove(key) else { continue };
            match decode(&data, now, server) {
                Ok(decoded) if all.is_empty() => all = decoded,
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(
                        configmap = self.name,
                        key,
                        error,
                        "Failed to decode the scaling history, keeping the data for one hour"
                    );
                    let until = Instant::now() + Duration::from_millis(LONGEST_MS.unsigned_abs());
                    *self.undecodable() = Some(Undecodable { data, until });
                }
            }
        }
        tracing::info!(autoscalers = all.len(), "Read the scaling history");
        Ok(all)
    }

    /// Notes that what was written last is what there is.
    pub fn note_nothing_to_write(&self) {
        self.metrics.history_is_written(self.clock.wall());
    }

    fn undecodable(&self) -> std::sync::MutexGuard<'_, Option<Undecodable>> {
        self.undecodable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes all checkpoints. Returns the size in bytes, or none if that failed.
    pub async fn save(
        &self,
        token: &FencingToken,
        all: Vec<(AutoscalerRef, Checkpoint)>,
    ) -> Option<usize> {
        let count = all.len();
        let undecodable = {
            let mut undecodable = self.undecodable();
            undecodable.take_if(|undecodable| {
                undecodable.until < Instant::now() || undecodable.data.len() > MAX_UNDECODABLE_BYTES
            });
            undecodable.as_ref().map(|undecodable| undecodable.data.clone())
        };
        let largest = MAX_CHECKPOINT_BYTES - undecodable.as_ref().map_or(0, Vec::len);
        let (now, server) = (self.clock.elapsed(), self.clock.server_at_most());
        let (data, written) = blocking::run(|| encode(all, now, server, largest));
        let left_out = count - written;
        if left_out > 0 {
            tracing::warn!(
                autoscalers = left_out,
                "Left autoscalers out of the scaling history: the ConfigMap is full"
            );
        }
        let bytes = data.len();
        let mut binary = json!({CHECKPOINTS_KEY: ByteString(data)});
        if let Some(undecodable) = undecodable {
            binary[UNDECODABLE_KEY] = json!(ByteString(undecodable));
        }
        match self.write(token, binary).await {
            Ok(_) => {
                tracing::debug!(autoscalers = count, bytes, "Wrote the scaling history");
                self.metrics.history_written(bytes, left_out, self.clock.wall());
                Some(bytes)
            }
            Err(error) => {
                let error = message(&error);
                tracing::warn!(configmap = self.name, error, "Failed to write the scaling history");
                None
            }
        }
    }

    /// Writes the data, in place of the version that is there while the term of the token lasts: a request
    /// that arrives later, of a process that stood still, replaces no newer one.
    async fn write(&self, token: &FencingToken, data: Value) -> Result<(), kube::Error> {
        let present = token.write(self.api.get_metadata_opt(&self.name)).await?;
        let mut map = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": self.name, "labels": {NAME_LABEL.0: NAME_LABEL.1}},
            "binaryData": data,
        });
        if let Some(version) = present.and_then(|map| map.metadata.resource_version) {
            map["metadata"]["resourceVersion"] = version.into();
        }
        let parameters = PatchParams::apply("plimsoll").force();
        let request = Request::new(self.api.resource_url());
        let request = request.patch_metadata(&self.name, &parameters, &Patch::Apply(map));
        let client = self.api.clone().into_client();
        let written = token.write(send(&client, request)).await;
        written.map(|_: PartialObjectMeta<ConfigMap>| ())
    }
}

/// Encodes checkpoints. Returns the data and how many of them fit. Those with the longest history
/// come first: a short one is nearly what an autoscaler without history starts with. Each namespace has an equal share.
fn encode(
    mut all: Vec<(AutoscalerRef, Checkpoint)>,
    now: UnixMillis,
    written_at: Option<UnixMillis>,
    largest: usize,
) -> (Vec<u8>, usize) {
    let length = |checkpoint: &Checkpoint| {
        let ScalingHistory { recommendations, ups, downs } = &checkpoint.history;
        recommendations.len() + ups.len() + downs.len()
    };
    all.sort_by(|(a, of_a), (b, of_b)| length(of_b).cmp(&length(of_a)).then_with(|| a.cmp(b)));
    // The namespaces in turn, so that what is left out is of those with the most.
    let mut sums = HashMap::<_, usize>::new();
    let summed = all.into_iter().map(|(autoscaler, checkpoint)| {
        let sum = sums.entry(autoscaler.key.namespace.clone()).or_default();
        *sum += ENTRY_LENGTH + length(&checkpoint);
        (*sum, (autoscaler, checkpoint))
    });
    let mut summed: Vec<_> = summed.collect();
    summed.sort_by_key(|(sum, _)| *sum);
    let entry = |(autoscaler, checkpoint): (AutoscalerRef, Checkpoint)| Entry {
        kind: autoscaler.kind.as_str().to_owned(),
        namespace: autoscaler.key.namespace.clone(),
        name: autoscaler.key.name.clone(),
        checkpoint: checkpoint.shifted(-now),
    };
    let autoscalers = summed.into_iter().map(|(_, one)| entry(one)).collect();
    let mut all = Document { version: VERSION, written_at, autoscalers };
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

/// Decodes checkpoints, by a clock that says `now` while kube-apiserver's says `server`. An age that
/// can't be known counts as the youngest possible, so that no window ends too soon.
fn decode(
    data: &[u8],
    now: UnixMillis,
    server: Option<UnixMillis>,
) -> Result<Vec<(AutoscalerRef, Checkpoint)>, String> {
    let mut text = Vec::new();
    let read = GzDecoder::new(data).take(MAX_DECOMPRESSED_BYTES).read_to_end(&mut text);
    read.map_err(|error| error.to_string())?;
    let Document { version, written_at, autoscalers } =
        serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    // The offset of the times in it.
    let by = match version {
        1 => now - server.unwrap_or_else(|| newest(&autoscalers)),
        2 => {
            let passed = server.zip(written_at).map_or(0, |(server, at)| server - at);
            now - passed.max(0)
        }
        other => return Err(format!("its version is {other}; 1 or 2 was expected")),
    };
    let autoscaler = |entry: Entry| {
        let key = ObjectKey { namespace: entry.namespace, name: entry.name };
        let kinds = [AutoscalerKind::Autoscaler, AutoscalerKind::Hpa];
        let kind = kinds.into_iter().find(|kind| kind.as_str() == entry.kind)?;
        let Checkpoint { mut history, withheld, uid, last_scale, last_replicas } =
            entry.checkpoint.shifted(by);
        // Nothing happened later than now, regardless of the writer's clock.
        history.recommendations.iter_mut().for_each(|r| r.time = r.time.min(now));
        history.ups.iter_mut().chain(&mut history.downs).for_each(|e| e.time = e.time.min(now));
        let withheld = withheld.map(|(since, until)| (since.min(now), until));
        Some((
            AutoscalerRef { kind, key: key.into() },
            Checkpoint { uid, history, last_scale, last_replicas, withheld },
        ))
    };
    Ok(autoscalers.into_iter().filter_map(autoscaler).collect())
}

/// The checkpoints in a ConfigMap as of its write: the time of that is 0, and those in them are negative
/// ages, in ms.
///
/// # Errors
/// If there are none, or they can't be decoded.
pub fn read_checkpoints(map: ConfigMap) -> Result<Vec<(AutoscalerRef, Checkpoint)>, String> {
    let data = map.binary_data.and_then(|mut data| data.remove(CHECKPOINTS_KEY));
    let ByteString(data) = data.ok_or("the ConfigMap has no checkpoints")?;
    decode(&data, 0, None)
}

/// The latest time in any of them.
fn newest(autoscalers: &[Entry]) -> UnixMillis {
    let times =
        autoscalers.iter().flat_map(|Entry { checkpoint: Checkpoint { history, .. }, .. }| {
            let events = history.ups.iter().chain(&history.downs).map(|event| event.time);
            history.recommendations.iter().map(|r| r.time).chain(events)
        });
    times.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::fake;
    use crate::hpa::{Recommendation, ScaleEvent};

    const NOW: UnixMillis = 5_000;
    const SERVER: UnixMillis = 1_800_000_000_000;

    fn checkpoint(number: usize, recommendations: usize) -> (AutoscalerRef, Checkpoint) {
        let key = ObjectKey { namespace: "shop".to_owned(), name: format!("web-{number}") };
        let recommendation = |n: usize| Recommendation {
            replicas: (n * number) as i32,
            time: NOW - (n * number) as i64 * 7_919,
        };
        let recommendations = (0..recommendations).map(recommendation).collect();
        let history = ScalingHistory { recommendations, ..ScalingHistory::default() };
        let uid = format!("{number:032x}");
        let withheld = number.is_multiple_of(3).then_some((NOW - 100_000, NOW + 200_000));
        let (last_scale, last_replicas) = (Some(number as i64), Some(number as i32));
        (
            AutoscalerRef::autoscaler(key),
            Checkpoint { uid, history, last_scale, last_replicas, withheld },
        )
    }

    fn shifted(all: &[(AutoscalerRef, Checkpoint)], by: i64) -> Vec<(AutoscalerRef, Checkpoint)> {
        let shift = |(autoscaler, checkpoint): &(AutoscalerRef, Checkpoint)| {
            (autoscaler.clone(), checkpoint.clone().shifted(by))
        };
        all.iter().map(shift).collect()
    }

    /// A process that stood still between the two may send the write long after another one's.
    #[tokio::test]
    async fn a_save_replaces_only_the_version_that_it_has_seen() {
        let known = Arc::new(Mutex::new(None::<&str>));
        let found = known.clone();
        let (client, log) = fake::api(move |request| match *found.lock().unwrap() {
            None if request.line.starts_with("GET") => fake::failure(404, "NotFound", "not found"),
            version => {
                let metadata = json!({"name": "plimsoll-memory", "resourceVersion": version});
                (200, json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}))
            }
        });
        let token = fake::fencing_token(&client);
        let lease = ("plimsoll", "plimsoll");
        let store = CheckpointStore::new(client, lease, Clock::default(), Arc::default());
        for version in [None, Some("7"), Some("8")] {
            *known.lock().unwrap() = version;
            assert!(store.save(&token, vec![checkpoint(1, 3)]).await.is_some());
            let write = log.of("PATCH").pop().unwrap();
            assert_eq!(write.body["metadata"]["resourceVersion"].as_str(), version);
            assert!(write.query.contains("timeout=10s"), "{}", write.query);
        }
    }

    #[test]
    fn a_process_with_another_clock_decodes_checkpoints_at_their_age() {
        let mut all: Vec<_> = (0..100).map(|number| checkpoint(number, 3)).collect();
        all.sort_by(|(a, _), (b, _)| a.cmp(b));
        let (data, count) = encode(all.clone(), NOW, Some(SERVER), MAX_CHECKPOINT_BYTES);
        assert_eq!(count, 100);
        // Another process, whose clock started at another time, 30 s later.
        let read = decode(&data, 777, Some(SERVER + 30_000)).unwrap();
        assert_eq!(read, shifted(&all, 777 - NOW - 30_000));
        // If the time between is not known, or is negative, all is as young as possible.
        for server in [None, Some(SERVER), Some(SERVER - 30_000)] {
            assert_eq!(decode(&data, 777, server).unwrap(), shifted(&all, 777 - NOW));
        }
        let (data, _) = encode(all.clone(), NOW, None, MAX_CHECKPOINT_BYTES);
        assert_eq!(decode(&data, 777, Some(SERVER)).unwrap(), shifted(&all, 777 - NOW));
        assert!(decode(b"no gzip", NOW, None).is_err());
    }

    fn compressed(text: &str) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text.as_bytes()).and_then(|()| encoder.finish()).unwrap()
    }

    #[test]
    fn version_1_is_decoded_and_a_newer_version_is_not() {
        let text = format!(
            r#"{{"version":1,"autoscalers":[{{"kind":"Autoscaler","namespace":"shop","name":"web","uid":"u","memory":{{
                "recommendations":[{{"replicas":3,"time":{}}},{{"replicas":9,"time":{}}}],
                "ups":[{{"change":2,"time":{},"outdated":false}}],"downs":[]}},
                "lastScale":1,"held":[{},{}]}}]}}"#,
            SERVER - 20_000,
            // By a clock that was hours ahead.
            SERVER + 9_000_000,
            SERVER - 50_000,
            SERVER - 9_000,
            SERVER + 60_000,
        );
        let read = decode(&compressed(&text), NOW, Some(SERVER)).unwrap();
        let ScalingHistory { recommendations, ups, .. } = &read[0].1.history;
        let times: Vec<_> = recommendations.iter().map(|r| (r.replicas, r.time - NOW)).collect();
        assert_eq!(times, [(3, -20_000), (9, 0)]);
        assert_eq!(
            ups,
            &[ScaleEvent { change: 2, time: NOW - 50_000, outdated: false, unsure: false }]
        );
        assert_eq!(read[0].1.withheld, Some((NOW - 9_000, NOW + 60_000)));
        assert_eq!(read[0].1.last_scale, Some(1));
        // Without kube-apiserver's time the newest counts as of now.
        let read = decode(&compressed(&text), NOW, None).unwrap();
        assert_eq!(read[0].1.history.recommendations[1].time, NOW);
        let future = text.replace("\"version\":1", "\"version\":3");
        assert!(decode(&compressed(&future), NOW, None).unwrap_err().contains("version is 3"));
    }

    /// A tenant with long histories does not push out those of others.
    #[test]
    fn a_namespace_with_much_history_loses_its_own() {
        let mut all: Vec<_> = (0..300).map(|number| checkpoint(number, 60)).collect();
        for (number, (autoscaler, _)) in all.iter_mut().enumerate() {
            let namespace = if number < 295 { "noisy" } else { "quiet" }.to_owned();
            Arc::make_mut(&mut autoscaler.key).namespace = namespace;
        }
        for (_, checkpoint) in &mut all[295..] {
            checkpoint.history.recommendations.truncate(1);
        }
        let (data, count) = encode(all, NOW, Some(SERVER), 8 << 10);
        assert!(count < 300);
        let read = decode(&data, NOW, Some(SERVER)).unwrap();
        let of = |namespace| read.iter().filter(|(one, _)| one.key.namespace == namespace).count();
        assert!(of("quiet") == 5 && of("noisy") > 5, "{} {}", of("quiet"), of("noisy"));
    }

    #[test]
    fn the_shortest_histories_are_left_out_first() {
        let all: Vec<_> = (0..1_000)
            .map(|number| checkpoint(number, if number % 8 == 0 { 5 } else { 1 }))
            .collect();
        let (data, count) = encode(all, NOW, Some(SERVER), 8 << 10);
        assert!(data.len() <= 8 << 10 && count < 1_000, "{count}");
        let read = decode(&data, NOW, Some(SERVER)).unwrap();
        let full =
            read.iter().filter(|(_, checkpoint)| checkpoint.history.recommendations.len() == 5);
        assert_eq!(full.count(), 125);
    }
}
