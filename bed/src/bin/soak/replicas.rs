//! The two replicas of Plimsoll, each with its own proxies to kube-apiserver and Prometheus.

use crate::history::Spans;
use crate::settings::NAMES;
use crate::view::{self, View, Write};
use bed::process::Process;
use bed::proxy::Proxy;
use bed::{Bed, Options, eventually, plimsoll};
use std::time::{Duration, Instant};

/// How long a replica may take to be ready after a start, a stop or being cut off.
const READY_WITHIN: Duration = Duration::from_secs(40);

/// The resource usage of a replica.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    pub megabytes: f64,
    pub files: f64,
    pub tasks: f64,
}

/// The replicas, both of which may lead. The first is the one of the bed: it is never killed, so that
/// its memory tells of the whole run.
pub struct Pair<'a> {
    bed: &'a Bed,
    options: Options,
    /// The second; none while it is down.
    other: Option<Process>,
    other_api: Proxy,
    other_prometheus: Proxy,
    ports: [u16; 2],
    pub started: [Instant; 2],
    /// How often the second was started.
    pub starts: usize,
    /// How many decisions the processes of the second replica before the present one have not written to its log.
    dropped_before: f64,
    /// When each was stopped (SIGSTOP).
    pub stopped: [Spans; 2],
    /// Since when each can be expected to become ready.
    undisturbed: [Instant; 2],
    pub views: [View; 2],
    /// Writes that were taken in and not returned yet.
    untold: Vec<Write>,
    http: reqwest::Client,
    token: String,
}

impl<'a> Pair<'a> {
    /// Starts the second replica.
    pub async fn start(bed: &'a Bed, options: &Options) -> Self {
        let cluster = &bed.cluster;
        let other_api = Proxy::to_https(cluster.api_port(), cluster.ca()).await;
        let other_prometheus = Proxy::start(cluster.prometheus_port).await;
        let http = reqwest::Client::builder()
            // Its certificate is its own, and of no interest here.
            .tls_danger_accept_invalid_certs(true)
            .timeout(Duration::from_secs(5));
        let token = ["-n", "plimsoll", "create", "token", "scraper", "--duration=24h"];
        let token = cluster.kubectl(&token).await.trim().to_owned();
        let now = Instant::now();
        let mut pair = Self {
            bed,
            options: options.clone(),
            other: None,
            other_api,
            other_prometheus,
            ports: [bed.plimsoll.port, 0],
            started: [now; 2],
            starts: 0,
            dropped_before: 0.0,
            stopped: Default::default(),
            undisturbed: [now; 2],
            views: Default::default(),
            untold: Vec::new(),
            http: http.build().expect("a client"),
            token,
        };
        for (index, _) in NAMES.iter().enumerate() {
            pair.api(index).record(view::of_api);
            pair.prometheus(index).record(view::of_prometheus);
        }
        // What the first was told before is not on record: it lists anew.
        pair.api(0).fail("watch=true", bed::proxy::Fault::expired_watch());
        pair.api(0).end_responses();
        pair.start_other().await;
        eventually("the first replica lists anew", READY_WITHIN, async || {
            if pair.api(0).hits() >= 5 { Ok(()) } else { Err("it does not".to_owned()) }
        })
        .await;
        pair.api(0).clear();
        pair.untold = pair.take();
        pair.views[0].expired = 0;
        pair
    }

    pub fn api(&self, index: usize) -> &Proxy {
        match index {
            0 => &self.bed.faults.as_ref().expect("proxies").api,
            _ => &self.other_api,
        }
    }

    pub fn prometheus(&self, index: usize) -> &Proxy {
        match index {
            0 => &self.bed.faults.as_ref().expect("proxies").prometheus,
            _ => &self.other_prometheus,
        }
    }

    fn process(&self, index: usize) -> Option<&Process> {
        if index == 0 { Some(&self.bed.plimsoll.process) } else { self.other.as_ref() }
    }

    /// Starts the second replica, if it is down.
    pub async fn start_other(&mut self) {
        if self.other.is_some() {
            return;
        }
        let url = |proxy: &Proxy| format!("http://127.0.0.1:{}", proxy.port);
        let (api, prometheus) = (url(&self.other_api), url(&self.other_prometheus));
        self.untold = self.take();
        self.views[1].restarted();
        self.started[1] = Instant::now();
        let cluster = &self.bed.cluster;
        let started = plimsoll::launch(cluster, NAMES[1], &api, &prometheus, &self.options).await;
        self.starts += 1;
        self.ports[1] = started.1;
        self.other = Some(started.0);
        self.undisturbed[1] = Instant::now();
    }

    /// Kills the second replica. What waits to be written to its log then is lost, and not counted.
    pub async fn kill_other(&mut self) {
        self.note_dropped().await;
        if let Some(process) = self.other.take() {
            process.signal("KILL");
        }
    }

    /// Ends the second replica in order.
    pub async fn end_other(&mut self) {
        self.note_dropped().await;
        if let Some(mut process) = self.other.take() {
            process.stop();
        }
    }

    /// Stops a replica, so that it does nothing and knows nothing of it.
    pub fn stop(&mut self, index: usize) {
        if let Some(process) = self.process(index) {
            process.signal("STOP");
            self.stopped[index].begin();
        }
    }

    /// Lets stopped replicas continue.
    pub fn go_on(&mut self) {
        for index in 0..NAMES.len() {
            if self.stopped[index].since().is_some() {
                if let Some(process) = self.process(index) {
                    process.signal("CONT");
                }
                self.stopped[index].end();
                self.undisturbed[index] = Instant::now();
            }
        }
    }

    /// A replica is out of order on purpose until now.
    pub fn disturbed(&mut self, index: usize) {
        self.undisturbed[index] = Instant::now();
    }

    /// Takes in what passed the proxies since the last call; returns the writes of scales, the
    /// earliest first.
    pub fn take(&mut self) -> Vec<Write> {
        let mut writes = std::mem::take(&mut self.untold);
        for index in 0..NAMES.len() {
            for passed in [self.api(index).take_traffic(), self.prometheus(index).take_traffic()] {
                writes.extend(self.views[index].absorb(index, passed));
            }
        }
        writes.sort_by_key(|write| write.arrived);
        writes
    }

    /// The replica that leads, as the latest Lease says that any of them saw.
    pub fn leader(&self) -> Option<usize> {
        let all = self.views.iter().flat_map(|view| &view.leases);
        let latest = all.max_by_key(|lease| lease.version)?;
        NAMES.iter().position(|name| latest.holder.split('_').next() == Some(name))
    }

    /// Whether a replica runs.
    pub fn runs(&self, index: usize) -> bool {
        self.process(index).is_some() && self.stopped[index].since().is_none()
    }

    /// Whether a replica runs and has had the time to become ready.
    pub fn is_well(&self, index: usize) -> bool {
        self.runs(index) && self.undisturbed[index].elapsed() > READY_WITHIN
    }

    /// A path of a replica, past kube-apiserver: the status and the body.
    pub async fn get(&self, index: usize, path: &str) -> Result<(u16, String), String> {
        let url = format!("https://localhost:{}{path}", self.ports[index]);
        let request = self.http.get(url).bearer_auth(&self.token);
        let response = request.send().await.map_err(|error| error.to_string())?;
        let status = response.status().as_u16();
        Ok((status, response.text().await.map_err(|error| error.to_string())?))
    }

    /// The resource usage of the first replica.
    pub async fn usage(&self) -> Option<Usage> {
        let (_, text) = self.get(0, "/metrics").await.ok()?;
        let of = |name: &str| value(&text, name);
        Some(Usage {
            megabytes: of("process_resident_memory_bytes")? / 1e6,
            files: of("process_open_fds")?,
            tasks: of("plimsoll_tasks")?,
        })
    }

    /// How many decisions a replica has not written to its log, in all its processes; none if it does not say.
    pub async fn dropped(&self, index: usize) -> Option<f64> {
        let (_, text) = self.get(index, "/metrics").await.ok()?;
        let dropped = value(&text, "plimsoll_decision_log_dropped_total")?;
        Some(dropped + if index == 1 { self.dropped_before } else { 0.0 })
    }

    /// Notes that of the second replica, whose next process counts from zero.
    async fn note_dropped(&mut self) {
        self.dropped_before = self.dropped(1).await.unwrap_or(self.dropped_before);
    }

    /// The log of each replica.
    pub fn logs(&self) -> [String; 2] {
        let first = self.bed.plimsoll.process.log.clone();
        let other = first.with_file_name(format!("{}.log", NAMES[1]));
        [first, other].map(|path| std::fs::read_to_string(path).unwrap_or_default())
    }
}

/// The value of a metric without labels in a text of metrics.
fn value(metrics: &str, name: &str) -> Option<f64> {
    let found = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    found.and_then(|value| value.trim().parse().ok())
}
